"""Tables in Markdown, and the parts of pages that programs write."""

from collections.abc import Iterable, Iterator, Sequence
from math import floor, log10
from pathlib import Path

README, RESULTS, PERFORMANCE, FRONT, SESSIONS = (
    Path(__file__).parent / name
    for name in ("README.md", "RESULTS.md", "PERFORMANCE.md", "../README.md", "../quark_numba/session/README.md")
)


def digits(value: float) -> str:
    """Return a number with two significant digits, and without an exponent."""
    rounded = float(f"{value:.1e}")
    decimals = 1 - floor(log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(decimals, 0)}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, whose first column is text, and an empty one."""
    yield f"| {' | '.join(header)} |"
    yield f"| --- |{' ---: |' * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def with_part(text: str, part: str, lines: Iterable[str], program: str = "report") -> str:
    """Return a text with these lines between the marks of a part, which a program of this folder writes."""
    before, mark, rest = text.partition(f"<!-- what bench/{program}.py writes of {part} -->\n")
    _, end, after = rest.partition(f"<!-- end of {part} -->")
    return "".join([before, mark, "\n", *(f"{line}\n" for line in lines), end, after])


def write_part(part: str, lines: Iterable[str], program: str) -> None:
    """Write a part of RESULTS.md."""
    RESULTS.write_text(with_part(RESULTS.read_text(encoding="utf-8"), part, lines, program), encoding="utf-8")
