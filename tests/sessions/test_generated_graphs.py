"""Sessions of generated graphs. Graphs like those of exporters are compared with drop-in sessions of the same graphs, by the
rules in `compared_sessions`. Graphs of ONNX's own quantization operators, of dialects and of block formats run in every mode,
against plain ONNX Runtime without optimizations and an oracle, by the rules in `qdq_sessions`."""

import compared_sessions
import pytest
import qdq_sessions
from marks import batches

pytestmark = pytest.mark.compiled


@batches(default=(0, 10, 5), slow=(10, 100, 15), exhaustive=(100, 5300, 50))
@pytest.mark.slow
def test_sessions_give_what_drop_in_sessions_give(seeds):
    """``python tests/support/compared_sessions.py SEED`` shows the graph of a seed, and its smallest part with the same
    findings."""
    failures = []
    for seed in seeds:
        case, comparison = compared_sessions.compared(seed)
        failures += [f"seed {seed}, {kind}: {what} {case.built}" for kind, what in comparison.found]
    assert not failures, "\n".join(["", *failures])


@pytest.fixture(scope="module")
def worker():
    with qdq_sessions.Worker() as made:
        yield made


@batches(default=(0, 1, 1), slow=(1, 61, 15), exhaustive=(61, 5061, 50))
def test_onnx_operators(seeds, worker):
    assert_right(worker, "qdq", seeds)


@pytest.mark.parametrize("graphs", ["dialects", "blocks"])
@batches(default=(0, 1, 1), slow=(1, 25, 8), exhaustive=(25, 1525, 50))
@pytest.mark.slow
def test_dialects_and_block_formats(graphs, seeds, worker):
    assert_right(worker, graphs, seeds)


def assert_right(worker, graphs, seeds):
    """``python tests/support/qdq_sessions.py FIRST LAST --reduce`` shows the smallest parts of graphs with these findings."""
    failures, refused = [], []
    for seed in seeds:
        status, found = worker.check(seed, qdq_sessions.modes_of(seed), graphs)
        if status == "refused":
            refused.append(seed)
        else:
            failures += [f"seed {seed}, {', '.join(each)}" for each in found]
    assert not failures, "\n".join(["", *failures])
    assert len(refused) <= 1 + len(seeds) // 5, f"plain ONNX Runtime refuses the graphs of {refused}"
