"""The exception by which a node stays as it is, and its two checks; the texts of the reasons are where the checks are, such as
in the `standard_form` of a family. A check says the reason with `require` for a value that has to be known, and else with
`stays_if`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import reraise_of_signal_handler

T = TypeVar("T")


class Invalid(str):
    """The reason of a node that is not valid, or that comes after such a node."""


class NotRewrittenError(Exception):
    """A node stays as it is; the message gives the reason."""

    @property
    def reason(self) -> str:
        return self.args[0]


@contextmanager
def faults_as_reasons() -> Iterator[None]:
    """In the context, let a TypeError or ValueError be the reason why a node stays: it is not valid."""
    try:
        yield
    except (TypeError, ValueError) as error:
        reraise_of_signal_handler(error)
        raise NotRewrittenError(Invalid(f"not valid: {error}")) from None


def require(value: T | None, reason: str) -> T:
    """Return a value. Raise NotRewrittenError for this reason if it is None."""
    if value is None:
        raise NotRewrittenError(reason)
    return value


def stays_if(condition: object, reason: str) -> None:
    """Raise NotRewrittenError for this reason if the condition holds."""
    if condition:
        raise NotRewrittenError(reason)
