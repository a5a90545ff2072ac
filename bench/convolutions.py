"""Convolutions of codes beside ONNX Runtime's float convolution, in the blocked layout, on one thread.

`python bench/convolutions.py` prints a line for each layer of a detector: the time of the float convolution, and the time of
``IntegerConv`` divided by it, first with an x of float32, then of uint8. `quark_numba/session/blocked/codes.py` has what was
fitted to that. All results have the same bits."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import quark_numba
from quark_numba.session.blocked.arrays import NCHWC, filter_in_blocks, find_lanes

# Channels, height and width of x, channels of y, rows of the kernel, stride.
LAYERS = (
    (16, 160, 160, 32, 3, 2),
    (32, 80, 80, 32, 1, 1),
    (16, 80, 80, 16, 3, 1),
    (48, 80, 80, 32, 1, 1),
    (64, 40, 40, 64, 1, 1),
    (32, 40, 40, 32, 3, 1),
    (64, 40, 40, 64, 3, 1),
    (192, 40, 40, 64, 1, 1),
    (64, 40, 40, 128, 3, 2),
    (384, 20, 20, 128, 1, 1),
    (128, 10, 10, 128, 3, 1),
    (256, 10, 10, 128, 1, 1),
)
ROUNDS = 40


def session_of(operator: str, domain: str, x: np.ndarray, constants: dict[str, np.ndarray], **attributes: object):
    """Return a session of one node, and a function that runs it."""
    node = helper.make_node(operator, ["x", *constants], ["y"], domain=domain, **attributes)
    values = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "graph", values, [y], tensors)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    quark_numba.register(options)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    made = onnxruntime.InferenceSession(model, options)
    return lambda: made.run(None, {"x": x})[0]


def seconds(run) -> float:
    """Return the time of the second of two runs."""
    run()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    random, lanes = np.random.default_rng(0), find_lanes()
    for channels, height, width, outer, kernel, stride in LAYERS:
        codes = random.integers(0, 256, (1, channels, height, width)).astype(np.uint8)
        x = (codes.astype(np.float32) - 128) / 16
        w = random.integers(-127, 128, (outer, channels, kernel, kernel)).astype(np.int8)
        bias, scale = np.zeros(outer, np.float32), np.full(outer, 2.0**-10, np.float32)
        window = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [kernel // 2] * 4}
        numbers = {"w": filter_in_blocks(w.astype(np.float32) / 64, lanes, True), "bias": bias}
        of_codes = {"lanes": lanes, "x_scale": 1 / 16, "x_zero_point": 128}
        contenders = [session_of("Conv", NCHWC, x, numbers, **window)]
        for given in (x, codes):
            constants = {"w": w, "scale": scale, "bias": bias}
            contenders.append(session_of("IntegerConv", "quark_numba", given, constants, **window, **of_codes))
        results = [run() for run in contenders]
        assert all(np.array_equal(result, results[0]) for result in results)
        times = np.array([[seconds(run) for run in contenders] for _ in range(ROUNDS)])
        reference, from_floats, from_codes = np.quantile(times, 0.25, axis=0)
        layer = f"{channels} x {height} x {width} -> {outer}, {kernel} x {kernel}, stride {stride}"
        print(f"{layer:42} {reference * 1e6:6.0f} us  {from_floats / reference:.2f}  {from_codes / reference:.2f}")


if __name__ == "__main__":
    main()
