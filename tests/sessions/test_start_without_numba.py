"""Sessions in processes that find their kernels in the cache. They do not load Numba."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx_models import one_node
from paths import MODELS

import quark_numba
from quark_numba.compiling import cache
from quark_numba.session.model_cache import ModelCache

pytestmark = pytest.mark.compiled

NAME = "textline_cls_bf16.onnx"

# Runs a session, writes its outputs, and prints which slow modules the session has imported.
PROGRAM = """
import sys
import numpy as np
import onnxruntime
import quark_numba

kind, model, outputs, folder = sys.argv[1:5]
options = None
if kind == "drop-in" or "threads" in sys.argv[5:]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
if "added" in sys.argv[5:]:
    options = onnxruntime.SessionOptions()
    names = [line.split()[0] for line in open(folder + "/initializers")]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.load(folder + "/value.npy"))
    options.add_initializer(names[0], value)
if kind == "drop-in":
    quark_numba.register(options)
    session = onnxruntime.InferenceSession(model, options)
else:
    session = quark_numba.InferenceSession(model, options, cache=folder if kind == "kept" else None)
x = {"x": np.random.default_rng(0).random((6, 3, 48, 192), np.float32)}
y = session.run(None, x)
slow = [name for name in ("numba", "onnx", "onnx_ir", "ml_dtypes", "quark_numba.catalog") if name in sys.modules]
if "again" in sys.argv[5:]:
    import quark_numba.ort
    other = quark_numba.InferenceSession(model, options)
    assert all(np.array_equal(a, b) for a, b in zip(y, other.run(None, x), strict=True))
np.savez(outputs, *y)
print(*slow)
"""


class Place(NamedTuple):
    """A model, a folder in which it is kept, the folder of kernels, and the outputs of its first session, by kind."""

    model: Path
    folder: Path
    outputs: dict

    @property
    def models(self):
        return self.folder / "models"

    @property
    def kernels(self):
        return self.folder / "kernels" / "quark_numba"

    def env(self, **environment):
        ordinary = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
        return {**ordinary, "NUMBA_CACHE_DIR": str(self.folder / "kernels"), **environment}

    def start(self, kind, *named, model=None, **environment):
        """The slow modules that a process has loaded, and the outputs of its session."""
        outputs = self.folder / "outputs.npz"
        command = [sys.executable, "-c", PROGRAM, kind, *map(str, (model or self.model, outputs, self.models)), *named]
        done = subprocess.run(command, env=self.env(**environment), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with np.load(outputs) as found:
            return done.stdout.split(), [found[name] for name in found.files]

    def check(self, kind, loads, *named):
        """Check the outputs of a session in a new process, and whether it has loaded a module, or none of the slow ones."""
        slow, outputs = self.start(kind, *named)
        assert slow == [] if loads is None else loads in slow
        assert same(outputs, self.outputs[kind])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    model = folder / NAME
    shutil.copy(MODELS / NAME, model)
    old = time.time_ns() - 10**10
    os.utime(model, ns=(old, old))
    time.sleep(2.1)  # the time of the last change of the inode cannot be set
    place = Place(model, folder, {})
    # Most kernels are those of this process's cache, to which others may be writing.
    shutil.copytree(
        cache.location().folder,
        place.kernels,
        ignore=lambda _, names: {each for each in names if not each.endswith(cache.SUFFIX)},
    )
    for kind in ("kept", "drop-in"):
        place.outputs[kind] = place.start(kind)[1]
    return place


@pytest.fixture
def copy(made, tmp_path):
    """A copy of what `made` gives, in this test's folder."""
    for name in ("models", "kernels"):
        shutil.copytree(made.folder / name, tmp_path / name, copy_function=shutil.copy2)
    return made._replace(folder=tmp_path)


def same(found, expected):
    return len(found) == len(expected) and all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


kinds = pytest.mark.parametrize("kind", ["kept", "drop-in"])


@pytest.mark.by_default(1)
@kinds
@pytest.mark.parametrize("named", [[], pytest.param(["again"], marks=pytest.mark.slow)], ids=str)
def test_a_later_process_loads_neither_numba_nor_onnx(made, kind, named):
    """Another session of the process that needs Numba after all has the same operators, and the same bits."""
    made.check(kind, None, *named)


def test_optimizing_loads_no_numba(made):
    slow, outputs = made.start("optimized")
    assert "onnx" in slow
    assert "numba" not in slow
    assert same(outputs, made.outputs["kept"])


# Calls on small arrays.
CALLS = """
import sys
import ml_dtypes
import numpy as np
import quark_numba

x = np.float32([[1, -2, 3, 4]])
codes = quark_numba.quantize(x, 0.5, np.int8(1))
assert codes.tolist() == [[3, -3, 7, 9]]
assert np.array_equal(quark_numba.dequantize(codes, np.float32(0.5), np.int8(1)), x)
assert quark_numba.unpack(quark_numba.pack(codes.astype("int4")), 4, "int4").astype(int).tolist() == [3, -3, 7, -7]
assert quark_numba.mx_quantize_dequantize(x).tolist() == x.tolist()
assert quark_numba.fake_quantize(x, 0.5).tolist() == x.tolist()
quark_numba.extended_instance_normalization(x[..., None, None], x[0], x[0])
print("numba" in sys.modules)
"""


def test_calls_on_arrays():
    done = [subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=False) for _ in range(2)]
    assert done[1].stdout == "False\n", done[1].stderr


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--version"], {"numpy", "numba", "onnx", "onnxruntime", "llvmlite"}),
        (["--help"], {"numpy", "numba", "onnx", "onnxruntime", "llvmlite"}),
        (["analyze", "--help"], {"numba", "onnx", "onnxruntime", "llvmlite"}),
        (["types", "--json"], {"numba", "onnx", "onnxruntime", "llvmlite"}),
        (["info"], {"numba", "onnx", "quark_numba.catalog"}),
    ],
    ids=["version", "help", "help of analyze", "types", "info"],
)
def test_commands(made, words, slow):
    code = f"import sys, atexit; atexit.register(lambda: print({slow} & {{*sys.modules}}, file=sys.stderr))\n"
    code += f"sys.argv = ['quark-numba', *{words}]\nfrom quark_numba.__main__ import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], env=made.env(), capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "set()"  # importing onnxruntime may print lines of its own


def test_options_that_replace_no_initializer(made):
    assert made.start("kept", "threads")[0] == []


@pytest.mark.slow
def test_options_that_replace_an_initializer(copy):
    """They cannot be listed, and the model has to be prepared for them."""
    initializers = onnx.load(copy.model).graph.initializer
    first = next(each for each in initializers if each.data_type == onnx.TensorProto.FLOAT and each.dims)
    (copy.models / "initializers").write_text(first.name)
    np.save(copy.models / "value.npy", onnx.numpy_helper.to_array(first) + 1)
    slow, outputs = copy.start("kept", "added")
    assert "onnx" in slow
    assert not same(outputs, copy.outputs["kept"])


@pytest.mark.parametrize("variable", ["NUMBA_OPT", "NUMBA_CPU_NAME"])
@pytest.mark.slow
def test_numbas_settings_need_numba(made, variable):
    value = {"NUMBA_OPT": "3", "NUMBA_CPU_NAME": "x86-64" if "86" in os.uname().machine else "generic"}[variable]
    assert "numba" in made.start("drop-in", **{variable: value})[0]


def test_numbas_threads_do_not_matter(made):
    assert made.start("drop-in", NUMBA_NUM_THREADS="1")[0] == []


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shortened(path):
    path.write_bytes(path.read_bytes()[:1000])


def removed(path):
    path.unlink()


# Files of the cache, and what a process has to load that lacks one.
FILES = {
    "ort_functions": "numba",
    "ort_descriptions": "quark_numba.catalog",
    "ort_plain_functions": "numba",
    "ort_ExtendedQuantizeLinear": "numba",
    "ort_create": "numba",
    "compute_linear": "numba",
    "task_quantize_float32_bfloat16": "numba",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flipped, shortened, removed])
@pytest.mark.by_default(1)
def test_damaged_files_are_made_again(copy, name, damage):
    for path in copy.kernels.glob(f"{name}_*"):
        damage(path)
    copy.check("drop-in", FILES[name])
    copy.check("drop-in", None)


def of_another(path):
    os.chown(path, 12345, -1)


def writable(path):
    path.chmod(0o666)


@pytest.mark.skipif(os.name != "posix", reason="needs owners and modes of files")
@pytest.mark.parametrize("change", [of_another, writable])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.slow(5)
def test_files_that_another_user_could_have_written(copy, name, change):
    """They are never loaded. Files of this user replace them."""
    if change is of_another and os.geteuid():
        pytest.skip("needs the rights of root")
    files = [*copy.kernels.glob(f"{name}_*")]
    for path in files:
        change(path)
    copy.check("drop-in", FILES[name])
    copy.check("drop-in", None)


@pytest.mark.skipif(os.name != "posix", reason="needs owners and modes of files")
def test_a_folder_that_others_can_write_to(copy):
    """It is closed to them, and what is in it is not used: they could have written it."""
    copy.kernels.chmod(0o777)
    copy.check("drop-in", None)
    assert copy.kernels.stat().st_mode & 0o777 == 0o755


@pytest.mark.slow
def test_another_model_has_other_kernels(copy, tmp_path):
    other = tmp_path / "other.onnx"
    shutil.copy(MODELS / "textline_cls_fp16.onnx", other)
    time.sleep(2.1)
    copy.start("kept", model=other)
    assert len(ModelCache(copy.models).entries()) == 2
    slow, outputs = copy.start("kept", model=other)
    assert slow == []
    assert not same(outputs, copy.outputs["kept"])
    shutil.rmtree(copy.models)
    assert same(outputs, copy.start("kept", model=other)[1])


def test_nothing_is_kept_that_is_not_asked_for(made):
    before = {*made.models.iterdir()}
    quark_numba.InferenceSession(made.model)
    assert {*made.models.iterdir()} == before


# Quantizes in a session, in a second one, and in a fork's. A node that fails gives its message.
OTHERS = """
import os, sys
import numpy as np
import onnxruntime
import quark_numba

def session():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    quark_numba.register(options)
    return onnxruntime.InferenceSession(sys.argv[1], options)

def use():
    made, x = session(), np.float32([[1, 2, 3]])
    (y,) = made.run(None, {"x": x, "scale": np.float32([1, 2, 3])})
    assert y.tolist() == [[1, 1, 1]], y
    try:
        made.run(None, {"x": x, "scale": np.float32([1, 2])})
    except Exception as error:
        assert "(1, 3)" in str(error) and "(2,)" in str(error), error
    else:
        raise AssertionError("no error")
    assert "numba" not in sys.modules

use()
use()
child = os.fork()
if not child:
    try:
        use()
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_errors_other_sessions_and_forks(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(one_node("quantize", "uint8", zero_point=False), path)
    for _ in range(2):  # the first process may have to compile
        done = subprocess.run([sys.executable, "-c", OTHERS, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Makes sessions one after the other, and prints by how many bytes, mappings, files and threads the last 60 have grown.
MANY = """
import gc, mmap, os, sys
import onnxruntime
import quark_numba

def use(times):
    for _ in range(times):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        quark_numba.InferenceSession(sys.argv[1], options, cache=sys.argv[2])

def state():
    gc.collect()
    with open("/proc/self/statm") as statm, open("/proc/self/maps") as maps:
        memory, mappings = int(statm.read().split()[1]) * mmap.PAGESIZE, len(maps.readlines())
    return memory, mappings, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

use(20)
before = state()
use(60)
assert "numba" not in sys.modules
print(*(after - before for before, after in zip(before, state(), strict=True)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
@pytest.mark.slow
def test_many_sessions_of_a_cached_model(made):
    """Many sessions of a cached model load its kernels once."""
    arguments = [str(made.model), str(made.models)]
    done = subprocess.run([sys.executable, "-c", MANY, *arguments], env=made.env(), capture_output=True, text=True, check=True)
    memory, mappings, files, threads = map(int, done.stdout.split())
    assert memory < 8 << 20
    assert mappings < 20
    assert (files, threads) == (0, 0)
