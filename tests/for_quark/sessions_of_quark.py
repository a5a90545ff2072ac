"""Print, for each place where Quark registers its library, the numbers of registrations and of nodes created with quark_numba's
operators: sessions_of_quark.py MODEL INPUTS, a quantized model and a file of its inputs."""

import json
import sys
import tempfile
from collections import Counter

import numpy as np
import onnx

from quark_numba.ort import native

calls = Counter()


def counted(function, name):
    def call(*arguments):
        calls[name] += 1
        return function(*arguments)

    return call


# Before the library is made, which keeps the functions.
native.REGISTRY._register = counted(native.REGISTRY._register, "registered")
native.REGISTRY._create_kernel = counted(native.REGISTRY._create_kernel, "nodes")

import onnxruntime  # noqa: E402
from quark.onnx.algorithm.finetuning import onnx_evaluate  # noqa: E402
from quark.onnx.quantization import output_eval  # noqa: E402
from quark.onnx.quantization.auto_search import auto_search_v1, utils  # noqa: E402
from quark.onnx.utils import model_utils  # noqa: E402

path, inputs = sys.argv[1:]
with np.load(inputs) as arrays:
    batches = [{"x": arrays["x"][:1]}]


class Reader:
    def __init__(self):
        self.reset_iter()

    def get_next(self):
        return next(self.rest, None)

    def reset_iter(self):
        self.rest = iter(batches)


def registers():
    options = onnxruntime.SessionOptions()
    model_utils.register_custom_ops_library(options, "ROCM")
    model_utils.create_infer_session_for_onnx_model(path, options).run(None, batches[0])


def searches(module):
    def search():
        with tempfile.TemporaryDirectory() as folder:
            module.buildin_eval_func(path, batches, save_path=folder)

    return search


places = {
    "output_eval": lambda: output_eval.eval_metrics(path, path, Reader()),
    "register_custom_ops_library": registers,
    "auto search": searches(auto_search_v1),
    "auto search, utils": searches(utils),
    "shapes": lambda: model_utils.collect_tensor_shapes_from_feed(onnx.load(path), batches[0]),
    "fine-tuning": lambda: onnx_evaluate.inference_model(path, Reader()),
}
found = {}
for place, run in places.items():
    calls.clear()
    run()
    found[place] = dict(calls)
print(json.dumps(found))
