"""Quantize the models of `float_models` with default configurations of Quark: quantize_models.py FOLDER CONFIGURATION...

For each model and configuration FOLDER gets the quantized model, and the outputs of a session with the library that Quark uses
here. FOLDER/calls.json counts the calls of PyTorch operators for each model."""

import json
import sys
from collections import Counter
from pathlib import Path

import float_models
import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer, get_library_path
from quark.onnx.algorithm.finetuning.create_torch import base_fn_quantizers
from quark.onnx.quantization.config import Config, get_default_config

FEW_STEPS = 20


class Reader(CalibrationDataReader):
    def __init__(self, batches):
        self.batches = batches
        self.reset_iter()

    def get_next(self):
        return next(self.rest, None)

    def reset_iter(self):
        self.rest = iter(self.batches)

    rewind = reset_iter


class Counted:
    """The PyTorch operators, which are counted, and take contiguous tensors: Quark's library ignores strides. A tensor that is
    contiguous goes to them as it is; the others are counted once more."""

    def __init__(self, operators):
        self.calls = Counter()
        for name in ("bfp", "bfp_prime", "mx"):
            setattr(self, name, self.counted(getattr(operators, name), name))

    def counted(self, operator, name):
        def call(tensor, *arguments):
            self.calls[name] += 1
            self.calls["not contiguous"] += not tensor.is_contiguous()
            return operator(tensor.contiguous(), *arguments)

        return call


def configuration(name):
    """A default configuration of Quark. NAME+OPTION sets an option, and fine-tuning takes few steps."""
    name, _, option = name.partition("+")
    chosen = get_default_config(name)
    if option:
        chosen.extra_options[option] = True
    if chosen.include_fast_ft:
        chosen.extra_options["FastFinetune"] = {**chosen.extra_options["FastFinetune"], "NumIterations": FEW_STEPS}
    return Config(global_quant_config=chosen)


def outputs(path, batches):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(get_library_path("CPU"))
    session = onnxruntime.InferenceSession(path, options)
    return np.stack([session.run(None, batch)[0] for batch in batches])


def main():
    folder, *configurations = sys.argv[1:]
    torch.set_num_threads(1)
    counted = base_fn_quantizers.custom_torch_ops = Counted(base_fn_quantizers.custom_torch_ops)
    calls = {}
    for model_name, (model, batches) in float_models.models().items():
        counted.calls = calls[model_name] = Counter()
        for name in configurations:
            path = Path(folder, f"{model_name}-{name}")
            ModelQuantizer(configuration(name)).quantize_model(model, f"{path}.onnx", Reader(batches))
            np.save(f"{path}.npy", outputs(f"{path}.onnx", batches))
    Path(folder, "calls.json").write_text(json.dumps(calls))


if __name__ == "__main__":
    main()
