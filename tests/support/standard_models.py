"""Models in ONNX's standard operators, and sessions of them without the package."""

import functools

import onnx
from onnx import shape_inference
from onnx_models import session
from rewritten_models import names_of

from quark_numba.rewriting.optimize import optimized

# Sessions that know nothing of the package. ONNX Runtime computes each node by itself, or optimises as it does by default.
plain_session = functools.partial(session, backend=None, threads=1, level="DISABLE_ALL")
LEVELS = ("DISABLE_ALL", "ENABLE_ALL")


def in_standard_operators(source, operators="standard", **options):
    """Return a model in standard operators. Assert that nothing is left, and that onnx accepts the model."""
    result = optimized(source, operators=operators, **options)
    assert not result.left
    standard = result.model
    assert {node.domain for node in standard.graph.node} <= {""}
    onnx.checker.check_model(standard)
    shape_inference.infer_shapes(standard, strict_mode=True)
    assert len(names_of(standard.graph)) == sum(len(node.output) for node in standard.graph.node) + len(
        standard.graph.initializer
    )
    return standard
