"""The sweep: each quantized tensor left in float alone, and quantized alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .outputs import Comparison, Errors, common, compare
from .program import Program
from .quantizers import Quantizer

By = Literal["tensor", "node", "operator"]
BY: tuple[By, ...] = ("tensor", "node", "operator")


@dataclass
class Effect:
    """What rounding a tensor does to the outputs: their least signal-to-quantization-noise ratio with all others rounded and
    this one not, and with this one rounded and no other. With `by`, of all tensors that a node takes, or that all nodes of an
    operator take; and, in any case, of all weights, and of all activations. Outputs that cannot be compared in one case count
    in none."""

    name: str
    off_sqnr_db: float
    on_sqnr_db: float


def groups_of(program: Program, by: By) -> dict[str, list[Quantizer]]:
    groups: dict[str, list[Quantizer]] = {}
    for each in program.twin.quantizers:
        if each.weight is None and each.kind == "weight":
            continue  # there is no float tensor
        names = {"tensor": [each.name], "node": list(each.users), "operator": list(dict.fromkeys(each.users.values()))}[by]
        for name in names:
            groups.setdefault(name, []).append(each)
    for kind, name in (("weight", WEIGHTS), ("activation", ACTIVATIONS)):
        groups[name] = [each for each in program.twin.quantizers if each.kind == kind]
    return groups


WEIGHTS, ACTIVATIONS = "all weights", "all activations"


@dataclass
class Variant:
    """What is run: the quantized model without a group, or the float model with it."""

    name: str
    group: list[Quantizer]
    is_on: bool


def variants(groups: Mapping[str, list[Quantizer]]) -> Iterator[Variant]:
    for name, group in groups.items():
        yield Variant(name, group, False)
        yield Variant(name, group, True)


def run_variant(
    program: Program,
    variant: Variant,
    quantized: Mapping[str, Any],
    floats: Mapping[str, Any],
    reference: Mapping[str, Any],
    chosen: Sequence[str] | None,
) -> Comparison:
    """`quantized` and `floats` are all values of the quantized and of the float model."""
    config = {each: each.apply for each in variant.group}
    if not variant.is_on:
        config = {each: rounding for each, rounding in program.quantized.items() if each not in config}
    base = floats if variant.is_on else quantized
    return compare(program.rerun(base, config, variant.group, quantized=not variant.is_on), reference, chosen)


def least_sqnr_db(errors: Errors) -> float:
    """Of all outputs; NaN counts as the least."""
    ratios = [each.sqnr_db for each in errors.values()]
    return min(ratios, key=lambda ratio: (ratio == ratio, ratio), default=float("nan"))


def ranked(sums: Mapping[tuple[str, bool], Comparison]) -> list[Effect]:
    """The one first with which alone the outputs are worst."""
    errors = common(sums)
    names = dict.fromkeys(name for name, _ in sums)
    effects = [Effect(name, least_sqnr_db(errors[name, False]), least_sqnr_db(errors[name, True])) for name in names]
    return sorted(effects, key=lambda each: (each.on_sqnr_db == each.on_sqnr_db, each.on_sqnr_db, -each.off_sqnr_db))
