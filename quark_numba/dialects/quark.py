"""The operators of AMD Quark, and the names that they have in older models."""

from __future__ import annotations

from ..block.operators import OPERATORS as BLOCK
from ..linear.operators import OPERATORS as LINEAR
from ..normalization.operators import OPERATORS as NORMALIZATION
from ..recurrent.operators import OPERATORS as RECURRENT

DOMAINS = _DOMAIN, _OLDER_DOMAIN = "com.amd.quark", "com.vai.quantize"

_NEWER_NAMES = {
    "VitisQuantizeLinear": "ExtendedQuantizeLinear",
    "VitisDequantizeLinear": "ExtendedDequantizeLinear",
    "VitisInstanceNormalization": "ExtendedInstanceNormalization",
    "VitisLSTM": "ExtendedLSTM",
    "BFPFixNeuron": "BFPQuantizeDequantize",
    "MXFixNeuron": "MXQuantizeDequantize",
}

_own = {operator.name: operator for operator in (*LINEAR, *BLOCK, *NORMALIZATION, *RECURRENT) if operator.domain == _DOMAIN}

OPERATORS = (*_own.values(), *(_own[newer].renamed(_OLDER_DOMAIN, name) for name, newer in _NEWER_NAMES.items()))
