"""Which element types and formats each operator has, since which version, and where they run."""

from __future__ import annotations

import itertools
from typing import Any

from ..catalog import OPERATORS

TYPES_LEGEND = (
    "Numbers: the version (of ONNX's operators: the opset) since which the type is there with this type of scale, or "
    "of block formats with this type of x. Where it "
    "runs: A, on arrays and in onnx's ReferenceEvaluator; S, in sessions of the native way, of ONNX's own operators with "
    "standard_ops; E, in sessions of the onnxruntime-extensions way."
)


def type_rows() -> list[dict[str, Any]]:
    """For each operator and format: the first version that has it with each element type of the operator's ``column``, and
    where it runs. Operators under the names of older models are left out."""
    from ..ort import extensions

    rows: list[dict[str, Any]] = []
    for newest in itertools.chain.from_iterable(map(OPERATORS.newest, OPERATORS.domains)):
        if newest.newer_name:
            continue
        versions = OPERATORS.versions(newest)
        columns = newest.types[newest.column]
        title = next(each.name for each in (*newest.inputs, *newest.outputs) if each.variable == newest.column)
        title = "scales" if title.endswith("scale") else title
        for name, element_type in newest.formats.items():
            since = {
                column.name: min(
                    each.since_version for each in versions if name in each.formats and column in each.types[each.column]
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
    """`type_rows` as text: for each operator its name, the names of columns, and rows."""
    tables = []
    for operator, group in itertools.groupby(type_rows(), key=lambda row: row["operator"]):
        rows = list(group)
        operand = list(rows[0])[2]
        columns = list(rows[0][operand])
        lines = []
        for row in rows:
            ways = {"A": row["arrays"], "S": row["native"], "E": row["extensions"]}
            where = " ".join(letter for letter, runs in ways.items() if runs)
            lines.append([row["type"], *(str(row[operand][column]) for column in columns), where])
        tables.append((operator, ["type", *columns, "where"], lines))
    return tables
