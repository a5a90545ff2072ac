"""Keys of the dispatch table: the forms that describe a format, with their parameters and the limits of bit widths, and the
rounding modes by all their names, with those that are refused and why."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Form(NamedTuple):
    """A way to describe a format: the names of its parameters, in the order in which functions take them.

    `numbers` is how many numbers the kernels take, which follow from the parameters. `single` are the parameters that have one
    element; all other parameters broadcast to x. `expected` says which values are valid, for messages. `is_double` tells
    whether the arithmetic is in float64, `has_modes` whether a node may have another rounding mode than ROUND."""

    numbers: int
    parameters: tuple[str, ...]
    single: tuple[str, ...]
    expected: str
    is_double: bool = False
    has_modes: bool = False


MAX_BITS = 64
_BITS = f"a bit width that is a whole number from 1 to {MAX_BITS}"
_MINIFLOAT = (
    "1 to 8 exponent bits, 0 to 23 mantissa bits, a whole exponent bias, and for values beyond the largest one: "
    "saturation, Inf or NaN"
)
# The element types that are forms: x is cast to the type and back, which does not saturate.
CASTS = ("float16", "bfloat16")

_LIMITS = "input_low input_high output_low output_high"
_PARTS = "exponent_bits mantissa_bits exponent_bias max_val has_inf has_nan saturation"
_TRUNCATION = "scale zero_point in_bits out_scale out_bits signed narrow"


def _form(numbers: int, parameters: str, single: str, expected: str, **others: bool) -> Form:
    return Form(numbers, tuple(parameters.split()), tuple(single.split()), expected, **others)


# What each form computes is in `arithmetic`.
FORMS = {
    "integer": _form(4, "scale zero_point bit_width signed narrow", "bit_width signed narrow", _BITS, has_modes=True),
    "codes": _form(3, "scale low high", "", "any numbers"),
    "bipolar": _form(1, "scale", "", "any numbers"),
    "truncation": _form(7, _TRUNCATION, "in_bits out_bits signed narrow", _BITS, has_modes=True),
    "minifloat": _form(5, f"scale {_PARTS}", _PARTS, _MINIFLOAT, has_modes=True),
    "threshold": _form(3, "threshold bit_width signed", "bit_width signed", f"a threshold above 0, and {_BITS}"),
    "range": _form(3, "min max bit_width", "bit_width", f"min below max, and {_BITS}"),
    "levels": _form(8, f"{_LIMITS} levels", "levels", "a whole number of levels that is at least 2"),
    "offset range": _form(3, "min max bit_width", "bit_width", f"min below max, and {_BITS}", is_double=True),
    **{name: _form(0, "", "", "no parameters") for name in CASTS},
}

# The rounding modes, by the names that models have; their case does not matter.
_MODES = {
    **{name: name for name in ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")},
    "HALF_EVEN": "ROUND",
    "ROUND_TO_ZERO": "DOWN",
}
_REFUSED_MODES = {
    "DPU": "QONNX does not define it",
    "STOCHASTIC_ROUND": "its result is random",
    "LEARNED_ROUND": "what was learned is not in the node",
}
ROUNDING_MODES = tuple(dict.fromkeys(_MODES.values()))


class Key(NamedTuple):
    """A key of the dispatch table."""

    form: str
    rounding_mode: str = "ROUND"

    @property
    def name(self) -> str:
        """A name for symbols, different for each key."""
        return f"fake_{self.form.replace(' ', '_')}_{self.rounding_mode.lower()}"


def count_numbers(key: Key) -> int:
    """Return how many numbers describe a format in the kernels."""
    return FORMS[key.form].numbers


def dtype_of(key: Key) -> Any:
    """Return the dtype of the numbers that describe a key's format."""
    return np.float64 if FORMS[key.form].is_double else np.float32


def select(form: str, rounding_mode: str = "ROUND") -> Key:
    """Return the key for a form and a rounding mode by any of its names. Raise TypeError or ValueError if one is invalid."""
    if not isinstance(rounding_mode, str):
        raise TypeError(f"rounding_mode is {rounding_mode!r}; expected a name")
    mode = _MODES.get(rounding_mode.upper())
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    if mode is None or (mode != "ROUND" and not FORMS[form].has_modes):
        expected = ", ".join(_MODES) if FORMS[form].has_modes else "ROUND"
        why = _REFUSED_MODES.get(rounding_mode.upper())
        refused = f", which is refused, as {why}" if why else ""
        raise ValueError(f"rounding_mode is {rounding_mode!r}{refused}; expected one of {expected}")
    return Key(form, mode)
