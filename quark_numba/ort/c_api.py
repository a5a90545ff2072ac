"""The parts of ONNX Runtime's C API that custom operators need (onnxruntime_c_api.h): its version, the oldest release of ONNX
Runtime, and the releases that newer parts need."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_char_p, c_float, c_int, c_int64, c_size_t, c_ubyte, c_uint32, c_void_p, create_string_buffer
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..compiling.lifetimes import keep_alive

if TYPE_CHECKING:
    from ..declaration import Attribute, Kind
    from ..element_types import ElementType

# The API version of the oldest release that the project supports. Later releases support this version too: the table of
# functions only ever grows.
API_VERSION = 20
FIRST_RELEASE = "1.20"

# The version of ONNX Runtime's OrtCustomOp whose fields the structure below has.
CUSTOM_OP_VERSION = 17


class OrtApi(IntEnum):
    """Indices into the table of functions."""

    CreateStatus = 0
    GetErrorMessage = 2
    CreateCustomOpDomain = 26
    CustomOpDomain_Add = 27
    AddCustomOpDomain = 28
    GetTensorMutableData = 51
    CastTypeInfoToTensorInfo = 55
    CreateTensorTypeAndShapeInfo = 57
    SetTensorElementType = 58
    SetDimensions = 59
    GetTensorElementType = 60
    GetDimensionsCount = 61
    GetDimensions = 62
    GetSymbolicDimensions = 63
    GetTensorShapeElementCount = 64
    GetTensorTypeAndShape = 65
    KernelInfoGetAttribute_float = 85
    KernelInfoGetAttribute_int64 = 86
    KernelInfoGetAttribute_string = 87
    KernelContext_GetInputCount = 88
    KernelContext_GetInput = 90
    KernelContext_GetOutput = 91
    ReleaseStatus = 93
    ReleaseTypeInfo = 98
    ReleaseTensorTypeAndShapeInfo = 99
    ReleaseCustomOpDomain = 101
    AddSessionConfigEntry = 130
    KernelInfoGetAttributeArray_float = 162
    KernelInfoGetAttributeArray_int64 = 163
    KernelContext_GetGPUComputeStream = 193
    KernelInfo_GetInputCount = 230
    KernelInfo_GetInputTypeInfo = 234
    KernelInfo_GetOutputTypeInfo = 235
    HasSessionConfigEntry = 237
    KernelInfo_GetNodeName = 244
    KernelInfoGetConstantInput_tensor = 249
    ShapeInferContext_GetInputTypeShape = 268
    ShapeInferContext_GetAttribute = 269
    ShapeInferContext_SetOutputTypeShape = 270
    SetSymbolicDimensions = 271
    ReadOpAttr = 272
    KernelContext_ParallelFor = 274
    GetTensorElementTypeAndShapeDataReference = 414  # from SHAPE_REFERENCE_RELEASE on


SHAPE_REFERENCE_RELEASE = (1, 24)

# The table, as compiled functions read it (``compiling.intrinsics.record_at``): an int64 for the address of each function.
_OFFSETS = [8 * index for index in OrtApi]
API = np.dtype({"names": [*OrtApi.__members__], "formats": [np.int64] * len(OrtApi), "offsets": _OFFSETS})

# OrtErrorCode
ORT_FAIL = 1
ORT_INVALID_ARGUMENT = 2

# OrtOpAttrType
ORT_OP_ATTR_INT = 1

# OrtCustomOpInputOutputCharacteristic
REQUIRED, OPTIONAL, VARIADIC = 0, 1, 2

# The ONNXTensorElementDataType of an input or output that may have any type: UNDEFINED.
ANY_TYPE = 0

# The first release in which a custom operator in ONNX's own domain replaces the operator of ONNX Runtime.
FLOAT_QDQ_RELEASE = (1, 31)


def has_shape_reference(release: tuple[int, ...]) -> bool:
    """Return whether the table of a release has the function GetTensorElementTypeAndShapeDataReference."""
    return release >= SHAPE_REFERENCE_RELEASE


def type_number(element_type: ElementType) -> int:
    """Return the ONNXTensorElementDataType of an element type."""
    return element_type.number if element_type.ort_number is None else element_type.ort_number


GetApi = CFUNCTYPE(c_void_p, c_uint32)
GetVersionString = CFUNCTYPE(c_char_p)


class OrtApiBase(ctypes.Structure):
    _fields_ = [("GetApi", GetApi), ("GetVersionString", GetVersionString)]


CUSTOM_OP_FUNCTIONS = """
    CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount GetOutputType GetOutputTypeCount KernelCompute
    KernelDestroy GetInputCharacteristic GetOutputCharacteristic GetInputMemoryType GetVariadicInputMinArity
    GetVariadicInputHomogeneity GetVariadicOutputMinArity GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2
    InferOutputShapeFn GetStartVersion GetEndVersion GetMayInplace ReleaseMayInplace GetAliasMap ReleaseAliasMap
""".split()  # noqa: SIM905


class OrtCustomOp(ctypes.Structure):
    """struct OrtCustomOp of API version 17: the table of an operator's functions, which get the table's address. Fields of this
    package follow the table; its functions read them (``callbacks``)."""

    _fields_ = [
        ("version", c_uint32),
        *((name, c_void_p) for name in CUSTOM_OP_FUNCTIONS),
        ("name", c_void_p),
        ("provider", c_void_p),  # 0 for the CPU provider
        ("input_count", c_int64),
        ("output_count", c_int64),
        ("is_homogeneous", c_int64),  # of a variadic input
        ("input_types", c_void_p),  # an array of int64, like the next three
        ("output_types", c_void_p),
        ("input_characteristics", c_void_p),
        ("output_characteristics", c_void_p),
        ("python", c_void_p),  # a record python_record.PYTHON
    ]


class Description(NamedTuple):
    """An overload of an operator, as plain data: what ONNX Runtime is told about the overload, and what is needed to create its
    kernels."""

    domain: str
    name: str
    number: int  # the number of the overload among the operator's overloads
    is_homogeneous: bool  # of a variadic input
    infers: bool  # whether it infers types and shapes of outputs whose types ONNX Runtime does not know by itself
    is_checked: bool  # whether types and shapes of inputs are checked when a kernel is created
    attributes: list[tuple[str, Kind, Any]]  # the name, the kind and the default, None if it is required
    input_types: list[int]  # ONNXTensorElementDataType
    output_types: list[int]
    input_characteristics: list[int]
    output_characteristics: list[int]
    runs_on_gpus: bool


@functools.cache
def words_at(values: tuple[int, ...]) -> int:
    """Return the address of an array of int64."""
    return ctypes.addressof(keep_alive((c_int64 * len(values))(*values)))


@functools.cache
def text_at(text: bytes) -> int:
    """Return the address of a text that ends in a zero byte."""
    return ctypes.addressof(keep_alive(create_string_buffer(text)))


@functools.cache
def texts_at(texts: tuple[bytes, ...]) -> int:
    """Return the address of an array with the address and the length of each text."""
    return words_at(tuple(word for text in texts for word in (text_at(text), len(text))))


def function(api: int, index: OrtApi, result: Any, count: int) -> Any:
    """Return the function at `index` of the table at address `api`, which takes `count` words: integers, bytes or pointers."""
    return CFUNCTYPE(result, *[c_void_p] * count)(c_void_p.from_address(api + index * ctypes.sizeof(c_void_p)).value or 0)


class StatusError(Exception):
    """An OrtStatus that is an error."""


def call(api: int, index: OrtApi, *arguments: Any) -> None:
    """Call a function of the table. Raise StatusError if it returns an error."""
    status = function(api, index, c_void_p, len(arguments))(*arguments)
    if status:
        message = function(api, OrtApi.GetErrorMessage, c_char_p, 1)(status).decode()
        function(api, OrtApi.ReleaseStatus, None, 1)(status)
        raise StatusError(message)


def ask(api: int, index: OrtApi, c_type: Any, *arguments: Any) -> Any:
    """Return the value that a function of the table writes, to the address that is its last argument."""
    value = c_type()
    call(api, index, *arguments, ctypes.byref(value))
    return value.value


def create_status(api: int, code: int, message: str) -> int:
    """Return a new OrtStatus. ONNX Runtime releases it."""
    return int(function(api, OrtApi.CreateStatus, c_void_p, 2)(code, message.encode()))


def read_attribute(api: int, info: int, name: str, kind: Kind, default: Any) -> Any:
    """Return the value of a node's attribute, or its default. Raise StatusError if the attribute is of another kind, or if it
    is required and missing."""
    try:
        return _GET_ATTRIBUTE[kind](api, info, name.encode())
    except StatusError as error:
        if "No attribute with" not in str(error):
            raise StatusError(f"attribute {name}: {error}; expected {kind}") from None
        if default is None:
            raise StatusError(f"attribute {name} is missing") from None
        return default


def _array(api: int, index: OrtApi, c_type: Any, *arguments: Any) -> list[Any]:
    """Return the array that a function writes. If the function gets no address for the array, it writes the number of elements
    instead."""
    size = c_size_t()
    call(api, index, *arguments, None, ctypes.byref(size))
    values = (c_type * size.value)()
    if size.value:
        call(api, index, *arguments, values, ctypes.byref(size))
    return list(values)


def _text(api: int, index: OrtApi, *arguments: Any) -> str:
    return bytes(_array(api, index, c_ubyte, *arguments))[:-1].decode(errors="replace")


_GET_ATTRIBUTE: dict[Kind, Callable[[int, int, bytes], Any]] = {
    "INT": lambda api, *node: ask(api, OrtApi.KernelInfoGetAttribute_int64, c_int64, *node),
    "FLOAT": lambda api, *node: ask(api, OrtApi.KernelInfoGetAttribute_float, c_float, *node),
    "STRING": lambda api, *node: _text(api, OrtApi.KernelInfoGetAttribute_string, *node),
    "INTS": lambda api, *node: _array(api, OrtApi.KernelInfoGetAttributeArray_int64, c_int64, *node),
    "FLOATS": lambda api, *node: _array(api, OrtApi.KernelInfoGetAttributeArray_float, c_float, *node),
}


def read_node_name(api: int, info: int) -> str:
    """Return the name of an OrtKernelInfo's node."""
    return _text(api, OrtApi.KernelInfo_GetNodeName, info)


def read_inputs(api: int, info: int) -> list[tuple[int, list[int | None] | None]]:
    """Return, for each input of an OrtKernelInfo's node: the ONNXTensorElementDataType, 0 if it is not a tensor; and the shape,
    None for an unknown shape and for a scalar, which look the same."""
    count = ask(api, OrtApi.KernelInfo_GetInputCount, c_size_t, info)
    return [read_tensor(api, OrtApi.KernelInfo_GetInputTypeInfo, info, index) for index in range(count)]


def read_tensor(api: int, get: OrtApi, info: int, index: int) -> tuple[int, list[int | None] | None]:
    """Return the type and the shape of an input or an output, for `get`, as `read_inputs` returns them."""
    type_info, number, shape = ask(api, get, c_void_p, info, index), 0, None
    tensor_info = ask(api, OrtApi.CastTypeInfoToTensorInfo, c_void_p, type_info)
    if tensor_info:
        number = ask(api, OrtApi.GetTensorElementType, c_int, tensor_info)
        shape = _shape(api, tensor_info) or None
    function(api, OrtApi.ReleaseTypeInfo, None, 1)(type_info)
    return number, shape


def _shape(api: int, info: int) -> list[int | None]:
    """Return the dimensions of an OrtTensorTypeAndShapeInfo, None for an unknown dimension."""
    sizes = (c_int64 * ask(api, OrtApi.GetDimensionsCount, c_size_t, info))()
    call(api, OrtApi.GetDimensions, info, sizes, len(sizes))
    return [None if size < 0 else size for size in sizes]


def read_constants(api: int, info: int, count: int) -> list[tuple[int, int]]:
    """Return, for each input of an OrtKernelInfo's node: the address and number of its elements; 0 and 0 if it is not a
    constant."""
    result = []
    for index in range(count):
        is_constant, value, data, size = c_int(), c_void_p(), None, 0
        call(api, OrtApi.KernelInfoGetConstantInput_tensor, info, index, ctypes.byref(is_constant), ctypes.byref(value))
        if is_constant:
            type_info = ask(api, OrtApi.GetTensorTypeAndShape, c_void_p, value)
            size = ask(api, OrtApi.GetTensorShapeElementCount, c_size_t, type_info)
            function(api, OrtApi.ReleaseTensorTypeAndShapeInfo, None, 1)(type_info)
            data = ask(api, OrtApi.GetTensorMutableData, c_void_p, value)
        result.append((data or 0, size))
    return result


class InferredTensor(NamedTuple):
    """What an OrtShapeInferContext knows of a tensor. Scalars and tensors of unknown rank both have no dimensions."""

    number: int  # ONNXTensorElementDataType
    shape: list[int | None]
    names: list[bytes]  # of the dimensions, empty for those without a name


def read_inferred_input(api: int, context: int, index: int) -> InferredTensor | None:
    """Return an input of an OrtShapeInferContext, or None if the node leaves it out."""
    try:
        info = ask(api, OrtApi.ShapeInferContext_GetInputTypeShape, c_void_p, context, index)
    except StatusError:
        return None
    shape = _shape(api, info)
    names = (c_char_p * len(shape))()
    call(api, OrtApi.GetSymbolicDimensions, info, names, len(shape))
    return InferredTensor(ask(api, OrtApi.GetTensorElementType, c_int, info), shape, [name or b"" for name in names])


def set_inferred_output(api: int, context: int, index: int, inferred: InferredTensor) -> None:
    """Set an output of an OrtShapeInferContext. A dimension needs a size or a name; otherwise ONNX Runtime would set it to
    -1."""
    info = ask(api, OrtApi.CreateTensorTypeAndShapeInfo, c_void_p)
    sizes = [-1 if size is None else size for size in inferred.shape]
    rank = len(sizes)
    call(api, OrtApi.SetTensorElementType, info, inferred.number)
    call(api, OrtApi.SetDimensions, info, (c_int64 * rank)(*sizes), rank)
    call(api, OrtApi.SetSymbolicDimensions, info, (c_char_p * rank)(*inferred.names), rank)
    call(api, OrtApi.ShapeInferContext_SetOutputTypeShape, context, index, info)
    function(api, OrtApi.ReleaseTensorTypeAndShapeInfo, None, 1)(info)


def read_inferred_attribute(api: int, context: int, declared: Attribute) -> Any:
    """Return the value of an INT attribute of an OrtShapeInferContext, or its default if the node does not have it."""
    try:
        found = ask(api, OrtApi.ShapeInferContext_GetAttribute, c_void_p, context, declared.name.encode())
    except StatusError:
        return declared.default
    value = c_int64()
    size = ctypes.sizeof(value)
    call(api, OrtApi.ReadOpAttr, found, ORT_OP_ATTR_INT, ctypes.byref(value), size, ctypes.byref(c_size_t()))
    return value.value
