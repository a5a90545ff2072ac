"""Mutated models in every use of a model, each in a child process whose end or silence is a finding.

    python tests/support/mutated_sessions.py FIRST LAST [PROCESSES]

tries the models of these seeds, and lists the findings. A use gives an error of this package or of ONNX Runtime, or a result.
If drop-in sessions run the model without ONNX Runtime's optimizations, with ONNX's own operators from both, each use runs it,
unless a text in it is not UTF-8. Outputs have the types and shapes of the drop-in session's. Their values are near: a code may
flip, and all values after it change, so the average difference is at most 2^-4 of the largest value."""

import collections
import contextlib
import functools
import io
import sys
import tempfile
import time
import warnings
from pathlib import Path

import mutated_models
import numpy as np
import onnx
import qdq_sessions
from onnx_models import session
from paths import MODELS
from watched import Child, on_threads

import quark_numba
from quark_numba import cli

SECONDS = 300


@functools.cache
def sources():
    """Return the models that are mutated, with an input for each: those of the tests, and the one that has every construct."""
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(4, 3)
    found = [(mutated_models.sound(), x)]
    for path in sorted(MODELS.rglob("*.onnx")):
        stem = "textline_cls" if path.stem.startswith("textline") else path.stem.removesuffix("_m")
        with np.load(path.with_name(f"{stem}_expected.npz" if stem != "ort_cnn_a16w8_ms" else "cnn160_x.npz")) as arrays:
            x = next(arrays[name] for name in arrays.files if name.startswith("x"))
        x = x[:1] if stem == "textline_cls" else x[0] if stem.startswith(("style", "tagger")) else x
        found.append((onnx.load(path), x))
    return found


def case(seed):
    """Return the bytes of the mutated model of a seed, and an input for the model that it was."""
    rng = np.random.default_rng([seed, 71])
    whole, x = sources()[rng.integers(len(sources()))]
    return mutated_models.mutated(rng, whole), x


def drop_in(source, qdq="float"):
    return session(source, level="DISABLE_ALL", threads=1, qdq=qdq)


def names(made):
    return [each.name for each in made.get_inputs()] if made else ["x"]


def of_command(path, x, made):
    inputs, outputs = path.with_name("x.npz"), path.with_name("y.npz")
    np.savez(inputs, **dict.fromkeys(names(made), x))
    words = ["run", str(path), "--data", str(inputs), "--save-outputs", str(outputs), "--runs", "1"]
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(words)
    if code:
        assert code == 1, code
        assert "error: " in errors.getvalue(), errors.getvalue()
        raise quark_numba.ModelError(errors.getvalue())
    with np.load(outputs) as arrays:
        return [arrays[name] for name in arrays.files]


def of_optimize(path, x, made):
    optimized = quark_numba.optimize(path, qdq="float")
    try:
        return run(drop_in(optimized), x)
    except UnicodeDecodeError as error:  # of ONNX Runtime's session, whose message quotes a damaged name
        raise quark_numba.ModelError("ONNX Runtime refuses it") from error


def of_session(path, x, made):
    return run(qdq_sessions.ours(str(path), enable_fallback=False), x)


def of_analysis(path, x, made):
    quark_numba.analyze(path, [dict.fromkeys(names(made), x)])


USES = {"run": of_command, "optimize": of_optimize, "InferenceSession": of_session, "analyze": of_analysis}


def run(made, x):
    return made.run(None, dict.fromkeys(names(made), x))


def try_uses(seed, found):
    """Try each use of the mutated model of a seed. See `watched.Child`."""
    content, x = case(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "m.onnx")
        path.write_bytes(content)
        yield "drop-in"
        made, expected, has_to_run = None, None, False
        with contextlib.suppress(Exception):
            made = drop_in(path)
            expected = run(made, x)
            run(drop_in(path, qdq="onnxruntime"), x)
            has_to_run = True
        for name, use in USES.items():
            yield name
            try:
                outputs = use(path, x, made)
            except Exception as error:
                if has_to_run and name != "analyze" and not is_of_text(error):
                    found.append(f"{name} refuses what a drop-in session runs: {type(error).__name__}: {str(error)[:500]}")
                elif not is_clean(error):
                    found.append(f"{name}: {type(error).__name__}: {str(error)[:500]}")
                continue
            for one, other in zip(expected or (), outputs or (), strict=False):
                if not isinstance(one, np.ndarray):
                    continue
                if (one.shape, one.dtype) != (other.shape, other.dtype):
                    found.append(f"{name}: {other.dtype}{other.shape}, expected {one.dtype}{one.shape}")
                elif one.dtype.kind in "fiu" and one.size and qdq_sessions.is_far(other, one):
                    found.append(f"{name}: far")


def is_clean(error):
    """Return whether an exception is one of this package or of ONNX Runtime, or says that a tensor is too large for the
    child."""
    return isinstance(error, (quark_numba.ModelError, MemoryError)) or type(error).__module__.startswith("onnxruntime")


def is_of_text(error):
    """Return whether an exception comes from text that is not UTF-8, which ONNX Runtime reads and onnx does not write."""
    while error and not isinstance(error, UnicodeDecodeError):
        error = error.__cause__ or error.__context__
    return error is not None


def findings(seeds, processes=1, tell=print):
    """Return the findings for the models of these seeds, as a list of (seed, text)."""
    found = []

    def check(child, seed):
        for each in child.call(seed):
            found.append((seed, each))
            tell(seed, each.replace("\n", " ")[:400], flush=True)

    on_threads(processes, lambda: Child(try_uses, SECONDS), check, seeds)
    return found


if __name__ == "__main__":
    first, last, processes = (*map(int, sys.argv[1:]), 1)[:3]
    start = time.time()
    kinds = collections.Counter(text.split(":")[0] for _, text in findings(range(first, last), processes))
    print(*(f"{count:5} {kind}" for kind, count in kinds.most_common()), sep="\n")
    print(f"{last - first} models in {time.time() - start:.0f} seconds")
