"""Tables in HTML, for the page and for notebooks: their tags, inline styles and largest height. They have no script and no
plots; all texts are escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

from ..texts import Folded, Table, printable

# Inline styles, because notebooks lack the style sheet of the page.
_BOX = "overflow:auto;max-height:36rem"


def as_html(tables: Iterable[Table]) -> str:
    return "".join(section(table.title, _table(table), table.about) for table in tables)


def section(title: str, content: str, about: str = "") -> str:
    heading = f"<h2>{escaped(title)}</h2>" if title else ""
    return f"<section>{heading}{paragraph(about) if about else ''}{content}</section>"


def paragraph(text: str) -> str:
    return f"<p>{escaped(text)}</p>"


def escaped(text: str) -> str:
    """Return a text as HTML, with escapes for characters that are not printed, some of which HTML does not allow."""
    return html.escape(printable(text))


def _table(table: Table) -> str:
    """Return a table, or a word if it has no rows. The page sorts the columns of the class "n" as numbers."""
    if not table.rows:
        return paragraph(table.none)
    kinds = [" class=n" if column.startswith(">") else "" for column in table.columns]
    columns = [escaped(column.removeprefix(">")) for column in table.columns]
    head = "".join(f'<th scope="col"{kind}>{column}</th>' for kind, column in zip(kinds, columns, strict=True))
    rows = ("".join(f"<td{kind}>{_cell(text)}</td>" for kind, text in zip(kinds, row, strict=True)) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    head = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f'<div class="wide" style="{_BOX}"><table>{head}<tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    if not isinstance(text, Folded) or not text.items:
        return escaped(text)
    items = "".join(f"<li>{escaped(item)}</li>" for item in text.items)
    return f"<details><summary>{escaped(text)}</summary><ul>{items}</ul></details>"
