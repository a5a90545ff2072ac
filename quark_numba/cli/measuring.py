"""Run models, time them, and compare their outputs."""

from __future__ import annotations

import bisect
import io
import json
import logging
import math
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..catalog import QUANTIZATION
from ..errors import ModelError
from ..ort import DISABLE_QUANT_QDQ, Backend, register
from ..rewriting import model_files
from .inventory import QuantizationNodes

Arrays = Mapping[str, NDArray[Any]]

_WARM_UP = 3

# How the profiler's names of nodes' times end.
_KERNEL_TIME = "_kernel_time"

# Operators whose time is that of the nodes in their subgraphs, which the profiler has as well.
_OF_BODIES = ("If", "Loop", "Scan")

# One session's runs before the other's turn: both meet the same state of the machine, and each finds its own in the caches.
_BLOCK = 5


@dataclass(frozen=True)
class Difference:
    """How an output differs from the reference's."""

    output: str
    sqnr_db: float
    largest: float


def has_regions(backend: Backend | None = None) -> bool:
    """Whether sessions with this backend have ``quark_numba::Region``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `create_session` tells of it
        return register(onnxruntime.SessionOptions(), backend=backend) == "native"


def create_session(
    path: str | Path,
    nodes: list[QuantizationNodes],
    *,
    backend: Backend | None = None,
    threads: int = 0,
    standard_ops: bool = False,
    content: bytes | str | None = None,
    profile: str = "",
) -> onnxruntime.InferenceSession:
    """A session, with our operators, of the model at `path`, which has these quantization nodes, or of `content`, the bytes
    or the path of another, instead. `threads` = 0 leaves their number to ONNX Runtime. A `profile` is written to files whose
    paths begin so."""
    options = onnxruntime.SessionOptions()
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what matters comes as an exception
    # Idle threads that spin would take the processors from the session whose turn it is.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if any(counted.run_by == "quark_numba" for counted in nodes):
        # ONNX Runtime's rewriting of quantized models does not know our operators, and moves 32-bit zero points into
        # operators of its own that have no such type.
        options.add_session_config_entry(DISABLE_QUANT_QDQ, "1")
    register(options, backend=backend, standard_ops=standard_ops)
    source = content or str(path)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"], disable_fallback=True)
    except Exception as error:
        raise ModelError(f"{path}: {error}") from None


@dataclass(frozen=True)
class NodeTime:
    """What ONNX Runtime's profiler says of a node of a session: its time in a run, the median, in seconds."""

    node: str
    operator: str
    seconds: float

    @property
    def quantizes(self) -> bool:
        return bool(QUANTIZATION.search(self.operator))


def node_times(
    path: str | Path,
    nodes: list[QuantizationNodes],
    make_inputs: Callable[[onnxruntime.InferenceSession], Arrays],
    runs: int,
    **options: Any,
) -> list[NodeTime]:
    """By node of the session that `create_session` makes of these, the slowest first."""
    with tempfile.TemporaryDirectory(prefix="quark_numba_") as folder:
        session = create_session(path, nodes, profile=f"{folder}/profile", **options)
        inputs = make_inputs(session)
        for _ in range(_WARM_UP + runs):
            run(session, inputs)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    ends = sorted(event["ts"] + event["dur"] for event in events if event["name"] == "model_run")
    times: dict[tuple[str, str, str], NDArray[np.int64]] = {}
    for event in events:
        operator = event.get("args", {}).get("op_name")
        if event["name"].endswith(_KERNEL_TIME) and operator not in _OF_BODIES:
            key = event["name"].removesuffix(_KERNEL_TIME), operator, event["args"].get("node_index", "")
            of_runs = times.setdefault(key, np.zeros(len(ends) + 1, np.int64))
            of_runs[bisect.bisect_left(ends, event["ts"])] += event["dur"]
    result = [NodeTime(*key[:2], float(np.median(of_runs[_WARM_UP:-1])) / 1e6) for key, of_runs in times.items()]
    return sorted(result, key=lambda each: -each.seconds)


def read_arrays(path: str | Path, names: Sequence[str], what: str) -> dict[str, NDArray[Any]]:
    """The arrays of these names, of inputs or outputs, from an .npz file, in this machine's byte order; others in it are left
    alone."""
    try:
        with open(path, "rb") as file:
            arrays = np.load(file)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ModelError(f"{path}: one array; expected an .npz file")
            missing = [name for name in names if name not in arrays]
            if missing:
                raise ModelError(f"{path}: no array for the {what} {missing[0]}; it has {', '.join(arrays) or 'none'}")
            found = {name: arrays[name] for name in names}
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in found.items()}
    except ModelError:
        raise
    except Exception as error:  # of a file that is not there, or of whatever lies in it
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"not an .npz file of numbers: {error}"
        raise ModelError(f"{path}: {reason}") from None


def write_arrays(path: str | Path, arrays: Arrays) -> None:
    """An .npz file, whole or not at all."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.hasobject:
                raise ModelError(f"{path}: output {name} is no array of numbers, and not written")
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    model_files.write(path, content.getvalue())


def random_inputs(session: onnxruntime.InferenceSession, dimensions: Mapping[str, int], seed: int = 0) -> Arrays:
    """Inputs of the model's shapes, from this seed: floats from a normal distribution, integers 0 or 1.

    A free dimension is looked up in `dimensions` as "input[axis]", then by its own name; else it is 1.
    """
    rng = np.random.default_rng(seed)
    inputs = {}
    unused = set(dimensions)
    free, guessed = [], []
    for node_arg in session.get_inputs():
        shape = []
        for axis, dimension in enumerate(node_arg.shape):
            if isinstance(dimension, int) and dimension > 0:
                shape.append(dimension)
                continue
            names = [f"{node_arg.name}[{axis}]"] + ([dimension] if isinstance(dimension, str) else [])
            free.append(" or ".join(names))
            given = [name for name in names if name in dimensions]
            unused -= set(given)
            shape.append(dimensions[given[0]] if given else 1)
            if not given:
                guessed.append(names[0])
        element_type = node_arg.type.removeprefix("tensor(").removesuffix(")")
        try:
            dtype = np.dtype({"float": "float32", "double": "float64"}.get(element_type, element_type))
        except TypeError:
            dtype = None
        if dtype is None or dtype.kind not in "fiub" or dtype.isbuiltin != 1:
            raise ModelError(f"input {node_arg.name} is a {node_arg.type}: there are no random ones of this type")
        try:
            values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        except (MemoryError, ValueError) as error:
            raise ModelError(f"input {node_arg.name} of shape {shape}: {error}") from None
        inputs[node_arg.name] = values.astype(dtype)
    if unused:
        raise ModelError(f"no free dimension is named {sorted(unused)[0]}; there are: {', '.join(free) or 'none'}")
    if guessed:
        warnings.warn(f"free dimensions are taken as 1: {', '.join(guessed)}", stacklevel=2)
    return inputs


def run(session: onnxruntime.InferenceSession, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """The outputs by name. `inputs` may hold more than the session takes."""
    names = [node_arg.name for node_arg in session.get_outputs()]
    with _logged_errors() as errors:
        try:
            outputs = session.run(names, feeds(session, inputs))
        except Exception as error:
            raise ModelError(f"the model does not run: {error}") from None
    if errors:
        raise ModelError(f"the model does not run: {errors[0]}")
    return dict(zip(names, outputs, strict=True))


def feeds(session: onnxruntime.InferenceSession, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Those of `inputs` that the session takes."""
    names = [node_arg.name for node_arg in session.get_inputs()]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise ModelError(f"the reference has an input {missing[0]}; the model has {', '.join(inputs)}")
    return {name: inputs[name] for name in names}


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """What our operators log inside the context: with onnxruntime-extensions they have no other way to fail."""
    messages: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(__package__.partition(".")[0])
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def latencies(sessions: list[onnxruntime.InferenceSession], inputs: Arrays, runs: int, tick: Callable[[], None]) -> list[float]:
    """The median latency of each session in seconds, over `runs` runs each, the sessions taking turns.

    `tick` is called after each of the ``ticks(len(sessions), runs)`` runs.
    """
    contenders = [(session, feeds(session, inputs), list[float]()) for session in sessions]
    for timed, block in _blocks(runs):
        for session, arrays, seconds in contenders:
            for _ in range(block):
                start = time.perf_counter()
                session.run(None, arrays)
                seconds.append(time.perf_counter() - start)
                tick()
            if timed:
                del seconds[-block]  # the first of a block pays for what the other session left behind
            else:
                seconds.clear()
    return [float(np.median(seconds)) for _, _, seconds in contenders]


def ticks(sessions: int, runs: int) -> int:
    """How many runs `latencies` makes in all."""
    return sessions * sum(block for _, block in _blocks(runs))


def _blocks(runs: int) -> Iterator[tuple[bool, int]]:
    yield False, _WARM_UP
    for start in range(0, runs, _BLOCK):
        yield True, 1 + min(_BLOCK, runs - start)


def differences(outputs: Arrays, reference: Arrays, *, all_of_them: bool = False) -> list[Difference]:
    """Output by output, in order: models that were rewritten may have renamed them. Sequences, maps and strings have no
    difference: they are left out, unless all are wanted."""
    if len(outputs) != len(reference):
        raise ModelError(f"the model has {len(outputs)} outputs, the reference {len(reference)}")
    result = []
    for (name, y), expected in zip(outputs.items(), reference.values(), strict=True):
        if not all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in (y, expected)):
            if all_of_them:
                raise ModelError(f"output {name} cannot be compared: only arrays of numbers can")
            continue
        if y.shape != expected.shape:
            raise ModelError(f"output {name} has shape {y.shape}, the reference's {expected.shape}")
        signal = expected.astype(np.float64)
        noise = y.astype(np.float64) - signal
        with np.errstate(divide="ignore", invalid="ignore"):
            noise[(y == expected) | (np.isnan(signal) & np.isnan(y))] = 0
            sqnr = 10 * np.log10(np.sum(signal**2) / np.sum(noise**2))
        largest = float(np.abs(noise).max(initial=0.0))
        if y.dtype.kind in "iu" and expected.dtype.kind in "iu":  # float64 has not all of 64 bits
            highest, lowest = (choose(y, expected).astype(np.uint64) for choose in (np.maximum, np.minimum))
            largest = float((highest - lowest).max(initial=np.uint64(0)))
        result.append(Difference(name, float(sqnr), math.inf if math.isnan(largest) else largest))
    return result
