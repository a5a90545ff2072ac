"""The operators of AMD Quark under their names in older models: the older domain, and the newer name of each. The families
declare the operators."""

from __future__ import annotations

from collections.abc import Iterable

from ..declaration import Operator

DOMAINS = _DOMAIN, _OLDER_DOMAIN = "com.amd.quark", "com.vai.quantize"

_NEWER_NAMES = {
    "VitisQuantizeLinear": "ExtendedQuantizeLinear",
    "VitisDequantizeLinear": "ExtendedDequantizeLinear",
    "VitisInstanceNormalization": "ExtendedInstanceNormalization",
    "VitisLSTM": "ExtendedLSTM",
    "BFPFixNeuron": "BFPQuantizeDequantize",
    "MXFixNeuron": "MXQuantizeDequantize",
}


def older_names(operators: Iterable[Operator]) -> list[Operator]:
    """Return Quark's operators under their older names."""
    newest = {operator.name: operator for operator in operators if operator.domain == _DOMAIN}
    return [newest[newer].renamed(_OLDER_DOMAIN, name) for name, newer in _NEWER_NAMES.items()]
