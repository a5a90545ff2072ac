import heapq
import itertools
import os
import sys
import threading

import numba
import pytest
from commands import terminal  # noqa: F401  # a fixture for all tests
from large_models import is_large  # noqa: F401  # the same
from numba.core import compiler

from quark_numba.compiling import cache
from quark_numba.compiling.helpers import PROCESSES
from quark_numba.element_types import FLOAT32
from quark_numba.linear.key import select
from quark_numba.linear.versions import VERSIONS

# Two workers of pytest-xdist keep two cores busy.
os.environ[PROCESSES] = "1"

# No model is cached unless a test asks for it: what one test caches, another would find.
os.environ["QUARK_NUMBA_CACHE_MB"] = "0"


class _Process(cache._Process):
    """A process whose sessions do not say that they compile. Which test is the first to need a kernel depends on the cache and
    on the other workers, and the line would stand among those that the test expects."""

    warns_on_next_compile = property(lambda self: False, lambda self, warns: None)


cache.process = _Process()

# Rewrite the assertions of shared modules too, so that failures show the compared values.
pytest.register_assert_rewrite("rewritten_models", "onnx_models", "oracle")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist takes "load"
def pytest_cmdline_main(config):
    """Let each worker begin with its own part of the suite, because the tests of a file share fixtures and compiled kernels.
    Where pytest-xdist is missing, or is not asked for workers, this changes nothing."""
    if getattr(config.option, "dist", None) == "no":
        config.option.dist = "worksteal"


def keys(operation):
    """Return the keys of all types that the Extended operators convert, as parameters."""
    (version,) = [v for v in VERSIONS if v.operation == operation and v.domain == "com.amd.quark"]
    operands = [(FLOAT32, row, row) if operation == "quantize" else (row, row, FLOAT32) for row in version.quantized]
    each = [select(operation, x, FLOAT32, quantized, y) for x, quantized, y in operands]
    return [pytest.param(key, id=key.quantized.name) for key in each]


@pytest.hookimpl(trylast=True)  # after coverage has started
def pytest_sessionstart():
    if threading.gettrace() and not numba.config.DISABLE_JIT:
        trace_other_threads()
        do_not_trace_compiling()


def trace_other_threads():
    """Trace the threads of ONNX Runtime and of `_thread` too. Python traces only the threads that `threading` starts."""
    from quark_numba.compiling import lock
    from quark_numba.ort import python_record

    python_function, start_new_thread = python_record.PythonFunction, lock.start_new_thread

    def traced(function):
        def run(*arguments):
            sys.settrace(threading.gettrace())
            return function(*arguments)

        return run

    python_record.PythonFunction = lambda function: python_function(traced(function))
    lock.start_new_thread = lambda function, arguments: start_new_thread(traced(function), arguments)


def do_not_trace_compiling():
    """Let Numba compile without a tracer, which calls the tracer for each of its lines, and takes more than twice as long."""
    compile_extra = compiler.compile_extra

    def untraced(*arguments, **named):
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return compile_extra(*arguments, **named)
        finally:
            sys.settrace(tracer)

    compiler.compile_extra = untraced


def pytest_generate_tests(metafunc):
    for operation in ("quantize", "dequantize"):
        if f"{operation}_key" in metafunc.fixturenames:
            metafunc.parametrize(f"{operation}_key", keys(operation))


# One element type of each kind. By default, a test of many types runs with these; with the others it is `slow`.
KINDS = {"uint8", "int8", "int32", "int4", "float16", "bfloat16", "float8e4m3fn", "float6e2m3"}
SIBLINGS = {row.name for version in VERSIONS for row in version.quantized} - KINDS

# The most slow parameter sets of a test, unless its marker says otherwise: all pairs of values would take CI an hour.
MOST_SLOW = 24


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config, items):
    tests = {}
    for item in items:
        if numba.config.DISABLE_JIT and item.get_closest_marker("compiled"):
            item.add_marker(pytest.mark.skip(reason="NUMBA_DISABLE_JIT: of compiled code only"))
        if hasattr(item, "callspec"):
            tests.setdefault((item.path, item.cls, item.originalname), []).append(item)
    runs_slow_tests = "not slow" not in config.getoption("markexpr")
    for group in tests.values():
        unmarked = [item for item in group if not is_marked(item)]
        if unmarked:
            mark_group(unmarked)
        if runs_slow_tests:  # choosing takes some seconds
            mark_exhaustive([item for item in group if has(item, "slow") and not has(item, "exhaustive")])


def has(item, name):
    return item.get_closest_marker(name) is not None


def is_marked(item):
    return has(item, "exhaustive") or (has(item, "slow") and not has(item, "covering"))


def mark_exhaustive(slow):
    """Mark those slow parameter sets of a test that are not needed to have each pair of values of two parameters. A fault that
    takes three particular values is rare, as the kernels are made of parts that each depend on one or two. At most MOST_SLOW
    sets are left, those first that have the most pairs. If a marker of the test has a number for slow sets, so many are
    left."""
    by_default, is_slow = (next((item.get_closest_marker(name) for item in slow), None) for name in ("by_default", "slow"))
    count = (by_default and by_default.kwargs.get("slow")) or (is_slow and next(iter(is_slow.args), None))
    of_pairs = itertools.islice(covering_items(slow, pairs_of_values), MOST_SLOW)
    chosen = itertools.islice(different_items(slow, count), count) if count else of_pairs
    for item in set(slow) - {*chosen}:
        item.add_marker(pytest.mark.exhaustive)


def mark_group(items):
    """Mark those parameter sets of a test that do not run by default."""
    covering = items[0].get_closest_marker("covering")
    if covering:
        chosen = [*covering_items(items)]
        (rest,) = covering.args or ("slow",)
        for item in set(items) - {*chosen}:
            item.add_marker(getattr(pytest.mark, rest))
        items = chosen
    by_default = items[0].get_closest_marker("by_default")
    if by_default:
        (count,) = by_default.args
        chosen = {*itertools.islice(different_items(items, count), count)}
    else:
        chosen = {item for item in items if not has_sibling(item)} or items
    for item in set(items) - {*chosen}:
        item.add_marker(pytest.mark.slow)


def has_sibling(item):
    return any(value in SIBLINGS for _, value in parameter_values(item.callspec.params))


def covering_items(items, of=lambda item: parameter_values(item.callspec.params)):
    """Yield few items, chosen greedily, so that each value of each parameter occurs in at least one, or each of what `of`
    returns instead. The fields of a tuple are parameters too. Items of the types that run by default come first."""
    values = {item: set(of(item)) for item in items}
    covered = set()
    for part in ([item for item in items if not has_sibling(item)], items):
        # The item with the most missing values is next. What an item gains only shrinks, so an old number is an upper bound.
        gains = [(-len(values[item] - covered), place, item) for place, item in enumerate(part)]
        heapq.heapify(gains)
        while gains:
            gain, place, item = heapq.heappop(gains)
            now = -len(values[item] - covered)
            if now and now > gain:
                heapq.heappush(gains, (now, place, item))
            elif now:
                yield item
                covered |= values[item]


def pairs_of_values(item):
    """Return all pairs of values of two parameters, or the only value."""
    values = [*parameter_values(item.callspec.params)]
    return itertools.combinations(values, 2) if len(values) > 1 else values


def different_items(items, count):
    """Yield items, those first that have between them each value of each parameter, from all over the list."""
    step = -(-len(items) // count)
    left = [item for first in range(step) for item in items[first::step]]
    while left:
        chosen = [*covering_items(left)]
        yield from chosen
        left = [item for item in left if item not in chosen]


def parameter_values(parameters):
    for name, value in parameters.items():
        if hasattr(value, "_asdict"):
            yield from parameter_values({f"{name}.{field}": each for field, each in value._asdict().items()})
        else:
            yield name, getattr(value, "name", None) or str(value)
