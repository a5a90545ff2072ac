"""The command ``quark-numba``, also ``python -m quark_numba``."""

from __future__ import annotations

import argparse
import errno
import functools
import importlib
import itertools
import json
import logging
import math
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from ..version import __version__
from . import accuracy, arguments
from .arguments import positive
from .printing import OUTPUT, print_not_compared, print_table, progress, tell

if TYPE_CHECKING:
    from ..analysis.measures.sums import ErrorSums
    from ..element_types import ElementType
    from ..running import sessions
    from . import measuring
    from .inventory import QuantizationNodes

_DISTRIBUTIONS = ("numpy", "numba", "ml_dtypes", "onnx", "onnxruntime", "onnxruntime-extensions")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0; 1 if a model cannot be used, or does not give what is expected; 130 on Ctrl-C. Exits with 2
    on wrong arguments."""
    try:
        parser = _parser()
        options = parser.parse_args(words)
        arguments.check_data(parser, options)
        with warnings.catch_warnings(), _compiling_is_told():
            warnings.simplefilter("default")
            warnings.showwarning = lambda message, *_, **__: tell("yellow", "warning", message)
            code: int = options.action(options)
            if sys.stdout:
                sys.stdout.flush()
            return code
    except ModelError as error:
        tell("red", "error", error)
        return 1
    except OSError as error:  # of the output: a full disk, or whoever read it has seen enough
        nobody_reads = isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL)
        if not nobody_reads:
            tell("red", "error", f"the output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        # What is being compiled gets finished before the process ends, and another Ctrl-C would not change that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 130


@contextmanager
def _compiling_is_told() -> Iterator[None]:
    """Once, where the library only logs it: the first use takes long."""

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logger.removeHandler(self)
            tell("dim", "first use", f"compiling kernels takes some seconds; to be kept in {record.args[1]}")  # type: ignore[index]

    logger = logging.getLogger("quark_numba.compiling")
    level, handler = logger.level, Teller(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quark-numba", description="Run models that AMD Quark quantized, in ONNX Runtime.")
    parser.add_argument("--version", action="version", version=f"quark-numba {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = _add_runner(commands, "run", "run a model, time it, and compare it with a reference")
    run.set_defaults(action=_run)
    run.add_argument("--reference", metavar="FLOAT_MODEL", help="the model before it was quantized, to compare with")
    run.add_argument("--optimize", action="store_true", help="time the model also as `InferenceSession` runs it: optimised")
    run.add_argument("--outputs", metavar="FILE.npz", help="write the outputs, by name")
    run.add_argument("--expected", metavar="FILE.npz", help="compare the outputs with these; exit code 1 if they differ")
    run.add_argument(
        "--tolerance",
        type=arguments.tolerance,
        default=0.0,
        metavar="T",
        help="the largest difference from --expected (default: 0)",
    )

    profile = _add_runner(commands, "profile", "show where the time goes, before and after the model is optimised")
    profile.set_defaults(action=_profile)
    profile.add_argument("--standard-ops", action="store_true", help=_STANDARD_OPS)
    profile.add_argument("--nodes", type=positive, default=10, metavar="N", help="to show one by one (default: %(default)s)")

    accuracy.add_commands(commands)

    optimize = commands.add_parser("optimize", help="write a model that gives the same, faster")
    optimize.set_defaults(action=_optimize)
    optimize.add_argument("model", metavar="IN", help="an ONNX model")
    optimize.add_argument("out", metavar="OUT", help="the optimised model; tensors beyond 2 GiB go to OUT.data")
    optimize.add_argument("--keep-codes", action="store_true", help="leave constants quantized: a smaller, slower model")
    optimize.add_argument("--standard-ops", action="store_true", help=_STANDARD_OPS)
    optimize.add_argument(
        "--no-regions", action="store_true", help="leave elementwise nodes by themselves, as onnxruntime-extensions needs it"
    )
    optimize.add_argument("--json", action="store_true", help="print one JSON object instead of tables")

    warmup = commands.add_parser("warmup", help="compile ahead, into the cache, what calls and sessions need")
    warmup.set_defaults(action=_warmup)
    warmup.add_argument(
        "--types",
        nargs="+",
        choices=_quantized_types(),
        metavar="TYPE",
        help="to and from float32, for calls and sessions (default: those of Quark's operators, with its normalization and "
        "LSTM layer, unless there is a model): " + ", ".join(_quantized_types()),
    )
    warmup.add_argument("--model", metavar="FILE", help="what sessions of this ONNX model need, as it is and optimised")

    types = commands.add_parser("types", help="print which types each operator has, since which version, and where they run")
    types.set_defaults(action=_types)
    types.add_argument("--json", action="store_true", help="print JSON instead of a table")

    info = commands.add_parser("info", help="print versions, the backend in use, threads, and the cache of compiled kernels")
    info.set_defaults(action=_info)
    info.add_argument("--clear-cache", action="store_true", help="remove the compiled kernels first, of all versions")
    info.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


_STANDARD_OPS = "run ONNX's own operators by this package, too, and not by ONNX Runtime"


def _add_runner(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    """A command that runs a model."""
    runner: argparse.ArgumentParser = commands.add_parser(name, help=purpose)
    runner.add_argument("model", metavar="MODEL", help="an ONNX model")
    arguments.add_data(runner, inputs=True)
    runner.add_argument("--backend", choices=("native", "extensions"), help="default: native where it is available")
    arguments.add_threads(runner)
    runner.add_argument("--runs", type=positive, default=50, metavar="N", help="for the medians (default: %(default)s)")
    runner.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return runner


def _run(options: argparse.Namespace) -> int:
    from . import inventory

    models = [(path, inventory.quantization_nodes(path)) for path in (options.model, options.reference) if path]
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
    return 0 if report.get("expected", {}).get("holds", True) else 1


def _warmup(options: argparse.Namespace) -> int:
    from ..element_types import find
    from ..rewriting import model_files
    from . import inventory, measuring

    names = options.types or ([] if options.model else _quark_types())
    wings = [] if options.types or options.model else _wings_of_one_kernel()
    steps = len(_FORMS) * (2 * len(names) + len(wings)) + bool(options.model)
    with progress("compiling", steps) as tick:
        for name in names:
            _compile(find(name), tick)
        for wing in wings:
            _compile_wing(wing, tick)
        if options.model:
            nodes = inventory.quantization_nodes(options.model)
            measuring.create_session(options.model, nodes)
            with model_files.session_source(measuring.optimised(options.model).model) as content:
                measuring.create_session(options.model, nodes, content=content)
            tick()
    if not options.model:
        tell(
            "dim", "not covered", "per type of a model: block formats, ONNX's own operators, optimised models; --model FILE is"
        )
    return 0


# What calls on small and on large arrays need, and sessions.
_FORMS = ("serial", "parallel", "task")


def _compile(element_type: ElementType | None, tick: Callable[[], None]) -> None:
    from ..element_types import FLOAT32
    from ..linear.dispatch import TABLE
    from ..linear.kernels import widen_function
    from ..linear.key import select
    from ..ort import callbacks
    from ..ort.nodes import linear

    assert element_type
    callbacks.compiled(linear.compute, "compute_linear")
    for key in (
        select("quantize", FLOAT32, FLOAT32, element_type, element_type),
        select("dequantize", element_type, FLOAT32, element_type, FLOAT32),
    ):
        widen_function(element_type, key.zero_point_dtype)
        for form in _FORMS:
            getattr(TABLE[key], form)
            tick()


def _wings_of_one_kernel() -> list[str]:
    """Of those that have operators of Quark's."""
    from ..catalog import OPERATORS

    wings = dict.fromkeys(operator.wing for operator in OPERATORS.newest("com.amd.quark"))
    return [wing for wing in wings if len(importlib.import_module(f"..{wing}.dispatch", __package__).TABLE) == 1]


def _compile_wing(name: str, tick: Callable[[], None]) -> None:
    from ..ort import callbacks

    node = importlib.import_module(f"..ort.nodes.{name}", __package__)
    for function in ("compute", "prepare", "destroy"):
        if hasattr(node, function):
            callbacks.compiled(getattr(node, function), f"{function}_{name}")
    for kernel in node.TABLE.values():
        for form in _FORMS:
            getattr(kernel, form)
            tick()


def _quantized_types() -> list[str]:
    from ..linear.versions import types

    return [element_type.name for element_type in types("quantize", "quantized")]


def _quark_types() -> list[str]:
    from ..catalog import OPERATORS

    (operator,) = (each for each in OPERATORS.newest("com.amd.quark") if each.operation == "quantize")
    return list(operator.formats)


def _measurements(options: argparse.Namespace, models: list[tuple[str, list[QuantizationNodes]]]) -> dict[str, Any]:
    """What ``run`` finds out by running, in JSON's types. `models`: paths and quantization nodes."""
    from ..analysis.measures.outputs import Comparison, compare
    from ..rewriting import model_files
    from ..running.data import read_arrays
    from ..running.sessions import run
    from . import measuring

    sessions, load_times = [], []
    optimised = None
    with ExitStack() as files:
        for path, nodes, is_optimised in _contenders(options, models):
            with progress(f"loading {path}{' optimised' * is_optimised}") as tick:
                start = time.perf_counter()
                content = None
                if is_optimised:
                    optimised = measuring.optimised(path, backend=options.backend)
                    content = files.enter_context(model_files.session_source(optimised.model))
                create = functools.partial(measuring.create_session, path, nodes, content=content)
                sessions.append(create(backend=options.backend, threads=options.threads))
                load_times.append(time.perf_counter() - start)
                tick()
        files.callback(sessions.clear)  # Windows lets nobody remove files that a session reads
        batches = _batches(options, sessions[0])
        inputs = next(batches)
        outputs = [run(session, inputs) for session in sessions]
        with progress("running", measuring.ticks(len(sessions), options.runs)) as tick:
            medians = measuring.latencies(sessions, inputs, options.runs, tick)
        compared = compare(outputs[0], outputs[-1]) if options.reference else Comparison()
        count = 1
        with progress("running the other batches") as tick:
            for batch in batches:
                if options.outputs or options.expected:
                    raise ModelError("--outputs and --expected are for one batch; the data have more")
                results = [run(sessions[index], batch) for index in ((0, -1) if options.reference else (0,))]
                compared.add(compare(results[0], results[1]) if options.reference else Comparison())
                count += 1
                tick()
    times = [{"load_seconds": load, "median_seconds": median} for load, median in zip(load_times, medians, strict=True)]
    report: dict[str, Any] = {
        "inputs": {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in inputs.items()},
        "batches": count,
        "threads": options.threads or "default",
        **times[0],
    }
    if optimised:
        report["optimised"] = {
            "model": f"{options.model}, optimised",
            **times[1],
            "regions_in_blocked_layout": optimised.blocked_regions,
            "left": optimised.rows(),
        }
    if options.reference:
        report["reference"] = {
            "model": options.reference,
            **times[-1],
            "latency_ratio": medians[0] / medians[-1],
            "outputs": _json_differences(compared.errors),
            "not_compared": compared.reasons,
        }
        if options.optimize:
            report["optimised"]["latency_ratio"] = medians[1] / medians[-1]
    if options.outputs:
        measuring.write_arrays(options.outputs, outputs[0])
    if options.expected:
        expected = read_arrays(options.expected, list(outputs[0]), "output")
        compared = compare(outputs[0], expected)
        for name, reason in compared.reasons.items():
            raise ModelError(f"output {name} {reason}")
        report["expected"] = {
            "file": options.expected,
            "tolerance": options.tolerance,
            "outputs": _json_differences(compared.errors),
            "holds": all(each.largest <= options.tolerance for each in compared.errors.values()),
        }
    return report


def _contenders(
    options: argparse.Namespace, models: list[tuple[str, list[QuantizationNodes]]]
) -> Iterator[tuple[str, list[QuantizationNodes], bool]]:
    """Path, quantization nodes, and whether it is to be optimised, of what ``run`` runs."""
    yield (*models[0], False)
    if options.optimize:
        yield (*models[0], True)
    if options.reference:
        yield (*models[1], False)


def _json_differences(differences: dict[str, ErrorSums]) -> list[dict[str, Any]]:
    return [
        {"output": name, "sqnr_db": _json_number(sums.sqnr_db), "largest_difference": _json_number(sums.largest)}
        for name, sums in differences.items()
    ]


def _batches(options: argparse.Namespace, session: Any) -> Iterator[sessions.Arrays]:
    """Of the options' data, or one random one."""
    from ..running import data

    inputs = data.inputs_of(session)
    if options.inputs:
        return iter([data.read_arrays(options.inputs, [each.name for each in inputs], "input")])
    return iter(data.open_data(inputs, **arguments.data_arguments(options)))


def _optimize(options: argparse.Namespace) -> int:
    from ..rewriting import model_files, optimize

    with progress(f"optimising {options.model}"):
        result = optimize.optimized(
            options.model,
            keep_codes=options.keep_codes,
            standard_ops=options.standard_ops,
            regions=not options.no_regions,
        )
        model_files.save(result.model, options.out)
    if _is_output(options.out):
        return 0  # nothing is to follow the model there
    accounts = {"done": result.done, "left": result.left}
    if options.json:
        rows = {
            name: [{"operator": operator, "nodes": count, key: text} for (operator, text), count in sorted(account.items())]
            for (name, account), key in zip(accounts.items(), ("what", "why"), strict=True)
        }
        print(json.dumps({"model": options.model, "out": options.out, **rows}, indent=2))
        return 0
    for account, title, column in (
        (result.done, f"Nodes that {options.out} has no more", "what was done"),
        (result.left, "Nodes that were left", "why"),
    ):
        lines = [[operator, str(count), text] for (operator, text), count in sorted(account.items())]
        print_table(title, ["operator", ">nodes", column], lines or [["none", "", ""]])
    return 0


def _is_output(path: str) -> bool:
    """Whether it is where the command prints, as /dev/stdout is."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(1)) and not os.path.isfile(path)
    except OSError:
        return False


def _profile(options: argparse.Namespace) -> int:
    from ..rewriting import model_files
    from . import inventory, measuring

    nodes = inventory.quantization_nodes(options.model)
    times = {}
    optimised = measuring.optimised(options.model, backend=options.backend, standard_ops=options.standard_ops)
    with model_files.session_source(optimised.model) as source:
        for name, content in {"before": None, "after": source}.items():
            with progress(f"profiling, {name} it is optimised"):
                times[name] = measuring.node_times(
                    options.model,
                    nodes,
                    lambda session: next(_batches(options, session)),
                    options.runs,
                    backend=options.backend,
                    threads=options.threads,
                    content=content,
                    standard_ops=options.standard_ops,
                )
    if options.json:
        report: dict[str, Any] = {name: [asdict(each) for each in each_times] for name, each_times in times.items()}
        layout = {"regions_in_blocked_layout": optimised.blocked_regions, "left": optimised.rows()}
        print(json.dumps(report | layout, indent=2))
        return 0
    _print_profile(times, options.nodes)
    _print_left(optimised.blocked_regions, optimised.rows())
    return 0


def _print_profile(times: dict[str, list[measuring.NodeTime]], most: int) -> None:
    """By kind, by operator and by node, of the model before and after it was optimised."""

    def line(name: str, chosen: Callable[[measuring.NodeTime], bool]) -> list[str]:
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
    print_table("Time of a run, as ONNX Runtime's profiler has it, which adds some to each node", ["", *columns], kinds)
    seconds: dict[str, float] = {}
    for each in itertools.chain.from_iterable(times.values()):
        seconds[each.operator] = seconds.get(each.operator, 0.0) + each.seconds
    by_operator = [line(name, functools.partial(_is_of, name)) for name in sorted(seconds, key=lambda name: -seconds[name])]
    print_table("By operator", ["operator", *columns], by_operator)
    for name, each_times in times.items():
        rows = [[each.node, each.operator, f"{1e6 * each.seconds:.0f}"] for each in each_times[:most]]
        print_table(f"The slowest nodes, {name}", ["node", "operator", ">us"], rows)


def _is_of(operator: str, each: measuring.NodeTime) -> bool:
    return each.operator == operator


def _json_number(value: float) -> float | str:
    """JSON has no infinities and no NaN."""
    return value if math.isfinite(value) else str(value)


def _print_nodes(report: dict[str, Any]) -> None:
    rows = [[n["operator"], n["element_type"], str(n["count"]), n["run_by"]] for n in report["nodes"]]
    columns = ["operator", "type", ">nodes", "run by"]
    print_table(f"Quantization nodes of {report['model']}", columns, rows or [["none", "", "", ""]])


def _print_measurements(report: dict[str, Any]) -> None:
    inputs = ", ".join(f"{name} {i['dtype']} {tuple(i['shape'])}" for name, i in report["inputs"].items())
    optimised, reference, expected = (report.get(name) for name in ("optimised", "reference", "expected"))
    rows = [_timing(each) for each in (report, optimised, reference) if each]
    if reference:
        ratios = [each["latency_ratio"] for each in (reference, optimised) if each]
        rows = [[*row, f"{ratio:.2f}"] for row, ratio in zip(rows, [*ratios, 1.0], strict=True)]
    columns = ["model", ">load, ms", ">median latency, ms"] + ([">ratio"] if reference else [])
    print_table(f"Time (threads: {report['threads']}; inputs: {inputs})", columns, rows)
    if optimised:
        _print_left(optimised["regions_in_blocked_layout"], optimised["left"])
    if reference:
        _print_differences("Difference from the reference", reference["outputs"])
        print_not_compared(reference["not_compared"])
    if expected:
        holds = "within" if expected["holds"] else "beyond"
        title = f"Difference from {expected['file']}: {holds} the tolerance of {expected['tolerance']:g}"
        _print_differences(title, expected["outputs"])


def _print_left(blocked_regions: int, rows: list[dict[str, Any]]) -> None:
    """What stays as it is in the optimised model."""
    lines = [[row["operator"], str(row["nodes"]), row["why"]] for row in rows]
    title = f"Nodes of the optimised model that stay as they are; {blocked_regions} regions are in the blocked layout"
    print_table(title, ["operator", ">nodes", "why"], lines or [["none", "", ""]])


def _print_differences(title: str, outputs: list[dict[str, Any]]) -> None:
    rows = [[o["output"], _number(o["sqnr_db"], ".1f"), _number(o["largest_difference"], ".3g")] for o in outputs]
    print_table(title, ["output", ">SQNR, dB", ">largest difference"], rows)


def _timing(report: dict[str, Any]) -> list[str]:
    return [Path(report["model"]).name, f"{1e3 * report['load_seconds']:.0f}", f"{1e3 * report['median_seconds']:.2f}"]


def _number(value: float | str, form: str) -> str:
    return value if isinstance(value, str) else format(value, form)


def _info(options: argparse.Namespace) -> int:
    import numba
    import onnxruntime

    from ..compiling import cache
    from ..ort import get_library_path

    if options.clear_cache:
        for path in cache.files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ModelError(f"{path}: {error.strerror}") from None
    sizes = cache.sizes()
    try:
        get_library_path()
        backend, reason = "native", "the default where it is available"
    except RuntimeError as error:
        backend, reason = "extensions", f"the native way is not available: {error}"
    facts = {
        "quark_numba": __version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in _DISTRIBUTIONS},
        "onnxruntime": onnxruntime.__version__,  # of whatever distribution: onnxruntime-gpu, for instance
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": backend,
        "why": reason,
        "threads of direct calls": numba.get_num_threads(),
        "threads of a session": f"the session's own; {onnxruntime.get_device()} provider",
        "cache": str(cache.folder() or "none: no folder can be written"),
        "kernels in the cache": f"{len(sizes)}, {sum(sizes) / 1e6:.1f} MB",
    }
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print_table("", ["", ""], [[name, str(value)] for name, value in facts.items()])
    return 0


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _types(options: argparse.Namespace) -> int:
    from . import type_table

    if options.json:
        print(json.dumps(type_table.type_rows(), indent=2))
        return 0
    for operator, columns, rows in type_table.type_tables():
        print_table(operator, columns, rows)
    OUTPUT.print(type_table.TYPES_LEGEND, soft_wrap=True)
    return 0
