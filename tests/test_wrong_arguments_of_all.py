"""Each argument of each public function refuses wrong values at once, with its name."""

import inspect
import pathlib
import re

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_models import model
from rewritten_models import pair, scale_and_zero_point
from textline import BF16

import quark_numba as q

X = np.ones((2, 32), np.float32)
# Blocks by hand: calls would compile kernels whenever the tests are collected.
BLOCKS = q.BFPBlocks(np.full((2, 32), 64, np.uint8), np.full((2, 4), 127, np.uint8), np.zeros((2, 4), np.uint8))
FEEDS = [{"x": X}]
SMALL = model(pair(), [("x", "float32", X.shape)], ["y"], initializers=scale_and_zero_point())


class Nothing:
    """An object that is not a number, a text, an array or a path."""

    def __repr__(self):
        return "Nothing()"


# Wrong values by kind. Those of a kind are refused wherever an argument has it.
FLAG = [2, -1, None, "no", 0.5, Nothing(), [True], np.ones(2, bool)]
INTEGER = ["2", 1.5, None, Nothing(), [1]]
COUNT = ["2", 1.5, -1, True, 10**9, Nothing()]
POSITIVE = ["2", 1.5, 0, -1, True, Nothing()]
TEXT = [5, b"text", Nothing(), ["text"]]
CHOICE = ["nonsense", "", 5, Nothing()]
NAMES = ["y", [5], 5, Nothing()]
PATH = [5, 1.5, Nothing(), ["path"]]
TYPE = ["nonsense", "", 2.5, Nothing()]
ARRAY = ["text", [None], Nothing(), [[1], [1, 2]]]
FUNCTION = [5, "module:function", Nothing()]

OF_ARRAYS = {"x": ARRAY, "axis": [*INTEGER, 2, -3], "out": ["text", 5, Nothing(), np.zeros(3, np.float32)]}
OF_BLOCKS = OF_ARRAYS | {"block_size": [*INTEGER, -1], "rounding_mode": CHOICE}
OF_BFP = OF_BLOCKS | {
    "bfp_method": CHOICE,
    "bit_width": [*INTEGER, -1, 99],
    "sub_block_size": INTEGER,
    "sub_block_shift_bits": INTEGER,
    "convert_to_bfloat_before_bfp": INTEGER,
}
OF_RUNS = {
    "model": [5, None, Nothing()],
    "data": [None, 5, Nothing()],
    "reference": [5, Nothing()],
    "outputs": [*NAMES, [], ["nobody"]],
    "execution": [5, "fast", Nothing(), {"threads": 2}],
}
QUANTIZE = OF_ARRAYS | {
    "axis": INTEGER,
    "scale": ARRAY,
    "zero_point": ARRAY,
    "block_size": [*INTEGER, -1],
    "dtype": TYPE,
    "saturate": FLAG,
}

# Of each public function: its arguments that are right, and wrong values of each argument.
TABLE = {
    "Data": ({"source": FEEDS}, {"source": [], "batch": POSITIVE, "limit": POSITIVE, "tokenizer": [*PATH, ""]}),
    "RandomData": (
        {},
        {"batches": [*POSITIVE, None], "seed": [*INTEGER, -1, True], "dimensions": [5, "n=1", {"n": -1}, {"n": "1"}, {5: 1}]},
    ),
    "Execution": (
        {},
        {
            "threads": [*COUNT, None],
            "workers": [*POSITIVE, 10**9],
            "scheduler": [*TEXT, ""],
            "on_error": ["ignore", None, 5, Nothing(), np.ones(2)],
            "resume": [*PATH, b"path", ""],
            "progress": FUNCTION,
            "providers": [5, "cuda", [5], [], ["nonsense"], [""], Nothing()],
        },
    ),
    "InferenceSession": (
        {"path_or_bytes": BF16},
        {
            "path_or_bytes": [5, None, Nothing()],
            "sess_options": [5, "options", Nothing(), {}],
            "qdq": CHOICE,
            "operators": CHOICE,
            "blocked_layout": FLAG,
            "keep_quantized_weights": FLAG,
            "keep_initializers_as_inputs": FLAG,
            "temporary_folder": [*PATH, b"path"],
            "cache": [5, 1.5, Nothing(), b"path", ""],
        },
    ),
    "analyze": (
        {"model": SMALL, "data": FEEDS},
        OF_RUNS
        | {
            "sweep": FLAG,
            "by": ["layer", None, 5, Nothing(), np.ones(2)],
            "what_if": ["bfloat16", 5, [5], ["nonsense"], Nothing()],
            "histograms": COUNT[:4],
            "logits": [*TEXT, ""],
            "decoding": ["4", 4, Nothing()],
        },
    ),
    "evaluate": (
        {"model": SMALL, "data": FEEDS},
        OF_RUNS
        | {
            "labels": [*TEXT, ""],
            "class_axis": [*INTEGER, True],
            "ignore_label": ["2", "", 1.5, 0.0, True, False, [], Nothing(), 255],
            "next_token": FLAG,
            "logits": [*TEXT, ""],
            "top_k": [*POSITIVE, None],
            "metric": FUNCTION,
            "decoding": ["4", 4, Nothing()],
        },
    ),
    "Decoding": (
        {},
        {
            "window": POSITIVE,
            "context": [each for each in POSITIVE if each is not None],
            "generate": [-1, "2", 1.5, None],
            "names": ["input_ids", 5, {"a": 1}, {1: "a"}, ["a"]],
        },
    ),
    "build_library": (
        {"models": BF16, "path": "nowhere"},
        {
            "models": [5, Nothing(), [], [5], ["a/m.onnx", "b/m.onnx"]],
            "path": [*PATH, None, b"path"],
            "target": CHOICE,
            "cpu": CHOICE,
            "optimize": FLAG,
            "qdq": CHOICE,
        },
    ),
    "optimize": (
        {"model": BF16},
        {
            "model": [5, None, Nothing()],
            "out": [*PATH, b"path"],
            "keep_quantized_weights": FLAG,
            "keep_initializers_as_inputs": FLAG,
            "qdq": CHOICE,
            "operators": CHOICE,
            "regions": FLAG,
        },
    ),
    "register": (
        {"session_options": onnxruntime.SessionOptions()},
        {"session_options": [5, None, Nothing()], "backend": CHOICE, "qdq": CHOICE},
    ),
    "reference_ops": ({}, {"qdq": [*CHOICE, "onnxruntime"]}),
    "register_schemas": ({}, {}),
    "get_library_path": ({}, {}),
    "quantize": (
        {"x": X, "scale": np.float32(1)},
        QUANTIZE | {"precision": TYPE, "opset": [x for x in INTEGER if x is not None] + [9, 99]},
    ),
    "quantize_dequantize": ({"x": X, "scale": np.float32(1)}, QUANTIZE),
    "dequantize": (
        {"x": X.astype(np.int8), "scale": np.float32(1)},
        {name: wrong for name, wrong in QUANTIZE.items() if name not in ("dtype", "saturate")}
        | {"output_dtype": TYPE, "opset": [x for x in INTEGER if x is not None] + [9, 99]},
    ),
    "bfp_quantize_dequantize": ({"x": X}, OF_BFP),
    "bfp_quantize": ({"x": X}, {name: wrong for name, wrong in OF_BFP.items() if name != "out"}),
    "bfp_dequantize": (
        {"blocks": BLOCKS},
        {name: OF_BFP[name] for name in ("bfp_method", "axis", "bit_width", "block_size", "sub_block_size")}
        | {"blocks": [5, None, Nothing(), X], "output_dtype": TYPE},
    ),
    "mx_quantize_dequantize": ({"x": X}, OF_BLOCKS | {"element_dtype": CHOICE}),
    "mx_quantize": (
        {"x": X},
        {name: wrong for name, wrong in OF_BLOCKS.items() if name != "out"} | {"element_dtype": CHOICE, "scale_rule": CHOICE},
    ),
    "mx_dequantize": (
        {"codes": X.astype(np.int8), "scales": np.ones((2, 1), ml_dtypes.float8_e8m0fnu)},
        {name: OF_BLOCKS[name] for name in ("axis", "block_size")} | {"codes": ARRAY, "scales": ARRAY, "output_dtype": TYPE},
    ),
    "nvfp4_quantize": (
        {"x": X},
        {name: OF_BLOCKS[name] for name in ("x", "axis", "block_size")} | {"tensor_scale": ARRAY},
    ),
    "nvfp4_dequantize": (
        {"codes": X.astype(ml_dtypes.float4_e2m1fn), "scales": np.ones((2, 2), ml_dtypes.float8_e4m3fn)},
        {name: OF_BLOCKS[name] for name in ("axis", "block_size")}
        | {"codes": ARRAY, "scales": ARRAY, "tensor_scale": ARRAY, "output_dtype": TYPE},
    ),
    "fake_quantize": (
        {"x": X, "scale": np.float32(1)},
        {"x": ARRAY, "scale": ARRAY, "zero_point": ARRAY, "bit_width": ARRAY, "signed": FLAG, "narrow": FLAG}
        | {"rounding_mode": CHOICE, "out": OF_ARRAYS["out"]},
    ),
    "minifloat_quantize_dequantize": (
        {"x": X, "exponent_bits": 4, "mantissa_bits": 3, "exponent_bias": 7},
        {"x": ARRAY, "scale": ARRAY, "exponent_bits": ARRAY, "mantissa_bits": ARRAY, "exponent_bias": ARRAY, "max_val": ARRAY}
        | {"has_inf": FLAG, "has_nan": FLAG, "saturation": FLAG, "rounding_mode": CHOICE, "out": OF_ARRAYS["out"]},
    ),
    "extended_instance_normalization": (
        {"x": np.ones((1, 2, 3), np.float32), "scale": np.ones(2, np.float32), "bias": np.ones(2, np.float32)},
        {"x": ARRAY, "scale": ARRAY, "bias": ARRAY, "epsilon": ["text", None, Nothing(), [1.0]]},
    ),
    "extended_lstm": (
        {
            "x": np.zeros((2, 1, 3), np.float32),
            "w": np.zeros((2, 16, 3), np.float32),
            "r": np.zeros((2, 16, 4), np.float32),
            "b": np.zeros((2, 32), np.float32),
            "hidden_size": 4,
            **{f"{name}_scale": 1.0 for name in "xwrby"},
            **{f"{name}_zero_point": 0 for name in "xwrby"},
        },
        dict.fromkeys("xwrb", ARRAY)
        | {f"{name}_scale": ["text", None, Nothing()] for name in "xwrby"}
        | {f"{name}_zero_point": INTEGER for name in "xwrby"}
        | {"hidden_size": INTEGER, "direction": [], "layout": [*INTEGER, 2], "input_forget": [*INTEGER, 2]},
    ),
    "pack": ({"array": X.astype("int8").astype(np.int8)}, {"array": ["text", 5, None, Nothing(), X]}),
    "unpack": (
        {"packed": np.zeros(2, np.uint8), "shape": (4,), "dtype": "int4"},
        {
            "packed": ["text", 5, None, Nothing(), X],
            "shape": ["text", None, Nothing(), (-1,), (1.5,)],
            "dtype": TYPE,
        },
    ),
    "from_tensor_proto": (
        {"tensor": onnx.numpy_helper.from_array(X)},
        {"tensor": [5, None, Nothing(), X], "base_dir": [5, None, Nothing()]},
    ),
    "to_tensor_proto": ({"array": X}, {"array": [], "name": [5, None, Nothing(), b"name"]}),
}


def test_the_table_has_all_arguments():
    results = {"Analysis", "Evaluation", "BFPBlocks", "__version__"}
    errors = {name for name in q.__all__ if inspect.isclass(getattr(q, name)) and issubclass(getattr(q, name), Exception)}
    assert {*TABLE} == {*q.__all__} - results - errors
    for function, (_, wrong) in TABLE.items():
        arguments = {*inspect.signature(getattr(q, function)).parameters} - {"ort_arguments"}
        if function == "InferenceSession":  # ONNX Runtime's own
            arguments -= {"providers", "provider_options"}
        assert {*wrong} == arguments, function


@pytest.mark.parametrize("function", TABLE)
@pytest.mark.compiled
def test_wrong_arguments(function, tmp_path, monkeypatch):
    """Nothing is written, and the message names the argument."""
    monkeypatch.chdir(tmp_path)
    right, wrong = TABLE[function]
    faults = []
    for name, values in wrong.items():
        for value in values:
            try:
                getattr(q, function)(**right | {name: value})
            except (TypeError, ValueError, q.ModelError) as error:
                if name not in str(error) and not (name == "data" and "the data" in str(error)):
                    faults.append(f"{name}={value!r}: not named: {type(error).__name__}: {error}")
            except Exception as error:
                faults.append(f"{name}={value!r}: {error!r}")
            else:
                faults.append(f"{name}={value!r}: accepted")
    assert faults == []
    assert [*pathlib.Path().iterdir()] == []


@pytest.mark.parametrize("variable", ["QUARK_NUMBA_COMPILE_PROCESSES", "QUARK_NUMBA_CACHE_GB"])
@pytest.mark.compiled
def test_wrong_environment_variables(variable, tmp_path, monkeypatch, terminal):
    """The error names the variable, and does not blame the model. The command prints it."""
    monkeypatch.setenv(variable, "many")
    with pytest.raises(ValueError, match=f"{variable} is 'many'; expected a number of ") as error:
        q.InferenceSession(BF16, cache=tmp_path)
    assert not isinstance(error.value, q.ModelError)
    message = terminal.error("run", BF16, "--optimize", "--cache", tmp_path / "cache", "--runs", "1")
    compiles = r"first use: compiling kernels takes some seconds; they are kept in \S+"
    assert re.fullmatch(rf"({compiles}\s+)?error: {variable} is 'many'; expected a number of \w+\s*", message)
