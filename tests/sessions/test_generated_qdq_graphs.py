"""Sessions of generated graphs of ONNX's own quantization operators, of dialects and of block formats, in every mode, against
plain ONNX Runtime without optimisations and an oracle. The rules are in `qdq_sessions`."""

import pytest
import qdq_sessions

pytestmark = pytest.mark.compiled


@pytest.fixture(scope="module")
def worker():
    made = qdq_sessions.Worker()
    yield made
    made.close()


def batches(first, last, size, *marks):
    return [pytest.param(range(k, k + size), id=f"{k}-{k + size - 1}", marks=marks) for k in range(first, last, size)]


def assert_right(worker, graphs, seeds):
    """``python tests/support/qdq_sessions.py FIRST LAST --reduce`` shows the smallest parts of graphs with these findings."""
    failures, refused = [], []
    for seed in seeds:
        status, found = worker.check(seed, qdq_sessions.modes_of(seed), graphs)
        if status == "refused":
            refused.append(seed)
        else:
            failures += [f"seed {seed}, {': '.join(each)}" for each in found]
    assert not failures, "\n".join(["", *failures])
    assert len(refused) <= 1 + len(seeds) // 5, f"plain ONNX Runtime refuses the graphs of {refused}"


@pytest.mark.parametrize(
    "seeds",
    [
        *batches(0, 8, 4),
        *batches(8, 108, 20, pytest.mark.full),
        *batches(108, 5008, 50, pytest.mark.exhaustive),
    ],
)
def test_onnx_operators(seeds, worker):
    assert_right(worker, "qdq", seeds)


@pytest.mark.parametrize("graphs", ["dialects", "blocks"])
@pytest.mark.parametrize(
    "seeds",
    [
        *batches(0, 4, 4),
        *batches(4, 44, 20, pytest.mark.full),
        *batches(44, 1544, 50, pytest.mark.exhaustive),
    ],
)
def test_dialects_and_block_formats(graphs, seeds, worker):
    assert_right(worker, graphs, seeds)
