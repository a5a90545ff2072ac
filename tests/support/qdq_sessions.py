"""Sessions of generated graphs in every mode, each case in a process whose end is a finding.

    python tests/support/qdq_sessions.py FIRST LAST [--jobs 2] [--graphs qdq|dialects|blocks] [--modes all|NAME,...] [--reduce]

compares each mode with plain ONNX Runtime at ORT_DISABLE_ALL, which computes the operators one by one, and this with the
oracle.

- No mode ends the process, or refuses a model or a feed that ORT_DISABLE_ALL runs. Shapes and types agree.
- In an exact graph all values are equal (-0 equals 0, NaN equals NaN). With `qdq="onnxruntime"`, and in drop-in sessions,
  they may also equal those of plain ONNX Runtime at ORT_ENABLE_ALL; where that itself ends the process or refuses the model,
  nothing is demanded.
- In other graphs a code may flip, and all values after it change: the average difference is at most 2^-4 of the largest value.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import queue
import re
import tempfile
import threading
import time
import unittest.mock
from pathlib import Path

import numpy as np
import onnx
import qdq_oracle
from onnx import helper
from onnx_models import session, session_options
from smaller_graphs import cut, smallest, text_of, with_outputs
from watched import Child, on_threads

import quark_numba
from quark_numba.rewriting.integers import groups as integer_operators
from quark_numba.session.blocked import codes as blocked_codes

ALL, NONE = "ENABLE_ALL", "DISABLE_ALL"
REFERENCE, PLAIN, DROP_IN, SECONDS = "plain, DISABLE_ALL", "plain, ENABLE_ALL", "drop-in, qdq=float", 300


# Sessions.


def plain(model, level):
    """Return a session without the package's operators, if the model has no such nodes."""
    has_own = any(each.domain not in ("", "com.microsoft", "local") for each in model.opset_import)
    return session(model, backend="native" if has_own else None, level=level, threads=1)


def ours(model, level=ALL, threads=1, **named):
    return quark_numba.InferenceSession(model, session_options(level, threads), ["CPUExecutionProvider"], **named)


def optimized(model, **named):
    return session(quark_numba.optimize(model, **named), qdq=named.get("qdq", "auto"), threads=1)


def on_integers(make, model):
    """Make a session with integer operators wherever these are right, whether they are faster or not."""
    with unittest.mock.patch.object(integer_operators, "_is_faster", return_value=True):
        return make(model)


def on_codes(model):
    """Make a session with convolutions on codes wherever these are right, whether they are faster or not."""
    changed = {"_has_dot_products": lambda lanes: True, "_has_lookup": lambda: True, "_FEWEST_PRODUCTS": 1}
    with unittest.mock.patch.multiple(blocked_codes, **changed):
        return ours(model, qdq="float")


def through_files(model, folder):
    before, after = folder / "model.onnx", folder / "optimized.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, before, save_as_external_data=True, location="tensors.bin", size_threshold=0)
    quark_numba.optimize(before, after)
    return session(after, threads=1)


def cached(model, folder):
    path, sessions = folder / "model.onnx", []
    onnx.save(model, path)
    for _ in range(2):
        sessions.append(ours(str(path), cache=folder / "cache"))
    return sessions


# Ways to run a session.


def run(made, feeds):
    return [made.run(None, feed) for feed in feeds]


def run_async(made, feeds):
    def one(feed):
        done = queue.Queue()
        made.run_async(None, feed, lambda results, _, error: done.put((results, error)), None)
        results, error = done.get(timeout=60)
        if error:
            raise RuntimeError(error)
        return results

    return [one(feed) for feed in feeds]


def run_bound(made, feeds):
    def one(feed):
        binding = made.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, np.array(array, order="C"))  # ascontiguousarray gives a scalar a dimension
        for each in made.get_outputs():
            binding.bind_output(each.name)
        made.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    return [one(feed) for feed in feeds]


def run_in_threads(made, feeds):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda feed: made.run(None, feed), feeds * 3))
    return results[-len(feeds) :]


# A mode makes one session or several from a model and a folder, and runs them.
MODES = {
    "default": (lambda model, folder: ours(model), run),
    'qdq="float"': (lambda model, folder: ours(model, qdq="float"), run),
    "optimize, plain": (lambda model, folder: optimized(model), run),
    "on integers": (lambda model, folder: on_integers(ours, model), run),
    "convolutions on codes": (lambda model, folder: on_codes(model), run),
    "on integers, optimize, plain": (lambda model, folder: on_integers(optimized, model), run),
    'qdq="onnxruntime"': (lambda model, folder: ours(model, qdq="onnxruntime"), run),
    'optimize, qdq="onnxruntime"': (lambda model, folder: optimized(model, qdq="onnxruntime"), run),
    'optimize, qdq="float"': (lambda model, folder: optimized(model, qdq="float"), run),
    "optimize, keep_quantized_weights": (lambda model, folder: optimized(model, keep_quantized_weights=True), run),
    "keep_quantized_weights": (lambda model, folder: ours(model, keep_quantized_weights=True), run),
    'keep_quantized_weights, qdq="float"': (lambda model, folder: ours(model, keep_quantized_weights=True, qdq="float"), run),
    "cache": (cached, run),
    "EXTENDED": (lambda model, folder: ours(model, "ENABLE_EXTENDED"), run),
    "BASIC": (lambda model, folder: ours(model, "ENABLE_BASIC"), run),
    "DISABLE_ALL": (lambda model, folder: ours(model, NONE), run),
    "files": (through_files, run),
    DROP_IN: (lambda model, folder: session(model, qdq="float", threads=1), run),
    "2 threads": (lambda model, folder: ours(model, threads=2), run),
    "4 threads": (lambda model, folder: ours(model, threads=4), run),
    "run_async": (lambda model, folder: ours(model, threads=2), run_async),
    "IO binding": (lambda model, folder: ours(model), run_bound),
    "threads of Python": (lambda model, folder: ours(model), run_in_threads),
}
ALWAYS = list(MODES)[:4]


def modes_of(seed):
    """Return the modes of a seed: some always, and four others."""
    others = [each for each in MODES if each not in ALWAYS]
    return ALWAYS + [others[k] for k in np.random.default_rng([7, seed]).permutation(len(others))[:4]]


# The check of a case, in the child process.


class RefusedError(Exception):
    """Plain ONNX Runtime refuses the model or all feeds."""


def references(case):
    """Return the feeds that plain ONNX Runtime runs, and its results."""
    try:
        made = plain(case.model, NONE)
    except Exception as error:
        raise RefusedError(str(error)) from None
    kept = []
    for feed in case.feeds:
        try:
            kept.append((feed, made.run(None, feed)))
        except Exception as error:
            refusal = error
    if not kept:
        raise RefusedError(str(refusal))
    return map(list, zip(*kept, strict=True))


def checked(case, modes, found):
    """Check a case in some modes. Yield each mode before it is tried, and add the findings as (mode, kind, description)."""
    yield REFERENCE
    feeds, expected = references(case)
    accepted = [expected]
    if case.exact:
        yield "oracle"
        try:
            accepted.append([qdq_oracle.outputs_of(case.model, feed) for feed in feeds])
            found += [("oracle", *each) for each in differences(case, accepted[1], [expected])]
        except Exception as error:
            found.append(("oracle", "error", f"{type(error).__name__}: {error}"))
    for mode in modes:
        graphs = [case.model.graph, *case.model.functions]
        if mode == DROP_IN and any(may_be_refused(node) for graph in graphs for node in graph.node):
            continue
        yield mode
        wrong = of_mode(case, mode, feeds, accepted)
        if wrong and ('qdq="onnxruntime"' in mode or mode == DROP_IN):
            yield PLAIN
            try:
                wrong = of_mode(case, mode, feeds, [*accepted, run(plain(case.model, ALL), feeds)])
            except Exception:
                wrong = []
        found += [(mode, *each) for each in wrong]


def may_be_refused(node):
    """Return whether a drop-in session may refuse a node or one in its subgraphs, as READMEs say: with `output_dtype` and
    without a zero point, a DequantizeLinear without one, after which ONNX Runtime may write such a node (quark_numba/ort), or
    operators of TensorRT under ONNX's names (quark_numba/dialects)."""
    if len(node.input) < 3 and (
        any(each.name == "output_dtype" for each in node.attribute) or (node.domain, node.op_type) == ("", "DequantizeLinear")
    ):
        return True
    if node.domain == "trt" and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return True
    return any(may_be_refused(each) for attribute in node.attribute for each in attribute.g.node)


def of_mode(case, mode, feeds, accepted):
    make, run_it = MODES[mode]
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = make(case.model, Path(folder))
            results = [run_it(each, [*feeds, feeds[0]]) for each in (made if isinstance(made, list) else [made])]
        except Exception as error:
            return [("error", f"{type(error).__name__}: {error}")]
    return [found for each in results for found in differences(case, each, [[*one, one[0]] for one in accepted])][:1]


def differences(case, results, accepted):
    """Return the first difference from all of the accepted results, as a list of (kind, description)."""
    names = [each.name for each in case.model.graph.output]
    for k, result in enumerate(results):
        for name, array, *others in zip(names, result, *(each[k] for each in accepted), strict=True):
            if any(array.shape != other.shape or array.dtype != other.dtype for other in others):
                return [("shape", f"{name}: {array.dtype}{array.shape}, expected {others[0].dtype}{others[0].shape}")]
            wrong = np.logical_and.reduce([~equal(array, other) for other in others])
            if case.exact and wrong.any():
                at = tuple(int(n) for n in np.argwhere(wrong)[0])
                what = f"{int(wrong.sum())} of {wrong.size}; at {at} {array[at]!r}, expected {others[0][at]!r}"
                return [("values", f"{name}, feed {k}: {what}")]
            if not case.exact and array.size and array.dtype != bool and all(is_far(array, other) for other in others):
                return [("far", f"{name}, feed {k}")]
    return []


def equal(one, other):
    return (one == other) | ((one != one) & (other != other))


def is_far(one, other):
    with np.errstate(all="ignore"):
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64))
        usual = np.isfinite(difference)
        return usual.any() and difference[usual].mean() > np.abs(other.astype(np.float64)[usual]).max() / 16


def case_of(graphs, seed):
    """Return the case of a seed. `graphs` is "qdq", "dialects" or "blocks"."""
    if graphs == "qdq":
        import generated_qdq_graphs

        return generated_qdq_graphs.case(seed)
    import generated_dialect_graphs

    return generated_dialect_graphs.case(seed, graphs)


def try_modes(argument, found):
    """Check a case in some modes. See `watched.Child`."""
    graphs, seed, case, modes = argument
    try:
        yield from checked(case or case_of(graphs, seed), modes, found)
    except RefusedError as error:
        found.append((REFERENCE, "refused", str(error)))
    except Exception as error:
        found.append(("case", "error of the test", f"{type(error).__name__}: {error}"))


class Worker(Child):
    """A child process that checks cases, and another one after its end."""

    def __init__(self):
        super().__init__(try_modes, SECONDS)

    def check(self, seed, modes, graphs="qdq", case=None):
        """Return (status, findings): "checked", or "refused" and why. A mode in which the process ends is a finding, and the
        other modes are checked in a new process."""
        found, modes = [], list(modes)
        while True:
            result, mode, end = self.outcome((graphs, seed, case, modes))
            if not end:
                refused = [text for of, kind, text in result if (of, kind) == (REFERENCE, "refused")]
                return ("refused", refused[0]) if refused else ("checked", found + result)
            if mode in (REFERENCE, "start"):
                return "refused", "the process ends in plain ONNX Runtime"
            if mode == PLAIN:  # of the mode before, of which nothing is demanded
                modes = [each for each in modes if 'qdq="onnxruntime"' not in each]
                continue
            modes = [each for each in modes if each != mode]
            if 'qdq="onnxruntime"' not in mode or not self._ends_alone(seed, graphs, case):
                found.append((mode, *end))

    def _ends_alone(self, seed, graphs, case):
        """Return whether the process ends in plain ONNX Runtime, too."""
        case = case or case_of(graphs, seed)
        process = multiprocessing.get_context("spawn").Process(target=_run_plain, args=(case.model,))
        process.start()
        process.join(SECONDS)
        return process.exitcode != 0


def _run_plain(model):
    with contextlib.suppress(Exception):
        plain(model, ALL)


def smaller(worker, case, wanted):
    """Return the smallest part of a case that still has a finding of a kind (see `kind_of`)."""
    mode = wanted.split(":")[0]

    def shows(part):
        status, found = worker.check(case.seed, [mode], case=part)
        return status == "checked" and any(kind_of(*each) == wanted for each in found)

    def part_of(fed, output):
        model = cut(case.model, [info(name, values[name][0]) for name in fed], [info(output, values[output][0])])
        inputs = {each.name for each in model.graph.input}
        feeds = []
        for k, feed in enumerate(case.feeds):
            feed = feed | {name: values[name][k] for name in fed}
            feeds.append({name: array for name, array in feed.items() if name in inputs})
        return type(case)(case.seed, case.exact, model, feeds, case.built)

    values = {}
    for name in [name for node in case.model.graph.node for name in node.output if name]:
        with contextlib.suppress(Exception):  # of types that numpy lacks
            model = with_outputs(case.model, [onnx.ValueInfoProto(name=name)])
            values[name] = [plain(model, NONE).run(None, feed)[0] for feed in case.feeds]
    return smallest([*values], part_of, shows) or case


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)


# The command line.


def kind_of(mode, kind, what):
    """Return the kind under which a finding is counted: the message without numbers and names."""
    what = "" if kind in ("values", "far", "shape") else re.sub(r"[-\w]*\d\w*|'[^']*'|\"[^\"]*\"|\(\w+\)", "*", what)[-160:]
    return f"{mode}: {kind} {what}".strip()


def _main():
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--graphs", default="qdq")
    parser.add_argument("--modes")
    parser.add_argument("--reduce", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("QUARK_NUMBA_COMPILE_PROCESSES", "1")
    kinds, counts, lock, start = collections.defaultdict(list), collections.Counter(), threading.Lock(), time.time()

    def check(worker, seed):
        modes = modes_of(seed) if not given.modes else list(MODES) if given.modes == "all" else given.modes.split(";")
        status, found = worker.check(seed, modes, given.graphs)
        with lock:
            counts[status] += 1
            if status == "refused":
                counts["refused: " + kind_of("", "", found)] += 1
                return
            for mode, kind, what in found:
                kinds[kind_of(mode, kind, what)].append(seed)
                print(seed, mode, kind, what.replace("\n", " ")[:300], sep=" | ", flush=True)

    on_threads(given.jobs, Worker, check, range(given.first, given.last))
    seconds = time.time() - start
    for kind, places in sorted(kinds.items(), key=lambda each: -len(each[1])):
        print(f"{len(places):5} {kind}: {sorted(places)[:12]}")
    print(*(f"{count} {status}" for status, count in counts.most_common(12)), sep="\n")
    print(f"{given.last - given.first} graphs in {seconds:.0f} seconds, {(given.last - given.first) / seconds:.2f} a second")
    if given.reduce:
        with Worker() as worker:
            for kind, seeds in kinds.items():
                case = case_of(given.graphs, seeds[0])
                part = smaller(worker, case, kind) if kind.split(":")[0] in MODES else case
                feeds = [{name: (str(array.dtype), array.shape) for name, array in feed.items()} for feed in part.feeds]
                print(f"\n{kind}, seed {seeds[0]}:\n{text_of(part.model)}\n# feeds: {feeds}", flush=True)


if __name__ == "__main__":
    _main()
