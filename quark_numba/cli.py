"""The command ``quark-numba``, also ``python -m quark_numba``."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import __version__
from .errors import ModelError

if TYPE_CHECKING:
    from . import model_run
    from .element_types import ElementType

_DISTRIBUTIONS = ("numpy", "numba", "ml_dtypes", "onnx", "onnxruntime", "onnxruntime-extensions")

_output = Console(highlight=False)
_messages = Console(stderr=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, 1 if a model cannot be used; exits with 2 on wrong arguments."""
    options = _parser().parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: _tell("yellow", "warning", message)
        try:
            code: int = options.action(options)
        except ModelError as error:
            _tell("red", "error", error)
            return 1
        except KeyboardInterrupt:
            return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quark-numba", description="Run models that AMD Quark quantized, in ONNX Runtime.")
    parser.add_argument("--version", action="version", version=f"quark-numba {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = _add_runner(commands, "run", "run a model, time it, and compare it with a reference")
    run.set_defaults(action=_run)
    run.add_argument("--reference", metavar="FLOAT_MODEL", help="the model before it was quantized, to compare with")

    profile = _add_runner(commands, "profile", "show where the time goes, before and after the model is optimised")
    profile.set_defaults(action=_profile)
    profile.add_argument("--standard-ops", action="store_true", help=_STANDARD_OPS)
    profile.add_argument("--nodes", type=_positive, default=10, metavar="N", help="to show one by one (default: %(default)s)")

    optimize = commands.add_parser("optimize", help="write a model that gives the same, faster")
    optimize.set_defaults(action=_optimize)
    optimize.add_argument("model", metavar="IN", help="an ONNX model")
    optimize.add_argument("out", metavar="OUT", help="the optimised model; tensors beyond 2 GiB go to OUT.data")
    optimize.add_argument("--keep-codes", action="store_true", help="leave constants quantized: a smaller, slower model")
    optimize.add_argument("--standard-ops", action="store_true", help=_STANDARD_OPS)
    optimize.add_argument("--json", action="store_true", help="print one JSON object instead of tables")

    warmup = commands.add_parser("warmup", help="compile ahead, into the cache, what calls and sessions need")
    warmup.set_defaults(action=_warmup)
    warmup.add_argument(
        "--types",
        nargs="+",
        choices=_quantized_types(),
        metavar="TYPE",
        help="to and from float32, for calls and sessions (default: those of Quark's operators, unless there is a model): "
        + ", ".join(_quantized_types()),
    )
    warmup.add_argument("--model", metavar="FILE", help="what a session of this ONNX model needs")

    types = commands.add_parser("types", help="print which types each operator has, since which version, and where they run")
    types.set_defaults(action=_types)
    types.add_argument("--json", action="store_true", help="print JSON instead of a table")

    info = commands.add_parser("info", help="print versions, the backend in use, and threads")
    info.set_defaults(action=_info)
    info.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


_STANDARD_OPS = "run ONNX's own operators by this package, too, and not by ONNX Runtime"


def _add_runner(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    """A command that runs a model."""
    runner: argparse.ArgumentParser = commands.add_parser(name, help=purpose)
    runner.add_argument("model", metavar="MODEL", help="an ONNX model")
    inputs = runner.add_mutually_exclusive_group()
    inputs.add_argument("--inputs", metavar="FILE.npz", help="inputs by name (default: random, of the model's shapes)")
    inputs.add_argument(
        "--dim",
        type=_dimension,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a free dimension of random inputs, by its name or as INPUT[AXIS] (default: 1)",
    )
    runner.add_argument("--backend", choices=("native", "extensions"), help="default: native where it is available")
    runner.add_argument("--threads", type=_positive, default=0, metavar="N", help="of a session (default: ONNX Runtime's)")
    runner.add_argument("--runs", type=_positive, default=50, metavar="N", help="for the medians (default: %(default)s)")
    runner.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return runner


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _dimension(text: str) -> tuple[str, int]:
    name, separator, value = text.rpartition("=")
    if not name or not separator or not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N")
    return name, int(value)


def _run(options: argparse.Namespace) -> int:
    from . import model_run

    models = [(path, model_run.quantization_nodes(path)) for path in (options.model, options.reference) if path]
    report: dict[str, Any] = {
        "model": options.model,
        "nodes": [{**asdict(counted), "run_by": counted.run_by} for counted in models[0][1]],
    }
    if not options.json:
        _print_nodes(report)
    report |= _measurements(options, models)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _print_measurements(report)
    return 0


def _warmup(options: argparse.Namespace) -> int:
    from . import model_run
    from .element_types import find
    from .operators import newest_versions

    names = options.types or ([] if options.model else [row.name for row in newest_versions("com.amd.quark")[0].quantized])
    with _progress("compiling", 2 * len(_FORMS) * len(names) + bool(options.model)) as tick:
        for name in names:
            _compile(find(name), tick)
        if options.model:
            model_run.create_session(options.model, model_run.quantization_nodes(options.model))
            tick()
    return 0


# What calls on small, on large and on huge arrays need, and sessions.
_FORMS = ("serial", "parallel", "past_cache", "task")


def _compile(row: ElementType | None, tick: Callable[[], None]) -> None:
    from . import dispatch
    from .element_types import FLOAT32
    from .ort import compute

    assert row
    compute.compute_function()
    compute.destroy_function()
    for key in (
        dispatch.key("quantize", FLOAT32, FLOAT32, row),
        dispatch.key("dequantize", row, FLOAT32, FLOAT32),
    ):
        for form in _FORMS:
            getattr(dispatch.TABLE[key], form)
            tick()


def _quantized_types() -> list[str]:
    from .operators import types

    return [row.name for row in types("quantize", "y")]


def _measurements(options: argparse.Namespace, models: list[tuple[str, list[model_run.QuantizationNodes]]]) -> dict[str, Any]:
    """What ``run`` finds out by running, in JSON's types. `models`: paths and quantization nodes."""
    from . import model_run

    sessions, load_times = [], []
    for path, nodes in models:
        with _progress(f"loading {path}") as tick:
            start = time.perf_counter()
            sessions.append(model_run.create_session(path, nodes, backend=options.backend, threads=options.threads))
            load_times.append(time.perf_counter() - start)
            tick()
    inputs = _inputs(options, sessions[0])
    outputs = [model_run.run(session, inputs) for session in sessions]
    with _progress("running", model_run.ticks(len(sessions), options.runs)) as tick:
        medians = model_run.latencies(sessions, inputs, options.runs, tick)
    report: dict[str, Any] = {
        "inputs": {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in inputs.items()},
        "threads": options.threads or "default",
        "load_seconds": load_times[0],
        "median_seconds": medians[0],
    }
    if options.reference:
        report["reference"] = {
            "model": options.reference,
            "load_seconds": load_times[1],
            "median_seconds": medians[1],
            "latency_ratio": medians[0] / medians[1],
            "outputs": [
                {"output": d.output, "sqnr_db": _json_number(d.sqnr_db), "largest_difference": _json_number(d.largest)}
                for d in model_run.differences(*outputs)
            ],
        }
    return report


def _inputs(options: argparse.Namespace, session: Any) -> model_run.Arrays:
    from . import model_run

    if options.inputs:
        return model_run.read_inputs(session, options.inputs)
    return model_run.random_inputs(session, dict(options.dim))


def _optimize(options: argparse.Namespace) -> int:
    from . import model_files, optimization

    with _progress(f"optimising {options.model}"):
        result = optimization.optimized(options.model, keep_codes=options.keep_codes, standard_ops=options.standard_ops)
        model_files.save(result.model, options.out)
    accounts = {"done": result.done, "left": result.left}
    if options.json:
        rows = {
            name: [{"operator": operator, "nodes": count, key: text} for (operator, text), count in sorted(account.items())]
            for (name, account), key in zip(accounts.items(), ("what", "why"), strict=True)
        }
        print(json.dumps({"model": options.model, "out": options.out, **rows}, indent=2))
        return 0
    for account, title, column in (
        (result.done, f"Quantization nodes that {options.out} has no more", "what was done"),
        (result.left, "Quantization nodes that were left", "why"),
    ):
        lines = [[operator, str(count), text] for (operator, text), count in sorted(account.items())]
        _print_table(title, ["operator", ">nodes", column], lines or [["none", "", ""]])
    return 0


def _profile(options: argparse.Namespace) -> int:
    from . import model_files, model_run, optimization

    nodes = model_run.quantization_nodes(options.model)
    times = {}
    optimised = optimization.optimize(options.model, standard_ops=options.standard_ops)
    with model_files.session_source(optimised) as source:
        for name, content in {"before": None, "after": source}.items():
            with _progress(f"profiling, {name} it is optimised"):
                times[name] = model_run.node_times(
                    options.model,
                    nodes,
                    lambda session: _inputs(options, session),
                    options.runs,
                    backend=options.backend,
                    threads=options.threads,
                    content=content,
                    standard_ops=options.standard_ops,
                )
    if options.json:
        print(json.dumps({name: [asdict(each) for each in each_times] for name, each_times in times.items()}, indent=2))
        return 0
    _print_profile(times, options.nodes)
    return 0


def _print_profile(times: dict[str, list[model_run.NodeTime]], most: int) -> None:
    """By kind, by operator and by node, of the model before and after it was optimised."""

    def line(name: str, chosen: Callable[[model_run.NodeTime], bool]) -> list[str]:
        cells = [name]
        for each_times in times.values():
            seconds = [each.seconds for each in each_times if chosen(each)]
            total = sum(each.seconds for each in each_times)
            share = sum(seconds) / total if total else 0.0
            cells += [str(len(seconds)), f"{1e3 * sum(seconds):.3f}", f"{share:.0%}"] if seconds else ["", "", ""]
        return cells

    columns = [f">{column}" for name in times for column in (f"nodes {name}", "ms", "share")]
    kinds = [
        line("quantization", lambda each: each.quantizes),
        line("the rest", lambda each: not each.quantizes),
        line("all", lambda each: True),
    ]
    _print_table("Time of a run, as ONNX Runtime's profiler has it, which adds some to each node", ["", *columns], kinds)
    seconds: dict[str, float] = {}
    for each in itertools.chain.from_iterable(times.values()):
        seconds[each.operator] = seconds.get(each.operator, 0.0) + each.seconds
    by_operator = [line(name, functools.partial(_is_of, name)) for name in sorted(seconds, key=lambda name: -seconds[name])]
    _print_table("By operator", ["operator", *columns], by_operator)
    for name, each_times in times.items():
        rows = [[each.node, each.operator, f"{1e6 * each.seconds:.0f}"] for each in each_times[:most]]
        _print_table(f"The slowest nodes, {name}", ["node", "operator", ">µs"], rows)


def _is_of(operator: str, each: model_run.NodeTime) -> bool:
    return each.operator == operator


def _json_number(value: float) -> float | str:
    """JSON has no infinities and no NaN."""
    return value if math.isfinite(value) else str(value)


def _print_nodes(report: dict[str, Any]) -> None:
    rows = [[n["operator"], n["element_type"], str(n["count"]), n["run_by"]] for n in report["nodes"]]
    columns = ["operator", "type", ">nodes", "run by"]
    _print_table(f"Quantization nodes of {report['model']}", columns, rows or [["none", "", "", ""]])


def _print_measurements(report: dict[str, Any]) -> None:
    inputs = ", ".join(f"{name} {i['dtype']} {tuple(i['shape'])}" for name, i in report["inputs"].items())
    rows = [_timing(report)]
    reference = report.get("reference")
    if reference:
        rows = [[*rows[0], f"{reference['latency_ratio']:.2f}"], [*_timing(reference), "1.00"]]
    columns = ["model", ">load, ms", ">median latency, ms"] + ([">ratio"] if reference else [])
    _print_table(f"Time (threads: {report['threads']}; inputs: {inputs})", columns, rows)

    if reference:
        rows = [
            [o["output"], _number(o["sqnr_db"], ".1f"), _number(o["largest_difference"], ".3g")] for o in reference["outputs"]
        ]
        _print_table("Difference from the reference", ["output", ">SQNR, dB", ">largest difference"], rows)


def _timing(report: dict[str, Any]) -> list[str]:
    return [Path(report["model"]).name, f"{1e3 * report['load_seconds']:.0f}", f"{1e3 * report['median_seconds']:.2f}"]


def _number(value: float | str, form: str) -> str:
    return value if isinstance(value, str) else format(value, form)


def _info(options: argparse.Namespace) -> int:
    import numba
    import onnxruntime

    from .ort import get_library_path

    try:
        get_library_path()
        backend, reason = "native", "the default where it is available"
    except RuntimeError as error:
        backend, reason = "extensions", f"the native way is not available: {error}"
    facts = {
        "quark_numba": __version__,
        "Python": platform.python_version(),
        **{name: version(name) for name in _DISTRIBUTIONS},
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": backend,
        "why": reason,
        "threads of direct calls": numba.get_num_threads(),
        "threads of a session": f"the session's own; {onnxruntime.get_device()} provider",
    }
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _print_table("", ["", ""], [[name, str(value)] for name, value in facts.items()])
    return 0


def _types(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(type_rows(), indent=2))
        return 0
    for operator, columns, rows in type_tables():
        _print_table(operator, columns, rows)
    _output.print(TYPES_LEGEND, soft_wrap=True)
    return 0


TYPES_LEGEND = (
    "Numbers: the version (of ONNX's operators: the opset) since which the type is there with this type of scale, or "
    "of block formats with this type of x. Where it "
    "runs: A, on arrays and in onnx's ReferenceEvaluator; S, in sessions of the native way, of ONNX's own operators with "
    "standard_ops; E, in sessions of the onnxruntime-extensions way."
)


def type_rows() -> list[dict[str, Any]]:
    """For each operator and quantized type: the first version that takes it with each type of scale (block formats have none:
    with each type of x), and where it runs."""
    from .block_formats import BLOCK_OPERATORS, X_TYPES
    from .operators import OPERATOR_VERSIONS, newest_versions
    from .ort import extensions, native

    rows: list[dict[str, Any]] = []
    for newest in itertools.chain.from_iterable(map(newest_versions, ("", "com.amd.quark", "quark_numba"))):
        versions = [version for version in OPERATOR_VERSIONS if version.full_name == newest.full_name]
        for row in newest.quantized:
            since = {
                scale.name: min(v.since_version for v in versions if row in v.quantized and scale in v.scale)
                for scale in newest.scale
            }
            ways = {
                "arrays": True,
                "native": native.has_tensors(row),
                "extensions": newest in extensions.VERSIONS and extensions.carries(row),
            }
            rows.append({"operator": newest.full_name, "type": row.name, "scales": since, **ways})
    for operator in BLOCK_OPERATORS:
        if operator.domain == "com.amd.quark":
            ways = {"arrays": True, "native": True, "extensions": True}
            since = {row.name: 1 for row in X_TYPES}
            rows += [{"operator": operator.full_name, "type": name, "x": since, **ways} for name in operator.formats]
    return rows


def type_tables() -> list[tuple[str, list[str], list[list[str]]]]:
    """`type_rows` as text: for each operator its name, the names of columns, and rows."""
    tables = []
    for operator, group in itertools.groupby(type_rows(), key=lambda row: row["operator"]):
        rows = list(group)
        operand = "scales" if "scales" in rows[0] else "x"
        columns = list(rows[0][operand])
        lines = []
        for row in rows:
            ways = {"A": row["arrays"], "S": row["native"], "E": row["extensions"]}
            where = " ".join(letter for letter, runs in ways.items() if runs)
            lines.append([row["type"], *(str(row[operand][column]) for column in columns), where])
        tables.append((operator, ["type", *columns, "where"], lines))
    return tables


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns whose name begins with ">" are aligned to the right."""
    if title:
        _output.print(f"[bold]{escape(title)}", soft_wrap=True)
    table = Table(show_header=any(columns))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    _output.print(table)


def _tell(style: str, what: str, message: object) -> None:
    _messages.print(f"[{style}]{what}:[/] {escape(str(message))}", soft_wrap=True)


@contextmanager
def _progress(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, gone when it is done. Yields what is to be called after each of `total` steps."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_messages, transient=True, disable=not _messages.is_terminal) as progress:
        task = progress.add_task(escape(what), total=total)
        yield lambda: progress.advance(task)
