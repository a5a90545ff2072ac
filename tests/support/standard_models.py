"""Models in ONNX's standard operators, and sessions of them without the package.

`python tests/support/standard_models.py sessions|qdq|dialects|blocks FIRST LAST` compares generated graphs."""

import collections
import functools
import sys
from typing import Any

import generated_graphs
import numpy as np
import onnx
from onnx import shape_inference
from onnx_models import session
from qdq_sessions import case_of
from rewritten_models import names_of

from quark_numba.rewriting.constants import INPUT
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import not_standard_as_text, rewrite_model

# Sessions that know nothing of the package. ONNX Runtime computes each node by itself, or optimizes as it does by default.
plain_session = functools.partial(session, backend=None, threads=1, level="DISABLE_ALL")
LEVELS = ("DISABLE_ALL", "ENABLE_ALL")


def in_standard_operators(source, operators="standard", **options):
    """Return a model in standard operators. Assert that nothing is left, and that onnx accepts the model."""
    result = rewrite_model(source, Settings(operators=operators, **options))
    assert not_standard_as_text(result.left) == ""
    standard = result.model
    assert {node.domain for node in standard.graph.node} <= {""}
    onnx.checker.check_model(standard)
    shape_inference.infer_shapes(standard, strict_mode=True)
    assert len(names_of(standard.graph)) == sum(len(node.output) for node in standard.graph.node) + len(
        standard.graph.initializer
    )
    return standard


# Generated graphs: a graph in standard operators gives the bits of a drop-in session, node by node. Two NaNs are equal. ONNX
# Runtime would pack weights that are constants in one of the two sessions alone, and then add in another order.
_AS_WRITTEN: dict[str, Any] = {"level": "DISABLE_ALL", "disable_prepacking": "1"}


def findings(graphs, seed):
    """Return the differences for the graph of a seed, as texts, or None if a drop-in session refuses the graph. `graphs` is
    "sessions" (``generated_graphs``), or a kind of ``qdq_sessions.case_of``."""
    if graphs == "sessions":
        case = generated_graphs.case(seed)
        source, feeds = case.source, [case.feeds]
    else:
        case = case_of(graphs, seed)
        source, feeds = case.model, case.feeds
    try:
        drop_in = session(source, qdq="float", threads=1, **_AS_WRITTEN)
        expected = [drop_in.run(None, used(drop_in, feed)) for feed in feeds]
    except Exception:
        return None
    result = rewrite_model(source, Settings(operators="standard"))
    left = [f"{name}: {why}" for name, why in result.left if why != INPUT]
    if left:
        return left
    try:
        made = plain_session(result.model, **_AS_WRITTEN)
        results = [made.run(None, used(made, feed)) for feed in feeds]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    names = [each.name for each in source.graph.output]
    pairs = [pair for one in zip(results, expected, strict=True) for pair in zip(names, *one, strict=True)]
    return [f"{name} differs: {differing(*arrays)}" for name, *arrays in pairs if differing(*arrays)]


def used(made, feed):
    names = {each.name for each in made.get_inputs()}
    return {name: array for name, array in feed.items() if name in names}


def differing(one, other):
    """Return where two arrays differ in their bits, or "" if they are equal. Two NaNs are equal."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype}{one.shape}, expected {other.dtype}{other.shape}"
    bits = [array.reshape(-1).view(f"u{array.dtype.itemsize}") for array in (one, other)]
    flat = [array.reshape(-1) for array in (one, other)]
    places = np.flatnonzero((bits[0] != bits[1]) & ~((flat[0] != flat[0]) & (flat[1] != flat[1])))
    if not places.size:
        return ""
    return f"{places.size} of {one.size}; at {places[0]} {flat[0][places[0]]!r}, expected {flat[1][places[0]]!r}"


if __name__ == "__main__":
    kind, first, last = sys.argv[1], *map(int, sys.argv[2:4])
    counts = collections.Counter()
    for seed in range(first, last):
        found = findings(kind, seed)
        counts["refused by drop-in" if found is None else "right" if not found else found[0].split(": ")[-1][:90]] += 1
        if found:
            print(seed, found[:2], flush=True)
    print(counts)
