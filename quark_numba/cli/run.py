"""The subcommand `run`: run a model, time it, and compare its outputs with a reference."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from . import arguments
from .printing import cell, print_json, print_left, print_not_compared, print_table, progress

if TYPE_CHECKING:
    from ..analysis.measures.outputs import Comparison
    from ..analysis.measures.sums import ErrorSums
    from ..running.sessions import Arrays
    from ..session.prepared import Prepared
    from .inventory import QuantizationNodes


def add_parser(commands: Any) -> None:
    parser = arguments.add_runner(commands, "run", "run a model, time it, and compare it with a reference")
    parser.set_defaults(action=_run)
    parser.add_argument("--reference", metavar="FLOAT_MODEL", help="the float model, to compare with")
    parser.add_argument("--optimize", action="store_true", help="also time the model optimised, as `InferenceSession` runs it")
    arguments.add_cache(parser)
    parser.add_argument("--outputs", metavar="FILE.npz", help="write the outputs, by name")
    parser.add_argument(
        "--expected",
        metavar="FILE.npz",
        help="compare the outputs with those in the file; exit code 1 if they differ by more than T",
    )
    parser.add_argument(
        "--tolerance",
        type=functools.partial(arguments.number, least=0),
        metavar="T",
        help="the largest difference from --expected that is allowed (default: 0)",
    )


@dataclass(frozen=True)
class Timed:
    """The seconds that a model took to load, and the median of its runs."""

    model: str
    load_seconds: float
    median_seconds: float


@dataclass(frozen=True)
class Expected:
    """The errors of the outputs, by name, against those in a file."""

    file: str
    tolerance: float
    errors: Mapping[str, ErrorSums]

    @property
    def holds(self) -> bool:
        return all(each.largest <= self.tolerance for each in self.errors.values())


@dataclass(frozen=True)
class Measurements:
    """The measurements of `run`; None for those that the options did not ask for."""

    inputs: Arrays  # of the first batch
    batches: int
    threads: int  # of a session; 0: ONNX Runtime's choice
    model: Timed
    optimised: Timed | None
    optimisation: Prepared | None  # the optimised model, and the nodes that were left
    reference: Timed | None
    comparison: Comparison | None  # with the reference's outputs, over all batches
    expected: Expected | None

    def ratio(self, timed: Timed) -> float:
        """Return the latency of a model in units of the reference's."""
        assert self.reference
        return timed.median_seconds / self.reference.median_seconds

    def json(self) -> dict[str, Any]:
        """Return dicts and lists, with the names and in the order that `run --json` prints."""
        report: dict[str, Any] = {
            "inputs": {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in self.inputs.items()},
            "batches": self.batches,
            "threads": self.threads or "default",
            "load_seconds": self.model.load_seconds,
            "median_seconds": self.model.median_seconds,
        }
        if self.optimised and self.optimisation:
            ratio = {"latency_ratio": self.ratio(self.optimised)} if self.reference else {}
            report["optimised"] = asdict(self.optimised) | self.optimisation.json() | ratio
        if self.reference and self.comparison:
            report["reference"] = {
                **asdict(self.reference),
                "latency_ratio": self.ratio(self.model),
                "outputs": _json_errors(self.comparison.errors),
                "not_compared": self.comparison.reasons,
            }
        if self.expected:
            report["expected"] = {
                "file": self.expected.file,
                "tolerance": self.expected.tolerance,
                "outputs": _json_errors(self.expected.errors),
                "holds": self.expected.holds,
            }
        return report


def _json_errors(errors: Mapping[str, ErrorSums]) -> list[dict[str, Any]]:
    return [{"output": name, "sqnr_db": sums.sqnr_db, "largest_difference": sums.largest} for name, sums in errors.items()]


def _run(options: argparse.Namespace) -> int:
    from .inventory import quantization_nodes

    arguments.check_written(options, "outputs")
    models = [(path, quantization_nodes(path)) for path in (options.model, options.reference) if path]
    nodes = models[0][1]
    if not options.json:
        rows = [[each.operator, each.element_type, str(each.count), _who(each)] for each in nodes]
        columns = ["operator", "type", ">nodes", "run by"]
        print_table(f"Quantization nodes of {options.model}", columns, rows)
    measured = _measure(options, models)
    if options.json:
        json_nodes = [asdict(each) | ({"why": each.why} if each.why else {}) for each in nodes]
        print_json({"model": options.model, "nodes": json_nodes, **measured.json()})
    else:
        _print(measured)
    return 0 if measured.expected is None or measured.expected.holds else 1


def _who(nodes: QuantizationNodes) -> str:
    return f"{nodes.run_by}: {nodes.why}" if nodes.why else nodes.run_by


def _measure(options: argparse.Namespace, models: list[tuple[str, list[QuantizationNodes]]]) -> Measurements:
    """Run the models, given as paths and quantization nodes, and return the measurements. The first may run optimised, too."""
    from ..analysis.measures.outputs import compare
    from ..running.sessions import run
    from . import measuring

    contenders = [(*model, False) for model in models]
    if options.optimize:
        contenders.insert(1, (*models[0], True))
    sessions, loaded = [], []
    optimisation = comparison = None
    with ExitStack() as stack:
        for path, nodes, is_optimised in contenders:
            with progress(f"loading {path}{' optimised' * is_optimised}") as tick:
                start = time.perf_counter()
                optimised = None
                if is_optimised:
                    how = {"backend": options.backend, "cache": options.cache}
                    optimised = optimisation = stack.enter_context(measuring.optimised(path, **how))
                sessions.append(
                    measuring.create_session(path, nodes, optimised=optimised, backend=options.backend, threads=options.threads)
                )
                loaded.append((path + ", optimised" * is_optimised, time.perf_counter() - start))
                tick()
        stack.callback(sessions.clear)  # before the files are removed: Windows removes no file that a session reads
        batches = arguments.batches_of(options, sessions[0])
        inputs = next(batches)
        outputs = [run(session, inputs) for session in sessions]
        with progress("running", measuring.ticks(len(sessions), options.runs)) as tick:
            medians = measuring.latencies(sessions, inputs, options.runs, tick)
        if options.reference:
            comparison = compare(outputs[0], outputs[-1])
        count = 1
        with progress("running the other batches") as tick:
            for batch in batches:
                if options.outputs or options.expected:
                    raise ModelError("--outputs and --expected are for one batch; the data have more")
                y = run(sessions[0], batch)
                if comparison:
                    comparison.add(compare(y, run(sessions[-1], batch)))
                count += 1
                tick()
    timed = [Timed(*name_and_seconds, median) for name_and_seconds, median in zip(loaded, medians, strict=True)]
    if options.outputs:
        measuring.write_arrays(options.outputs, outputs[0])
    return Measurements(
        inputs,
        count,
        options.threads,
        timed[0],
        timed[1] if options.optimize else None,
        optimisation,
        timed[-1] if options.reference else None,
        comparison,
        _compare_with_file(options, outputs[0]) if options.expected else None,
    )


def _compare_with_file(options: argparse.Namespace, outputs: Arrays) -> Expected:
    from ..analysis.measures.outputs import compare
    from ..running.files import read_arrays

    compared = compare(outputs, read_arrays(options.expected, list(outputs)))
    for name, reason in compared.reasons.items():
        raise ModelError(f"output {name} {reason}")
    return Expected(options.expected, options.tolerance or 0.0, compared.errors)


def _print(measured: Measurements) -> None:
    inputs = ", ".join(f"{name} {x.dtype} {x.shape}" for name, x in measured.inputs.items())
    columns = ["model", ">load, ms", ">median latency, ms"] + ([">ratio"] if measured.reference else [])
    rows = []
    for each in filter(None, (measured.model, measured.optimised, measured.reference)):
        ratio = [f"{measured.ratio(each):.2f}"] if measured.reference else []
        rows.append([Path(each.model).name, f"{1e3 * each.load_seconds:.0f}", f"{1e3 * each.median_seconds:.2f}", *ratio])
    print_table(f"Time (threads: {measured.threads or 'default'}; inputs: {inputs})", columns, rows)
    if measured.optimisation:
        print_left(measured.optimisation)
    if measured.comparison:
        _print_errors("Difference from the reference", measured.comparison.errors)
        print_not_compared(measured.comparison.reasons)
    if measured.expected:
        holds = "within" if measured.expected.holds else "beyond"
        title = f"Difference from {measured.expected.file}: {holds} the tolerance of {measured.expected.tolerance:g}"
        _print_errors(title, measured.expected.errors)


def _print_errors(title: str, errors: Mapping[str, ErrorSums]) -> None:
    rows = [[name, cell(each.sqnr_db, ".1f"), cell(each.largest, ".3g")] for name, each in errors.items()]
    print_table(title, ["output", ">SQNR, dB", ">largest difference"], rows)
