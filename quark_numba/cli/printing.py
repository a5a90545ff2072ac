"""Tables, messages and progress bars on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

OUTPUT = Console(highlight=False)
_messages = Console(stderr=True, highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns whose name begins with ">" are aligned to the right. Nothing is folded but on a terminal."""
    if title:
        OUTPUT.print(f"[bold]{_plain(title)}", soft_wrap=True)
    table = Table(show_header=any(columns))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    (OUTPUT if OUTPUT.is_terminal else Console(highlight=False, width=1 << 16)).print(table)


def print_not_compared(reasons: Mapping[str, str]) -> None:
    """The outputs that could not be compared, if there are any, and why."""
    if reasons:
        print_table("Outputs that are not compared", ["output", "why"], [[*each] for each in reasons.items()])


def _plain(text: str) -> str:
    """Text from a model or a message, without the control sequences that a terminal would obey, and what the output cannot
    write, as escapes."""
    printable = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return escape(printable.encode(OUTPUT.encoding, "backslashreplace").decode(OUTPUT.encoding))


def tell(style: str, what: str, message: object) -> None:
    _messages.print(f"[{style}]{what}:[/] {_plain(str(message))}", soft_wrap=True)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=_messages, transient=True, disable=not _messages.is_terminal)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, gone when it is done. Yields what is to be called after each of `total` steps."""
    with _bar() as bar:
        task = bar.add_task(_plain(what), total=total)
        yield lambda: bar.advance(task)


@contextmanager
def counted_progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """The same; yields what is to be called with how many steps are done, and how many there are, None if that is not known."""
    with _bar() as bar:
        task = bar.add_task(_plain(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
