"""The native way into ONNX Runtime: OrtCustomOp structures whose functions are compiled kernels."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import dispatch, element_types
from ..block_formats import BLOCK_FAULTS, BLOCK_OPERATORS, BLOCK_TABLE, X_TYPES, BlockOperator
from ..dispatch import TABLE
from ..element_types import FLOAT32, FLOAT64, INT32, UINT8, ElementType
from ..granularity import FAULTS
from ..lock import creation_lock
from ..operators import DEFAULTS, INPUT_NAMES, OPERATOR_VERSIONS, OperatorVersion, newest_versions
from . import c_api
from .c_api import OrtApi, OrtCustomOp
from .shared_library import MACHINES, shared_library

# The entry of a session's configuration that says which backend has registered: ONNX Runtime refuses a domain that comes
# twice when it creates the session, in words that help nobody.
REGISTERED = "quark_numba.backend"

# The entry that asks for ONNX's own operators as well; it must be there before the library is registered.
STANDARD_OPS = "quark_numba.standard_ops"

DOMAINS = tuple(dict.fromkeys(version.domain for version in OPERATOR_VERSIONS if version.domain))

# ONNX Runtime keeps pointers into these for as long as any session lives: they are never dropped.
_overloads: dict[int, _Overload] = {}
_kept: list[Any] = []


class NotAvailableError(RuntimeError):
    """The native way does not work in this process; the message says why."""


def get_library_path() -> str:
    """The path of a custom-operator library for ``SessionOptions.register_custom_ops_library``.

    The library leads into this process and lives as long as it does: the path means nothing to another process, and must
    be asked for again after a fork that is followed by an exec.

    Raises
    ------
    RuntimeError
        Where the native way is not available (it needs Linux on x86-64 or AArch64, and a way to load the library).
    """
    with creation_lock:
        path, reason = _library()
    if path is None:
        raise NotAvailableError(reason)
    return path


@functools.cache
def _library() -> tuple[str | None, str]:
    """The library's path, or None and the reason; whichever it is stays so."""
    machine = MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        return None, f"it needs Linux on {' or '.join(MACHINES)}, this is {sys.platform} on {platform.machine()}"
    from ..jit import JIT_ENABLED

    if not JIT_ENABLED:
        return None, "NUMBA_DISABLE_JIT is set"
    address = ctypes.cast(_register_custom_ops, c_void_p).value
    assert address is not None
    library = shared_library("RegisterCustomOps", address, machine)
    reasons = []
    for load in (_load_memory_file, _load_temporary_file):
        try:
            return load(library), ""
        except OSError as error:
            reasons.append(str(error))
    return None, f"the library cannot be loaded: {'; '.join(reasons)}"


def _load_memory_file(content: bytes) -> str:
    descriptor = os.memfd_create("quark_numba", os.MFD_CLOEXEC)  # stays open: the path goes through it
    try:
        os.write(descriptor, content)
        path = f"/proc/self/fd/{descriptor}"
        ctypes.CDLL(path)
    except OSError:
        os.close(descriptor)
        raise
    return path


def _load_temporary_file(content: bytes) -> str:
    with tempfile.NamedTemporaryFile(prefix="quark_numba_", suffix=".so", delete=False) as file:  # mode 0600
        file.write(content)
    try:
        ctypes.CDLL(file.name)
    except OSError:
        os.remove(file.name)
        raise
    atexit.register(_remove, file.name, os.getpid())
    return file.name


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.remove(path)


@c_api.RegisterCustomOps
def _register_custom_ops(options: int, api_base: Any) -> int | None:
    """Add our domains to an OrtSessionOptions."""
    base = api_base.contents
    api = base.GetApi(c_api.API_VERSION)
    if not api:
        release = base.GetVersionString().decode()
        message = f"quark_numba needs ONNX Runtime {c_api.FIRST_RELEASE} or later; this is {release}"
        return c_api.create_status(base.GetApi(1), c_api.ORT_FAIL, message)

    release = tuple(map(int, base.GetVersionString().decode().split(".")[:2]))

    def add() -> None:
        has_entry = c_api.function(api, OrtApi.HasSessionConfigEntry, c_void_p, c_void_p, c_char_p, POINTER(c_int))
        add_entry = c_api.function(api, OrtApi.AddSessionConfigEntry, c_void_p, c_void_p, c_char_p, c_char_p)
        add_domain = c_api.function(api, OrtApi.AddCustomOpDomain, c_void_p, c_void_p, c_void_p)

        def has(entry: str) -> bool:
            found = c_int()
            c_api.check(api, has_entry(options, entry.encode(), ctypes.byref(found)))
            return bool(found)

        if has(REGISTERED):
            return
        domains = DOMAINS + (("",) if has(STANDARD_OPS) else ())
        with creation_lock:
            for domain in domains:
                c_api.check(api, add_domain(options, _domain(api, release, domain)))
        c_api.check(api, add_entry(options, REGISTERED.encode(), b"native"))

    return _status(api, add)


def _status(api: int, action: Callable[[], None]) -> int | None:
    """Do it; an exception, which must not get out into C, becomes an OrtStatus."""
    try:
        action()
    except BaseException as error:
        return c_api.create_status(api, c_api.ORT_FAIL, f"quark_numba: {type(error).__name__}: {error}")
    return None


@functools.cache
def _domain(api: int, release: tuple[int, ...], domain: str) -> c_void_p:
    """An OrtCustomOpDomain, with one OrtCustomOp an overload. Typed overloads let ONNX Runtime check types when it loads a
    model, and infer the output type where a model does not state it: it is that of the first overload that fits. Hence
    the types of a dequantized y that are the scale's come first, as they stand for a missing output_dtype, and uint8 is the
    first among the types of a quantized y."""
    create_domain = c_api.function(api, OrtApi.CreateCustomOpDomain, c_void_p, c_char_p, POINTER(c_void_p))
    add_operator = c_api.function(api, OrtApi.CustomOpDomain_Add, c_void_p, c_void_p, c_void_p)
    result = c_void_p()
    c_api.check(api, create_domain(domain.encode(), ctypes.byref(result)))
    overloads = []
    for version in newest_versions(domain):
        operands = product(*([row for row in rows if has_tensors(row)] for rows in (version.x, version.scale, version.y)))
        via = [row for row in version.via if has_tensors(row, release)]
        for x, scale, y in sorted(operands, key=lambda rows: rows[2] is not rows[1]):
            for quantized in via or [y if version.operation == "quantize" else x]:
                overloads.append(_Overload(api, release, version, (x, scale, quantized), y))
    for operator in BLOCK_OPERATORS:
        if operator.domain == domain:
            overloads += [_Overload(api, release, operator, (x,), x) for x in X_TYPES]
    for overload in overloads:
        c_api.check(api, add_operator(result, ctypes.byref(_custom_op(overload))))
    return result


def has_tensors(row: ElementType, release: tuple[int, ...] = c_api.STANDARD_OPS_RELEASE) -> bool:
    """Whether ONNX Runtime has tensors of the type; before that release, as far as all have that the package runs with."""
    return row.bits != 6 and (release >= c_api.STANDARD_OPS_RELEASE or row.number <= c_api.LAST_OLD_TYPE)


class _Overload(NamedTuple):
    """An operator with these types of inputs, of which the third is optional, and of y."""

    api: int
    release: tuple[int, ...]
    operator: OperatorVersion | BlockOperator
    inputs: tuple[ElementType, ...]
    y: ElementType


def _custom_op(overload: _Overload) -> OrtCustomOp:
    from . import compute

    custom_op = OrtCustomOp.from_buffer_copy(_prototype())
    if isinstance(overload.operator, BlockOperator):
        custom_op.KernelComputeV2 = compute.compute_blocks_function().address
    elif not overload.operator.domain:
        custom_op.InferOutputShapeFn = _infer_output
    _overloads[ctypes.addressof(custom_op)] = overload
    _kept.append(custom_op)
    return custom_op


@functools.cache
def _prototype() -> OrtCustomOp:
    """What all operators share: each function is given the address of the structure that it is to speak of."""
    from . import compute

    functions: dict[str, Callable[..., Any]] = {
        "GetName": lambda op: ctypes.addressof(_name(_overloads[op].operator.name)),
        "GetExecutionProviderType": lambda op: None,  # the CPU's
        "GetInputType": lambda op, index: c_api.element_type(_overloads[op].inputs[index]),
        "GetInputTypeCount": lambda op: len(_overloads[op].inputs),
        "GetOutputType": lambda op, index: c_api.element_type(_overloads[op].y),
        "GetOutputTypeCount": lambda op: 1,
        "GetInputCharacteristic": lambda op, index: c_api.REQUIRED if _is_required(_overloads[op], index) else c_api.OPTIONAL,
        "GetOutputCharacteristic": lambda op, index: c_api.REQUIRED,
        "GetInputMemoryType": lambda op, index: 0,
        "CreateKernelV2": _create_kernel,
    }
    prototype = OrtCustomOp(
        version=c_api.API_VERSION,
        KernelComputeV2=compute.compute_function().address,
        KernelDestroy=compute.destroy_function().address,
    )
    for field, function in functions.items():
        setattr(prototype, field, type(getattr(prototype, field))(function))
    _kept.append(prototype)
    return prototype


def _is_required(overload: _Overload, index: int) -> bool:
    return index < 2 or bool(isinstance(overload.operator, OperatorVersion) and overload.operator.via)


@functools.cache
def _name(name: str) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(name.encode())


def _create_kernel(op: int, api: int, info: int, result: Any) -> int | None:
    """OrtCustomOp::CreateKernelV2: compile what the node needs, now and not in its first run."""

    def create() -> None:
        overload = _overloads[op]
        operator = overload.operator
        defaults = operator.defaults if isinstance(operator, BlockOperator) else {a: DEFAULTS[a] for a in operator.attributes}
        make_state = _block_state if isinstance(operator, BlockOperator) else _state
        attributes = {name: c_api.attribute(api, info, name, default) for name, default in defaults.items()}
        with creation_lock:
            result[0] = make_state(overload, **attributes).ctypes.data

    return _status(api, create)


@functools.cache
def _state(
    overload: _Overload,
    axis: int,
    block_size: int = 0,
    saturate: int = 1,
    precision: int = 0,
    output_dtype: int = 0,
) -> NDArray[np.int64]:
    """The state of every node that is like this; few are different, so that none needs to be freed."""
    version, y = overload.operator, overload.y
    x, scale, quantized = overload.inputs
    assert isinstance(version, OperatorVersion)
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}; expected a positive integer, or 0")
    if output_dtype not in (0, y.number):
        raise ValueError(f"output_dtype is {output_dtype}, and y is {y.name}, {y.number}")
    rows = {0: None} | {row.number: row for row in dispatch.PRECISIONS if scale is not INT32 or row is FLOAT64}
    if precision not in rows:
        expected = " or ".join(f"{number} ({row.name})" if row else "0" for number, row in rows.items())
        raise ValueError(f"precision is {precision}; expected {expected} for a scale of {scale.name}")
    via = quantized if version.via else None
    key = dispatch.key(version.operation, x, scale, y, saturate=saturate != 0, precision=rows[precision], via=via)
    from . import compute

    state = _common_state(overload, compute.STATE_WORDS, axis, block_size, TABLE[key].task)
    state[compute.STATE_SCALE] = _widening(scale, np.dtype(key.scale_dtype)).ctypes.data
    state[compute.STATE_ZERO_POINT] = _widening(key.quantized, np.dtype(key.zero_point_dtype)).ctypes.data
    return state


@functools.cache
def _block_state(overload: _Overload, axis: int, block_size: int, **attributes: Any) -> NDArray[np.int64]:
    """The same for a block format."""
    assert isinstance(overload.operator, BlockOperator)
    key, blocks = overload.operator.make_format(overload.y, block_size=block_size, **attributes)
    from . import compute

    task = BLOCK_TABLE[key].task
    state = _common_state(overload, compute.BLOCK_STATE_WORDS, axis, block_size, task)
    state[compute.STATE_WORDS :] = blocks
    return state


def _common_state(overload: _Overload, words: int, axis: int, block_size: int, task: Any) -> NDArray[np.int64]:
    from . import compute

    state = np.zeros(words, np.int64)
    state[compute.STATE_API] = overload.api
    state[compute.STATE_HAS_SHAPE_REFERENCE] = overload.release >= c_api.SHAPE_REFERENCE_RELEASE
    state[compute.STATE_AXIS] = axis
    state[compute.STATE_BLOCK_SIZE] = block_size
    state[compute.STATE_TASK] = task.address
    state[compute.STATE_MESSAGES] = _messages(overload.operator).ctypes.data
    return state


@c_api.InferOutputShape
def _infer_output(op: int, context: int) -> int | None:
    """OrtCustomOp::InferOutputShapeFn of ONNX's own operators: y has the shape of x and, if there is one, the type of the
    attribute output_dtype, which ONNX Runtime's choice among the overloads leaves out of account."""
    overload = _overloads[op]
    api = overload.api
    set_type = c_api.function(api, OrtApi.SetTensorElementType, c_void_p, c_void_p, c_int)
    set_output = c_api.function(api, OrtApi.ShapeInferContext_SetOutputTypeShape, c_void_p, c_void_p, c_size_t, c_void_p)
    # ONNX Runtime does not look at what comes back: what it infers itself has to do where this fails.
    with contextlib.suppress(c_api.StatusError):
        row = element_types.find(c_api.inference_attribute(api, context, "output_dtype", DEFAULTS["output_dtype"]))
        if row:
            number = c_api.element_type(row)
        elif isinstance(overload.operator, OperatorVersion) and overload.operator.operation == "quantize":
            number = c_api.inference_input(api, context, 2)[1] or UINT8.number
        else:
            number = c_api.inference_input(api, context, 1)[1]
        x, _ = c_api.inference_input(api, context, 0)
        if x and c_api.has_shape(api, x):  # there is no setting the type alone, or a shape that is partly unknown
            c_api.check(api, set_type(x, number))
            c_api.check(api, set_output(context, 0, x))
    return None


@functools.cache
def _widening(row: ElementType, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    """How elements of a type become numbers of a dtype that holds all their values; for ``compute``."""
    from . import compute

    widening = np.zeros(compute.WIDENING_WORDS, np.int64)
    widening[compute.WIDENING_ITEMSIZE] = dtype.itemsize
    widening[compute.WIDENING_BITS] = row.bits if row.is_packed else 8 * row.storage.itemsize
    if row.dtype == dtype:
        widening[compute.WIDENING_KIND] = compute.AS_IT_IS
    elif row is FLOAT32:
        widening[compute.WIDENING_KIND] = compute.FROM_FLOAT32
    elif row.bits == 32:
        widening[compute.WIDENING_KIND] = compute.FROM_INT32 if row.is_signed else compute.FROM_UINT32
    else:
        widening[compute.WIDENING_KIND] = compute.BY_TABLE
        table = np.resize(row.code_values, 1 << widening[compute.WIDENING_BITS])
        _kept.append(table)
        widening[compute.WIDENING_TABLE] = table.ctypes.data
    return widening


@functools.cache
def _messages(operator: OperatorVersion | BlockOperator) -> NDArray[np.int64]:
    """For each fault the address and the length of its message, with marks for what the run will know."""
    from . import compute

    if isinstance(operator, BlockOperator):
        faults, (x, scale, zero_point) = BLOCK_FAULTS, ("x", "", "")
    else:
        faults, (x, scale, zero_point) = FAULTS, INPUT_NAMES[operator.operation]
    messages = np.zeros(2 * (max(faults) + 1), np.int64)
    for fault, template in faults.items():
        message = template.format(
            x=x,
            scale=scale,
            zero_point=zero_point,
            x_shape=chr(compute.MARK_X_SHAPE),
            scale_shape=chr(compute.MARK_SCALE_SHAPE),
            zero_point_shape=chr(compute.MARK_ZERO_POINT_SHAPE),
            axis=chr(compute.MARK_AXIS),
            block_size=chr(compute.MARK_BLOCK_SIZE),
        )
        text = np.frombuffer(f"{operator.full_name}: {message}".encode(), np.uint8)
        _kept.append(text)
        messages[2 * fault : 2 * fault + 2] = text.ctypes.data, text.size
    return messages
