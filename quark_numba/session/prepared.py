"""A model made ready for a session: optimised, in the blocked layout, and in files if it is large."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime

from ..models import model_files
from ..models.protos import subgraphs
from ..models.temporary import temporary_folder
from ..ort import DISABLE_QUANT_QDQ, STANDARD_OPS, ahead, entry
from ..rewriting.fusions import UNWRITTEN
from ..rewriting.optimize import begins_rewriting, optimized
from ..rewriting.qdq import Qdq
from . import kept, kept_names
from .blocked_layout import BlockedModel, blocked, has_regions
from .blocked_nodes import REGION
from .initializers import NOTHING_REPLACED, Replacements
from .options import Operators, facts, operators_of, runs_on_cpu_alone


@dataclass
class Prepared:
    """A model as ONNX Runtime takes it, the number of its regions in the blocked layout, and the numbers of nodes that stay as
    they are, by operator and reason.

    `source` is the bytes of the model, or a path; None: the original, which has nothing to rewrite."""

    source: bytes | str | None
    blocked_regions: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)

    def json(self) -> dict[str, Any]:
        """Return dicts and lists, as commands print them in JSON."""
        left = [{"operator": operator, "nodes": count, "why": why} for (operator, why), count in sorted(self.left.items())]
        return {"regions_in_blocked_layout": self.blocked_regions, "left": left}

    @classmethod
    def of_json(cls, source: bytes | str | None, content: dict[str, Any]) -> Prepared:
        left = {(group["operator"], group["why"]): group["nodes"] for group in content["left"]}
        return cls(source, content["regions_in_blocked_layout"], Counter(left))


@contextmanager
def prepared(
    read: model_files.Source,
    options: onnxruntime.SessionOptions,
    providers: Any = None,
    *,
    cache: bool | str | os.PathLike[str] = False,
    folder: str | os.PathLike[str] | None = None,
    replaced: Replacements = NOTHING_REPLACED,
    **how: Any,
) -> Iterator[Prepared]:
    """Yield a model for sessions with these arguments. Its files exist in the context, and `read` is forgotten.

    `cache` is as in ``InferenceSession``, `folder` is the place of temporary folders for the files of large models, `replaced`
    is what the options replace, and `how` are the arguments of `_made` and others of the session. Raise
    ValueError if `cache` is set for a model without a path."""

    def make(files: ExitStack, apart: Path | None) -> kept.Made:
        source = read if apart else read.again()
        made = _made(files, source, options, providers, folder=apart or folder, replaced=replaced, **how)
        return made.source, made.json() | {"original": original}, _unwritten(made.left)

    with ExitStack() as files:
        is_kept = cache is not None and cache is not False
        if is_kept and read.path is None:
            raise ValueError("cache is set, but the model has no path; expected the path of a model")
        place = kept.folder_of(cache) if is_kept else None
        if place is None or read.path is None:
            result = _made(files, read, options, providers, folder=folder, replaced=replaced, **how)
        else:
            original = os.path.abspath(read.path)
            facts_of_options = facts(options, providers, replaced.names, replaced.from_memory, how)
            name = kept_names.key(place, [read.path, *read.named_files], facts_of_options)
            result = Prepared.of_json(*kept.kept(files, place / name, make))
        read.forget()
        yield result


def _unwritten(left: Iterable[tuple[str, str]]) -> str | None:
    """Return why ONNX Runtime could not write its answers. What was made without them is slower, and must not be kept."""
    return next((why[why.index(UNWRITTEN) :] for _, why in left if UNWRITTEN in why), None)


def _made(
    files: ExitStack,
    read: model_files.Source,
    options: onnxruntime.SessionOptions,
    providers: Any,
    *,
    is_native: bool,
    qdq: Qdq = "auto",
    operators: Operators = "auto",
    keep_quantized_weights: bool = False,
    blocked_layout: bool = True,
    keep_initializers_as_inputs: bool = True,
    replaced: Replacements,
    folder: str | os.PathLike[str] | None,
    **named: Any,
) -> Prepared:
    """Return a model that is made now. `is_native`: whether the operators are registered natively. The other arguments are
    those of `prepared` and of ``InferenceSession``."""
    has_others = not runs_on_cpu_alone(options, providers)
    written_in = operators_of(operators, options, providers, is_native=is_native)
    is_custom = written_in == "custom"
    if qdq == "auto" and entry(options, STANDARD_OPS):
        qdq = "float"
    uses_blocks = blocked_layout and is_native and is_custom and not replaced.names
    changes = not is_custom or not is_optimised(read.proto)
    model: model_files.Model
    left = Counter[tuple[str, str]]()
    with ahead.helpers(read.proto) if is_native and is_custom else nullcontext() as helpers:
        if changes or has_others or read.is_large:
            result = optimized(
                read,
                qdq=qdq,
                operators=written_in,
                keep_quantized_weights=keep_quantized_weights,
                regions=is_native,
                keep_initializers_as_inputs=keep_initializers_as_inputs,
                replaced=replaced.names,
                integers="here" if _has_integer_operators(options) else "nowhere",
                has_other_providers=has_others,
            )
            model, left, changes = result.rewritten, result.left, bool(result.done)
            del result
        else:
            model = read.whole()
        if not changes and read.path and not (uses_blocks and has_regions(model)):
            return Prepared(None, left=left)
        path = None
        if isinstance(model, ir.Model) and model_files.is_large(model) and not replaced.from_memory:
            path = os.path.join(files.enter_context(temporary_folder(folder)), "model.onnx")
        proto = model_files.write_apart(model, path) if path else model_files.as_proto(model)
        read.check()
        read.forget()
        del model
        if helpers:
            ahead.wait(helpers, proto)
    in_blocks = BlockedModel(None, 0, Counter())
    if uses_blocks:
        in_blocks = blocked(proto, options, providers, path=path, standard_ops=qdq == "float", **named)
    for why, count in in_blocks.left.items():
        left[REGION.full_name, f"not in the blocked layout: {why}"] += count
    proto = in_blocks.model or proto
    if path and in_blocks.model:
        for written in (path, f"{path}.data", os.path.join(os.path.dirname(path), "optimised.onnx")):
            os.remove(written)
        path = os.path.join(os.path.dirname(path), "blocked.onnx")
        Path(path).write_bytes(proto.SerializeToString())
    if replaced.from_memory:  # ONNX Runtime would look in memory for the files of a model that has some
        return Prepared(model_files.in_one_file(proto), in_blocks.kept, left)
    source = path or files.enter_context(model_files.session_source(proto, folder))
    return Prepared(source, in_blocks.kept, left)


def _has_integer_operators(options: onnxruntime.SessionOptions) -> bool:
    """Whether ONNX Runtime fuses quantization nodes into integer operators in sessions with these options. If not, nobody wants
    them."""
    levels = onnxruntime.GraphOptimizationLevel
    is_on = options.graph_optimization_level not in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC)
    return is_on and entry(options, DISABLE_QUANT_QDQ) != "1"


def is_optimised(model: onnx.ModelProto) -> bool:
    """Whether `optimize` has nothing to rewrite: the model has no node that a pass begins with, and no function or subgraph
    that may contain one."""
    if model.functions or not model.HasField("graph"):
        return False
    return not any(begins_rewriting(node) or any(subgraphs(node)) for node in model.graph.node)
