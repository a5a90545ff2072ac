"""Check and measure the kernels for GPUs on an NVIDIA card: their bits against the CPU's, their bandwidth against a copy.

`python bench/gpu_kernels.py` prints a row for each kernel, and with --write puts the tables into
RESULTS.md. It needs PyTorch with CUDA, for memory and time, and a driver of CUDA 12 or later. The exit status is 1 if a result
differs or a kernel fails, and 2 without a card.

Inputs are random: half of them normal numbers times 30, half any bits, NaN and Inf included. Any NaN will do for a NaN."""

import argparse
import ctypes
import functools
import multiprocessing
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numba
import numpy as np
import onnxruntime
from measuring import session_options
from onnx import TensorProto, helper
from pages import digits, table, write_part

import quark_numba
from quark_numba import to_tensor_proto
from quark_numba.block import device as block_device
from quark_numba.block.dispatch import TABLE as BLOCK_TABLE
from quark_numba.block.formats import HALF_TO_EVEN, MX_ELEMENT_TYPES, NVIDIA_FORMATS, bfp_format, mx_codes_format, mx_format
from quark_numba.block.granularity import BlockLoop, block_shape
from quark_numba.compiling.device import VECTOR, DeviceKernel
from quark_numba.element_types import BFLOAT16, FLOAT16, FLOAT32, ElementType, packing
from quark_numba.fake_quantization.key import FORMS, ROUNDING_MODES
from quark_numba.linear import device as linear_device
from quark_numba.linear.dispatch import TABLE as LINEAR_TABLE
from quark_numba.linear.granularity import loop_shape
from quark_numba.linear.plans import Plan
from quark_numba.linear.versions import OWN_DOMAIN
from quark_numba.region import device as region_device
from quark_numba.region.gpu_loops import BLOCK_LOOP
from quark_numba.region.granularity import GPU_LOOPS, OPERAND
from quark_numba.region.key import parse

NO_GPU = 2  # the exit status

# Launches of a kernel whose median counts, in turns with a copy.
ROUNDS = 20

# The elements for which kernels of the CPU are compiled before: enough for all threads.
_ENOUGH = 1 << 18

# The shapes of x: the dimensions behind the first one, the axis of the scales, and their block size.
GRANULARITIES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "tensor": ((), 0, 0),
    "axis 1 of NCHW": ((64, 64, 64), 1, 0),
    "axis 1 of NCHW, 7 x 7": ((64, 7, 7), 1, 0),
    "last axis": ((1024,), -1, 0),
    "blocks of 32": ((1024,), -1, 32),
}
PER_TENSOR, *OTHERS = GRANULARITIES
AXIS_1, SMALL_IMAGES, LAST_AXIS, _ = OTHERS

# Scales and zero points of integers, and of floats; None: no zero point.
SCALES = (0.1, 1.0, 7e-5)
ZERO_POINTS: dict[bool, tuple[float | None, ...]] = {True: (3, None, 100), False: (0, None, 1.5)}

# Names of element types of more kernels.
MAIN = ("int8", "uint8", "int4", "int16", "float8e4m3fn", "float16", "bfloat16")
BY_AXES = ("int8", "bfloat16", "float8e4m3fn")

# The parameters of fake quantization, for each form.
FAKE_PARAMETERS: dict[str, tuple[float, ...]] = {
    "integer": (0.1, 3, 8, 1, 0),
    "codes": (0.1, -128, 127),
    "bipolar": (0.5,),
    "truncation": (0.1, 2, 8, 0.4, 4, 1, 0),
    "minifloat": (0.5, 4, 3, 7, 448, 0, 1, 1),
    "threshold": (4.0, 8, 1),
    "range": (-1.0, 3.0, 8),
    "levels": (-1.0, 1.0, -2.0, 2.0, 255),
    "offset range": (-1.0, 3.0, 8),
    "float16": (),
    "bfloat16": (),
}

_IMAGES, _PAIR = (64, 64, 64), "quark_numba.QuantizeDequantizeLinear <axis: int = {}, saturate: int = 1>"
_BFP = (
    'com.amd.quark.BFPQuantizeDequantize <axis: int = {}, bfp_method: string = "{}", bit_width: int = 16, block_size: int = {}>'
)
_MX = 'com.amd.quark.MXQuantizeDequantize <axis: int = {}, element_dtype: string = "{}", block_size: int = 32>'

# Programs, and of each input the shape without its first dimension, or a number.
REGIONS: dict[str, tuple[str, list[tuple[int, ...] | float]]] = {
    "Add, round trip to int8, Clip, HardSwish": (
        f"""region (float x0, float x1, float[1] x2, int8[1] x3, float[1] x4) => (float y) {{
        v0 = Add (x0, x1)
        v1 = {_PAIR.format(0)} (v0, x2, x3)
        v2 = Clip (v1, x4)
        y = HardSwish (v2)
        }}""",
        [_IMAGES, _IMAGES, 0.1, 3, -5],
    ),
    "bias, round trip to bfloat16, Relu": (
        f"""region (float x0, float x1, float[1] x2, bfloat16[1] x3) => (float y) {{
        v0 = Add (x0, x1)
        v1 = {_PAIR.format(0)} (v0, x2, x3)
        y = Relu (v1)
        }}""",
        [_IMAGES, (64, 1, 1), 1, 0],
    ),
    "Relu, round trip to int8 along an axis": (
        f"""region (float x0, float x1, int8 x2) => (float y) {{
        v0 = Relu (x0)
        y = {_PAIR.format(-3)} (v0, x1, x2)
        }}""",
        [_IMAGES, (64,), (64,)],
    ),
    "round trips in series": (
        f"""region (float x0, float[1] x1, uint8[1] x2) => (float y) {{
        v0 = {_PAIR.format(0)} (x0, x1, x2)
        v1 = Mul (v0, v0)
        v2 = {_PAIR.format(0)} (v1, x1, x2)
        v3 = Neg (v2)
        y = {_PAIR.format(0)} (v3, x1, x2)
        }}""",
        [(1024,), 0.1, 128],
    ),
    **{
        f"Add, {name}, Relu, {name}{' along axis 1' * (axis == -3)}": (
            f"region (float x0, float x1) => (float y) {{ v0 = Add (x0, x1) v1 = {step} (v0) v2 = Relu (v1) y = {step} (v2) }}",
            [_IMAGES, _IMAGES] if axis == -3 else [(1024,), (1024,)],
        )
        for axis in (-1, -3)
        for name, step in (
            ("BFP16", _BFP.format(axis, "to_bfp", 8)),
            ("MX9", _BFP.format(axis, "to_bfp_prime", 16)),
            ("MX fp8_e4m3", _MX.format(axis, "fp8_e4m3")),
        )
    },
}


def fake_quantizers() -> Iterator[tuple[str, str, list[tuple[int, ...] | float]]]:
    """Yield rows like those of REGIONS: a step of fake quantization, in each form and rounding mode."""
    for form, parameters in FAKE_PARAMETERS.items():
        numbers = [f"x{k}" for k in range(1, len(parameters) + 1)]
        for mode in ROUNDING_MODES if FORMS[form].has_modes else ROUNDING_MODES[:1]:
            step = f'quark_numba.FakeQuantize <form: string = "{form}", rounding_mode: string = "{mode}">'
            inputs = ", ".join(["float x0", *(f"float[1] {x}" for x in numbers)])
            text = f"region ({inputs}) => (float y) {{ y = {step} ({', '.join(['x0', *numbers])}) }}"
            yield f"fake quantization: {form}, {mode}", text, [(1024,), *parameters]


class Launch(NamedTuple):
    """A launch of a kernel, and its expected results.

    `fields` are those of the record, but for x, outputs, and `is_aligned`; arrays are copied to the GPU. `outputs` are the
    sizes of the results in bytes, by fields. `expected` returns the results of the CPU for an x.
    """

    size: int
    units: int
    fields: dict[str, Any]
    outputs: dict[str, int]
    expected: Callable[[np.ndarray], dict[str, np.ndarray]]


class Case(NamedTuple):
    """A kernel, and a function (about so many elements, turn) -> Launch. In the record, `x` is the name of the first input."""

    family: str
    name: str
    granularity: str
    kernel: DeviceKernel
    x: ElementType
    y: ElementType
    launch: Callable[[int, int], Launch]
    turns: int = 1
    input: str = "x"
    is_measured: bool = True

    @property
    def label(self) -> str:
        return f"{self.name}, {self.granularity}"


def shape_of(count: int, rest: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape of about `count` elements that ends in these dimensions."""
    return max(1, count // int(np.prod(rest))), *rest


def bytes_of(size: int, element_type: ElementType) -> int:
    return -(-size * linear_device.bits_in(element_type) // 8)


def linear_cases() -> Iterator[Case]:
    types = {FLOAT32: None, FLOAT16: MAIN, BFLOAT16: MAIN}
    for key in LINEAR_TABLE:
        number = key.y if key.operation == "dequantize" else key.x
        if number not in types or (key.operation != "dequantize" and key.precision is not number):
            continue
        if types[number] is None or key.quantized.name in types[number]:
            kernel = linear_device.kernel(key, number)
            launch = functools.partial(linear_launch, key, number, PER_TENSOR)
            name = f"{key.operation} {key.x.name} to {key.y.name}"
            name += f" by {key.quantized.name}" * (key.operation == "quantize_dequantize") + " unsaturated" * (not key.saturate)
            case = Case("linear", name, PER_TENSOR, kernel, key.x, key.y, launch, len(SCALES), is_measured=key.saturate)
            yield case
            if number is FLOAT32 and key.saturate and key.quantized.name in BY_AXES:
                for granularity in OTHERS:
                    launch = functools.partial(linear_launch, key, number, granularity)
                    yield case._replace(granularity=granularity, launch=launch, turns=1)


def linear_launch(key: Any, scale_type: ElementType, granularity: str, count: int, turn: int) -> Launch:
    rest, axis, block_size = GRANULARITIES[granularity]
    shape = shape_of(count, rest)
    size = int(np.prod(shape))
    scale_shape: tuple[int, ...] = () if granularity == PER_TENSOR else (shape[axis],)
    if block_size:
        scale_shape = (*shape[:-1], shape[-1] // block_size)
    scale = np.resize(SCALES[turn] * (1 + np.arange(1 if not scale_shape else 7)), scale_shape).astype(scale_type.dtype)
    number, zero_point = ZERO_POINTS[key.quantized.is_integer][turn], None
    if number is not None:
        zero_point = np.full(scale_shape, min(number, key.quantized.highest)).astype(key.quantized.dtype)
    _, loop = loop_shape(shape, scale_shape, scale_shape, axis, block_size)
    # Of a loop that varies, `inner` is the number of scales: they are not repeated.
    inner = min(loop.inner, scale.size) if loop.vary else loop.inner
    fields = {"scale": scale, "zero_point": 0, "scales": scale.size, **loop._replace(inner=inner)._asdict()}
    if zero_point is not None:
        fields["zero_point"] = packing.pack(zero_point) if key.quantized.is_packed else zero_point

    def expected(x: np.ndarray) -> dict[str, np.ndarray]:
        y = np.empty(size, key.y.dtype)
        Plan(key, loop, scale.dtype, None if zero_point is None else zero_point.dtype).convert(scale, zero_point, x, y)
        return {"y": packing.pack(y) if key.y.is_packed else y}

    return Launch(size, size, fields, {"y": bytes_of(size, key.y)}, expected)


def block_formats(x: ElementType) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, key, numbers)."""
    bfp: dict[str, Any] = {"bit_width": 16, "rounding_mode": HALF_TO_EVEN, "convert_to_bfloat_before_bfp": 0}
    bfp |= {"sub_block_size": 2, "sub_block_shift_bits": 1}
    yield "BFP16", *bfp_format(x, bfp_method="to_bfp", block_size=8, **bfp)
    yield "MX9", *bfp_format(x, bfp_method="to_bfp_prime", block_size=16, **bfp)
    mx: dict[str, Any] = {"block_size": 32, "rounding_mode": HALF_TO_EVEN}
    for name in MX_ELEMENT_TYPES:
        yield f"MX {name}", *mx_format(x, element_dtype=name, **mx)
    if x is FLOAT32:
        for name in ("fp8_e4m3", "fp4_e2m1"):
            yield f"codes of MX {name}", *mx_codes_format(x, scale_rule="floor", element_dtype=name, **mx)
        for form in NVIDIA_FORMATS:
            yield f"codes of NVIDIA's {form.name}", *form.format(x, form.block_size, has_codes=True)


def block_cases() -> Iterator[Case]:
    for x in (FLOAT32, FLOAT16, BFLOAT16):
        for name, key, numbers in block_formats(x):
            for granularity in (LAST_AXIS, AXIS_1) if x is FLOAT32 else (LAST_AXIS,):
                launch = functools.partial(block_launch, key, numbers, granularity)
                kernel = block_device.kernel(key, numbers)
                yield Case("block", f"{name} of {x.name}", granularity, kernel, x, key.y, launch)


def block_launch(key: Any, form: Any, granularity: str, count: int, turn: int) -> Launch:
    rest, axis, _ = GRANULARITIES[granularity]
    shape = shape_of(count, rest)
    size = int(np.prod(shape))
    _, length, inner = block_shape(shape, axis, form.block)
    per_byte = 8 // key.y.bits if key.y.is_packed else 1
    scales_size = size // form.block if key.has_codes else 0

    def expected(x: np.ndarray) -> dict[str, np.ndarray]:
        y, scales = np.empty(size, key.y.storage), np.zeros(scales_size, np.uint8)
        BLOCK_TABLE[key].run(size, x.view(key.x.storage), y, scales, np.float32(1), form, BlockLoop(length, inner))
        results = {"y": packing.pack(y.view(key.y.dtype)) if key.y.is_packed else y.view(key.y.dtype)}
        return results | ({"scales": scales} if key.has_codes else {})

    fields = {"size": size, "tensor_scale": 0, "length": length, "inner": inner, **form._asdict()}
    units = block_device.count_units(size, length, inner, form.block, per_byte)
    outputs = {"y": bytes_of(size, key.y)} | ({"scales": scales_size} if key.has_codes else {"scales": 0})
    return Launch(size, units, fields, outputs, expected)


def region_cases() -> Iterator[Case]:
    named = [(name, *row) for name, row in REGIONS.items()]
    for name, text, shapes in [*named, *fake_quantizers()]:
        program = parse(text)
        kernel, launch = region_device.kernel(program), functools.partial(region_launch, program, shapes)
        is_measured = not name.startswith("fake") or name.endswith(ROUNDING_MODES[0])
        yield Case("region", name, "", kernel, FLOAT32, FLOAT32, launch, input="x0", is_measured=is_measured)


def region_launch(program: Any, shapes: list[Any], count: int, turn: int) -> Launch:
    rng, x_shape = np.random.default_rng(0), shape_of(count, shapes[0])
    others, units = [], int(np.prod(x_shape))
    for row, role, given in zip(program.inputs[1:], program.roles[1:], shapes[1:], strict=True):
        if not isinstance(given, tuple):
            values = np.asarray(given)
        elif role != OPERAND:  # scales and zero points
            values = np.abs(rng.standard_normal(given)) + 0.01
        else:
            values = rng.standard_normal(x_shape if given == shapes[0] else given, np.float32) * np.float32(30)
        others.append(values.astype(row.element_type.dtype))

    def expected(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"y": run_region(program, [x.reshape(x_shape), *others])}

    size, fields = units, region_fields(program, [np.empty(x_shape, np.float32), *others])
    for k, (row, other) in enumerate(zip(program.inputs[1:], others, strict=True), 1):
        fields[f"x{k}"] = packing.pack(other) if row.element_type.is_packed else other
    units = int(np.prod([fields[f"length{d}"] for d in range(GPU_LOOPS)]))
    return Launch(size, units, fields, {"y": 4 * size}, expected)


def run_region(program: Any, inputs: list[np.ndarray]) -> np.ndarray:
    """Return the result of a node of a session on the CPU, in one dimension. Numpy's steps may differ in the sign of zeros."""
    names = [f"x{k}" for k in range(len(inputs))]
    node = helper.make_node("Region", names, ["y"], domain=OWN_DOMAIN, program=program.text)
    given = {name: x for name, x in zip(names, inputs, strict=True) if x.dtype == np.float32}
    constants = [to_tensor_proto(x, name) for name, x in zip(names, inputs, strict=True) if name not in given]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in given.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, inputs[0].shape)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(OWN_DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "region", values, [y], constants), opset_imports=opsets, ir_version=10)
    options = session_options(0)
    quark_numba.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, given)[0].reshape(-1)


def region_fields(program: Any, inputs: list[np.ndarray]) -> dict[str, Any]:
    """Return the fields of a record, from numpy's strides, for a y of the shape of the first input."""
    y, dimensions = inputs[0], GPU_LOOPS
    shape = (1,) * (dimensions - y.ndim) + y.shape
    order, lengths, strided = [*range(dimensions)], [*shape], {}
    fields: dict[str, Any] = {"full": 0}
    if program.block_size:
        axis = dimensions + program.block_axis
        order.remove(axis)
        order.insert(BLOCK_LOOP, axis)
        fields["rows"], strided["_y"] = lengths[axis], y
        lengths[axis] = -(-lengths[axis] // program.block_size)
    for k, (x, role) in enumerate(zip(inputs, program.roles, strict=True)):
        if not program.inputs[k].is_scalar:
            strided[str(k)] = x if role == OPERAND else x.reshape(-1, *[1] * (-1 - role))
            fields["full"] |= (x.size == y.size) << k
    for name, x in strided.items():
        strides = [stride // x.itemsize for stride in np.broadcast_to(x, shape).strides]
        fields |= {f"stride{name}_{d}": strides[each] for d, each in enumerate(order)}
    return fields | {f"length{d}": lengths[each] for d, each in enumerate(order)}


CASES = {
    "linear": linear_cases,
    "block": block_cases,
    "region": region_cases,
}


def cases(families: tuple[str, ...] | list[str]) -> list[Case]:
    return [case for family in families for case in CASES[family]()]


def compile_one(families: list[str], number: int) -> str | None:
    """Write the PTX of a case, and the CPU's kernel of its results, to the cache. Return an error."""
    case = cases(families)[number]
    try:
        case.kernel.ptx  # noqa: B018
        launch = case.launch(_ENOUGH, 0)
        launch.expected(cpu_array(np.zeros(bytes_of(launch.size, case.x), np.uint8), case.x, launch.size))
    except Exception:
        return f"{case.label}: {traceback.format_exc(limit=-2)}"
    return None


def compile_all(families: list[str], processes: int) -> list[str]:
    """Fill the cache, by processes. Return the errors."""
    # Cases of one kernel have the same kernels on the CPU, too.
    numbers = {case.kernel.entry: number for number, case in reversed([*enumerate(cases(families))])}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_use_few_threads) as pool:
        errors = pool.map(functools.partial(compile_one, families), sorted(numbers.values()))
        return [error for error in errors if error]


def _use_few_threads() -> None:
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))  # more than one: both variants of kernels are compiled


def cpu_array(content: np.ndarray, element_type: ElementType, size: int) -> np.ndarray:
    """Return the elements of a tensor's bytes, in one dimension."""
    if element_type.is_packed:
        return packing.unpack(content, size, element_type.dtype)
    return content.view(element_type.dtype)


class Gpu:
    """Memory, launches and time on the first card. Tensors are of bytes."""

    def __init__(self) -> None:
        """Raise OSError or RuntimeError without a card."""
        try:
            import torch
        except ImportError as error:
            raise RuntimeError("PyTorch is not installed") from error
        self._cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        self._check(self._cuda.cuInit(0))
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no card")
        self._torch = torch
        torch.zeros(1, device="cuda")  # makes the context

    @property
    def description(self) -> str:
        version = ctypes.c_int()
        self._check(self._cuda.cuDriverGetVersion(ctypes.byref(version)))
        properties = self._torch.cuda.get_device_properties(0)
        card = (
            f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB, {properties.multi_processor_count} multiprocessors)"
        )
        driver = f"driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        try:
            with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
                driver += f" ({file.readline().split(':')[-1].strip()})"
        except OSError:
            pass
        return f"{card}, {driver}, torch {self._torch.__version__}"

    def load(self, kernel: DeviceKernel) -> Any:
        """Return the driver's handle of a kernel, which it has compiled for the card."""
        library, handle, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        none = (None, None, 0)
        self._check(self._cuda.cuLibraryLoadData(ctypes.byref(library), kernel.ptx.encode(), *none, *none))
        self._check(self._cuda.cuLibraryGetKernel(ctypes.byref(handle), library, kernel.entry.encode()))
        self._check(self._cuda.cuKernelGetFunction(ctypes.byref(function), handle))
        return handle

    def start(self, handle: Any, kernel: DeviceKernel, record: np.ndarray) -> None:
        """Start a launch on PyTorch's stream."""
        blocks = kernel.count_thread_blocks(int(record["units"]))
        parameters = (ctypes.c_void_p * 1)(record.ctypes.data)
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        if blocks:
            self._check(self._cuda.cuLaunchKernel(handle, blocks, 1, 1, kernel.threads, 1, 1, 0, stream, parameters, None))

    def finish(self) -> None:
        self._torch.cuda.synchronize()

    def random(self, element_type: ElementType, size: int, seed: int) -> Any:
        """Return elements: half normal numbers times 30 if they are floats, the others any bits."""
        torch, count = self._torch, bytes_of(size, element_type)
        generator = torch.Generator("cuda").manual_seed(seed)
        words = torch.randint(-(2**31), 2**31, (-(-count // 4),), generator=generator, device="cuda", dtype=torch.int64)
        content = words.to(torch.int32).view(torch.uint8)[:count]
        dtypes = {FLOAT32: torch.float32, FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}
        if element_type in dtypes:
            half = content[: count // 2 // VECTOR * VECTOR].view(dtypes[element_type])
            half.copy_(torch.randn(half.shape, generator=generator, device="cuda") * 30)
        elif element_type.bits < 8 and not element_type.is_packed:
            content &= 2**element_type.bits - 1
        return content

    def put(self, array: np.ndarray) -> Any:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._torch.from_numpy(content).cuda()

    def empty(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.uint8, device="cuda")

    def get(self, tensor: Any) -> np.ndarray:
        return tensor.cpu().numpy()

    def address(self, tensor: Any) -> int:
        return tensor.data_ptr()

    def different(self, made: Any, expected: np.ndarray, itemsize: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the places where elements differ, and the bytes of both there."""
        torch = self._torch
        wanted, integer = self.put(expected), {1: torch.uint8, 2: torch.int16, 4: torch.int32}[itemsize]
        places = (made.view(integer) != wanted.view(integer)).nonzero().reshape(-1)
        here = (self.get(each.view(integer)[places].view(torch.uint8)) for each in (made, wanted))
        return self.get(places), *here

    def milliseconds(self, *runs: Callable[[], None]) -> list[float]:
        """Return the median time of each run, in turns."""
        times: list[list[float]] = [[] for _ in runs]
        for run in runs:
            run()
        for _ in range(ROUNDS):
            events = []
            for run in runs:
                before, after = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
                before.record()
                run()
                after.record()
                events.append((before, after))
            self.finish()
            for each, (before, after) in zip(times, events, strict=True):
                each.append(before.elapsed_time(after))
        return [median(each) for each in times]

    def copy(self, count: int) -> Callable[[], None]:
        """Return a run that copies so many bytes within the memory of the card."""
        source, target = self.empty(count).zero_(), self.empty(count)
        return lambda: target.copy_(source)

    def peers(self, count: int) -> Iterator[tuple[str, Callable[[], object], int]]:
        """Yield what PyTorch has for round trips: the name, a run on `count` elements, and the bytes read and written."""
        torch, x = self._torch, self._torch.randn(count, device="cuda")
        yield "fake_quantize_per_tensor_affine", lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127), 8 * count
        yield "to(bfloat16).to(float32)", lambda: x.to(torch.bfloat16).to(torch.float32), 8 * count

    def _check(self, code: int) -> None:
        if code:
            name = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(name))
            raise RuntimeError(f"CUDA's driver: {(name.value or b'').decode()} ({code})")


class Launched(NamedTuple):
    """A launch on the GPU, and the tensors that its record has the addresses of."""

    launch: Launch
    record: np.ndarray
    tensors: dict[str, Any]
    moved: int  # the bytes that are read and written


def prepared(gpu: Any, case: Case, launch: Launch, x: Any) -> Launched:
    """Return a launch with its record filled."""
    arrays = {name: value for name, value in launch.fields.items() if isinstance(value, np.ndarray)}
    tensors = {case.input: x, **{name: gpu.put(array) for name, array in arrays.items()}}
    tensors |= {name: gpu.empty(count) for name, count in launch.outputs.items()}
    addresses = {name: gpu.address(tensor) for name, tensor in tensors.items()}
    record = np.zeros((), case.kernel.work)
    for name, value in (launch.fields | addresses | {"units": launch.units}).items():
        record[name] = value
    record["is_aligned"] = all(address % VECTOR == 0 for address in addresses.values())
    moved = bytes_of(launch.size, case.x) + sum(array.nbytes for array in arrays.values()) + sum(launch.outputs.values())
    return Launched(launch, record, tensors, moved)


def count_different(gpu: Any, case: Case, handle: Any, launched: Launched, x: np.ndarray) -> int:
    """Run a launch. Return how many elements of its results differ from those of the CPU; of packed ones, how many bytes."""
    for name in launched.launch.outputs:
        launched.tensors[name][:] = 0xA5
    gpu.start(handle, case.kernel, launched.record)
    gpu.finish()
    count = 0
    for name, expected in launched.launch.expected(x).items():
        places, made, wanted = gpu.different(launched.tensors[name], expected, expected.itemsize)
        if places.size and name == "y" and not case.y.is_integer and expected.dtype == case.y.dtype:
            with np.errstate(all="ignore"):
                nan = [np.isnan(each.view(case.y.dtype).astype(np.float32)) for each in (made, wanted)]
            count += places.size - int((nan[0] & nan[1]).sum())
        else:
            count += places.size
    return count


def check_bits(gpu: Any, case: Case, handle: Any, elements: int, most: int, inputs: dict[Any, Any]) -> tuple[int, int]:
    """Return how many elements differ, of how many. `inputs` are kept between cases."""
    different = total = 0
    for first in range(0, elements, most):
        for turn in range(case.turns):
            launch = case.launch(min(most, elements - first), turn)
            place = (case.x, launch.size, first)
            if place not in inputs:
                if first or len(inputs) > 4:
                    inputs.clear()
                tensor = gpu.random(case.x, launch.size, first)
                inputs[place] = tensor, cpu_array(gpu.get(tensor), case.x, launch.size)
            tensor, x = inputs[place]
            different += count_different(gpu, case, handle, prepared(gpu, case, launch, tensor), x)
            total += launch.size
    return different, total


@dataclass(frozen=True)
class Bandwidth:
    """Bytes that are read and written per second: by a kernel, and by a copy in turns with it."""

    own: float
    copy: float

    @classmethod
    def of(cls, gpu: Any, run: Callable[[], object], moved: int, copy: Callable[[], None], copied: int) -> "Bandwidth":
        """Measure a run that reads and writes `moved` bytes, and a copy of `copied` bytes."""
        own_ms, copy_ms = gpu.milliseconds(run, copy)
        return cls(1000 * moved / own_ms, 1000 * 2 * copied / copy_ms)

    @property
    def cells(self) -> list[str]:
        return [f"{digits(self.own / 1e12)} TB/s", digits(self.own / self.copy)]


def measure(gpu: Any, case: Case, handle: Any, elements: int, copy: Callable[[], None], copied: int) -> Bandwidth:
    launch = case.launch(elements, 0)
    launched = prepared(gpu, case, launch, gpu.random(case.x, launch.size, 0))
    return Bandwidth.of(gpu, lambda: gpu.start(handle, case.kernel, launched.record), launched.moved, copy, copied)


class Report:
    """Rows that are printed as they come, and errors."""

    def __init__(self) -> None:
        self.has_failed = False

    def row(self, *columns: str) -> None:
        print("  ".join(columns), flush=True)

    def tried(self, case: Case, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a function's result; None if it fails, which is printed."""
        try:
            return function(*arguments)
        except Exception:
            self.failed(f"{case.label}: {traceback.format_exc(limit=-3)}")
            return None

    def failed(self, text: str) -> None:
        self.has_failed = True
        self.row("FAILED", text)


def within(of_part: list[Case], seconds: float, report: Report) -> Iterator[Case]:
    """Yield the cases of a part until its time is over."""
    stop = perf_counter() + seconds
    for number, case in enumerate(of_part):
        if perf_counter() > stop:
            report.row(f"after {seconds:.0f} s: {len(of_part) - number} of {len(of_part)} are left out")
            return
        yield case


def compile_cases(given: argparse.Namespace, report: Report) -> list[Case]:
    """Compile the kernels of the chosen families to PTX. Return their cases."""
    begin = perf_counter()
    for error in compile_all(given.only, given.processes):
        report.failed(error)
    compiled = cases(given.only)
    report.row(f"{len({case.kernel.entry for case in compiled})} kernels compiled to PTX: {perf_counter() - begin:.1f} s")
    return compiled


@dataclass(frozen=True)
class Loaded:
    """A kernel in the driver: its handle, None if that failed, and the time that the driver took to compile it."""

    handle: Any
    milliseconds: float


def load_kernels(gpu: Any, compiled: list[Case], report: Report) -> dict[str, Loaded]:
    """Return the kernels of the cases by their entries."""
    loaded: dict[str, Loaded] = {}
    for case in compiled:
        if case.kernel.entry not in loaded:
            begin = perf_counter()
            handle = report.tried(case, gpu.load, case.kernel)
            loaded[case.kernel.entry] = Loaded(handle, 1000 * (perf_counter() - begin))
    return loaded


@dataclass
class Checked:
    """How many cases of a family were checked, how many results they have, and how many of these differ."""

    cases: int = 0
    results: int = 0
    different: int = 0


def check_cases(
    gpu: Any, chosen: list[Case], loaded: dict[str, Loaded], given: argparse.Namespace, report: Report
) -> dict[str, Checked]:
    """Return what was checked of each family."""
    inputs: dict[Any, Any] = {}
    checked: dict[str, Checked] = {}
    for case in within(chosen, given.seconds, report):
        begin = perf_counter()
        handle = loaded[case.kernel.entry].handle
        result = report.tried(case, check_bits, gpu, case, handle, given.elements, given.slice, inputs)
        if result is None:
            continue
        different, total = result
        report.row("bits", f"{different} of {total} differ", f"{perf_counter() - begin:.1f} s", case.label)
        report.has_failed |= different > 0
        of_family = checked.setdefault(case.family, Checked())
        of_family.cases += 1
        of_family.results += total
        of_family.different += different
    return checked


def bits_table(checked: dict[str, Checked]) -> Iterator[str]:
    rows = [[family, str(each.cases), str(each.results), str(each.different)] for family, each in checked.items()]
    yield from table(["family", "kernels and granularities", "results", "results with other bits than the CPU's"], rows)


@dataclass(frozen=True)
class Measured:
    """The bandwidth of a kernel, or of a function of PyTorch, which the driver does not compile."""

    name: str
    granularity: str
    bandwidth: Bandwidth
    driver_milliseconds: float | None = None


def measure_cases(
    gpu: Any, chosen: list[Case], loaded: dict[str, Loaded], given: argparse.Namespace, report: Report
) -> list[Measured]:
    """Return the bandwidths of the cases and of what PyTorch has."""
    copied = 4 * given.most
    copy, measured = gpu.copy(copied), []
    for case in within([case for case in chosen if case.is_measured], given.seconds, report):
        kernel = loaded[case.kernel.entry]
        bandwidth = report.tried(case, measure, gpu, case, kernel.handle, given.most, copy, copied)
        if bandwidth is not None:
            measured.append(Measured(case.name, case.granularity, bandwidth, kernel.milliseconds))
            report.row("bandwidth", *bandwidth.cells, case.label)
    for name, peer, moved in gpu.peers(given.most):
        bandwidth = Bandwidth.of(gpu, peer, moved, copy, copied)
        measured.append(Measured(f"PyTorch's {name}", PER_TENSOR, bandwidth))
        report.row("bandwidth", *bandwidth.cells, measured[-1].name)
    return measured


def bandwidth_table(measured: list[Measured]) -> Iterator[str]:
    rows = []
    for each in measured:
        driver = "" if each.driver_milliseconds is None else f"{digits(each.driver_milliseconds)} ms"
        rows.append([each.name, each.granularity, *each.bandwidth.cells, driver])
    header = ["kernel", "scales or blocks along", "bandwidth (more is better)", "of a copy's", "compiled by the driver"]
    yield from table(header, rows)


def run(gpu: Any, given: argparse.Namespace, report: Report) -> list[str]:
    """Run all parts. Return the lines of the tables."""
    compiled = compile_cases(given, report)
    loaded = load_kernels(gpu, compiled, report)
    chosen = [case for case in compiled if loaded[case.kernel.entry].handle is not None]
    times = [each.milliseconds for each in loaded.values()]
    of_driver = (
        f"The driver takes {digits(median(times))} ms for a kernel (median of {len(times)}; at most {digits(max(times))} ms)."
    )
    report.row(of_driver)
    versions = f"quark_numba {quark_numba.__version__}, Python {platform.python_version()}"
    lines = [f"{gpu.description}; {versions}, {date.today()}.", of_driver, ""]
    if given.bits:
        lines += bits_table(check_cases(gpu, chosen, loaded, given, report))
    if given.bandwidth:
        lines.append(
            f"{given.most} elements. Bytes read and written per second, and over those of a copy in turns with the kernel:"
        )
        lines += ["", *bandwidth_table(measure_cases(gpu, chosen, loaded, given, report))]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES], help="families")
    parser.add_argument("--bits", action="store_true", help="only this part, unless --bandwidth is given, too")
    parser.add_argument("--bandwidth", action="store_true", help="only this part, unless --bits is given, too")
    # Not a multiple of a vector's elements.
    parser.add_argument("--elements", type=int, default=(1 << 26) - 3, help="random elements of a kernel, for each scale")
    parser.add_argument("--slice", type=int, default=1 << 26, help="how many of them are in memory at once")
    parser.add_argument("--most", type=int, default=1 << 28, help="elements of measurements")
    parser.add_argument("--seconds", type=float, default=240, help="the time of each part, after which it ends")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that compile")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    given = parser.parse_args()
    given.bits, given.bandwidth = (given.bits, given.bandwidth) if given.bits or given.bandwidth else (True, True)
    try:
        gpu = Gpu()
    except (OSError, RuntimeError) as error:
        print(f"no GPU to run on: {error}", file=sys.stderr)
        return NO_GPU
    report = Report()
    lines = run(gpu, given, report)
    print("\n".join(["", *lines]))
    if given.write:
        write_part("kernels for GPUs", lines, "gpu_kernels")
    return int(report.has_failed)


if __name__ == "__main__":
    sys.exit(main())
