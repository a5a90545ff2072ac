"""The values of a parameter that run by default, and those that run with a marker; and what a test needs."""

from importlib.util import find_spec

import pytest

needs_extensions = pytest.mark.skipif(
    find_spec("onnxruntime_extensions") is None,
    reason="onnxruntime-extensions is missing, which has no builds for some Pythons",
)


def default_of(values, *default):
    """Return all values as parameters of pytest; values that are not in `default` are marked `slow`."""
    missing = set(default) - set(values)
    assert not missing, missing
    return [value if value in default else pytest.param(value, marks=pytest.mark.slow) for value in values]


def sizes(name, default, **marked):
    """Parametrize a test by its size: `default`, and one size for each marker."""
    others = [pytest.param(size, marks=getattr(pytest.mark, marker)) for marker, size in marked.items()]
    return pytest.mark.parametrize(name, [default, *others])


def batches(**spans):
    """Parametrize a test by ranges of seeds. `spans` has the first seed, the end and the size of a range, by marker, or by
    `default` for those without a marker."""

    def params():
        for marker, (first, end, size) in spans.items():
            marks = () if marker == "default" else getattr(pytest.mark, marker)
            for k in range(first, end, size):
                yield pytest.param(range(k, k + size), id=f"{k}-{k + size - 1}", marks=marks)

    return pytest.mark.parametrize("seeds", [*params()])
