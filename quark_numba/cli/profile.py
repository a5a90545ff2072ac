"""The subcommand `profile`: where the time goes, before and after the model is optimized, in tables by kind, by operator and by
node."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING

from . import arguments
from .printing import print_json, print_left, print_table, progress

if TYPE_CHECKING:
    from .measuring import NodeTime

PURPOSE = "show where the time goes, before and after the model is optimized"


def add_options(parser: argparse.ArgumentParser) -> None:
    arguments.add_runner(parser)
    arguments.add_qdq(parser)
    arguments.add_cache(parser)
    arguments.add_top(parser, 10)


def action(options: argparse.Namespace) -> int:
    from . import inventory, measuring

    nodes = inventory.quantization_nodes(options.model)
    times = {}
    with ExitStack() as stack:
        with progress(f"optimizing {options.model}"):
            how = arguments.given_of(options, "qdq", "cache", "providers")
            optimized = stack.enter_context(measuring.artifact_of(options.model, **how))
        artifacts = {"before": None, "after": optimized}
        if arguments.has_other_providers(options):
            del artifacts["before"]  # its custom operators run on the CPU provider alone
        for name, artifact in artifacts.items():
            with progress(f"profiling, {name} it is optimized"):
                times[name] = measuring.node_times(options, nodes, artifact)
    if options.json:
        print_json({name: [row._asdict() for row in rows] for name, rows in times.items()} | optimized.report())
    else:
        _print_times(times, options.top)
        print_left(optimized)
    return 0


def _print_times(times: dict[str, list[NodeTime]], most: int) -> None:
    """Print tables by kind, by operator and by node. The keys of `times` are "before" and "after" optimization, or the
    latter."""
    from ..catalog import OPERATORS

    columns = [f">{column}" for name in times for column in (f"nodes {name}", "ms", "share")]
    seconds: dict[str, float] = {}
    for node in itertools.chain.from_iterable(times.values()):
        seconds[node.operator] = seconds.get(node.operator, 0.0) + node.seconds
    quantizing = seconds.keys() & {operator.name for operator in OPERATORS}
    kinds = [
        _line("quantization", times, quantizing),
        _line("the rest", times, seconds.keys() - quantizing),
        _line("all", times, seconds.keys()),
    ]
    print_table("Time of a run by ONNX Runtime's profiler, which adds a little to each node", ["", *columns], kinds)
    slowest_first = sorted(seconds, key=lambda operator: -seconds[operator])
    by_operator = [_line(name, times, [name]) for name in slowest_first]
    print_table("By operator", ["operator", *columns], by_operator)
    for name, nodes in times.items():
        rows = [[node.node, node.operator, f"{1e6 * node.seconds:.0f}"] for node in nodes[:most]]
        print_table(f"The slowest nodes, {name}", ["node", "operator", ">us"], rows)


def _line(name: str, times: dict[str, list[NodeTime]], operators: Collection[str]) -> list[str]:
    """Return the cells of a row: the number of nodes of operators, their time, and its share of the whole, before and after."""
    cells = [name]
    for nodes in times.values():
        chosen = [node.seconds for node in nodes if node.operator in operators]
        total = sum(node.seconds for node in nodes)
        share = sum(chosen) / total if total else 0.0
        cells += [str(len(chosen)), f"{1e3 * sum(chosen):.3f}", f"{share:.0%}"] if chosen else ["", "", ""]
    return cells
