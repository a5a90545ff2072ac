"""Comparison of the results of the package's sessions for a generated graph with those of a drop-in session of the model whose
constants are folded.

`python tests/support/compared_sessions.py FIRST LAST [PROCESSES]` compares the graphs of these seeds, and lists the findings.
`python tests/support/compared_sessions.py SEED` prints one graph, its findings, and its smallest part with the same findings.

A drop-in session is an ``onnxruntime.InferenceSession`` with `quark_numba.register`. The rules of the comparison:

- At ORT_ENABLE_EXTENDED, without the blocked layout: all bits are equal. Two NaNs are equal, whatever their bits.
- At ORT_ENABLE_ALL, with and without the blocked layout, for exact graphs: all bits are equal except the sign of zeros, because
  the sign of a sum of 0 depends on the order of its terms.
- At ORT_ENABLE_ALL, for other graphs: no value differs by more than 2^-5 of the largest value of its tensor, and the average
  difference is at most 2^-9 of it. The tolerance is needed because a value near a tie may be rounded to another step, which
  changes all values downstream. Alternatively, the bound is eight times the difference between ONNX Runtime's own results at
  ORT_ENABLE_ALL and ORT_DISABLE_ALL.
- If the inputs have Inf, NaN or huge values: in values that depend on these, only the places of NaN have to agree. A sum of the
  largest finite values, the results of saturation, overflows in one order and not in another. A value depends on such inputs if
  ONNX Runtime's results at ORT_DISABLE_ALL differ with and without them.
- ONNX Runtime's own results at ORT_ENABLE_ALL are not always right. The channels that its blocked layout adds become NaN by Inf
  times 0, and spread to other channels; its MaxPool in that layout ignores NaN. So a value is also right if it agrees with the
  drop-in session at ORT_DISABLE_ALL. If these two differ and ours agrees with neither, the value is counted separately (ALONE).
  In a graph whose MaxPool has NaN in its input, such a value is a finding of the kind "MaxPool of NaN".
"""

import collections
import multiprocessing
import sys
import time

import generated_graphs
import numpy as np
import onnx
from onnx import helper
from onnx_models import session
from qdq_sessions import ours
from smaller_graphs import cut, smallest, text_of, with_outputs

ALL, EXTENDED, NONE = "ENABLE_ALL", "ENABLE_EXTENDED", "DISABLE_ALL"
ALONE = "ONNX Runtime alone"


def drop_in(model, level):
    return session(model, level=level, threads=1)


def run(made, feeds):
    names = {each.name for each in made.get_inputs()}
    return made.run(None, {name: value for name, value in feeds.items() if name in names})


def outcome(make, feeds):
    """Return the results of a session, or the text of its error."""
    try:
        return run(make(), feeds)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


class Comparison:
    """The comparison of one graph. `found` has the findings as (kind, description); `alone` has the differences between ONNX
    Runtime's own sessions."""

    def __init__(self, source, folded, feeds, exact=True):
        self.source, self.folded, self.feeds, self.exact = source, folded, feeds, exact
        self.names = [each.name for each in folded.graph.output]
        self.found, self.alone = [], []
        self._judge = self._ordinary = None
        extended, all_ = (outcome(lambda level=level: drop_in(folded, level), feeds) for level in (EXTENDED, ALL))
        for level, blocked_layout in ((EXTENDED, False), (ALL, False), (ALL, True)):
            label = f"{'EXTENDED' if level == EXTENDED else 'ALL'}{', blocked' if blocked_layout else ''}"
            expected = extended if level == EXTENDED else all_
            if isinstance(expected, str):
                self.alone.append(("error of the drop-in session", f"{label}: {expected}"))
                continue
            result = outcome(lambda level=level, blocked=blocked_layout: ours(source, level, blocked_layout=blocked), feeds)
            self._compare(label, expected, result, self._equal if level == EXTENDED else self._near)

    def _compare(self, label, expected, result, compare):
        if isinstance(result, str):
            self.found.append((f"error, {label}", result))
            return
        for k, (name, one, other) in enumerate(zip(self.names, expected, result, strict=True)):
            if one.shape != other.shape or one.dtype != other.dtype:
                self.found.append((f"shape, {label}", f"{name}: {one.dtype}{one.shape}, ours {other.dtype}{other.shape}"))
                continue
            wrong = compare(k, one, other)
            if wrong:
                self.found.append((f"{wrong[0]}, {label}", f"{name}: {wrong[1]}"))

    def _equal(self, k, one, other):
        return said("bits", one, other, ~same(one, other))

    def judge(self, k):
        """Return output `k` of the drop-in session that computes each node by itself."""
        if self._judge is None:
            self._judge = run(drop_in(self.folded, NONE), self.feeds)
        return self._judge[k]

    def reached(self, k):
        """Return a mask of the values that depend on inputs that are not finite or are huge."""
        if not has_special(self.feeds):
            return np.False_
        if self._ordinary is None:
            judge = drop_in(self.folded, NONE)
            self._ordinary = [
                run(judge, {name: ordinary(value, other) for name, value in self.feeds.items()})
                for other in (0.25, -1.75, 16, np.nan)
            ]
        return np.logical_or.reduce([~same(each[k], self.judge(k)) for each in self._ordinary])

    def meets_nan(self):
        """Return whether the input of a MaxPool has a NaN."""
        names = [node.input[0] for node in self.folded.graph.node if node.op_type == "MaxPool"]
        with_names = with_outputs(self.folded, [info(name) for name in names])
        return bool(names) and any(np.isnan(each).any() for each in run(drop_in(with_names, NONE), self.feeds))

    def _near(self, k, one, other):
        differ = ~(same(one, other) | (one == other))
        if not differ.any():
            return None
        judge, reached = self.judge(k), self.reached(k)
        own = ~(same(one, judge) | (one == judge))
        differ &= ~(same(judge, other) | (judge == other))
        is_nan = np.isnan(other)
        wrong = differ & np.where(reached, (is_nan != np.isnan(one)) & (is_nan != np.isnan(judge)), ~same_kind(one, other))
        if self.exact:
            wrong |= differ & ~reached
        if (wrong & own).any() and has_special(self.feeds):
            self.alone.append((ALONE, str(said("values", one, other, wrong & own))))
            wrong &= ~own
        if wrong.any():
            kind = (
                "MaxPool of NaN" if has_special(self.feeds) and self.meets_nan() else "values" if self.exact else "not finite"
            )
            return said(kind, one, other, wrong)
        if self.exact:
            return None
        with np.errstate(all="ignore"):
            plain = np.isfinite(one) & np.isfinite(other) & np.isfinite(judge) & ~reached
            d = np.where(plain, np.abs(one.astype(np.float64) - other), 0)
            own_d = np.where(plain, np.abs(one.astype(np.float64) - judge), 0)
        largest = np.abs(one[plain]).max(initial=0)
        wrong = d > max(2**-5 * largest, 8 * own_d.max(initial=0))
        if wrong.any():
            return said("far", one, other, wrong)
        if d.mean() > max(2**-9 * largest, 8 * own_d.mean()):
            return said("far on the average", one, other, d > 2**-9 * largest)
        return None


def has_special(feeds):
    return any(not np.array_equal(ordinary(value), value) for value in feeds.values())


def ordinary(value, other=0.25):
    """Return the values with `other` in place of those that are not finite or are huge."""
    if value.dtype != np.float32:
        return value
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(value) < 1e30, value, np.float32(other))


def same(one, other):
    return (one.view(np.uint32) == other.view(np.uint32)) | (np.isnan(one) & np.isnan(other))


def same_kind(one, other):
    """Return where both are NaN, the same infinity, or finite."""
    return (np.isnan(one) & np.isnan(other)) | (one == other) | (np.isfinite(one) & np.isfinite(other))


def said(kind, one, other, wrong):
    if not wrong.any():
        return None
    place = tuple(int(k) for k in np.argwhere(wrong)[0])
    return kind, f"{int(wrong.sum())} of {wrong.size}; at {place} {one[place]!r}, ours {other[place]!r}"


def compared(seed):
    case = generated_graphs.case(seed)
    return case, Comparison(case.source, case.folded, case.feeds, case.exact)


def smaller(case, kind):
    """Return the smallest part of a case that still has a finding of this kind, as two models and their feeds."""

    def shows(part):
        try:
            return any(each == kind for each, _ in Comparison(*part, case.exact).found)
        except Exception:
            return False

    def part_of(fed, output):
        """Return the part, or None if its values cannot be computed or are not float32."""
        names = [*fed, output]
        try:
            made = drop_in(with_outputs(case.folded, [info(name) for name in names]), NONE)
            values = dict(zip(names, run(made, case.feeds), strict=True))
        except Exception:
            return None
        if any(value.dtype != np.float32 for value in values.values()):
            return None
        inputs = [info(name, values[name].shape) for name in fed]
        models = (cut(model, inputs, [info(output)]) for model in (case.source, case.folded))
        return *models, case.feeds | {name: values[name] for name in fed}

    floats = [each.name for each in case.folded.graph.output]
    inner = [name for node in case.folded.graph.node for name in node.output if name not in floats]
    return smallest([*inner, *floats], part_of, shows) or (case.source, case.folded, case.feeds)


def info(name, shape=None):
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def _finding(seed):
    try:
        case, comparison = compared(seed)
    except Exception as error:
        return seed, None, [("error of the test", f"{type(error).__name__}: {error}")], []
    return seed, case, comparison.found, comparison.alone


def _main(arguments):
    numbers = [int(each) for each in arguments]
    if len(numbers) == 1:
        case, comparison = compared(*numbers)
        print(text_of(case.source), case.built, f"exact: {case.exact}, special: {case.special}", sep="\n")
        print(*comparison.found, *comparison.alone, sep="\n")
        for kind in dict.fromkeys(kind for kind, _ in comparison.found):
            source, folded, feeds = smaller(case, kind)
            print(f"\n{kind}, in a smaller graph:\n{text_of(folded)}")
            print({name: value.shape for name, value in feeds.items()}, Comparison(source, folded, feeds, case.exact).found)
        return
    first, last, processes = (*numbers, 1)[:3]
    kinds, alone, start = collections.defaultdict(list), collections.defaultdict(list), time.time()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for seed, case, found, own in pool.imap_unordered(_finding, range(first, last), 4):
            for kind, what in dict(reversed(found)).items():
                kinds[kind].append(seed)
                print(seed, kind, what, case and (case.special, "exact" if case.exact else "any", case.built), flush=True)
            for kind, what in dict(reversed(own)).items():
                alone[kind].append(seed)
                print("   ", seed, kind, what, flush=True)
    minutes = (time.time() - start) / 60
    print(f"{last - first} graphs in {minutes:.1f} minutes, {(last - first) / minutes:.0f} a minute")
    for kind, seeds in sorted([*kinds.items(), *alone.items()]):
        print(f"{len(seeds):5} {kind}: {sorted(seeds)[:30]}")


if __name__ == "__main__":
    _main(sys.argv[1:])
