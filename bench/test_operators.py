"""Each case by each contender that has it. Contenders take three turns each, so that a drift of the machine affects all."""

from functools import lru_cache
from itertools import product

import pytest
from cases import TURNS, Case, cases
from contenders import CONTENDERS, Contender


@lru_cache(maxsize=len(CONTENDERS))
def _prepared(case: Case, contender: Contender):
    action = contender.prepare(case)
    action()
    return action


def _turns():
    for case in cases():
        marks = [pytest.mark.quick] if case.is_quick else []
        contenders = [contender for contender in CONTENDERS if contender.has(case)]
        for turn, contender in product(range(TURNS), contenders):
            yield pytest.param(case, contender, id=f"{case.group}-{turn}-{contender.name}", marks=marks)


@pytest.mark.parametrize(("case", "contender"), list(_turns()))
@pytest.mark.benchmark(max_time=0.04, min_rounds=3, warmup=False)
@pytest.mark.filterwarnings("ignore")  # PyTorch's
def test_operator(benchmark, case, contender):
    benchmark.group = case.group
    benchmark.extra_info |= {
        "contender": contender.name,
        "operation": case.operation,
        "type": case.row.name,
        "granularity": case.granularity,
        "elements": case.size,
        "threads": case.threads,
    }
    benchmark(_prepared(case, contender))
