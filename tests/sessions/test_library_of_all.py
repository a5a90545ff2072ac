"""A library of all of Quark's operators runs models that it has not seen, as they are written."""

import numpy as np
import onnx
import pytest
from libraries import REFUSED, check_bits, child, linked
from onnx import helper, numpy_helper
from onnx_models import model, one_node
from paths import MODELS

from quark_numba import build_library
from quark_numba.element_types import find

pytestmark = [*linked, pytest.mark.slow]

MODELS_OF_QUARK = [
    "style_bf16",
    "style_xint8",
    "tagger_u16",
    *(f"textline_cls_{each}" for each in ("bf16", "bfp16", "fp16", "i32", "mx9", "mxfp8", "u32")),
]
DOMAINS = "com.amd.quark", "com.vai.quantize"
SHAPE = 3, 37, 40
TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16"]
ELEMENTS = ["fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8"]


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build_library(None, tmp_path_factory.mktemp("all"))


@pytest.mark.parametrize("threads", [1, 2])
def test_models_of_quark(library, threads, tmp_path):
    check_bits(library, [MODELS / f"{each}.onnx" for each in MODELS_OF_QUARK], threads, tmp_path)


def nodes_of(rng, number, newer):
    """Yield random nodes that give y{number} from x, and their constants. `newer`: whether they have the newer names."""
    y, names = f"y{number}", []

    def constant(value, name="c"):
        names.append(f"{name}{number}_{len(names)}")
        return numpy_helper.from_array(np.asarray(value), names[-1])

    def node(names, *inputs, output=y, **attributes):
        return helper.make_node(names[not newer], inputs, [output], domain=DOMAINS[not newer], **attributes)

    def integer(low, high):
        return int(rng.integers(low, high))

    kind = number % 5
    if kind == 0:
        axis = integer(-3, 3)
        row = find(TYPES[integer(0, len(TYPES))])
        scale = constant(rng.uniform(1e-3, 0.1, SHAPE[axis]).astype(np.float32))
        count = SHAPE[axis]
        codes = rng.integers(0, 9, count) if row.is_integer else np.zeros(count)
        zero = helper.make_tensor(f"z{number}", row.number, [count], codes.tolist())
        quantize = ("ExtendedQuantizeLinear", "VitisQuantizeLinear")
        dequantize = ("ExtendedDequantizeLinear", "VitisDequantizeLinear")
        yield node(quantize, "x", scale.name, zero.name, output=f"q{number}", axis=axis), [scale, zero]
        yield node(dequantize, f"q{number}", scale.name, zero.name, axis=axis), []
    if kind == 1:
        sub, method = integer(1, 9), ("to_bfp", "to_bfp_prime", "to_bfp_prime_shared")[integer(0, 3)]
        given = {"axis": integer(-3, 3), "bit_width": integer(10, 25), "block_size": sub * integer(1, 12)}
        given |= {"rounding_mode": integer(0, 3), "sub_block_size": sub, "sub_block_shift_bits": integer(0, 9)}
        given |= {"convert_to_bfloat_before_bfp": integer(0, 2), "bfp_method": method}
        yield node(("BFPQuantizeDequantize", "BFPFixNeuron"), "x", **given), []
    if kind == 2:
        given = {"element_dtype": ELEMENTS[integer(0, 6)], "axis": integer(-3, 3), "block_size": integer(1, 70)}
        yield node(("MXQuantizeDequantize", "MXFixNeuron"), "x", rounding_mode=integer(0, 3), **given), []
    if kind == 3:
        constants = [constant(rng.normal(size=SHAPE[1]).astype(np.float32)) for _ in range(2)]
        inputs = "x", *(each.name for each in constants)
        epsilon = float(10 ** rng.uniform(-8, 0))
        yield node(("ExtendedInstanceNormalization", "VitisInstanceNormalization"), *inputs, epsilon=epsilon), constants
    if kind == 4:
        hidden = integer(1, 9)
        shapes = [2, 4 * hidden, SHAPE[2]], [2, 4 * hidden, hidden], [2, 8 * hidden]
        constants = [constant(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
        # Scales of any size: also those whose products underflow or need long shifts.
        scales = {f"{each}_scale": float(10 ** rng.uniform(-6, -2)) for each in "xwrby"}
        if number % 2:
            scales["x_scale"] = 1e-40
        zeros = {f"{each}_zero_point": integer(-1000, 70000) for each in "xwrby"}
        inputs = "x", *(each.name for each in constants)
        yield node(("ExtendedLSTM", "VitisLSTM"), *inputs, hidden_size=hidden, **scales, **zeros), constants


def test_random_attributes(library, tmp_path):
    """All of Quark's operators in all types, with attributes drawn at random."""
    paths = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        found = [each for number in range(100) for each in nodes_of(rng, number, newer=seed % 2 == 0)]
        nodes, constants = [node for node, _ in found], [each for _, given in found for each in given]
        outputs = [f"y{number}" for number in range(100)]
        path = tmp_path / f"random{seed}.onnx"
        source = model(nodes, [("x", "float32", SHAPE)], outputs, initializers=constants, domains=DOMAINS)
        onnx.save(source, path)
        paths.append(path)
    check_bits(library, paths, 2, tmp_path, least=0.9)  # a layer of wild scales may give one code


PRIME = {"bfp_method": "to_bfp_prime"}
WRONG = {
    "BFPQuantizeDequantize": [{"block_size": 0}, {"bit_width": 9}, {"bit_width": 25}, {"rounding_mode": 3}],
    "MXQuantizeDequantize": [{"block_size": -1}, {"element_dtype": "fp5"}],
}
for wrong in ({"sub_block_size": 3}, {"sub_block_size": 0}, {"sub_block_shift_bits": 9}):
    WRONG["BFPQuantizeDequantize"].append(PRIME | wrong)


@pytest.mark.parametrize(("name", "attributes"), [(name, each) for name in WRONG for each in WRONG[name]], ids=str)
def test_wrong_attributes(library, name, attributes, tmp_path):
    """The library refuses wrong attributes as this package's sessions do."""
    node = helper.make_node(name, ["x"], ["y"], name="here", domain="com.amd.quark", **attributes)
    onnx.save(model([node], ["x"], ["y"]), tmp_path / "model.onnx")
    found = child(REFUSED, library, tmp_path / "model.onnx")
    assert f"lacks com.amd.quark::{name} of float32" in found
    assert "(node 'here')" in found
    given, value = [*attributes.items()][-1]
    assert f"{given} = {value}" in found


LAYER = {f"{each}_scale": 1.0 for each in "xwrby"} | {f"{each}_zero_point": 1 for each in "xwrby"} | {"hidden_size": 2}
WRONG_LAYERS = [{"hidden_size": 0}, {"x_scale": 0.0}, {"y_scale": float("inf")}, {"b_scale": float("nan")}]
WRONG_LAYERS += [{"x_scale": 1e30, "w_scale": 1e30}, {"layout": 1}, {"input_forget": 1}]


@pytest.mark.parametrize("attributes", WRONG_LAYERS, ids=str)
def test_wrong_layers(library, attributes, tmp_path):
    node = helper.make_node("ExtendedLSTM", [*"xwrb"], ["y"], name="here", domain="com.amd.quark", **LAYER | attributes)
    onnx.save(model([node], [*"xwrb"], ["y"]), tmp_path / "model.onnx")
    assert "lacks com.amd.quark::ExtendedLSTM" in child(REFUSED, library, tmp_path / "model.onnx")


def test_weights_of_the_wrong_size(library, tmp_path):
    """A run gives the error, and nothing is read after the weights' end."""
    shapes = {"w": (2, 8, 3), "r": (2, 8, 1), "b": (2, 16)}
    constants = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    node = helper.make_node("ExtendedLSTM", [*"xwrb"], ["y"], name="here", domain="com.amd.quark", **LAYER)
    onnx.save(model([node], [("x", "float32", (2, 1, 3))], ["y"], initializers=constants), tmp_path / "model.onnx")
    code = f"""{REFUSED}
import numpy as np
session = onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
try:
    session.run(None, {{"x": np.ones((2, 1, 3), np.float32)}})
except Exception as error:
    print(error)
"""
    assert "r has shape (2, 8, 1); expected (2, 4 * hidden_size, hidden_size)" in child(code, library, tmp_path / "model.onnx")


def test_what_it_lacks(library, tmp_path):
    """The library of all of Quark's operators lacks those that `optimize` writes."""
    onnx.save(one_node("quantize_dequantize", "int8", domain="quark_numba"), tmp_path / "model.onnx")
    assert "lacks quark_numba::QuantizeDequantizeLinear" in child(REFUSED, library, tmp_path / "model.onnx")
