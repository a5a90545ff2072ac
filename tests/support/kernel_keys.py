"""The keys of the dispatch table: all that operators and calls on arrays select."""

from quark_numba.block.formats import MX_ELEMENT_TYPES
from quark_numba.block.key import FLOAT4E2M1, FLOAT8E4M3FN, FLOOR, MICROEXPONENT, NVFP4, RCEIL, X_TYPES
from quark_numba.block.key import Key as BlockKey
from quark_numba.element_types import FLOAT32
from quark_numba.fake_quantization.key import FORMS, ROUNDING_MODES
from quark_numba.fake_quantization.key import Key as FakeKey
from quark_numba.linear.key import PRECISIONS, Key, has_unsaturated_form
from quark_numba.linear.versions import types


def _linear():
    for quantized in types("quantize", "quantized"):
        for saturate in (True, False) if has_unsaturated_form(quantized) else (True,):
            for x in types("quantize", "x"):
                for precision in PRECISIONS:
                    yield Key("quantize", x, quantized, quantized, precision, saturate)
            yield Key("quantize_dequantize", FLOAT32, quantized, FLOAT32, FLOAT32, saturate)
    for quantized in types("dequantize", "quantized"):
        for y in types("dequantize", "y"):
            yield Key("dequantize", quantized, quantized, y)


def _block():
    elements = [None if element.is_integer else element for element in MX_ELEMENT_TYPES.values()]
    for x in X_TYPES:
        for element in elements:
            if element:
                yield BlockKey(x, element, FLOOR)
            for rule in (FLOOR, RCEIL):
                yield BlockKey(x, element, rule, has_codes=True)
        for rule in (FLOOR, MICROEXPONENT):
            for rounds_to_bfloat16 in (False, True):
                yield BlockKey(x, None, rule, rounds_to_bfloat16)
        yield BlockKey(x, FLOAT4E2M1, NVFP4, has_codes=True)
    yield BlockKey(FLOAT32, FLOAT8E4M3FN, RCEIL)
    yield BlockKey(FLOAT32, FLOAT4E2M1, NVFP4)


# By family. The programs of regions are without number.
KEYS = {
    "linear": list(_linear()),
    "block": list(_block()),
    "fake_quantization": [
        FakeKey(name, mode)
        for name, form in FORMS.items()
        for mode in (ROUNDING_MODES if form.has_modes else ROUNDING_MODES[:1])
    ],
    "normalization": [FLOAT32],
    "recurrent": [FLOAT32],
    "tables": ["count", "nearest"],
}
