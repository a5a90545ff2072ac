"""The parts of ONNX Runtime's C API that custom operators need (onnxruntime_c_api.h)."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from enum import IntEnum
from typing import Any

# The API version that KernelContext_ParallelFor came with, and the release of that version. ONNX Runtime serves every
# older version of its API, and its table of functions only ever grows.
API_VERSION = 17
FIRST_RELEASE = "1.17"


class OrtApi(IntEnum):
    """Indices into the table of functions."""

    CreateStatus = 0
    GetErrorMessage = 2
    CreateCustomOpDomain = 26
    CustomOpDomain_Add = 27
    AddCustomOpDomain = 28
    GetTensorMutableData = 51
    GetDimensionsCount = 61
    GetDimensions = 62
    GetTensorTypeAndShape = 65
    KernelInfoGetAttribute_int64 = 86
    KernelContext_GetInputCount = 88
    KernelContext_GetInput = 90
    KernelContext_GetOutput = 91
    ReleaseStatus = 93
    ReleaseTensorTypeAndShapeInfo = 99
    AddSessionConfigEntry = 130
    HasSessionConfigEntry = 237
    KernelContext_ParallelFor = 274


API_WORDS = max(OrtApi) + 1

# OrtErrorCode
ORT_FAIL = 1
ORT_INVALID_ARGUMENT = 2

# OrtCustomOpInputOutputCharacteristic
REQUIRED, OPTIONAL = 0, 1

GetApi = CFUNCTYPE(c_void_p, c_uint32)
GetVersionString = CFUNCTYPE(c_char_p)


class OrtApiBase(ctypes.Structure):
    _fields_ = [("GetApi", GetApi), ("GetVersionString", GetVersionString)]


RegisterCustomOps = CFUNCTYPE(c_void_p, c_void_p, POINTER(OrtApiBase))


class OrtCustomOp(ctypes.Structure):
    """struct OrtCustomOp as of API version 17: an operator, as a table of functions that get the table's own address."""

    _fields_ = [
        ("version", c_uint32),
        ("CreateKernel", c_void_p),
        ("GetName", CFUNCTYPE(c_void_p, c_void_p)),
        ("GetExecutionProviderType", CFUNCTYPE(c_void_p, c_void_p)),
        ("GetInputType", CFUNCTYPE(c_int, c_void_p, c_size_t)),
        ("GetInputTypeCount", CFUNCTYPE(c_size_t, c_void_p)),
        ("GetOutputType", CFUNCTYPE(c_int, c_void_p, c_size_t)),
        ("GetOutputTypeCount", CFUNCTYPE(c_size_t, c_void_p)),
        ("KernelCompute", c_void_p),
        ("KernelDestroy", c_void_p),
        ("GetInputCharacteristic", CFUNCTYPE(c_int, c_void_p, c_size_t)),
        ("GetOutputCharacteristic", CFUNCTYPE(c_int, c_void_p, c_size_t)),
        ("GetInputMemoryType", CFUNCTYPE(c_int, c_void_p, c_size_t)),
        ("GetVariadicInputMinArity", c_void_p),
        ("GetVariadicInputHomogeneity", c_void_p),
        ("GetVariadicOutputMinArity", c_void_p),
        ("GetVariadicOutputHomogeneity", c_void_p),
        ("CreateKernelV2", CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p))),
        ("KernelComputeV2", c_void_p),
        ("InferOutputShapeFn", c_void_p),
        ("GetStartVersion", c_void_p),
        ("GetEndVersion", c_void_p),
        ("GetMayInplace", c_void_p),
        ("ReleaseMayInplace", c_void_p),
        ("GetAliasMap", c_void_p),
        ("ReleaseAliasMap", c_void_p),
    ]


def function(api: int, index: OrtApi, result: Any, *arguments: Any) -> Any:
    """The function at `index` of the table at address `api`."""
    return CFUNCTYPE(result, *arguments)(c_void_p.from_address(api + index * ctypes.sizeof(c_void_p)).value or 0)


class StatusError(Exception):
    """An OrtStatus that is not OK."""


def check(api: int, status: int | None) -> None:
    """Raise StatusError, and release the status, unless it is OK (null)."""
    if status:
        message = function(api, OrtApi.GetErrorMessage, c_char_p, c_void_p)(status).decode()
        function(api, OrtApi.ReleaseStatus, None, c_void_p)(status)
        raise StatusError(message)


def create_status(api: int, code: int, message: str) -> int:
    """A new OrtStatus, which ONNX Runtime will release."""
    return int(function(api, OrtApi.CreateStatus, c_void_p, c_int, c_char_p)(code, message.encode()))


def int64_attribute(api: int, info: int, name: str, default: int) -> int:
    """A node's attribute, or `default` where the node has none. Raises StatusError if it is of another type."""
    value = c_int64()
    get = function(api, OrtApi.KernelInfoGetAttribute_int64, c_void_p, c_void_p, c_char_p, POINTER(c_int64))
    try:
        check(api, get(info, name.encode(), ctypes.byref(value)))
    except StatusError as error:
        if "type" in str(error):
            raise StatusError(f"attribute {name}: {error}; expected INT") from None
        return default
    return value.value
