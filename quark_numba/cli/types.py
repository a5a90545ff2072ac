"""The subcommand `types`: the element types and formats of each operator, the version that introduced each, and where they
run."""

from __future__ import annotations

import argparse
import itertools
import textwrap
from typing import Any

from . import arguments
from .printing import OUTPUT, print_json, print_table

_LEGEND = (
    "Numbers: the first version of the operator (for ONNX's own operators, the opset) that has the type with this type of "
    "scale, or the block format with this type of x. Where it "
    "runs: A, on arrays (in onnx's ReferenceEvaluator, and in a call if the operator has one); S, in sessions of the native "
    "backend, for ONNX's own operators with `qdq` float; E, in sessions of the extensions backend."
)

PURPOSE = "print the types of each operator, the version that introduced each, and where they run"


def add_options(parser: argparse.ArgumentParser) -> None:
    arguments.add_json(parser)


def action(options: argparse.Namespace) -> int:
    if options.json:
        print_json(type_rows())
        return 0
    OUTPUT.print(textwrap.fill(_LEGEND, min(OUTPUT.width, 100)))
    for operator, columns, rows in type_tables():
        print_table(operator, columns, rows)
    return 0


def type_rows() -> list[dict[str, Any]]:
    """Return a row for each operator and format: the first version that has it, for each element type of the operator's
    ``column``, and where it runs. Operators under their older names are left out."""
    from ..catalog import OPERATORS
    from ..ort import extensions

    rows: list[dict[str, Any]] = []
    for newest in itertools.chain.from_iterable(map(OPERATORS.newest, OPERATORS.domains)):
        if newest.newer_name:
            continue
        versions = OPERATORS.versions(newest)
        columns = newest.types[newest.column]
        title = next(parameter.name for parameter in (*newest.inputs, *newest.outputs) if parameter.variable == newest.column)
        title = "scales" if title.endswith("scale") else title
        for name, element_type in newest.formats.items():
            since = {
                column.name: min(
                    entry.since_version for entry in versions if name in entry.formats and column in entry.types[entry.column]
                )
                for column in columns
            }
            ways = {
                "arrays": True,
                "native": element_type is None or element_type.has_tensors(),
                "extensions": extensions.has(newest) and (element_type is None or extensions.carries(element_type)),
            }
            rows.append({"operator": newest.full_name, "type": name, title: since, **ways})
    return rows


def type_tables() -> list[tuple[str, list[str], list[list[str]]]]:
    """Return `type_rows` as tables of text: an operator's name, the names of the columns, and the rows. Operators with one row
    and one column share the last table."""
    tables, alone = [], []
    for operator, group in itertools.groupby(type_rows(), key=lambda row: row["operator"]):
        rows = list(group)
        operand = list(rows[0])[2]
        columns = list(rows[0][operand])
        lines = []
        for row in rows:
            ways = {"A": row["arrays"], "S": row["native"], "E": row["extensions"]}
            where = " ".join(letter for letter, runs in ways.items() if runs)
            lines.append([row["type"], *(str(row[operand][column]) for column in columns), where])
        if len(rows) == len(columns) == 1:
            alone.append([operator, rows[0]["type"], *columns, lines[0][-1]])
            continue
        tables.append((operator, ["type", *columns, "where"], lines))
    return [*tables, ("Operators with one type", ["operator", "rounds to", "tensors", "where"], alone)]
