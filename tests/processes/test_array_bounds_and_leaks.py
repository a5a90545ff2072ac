"""Nothing is read or written beyond the ends of arrays, and nothing is kept: memory and open files stay level.

Arrays lie next to pages that may not be touched, so that an access beyond their ends ends the process.
"""

import ctypes
import functools
import gc
import mmap
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import fake_quantization_nodes
import numpy as np
import nvidia_nodes
import onnxruntime
import oracle
import pytest
import samples
from granularities import key_id
from marks import sizes
from numba import types
from onnx import TensorProto, helper
from onnx_models import RELEASE, array_at, model, one_node, ort_value, run, session, session_options
from other_operators import INPUTS, LSTM, NORMALIZATION, random_lstm
from other_operators import one_node as other_node
from paths import MODELS

import quark_numba
from quark_numba import dequantize, extended_lstm, quantize, quantize_dequantize
from quark_numba.block import kernels as block_kernels
from quark_numba.block.dispatch import TABLE as BLOCK_TABLE
from quark_numba.block.formats import mx_format
from quark_numba.block.granularity import BlockLoop, Format, block_shape
from quark_numba.catalog import OPERATORS
from quark_numba.compiling import jit
from quark_numba.compiling.array_functions import array_function
from quark_numba.compiling.memory import _pages_of_compiler
from quark_numba.dialects import mct, openvino, qonnx
from quark_numba.element_types import FLOAT32, find
from quark_numba.linear.dispatch import TABLE
from quark_numba.linear.granularity import Loop, loop_shape
from quark_numba.linear.key import select
from quark_numba.ort import c_api
from quark_numba.recurrent import kernels as recurrent_kernels
from quark_numba.recurrent.dispatch import TABLE as RECURRENT_TABLE
from quark_numba.recurrent.fixed_point import layer_of

pytestmark = pytest.mark.compiled

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
guard = pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="protects pages as on Linux and on Windows")


class Pages:
    """Pages of memory, some of which may not be touched."""

    def __init__(self, nbytes):
        if sys.platform == "win32":
            self._library = ctypes.WinDLL("kernel32", use_last_error=True)
            self._library.VirtualAlloc.restype = ctypes.c_void_p
            commit_and_reserve, read_and_write = 0x3000, 4
            self.address = self._library.VirtualAlloc(None, ctypes.c_size_t(nbytes), commit_and_reserve, read_and_write)
            assert self.address
        else:
            self._library = ctypes.CDLL(None, use_errno=True)
            self._map = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def protect(self, page):
        page, size = ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE)
        if sys.platform == "win32":
            no_access = 1
            assert self._library.VirtualProtect(page, size, no_access, ctypes.byref(ctypes.c_uint32()))
        else:
            assert self._library.mprotect(page, size, 0) == 0

    def __del__(self):
        if sys.platform == "win32":
            release = 0x8000
            self._library.VirtualFree(ctypes.c_void_p(self.address), ctypes.c_size_t(0), release)


class Guarded:
    """Room for an array between two pages that may not be touched, flush with the one after it or the one before."""

    def __init__(self, nbytes, at_end):
        rest = -nbytes % mmap.PAGESIZE
        self._pages = Pages(nbytes + rest + 2 * mmap.PAGESIZE)
        start = self._pages.address
        for page in (start, start + mmap.PAGESIZE + nbytes + rest):
            self._pages.protect(page)
        self.nbytes, self.address = nbytes, start + mmap.PAGESIZE + (rest if at_end else 0)

    def array(self, dtype):
        content = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        content.pages = self._pages
        return np.frombuffer(content, np.uint8).view(dtype)


def guarded(array, at_end):
    flat = np.ascontiguousarray(array).reshape(-1)
    copy = Guarded(flat.nbytes, at_end).array(flat.dtype) if flat.size else flat
    copy[:] = flat
    return copy


def assert_stays_within(node, feeds, expected, at_end):
    """Assert that a session gives the expected bits if its tensors lie next to pages that may not be touched. `feeds` and
    `expected` have arrays of any element type by name."""
    binding, rooms = node.io_binding(), {}
    for value in (*node.get_inputs(), *node.get_outputs()):
        name, number = value.name, TensorProto.DataType.Value(value.type[7:-1].upper())
        array, row = (feeds | expected)[name], find(number)  # None: int64
        rooms[name] = Guarded(max(1, -(-array.size * row.bits // 8) if row else array.nbytes), at_end)
        if name in feeds and array.size:
            content = ort_value(np.array(array, order="C")) if row else array
            ctypes.memmove(rooms[name].address, content.data_ptr() if row else content.ctypes.data, rooms[name].nbytes)
        bind = binding.bind_input if name in feeds else binding.bind_output
        bind(name, "cpu", 0, number, list(array.shape), rooms[name].address)
    node.run_with_iobinding(binding)
    for name, array in expected.items():
        oracle.assert_same_bits(array_at(rooms[name].address, find(array.dtype), array.shape), array)


# Shape of x, shape of the scale, axis, block size; no size is a multiple of the size of a vector.
SHAPES = [
    ((1,), (), 0, 0),
    ((37,), (), 0, 0),
    ((1021,), (), 0, 0),
    ((3, 5, 7), (5,), 1, 0),
    ((11, 131), (131,), 1, 0),
    ((67, 3), (3,), 1, 0),
    ((5, 83), (5, 11), 1, 8),
    ((23, 17), (6, 17), 0, 4),
]


@guard
@pytest.mark.parametrize("key", list(TABLE), ids=key_id)
@pytest.mark.covering
@pytest.mark.by_default(1, slow=60)
def test_kernel_stays_within_its_arrays(key):
    kernel, rng = TABLE[key].serial, np.random.default_rng(30)
    for (x_shape, scale_shape, axis, block_size), at_end in product(SHAPES, (True, False)):
        _, loop = loop_shape(x_shape, scale_shape, scale_shape, axis, block_size)
        rows = loop.rows * (loop.inner if loop.vary else 1)
        x = rng.integers(0, 2**8, np.prod(x_shape) * key.x.storage.itemsize, np.uint8).view(key.x.storage)
        scale, zero_point = np.full(rows, 0.5, key.scale_dtype), np.zeros(rows, key.zero_point_dtype)
        expected = np.empty(x.size, key.y.storage)
        kernel(x, scale, zero_point, expected, np.array(loop, np.int64), 0)
        y = guarded(np.empty_like(expected), at_end)
        kernel(*(guarded(each, at_end) for each in (x, scale, zero_point)), y, np.array(loop, np.int64), 0)
        assert y.tobytes() == expected.tobytes()


@guard
@pytest.mark.parametrize("name", ["uint8", "bfloat16", "int32"])  # items of 1, 2 and 4 bytes
@pytest.mark.parametrize("operation", ["quantize", "dequantize"])
@pytest.mark.covering
@pytest.mark.slow
def test_any_size_stays_within_its_arrays(operation, name):
    """Arrays of up to a few thousand elements, which begin and end anywhere in a cache line, in one slice and in several."""
    row = find(name)
    x_type, y_type = (FLOAT32, row) if operation == "quantize" else (row, FLOAT32)
    key = select(operation, x_type, FLOAT32, row, y_type)
    rng = np.random.default_rng(31)
    for size, count, at_end in product((1, 15, 2048, 5000, 6161), (1, 7), (True, False)):
        scale, zero_point = rng.uniform(0.1, 1, count).astype(key.scale_dtype), np.zeros(count, key.zero_point_dtype)
        x = rng.integers(0, 2**8, size * key.x.storage.itemsize, np.uint8).view(key.x.storage)
        loop = np.array(Loop(1, 1, 7, 1, True) if count == 7 else Loop(1, 1, size, 1, False), np.int64)
        expected = np.empty(size, key.y.storage)
        TABLE[key].serial(x, scale, zero_point, expected, loop, 0)
        for kernel, slices in ((TABLE[key].parallel, (3,)), (TABLE[key].serial, (0,))):
            y = guarded(np.empty_like(expected), at_end)
            kernel(*(guarded(each, at_end) for each in (x, scale, zero_point)), y, loop, *slices)
            assert y.tobytes() == expected.tobytes()


@guard
@pytest.mark.parametrize(
    "key",
    [key if key.x is FLOAT32 else pytest.param(key, marks=pytest.mark.exhaustive) for key in BLOCK_TABLE],
    ids=lambda key: "-".join(map(str, (key.x.name, *key[2:], key.element.name if key.element else ""))),
)
@pytest.mark.covering
@pytest.mark.slow
def test_block_kernel_stays_within_its_arrays(key):
    kernel, rng = BLOCK_TABLE[key].serial, np.random.default_rng(32)
    for (x_shape, _, axis, _), (block, sub_block), at_end in product(SHAPES, [(8, 2), (3, 1), (16, 16)], (True, False)):
        _, length, inner = block_shape(x_shape, axis, block)
        numbers, loop = Format(block, sub_block, 1, 6, -127, 127, 0), BlockLoop(length, inner)
        x = rng.normal(0, 9, np.prod(x_shape)).astype(key.x.dtype).view(key.x.storage)
        count = x.size // length * -(-length // block) if key.has_codes else 0
        expected, scales = np.empty(x.size, key.y.storage), np.empty(count, np.uint8)
        kernel(x, expected, scales, np.float32(1), numbers, loop)
        y, guarded_scales = guarded(np.empty_like(expected), at_end), guarded(np.empty_like(scales), at_end)
        kernel(guarded(x, at_end), y, guarded_scales, np.float32(1), numbers, loop)
        assert y.tobytes() == expected.tobytes()
        assert guarded_scales.tobytes() == scales.tobytes()


def node_cases():
    """Yield every operator in sessions with each of its types, for x or for y. The other one is float32."""
    for domain in ("com.amd.quark", ""):
        for operator in OPERATORS.newest(domain):
            for row in filter(None, operator.formats.values()):
                if row.has_tensors() and (domain == "com.amd.quark" or RELEASE >= c_api.FLOAT_QDQ_RELEASE):
                    yield pytest.param(operator.operation, row, domain, id=f"{operator.full_name}-{row.name}")


@guard
@pytest.mark.parametrize(("operation", "row", "domain"), list(node_cases()))
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_node_stays_within_its_tensors(operation, row, domain):
    for (x_shape, scale_shape, axis, block_size), at_end in product(SHAPES, (True, False)):
        if block_size and domain:
            continue
        attributes = {"axis": axis} | ({"block_size": block_size} if block_size else {})
        node = session(
            one_node(operation, row.name, domain=domain, attributes=attributes, opset=21 if domain else 25),
            qdq="auto" if domain else "float",
        )
        x_type = np.float32 if operation == "quantize" else row.dtype
        feeds = {"x": np.zeros(x_shape, x_type), "scale": np.zeros(scale_shape, np.float32)}
        feeds["zero_point"] = np.zeros(scale_shape, row.dtype)
        assert_stays_within(node, feeds, {"y": run(node, **feeds)}, at_end)


# Three operands, and a scale and zero points along the second axis from the end.
REGION = """region (float x0, float x1, float x2, float x3, int32 x4, float[1] x5) => (float y) {
  v0 = Add (x0, x1)
  v1 = quark_numba.QuantizeDequantizeLinear <axis: int = -2, saturate: int = 1> (v0, x3, x4)
  v2 = Mul (v1, x5)
  y = Sub (v2, x2)
}"""
REGION_SHAPES = [
    [(3, 5, 7), (5, 1), (7,)],
    [(3, 5, 7), (3, 5, 7), (3, 1, 1)],
    [(1, 5, 1), (3, 1, 1), (7,)],
    [(3, 5, 4099), (5, 1), (4099,)],
    [(3001, 5, 3), (3001, 5, 1), ()],
]


REGION_TYPES = dict.fromkeys(["x0", "x1", "x2", "x3", "x4", "x5"], "float32") | {"x4": "int32"}


def region_model():
    node = helper.make_node("Region", list(REGION_TYPES), ["y"], domain="quark_numba", program=REGION)
    return model([node], [(*each, None) for each in REGION_TYPES.items()], ["y"], domains=["quark_numba"])


def region_feeds(shapes):
    rng = np.random.default_rng(33)
    shapes = dict(zip(REGION_TYPES, [*shapes, (5,), (5,), ()], strict=True))
    feeds = {name: rng.normal(0, 9, shape).astype(REGION_TYPES[name]) for name, shape in shapes.items()}
    return feeds | {"x3": np.abs(feeds["x3"]) + np.float32(0.1)}


@guard
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("shapes", REGION_SHAPES, ids=str)
@pytest.mark.slow
def test_region_stays_within_its_tensors(shapes, at_end):
    feeds, node = region_feeds(shapes), session(region_model())
    (expected,) = node.run(None, feeds)
    x0, x1, x2, scale, zero_point, factor = feeds.values()
    sum_ = np.broadcast_to(x0 + x1, expected.shape)
    by_steps = quantize_dequantize(sum_, scale, zero_point, axis=expected.ndim - 2) * factor - x2
    assert expected.tobytes() == by_steps.tobytes()
    assert_stays_within(node, feeds, {"y": expected}, at_end)


# Normalizations and layers whose sizes are no multiples of the size of a vector, a block or a part.
OTHER_NODES = [
    (NORMALIZATION, {}, [(3, 5, 7, 11), (5,), (5,)]),
    (NORMALIZATION, {}, [(1, 3, 12_345), (3,), (3,)]),
    (NORMALIZATION, {}, [(1000, 17), (17,), (17,)]),
    (LSTM, {"hidden_size": 1}, [(1, 1, 1), (2, 4, 1), (2, 4, 1), (2, 8)]),
    (LSTM, {"hidden_size": 9}, [(5, 3, 7), (2, 36, 7), (2, 36, 9), (2, 72)]),
    (LSTM, {"hidden_size": 33}, [(70, 1, 301), (2, 132, 301), (2, 132, 33), (2, 264)]),
]


def other_nodes(*operators):
    cases = [(*each, at_end) for each in OTHER_NODES if each[0] in operators for at_end in (True, False)]
    return pytest.mark.parametrize(("operator", "attributes", "shapes", "at_end"), cases)


def other_arrays(operator, attributes, shapes):
    """Return all attributes and the inputs of normalizations and layers."""
    rng = np.random.default_rng(34)
    if operator == LSTM:
        attributes = random_lstm(3)[0] | attributes
    return attributes, [rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]


@guard
@other_nodes(NORMALIZATION, LSTM)
@pytest.mark.slow
def test_other_node_stays_within_its_tensors(operator, attributes, shapes, at_end):
    attributes, arrays = other_arrays(operator, attributes, shapes)
    for constants in (False, True):
        node = session(other_node(operator, attributes, arrays, constants=constants))
        feeds = dict(zip(INPUTS[operator][: 1 if constants else None], arrays, strict=False))
        assert_stays_within(node, feeds, {"y": run(node, **feeds)}, at_end)


def dialect_nodes():
    """Yield every operator of QONNX, MCT, OpenVINO and NVIDIA, under its newest name, with a function that returns a random
    node for a seed: its inputs, the outputs and a model."""
    for operator in (*qonnx.OPERATORS, *mct.OPERATORS, *openvino.OPERATORS):
        if not operator.newer_name:
            yield pytest.param(functools.partial(of_qonnx_or_mct, operator), id=operator.name)
    for name in (*nvidia_nodes.ORACLES, *nvidia_nodes.OWN):
        yield pytest.param(functools.partial(of_nvidia, name), id=name)


def of_qonnx_or_mct(operator, seed):
    node = fake_quantization_nodes.random_node(operator.domain, operator.name, seed)
    if "rounding_mode" in node.attributes:  # each mode has a kernel; they differ in what they do to one element
        node.attributes["rounding_mode"] = "ROUND"
    return node.inputs, [node.expected()], node.model()


def of_nvidia(name, seed):
    inputs, attributes = nvidia_nodes.random_node(name, np.random.default_rng([seed, 35]))
    if "output_dtype" in attributes:
        attributes["output_dtype"] = 1
    outputs = nvidia_nodes.expected_of(name, inputs, attributes)
    return inputs, outputs, nvidia_nodes.one_node(name, inputs, attributes, outputs)


@guard
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("node_of", [*dialect_nodes()])
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 96, 30))])
@pytest.mark.covering
@pytest.mark.slow
def test_node_of_a_dialect_stays_within_its_tensors(node_of, at_end, first):
    for seed in range(first, first + (30 if first else 6)):
        inputs, outputs, made = node_of(seed)
        feeds = {each.name: array for each, array in zip(made.graph.input, inputs, strict=True)}
        expected = {each.name: array for each, array in zip(made.graph.output, outputs, strict=True)}
        assert_stays_within(session(made), feeds, expected, at_end)


def sizes_of_layer(found, steps, batch, inputs, hidden):
    """Write to `found` the words of both memories in which the phases of a layer work, and the parts of each phase."""
    found[0] = recurrent_kernels.count_weight_words(inputs, hidden)
    found[1] = recurrent_kernels.count_words(steps, batch, inputs, hidden)
    for phase in range(recurrent_kernels.PHASES):
        found[2 + phase] = recurrent_kernels.count_parts(phase, steps, batch, hidden)


@guard
@other_nodes(LSTM)
@pytest.mark.slow
def test_layer_stays_within_its_memory(operator, attributes, shapes, at_end):
    """Each part of each phase runs with the memory that the layer says it needs, and no more."""
    attributes, arrays = other_arrays(operator, attributes, shapes)
    steps, batch, inputs = shapes[0]
    layers = layer_of({"layout": 0, "input_forget": 0} | attributes)
    found = np.zeros(2 + recurrent_kernels.PHASES, np.int64)
    signature = types.void(types.int64[::1], *[types.intp] * 4)
    array_function(sizes_of_layer, "sizes_of_a_test", signature)(found, steps, batch, inputs, attributes["hidden_size"])
    kept = [guarded(each, at_end) for each in (*arrays, layers)]
    kept += [guarded(np.zeros(size, np.int64), at_end) for size in found[:2]]
    kept.append(guarded(np.zeros(steps * 2 * batch * attributes["hidden_size"], np.float32), at_end))
    work = np.zeros((), recurrent_kernels.WORK)
    for name, each in zip(("x", "w", "r", "b", "layer", "weights", "memory", "y"), kept, strict=True):
        work[name] = each.ctypes.data
    work["steps"], work["batch"], work["inputs"] = steps, batch, inputs
    task = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_ssize_t)(RECURRENT_TABLE[FLOAT32].task.address)
    for phase in range(recurrent_kernels.PHASES):
        work["phase"] = phase
        for part in range(found[2 + phase]):
            task(work.ctypes.data, part)
    assert kept[-1].tobytes() == extended_lstm(*arrays, **attributes).tobytes()


def resident():
    """Return the memory of this process in bytes, and the number of its open files."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE, len(os.listdir("/proc/self/fd"))


def growth(use, before, times, allowed):
    """Return the growth of memory and of open files in a round of `times` uses. `before` uses come first. Of three rounds, the
    first one with less growth than the allowed bytes counts, or else the last one: a leak grows in every round, but the memory
    that other threads and the allocator keep does not."""
    use(before)
    for _ in range(3):
        memory, files = resident()
        use(times)
        memory, files = (now - then for now, then in zip(resident(), (memory, files), strict=True))
        if memory < allowed:
            break
    return memory, files


@linux
@sizes("times", 200, exhaustive=1000)
@pytest.mark.parametrize("of", ["a node", "a region", "a layer"])
@pytest.mark.slow
def test_many_sessions(of, times):
    """Sessions are made, run and dropped. Each layer has 180 KB of codes of its constant weights."""
    attributes, arrays = other_arrays(*OTHER_NODES[-1])
    source = {
        "a node": lambda: one_node("quantize", "uint8"),
        "a region": region_model,
        "a layer": lambda: other_node(LSTM, attributes, arrays, constants=True),
    }[of]()
    feeds = {"x": np.ones(70_000, np.float32), "scale": np.array(0.5, np.float32), "zero_point": np.array(0, np.uint8)}
    if of == "a region":
        feeds = region_feeds(REGION_SHAPES[3])
    if of == "a layer":
        feeds = {"x": arrays[0]}

    def use(times):
        for _ in range(times):
            session(source).run(None, feeds)

    memory, files = growth(use, 100, times, 8 << 20)
    assert memory < 8 << 20
    assert files == 0


one_thread = functools.partial(session_options, threads=1)
PREPARED = MODELS / "mct" / "mct_uniform.onnx"
WAYS = {
    "InferenceSession": lambda folder: quark_numba.InferenceSession(PREPARED, one_thread()),
    "a cache": lambda folder: quark_numba.InferenceSession(PREPARED, one_thread(), cache=folder),
    "optimize": lambda folder: quark_numba.optimize(PREPARED, folder / "optimized.onnx"),
    "a broken model": lambda folder: refused(PREPARED.read_bytes()[:-999]),
    "a library": lambda folder: quark_numba.build_library(PREPARED, folder),
}


def refused(content):
    with pytest.raises(quark_numba.ModelError):
        quark_numba.InferenceSession(content, one_thread())


@linux
@sizes("times", 50, exhaustive=2000)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_many_models(way, times, tmp_path, monkeypatch):
    """Models are prepared and dropped, while two other threads run a session."""
    times = max(2, times // 50) if way == "a library" else times
    for name in ("temporary", "results"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    node, stop = quark_numba.InferenceSession(PREPARED, one_thread()), threading.Event()

    def run_on():
        while not stop.is_set():
            node.run(None, {"input": np.ones((2, 3, 24, 24), np.float32)})

    def use(times):
        for _ in range(times):
            made = WAYS[way](tmp_path / "results")
            if isinstance(made, onnxruntime.InferenceSession):
                made.run(None, {"input": np.ones((2, 3, 24, 24), np.float32)})

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(run_on) for _ in range(2)]
        try:
            use(1)
            tasks = len(os.listdir("/proc/self/task"))
            memory, files = growth(use, times // 5, times, 8 << 20)
            assert len(os.listdir("/proc/self/task")) <= tasks
        finally:
            stop.set()
        for each in running:
            each.result()
    assert memory < 8 << 20
    assert files == 0
    assert {each.name for each in (tmp_path / "temporary").iterdir()} <= {".ses"}  # of ONNX Runtime


@linux
@pytest.mark.parametrize("name", ["uint8", "int4", "bfloat16"])
@pytest.mark.slow
def test_many_calls(name):
    """A hundred thousand calls are made, a third of them with each type."""
    x, scale = samples.SPECIAL, np.float32(0.5)
    zero_point = np.zeros((), oracle.dtype(name))

    def use(times):
        for _ in range(times):
            dequantize(quantize(x, scale, zero_point), scale, zero_point)

    memory, files = growth(use, 1000, 17_000, 2 << 20)
    assert memory < 2 << 20
    assert files == 0


@linux
def test_released_pages_of_the_compiler_are_those_of_its_file():
    """The loader writes addresses into other pages, which would be lost. The instructions alone have 40 MB."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    files = {int(line[0].split("-")[0], 16): (line[5], int(line[2], 16)) for line in lines if len(line) == 6}
    released = _pages_of_compiler()
    for address, size in released:
        path, offset = files[address]
        content = np.memmap(path, np.uint8, "r")[offset : offset + size]  # the last page may go on beyond the file
        assert content.tobytes() == ctypes.string_at(address, content.size)
    assert sum(size for _, size in released) > 40_000_000


def test_no_memory_for_a_part_of_block_formats(monkeypatch):
    """A part without memory writes nothing, and reports this in its work. The node turns the report into an error."""
    key, numbers = mx_format(FLOAT32, element_dtype="int8", block_size=32, rounding_mode=0)
    _, length, inner = block_shape((4, 64), 1, numbers.block)
    x, y, work = np.ones(256, np.float32), np.zeros(256, np.float32), np.zeros((), block_kernels.WORK)
    for name, value in (numbers._asdict() | {"length": length, "inner": inner, "size": 256, "parts": 1}).items():
        work[name] = value
    work["x"], work["y"] = x.ctypes.data, y.ctypes.data
    without = jit.inline(lambda size: np.int64(0))
    signature = types.void(types.int64, types.intp)
    for allocate, has_failed in ((without, 1), (block_kernels.allocate, 0)):
        monkeypatch.setattr(block_kernels, "allocate", allocate)
        _, _, task_of_key = block_kernels._loops(key)
        task = jit.c_function(task_of_key, f"task_of_a_test_{has_failed}", signature)
        work["has_failed"] = 0
        ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_ssize_t)(task.address)(work.ctypes.data, 0)
        assert work["has_failed"] == has_failed
        assert (y == (0 if has_failed else 1)).all()
