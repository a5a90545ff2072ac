"""Each case by each contender that has it. Contenders take three turns each, so that a drift of the machine affects all."""

from functools import partial
from itertools import product

import pytest
from cases import TURNS, cases
from contenders import CONTENDERS
from measuring import measure


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
    measure(benchmark, case.group, contender.name, partial(contender.prepare, case))
