"""Run models, time them, and compare their outputs: how many runs warm up, the turns of sessions, medians, the times of nodes,
and the report of --json."""

from __future__ import annotations

import argparse
import bisect
import functools
import io
import json
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..analysis.measures.outputs import Comparison, compare
from ..analysis.measures.sums import ErrorSums
from ..checks import Qdq
from ..errors import ModelError
from ..models import files, model_files
from ..models.temporary import temporary_folder
from ..ort.providers import beside_cpu
from ..running.files import read_arrays
from ..running.sessions import Arrays, feeds, results, run
from ..running.sessions import create_session as create_session_of
from ..session.artifact import Artifact
from ..session.build import get_or_build
from ..session.request import SessionRequest
from ..session.session_options import NOTHING_REPLACED
from . import arguments
from .inventory import QuantizationNodes
from .printing import progress

_WARM_UP = 3

# The suffix of the profiler's events that time nodes.
_KERNEL_TIME = "_kernel_time"

# Operators that run subgraphs. The profiler also times the nodes of the subgraphs, which would count twice.
_WITH_BODIES = ("If", "Loop", "Scan")

# The number of timed runs of a session before the next session's turn: few enough that all sessions meet the same state of the
# machine, enough that a session finds its data in the processor's caches.
_BLOCK = 5


@contextmanager
def artifact_of(
    path: str | Path, *, qdq: Qdq = "auto", cache: bool | str = False, providers: list[str] | None = None
) -> Iterator[Artifact]:
    """Yield the model as ``InferenceSession`` runs it. `qdq`, `cache` and `providers` are its arguments."""
    options = onnxruntime.SessionOptions()
    request = SessionRequest(path, options, providers, qdq, cache=cache, replaced=NOTHING_REPLACED)
    request.check()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `create_session` issues the same warnings
        request = request.register()
    with get_or_build(request, model_files.Source.open(path)) as artifact:
        yield artifact


def create_session(
    path: str | Path,
    nodes: list[QuantizationNodes],
    *,
    threads: int = 0,
    qdq: Qdq = "auto",
    artifact: Artifact | None = None,
    profile: str = "",
    providers: list[str] | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session of the model at `path`. It has this package's operators if a quantization node needs them, including
    those of ONNX that ONNX Runtime cannot run. `artifact`, if given, is loaded instead. With `threads` = 0 ONNX Runtime
    chooses the number. `profile` is the beginning of the path to which ONNX Runtime writes its profile, or "" for no
    profile."""
    how: dict[str, Any] = {"threads": threads, "profile": profile, "providers": providers}
    if artifact and artifact.source:
        how |= {"has_own_operators": True, "qdq": "auto" if beside_cpu(providers or []) else qdq, "fuses_integers": True}
        return create_session_of(artifact.source, str(path), **how)
    has_own_operators = any(counted.run_by != "ONNX Runtime" for counted in nodes)
    if any(counted.needs_float_qdq for counted in nodes):
        qdq = "float"
    return create_session_of(path, str(path), has_own_operators=has_own_operators, qdq=qdq, **how)


class NodeTime(NamedTuple):
    """A node of a session and the median of its times in a run, by ONNX Runtime's profiler."""

    node: str
    operator: str
    seconds: float


def node_times(options: argparse.Namespace, nodes: list[QuantizationNodes], artifact: Artifact | None) -> list[NodeTime]:
    """Return the times of the nodes in a session of the model, or of the artifact, for the first batch, the slowest first."""
    how = arguments.given_of(options, "threads", "qdq", "providers")
    with temporary_folder() as folder:
        session = create_session(options.model, nodes, profile=f"{folder}/profile", artifact=artifact, **how)
        inputs = next(arguments.batches_of(options, session))
        for _ in range(_WARM_UP + options.runs):
            run(session, inputs)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    ends = sorted(event["ts"] + event["dur"] for event in events if event["name"] == "model_run")
    times: dict[tuple[str, str, str], NDArray[np.int64]] = {}
    for event in events:
        operator = event.get("args", {}).get("op_name")
        if event["name"].endswith(_KERNEL_TIME) and operator not in _WITH_BODIES:
            key = event["name"].removesuffix(_KERNEL_TIME), operator, event["args"].get("node_index", "")
            durations = times.setdefault(key, np.zeros(len(ends) + 1, np.int64))
            durations[bisect.bisect_left(ends, event["ts"])] += event["dur"]
    result = [NodeTime(*key[:2], float(np.median(durations[_WARM_UP:-1])) / 1e6) for key, durations in times.items()]
    return sorted(result, key=lambda row: -row.seconds)


def write_arrays(path: str | Path, arrays: Arrays) -> None:
    """Write arrays to an .npz file, whole or not at all. Raise ModelError for an array that the file cannot hold."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.hasobject:
                raise ModelError(f"{path}: output {name} is not an array of numbers and cannot be written")
            if array.dtype.isbuiltin == 2:  # a type of ml_dtypes
                raise ModelError(f"{path}: output {name} is {array.dtype}, which .npz files cannot hold")
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    files.write(path, content.getvalue())


def latencies(
    sessions: Mapping[str, onnxruntime.InferenceSession], inputs: Arrays, runs: int, update: Callable[..., None]
) -> dict[str, float]:
    """Return the median latency of each session in seconds, over `runs` timed runs. The sessions take turns. `update` updates a
    progress bar."""
    calls = {
        name: functools.partial(results, session, [y.name for y in session.get_outputs()], feeds(session, inputs))
        for name, session in sessions.items()
    }
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    update(total=len(calls) * runs)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for first in range(0, runs, _BLOCK):
        for name, call in calls.items():
            call()  # finds the processor's caches full of another session's data
            for _ in range(min(_BLOCK, runs - first)):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
                update(advance=1)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


@dataclass
class _Contender:
    """A model that is timed: its name in --json's report, its session, and its times in seconds. `artifact` is its optimized
    form, if that is what runs."""

    name: str
    session: onnxruntime.InferenceSession
    load_seconds: float
    artifact: Artifact | None
    median_seconds: float = 0.0

    def report(self) -> dict[str, Any]:
        """Return the part of --json's report about this model."""
        times = {"model": self.name, "load_seconds": self.load_seconds, "median_seconds": self.median_seconds}
        return times | (self.artifact.report() if self.artifact else {})

    def ratio_to(self, reference: _Contender) -> dict[str, float]:
        """Return the ratio of its latency to that of the reference, as --json's report has it."""
        return {"latency_ratio": self.median_seconds / reference.median_seconds}


def measure(
    options: argparse.Namespace, nodes: Mapping[str, list[QuantizationNodes]]
) -> tuple[dict[str, Any], Arrays, Artifact | None]:
    """Run the model, its optimized form and the reference, as far as the options ask for them. `nodes` are the quantization
    nodes by the path of the model. Return --json's report without the comparison with --expected, the outputs of the model for
    the first batch, and the artifact of the optimized model, if there is one."""
    with ExitStack() as stack:
        contenders = _load(options, nodes, stack)
        stack.callback(contenders.clear)  # before the files are removed: Windows removes no file that a session reads
        batches = arguments.batches_of(options, contenders["model"].session)
        inputs = next(batches)
        if (options.save_outputs or options.expected) and next(batches, None) is not None:
            raise ModelError("--save-outputs and --expected are for one batch; the data have more")
        outputs = {name: run(contender.session, inputs) for name, contender in contenders.items()}
        with progress("running") as update:
            # No variable keeps the sessions: the contenders are cleared before the files are removed.
            medians = latencies({name: each.session for name, each in contenders.items()}, inputs, options.runs, update)
        for name, median in medians.items():
            contenders[name].median_seconds = median
        count, comparison = _compare_batches(options, contenders, outputs, batches)
        report = {
            "inputs": {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in inputs.items()},
            "batches": count,
            "threads": options.threads or "default",
            "providers": contenders["model"].session.get_providers(),
        }
        report |= _report_models(contenders, comparison)
        artifact = next(filter(None, (contender.artifact for contender in contenders.values())), None)
    return report, outputs["model"], artifact


def _compare_batches(
    options: argparse.Namespace, contenders: Mapping[str, _Contender], outputs: Mapping[str, Arrays], others: Iterator[Arrays]
) -> tuple[int, Comparison | None]:
    """Run the model on the batches after the first one, whose `outputs` are known. Return the number of all batches, and the
    comparison with the reference, if there is one."""
    from ..analysis.twin import float_twin
    from ..analysis.twin.random_nodes import random_outputs

    count, comparison = 1, None
    if options.reference:
        pair = float_twin.load_pair(options.model, options.reference, whole=False)
        random = random_outputs(*pair, [*outputs["model"]])
        chosen = [name for name in outputs["model"] if name not in random]
        comparison = compare(outputs["model"], outputs["reference"], chosen)
    with progress("running the other batches"):
        for batch in others:
            count += 1
            y = run(contenders["model"].session, batch)
            if comparison:
                comparison.add(compare(y, run(contenders["reference"].session, batch), chosen))
    if comparison:
        comparison.reasons |= random
    return count, comparison


def _report_models(contenders: Mapping[str, _Contender], comparison: Comparison | None) -> dict[str, Any]:
    """Return the part of --json's report about the models."""
    model, optimized, reference = contenders["model"], contenders.get("optimized"), contenders.get("reference")
    report = model.report()
    if optimized:
        report["optimized"] = optimized.report() | (optimized.ratio_to(reference) if reference else {})
    if reference and comparison:
        compared = {"outputs": _json_errors(comparison.errors), "not_compared": comparison.reasons}
        report["reference"] = reference.report() | model.ratio_to(reference) | compared
    return report


def _load(options: argparse.Namespace, nodes: Mapping[str, list[QuantizationNodes]], stack: ExitStack) -> dict[str, _Contender]:
    """Return the contenders "model", "optimized" and "reference", as far as the options ask for them. The files of optimized
    models exist until the stack is closed."""
    paths = {"model": options.model}
    if options.optimize:
        paths["optimized"] = options.model
    if options.reference:
        paths["reference"] = options.reference
    providers = options.providers
    contenders = {}
    for role, path in paths.items():
        name = f"{path}, optimized" if role == "optimized" else path
        with progress(f"loading {name}"):
            start = time.perf_counter()
            artifact = None
            if role == "optimized" or arguments.has_other_providers(options):
                artifact = stack.enter_context(artifact_of(path, cache=options.cache, providers=providers))
            session = create_session(path, nodes[path], threads=options.threads, artifact=artifact, providers=providers)
            contenders[role] = _Contender(name, session, time.perf_counter() - start, artifact)
    return contenders


def _json_errors(errors: Mapping[str, ErrorSums]) -> list[dict[str, Any]]:
    return [{"output": name, "sqnr_db": sums.sqnr_db, "largest_difference": sums.largest} for name, sums in errors.items()]


def compare_with_file(options: argparse.Namespace, outputs: Arrays) -> dict[str, Any]:
    """Return the part of --json's report about the difference from the file of --expected. Raise ModelError if an output cannot
    be compared."""
    compared = compare(outputs, read_arrays(options.expected, list(outputs)))
    for name, reason in compared.reasons.items():
        raise ModelError(f"output {name} {reason}")
    limit = options.tolerance or 0.0
    holds = all(sums.largest <= limit for sums in compared.errors.values())
    return {"file": options.expected, "tolerance": limit, "outputs": _json_errors(compared.errors), "holds": holds}
