"""Signal handlers that raise, as the one for Ctrl-C does, at random moments."""

import signal

import pytest
from marks import needs_extensions
from processes import run

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers that send signals"),
]

# An alarm goes off at a random moment of an action. Then the action is done again, and has to give the right result. Some
# actions find their kernels compiled, others have to compile them.
MOMENTS = """
import random, signal
from quark_numba.compiling import cache
from quark_numba.linear.dispatch import TABLE
from quark_numba.ort import native

random.seed({seed})

class Stop(Exception):
    pass

RAISED = [KeyboardInterrupt, Stop, TimeoutError, SystemExit]

def interrupt(*_):
    raise expected_exception

signal.signal(signal.SIGALRM, interrupt)
x = np.random.default_rng(0).normal(0, 50, 150_000).astype(np.float32)

def feeds(name):
    return {{"x": x, "scale": np.float32(0.5), "zero_point": np.ones((), oracle.dtype(name))}}

def expected(name):
    return oracle.quantize(x, np.float32(0.5), feeds(name)["zero_point"], name)

def call(name):
    oracle.assert_same_bits(quantize(*feeds(name).values()), expected(name))

def load(name, backend):
    kept[name, backend] = session(one_node("quantize", name), backend=backend)

def load_optimized(name):
    quark_numba.InferenceSession(one_node("quantize", name))

def use(name, backend):
    if (name, backend) not in kept:
        load(name, backend)
    for _ in range(20):
        y = run(kept[name, backend], **feeds(name))
    oracle.assert_same_bits(y, expected(name))

def forget(name):  # all that was compiled for it, here and on disk
    for key in TABLE:
        if key.quantized.name == name:
            for form in ("serial", "parallel", "task"):
                TABLE[key].__dict__.pop(form, None)
    for custom_op in native.REGISTRY._custom_ops.values():
        custom_op.kernels.clear()
    for path in cache.files():
        if f"_{{name}}_" in path.name:
            path.unlink()

kept, durations, outcomes = {{}}, {{}}, {{"interrupted": 0, "in time": 0}}
actions = [
    (call, list(oracle.EXTENDED)),
    (lambda name: load(name, "native"), list(oracle.EXTENDED)),
    (lambda name: load(name, "extensions"), ["uint8", "int8", "int16", "uint16"]),
    (load_optimized, list(oracle.EXTENDED)),
    (lambda name: use(name, "native"), list(oracle.EXTENDED)),
    (lambda name: use(name, "extensions"), ["uint8", "int8", "int16", "uint16"]),
]
for moment in range({count}):
    action, names = actions[moment % len(actions)]
    name, expected_exception = random.choice(names), random.choice(RAISED)
    if moment % 3 == 0:
        forget(name)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + random.random() * durations.get(action, 1.0))
            action(name)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0.001)  # a signal that came to another thread is seen when this one takes the interpreter's lock again
        outcomes["in time"] += 1
    except tuple(RAISED) as error:
        assert type(error) is expected_exception, error
        outcomes["interrupted"] += 1
    start = time.perf_counter()
    action(name)
    durations[action] = min(1.0, time.perf_counter() - start)
print(outcomes)
assert outcomes["interrupted"] > {count} // 4, outcomes
"""


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 18), pytest.param(1, 60, marks=pytest.mark.slow), pytest.param(2, 1000, marks=pytest.mark.exhaustive)],
)
@pytest.mark.slow
@needs_extensions
def test_moments(seed, count, tmp_path):
    run(MOMENTS.format(seed=seed, count=count), seconds=100 + 3 * count, NUMBA_CACHE_DIR=str(tmp_path))


@needs_extensions
@pytest.mark.slow
def test_a_handler_that_raises_again_and_again(tmp_path):
    """The handler raises while a node runs that takes longer than the time between two signals."""
    run("""
import signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
node, x = session(one_node("quantize", "int8"), backend="extensions"), np.ones(5_000_000, np.float32)
feeds = {"x": x, "scale": np.float32(0.5), "zero_point": np.int8(1)}
expected = run(node, **feeds)
interrupted = 0
for _ in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, 5e-4, 5e-4)
        run(node, **feeds)
        time.sleep(1)
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                time.sleep(0.001)
                break
            except KeyboardInterrupt:
                pass
assert interrupted == 20
oracle.assert_same_bits(run(node, **feeds), expected)
""")


@needs_extensions
def test_a_fault_of_a_node_is_no_signal():
    """With onnxruntime-extensions, the fault is logged, and the output is left empty."""
    run("""
node = session(one_node("quantize", "int8"), backend="extensions")
y = run(node, x=np.ones((2, 3), np.float32), scale=np.ones(7, np.float32), zero_point=np.ones(7, np.int8))
assert y.shape == (0,)
""")


@pytest.mark.slow
def test_numbas_threads_are_not_lost():
    run("""
import random, signal
from quark_numba.compiling import threads
signal.signal(signal.SIGALRM, signal.default_int_handler)
x = np.ones(1 << 17, np.float32)
out = np.empty(x.shape, np.uint8)
quantize(x, 0.5, out=out)
for _ in range(500):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.random() * 2e-4 + 1e-6)
        for _ in range(1000):
            quantize(x, 0.5, out=out)
    except KeyboardInterrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
used = []
assert threads.run_on_threads(used.append)
taken = []
other = threading.Thread(target=lambda: taken.append(threads.run_on_threads(used.append)))
other.start()
other.join()
assert taken == [True]
""")


def test_a_signal_while_a_fork_waits():
    """A fork waits until another thread has finished a creation. If a signal comes meanwhile, parent and child go on. (Python
    itself drops the exception that a handler raises then.)"""
    run("""
import signal
from quark_numba.compiling import lock
signal.signal(signal.SIGALRM, signal.default_int_handler)
threading.Thread(target=lambda: lock.run_in_creation(lambda: time.sleep(1))).start()
time.sleep(0.2)
signal.setitimer(signal.ITIMER_REAL, 0.2)
def use():
    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()  # may get the number of a thread of the parent's
    assert lock.run_in_creation(lambda: 1) == 1
wait(fork(use))
use()
""")
