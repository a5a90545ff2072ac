"""A model made ready for a session: optimised, in the blocked layout, and in files if it is large."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime

from ..catalog import OPERATORS
from ..models import model_files
from ..models.temporary import temporary_folder
from ..ort import DISABLE_QUANT_QDQ, STANDARD_OPS, ahead, entry
from ..rewriting.optimize import optimized
from . import kept
from .blocked_layout import BlockedModel, blocked, has_regions
from .blocked_nodes import REGION
from .options import facts, runs_on_cpu_alone


@dataclass
class Prepared:
    """A model as ONNX Runtime takes it, the number of its regions in the blocked layout, and the numbers of nodes that stay as
    they are, by operator and reason.

    `source` is the bytes of the model, or a path that exists within the context; None: the original, which has nothing to
    rewrite."""

    source: bytes | str | None
    blocked_regions: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)

    def json(self) -> dict[str, Any]:
        """Return dicts and lists, as commands print them in JSON."""
        left = [{"operator": operator, "nodes": count, "why": why} for (operator, why), count in sorted(self.left.items())]
        return {"regions_in_blocked_layout": self.blocked_regions, "left": left}

    @classmethod
    def of_json(cls, source: bytes | str | None, content: dict[str, Any]) -> Prepared:
        left = {(each["operator"], each["why"]): each["nodes"] for each in content["left"]}
        return cls(source, content["regions_in_blocked_layout"], Counter(left))


@contextmanager
def prepared(
    read: model_files.Source,
    options: onnxruntime.SessionOptions,
    providers: Any = None,
    *,
    cache: bool | str | os.PathLike[str] = False,
    folder: str | os.PathLike[str] | None = None,
    replaced: frozenset[str] = frozenset(),
    **how: Any,
) -> Iterator[Prepared]:
    """Yield a model for sessions with these options.

    Parameters
    ----------
    read, options, providers
        The model, and the arguments of the session.
    cache
        As in ``InferenceSession``.
    folder
        The place of temporary folders for the files of large models.
    replaced
        The initializers that the options replace.
    how
        The arguments of `_made`, and others of the session.

    Raises
    ------
    ValueError
        If `cache` is set for a model without a path.
    """
    if cache is None or cache is False:
        with _made(read, options, providers, folder=folder, replaced=replaced, **how) as made:
            yield made
        return
    if read.path is None:
        raise ValueError("cache is set, but the model has no path; expected the path of a model")
    place = kept.folder_of(cache)
    of_options = facts(options, providers, replaced, how)

    @contextmanager
    def make(apart: Path | None) -> Iterator[kept.Made]:
        source = read if apart else read.again()
        with _made(source, options, providers, folder=apart or folder, replaced=replaced, **how) as made:
            yield made.source, made.json() | {"original": os.path.abspath(read.path or "")}

    with kept.kept(place / kept.key(place, [read.path, *read.files], of_options), make) as found:
        yield Prepared.of_json(*found)


@contextmanager
def _made(
    read: model_files.Source,
    options: onnxruntime.SessionOptions,
    providers: Any,
    *,
    is_native: bool,
    standard_ops: bool | None = None,
    keep_codes: bool = False,
    blocked_layout: bool = True,
    replaced: frozenset[str],
    folder: str | os.PathLike[str] | None,
    **named: Any,
) -> Iterator[Prepared]:
    """Yield a model that is made now. `is_native`: whether the operators are registered natively. The other arguments are those
    of `prepared` and of ``InferenceSession``."""
    with ahead.helpers(read.proto) if is_native else nullcontext() as helpers:
        if standard_ops is None:
            standard_ops = _standard_ops(options, providers)
        uses_blocks = blocked_layout and is_native and not replaced
        changes = not is_optimised(read.proto)
        model: model_files.Model
        left = Counter[tuple[str, str]]()
        if changes or read.is_large:
            result = optimized(
                read,
                standard_ops=standard_ops,
                keep_codes=keep_codes,
                regions=is_native,
                replaced=replaced,
                integers="here" if _has_integer_operators(options) else "nowhere",
            )
            model, left, changes = result.rewritten, result.left, bool(result.done)
            del result
        else:
            model = read.whole()
        if not changes and read.path and not (uses_blocks and has_regions(model)):
            yield Prepared(None, left=left)
            return
        is_large = isinstance(model, ir.Model) and model_files.is_large(model)
        of_blocks: Any = {"providers": providers, "standard_ops": bool(standard_ops), **named}
        with temporary_folder(folder) if is_large else nullcontext("") as place:
            path = os.path.join(place, "model.onnx") if is_large else None
            proto = model_files.write_apart(model, path) if path else model_files.as_proto(model)
            read.check()
            read.forget()
            del model
            if helpers:
                ahead.wait(helpers, proto)
            found = blocked(proto, options, path=path, **of_blocks) if uses_blocks else BlockedModel(None, 0, Counter())
            proto = found.model or proto
            if path and found.model:
                for each in (path, f"{path}.data", os.path.join(place, "optimised.onnx")):
                    os.remove(each)
                path = os.path.join(place, "blocked.onnx")
                Path(path).write_bytes(proto.SerializeToString())
            for why, count in found.left.items():
                left[REGION.full_name, f"not in the blocked layout: {why}"] += count
            with nullcontext(path) if path else model_files.session_source(proto, folder) as source:
                del proto
                yield Prepared(source, found.kept, left)


def _standard_ops(options: onnxruntime.SessionOptions, providers: Any) -> bool | None:
    """Return what `standard_ops` = None means with these arguments; None: it depends on the model. Other execution providers
    than the CPU's may have integer operators of their own."""
    if entry(options, STANDARD_OPS):
        return True
    return None if runs_on_cpu_alone(options, providers) else False


def _has_integer_operators(options: onnxruntime.SessionOptions) -> bool:
    """Whether ONNX Runtime fuses quantization nodes into integer operators in sessions with these options. If not, nobody wants
    them."""
    levels = onnxruntime.GraphOptimizationLevel
    is_on = options.graph_optimization_level not in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC)
    return is_on and entry(options, DISABLE_QUANT_QDQ) != "1"


def is_optimised(model: onnx.ModelProto) -> bool:
    """Whether `optimize` has nothing to rewrite: the model has no node of the package's operators except regions, and no
    function or subgraph that may contain one."""
    if model.functions or not model.HasField("graph"):
        return False
    for node in model.graph.node:
        operator = OPERATORS.find(node.domain, node.op_type)
        if (operator and operator.operation != "region") or any(each.HasField("g") or each.graphs for each in node.attribute):
            return False
    return True
