"""The parts of ONNX Runtime's C API that custom operators need (onnxruntime_c_api.h)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_ubyte, c_uint32, c_void_p
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ..declaration import Kind
    from ..element_types import ElementType

# The API version of the oldest release that the project supports. Later releases serve it too: the table of functions only
# ever grows.
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
    SetTensorElementType = 58
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
    KernelInfo_GetInputCount = 230
    KernelInfo_GetInputTypeInfo = 234
    KernelInfo_GetOutputTypeInfo = 235
    HasSessionConfigEntry = 237
    KernelInfo_GetNodeName = 244
    KernelInfoGetConstantInput_tensor = 249
    ShapeInferContext_GetInputTypeShape = 268
    ShapeInferContext_GetAttribute = 269
    ShapeInferContext_SetOutputTypeShape = 270
    ReadOpAttr = 272
    KernelContext_ParallelFor = 274
    GetTensorElementTypeAndShapeDataReference = 414  # from SHAPE_REFERENCE_RELEASE on


SHAPE_REFERENCE_RELEASE = (1, 24)

API_WORDS = max(OrtApi) + 1

# OrtErrorCode
ORT_FAIL = 1
ORT_INVALID_ARGUMENT = 2

# OrtOpAttrType
ORT_OP_ATTR_INT = 1

# OrtCustomOpInputOutputCharacteristic
REQUIRED, OPTIONAL, VARIADIC = 0, 1, 2

# The ONNXTensorElementDataType of an input or output that may have any type: UNDEFINED.
ANY_TYPE = 0

# The first release in which a custom operator in ONNX's own domain replaces ONNX Runtime's.
STANDARD_OPS_RELEASE = (1, 31)


def element_type(row: ElementType) -> int:
    """The ONNXTensorElementDataType of an element type."""
    return row.number if row.ort_number is None else row.ort_number


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
        ("input_count", c_int64),
        ("output_count", c_int64),
        ("is_homogeneous", c_int64),  # of a variadic input
        ("input_types", c_void_p),  # an array of int64, like the next three
        ("output_types", c_void_p),
        ("input_characteristics", c_void_p),
        ("output_characteristics", c_void_p),
        ("python", c_void_p),  # a record callbacks.PYTHON
    ]


class Description(NamedTuple):
    """An overload of an operator, as plain data: what ONNX Runtime is told of it, and what it takes to create its kernels."""

    domain: str
    name: str
    number: int  # of the overload among those of the operator
    is_homogeneous: bool  # of a variadic input
    takes_type: bool  # from an attribute, for the output
    is_checked: bool  # by types and shapes of inputs, when a kernel is created
    attributes: list[tuple[str, Kind, Any]]  # the name, the kind and the default, None if it is required
    input_types: list[int]  # ONNXTensorElementDataType
    output_types: list[int]
    input_characteristics: list[int]
    output_characteristics: list[int]


T = TypeVar("T")


def keep(value: T) -> T:
    """`value`, which is never freed from now on, not even when this package is reloaded or the interpreter ends: ONNX Runtime
    may use its address as long as the process lives."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    return value


def function(api: int, index: OrtApi, result: Any, *arguments: Any) -> Any:
    """The function at `index` of the table at address `api`."""
    return CFUNCTYPE(result, *arguments)(c_void_p.from_address(api + index * ctypes.sizeof(c_void_p)).value or 0)


class StatusError(Exception):
    """An OrtStatus that is an error."""


def check(api: int, status: int | None) -> None:
    """Raise StatusError and release the status if it is an error; null is success."""
    if status:
        message = function(api, OrtApi.GetErrorMessage, c_char_p, c_void_p)(status).decode()
        function(api, OrtApi.ReleaseStatus, None, c_void_p)(status)
        raise StatusError(message)


def create_status(api: int, code: int, message: str) -> int:
    """A new OrtStatus. ONNX Runtime releases it."""
    return int(function(api, OrtApi.CreateStatus, c_void_p, c_int, c_char_p)(code, message.encode()))


def attribute(api: int, info: int, name: str, kind: Kind, default: Any) -> Any:
    """The value of a node's attribute, or its default. Raises StatusError if the attribute is of another kind, or if it is
    required and missing."""
    try:
        return _GET_ATTRIBUTE[kind](api, info, name.encode())
    except StatusError as error:
        if "No attribute with" not in str(error):
            raise StatusError(f"attribute {name}: {error}; expected {kind}") from None
        if default is None:
            raise StatusError(f"attribute {name} is missing") from None
        return default


def _scalar_attribute(index: OrtApi, c_type: Any, api: int, info: int, name: bytes) -> Any:
    value = c_type()
    check(api, function(api, index, c_void_p, c_void_p, c_char_p, POINTER(c_type))(info, name, ctypes.byref(value)))
    return value.value


def _array_attribute(index: OrtApi, c_type: Any, api: int, info: int, name: bytes) -> list[Any]:
    get = function(api, index, c_void_p, c_void_p, c_char_p, POINTER(c_type), POINTER(c_size_t))
    size = c_size_t()
    check(api, get(info, name, None, ctypes.byref(size)))
    values = (c_type * size.value)()
    if size.value:
        check(api, get(info, name, values, ctypes.byref(size)))
    return list(values)


def _string_attribute(api: int, info: int, name: bytes) -> str:
    content = bytes(_array_attribute(OrtApi.KernelInfoGetAttribute_string, c_ubyte, api, info, name))
    return content[:-1].decode(errors="replace")


_GET_ATTRIBUTE: dict[Kind, Callable[[int, int, bytes], Any]] = {
    "INT": functools.partial(_scalar_attribute, OrtApi.KernelInfoGetAttribute_int64, c_int64),
    "FLOAT": functools.partial(_scalar_attribute, OrtApi.KernelInfoGetAttribute_float, c_float),
    "STRING": _string_attribute,
    "INTS": functools.partial(_array_attribute, OrtApi.KernelInfoGetAttributeArray_int64, c_int64),
    "FLOATS": functools.partial(_array_attribute, OrtApi.KernelInfoGetAttributeArray_float, c_float),
}


def node_name(api: int, info: int) -> str:
    """The name of an OrtKernelInfo's node."""
    get = function(api, OrtApi.KernelInfo_GetNodeName, c_void_p, c_void_p, c_char_p, POINTER(c_size_t))
    size = c_size_t()
    check(api, get(info, None, ctypes.byref(size)))
    name = ctypes.create_string_buffer(size.value)
    check(api, get(info, name, ctypes.byref(size)))
    return name.value.decode(errors="replace")


def inputs(api: int, info: int) -> list[tuple[int, list[int | None] | None]]:
    """For each input of an OrtKernelInfo's node: the ONNXTensorElementDataType, 0 if it is no tensor; and the shape, as far as
    it is known."""
    get_count = function(api, OrtApi.KernelInfo_GetInputCount, c_void_p, c_void_p, POINTER(c_size_t))
    count = c_size_t()
    check(api, get_count(info, ctypes.byref(count)))
    return [_tensor(api, OrtApi.KernelInfo_GetInputTypeInfo, info, index) for index in range(count.value)]


def output_type(api: int, info: int, index: int) -> int:
    """The ONNXTensorElementDataType of an output of an OrtKernelInfo's node, 0 if it is no tensor."""
    return _tensor(api, OrtApi.KernelInfo_GetOutputTypeInfo, info, index)[0]


def _tensor(api: int, get: OrtApi, info: int, index: int) -> tuple[int, list[int | None] | None]:
    get_info = function(api, get, c_void_p, c_void_p, c_size_t, POINTER(c_void_p))
    to_tensor = function(api, OrtApi.CastTypeInfoToTensorInfo, c_void_p, c_void_p, POINTER(c_void_p))
    get_type = function(api, OrtApi.GetTensorElementType, c_void_p, c_void_p, POINTER(c_int))
    release = function(api, OrtApi.ReleaseTypeInfo, None, c_void_p)
    type_info, tensor_info, number, shape = c_void_p(), c_void_p(), c_int(), None
    check(api, get_info(info, index, ctypes.byref(type_info)))
    check(api, to_tensor(type_info, ctypes.byref(tensor_info)))
    if tensor_info:
        check(api, get_type(tensor_info, ctypes.byref(number)))
        shape = _shape(api, tensor_info)
    release(type_info)
    return number.value, shape


def _shape(api: int, info: Any) -> list[int | None] | None:
    """The shape of an OrtTensorTypeAndShapeInfo; None if it is unknown or a scalar's, which look the same."""
    get_rank = function(api, OrtApi.GetDimensionsCount, c_void_p, c_void_p, POINTER(c_size_t))
    get_dimensions = function(api, OrtApi.GetDimensions, c_void_p, c_void_p, POINTER(c_int64), c_size_t)
    rank = c_size_t()
    check(api, get_rank(info, ctypes.byref(rank)))
    sizes = (c_int64 * rank.value)()
    check(api, get_dimensions(info, sizes, rank))
    return [None if size < 0 else size for size in sizes] or None


def constants(api: int, info: int, count: int) -> list[tuple[int, int]]:
    """For each input of an OrtKernelInfo's node: the address and number of its elements; 0 and 0 if it is no constant."""
    get = function(
        api, OrtApi.KernelInfoGetConstantInput_tensor, c_void_p, c_void_p, c_size_t, POINTER(c_int), POINTER(c_void_p)
    )
    get_info = function(api, OrtApi.GetTensorTypeAndShape, c_void_p, c_void_p, POINTER(c_void_p))
    get_size = function(api, OrtApi.GetTensorShapeElementCount, c_void_p, c_void_p, POINTER(c_size_t))
    get_data = function(api, OrtApi.GetTensorMutableData, c_void_p, c_void_p, POINTER(c_void_p))
    release = function(api, OrtApi.ReleaseTensorTypeAndShapeInfo, None, c_void_p)
    result = []
    for index in range(count):
        is_constant, value, type_info, size, data = c_int(), c_void_p(), c_void_p(), c_size_t(), c_void_p()
        check(api, get(info, index, ctypes.byref(is_constant), ctypes.byref(value)))
        if is_constant:
            check(api, get_info(value, ctypes.byref(type_info)))
            check(api, get_size(type_info, ctypes.byref(size)))
            release(type_info)
            check(api, get_data(value, ctypes.byref(data)))
        result.append((data.value or 0, size.value))
    return result


def inference_input(api: int, context: int, index: int) -> tuple[int | None, int]:
    """The OrtTensorTypeAndShapeInfo and the element type of an input of an OrtShapeInferContext; None and 0 if the node leaves
    the input out."""
    get = function(api, OrtApi.ShapeInferContext_GetInputTypeShape, c_void_p, c_void_p, c_size_t, POINTER(c_void_p))
    get_type = function(api, OrtApi.GetTensorElementType, c_void_p, c_void_p, POINTER(c_int))
    info, number = c_void_p(), c_int()
    try:
        check(api, get(context, index, ctypes.byref(info)))
    except StatusError:
        return None, 0
    check(api, get_type(info, ctypes.byref(number)))
    return info.value, number.value


def has_shape(api: int, info: int) -> bool:
    """Whether each dimension of an OrtTensorTypeAndShapeInfo has a size or a name. False for a scalar, which looks like an
    unknown shape, even to TensorTypeAndShape_HasShape."""
    get_rank = function(api, OrtApi.GetDimensionsCount, c_void_p, c_void_p, POINTER(c_size_t))
    get_sizes = function(api, OrtApi.GetDimensions, c_void_p, c_void_p, POINTER(c_int64), c_size_t)
    get_names = function(api, OrtApi.GetSymbolicDimensions, c_void_p, c_void_p, POINTER(c_char_p), c_size_t)
    rank = c_size_t()
    check(api, get_rank(info, ctypes.byref(rank)))
    sizes, names = (c_int64 * rank.value)(), (c_char_p * rank.value)()
    check(api, get_sizes(info, sizes, rank.value))
    check(api, get_names(info, names, rank.value))
    return rank.value > 0 and all(size >= 0 or name for size, name in zip(sizes, names, strict=True))


def inference_attribute(api: int, context: int, name: str, default: int) -> int:
    """The value of an INT attribute of an OrtShapeInferContext, or `default` if the node does not have it."""
    get = function(api, OrtApi.ShapeInferContext_GetAttribute, c_void_p, c_void_p, c_char_p, POINTER(c_void_p))
    read = function(api, OrtApi.ReadOpAttr, c_void_p, c_void_p, c_int, c_void_p, c_size_t, POINTER(c_size_t))
    attribute, value, size = c_void_p(), c_int64(), c_size_t()
    try:
        check(api, get(context, name.encode(), ctypes.byref(attribute)))
    except StatusError:
        return default
    check(api, read(attribute, ORT_OP_ATTR_INT, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(size)))
    return value.value
