"""Cached models whose processes are killed, run at the same time, or have no room."""

import sys

import pytest
from marks import sizes
from paths import MODELS
from processes import run

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(
        not hasattr(sys, "getswitchinterval") or sys.platform != "linux", reason="needs forks, and Linux's limits"
    ),
]

# Sessions in forks of a process without sessions. Each has to give the bits of a session without a cache.
FORKS = """
import json, random, shutil, signal
from pathlib import Path
import onnxruntime
import quark_numba.ort.callbacks, quark_numba.region.kernels, quark_numba.session.build
from quark_numba.models import model_files
from quark_numba.session import cache_keys
from quark_numba.session.model_cache import ModelCache

from cached_models import write

place = Path({place!r})
folder, expected, model = place / "cache", place / "expected", place / "m.onnx"
if {kind!r} == "real":
    shutil.copy({model!r}, model)
else:
    write(model, 1)
cache_keys._RACY_NS = -(10**9)  # keep the digests of files that were just written
if {kind!r} == "large":
    model_files.MAX_IN_MEMORY = 10
random.seed(0)
x = {{"x": np.random.default_rng(0).random((2, 3, 48, 192) if {kind!r} == "real" else 4000, np.float32)}}

def outputs(cache):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = quark_numba.InferenceSession(model, options, cache=cache)
    return b"".join(y.tobytes() for y in session.run(None, x))

def check():
    assert outputs(folder) == expected.read_bytes()

def entries():
    return [(entry, json.loads((entry / "kept.json").read_text())) for entry, _, _ in ModelCache(folder).entries()]

def check_files():
    assert not [*folder.glob("quark_numba_*")]
    for entry, manifest in entries():
        names = {{each.name for each in entry.iterdir()}}
        assert names == {{*manifest["files"], "kept.json", "kept by quark_numba"}}

wait(fork(lambda: expected.write_bytes(outputs(False))))
begin = time.monotonic()
wait(fork(check))
seconds = time.monotonic() - begin
"""


def run_forks(code, place, kind):
    run(FORKS.format(model=str(MODELS / "textline_cls_bf16.onnx"), place=str(place), kind=kind) + code, seconds=900)


kinds = pytest.mark.parametrize("kind", ["large", *(pytest.param(each, marks=pytest.mark.slow) for each in ("small", "real"))])


@pytest.mark.slow
@kinds
@sizes("count", 2, slow=8, exhaustive=100)
def test_a_process_that_is_killed_while_it_keeps_a_model(count, kind, tmp_path):
    """The next one gives the right results, and removes what the killed one left."""
    run_forks(
        f"""
for number in range({count}):
    for entry, _, _ in ModelCache(folder).entries():
        if random.random() < 0.7:
            ModelCache(folder).remove(entry)
    child = fork(check)
    time.sleep(random.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait(fork(check))
check_files()
""",
        tmp_path,
        kind,
    )


@kinds
@sizes("count", 2, slow=8, exhaustive=200)
@pytest.mark.slow(1)
def test_two_processes_at_once(count, kind, tmp_path):
    run_forks(
        f"""
for number in range({count}):
    for entry, _, _ in ModelCache(folder).entries():
        ModelCache(folder).remove(entry)
    if number % 2:
        ModelCache(folder).clear()
    children = [fork(check), fork(check)]
    if number % 4 > 1:  # a process that is just opening an entry makes its model again
        time.sleep(random.uniform(0, seconds))
        for entry, _, _ in ModelCache(folder).entries():
            ModelCache(folder).remove(entry)
    for child in children:
        wait(child)
    wait(fork(check))
    assert len(entries()) == 1
    check_files()
""",
        tmp_path,
        kind,
    )


@pytest.mark.slow
@sizes("steps", 2, slow=8, exhaustive=100)
def test_less_room_than_a_model_needs(steps, tmp_path):
    """Whichever file the system refuses, a session has the right results. A cached model is the same as with enough space.
    There is space for the package's library."""
    run_forks(
        f"""
import resource
from quark_numba.errors import WriteError

def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        check()
    except WriteError:  # the limit is of the temporary folder, too
        pass

facts = [manifest["facts"] for _, manifest in entries()]
most = max(each.stat().st_size for each in folder.rglob("*") if each.is_file())
for step in range({steps}):
    ModelCache(folder).clear()
    size = most * (step + 1) // {steps + 1}
    wait(fork(limited))
    assert all(manifest["facts"] == facts[0] for _, manifest in entries()), (size, entries())
    check_files()
    wait(fork(check))
    assert [manifest["facts"] for _, manifest in entries()] == facts
""",
        tmp_path,
        "real",
    )
