"""Sessions and calls on arrays in green threads of eventlet and gevent, in a separate process with an empty cache."""

import pytest
from paths import MODELS
from processes import python

pytestmark = [pytest.mark.compiled, pytest.mark.slow(2)]

PATCH = {
    "eventlet": "import eventlet; eventlet.monkey_patch(); spawn = eventlet.spawn; result = lambda thread: thread.wait()",
    "gevent": "import gevent.monkey; gevent.monkey.patch_all(); spawn = gevent.spawn; result = lambda thread: thread.get()",
}


@pytest.mark.parametrize("is_imported_first", [False, True])
@pytest.mark.parametrize("library", PATCH)
def test_green_threads(library, is_imported_first, tmp_path):
    """Four green threads make a session each while the cache is empty, and call a kernel that runs on threads."""
    work = f"""
import numpy as np
expected = np.load({str(MODELS / "textline_cls_expected.npz")!r})
def work():
    session = quark_numba.InferenceSession({str(MODELS / "textline_cls_bf16.onnx")!r})
    (y,) = session.run(None, {{"x": expected["x"]}})
    return y, quark_numba.quantize(np.ones(1 << 20, np.float32), np.float32(0.5), dtype="int8")
for y, codes in map(result, [spawn(work) for _ in range(4)]):
    assert np.array_equal(y, expected["bf16"]) and (codes == 2).all()
"""
    imported = "import quark_numba"
    program = "\n".join([imported if is_imported_first else "", PATCH[library], imported, work])
    process = python("-P", "-c", program, NUMBA_CACHE_DIR=str(tmp_path))
    assert process.returncode == 0, process.stderr
