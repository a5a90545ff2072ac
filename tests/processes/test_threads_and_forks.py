"""Threads, forked children and freed memory, each in a separate process."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import MODELS
from processes import PREPARE, python, run, start

pytestmark = pytest.mark.compiled

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")


# The system's loader does not look where TBB's package has its library.
TBB = Path(sys.prefix, "lib")
needs_tbb = pytest.mark.skipif(not Path(TBB, "libtbb.so.12").exists(), reason="TBB is not installed, or not in a folder lib")
tbb = pytest.param("tbb", marks=needs_tbb)


@pytest.mark.parametrize("layer", ["omp", "workqueue", tbb])
@pytest.mark.slow
def test_threads(layer):
    """Eight threads run at once. The first thread that needs a type compiles or loads it. Numba's workqueue layer ends a
    process that runs two parallel kernels at a time."""
    run(
        """
from concurrent.futures import ThreadPoolExecutor
def work(i):
    names = list(oracle.EXTENDED)[::3]
    for name in names[i:] + names[:i]:
        check(name, i)
with ThreadPoolExecutor(8) as threads:
    list(threads.map(work, range(8)))
""",
        NUMBA_THREADING_LAYER=layer,
        LD_LIBRARY_PATH=str(TBB),
    )


@needs_tbb
@pytest.mark.parametrize("layer", ["tbb", "default"])
@pytest.mark.slow
def test_tbb_does_not_warn_at_a_fork(layer):
    """TBB warns if a thread other than the one that started it forks, and then cannot stop its threads."""
    code = """
import os, numba, numpy as np
from quark_numba import quantize
def check(): assert (quantize(np.ones(1 << 20, np.float32), 0.5, dtype="int8") == 2).all()
check()
assert numba.threading_layer() == "tbb"
child = os.fork()
check()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""
    environment = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2", "LD_LIBRARY_PATH": str(TBB)}
    process = python("-P", "-W", "error", "-c", code, **environment)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.slow
def test_sessions_and_threads():
    """Eight threads run one session, and then sessions of one, two and five threads at the same time. Nodes of one model run in
    parallel."""
    run("""
import onnxruntime
from concurrent.futures import ThreadPoolExecutor
from onnx_models import model

x = np.random.default_rng(0).normal(0, 50, 300_000).astype(np.float32)
names = ["uint8", "int16", "int32", "bfloat16"]
feeds = {name: {"x": x, "scale": np.float32(0.5), "zero_point": np.ones((), oracle.dtype(name))} for name in names}
expected = {name: oracle.quantize(x, np.float32(0.5), feeds[name]["zero_point"], name) for name in names}
sessions = [(name, session(one_node("quantize", name), threads=n)) for name in names for n in (1, 2, 5)]

def use(pair):
    name, node = pair
    oracle.assert_same_bits(run(node, **feeds[name]), expected[name])

with ThreadPoolExecutor(8) as threads:
    list(threads.map(use, sessions[:1] * 100))
    list(threads.map(use, sessions * 20))

nodes = ["y = Sum (" + ", ".join(f"d{i}" for i in range(8)) + ")"]
for i in range(8):
    nodes.insert(0, f"d{i} = com.amd.quark.ExtendedDequantizeLinear (q{i}, s)")
    nodes.insert(0, f"q{i} = com.amd.quark.ExtendedQuantizeLinear (x, s)")
options = onnxruntime.SessionOptions()
options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
options.inter_op_num_threads, options.intra_op_num_threads = 3, 2
quark_numba.register(options)
parallel = onnxruntime.InferenceSession(model(nodes, ["x", "s"], ["y"]).SerializeToString(), options)
for _ in range(50):
    (y,) = parallel.run(None, {"x": np.full(300_000, 0.5, np.float32), "s": np.array(0.5, np.float32)})
    assert (y == 4).all()
""")


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.slow
def test_children_of_multiprocessing(method, tmp_path):
    """The parent uses calls and sessions before it starts a pool of workers, as with data loaders."""
    script = tmp_path / "main.py"
    script.write_text(
        PREPARE
        + f"""
import multiprocessing

def work(name):
    check(name)
    return name

if __name__ == "__main__":
    names = ["int8", "bfloat16", "uint16"]
    for name in names:
        check(name)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        assert pool.map_async(work, names).get(120) == names
"""
    )
    done = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", str(script)], timeout=300)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        ("raise KeyError", 1),
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), 15)", -15 if os.name == "posix" else 15),
        ("threading.Thread(target=check, args=('int16',)).start()", 0),
        ("quark_numba.kept = node", 0),
    ],
    ids=str,
)
@pytest.mark.by_default(1)
def test_a_process_ends_with_its_own_code(end, code):
    """Sessions of the main thread and of another thread are alive when the process ends."""
    run(
        f"""
kept = []
def create():
    node = session(one_node("quantize", "int8"))
    run(node, x=np.ones(300_000, np.float32), scale=np.float32(1), zero_point=np.int8(0))
    kept.append(node)
thread = threading.Thread(target=create)
thread.start()
thread.join()
create()
node = kept[0]
{end}
""",
        expected=code,
    )


@pytest.mark.slow
@forks
def test_a_forked_child():
    """OpenMP ends a child that uses its parent's pool."""
    run("check('int8'); wait(fork(lambda: check('int8'))); wait(fork(lambda: check('bfloat16'))); check('int8')")


@forks
@pytest.mark.parametrize(
    "start",
    [
        "numba.set_num_threads(1)",
        "numba.njit(parallel=True)(lambda: np.ones(100).sum())()",
        "run(session(one_node('quantize', 'int8'), backend='extensions'), x=np.ones(9, np.float32), scale=np.float32(1), "
        "zero_point=np.int8(0))",
    ],
    ids=["threads asked for", "parallel code", "a session by way of onnxruntime-extensions"],
)
@pytest.mark.slow
def test_a_forked_child_of_a_process_in_which_others_used_numba(start):
    run(f"import numba; {start}; wait(fork(lambda: check('int8')))")


@forks
@pytest.mark.slow
def test_the_package_is_first_imported_in_a_forked_child():
    """The parent has already started a pool of Numba's threads."""
    code = """
import os, sys, numba, numpy as np
numba.njit(parallel=True)(lambda: np.ones(100).sum())()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from quark_numba import quantize
assert quantize(np.ones(300_000, np.float32), 0.5).min() == 2
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=300)


FIRST_CALLS = {
    "quantize": "quark_numba.quantize(x, 0.1)",
    "fake_quantize": "quark_numba.fake_quantize(x, 0.1, bit_width=4)",
    "InferenceSession": "quark_numba.InferenceSession({model!r}, cache={folder!r})",
}


@forks
@pytest.mark.parametrize("milliseconds", [20, 0, 5, 50, 100, 200, 400])
@pytest.mark.parametrize("call", FIRST_CALLS.values(), ids=FIRST_CALLS)
@pytest.mark.by_default(1)
def test_a_fork_while_another_thread_imports_what_its_first_call_needs(call, milliseconds, tmp_path):
    """The child would wait forever for the imports that the thread had begun."""
    code = f"""
import os, signal, sys, threading, time
import numpy as np, quark_numba
x = np.ones((4, 5), np.float32)
def call(): {call.format(model=str(MODELS / "tagger_u16.onnx"), folder=str(tmp_path))}
thread = threading.Thread(target=call)
thread.start()
time.sleep({milliseconds / 1000})
child = os.fork()
if not child:
    signal.alarm(240)
    call()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=300)


@pytest.mark.slow
@forks
@pytest.mark.parametrize(
    ("processes", "count", "busy"), [(1, 20, 0), pytest.param(3, 3400, 2, marks=pytest.mark.exhaustive)], ids=["40", "20,400"]
)
def test_a_fork_while_another_thread_creates_a_session(processes, count, busy):
    """No lock is left held in the child, and the child may start threads. Sessions have one thread, because glibc may end a
    child that was forked while ONNX Runtime started a thread."""
    code = f"""
stop = threading.Event()
def create():
    while not stop.is_set():
        for name in oracle.EXTENDED:
            session(one_node("quantize", name), threads=1)
thread = threading.Thread(target=create)
thread.start()
try:
    for i in range({count}):
        time.sleep(0.01 * (i % 20))
        wait(fork(get_library_path))
        wait(fork(lambda: quantize(np.ones(5, np.float32), 1.0)))
finally:
    stop.set()
    thread.join()
"""
    others = [start("while True: pass") for _ in range(busy)]
    try:
        assert [each.wait() for each in [start(code) for _ in range(processes)]] == [0] * processes
    finally:
        for each in others:
            each.kill()
            each.wait()


@forks
@pytest.mark.parametrize("tracemalloc", ["0", "1"])  # tracemalloc takes the interpreter's lock for each allocation
@pytest.mark.slow
def test_a_fork_while_a_thread_of_ours_comes_to_python(tracemalloc):
    """The fork waits for the thread, which holds a lock of Python while it enters. The child might wait for that lock
    forever."""
    run(
        """
import ctypes, numba
from quark_numba.compiling.intrinsics import array_at, call
from quark_numba.ort import native, python_record
session(one_node("quantize", "int8"))
python = np.ctypeslib.as_array((ctypes.c_byte * python_record.PYTHON.itemsize).from_address(native.REGISTRY.python_functions))
python = python.view(python_record.PYTHON)[0]
usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
words = np.array([0, usleep, python["PyThreadState_New"]])
address = words.ctypes.data

@numba.cfunc("int64(int64)")
def slowly(interpreter):
    words = array_at(address, 3, np.int64)
    words[0] = 1
    call(words[1], (50_000,))
    state = call(words[2], (interpreter,))
    words[0] = 0
    return state

python["PyThreadState_New"] = slowly.address
stop = threading.Event()
def create():
    while not stop.is_set():
        session(one_node("quantize", "int8"))
def check_that_none_comes():
    assert words[0] == 0
thread = threading.Thread(target=create)
thread.start()
try:
    for _ in range(10):
        while not words[0]:
            time.sleep(0.001)
        wait(fork(check_that_none_comes))
finally:
    stop.set()
    thread.join()
""",
        PYTHONTRACEMALLOC=tracemalloc,
    )


@forks
@pytest.mark.slow
def test_a_fork_while_another_thread_compiles_for_the_first_time(tmp_path):
    """The compilation imports modules that have fork hooks, too."""
    code = """
import os, sys, threading, time
import numpy as np, quark_numba
quark_numba.quantize
threading.Thread(target=lambda: quark_numba.quantize(np.ones(4, np.float32), 0.5, np.int8(1)), daemon=True).start()
time.sleep(float(sys.argv[1]))
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for milliseconds in range(0, 200, 20):
        command = [sys.executable, "-P", "-c", code, str(milliseconds / 1000)]
        subprocess.run(command, check=True, timeout=60, env=environment)


@pytest.mark.slow
def test_a_first_call_while_numba_compiles():
    """The thread that makes the call already holds Numba's lock."""
    run("""
import numba
def f(x): ...
@numba.extending.overload(f)
def overloaded(x):
    offset = float(quantize(np.ones(3, np.float32), np.float32(0.5), np.uint8(1))[0])
    return lambda x: x + offset
assert numba.njit(lambda x: f(x))(1.0) == 4
""")


@pytest.mark.slow
def test_a_session_created_when_the_interpreter_ends():
    """A session can be created while the interpreter ends, when other threads can no longer enter Python."""
    run("""
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
quark_numba.register(options)
content = one_node("quantize", "int8").SerializeToString()
onnxruntime.InferenceSession(content, options)
class Late:
    def __del__(self, InferenceSession=onnxruntime.InferenceSession, content=content, options=options):
        InferenceSession(content, options)
late = Late()
late.itself = late
""")


@pytest.mark.slow
def test_a_zero_point_left_out_is_zero_until_the_run_ends():
    """Freed memory is filled with another byte, so that memory that is freed too early shows."""
    run(
        """
for name in oracle.EXTENDED:
    node = session(one_node("dequantize", name, zero_point=False))
    codes = np.arange(60_000).astype(oracle.dtype(name)).reshape(6, 10_000)
    scale = np.linspace(1, 2, 10_000).astype(np.float32)
    for _ in range(10):
        oracle.assert_same_bits(run(node, x=codes, scale=scale), oracle.dequantize(codes, scale, None, name))
""",
        MALLOC_PERTURB_="165",
    )


@pytest.mark.slow
def test_modules_are_dropped():
    """The memory to which ONNX Runtime points stays, so that earlier sessions go on."""
    run(
        """
import gc, onnxruntime
x, scale = np.ones(70_000, np.float32), np.ones(70_000, np.float32)
content = one_node("quantize", "int8", attributes={"axis": 0}).SerializeToString()
feeds = {"x": x, "scale": scale, "zero_point": np.ones(70_000, np.int8)}
assert_quantized = lambda node: np.testing.assert_array_equal(run(node, **feeds), 2)

options = onnxruntime.SessionOptions()
quark_numba.register(options)
node = onnxruntime.InferenceSession(content, options)
assert_quantized(node)
for name in [name for name in sys.modules if name.partition(".")[0] == "quark_numba"]:
    del sys.modules[name]
del quark_numba, dequantize, get_library_path, quantize, sys.modules["onnx_models"].quark_numba
gc.collect()
junk = [bytes(1000) for _ in range(10_000)]
assert_quantized(node)
""",
        MALLOC_PERTURB_="165",
    )


@pytest.mark.slow
def test_numbas_debug_information(tmp_path):
    """Debug information changes how functions are compiled."""
    run("import warnings; warnings.simplefilter('ignore'); check('int8')", NUMBA_DEBUGINFO="1", NUMBA_CACHE_DIR=str(tmp_path))


# Code that makes `node`, `feeds`, and the shape and type of the node's output. The keys say what has no memory.
NODES = {
    "zero points that are widened to one of 8 bytes for each element": """
size, y_type = [20_000_000], 12
node = session(one_node("quantize", "uint32", attributes={"axis": 0}))
feeds = {"x": np.ones(size, np.float32), "scale": np.ones(size, np.float32), "zero_point": np.ones(size, np.uint32)}
""",
    "what the input of a layer gives to its gates": """
from other_operators import LSTM, one_node as layer, random_lstm
steps, hidden = 600_000, 8
size, y_type = [steps, 2, 1, hidden], 1
attributes = random_lstm(3)[0] | {"hidden_size": hidden}
shapes = [(steps, 1, 1), (2, 4 * hidden, 1), (2, 4 * hidden, hidden), (2, 8 * hidden)]
arrays = [np.full(shape, 0.1, np.float32) for shape in shapes]
node, feeds = session(layer(LSTM, attributes, arrays, constants=True)), {"x": arrays[0]}
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
@pytest.mark.parametrize("of", NODES)
@pytest.mark.slow
def test_no_memory_in_a_node(of):
    """The run raises an error, and the session goes on."""
    run(
        NODES[of]
        + """
import resource, onnxruntime
from onnx_models import ort_value
binding = node.io_binding()
for name, array in feeds.items():
    binding.bind_ortvalue_input(name, ort_value(array))
binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_shape_and_type(size, y_type))
node.run_with_iobinding(binding)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 24), -1))
try:
    node.run_with_iobinding(binding)
except Exception as error:
    assert "out of memory" in str(error), error
else:
    raise SystemExit("it ran all the same")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
node.run_with_iobinding(binding)
"""
    )
