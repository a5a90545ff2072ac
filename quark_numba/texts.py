"""Tables as text: which columns are folded, at which width, and what an empty table says; values in JSON; and the escaping of
foreign texts in output."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# The columns that hold sentences and lists, and their largest width unless a word is longer.
_LONG_COLUMNS, WIDTH = ("why", "change", "changes", "run by", "used by"), 72

# The width of output that is not a terminal, where nothing has to fit.
ENDLESS = 1 << 16


class Folded(str):
    """The text of a cell, which a page unfolds to a list of items."""

    items: Sequence[str]

    def __new__(cls, text: str, items: Sequence[str]) -> Folded:
        folded = super().__new__(cls, text)
        folded.items = items
        return folded


@dataclasses.dataclass(frozen=True)
class Table:
    """A table. Without rows, the text `none` follows the title. Columns whose name begins with ">" are aligned to the right.
    Columns of sentences and lists are folded between words; on a terminal, so is any column that does not fit. `about` is what
    a page says below the title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    none: str = "none"
    about: str = ""

    def print_on(self, console: Console) -> None:
        from rich.table import Table as RichTable

        if not self.rows:
            console.print(f"[bold]{plain(self.title, console)}:[/] {plain(self.none, console)}", soft_wrap=True)
            return
        if self.title:
            console.print(f"[bold]{plain(self.title, console)}", soft_wrap=True)
        table = RichTable(show_header=any(self.columns))
        for place, column in enumerate(self.columns):
            words = [word for row in self.rows for word in row[place].split()]
            most = max(WIDTH, *map(len, words), 0) if column in _LONG_COLUMNS else None
            justify: Any = "right" if column.startswith(">") else "left"
            table.add_column(column.removeprefix(">"), justify=justify, overflow="fold", max_width=most)
        for row in self.rows:
            table.add_row(*(plain(text, console) for text in row))
        console.print(table)


def as_text(tables: Iterable[Table]) -> str:
    """Return tables as they are printed to a file."""
    from rich.console import Console

    content = io.StringIO()
    how: dict[str, Any] = {"force_terminal": False, "force_jupyter": False, "color_system": None, "width": ENDLESS}
    console = Console(file=content, highlight=False, emoji=False, legacy_windows=False, **how)
    for table in tables:
        table.print_on(console)
    return content.getvalue().rstrip("\n")


def cell(value: float | None, form: str) -> str:
    """Return the number in this format, "inf" or "nan" if it is not finite, and "" for None."""
    return "" if value is None else format(value, form) if math.isfinite(value) else str(value)


def in_json(value: Any) -> Any:
    """Return the value in JSON's types. A dict whose keys are not strings becomes a list of pairs. Infinities and NaN, which
    JSON does not have, become text, which `float` reads."""
    if dataclasses.is_dataclass(value):
        return {part.name: in_json(getattr(value, part.name)) for part in dataclasses.fields(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: in_json(part) for key, part in value.items()}
        return [[in_json(key), in_json(part)] for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [*map(in_json, value)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def plain(text: str, console: Console) -> str:
    """Return the text with escapes for characters that are not printed, for the markup of rich, and for characters that the
    console lacks."""
    from rich.markup import escape

    return escape(printable(text, "\n").encode(console.encoding, "backslashreplace").decode(console.encoding))


def printable(text: str, keeps: str = "") -> str:
    """Return the text with escapes for characters that are not printable and not in `keeps`. Examples are control sequences,
    which a terminal would obey, and characters that change the order of text."""
    return "".join(c if c.isprintable() or c in keeps else c.encode("unicode_escape").decode() for c in text)
