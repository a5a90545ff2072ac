"""The dispatch table: a kernel for each form and rounding mode."""

from __future__ import annotations

from ..compiling.kernel import Table
from .key import FORMS, ROUNDING_MODES, Key

TABLE = Table(
    (Key(name, mode) for name, form in FORMS.items() for mode in (ROUNDING_MODES if form.has_modes else ROUNDING_MODES[:1])),
    __package__,
)
