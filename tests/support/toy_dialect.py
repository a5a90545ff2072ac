"""A dialect that the package lacks, written like a file of ``quark_numba/dialects``. Its one operator rounds x to multiples of
a step; the family of fake quantization has this form. `add` does what the line of the catalog does."""

from quark_numba.catalog import OPERATORS as CATALOG
from quark_numba.declaration import Attribute, FakeQuantize, Parameter
from quark_numba.fake_quantization.operators import operator


def _learned_step(inputs, attributes):
    x, step = inputs
    parameters = {"scale": step, "zero_point": 0, "bit_width": attributes["bits"], "signed": 1, "narrow": 1}
    return FakeQuantize(x, "integer", "ROUND", parameters, attributes["axis"])


OPERATORS = (
    operator(
        "toy.steps",
        "LearnedStep",
        (Parameter("step", "T", "One element, or one for each index along the axis."),),
        (Attribute("bits", 8, "Bits of a code."), Attribute("axis", 0, "The axis of the steps.")),
        _learned_step,
        form="integer",
        doc="y = rint(clamp(x / step, 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)) * step.",
    ),
)


def add():
    for each in OPERATORS:
        CATALOG.add(each)
