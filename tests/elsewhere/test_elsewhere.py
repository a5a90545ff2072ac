"""Stand-alone libraries where they are meant to run: in a C++ program, on AArch64 under qemu, and on Windows under Wine. The
outputs are those of our own sessions on this machine, to the last bit.

`make_environment.sh` makes the environment of the first two, `../windows/make_environment.sh` that of the last."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from libraries import NAMES, feeds_of, own_session
from onnx import helper
from paths import MODELS, ROOT

from quark_numba import build_library

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quark_numba"
PLACE, WINE = CACHE / "elsewhere", CACHE / "windows"
SOURCE = ROOT / "examples" / "cpp" / "run.cpp"
LIBRARIES = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="Linux on x86-64 only"),
]


def needs(*missing):
    """Skip the test if any of these pairs of a condition and a reason is not met."""
    for is_there, reason in missing:
        if not is_there:
            pytest.skip(reason)


HEADERS = (PLACE / "made_of").exists(), f"no environment: tests/elsewhere/make_environment.sh {PLACE}"
ZIG = importlib.util.find_spec("ziglang") is not None, "ziglang only"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Return a function that builds a library of all models for a target; None: this machine."""
    built = {}

    def build(target, optimize):
        if (target, optimize) not in built:
            folder = tmp_path_factory.mktemp("library")
            models = [MODELS / f"{name}.onnx" for name in NAMES]
            built[target, optimize] = build_library(models, folder, target=target, optimize=optimize)
        return built[target, optimize]

    return build


def compiled(command, library, path):
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-isystem", PLACE / "include", SOURCE, library, "-o", path]
    result = subprocess.run([*map(str, command), *map(str, flags)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return path


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The example in C++, compiled for this machine, and the folder of ONNX Runtime's library."""
    compiler = shutil.which("g++") or shutil.which("c++")
    needs(HEADERS, (compiler, "a C++ compiler only"), (LIBRARIES, "an onnxruntime with its shared library only"))
    folder = tmp_path_factory.mktemp("program")
    (folder / "libonnxruntime.so.1").symlink_to(LIBRARIES[0])
    return [compiled([compiler, f"-Wl,-rpath,{folder}"], LIBRARIES[0], folder / "run")]


@pytest.fixture(scope="session")
def program_for_aarch64(tmp_path_factory):
    """The command that runs the example on an emulated AArch64."""
    needs(HEADERS, ZIG, (shutil.which("qemu-aarch64"), "qemu-user only"))
    runtime = PLACE / "aarch64" / "usr" / "lib" / "aarch64-linux-gnu" / "libonnxruntime.so.1"
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.28"]
    path = compiled(zig, runtime, tmp_path_factory.mktemp("program") / "run")
    return ["qemu-aarch64", "-L", str(PLACE / "aarch64"), str(path)]


def cases(library, threads):
    """Yield the path of each model, the contents of its inputs, and those of the outputs that our own session computes."""
    paths = sorted(library.parent.glob("*.onnx"))
    assert len(paths) == len(NAMES)
    for path in paths:
        session = own_session(path, threads)
        feeds = feeds_of(session)
        expected = session.run(None, feeds)
        assert all(np.ptp(each) > 0 for each in expected), path.name
        yield path, *(b"".join(each.tobytes() for each in values) for values in (feeds.values(), expected))


def check_program(command, library, threads):
    for path, inputs, expected in cases(library, threads):
        result = subprocess.run([*command, library, path, str(threads), "2"], input=inputs, capture_output=True)
        assert result.returncode == 0, result.stderr
        assert result.stdout == expected, path.name


optimized = pytest.mark.parametrize("optimize", [True, False], ids=["optimised", "as written"])
on_threads = pytest.mark.parametrize("threads", [1, 2])


@optimized
@on_threads
def test_a_cpp_program(program, build, optimize, threads):
    check_program(program, build(None, optimize), threads)


def test_a_cpp_program_with_errors(program, build, tmp_path):
    library = build(None, True)
    path = library.with_name("tagger_u16.onnx")
    for arguments, message in (
        ([], b"expected: run LIBRARY MODEL"),
        ([tmp_path / "none.so", path], b"none.so"),
        ([library, tmp_path / "none.onnx"], b"none.onnx"),
        ([library, path], b"the standard input has too few values"),
    ):
        result = subprocess.run([*program, *arguments], input=b"", capture_output=True)
        assert result.returncode in (1, 2)
        assert message in result.stderr
        assert not result.stdout


@pytest.mark.full
@pytest.mark.parametrize(("optimize", "threads"), [(True, 1), (False, 2)], ids=["optimised", "as written"])
def test_aarch64_linux(program_for_aarch64, build, optimize, threads):
    check_program(program_for_aarch64, build("linux-aarch64", optimize), threads)


def nodes_alone(path, folder):
    """Write a model of a model's nodes of this package's operators, each with inputs of its own. Return its path and feeds: the
    values that the nodes have in the whole model."""
    whole = onnx.load(path)
    given = {each.name for each in whole.graph.initializer}
    nodes = [each for each in whole.graph.node if each.domain in ("com.amd.quark", "quark_numba")]
    names = {name for node in nodes for name in node.input if name and name not in given}
    inputs = {each.name for each in whole.graph.input}
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(names - inputs))
    onnx.save(whole, folder / "values.onnx")
    session = own_session(folder / "values.onnx", 1)
    feeds = feeds_of(session)
    values = {**feeds, **dict(zip(sorted(names - inputs), session.run(None, feeds), strict=True))}

    fed = {}
    for i, node in enumerate(nodes):
        for k, name in enumerate(node.input):
            if name in names:
                node.input[k] = f"{i}.{k}"
                fed[node.input[k]] = values[name]
    alone = onnx.ModelProto()
    alone.CopyFrom(whole)
    for field in ("node", "input", "output", "value_info"):
        del getattr(alone.graph, field)[:]
    alone.graph.node.extend(nodes)
    alone.graph.input.extend(helper.make_tensor_value_info(name, 1, value.shape) for name, value in fed.items())
    alone.graph.output.extend(helper.make_empty_tensor_value_info(node.output[0]) for node in nodes)
    onnx.save(alone, folder / "nodes.onnx")
    return folder / "nodes.onnx", fed


@pytest.mark.full
def test_nodes_on_aarch64_linux(program_for_aarch64, tmp_path):
    """ONNX Runtime's convolutions of floats differ between processors, and so do the outputs of this whole model. Its nodes of
    this package's operators do not, if they get the same values."""
    library = build_library(MODELS / "style_bf16.onnx", tmp_path, target="linux-aarch64")
    path, feeds = nodes_alone(library.with_name("style_bf16.onnx"), tmp_path)
    session = own_session(path, 1)
    expected = dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))
    assert len(expected) > 40
    content = b"".join(feeds[each.name].tobytes() for each in session.get_inputs())
    result = subprocess.run([*program_for_aarch64, library, path], input=content, capture_output=True)
    assert result.returncode == 0, result.stderr
    for name, y in expected.items():
        assert np.ptp(y) > 0, name
        assert result.stdout.startswith(y.tobytes()), name
        result.stdout = result.stdout[y.nbytes :]
    assert not result.stdout


# Runs models with the library. Arguments: the library, threads, and for each model its path and files of inputs and outputs.
RUN = """
import sys
import numpy as np
import onnxruntime

library, threads, *rest = sys.argv[1:]
for path, inputs, outputs in zip(*[iter(rest)] * 3):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    content, feeds = np.fromfile(inputs, np.float32), {}
    for each in session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in each.shape]
        feeds[each.name], content = content[: np.prod(shape)].reshape(shape), content[np.prod(shape) :]
    with open(outputs, "wb") as file:
        for each in session.run(None, feeds):
            file.write(each.tobytes())
assert not {"numba", "llvmlite", "quark_numba"} & set(sys.modules)
"""


def windows_path(path):
    return "Z:" + str(path).replace("/", "\\")


@pytest.mark.full
@optimized
@on_threads
def test_windows(build, tmp_path, optimize, threads):
    """One process of Windows' Python, with nothing but onnxruntime, runs all models."""
    import fcntl  # Windows itself has no such module

    needs(ZIG, ((WINE / "made_of").exists(), f"no environment: tests/windows/make_environment.sh {WINE}"))
    library = build("windows-x86-64", optimize)
    script, outputs, arguments = tmp_path / "run.py", {}, []
    script.write_text(RUN)
    for path, inputs, expected in cases(library, threads):
        (tmp_path / f"{path.name}.in").write_bytes(inputs)
        outputs[tmp_path / f"{path.name}.out"] = expected
        arguments += [path, tmp_path / f"{path.name}.in", tmp_path / f"{path.name}.out"]
    arguments = [windows_path(script), windows_path(library), str(threads), *map(windows_path, arguments)]
    with open(WINE / "lock", "w") as lock:  # run.sh, at its end, ends all processes of the environment
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = subprocess.run([WINE / "wpy", "-I", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for path, expected in outputs.items():
        assert path.read_bytes() == expected, path.name
