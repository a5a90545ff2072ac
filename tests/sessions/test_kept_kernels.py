"""Sessions of kept models in processes that load neither Numba nor onnx."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from paths import MODELS

import quark_numba
from quark_numba.session.model_cache import ModelCache

pytestmark = pytest.mark.compiled

NAME = "textline_cls_bf16.onnx"

# Prints which slow modules a session has imported, and writes its outputs.
PROGRAM = """
import sys
import numpy as np
import onnxruntime
import quark_numba

options = None
if "threads" in sys.argv[4:]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
if "added" in sys.argv[4:]:
    options = onnxruntime.SessionOptions()
    names = [line.split()[0] for line in open(sys.argv[2] + "/initializers")]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.load(sys.argv[2] + "/value.npy"))
    options.add_initializer(names[0], value)
session = quark_numba.InferenceSession(sys.argv[1], options, cache=sys.argv[2])
x = {"x": np.random.default_rng(0).random((6, 3, 48, 192), np.float32)}
y = session.run(None, x)
slow = [name for name in ("numba", "onnx", "onnx_ir", "ml_dtypes", "quark_numba.catalog") if name in sys.modules]
if "again" in sys.argv[4:]:
    import quark_numba.ort
    other = quark_numba.InferenceSession(sys.argv[1], options)
    assert all(np.array_equal(a, b) for a, b in zip(y, other.run(None, x), strict=True))
np.savez(sys.argv[3], *y)
print(" ".join(slow) or "none")
"""


def start(model, folder, *named, **environment):
    """The slow modules that a process has loaded, and the outputs of its session."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"} | environment
    outputs = folder.parent / "outputs.npz"
    command = [sys.executable, "-c", PROGRAM, str(model), str(folder), str(outputs), *named]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(outputs) as found:
        return done.stdout.strip(), [found[name] for name in found.files]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, a folder where it is kept, and the outputs of its first session."""
    place = tmp_path_factory.mktemp("kept")
    model = place / NAME
    shutil.copy(MODELS / NAME, model)
    old = time.time_ns() - 10**10
    os.utime(model, ns=(old, old))
    time.sleep(2.1)  # the time of the last change of the inode cannot be set
    slow, outputs = start(model, place / "cache")
    assert "numba" in slow
    return model, place / "cache", outputs


@pytest.fixture
def copy(made, tmp_path):
    """A copy of what `made` gives, whose kept model is in this test's folder."""
    model, folder, outputs = made
    shutil.copytree(folder, tmp_path / "cache", copy_function=shutil.copy2)
    return model, tmp_path / "cache", outputs


def same(found, expected):
    return len(found) == len(expected) and all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


def check(kept_model, is_fast, *named):
    """Check the outputs of a session in a new process, and that it has loaded either no slow module or Numba."""
    model, folder, expected = kept_model
    slow, outputs = start(model, folder, *named)
    assert slow == "none" if is_fast else "numba" in slow
    assert same(outputs, expected)


def kernels_of(folder):
    (entry,) = (each for each, _, _ in ModelCache(folder).entries())
    return entry / "kernels"


@pytest.mark.parametrize("named", [[], pytest.param(["again"], marks=pytest.mark.slow)], ids=str)
def test_a_later_process_loads_neither_numba_nor_onnx(made, named):
    """Another session of the process that needs Numba after all has the same operators, and the same bits."""
    check(made, True, *named)


def test_options_that_replace_no_initializer(made):
    model, folder, _ = made
    assert start(model, folder, "threads")[0] == "none"


@pytest.mark.slow
def test_options_that_replace_an_initializer(copy):
    """They cannot be listed, and the model has to be prepared for them."""
    import onnx
    from onnx import numpy_helper

    model, folder, expected = copy
    first = next(each for each in onnx.load(model).graph.initializer if each.data_type == onnx.TensorProto.FLOAT and each.dims)
    (folder / "initializers").write_text(first.name)
    np.save(folder / "value.npy", numpy_helper.to_array(first) + 1)
    slow, outputs = start(model, folder, "added")
    assert "onnx" in slow
    assert not same(outputs, expected)


@pytest.mark.parametrize("variable", ["NUMBA_OPT", "NUMBA_CPU_NAME"])
@pytest.mark.slow
def test_numbas_settings_need_numba(made, variable):
    value = {"NUMBA_OPT": "3", "NUMBA_CPU_NAME": "x86-64" if "86" in os.uname().machine else "generic"}[variable]
    model, folder, _ = made
    assert "numba" in start(model, folder, **{variable: value})[0]


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shortened(path):
    path.write_bytes(path.read_bytes()[:1000])


def removed(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flipped, shortened, removed])
@pytest.mark.slow
def test_damaged_kernels_are_made_again(copy, damage):
    damage(kernels_of(copy[1]))
    check(copy, False)
    check(copy, True)


def of_another(path):
    os.chown(path, 12345, -1)


def writable(path):
    path.chmod(0o666)


@pytest.mark.skipif(os.name != "posix", reason="needs owners and modes of files")
@pytest.mark.parametrize("change", [of_another, writable])
@pytest.mark.slow
def test_kernels_that_another_user_could_have_written(copy, change):
    """Kernels that another user could have written are never loaded. Kernels of this user replace them."""
    if change is of_another and os.geteuid():
        pytest.skip("needs the rights of root")
    change(kernels_of(copy[1]))
    check(copy, False)
    assert kernels_of(copy[1]).stat().st_uid == os.geteuid()
    check(copy, True)


@pytest.mark.slow
def test_another_model_has_other_kernels(copy, tmp_path):
    _, folder, expected = copy
    other = tmp_path / "other.onnx"
    shutil.copy(MODELS / "textline_cls_fp16.onnx", other)
    time.sleep(2.1)
    start(other, folder)
    assert len(ModelCache(folder).entries()) == 2
    slow, outputs = start(other, folder)
    assert slow == "none"
    assert not same(outputs, expected)
    assert same(outputs, start(other, tmp_path / "empty")[1])


def test_nothing_is_kept_that_is_not_asked_for(made):
    model, folder, _ = made
    before = {*folder.iterdir()}
    quark_numba.InferenceSession(model)
    assert {*folder.iterdir()} == before


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
def test_many_sessions_of_a_kept_model(made):
    """Many sessions of a kept model load its kernels once."""
    model, folder, _ = made
    done = subprocess.run([sys.executable, "-c", MANY, str(model), str(folder)], capture_output=True, text=True, check=True)
    memory, mappings, files, threads = map(int, done.stdout.split())
    assert memory < 8 << 20
    assert mappings < 20
    assert (files, threads) == (0, 0)
