"""The tables that results have, for the command, for `print`, for the page and for notebooks: their columns, formats of
numbers, and default number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import counted
from ..texts import Folded, Table, cell

if TYPE_CHECKING:
    from .experiments.sweep import Effect
    from .experiments.what_if import TradeOff
    from .measures.distributions import Distribution
    from .measures.outputs import OutputError
    from .measures.tensors import QuantizedTensor

# The default number of rows in the tables of nodes and tensors.
TOP = 20

# The most rows of the table of divergences by place.
_STRETCHES = 8

# The columns of the table of tensors that only a page has room for.
_WIDE = (">cosine", ">largest error", ">place", "made by")


def left_out(failed: Mapping[str, str]) -> Iterator[Table]:
    """Yield the table of the batches that were left out, if any."""
    yield from reasons("Batches that are left out", "batch", failed)


def not_compared(by_name: Mapping[str, str]) -> Iterator[Table]:
    """Yield the table of the outputs that cannot be compared, with the reasons, if there are any."""
    yield from reasons("Outputs that are not compared", "output", by_name)


def reasons(title: str, what: str, by_name: Mapping[str, str]) -> Iterator[Table]:
    """Yield a table of reasons, if there are any. `what` is what the names belong to."""
    if by_name:
        yield Table(title, [what, "why"], [[*item] for item in by_name.items()])


def outputs(title: str, rows: Sequence[OutputError]) -> Table:
    """Return the table of the outputs' errors, without empty columns."""
    columns = {
        "SQNR, dB": lambda output: cell(output.sqnr_db, ".1f"),
        "cosine": lambda output: cell(output.cosine, ".6f"),
        "largest error": lambda output: cell(output.max_abs_error, ".3g"),
        "mean error": lambda output: cell(output.mean_abs_error, ".3g"),
        "same top": lambda output: cell(output.same_top, ".2%"),
        "accuracy": lambda output: cell(output.accuracy, ".2%"),
        "reference's": lambda output: cell(output.reference_accuracy, ".2%"),
    }
    columns = {name: text for name, text in columns.items() if name in ("SQNR, dB", "cosine") or any(map(text, rows))}
    cells = [[output.name, *(text(output) for text in columns.values())] for output in rows]
    return Table(title, ["output", *(f">{name}" for name in columns)], cells, none="no output can be compared")


def distributions(rows: Sequence[Distribution]) -> Iterator[Table]:
    """Yield the tables of distributions: of the divergences, and of the perplexities, if any has a label."""
    columns = {
        "mean": "mean_divergence",
        "median": "median_divergence",
        "90 %": "divergence_90",
        "99 %": "divergence_99",
        "99.9 %": "divergence_999",
        "largest": "max_divergence",
    }
    if rows:
        cells = [[row.name, *(f"{getattr(row, field):.3g}" for field in columns.values())] for row in rows]
        title = "Divergence of the distribution from the reference's (Kullback-Leibler), nats"
        yield Table(title, ["output", *(f">{name}" for name in columns)], cells)
    if labelled := [row for row in rows if row.perplexity is not None]:
        cells = [
            [
                row.name,
                cell(row.perplexity, ".6g"),
                cell(row.reference_perplexity, ".6g"),
                f"{row.perplexity_ratio:.5f} ± {row.perplexity_ratio_error:.5f}",
                cell(row.probability_change, "+.3%"),
            ]
            for row in labelled
        ]
        names = ["output", ">perplexity", ">reference's", ">ratio, standard error", ">probability of the label"]
        yield Table("Perplexity", names, cells)


def divergences(by_place: Sequence[float]) -> Iterator[Table]:
    """Yield the table of mean divergences in stretches of the texts, if places were measured."""
    if by_place:
        length = -(-len(by_place) // _STRETCHES)
        rows = []
        for first in range(0, len(by_place), length):
            stretch = by_place[first : first + length]
            rows.append([f"{first} to {first + len(stretch) - 1}", f"{sum(stretch) / len(stretch):.3g}"])
        title = "Divergence of the distribution from the reference's (Kullback-Leibler), nats, by place in the texts"
        yield Table(title, [">places", ">mean"], rows)


def tensors(found: Sequence[QuantizedTensor], samples: int, top: int | None = None) -> Table:
    """Return the table of tensors that were measured over so many samples. With `top`, it has at most so many rows, and fewer
    columns."""
    formats = dict.fromkeys(name for row in found for name in row.what_if)
    columns: dict[str, Callable[[QuantizedTensor], str]] = {
        "tensor": lambda row: row.name,
        "kind": lambda row: row.kind,
        "type": lambda row: row.type,
        ">own, dB": lambda row: cell(row.own_sqnr_db, ".1f"),
        ">inherited, dB": lambda row: cell(row.inherited_sqnr_db, ".1f"),
        ">both, dB": lambda row: cell(row.sqnr_db, ".1f"),
        ">cosine": lambda row: cell(row.cosine, ".6f"),
        ">largest error": lambda row: cell(row.max_abs_error, ".3g"),
        ">saturated": lambda row: cell(row.saturated, ".1%"),
        ">to zero": lambda row: cell(row.flushed_to_zero, ".1%"),
        ">range used": lambda row: cell(row.range_used, ".1%"),
        ">place": lambda row: str(row.place),
        "made by": lambda row: row.made_by,
        "used by": lambda row: _few(row.used_by),
        **{f">{name}": _what_if(name) for name in formats},
    }
    if top is not None:
        columns = {name: text for name, text in columns.items() if name not in _WIDE}
    rows = [[text(row) for text in columns.values()] for row in found[:top]]
    title = "Quantized tensors"
    if rows:
        shown = f"the worst {len(rows)} of {len(found)}" if len(rows) < len(found) else "all"
        over = counted(samples, "sample")
        title += f", {shown}, over {over}: SQNR of the own error, the inherited error, and both"
    about = "Own: the error of this rounding alone. Inherited: the error before it is rounded. Both: the error after rounding."
    return Table(title, [*columns], rows, about=about)


def _what_if(name: str) -> Callable[[QuantizedTensor], str]:
    return lambda row: cell(row.what_if.get(name), ".1f")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def effects(found: Sequence[Effect], top: int | None = None) -> Iterator[Table]:
    if found:
        rows = [[row.name, cell(row.on_sqnr_db, ".1f"), cell(row.off_sqnr_db, ".1f")] for row in found[:top]]
        columns = ["name", ">only this quantized, dB", ">only this in float, dB"]
        yield Table("Least SQNR of the outputs, the worst first", columns, rows)


def trade_offs(points: Sequence[TradeOff]) -> Iterator[Table]:
    if points:
        rows = []
        for point in points:
            changes = ", ".join(f"{count} to {name}" for name, count in Counter(point.choices.values()).items())
            folded = Folded(changes, [f"{name} → {to}" for name, to in point.choices.items()])
            rows.append([f"{point.bits / 8e3:,.1f}", cell(point.sqnr_db, ".1f"), folded])
        columns = [">kB of quantized tensors per sample", ">least SQNR of the outputs, dB", "changes"]
        about = (
            "The line starts with the least noise for each tensor and ends with the fewest bits. Each step takes bits from the "
            "tensor that then adds the least noise for each bit saved. The accuracy of each point is measured. Points that "
            "another one beats in both are left out."
        )
        yield Table("Best trade-offs", columns, rows, about=about)


def unmatched(by_name: Mapping[str, str], top: int | None = None) -> Iterator[Table]:
    shown = dict([*by_name.items()][:top])
    if more := len(by_name) - len(shown):
        shown["…"] = f"{more} more"
    yield from reasons("Not measured, or not in full", "name", shown)
