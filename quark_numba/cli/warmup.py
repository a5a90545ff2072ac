"""The subcommand `warmup`: compile kernels into the cache before they are needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .printing import progress, tell

if TYPE_CHECKING:
    from ..compiling.kernel import Kernel

# The forms of a kernel that calls on small arrays, calls on large arrays, and sessions need.
_FORMS = ("serial", "parallel", "task")


def add_parser(commands: Any) -> None:
    from ..linear.versions import types

    names = [element_type.name for element_type in types("quantize", "quantized")]
    parser = commands.add_parser("warmup", help="compile kernels into the cache before calls and sessions need them")
    parser.set_defaults(action=_warmup)
    parser.add_argument(
        "--types",
        nargs="+",
        choices=names,
        metavar="TYPE",
        help="compile the kernels that quantize float32 to these types and back (default without --model: the types of Quark's "
        "operators, and Quark's normalization and LSTM layer): " + ", ".join(names),
    )
    parser.add_argument(
        "--model", metavar="FILE", help="compile the kernels for sessions of this ONNX model, as it is and optimised"
    )


def _warmup(options: argparse.Namespace) -> int:
    types, wings = options.types or [], []
    if not options.types and not options.model:
        types, wings = _added_types(), _wings_of_one_kernel()
    with progress("compiling", len(_FORMS) * (2 * len(types) + len(wings)) + bool(options.model)) as tick:
        for name in types:
            _compile_type(name, tick)
        for wing in wings:
            _compile_wing(wing, tick)
        if options.model:
            _compile_sessions(options.model)
            tick()
    if not options.model:
        tell(
            "dim",
            "not covered",
            "block formats, ONNX's own operators and optimised models, whose kernels depend on the model; see --model",
        )
    return 0


def _added_types() -> list[str]:
    """Return the types of quantize operators outside ONNX's domain. ONNX's own operators run in ONNX Runtime by default."""
    from ..catalog import OPERATORS

    added = [operator for operator in OPERATORS if operator.operation == "quantize" and operator.domain]
    return list(dict.fromkeys(name for operator in added for name in operator.formats))


def _wings_of_one_kernel() -> list[str]:
    """Return the package's wings whose nodes all need the same kernel."""
    from ..catalog import OPERATORS
    from ..ort.operators import table_of

    wings = dict.fromkeys(operator.wing for operator in OPERATORS if operator.wing not in OPERATORS.nodes)
    return [wing for wing in wings if len(table_of(wing)) == 1]


def _compile_type(name: str, tick: Callable[[], None]) -> None:
    """Compile the kernels that quantize float32 to the type and back."""
    from ..element_types import FLOAT32, find
    from ..linear.kernels import widen_function
    from ..linear.key import select
    from ..ort.operators import table_of

    element_type = find(name)
    assert element_type
    _compile_functions("linear")
    for key in (
        select("quantize", FLOAT32, FLOAT32, element_type, element_type),
        select("dequantize", element_type, FLOAT32, element_type, FLOAT32),
    ):
        widen_function(element_type, key.zero_point_dtype)
        _compile_forms(table_of("linear")[key], tick)


def _compile_wing(wing: str, tick: Callable[[], None]) -> None:
    """Compile all kernels of the wing."""
    from ..ort.operators import table_of

    _compile_functions(wing)
    for kernel in table_of(wing).values():
        _compile_forms(kernel, tick)


def _compile_forms(kernel: Kernel, tick: Callable[[], None]) -> None:
    for form in _FORMS:
        getattr(kernel, form)
        tick()


def _compile_functions(wing: str) -> None:
    """Compile the functions that ONNX Runtime calls for the wing's nodes."""
    from ..ort import callbacks
    from ..ort.operators import node_of

    node = node_of(wing)
    for function in ("compute", "prepare", "destroy"):
        if hasattr(node, function):
            callbacks.compiled(getattr(node, function), f"{function}_{wing}")


def _compile_sessions(model: str) -> None:
    """Create sessions of the model, as it is and optimised."""
    from . import inventory, measuring

    nodes = inventory.quantization_nodes(model)
    measuring.create_session(model, nodes)
    with measuring.optimised(model) as optimised:
        measuring.create_session(model, nodes, optimised=optimised)
