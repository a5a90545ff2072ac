"""Tables, JSON, messages and progress bars: what goes to stdout and to stderr, and the list of nodes that stay as they are
(widths of tables are in ``texts``)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..texts import ENDLESS, Table, in_json, plain

if TYPE_CHECKING:
    from ..session.artifact import Artifact

OUTPUT = Console(highlight=False, emoji=False)
_messages = Console(stderr=True, highlight=False, emoji=False)
for _console in (OUTPUT, _messages):
    if _console.width < 1:  # with COLUMNS=0, or 1 on Windows, nothing would be printed
        _console.width = 80


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print_tables([Table(title, columns, rows)])


def print_tables(tables: Iterable[Table]) -> None:
    console = OUTPUT if OUTPUT.is_terminal else Console(highlight=False, emoji=False, width=ENDLESS)
    for table in tables:
        table.print_on(console)


def print_counts(title: str, column: str, counts: Mapping[tuple[str, str], int]) -> None:
    """Print the numbers of nodes by operator and by the text in the last column."""
    rows = [[operator, str(count), text] for (operator, text), count in sorted(counts.items())]
    print_table(title, ["operator", ">nodes", column], rows)


def print_left(artifact: Artifact) -> None:
    """Print the nodes that stay as they are in the optimized model, with the reasons."""
    regions = f"Regions in the blocked layout: {artifact.blocked_regions}"
    print_counts(f"{regions}. Nodes of the optimized model that stay as they are", "why", artifact.left)


def print_json(value: Any) -> None:
    print(json.dumps(in_json(value), indent=2, allow_nan=False))


def tell(style: str, what: str, message: object) -> None:
    """Print a message to stderr, preceded by its kind in this style."""
    with suppress(OSError):  # the results matter more than messages
        _messages.print(f"[{style}]{what}:[/] {plain(str(message), _messages)}", soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal, removed at the end. Yield the function that updates it: ``update(total=10)``,
    ``update(advance=1)`` or ``update(completed=3)``."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_messages, transient=True, disable=not _messages.is_terminal) as bar:
        yield functools.partial(bar.update, bar.add_task(plain(what, _messages), total=None))
