"""Sessions of generated graphs against drop-in sessions of the same graphs: no errors, no other shapes, and only differences
that `compared_sessions` allows."""

import compared_sessions
import pytest

pytestmark = pytest.mark.compiled


def batches(first, last, size, *marks):
    return [pytest.param(range(k, k + size), id=f"{k}-{k + size - 1}", marks=marks) for k in range(first, last, size)]


@pytest.mark.parametrize(
    "seeds",
    [
        *batches(0, 10, 5),
        *batches(10, 20, 10, pytest.mark.full),
        *batches(20, 180, 20, pytest.mark.full),
        *batches(180, 5320, 50, pytest.mark.exhaustive),
    ],
)
def test_sessions_give_what_drop_in_sessions_give(seeds):
    """``python tests/support/compared_sessions.py SEED`` shows the graph of a seed, and its smallest part with the same
    findings."""
    failures = []
    for seed in seeds:
        case, comparison = compared_sessions.compared(seed)
        failures += [f"seed {seed}, {kind}: {what} {case.built}" for kind, what in comparison.found]
    assert not failures, "\n".join(["", *failures])
