"""Models in ONNX Runtime's blocked layout, as sessions on this processor would have them."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx_models import session_options
from text_graphs import text_model

import quark_numba
from quark_numba import optimize
from quark_numba.session.blocked import layout as blocked_layout
from quark_numba.session.request import SessionRequest


def options():
    result = session_options(threads=2)
    quark_numba.register(result)
    return result


def laid_out_for(source, given=None, *providers, **ort_arguments):
    request = SessionRequest(None, given or options(), *providers, ort_arguments=ort_arguments)
    return blocked_layout.lay_out(source, request)


def laid_out(source, **how):
    """Return the optimized model in the blocked layout, or None if no region keeps the layout."""
    return laid_out_for(optimize(source, **how)).model


def has_blocks():
    source = text_model("(float[1, 16, 4, 4] x) => (float[] y) { y = Conv (x, w) }", w=np.ones((16, 16, 1, 1), np.float32))
    given = session_options()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given.optimized_model_filepath = str(Path(folder) / "m.onnx")
        onnxruntime.InferenceSession(source.SerializeToString(), given, ["CPUExecutionProvider"])
        return count(onnx.load(given.optimized_model_filepath), "ReorderInput") > 0


def count(source, operator):
    return sum(node.op_type == operator for node in source.graph.node)
