"""Signal handlers that raise, as that of Ctrl-C does, at random moments."""

import signal

import pytest
from processes import run

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals on this system"),
]

# At a random moment of an action an alarm goes off; then the action is done again, and has to give what it should. Some actions
# find what they need compiled, others have to compile it.
MOMENTS = """
import random, signal
from quark_numba.compiling import cache
from quark_numba.linear.dispatch import TABLE
from quark_numba.ort import native

random.seed({seed})
signal.signal(signal.SIGALRM, signal.default_int_handler)
x = np.random.default_rng(0).normal(0, 50, 150_000).astype(np.float32)

def feeds(name):
    return {{"x": x, "scale": np.float32(0.5), "zero_point": np.ones((), oracle.dtype(name))}}

def expected(name):
    return oracle.quantize(x, np.float32(0.5), feeds(name)["zero_point"], name)

def call(name):
    oracle.assert_same_bits(quantize(*feeds(name).values()), expected(name))

def load(name, backend):
    kept[name, backend] = session(one_node("quantize", name), backend=backend)

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
    native._state.cache_clear()
    for path in cache.files():
        if f"_{{name}}_" in path.name:
            path.unlink()

kept, durations, outcomes = {{}}, {{}}, {{"interrupted": 0, "in time": 0}}
actions = [
    (call, list(oracle.EXTENDED)),
    (lambda name: load(name, "native"), list(oracle.EXTENDED)),
    (lambda name: load(name, "extensions"), ["uint8", "int8", "int16", "uint16"]),
    (lambda name: use(name, "native"), list(oracle.EXTENDED)),
    (lambda name: use(name, "extensions"), ["uint8", "int8", "int16", "uint16"]),
]
for moment in range({count}):
    action, names = actions[moment % len(actions)]
    name = random.choice(names)
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
    except KeyboardInterrupt:
        outcomes["interrupted"] += 1
    start = time.perf_counter()
    action(name)
    durations[action] = min(1.0, time.perf_counter() - start)
print(outcomes)
assert outcomes["interrupted"] > {count} // 4, outcomes
"""


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 30), pytest.param(1, 200, marks=pytest.mark.full), pytest.param(2, 1000, marks=pytest.mark.exhaustive)],
)
def test_moments(seed, count, tmp_path):
    run(MOMENTS.format(seed=seed, count=count), NUMBA_CACHE_DIR=str(tmp_path))
