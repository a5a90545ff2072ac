"""A family of two operators that the package lacks, in one file: what `operators` and the family's module in
`quark_numba/ort/nodes/` have. `add` puts it into the catalog of this process, `add_to_copy` into a copy of the package.

`toy::Spread` has two outputs, one of them not of x's shape, and a float attribute: y = x * factor, and the sum of y's elements.
`toy::Mix` has any number of inputs and a list: y = offsets[0] + the sum of all inputs.
"""

import shutil
import sys

import numpy as np

from quark_numba.compiling.intrinsics import array_at, record_at, stack
from quark_numba.declaration import Attribute, Operator, Parameter, Tensor
from quark_numba.element_types import FLOAT32
from quark_numba.ort.nodes import context


def spread(x, *, factor):
    if x.ndim == 0:
        raise ValueError("x has shape (); expected a dimension")
    y = x * np.float32(factor)
    return y, np.array([y.sum(dtype=np.float32)])


def mix(*inputs, offsets):
    return np.float32(offsets[0]) + sum(inputs)


def declared(name, inputs, outputs, attributes, call, infer):
    return Operator(
        family="toy",
        domain="toy",
        name=name,
        operation=name.lower(),
        doc=f"{name}, for tests.",
        types={"T": (FLOAT32,)},
        inputs=inputs,
        outputs=tuple(Parameter(each, "T") for each in outputs),
        attributes=attributes,
        call=call,
        infer=infer,
        faults={1: "x has shape {x_shape}; expected a dimension"},
        formats={"float32": FLOAT32},
    )


SPREAD = declared(
    "SpreadQuantizeLinear",
    (Parameter("x", "T"),),
    ("y", "total"),
    (Attribute("factor", 2.0, kind="FLOAT"),),
    spread,
    lambda inputs, attributes: [inputs[0], Tensor(FLOAT32, [1])],
)
MIX = declared(
    "Mix",
    (Parameter("x", "T", option="variadic"),),
    ("y",),
    (Attribute("offsets", [0.5, 1.5], kind="FLOATS"),),
    mix,
    lambda inputs, attributes: [inputs[0]],
)

# The names that a module of quark_numba.ort.nodes has. `add` registers this module as the one of the family "toy".

STATE = context.state_dtype(("factor", np.float32), ("offset", np.float32), "is_mix")


def select(operator, overload, attributes):
    numbers = {"factor": attributes.get("factor", 1), "offset": attributes.get("offsets", [0])[0], "is_mix": operator is MIX}
    return context.Selection(None, numbers)


def compute(state_address, context_address):
    state = record_at(state_address, STATE)
    count = context.count_inputs(state, context_address)
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, count, count)
    shape = context.shape_at(shapes, 0)
    if exceeds_max_rank or (shape.size == 0 and not state.is_mix):
        return context.fault_status(state, context.EXCEEDS_MAX_RANK if exceeds_max_rank else 1, shapes)
    size = context.size_of(shape)
    status, y_value = context.output_of(state, context_address, 0, shape)
    if status:
        return status
    y = array_at(context.data_of(state, y_value), size, np.float32)
    y[:] = state.offset
    for index in range(count):
        x = array_at(context.data_of(state, values[index]), size, np.float32)
        for i in range(size):
            y[i] += x[i] * state.factor
    if state.is_mix:
        return 0
    one = array_at(stack(1), 1, np.int64)
    one[0] = 1
    status, total_value = context.output_of(state, context_address, 1, one)
    if status:
        return status
    total = array_at(context.data_of(state, total_value), 1, np.float32)
    total[0] = 0
    for i in range(size):
        total[0] += y[i]
    return 0


OPERATORS = (SPREAD, MIX)


def add():
    from quark_numba.catalog import OPERATORS as CATALOG

    for operator in OPERATORS:
        CATALOG.add(operator, sys.modules[__name__])


# The modules of the family in the package, and what is added to files that name families: after the first text, the second.
MODULES = {
    "toy/__init__.py": "",
    "toy/kernels.py": "",
    "toy/operators.py": "from toy_family import OPERATORS\n",
    "ort/nodes/toy.py": "from toy_family import STATE, compute, select\n",
}
LINES = {
    "quark_numba/catalog.py": [
        ("from .region import operators as region\n", "from .toy import operators as toy\n"),
        ("_FAMILIES = (", "toy, "),
    ],
    "pyproject.toml": [("recurrent | tables", " | toy")],
    "quark_numba/README.md": [("value of a table |\n", "| `quark_numba/toy/` | family: of tests |\n")],
}


def add_to_copy(root, folder):
    """Copy what of the repository at `root` has to do with families to a folder, and add the family to it."""
    shutil.copytree(root / "quark_numba", folder / "quark_numba", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", folder)
    for name, source in MODULES.items():
        (folder / "quark_numba" / name).parent.mkdir(exist_ok=True)
        (folder / "quark_numba" / name).write_text(source)
    for name, added in LINES.items():
        text = (folder / name).read_text(encoding="utf-8")
        for before, line in added:
            assert text.count(before) == 1, before
            text = text.replace(before, before + line)
        (folder / name).write_text(text, encoding="utf-8")
