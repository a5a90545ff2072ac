"""Print the seconds that Quark takes to quantize the classifier of tests/models with a configuration that fine-tunes it, on one
thread:
fine_tune.py CONFIGURATION STEPS, with Quark's operators; python -m quark_numba.for_quark fine_tune.py ..., with ours."""

import sys
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

MODELS = Path(__file__).parent.parent / "tests" / "models"


class _Reader(CalibrationDataReader):
    def __init__(self) -> None:
        with np.load(MODELS / "textline_cls_expected.npz") as arrays:
            self.batches = [{"x": each[None]} for each in arrays["x"][:3]]
        self.reset_iter()

    def get_next(self):
        return next(self.rest, None)

    def reset_iter(self) -> None:
        self.rest = iter(self.batches)


def main(configuration: str, steps: str) -> None:
    torch.set_num_threads(1)
    chosen = get_default_config(configuration)
    chosen.extra_options["FastFinetune"] = {**chosen.extra_options["FastFinetune"], "NumIterations": int(steps)}
    model = onnx.load(MODELS / "textline_cls_float.onnx")
    start = time.perf_counter()
    ModelQuantizer(Config(global_quant_config=chosen)).quantize_model(model, calibration_data_reader=_Reader())
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
