"""Quark's quantizer on this package's operators: without a compiler, and beside Quark's library where there is a compiler."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import oracle
import processes
import pytest
from paths import MODELS, ROOT, SUPPORT

HERE = Path(__file__).parent

has_quark = all(map(importlib.util.find_spec, ("quark", "torch")))
REASON = "Quark or PyTorch is not installed; tests/for_quark/make_environment.sh makes an environment with both"
with_quark = pytest.mark.skipif(not has_quark, reason=REASON)
has_compiler = bool(has_quark and shutil.which("c++"))
NO_COMPILER = "Quark's library cannot be compiled: no Quark, no PyTorch or no c++"
with_compiler = pytest.mark.skipif(not has_compiler, reason=NO_COMPILER)
compiled = pytest.mark.compiled

MODEL_NAMES = ("classifier", "dense")
CONFIGURATIONS = ("BF16", "FP16", "BFP16", "MX9", "MXFP8E4M3", "MXINT8", "XINT8", "XINT8+Int32Bias", "A8W8", "A16W8")
CONFIGURATIONS += ("S16S8_ASWS", "S8S8_AAWS", "U8S8_AAWS")
FINE_TUNED = ("BFP16_ADAQUANT", "MX9_ADAQUANT", "MXFP8E4M3_ADAQUANT")
LINE = "Custom operators are those of quark_numba.for_quark"


def python(*words, path=None, **environment):
    """Run Python without a compiler, or with `path`, which has one, and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    environment = {**inherited, "PATH": path or "", "PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}", **environment}
    command = [sys.executable, *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:  # Quark writes files where it runs
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr


OURS = ("-m", "quark_numba.for_quark")


# What needs no Quark


def test_importing_it_loads_neither_quark_nor_pytorch_nor_numba():
    assert processes.loaded("import quark_numba.for_quark", "quark", "torch", "numba", "onnxruntime", "onnx") == []


def test_nothing_changes_where_there_is_no_quark(tmp_path):
    """A package of another project with Quark's name is left alone, too."""
    (tmp_path / "quark").mkdir()
    (tmp_path / "quark" / "__init__.py").write_text("content = 1")
    code = f"""
import sys
import quark_numba.for_quark
sys.path.insert(0, {str(tmp_path)!r})
import quark
assert quark.content == 1
try:
    import quark.onnx.operators
except ModuleNotFoundError as error:
    assert error.name == "quark.onnx", error
else:
    raise AssertionError
assert "torch" not in sys.modules
"""
    python("-c", code)


def test_it_is_imported_before_quark():
    code = "import sys; sys.modules['quark.onnx'] = sys; import quark_numba.for_quark"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "quark.onnx has been imported already, with its own operators; import quark_numba.for_quark before it" in done.stderr


SCRIPT = """
import sys
import beside
print(__name__, sys.argv[1:], "quark_numba.for_quark" in sys.modules)
sys.exit(3)
"""


@pytest.mark.parametrize("is_module", [False, True], ids=["script", "module"])
def test_a_script_or_a_module_is_run_with_its_arguments(tmp_path, is_module):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").touch()
    words = ["-m", "script"] if is_module else [tmp_path / "script.py"]
    command = [sys.executable, *OURS, *words, "-m", "--help"]
    done = subprocess.run(command, cwd=tmp_path if is_module else None, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "__main__ ['-m', '--help'] True\n"), done.stderr


@pytest.mark.parametrize("words", [[], ["-m"], ["nothing.py"], ["--nothing"]])
def test_what_is_no_script_is_refused(words):
    done = subprocess.run([sys.executable, *OURS, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: python -m quark_numba.for_quark SCRIPT" in done.stderr
    assert ("there is no file nothing.py" in done.stderr) == (words == ["nothing.py"])


# With Quark


@with_quark
@compiled
def test_quark_is_imported_without_a_compiler_and_says_so_once():
    out, errors = python("-c", "import quark_numba.for_quark, quark.onnx; print(quark.onnx.get_library_path('CUDA'))")
    assert errors.count(LINE) == 1
    assert "quark_numba" in out or out.startswith("/proc/self/fd/")


@with_compiler
def test_without_the_line_quark_needs_a_compiler(tmp_path):
    """Quark alone fails without a compiler; otherwise the other tests would show nothing."""
    with pytest.raises(AssertionError, match="JIT compilation failed"):
        python("-c", "import quark.onnx", TORCH_EXTENSIONS_DIR=str(tmp_path))


@with_quark
@compiled
def test_another_release_of_quark_is_told_which_ones_are_known():
    """The last one is told so where Quark is imported, the others by the function that this calls."""
    others, known = ["1.13", "0.9", "0.14"], ["0.10", "0.11.2", "0.12.post1", "0.13"]
    code = f"""
import sys
from quark_numba.for_quark import stand_in
for release in {[*known, *others]!r}:
    print(f"@@{{release}}@", file=sys.stderr, flush=True)
    stand_in.version_of = lambda name: release
    if release != {others[-1]!r}:
        stand_in.check_version()
import quark.onnx
"""
    _, errors = python("-c", code)
    parts = (part.split("@", 1) for part in errors.split("@@")[1:])
    told = {release: "knows Quark 0.10, 0.11, 0.12, 0.13; this is" in log for release, log in parts}
    assert told == dict.fromkeys(known, False) | dict.fromkeys(others, True)
    assert LINE in errors


@with_quark
@compiled
def test_sessions_of_quark_have_our_operators():
    model = MODELS / "textline_cls_bf16.onnx"
    out, _ = python(*OURS, HERE / "sessions_of_quark.py", model, MODELS / "textline_cls_expected.npz")
    nodes = sum(node.domain == "com.amd.quark" for node in onnx.load(model).graph.node)
    once = {"registered": 1, "nodes": nodes}
    places = ["register_custom_ops_library", "auto search", "auto search, utils", "shapes", "fine-tuning"]
    expected = dict.fromkeys(places, once) | {"output_eval": once | {"nodes": 2 * nodes}}  # one session for both models
    assert json.loads(out.splitlines()[-1]) == expected


@with_quark
@compiled
def test_options_of_quark_and_ours_may_be_the_same(tmp_path):
    """Quark's library has only Quark's operators; a session of this package adds the others. Models that ONNX Runtime then
    writes name Quark's domains and no others."""
    code = f"""
import sys
import quark_numba.for_quark
import numpy as np, onnx, onnxruntime, quark.onnx, quark_numba

def options():
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 4
    return made

model, other = {str(MODELS / "textline_cls_bf16.onnx")!r}, {str(MODELS / "qonnx" / "cnn_w4a4.onnx")!r}
quarks = options()
for device in ("CPU", "CUDA", "ROCM"):
    quarks.register_custom_ops_library(quark.onnx.get_library_path(device))
quarks.optimized_model_filepath = sys.argv[1]
onnxruntime.InferenceSession(model, quarks)
assert {{each.domain for each in onnx.load(sys.argv[1]).opset_import}} & {{"trt", "quark_numba", "finn"}} == set()
quarks.optimized_model_filepath = ""
try:
    onnxruntime.InferenceSession(other, quarks)
except Exception as error:
    assert "qonnx" in str(error), error
else:
    raise AssertionError
quark_numba.InferenceSession(model, quarks)
quark_numba.register(quarks)
quark_numba.register(quarks, qdq="float")
onnxruntime.InferenceSession(other, quarks)
ours = options()
quark_numba.register(ours)
ours.register_custom_ops_library(quark.onnx.get_library_path())
onnxruntime.InferenceSession(other, ours)
"""
    python("-c", code, tmp_path / "written.onnx")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """Two folders of models that Quark quantized: with this package's operators and without a compiler, and with the library
    that Quark compiles. That library stays where PyTorch keeps it, for the next tests. Both run at once, as each keeps one core
    busy."""
    ours, quarks = folders = [tmp_path_factory.mktemp(name) for name in ("ours", "quarks")]
    script, names = HERE / "quantize_models.py", (*CONFIGURATIONS, *FINE_TUNED)
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(python, *OURS, script, ours, *names)]
        if has_compiler:
            runs.append(pool.submit(python, script, quarks, *names, path=path_of_compiler()))
        for run in runs:
            run.result()
    return folders


def path_of_compiler():
    """Return PATH with the folder of ninja, which comes with Quark."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@with_quark
@compiled
@pytest.mark.parametrize("name", [*CONFIGURATIONS, *FINE_TUNED])
@pytest.mark.parametrize("model", MODEL_NAMES)
def test_default_configurations_quantize_without_a_compiler(quantized, model, name):
    """The model has quantization nodes, it is near the float model, and it is valid."""
    ours, _ = quantized
    kinds = {node.op_type for node in onnx.load(ours / f"{model}-{name}.onnx").graph.node if "Quant" in node.op_type}
    own = {"BF16", "FP16", "BFP16", "MX9", "MXFP8E4M3", "MXINT8"}
    assert any(kind.startswith(("Extended", "BFP", "MX")) for kind in kinds) == (name.removesuffix("_ADAQUANT") in own), kinds
    assert kinds
    outputs = np.load(ours / f"{model}-{name}.npy")
    assert np.isfinite(outputs).all()
    assert outputs.std() > 0


@with_compiler
@compiled
@pytest.mark.parametrize("name", [*CONFIGURATIONS, *FINE_TUNED])
@pytest.mark.parametrize("model", MODEL_NAMES)
def test_quantized_models_and_their_outputs_are_those_of_quarks_library(quantized, model, name):
    """The files are equal byte for byte, those of fine-tuned models too, with their weights. Outputs are equal except for the
    sign of zeros."""
    one, other = ((folder / f"{model}-{name}.onnx").read_bytes() for folder in quantized)
    assert one == other
    assert_same_but_for_zeros(*(np.load(folder / f"{model}-{name}.npy") for folder in quantized))


def assert_same_but_for_zeros(actual, expected):
    """Every bit is the same, except that +0 may be -0, and a NaN may be any other NaN."""
    oracle.assert_same_bits(
        *(np.where(each == 0, np.float32(0), np.where(np.isnan(each), np.float32("nan"), each)) for each in (actual, expected))
    )


@with_compiler
@compiled
def test_fine_tuning_calls_the_operators_as_often(quantized):
    """All tensors of the dense model are contiguous, so its weights are those of Quark as it is. The classifier's convolutions
    are transposed, so its weights show that nothing but strides differs."""
    calls, expected = (json.loads((folder / "calls.json").read_text()) for folder in quantized)
    assert calls == expected
    assert [set(calls[name]) for name in MODEL_NAMES] == [{"bfp", "bfp_prime", "mx", "not contiguous"}] * 2
    assert calls["dense"]["not contiguous"] == 0
    assert calls["classifier"]["not contiguous"] > 0


# The PyTorch operators

ELEMENT_TYPES = {
    "fp8_e5m2": (5, 2, 15, 57344.0, -57344.0),
    "fp8_e4m3": (4, 3, 8, 448.0, -448.0),
    "fp6_e3m2": (3, 2, 4, 28.0, -28.0),
    "fp6_e2m3": (2, 3, 2, 7.5, -7.5),
    "fp4_e2m1": (2, 1, 2, 6.0, -6.0),
    "int8": (0, 8, 0, 127.0, -128.0),
}
CALLS = {
    "BFP16": ("bfp", (16, 8, 0, 0)),
    "BFP13": ("bfp", (13, 16, 1, 0)),
    "BFP16, to even": ("bfp", (16, 8, 2, 0)),
    **{f"MX{bits - 7}": ("bfp_prime", (bits, 16, 2, 1, mode)) for bits, mode in ((11, 0), (13, 1), (16, 2))},
    **{name: ("mx", (32, *numbers, mode)) for mode, (name, numbers) in enumerate(ELEMENT_TYPES.items(), -3)},
}
CALLS |= {name: (operator, (*numbers[:-1], max(numbers[-1], 0))) for name, (operator, numbers) in CALLS.items()}


def samples():
    """Finite numbers of rows of 64: normal, of any bits, subnormal, ties, zeros."""
    random = np.random.default_rng(0)
    yield random.normal(0, 1, (64, 64)) * np.exp2(random.integers(-20, 20, (64, 1)))
    any_bits = random.integers(0, 2**32, (256, 64), dtype=np.uint64).astype(np.uint32).view(np.float32)
    yield np.where(np.isfinite(any_bits), any_bits, 1)
    yield any_bits
    yield random.integers(0, 2**24, (64, 64)).astype(np.uint32).view(np.float32)
    yield random.integers(-256, 256, (64, 64)) / 2
    yield np.zeros((2, 64))


@pytest.fixture(scope="module")
def torch_operators():
    pytest.importorskip("torch", reason=REASON)
    from quark_numba.for_quark import torch_operators

    return torch_operators


def direct(name, x):
    """Return what this package's call on arrays gives for a format, along the last axis."""
    import quark_numba

    operator, numbers = CALLS[name]
    if operator == "mx":
        mode = {"block_size": numbers[0], "rounding_mode": numbers[-1]}
        return quark_numba.mx_quantize_dequantize(x, element_dtype=name, axis=-1, **mode)
    of_sub_blocks = ("sub_block_size", "sub_block_shift_bits") if len(numbers) > 4 else ()
    names = ("bit_width", "block_size", *of_sub_blocks, "rounding_mode")
    method = "to_bfp" if operator == "bfp" else "to_bfp_prime"
    return quark_numba.bfp_quantize_dequantize(x, bfp_method=method, axis=-1, **dict(zip(names, numbers, strict=False)))


@pytest.mark.parametrize("name", CALLS)
def test_operators_take_tensors_of_any_strides(torch_operators, name):
    """The result has the strides of the tensor, and its blocks are along the last dimension."""
    import torch

    operator, numbers = CALLS[name]
    call = getattr(torch_operators, operator)
    dense = torch.randn(8, 5, 6, 64, generator=torch.Generator().manual_seed(0))
    views = [dense, dense.permute(0, 3, 2, 1), dense.transpose(1, -1), dense.permute(3, 1, 0, 2), dense[::2, :, 1:, ::3]]
    views += [dense[:1, :1, :1].expand(4, 5, 6, 64), dense.reshape(-1), dense[0, 0, 0, :40], dense[0, 0, 0, 0], dense[:0]]
    for view in views:
        before = view.clone()
        found = call(view, *numbers)
        assert torch.equal(view, before)
        assert found.stride() == torch.empty_like(view).stride()
        assert found.data_ptr() != view.data_ptr() or not view.numel()
        oracle.assert_same_bits(found.numpy(), direct(name, np.ascontiguousarray(view.numpy()).reshape(view.shape)))


def test_dense_tensors_are_not_copied(torch_operators, monkeypatch):
    import torch

    seen = []
    monkeypatch.setattr(torch_operators, "convert", lambda key, blocks, x, axis, out: seen.append((x, out)))
    tensor = torch.randn(4, 8, 3, 3)
    for view in (tensor, tensor.transpose(1, -1), tensor.permute(3, 1, 0, 2)):
        found = torch_operators.bfp(view, 16, 8, 0, 0)
        (x, out) = seen.pop()
        assert x.flags.c_contiguous
        assert out.flags.c_contiguous
        assert (x.ctypes.data, out.ctypes.data) == (view.data_ptr(), found.data_ptr())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, x: o.bfp(x.double(), 16, 8, 0, 0), "tensor has dtype torch.float64; expected torch.float32"),
        (lambda o, x: o.bfp(x, 16, 8, 0, 1), "kernel_version is 1; expected 0"),
        (lambda o, x: o.bfp(x, 9, 8, 0, 0), "bit_width is 9; expected 10 or"),
        (lambda o, x: o.bfp_prime(x, 16, 8, 3, 1, 0), "sub_block_size is 3; expected one that divides block_size, 8"),
        (lambda o, x: o.mx(x, 8, 4, 2, 8, 448.0, -448.0, 0), r"are \(4, 2, 8, 448.0, -448.0\); expected .* of fp8_e5m2; "),
    ],
)
def test_wrong_arguments_are_named(torch_operators, call, message):
    import torch

    with pytest.raises((TypeError, ValueError), match=message):
        call(torch_operators, torch.randn(4, 8))


def test_tensors_of_other_devices_are_copied(torch_operators):
    """Tensors of another device are copied to the CPU and back; here, a tensor pretends to be on one."""
    import torch

    class Elsewhere:
        dtype, device = torch.float32, "elsewhere"

        def __init__(self, data):
            self.data = data

        def detach(self):
            return self

        def cpu(self):
            return self.data

    went = []
    here = torch.randn(4, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", lambda tensor, device: went.append(device) or tensor)
        found = torch_operators.bfp(Elsewhere(here), 16, 8, 0, 0)
    assert went == ["elsewhere"]
    assert torch.equal(found, torch_operators.bfp(here, 16, 8, 0, 0))


IN_PYTORCH = """
import quark_numba.for_quark
import quark.onnx, torch
from quark.onnx.algorithm.finetuning.create_torch import base_fn_quantizers as wrappers

operators = torch.ops.quark_custom_ops
assert wrappers.custom_torch_ops is operators
calls = {"bfp": (16, 8, 0, 0), "bfp_prime": (16, 16, 2, 1, 0), "mx": (8, 4, 3, 8, 448.0, -448.0, 0)}
x = torch.randn(4, 32, 3).transpose(1, 2)
for name, numbers in calls.items():
    operator = getattr(operators, name)
    assert set(torch.library.opcheck(operator.default, (x, *numbers)).values()) == {"SUCCESS"}
    meta = operator(x.to("meta"), *numbers)
    assert (meta.device.type, meta.shape, meta.stride()) == ("meta", x.shape, x.stride())
    assert torch.equal(torch.compile(operator, backend="eager")(x, *numbers), operator(x, *numbers))
for function, numbers in (
    (wrappers.bfp_quant_dequant_func, calls["bfp"]),
    (wrappers.bfp_prime_quant_dequant_func, calls["bfp_prime"]),
    (wrappers.mx_quant_dequant_func, calls["mx"]),
):
    learned = x.clone().requires_grad_()
    y = function(learned, *numbers)
    (y * 3).sum().backward()
    assert torch.equal(learned.grad, torch.full_like(x, 3)), learned.grad

# Quark before 0.12, and with PyTorch before 2.10, imports modules of its compiled libraries.
import importlib, os
prefix = "" if os.name == "nt" else "lib"
for module in ("custom_ops", "custom_ops_gpu", "custom_ops_torch_legacy", "custom_ops_torch_legacy_gpu"):
    found = importlib.import_module(prefix + module)
    for name, numbers in calls.items():
        assert torch.equal(getattr(found, name)(x, *numbers), getattr(operators, name)(x, *numbers))
wrappers.torch_supports_stable_abi = lambda: False
cpu, gpu = wrappers._resolve_ops()
assert (cpu.__name__, gpu.__name__) == (prefix + "custom_ops", prefix + "custom_ops_gpu")
"""


@with_quark
@compiled
def test_operators_in_pytorch():
    """Shapes without data, PyTorch's own checks, the derivatives of Quark's wrappers, and the names in older releases."""
    python("-c", IN_PYTORCH)


@with_compiler
@compiled
def test_operators_give_the_bits_of_quarks_library(torch_operators, tmp_path):
    """The results are those of Quark's library, except for the sign of zeros and for tensors that are not contiguous, which it
    cuts into blocks in the order of memory."""
    import torch

    tensors = [np.asarray(sample, np.float32) for sample in samples()]
    np.savez(tmp_path / "x.npz", *tensors)
    code = f"""
import numpy as np, quark.onnx, torch
calls = {CALLS!r}
with np.load({str(tmp_path / "x.npz")!r}) as arrays:
    tensors = [torch.from_numpy(each) for each in arrays.values()]
found = {{
    f"{{name}} {{k}}": getattr(torch.ops.quark_custom_ops, operator)(tensor, *numbers).numpy()
    for name, (operator, numbers) in calls.items()
    for k, tensor in enumerate(tensors)
}}
x = torch.arange(64.0).reshape(8, 8)
found["transposed"] = torch.ops.quark_custom_ops.bfp(x.T, 11, 8, 0, 0).numpy()
np.savez({str(tmp_path / "y.npz")!r}, **found)
"""
    python("-c", code, path=path_of_compiler())
    with np.load(tmp_path / "y.npz") as arrays:
        for name, (operator, numbers) in CALLS.items():
            for k, x in enumerate(tensors):
                found = getattr(torch_operators, operator)(torch.from_numpy(x), *numbers).numpy()
                assert_same_but_for_zeros(found, arrays[f"{name} {k}"])
        x = torch.arange(64.0).reshape(8, 8)
        along_memory, along_axis = (torch_operators.bfp(each, 11, 8, 0, 0).numpy() for each in (x, x.T))
        assert np.array_equal(arrays["transposed"], along_memory.T)
        assert not np.array_equal(arrays["transposed"], along_axis)
