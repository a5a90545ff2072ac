"""Processes end as they were asked to, whatever is alive then, and in whatever order the interpreter clears modules."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from marks import sizes
from paths import MODELS
from processes import PREPARE, python

pytestmark = pytest.mark.compiled

# Sessions of each kind, and calls. `see` returns the sum of all their outputs.
BEGIN = f"""
import gc, random, warnings
import ctypes
import onnxruntime
warnings.simplefilter("ignore")
PATHS = [{str(MODELS)!r} + f"/textline_cls_{{name}}.onnx" for name in ("bf16", "mx9")]
FEEDS = {{"x": np.linspace(-1, 1, 3 * 48 * 192, dtype=np.float32).reshape(1, 3, 48, 192)}}

def call(sizes=(9, 300_000)):
    return [quantize(np.ones(size, np.float32), .5, dtype=dtype) for size in sizes for dtype in ("int8", "bfloat16")]

def drop_in():
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    return [onnxruntime.InferenceSession(path, options) for path in PATHS]

def optimized(**named):
    return [quark_numba.InferenceSession(path, **named) for path in PATHS]

def kept():
    return optimized(cache=True)

def evaluate():
    return quark_numba.evaluate(PATHS[0], [FEEDS], reference=PATHS[1])

def see(sessions):
    return [float(np.sum(session._sess.run([session._sess.outputs_meta[0].name], FEEDS, None)[0])) for session in sessions]
"""

# Does what the end of a process does to modules, and a little more: their names go, and the memory of what they owned is used
# again. Then everything that C has the address of is used.
CLEARED = """
import atexit, logging, sys
logging.disable()  # which test is the first to compile a kernel depends on the cache
order, *names = sys.argv[1:]
PATHS = [path for path in PATHS if path.rpartition("_")[2] in names]
sessions = [*drop_in(), *optimized(), *kept()]
functions, seen = call((9,) if len(names) == 1 else (9, 300_000)), see(sessions)
kind = type(len)
functions = [each for each in gc.get_objects() if type(each) is kind and each.__name__ == "kernel"]
assert functions

def flags(function):  # PyCFunctionObject.m_ml->ml_flags
    definition = ctypes.c_void_p.from_address(id(function) + 16).value
    return ctypes.c_int.from_address(definition + 16).value

expected = [flags(each) for each in functions]
names = sorted(name for name in sys.modules if name.startswith("quark_numba"))
{"sorted": list, "reversed": list.reverse, "shuffled": random.Random(0).shuffle}[order](names)
atexit._run_exitfuncs()
for name in names:
    vars(sys.modules[name]).clear()
gc.collect()
again = [ctypes.create_string_buffer(b"\\xff" * size, size) for size in (16, 32, 48, 64, 160, 320) for _ in range(5_000)]
assert [flags(each) for each in functions] == expected
assert see(sessions) == seen
del functions, sessions
gc.collect()
sys.exit(7)
"""


@pytest.mark.by_default(1)
@pytest.mark.parametrize("names", [("bf16.onnx",), ("bf16.onnx", "mx9.onnx")], ids=len)
@pytest.mark.parametrize("order", ["shuffled", "sorted", "reversed"])
def test_what_c_uses_outlives_the_modules(order, names):
    process = python("-P", "-c", PREPARE + BEGIN + CLEARED, order, *names)
    assert (process.returncode, process.stderr) == (7, "")


# What a process does. `made` is alive when it ends.
DOES = {
    "nothing": "made = None",
    "calls": "made = call()",
    "drop_in": "made = drop_in(); see(made)",
    "optimized": "made = optimized(); see(made)",
    "kept": "made = kept(); see(made)",
    "optimize": "import onnx; made = [quark_numba.optimize(onnx.load(path)) for path in PATHS]",
    "standard": "import onnx; made = quark_numba.optimize(onnx.load(PATHS[1]), operators='standard')",
    "evaluate": "made = evaluate()",
    "all": "made = [*drop_in(), *optimized(), *kept()]; see(made); made += [call(), evaluate()]",
}

RAISES_INSIDE = """
class Array:
    def __array__(self, *_, **__): raise KeyError(made)
sys.excepthook = lambda *_: None
quantize(Array(), .5, dtype="int8")
"""
IN_DAEMON_THREADS = """
def forever():
    while True:
        call()
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
sys.exit(8)
"""
# ONNX Runtime itself aborts a process in which a daemon thread creates or runs a session.
COMPILES = """
x = np.ones(9, np.float32)
compiling = threading.Thread(target=lambda: [quantize(x, .5, dtype=dtype) for dtype in ("int16", "uint2")], daemon=True)
compiling.start()
time.sleep(0.02)
sys.exit(9)
"""
IN_DEL = """
class Late:
    def __del__(self): see(self.sessions)
late = Late()
late.sessions = [each for each in (made if isinstance(made, list) else []) if hasattr(each, "_sess")]
late.itself = late
sys.exit(11)
"""

# How it ends, and the exit code that it asks for.
ENDS = {
    "returns": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "raises": ("sys.excepthook = lambda *_: None; raise ValueError(made)", 1),
    "raises inside": (RAISES_INSIDE, 1),
    "at once": ("os._exit(4)", 4),
    "in a cycle": ("made = [made]; made.append(made); sys.exit(5)", 5),
    "on a module": ("import json, numba; numba.made = json.made = made; del made; sys.exit(6)", 6),
    "at exit": ("import atexit; atexit.register(lambda: (call(), see(drop_in()))); sys.exit(7)", 7),
    "in daemon threads": (IN_DAEMON_THREADS, 8),
    "while a thread compiles": (COMPILES, 9),
    "after a fork": ("wait(fork(call)); sys.exit(10)", 10),
    "in __del__": (IN_DEL, 11),
    "terminated": ("os.kill(os.getpid(), 15); time.sleep(60)", -15),
}


@sizes("times", 1, exhaustive=3)
@pytest.mark.slow
def test_processes_end_as_they_were_asked_to(times):
    """More than a hundred processes, or some hundred, four at a time, so that threads wait for each other in other orders."""
    cases = [*itertools.product(DOES, ENDS)] * times

    def end(case):
        does, (ends, code) = DOES[case[0]], ENDS[case[1]]
        process = python("-P", "-c", f"{PREPARE}{BEGIN}\n{does}\n{ends}", OMP_NUM_THREADS="2")
        return None if process.returncode == code else (*case, process.returncode, process.stderr[-300:])

    with ThreadPoolExecutor(4) as threads:
        assert not [*filter(None, threads.map(end, cases))]
