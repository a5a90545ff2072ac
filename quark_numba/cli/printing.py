"""Tables, JSON, messages and progress bars."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from ..session.prepared import Prepared

# The columns that hold sentences and lists, and their largest width unless a word is longer.
_LONG_COLUMNS, _WIDTH = ("why", "change", "changes", "run by", "used by"), 72

OUTPUT = Console(highlight=False, emoji=False)
_messages = Console(stderr=True, highlight=False, emoji=False)
for _console in (OUTPUT, _messages):
    if _console.width < 1:  # COLUMNS=0, or 1 on Windows, with which nothing would be printed
        _console.width = 80


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], none: str = "none") -> None:
    """Print a table; if it has no rows, `none` behind the title. Columns whose name begins with ">" are aligned to the right.
    Columns of sentences and lists are folded between words, and on a terminal all that does not fit."""
    if not rows:
        OUTPUT.print(f"[bold]{_plain(title)}:[/] {_plain(none)}", soft_wrap=True)
        return
    if title:
        OUTPUT.print(f"[bold]{_plain(title)}", soft_wrap=True)
    table = Table(show_header=any(columns))
    for place, column in enumerate(columns):
        words = [word for row in rows for word in row[place].split()]
        most = max(_WIDTH, *map(len, words), 0) if column in _LONG_COLUMNS else None
        justify: Any = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, overflow="fold", max_width=most)
    for row in rows:
        table.add_row(*map(_plain, row))
    (OUTPUT if OUTPUT.is_terminal else Console(highlight=False, emoji=False, width=1 << 16)).print(table)


def print_counts(title: str, column: str, counts: Mapping[tuple[str, str], int]) -> None:
    """Print the numbers of nodes by operator and by the text in the last column."""
    rows = [[operator, str(count), text] for (operator, text), count in sorted(counts.items())]
    print_table(title, ["operator", ">nodes", column], rows)


def print_left(optimised: Prepared) -> None:
    """Print the nodes that stay as they are in the optimised model, with the reasons."""
    regions = f"Regions in the blocked layout: {optimised.blocked_regions}"
    print_counts(f"{regions}. Nodes of the optimised model that stay as they are", "why", optimised.left)


def print_not_compared(reasons: Mapping[str, str]) -> None:
    """Print the outputs that cannot be compared, with the reasons. Print nothing if there are none."""
    if reasons:
        print_table("Outputs that are not compared", ["output", "why"], [[*item] for item in reasons.items()])


def cell(value: float | None, form: str) -> str:
    """Return the number in this format; "inf" or "nan" if it is not finite; "" for None."""
    return "" if value is None else format(value, form) if math.isfinite(value) else str(value)


def print_json(value: Any) -> None:
    print(json.dumps(json_value(value), indent=2, allow_nan=False))


def json_value(value: Any) -> Any:
    """Return the value with text for infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: json_value(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(element) for element in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(text: str) -> str:
    """Return the text with escapes for rich's markup, for control sequences, which a terminal would obey, and for characters
    that the output's encoding lacks."""
    printable = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return escape(printable.encode(OUTPUT.encoding, "backslashreplace").decode(OUTPUT.encoding))


def tell(style: str, what: str, message: object) -> None:
    """Print a message to stderr, after its kind in this style."""
    with suppress(OSError):  # as the results matter more than what is said beside them
        _messages.print(f"[{style}]{what}:[/] {_plain(str(message))}", soft_wrap=True)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=_messages, transient=True, disable=not _messages.is_terminal)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal, removed at the end. Yield a function to call after each of `total` steps."""
    with _bar() as bar:
        task = bar.add_task(_plain(what), total=total)
        yield lambda: bar.advance(task)


@contextmanager
def counted_progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar that can jump. Yield a function to call with the number of finished steps and the number of all
    steps, None if unknown."""
    with _bar() as bar:
        task = bar.add_task(_plain(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
