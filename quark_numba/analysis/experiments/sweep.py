"""The sweep: the outputs with only one tensor in float, and with only this tensor quantized, for each quantized tensor or all
those of a node or an operator, as `by` says; the worst comes first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..measures.outputs import Comparison, common, compare, least_sqnr_db
from ..twin.quantizers import Quantizer
from ..twin.segments import Segments
from .experiment import Experiment, Key, Outcome, RunValues

By = Literal["tensor", "node", "operator"]
BY: tuple[By, ...] = ("tensor", "node", "operator")


@dataclass
class Effect:
    """The effect of rounding a tensor, or a group of tensors, on the outputs.

    Both numbers are the least signal-to-quantization-noise ratio of all outputs: `off_sqnr_db` with all other tensors rounded,
    `on_sqnr_db` with no other tensor rounded. With `by`, the groups are the tensors that a node takes, or that all nodes of an
    operator take. All weights, and all activations, are always groups as well. An output that cannot be compared in one case
    does not count in any."""

    name: str
    off_sqnr_db: float
    on_sqnr_db: float


class Sweep(Experiment):
    """The sweep. `by` is the unit of which one at a time is in float, or quantized."""

    where = "the sweep"
    has_runs = True

    def __init__(self, segments: Segments, chosen: Sequence[str] | None, by: By) -> None:
        super().__init__(segments, chosen)
        self.groups = _groups(segments.twin.quantizers, by)

    def runs(self, values: RunValues) -> dict[Key, Callable[[], Comparison]]:
        return {
            (name, "on" if is_on else "off"): functools.partial(self._run, group, is_on, values)
            for name, group in self.groups.items()
            for is_on in (False, True)
        }

    def _run(self, group: list[Quantizer], is_on: bool, values: RunValues) -> Comparison:
        """Return the comparison of the quantized model with a group in float, or of the float model with it quantized."""
        config = {quantizer: quantizer.apply for quantizer in group}
        if not is_on:
            config = {quantizer: rounding for quantizer, rounding in self.segments.quantized.items() if quantizer not in config}
        base = values.floats if is_on else values.quantized
        outputs = self.segments.rerun(base, config, group, quantized=not is_on)
        return compare(outputs, values.reference, self.chosen)

    def report(self, outcome: Outcome) -> dict[str, Any]:
        """Return the effects. The group that makes the outputs worst, if only this group is quantized, comes first."""
        errors = common(outcome.own.outputs)
        effects = [Effect(name, least_sqnr_db(errors[name, "off"]), least_sqnr_db(errors[name, "on"])) for name in self.groups]
        effects.sort(key=_worst_first)
        return {"sweep": effects}


def _worst_first(effect: Effect) -> tuple[bool, float, bool, float]:
    """Return the sort key of an effect. NaN is the worst `on_sqnr_db`; where these are equal, a NaN of the other ratio tells
    nothing."""
    on, off = effect.on_sqnr_db, effect.off_sqnr_db
    return on == on, on, off != off, -off


def _groups(quantizers: Sequence[Quantizer], by: By) -> dict[str, list[Quantizer]]:
    groups: dict[str, list[Quantizer]] = {}
    for quantizer in quantizers:
        if quantizer.floats is None and quantizer.kind == "weight":
            continue  # its float values are unknown
        users = quantizer.users
        names = {"tensor": [quantizer.name], "node": list(users), "operator": list(dict.fromkeys(users.values()))}[by]
        for name in names:
            groups.setdefault(name, []).append(quantizer)
    for kind in ("weight", "activation"):
        groups[f"all {kind}s"] = [quantizer for quantizer in quantizers if quantizer.kind == kind]
    return groups
