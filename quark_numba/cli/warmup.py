"""The subcommand `warmup`: fill the caches of kernels and models before they are needed, and for which types and variants."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .printing import progress, tell

# The variants of a kernel that calls on small arrays, calls on large arrays, and sessions need.
_VARIANTS = ("serial", "parallel", "task")

PURPOSE = "compile kernels and optimize a model before calls and sessions need them"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="compile the kernels for sessions of this ONNX model, as it is and optimized, and keep the optimized model if "
        "sessions do that by default (without a model: the kernels that quantize float32 to each type and back, and those of "
        "Quark's normalization and LSTM layer)",
    )


def action(options: argparse.Namespace) -> int:
    if options.model:
        _compile_for_sessions(options.model)
        return 0
    _compile_for_all_types()
    tell(
        "dim",
        "not covered",
        "block formats, other quantizers' operators and optimized models, whose kernels depend on the model; name one",
    )
    return 0


def _compile_for_sessions(model: str) -> None:
    from ..session.inference_session import InferenceSession
    from . import inventory, measuring

    with progress("compiling"):
        nodes = inventory.quantization_nodes(model)
        measuring.create_session(model, nodes)
        InferenceSession(model)


def _compile_for_all_types() -> None:
    from ..catalog import OPERATORS

    types = dict.fromkeys(name for operator in OPERATORS if operator.operation == "quantize" for name in operator.formats)
    families = _families_of_one_kernel()
    with progress("compiling") as update:
        update(total=len(_VARIANTS) * (2 * len(types) + len(families)))
        _compile(types, families, update)


def _families_of_one_kernel() -> list[str]:
    """Return the package's families whose nodes all need the same kernel."""
    from ..catalog import OPERATORS
    from ..ort.operators import table_of

    families = dict.fromkeys(operator.family for operator in OPERATORS if operator.family not in OPERATORS.nodes)
    return [family for family in families if len(table_of(family)) == 1]


def _compile(types: Iterable[str], families: Iterable[str], update: Callable[..., None]) -> None:
    """Compile the kernels that quantize float32 to types and back, and those of families, with the functions of their nodes."""
    from ..element_types import FLOAT32, named
    from ..linear.kernels import widen_function
    from ..linear.key import select
    from ..ort.operators import node_functions, table_of

    def kernels() -> Iterator[Any]:
        node_functions("linear")
        for element_type in named(" ".join(types)):
            for key in (
                select("quantize", FLOAT32, FLOAT32, element_type, element_type),
                select("dequantize", element_type, FLOAT32, element_type, FLOAT32),
            ):
                widen_function(element_type, key.zero_point_dtype)
                yield table_of("linear")[key]
        for family in families:
            node_functions(family)
            yield from table_of(family).values()

    for kernel in kernels():
        for variant in _VARIANTS:
            getattr(kernel, variant)
            update(advance=1)
