"""Stand-alone libraries where they are meant to run: in a C++ program, with the ONNX Runtime of Debian, on AArch64 under qemu,
and on Windows under Wine. The outputs are those of the package's sessions on this machine, to the last bit.

`make_environment.sh` makes the environment of the first two, `../aarch64/make_environment.sh` and
`../windows/make_environment.sh` those of the others."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import libraries
import numpy as np
import onnx
import onnxruntime
import pytest
from libraries import NAMES, SMALL_SIZE, built, check_bits, models_beside, own_session
from onnx import helper
from onnx_models import feeds_of
from paths import MODELS, ROOT

from quark_numba import build_library

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quark_numba"
PLACE, AARCH64, WINE = CACHE / "elsewhere", CACHE / "aarch64", CACHE / "windows"
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


ENVIRONMENT = (PLACE / "made_of").exists(), f"no environment: tests/elsewhere/make_environment.sh {PLACE}"
COMPILER = shutil.which("g++") or shutil.which("c++"), "a C++ compiler only"
ZIG = importlib.util.find_spec("ziglang") is not None, "ziglang only"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Return a function that builds a library of models in a form for a target, or for this machine if that is None."""

    @functools.cache
    def build(names, form, target=None):
        return built(names, form, tmp_path_factory.mktemp("library"), target=target)

    return build


def compiled(command, runtime, path):
    headers = PLACE / "usr" / "include" / "onnxruntime"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-isystem", headers, SOURCE, runtime, "-o", path]
    result = subprocess.run([*map(str, command), *map(str, flags)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return path


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The command that runs the example in C++ on this machine, with the ONNX Runtime of the tests."""
    needs(ENVIRONMENT, COMPILER, (LIBRARIES, "an onnxruntime with its shared library only"))
    folder = tmp_path_factory.mktemp("program")
    (folder / "libonnxruntime.so.1").symlink_to(LIBRARIES[0])
    return [compiled([COMPILER[0], f"-Wl,-rpath,{folder}"], LIBRARIES[0], folder / "run")]


@pytest.fixture(scope="session")
def program_of_debian(tmp_path_factory):
    """The command that runs the example with the ONNX Runtime and the libraries of Debian."""
    needs(ENVIRONMENT, COMPILER)
    libraries = PLACE / "usr" / "lib" / "x86_64-linux-gnu"
    path = tmp_path_factory.mktemp("program") / "run"
    compiled([COMPILER[0], "-Wl,--allow-shlib-undefined"], libraries / "libonnxruntime.so", path)
    return [libraries / "ld-linux-x86-64.so.2", "--library-path", libraries, path]


@pytest.fixture(scope="session")
def program_for_aarch64(tmp_path_factory):
    """The command that runs the example on an emulated AArch64."""
    is_made = (AARCH64 / "made_of").exists(), f"no environment: tests/aarch64/make_environment.sh {AARCH64}"
    needs(ENVIRONMENT, ZIG, is_made)
    runtime = AARCH64 / "root" / "usr" / "lib" / "aarch64-linux-gnu" / "libonnxruntime.so.1"
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.28"]
    path = compiled(zig, runtime, tmp_path_factory.mktemp("program") / "run")
    return [str(AARCH64 / "emulate"), str(path)]


def check_program(command, library, threads, *, refused=None, close=(), size=libraries.SIZE, **options):
    """The outputs of the C++ program are those of the package's sessions, to the last bit. `refused` has messages for models
    that get an error, and `close` names models whose last bits may differ."""
    for case in libraries.cases(models_beside(library), threads, size=size, **options):
        inputs, expected = (b"".join(each.tobytes() for each in values) for values in (case.feeds.values(), case.outputs))
        arguments = [library, case.path, str(threads), str(size)]
        result = subprocess.run([*command, *arguments], input=inputs, capture_output=True)
        if message := (refused or {}).get(case.path.stem):
            assert (result.returncode, result.stdout) == (1, b"")
            assert message in result.stderr.decode()
            continue
        assert result.returncode == 0, result.stderr
        if case.path.stem in close:
            found, wanted = (np.frombuffer(each, np.float32) for each in (result.stdout, expected))
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        else:
            assert result.stdout == expected, case.path.name


on_threads = pytest.mark.parametrize("threads", [1, 2])
without_options = pytest.mark.parametrize("form", ["optimized", "as written"])


@pytest.mark.slow
@without_options
@on_threads
def test_a_cpp_program(program, build, form, threads):
    check_program(program, build(NAMES, form), threads)


@pytest.fixture(scope="session", params=libraries.FORMS)
def every_model(request, build):
    """A form, a library of all models of tests/models in it, and the options of `cases` for them."""
    form = request.param
    return form, build(libraries.names_of(form), form), {"least": 0.9, "qdq": libraries.FORMS[form].get("qdq", "auto")}


@pytest.mark.slow
@on_threads
def test_every_model_in_python(every_model, threads, tmp_path):
    """In a process that has nothing but onnxruntime."""
    _, library, options = every_model
    check_bits(library, models_beside(library), threads, tmp_path, **options)


@pytest.mark.slow
@on_threads
def test_every_model_in_cpp(program, every_model, threads):
    _, library, options = every_model
    check_program(program, library, threads, **options)


@pytest.mark.slow
@on_threads
def test_every_model_on_debian(program_of_debian, every_model, threads):
    """The ONNX Runtime of Debian is older: it cannot run one of the models, nor ONNX's own operators in a library. Its
    BatchNormalization has other last bits."""
    _, library, options = every_model
    refused = {"nvfp4_m": "Current official support for domain ai.onnx is till opset 22"}
    if options["qdq"] == "float":
        message = "the library has ONNX's own operators, which needs ONNX Runtime 1.31 or later; this is 1.21"
        refused = {Path(each).name: message for each in libraries.EVERY_MODEL}
    check_program(program_of_debian, library, threads, refused=refused, close={"bipolar_mlp"}, **options)


@pytest.mark.slow
def test_a_cpp_program_with_errors(program, build, tmp_path):
    library = build(NAMES, "optimized")
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


@pytest.mark.slow
@pytest.mark.parametrize(("form", "threads"), [("optimized", 1), ("as written", 2)])
def test_aarch64_linux(program_for_aarch64, build, form, threads):
    check_program(program_for_aarch64, build(NAMES, form, "linux-aarch64"), threads, size=SMALL_SIZE)


def nodes_alone(path, folder):
    """Write a model of those nodes of a model that are operators of this package, each with separate inputs. Return its path
    and feeds: the values that the nodes have in the whole model."""
    whole = onnx.load(path)
    given = {each.name for each in whole.graph.initializer}
    nodes = [each for each in whole.graph.node if each.domain in ("com.amd.quark", "quark_numba")]
    names = {name for node in nodes for name in node.input if name and name not in given}
    inputs = {each.name for each in whole.graph.input}
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(names - inputs))
    onnx.save(whole, folder / "values.onnx")
    session = own_session(folder / "values.onnx", 1)
    feeds = feeds_of(session, libraries.SIZE)
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


@pytest.mark.slow
def test_nodes_on_aarch64_linux(program_for_aarch64, tmp_path):
    """ONNX Runtime's convolutions of floats differ between processors, and so do the outputs of this whole model. Its nodes of
    this package's operators do not, if they get the same values."""
    library = build_library(MODELS / "style_bf16.onnx", tmp_path, target="linux-aarch64")
    path, feeds = nodes_alone(library.with_name("style_bf16.onnx"), tmp_path)
    session = own_session(path, 1)
    expected = dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))
    assert len(expected) > 30
    content = b"".join(feeds[each.name].tobytes() for each in session.get_inputs())
    result = subprocess.run([*program_for_aarch64, library, path], input=content, capture_output=True)
    assert result.returncode == 0, result.stderr
    for name, y in expected.items():
        assert np.ptp(y) > 0, name
        assert result.stdout.startswith(y.tobytes()), name
        result.stdout = result.stdout[y.nbytes :]
    assert not result.stdout


def child_of_windows(code, *arguments):
    """Run code in the Python for Windows, with nothing but onnxruntime."""
    import fcntl  # Windows itself has no such module

    _, results, *_ = arguments
    script = results.with_name("run.py")
    script.write_text(code)
    paths = ["Z:" + str(each).replace("/", "\\") if isinstance(each, Path) else str(each) for each in (script, *arguments)]
    with open(WINE / "lock", "w") as lock:  # run.sh, at its end, ends all processes of the environment
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = subprocess.run([WINE / "wpy", "-I", *paths], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@without_options
@on_threads
def test_windows(build, tmp_path, form, threads):
    needs(ZIG, ((WINE / "made_of").exists(), f"no environment: tests/windows/make_environment.sh {WINE}"))
    library = build(NAMES, form, "windows-x86-64")
    check_bits(library, models_beside(library), threads, tmp_path, run=child_of_windows, size=SMALL_SIZE)
