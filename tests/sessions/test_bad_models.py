"""Broken models give ONNX Runtime's error and no crash, and other sessions go on."""

import os
import warnings
from contextlib import suppress

import mutated_models
import mutated_sessions
import numpy as np
import onnx
import pytest
from marks import sizes
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, one_node, run, session, session_options
from paths import MODELS

import quark_numba
from quark_numba import ModelError, optimize
from quark_numba.cli import inventory
from quark_numba.rewriting import constants, functions, pairs, regions, round_trips
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled

DOMAIN = "com.amd.quark"
QUANTIZE, DEQUANTIZE = "ExtendedQuantizeLinear", "ExtendedDequantizeLinear"


def node(op_type, inputs, outputs=("y",), **attributes):
    return helper.make_node(op_type, inputs, outputs, domain=DOMAIN, **attributes)


def scaled(nodes, outputs=("y",), inputs=("x", "s"), **arguments):
    return model(nodes, list(inputs), list(outputs), **arguments)


def changed(change):
    broken = one_node("quantize", "int8")
    change(broken)
    return broken


def initializer(name, dims, data, data_type=TensorProto.FLOAT):
    return TensorProto(name=name, dims=dims, data_type=data_type, raw_data=data)


def cyclic():
    return scaled([node(QUANTIZE, ["b", "s"], ["a"]), node(DEQUANTIZE, ["a", "s"], ["b"])], ["b"])


BROKEN = {
    "no inputs": scaled([node(QUANTIZE, [])]),
    "one input": scaled([node(DEQUANTIZE, ["x"])]),
    "four inputs": scaled([node(QUANTIZE, ["x", "s", "", "s"])]),
    "scale left empty": scaled([node(QUANTIZE, ["x", ""])]),
    "x left empty": scaled([node(QUANTIZE, ["", "s"])]),
    "two outputs": scaled([node(QUANTIZE, ["x", "s"], ["y", "z"])]),
    "no output": scaled([node(QUANTIZE, ["x", "s"], [])]),
    "an input that nobody makes": scaled([node(QUANTIZE, ["x", "nothing"])]),
    "an output twice": scaled([node(QUANTIZE, ["x", "s"]), node(QUANTIZE, ["x", "s"])]),
    "a cycle": cyclic(),
    "its own input": scaled([node(QUANTIZE, ["y", "s"])]),
    "unknown operator": scaled([node("ExtendedQuantizeQuadratic", ["x", "s"])]),
    "no opset of the domain": scaled([node(QUANTIZE, ["x", "s"])], domains=()),
    "axis is a float": scaled([node(QUANTIZE, ["x", "s"], axis=1.0)]),
    "axis is a string": scaled([node(QUANTIZE, ["x", "s"], axis="1")]),
    "axis is a list": scaled([node(QUANTIZE, ["x", "s"], axis=[1])]),
    "axis is a tensor": scaled([node(QUANTIZE, ["x", "s"], axis=initializer("a", [], b"1234"))]),
    "axis is of no type": changed(lambda m: m.graph.node[0].attribute.add(name="axis")),
    "output of another type": model([node(QUANTIZE, ["x", "s"])], ["x", "s"], [("y", "int8", None)]),
    "x is a string": model([node(QUANTIZE, ["x", "s"])], [("x", "string", None), "s"], [("y", "uint8", None)]),
    "x is a bool": model([node(QUANTIZE, ["x", "s"])], [("x", "bool", None), "s"], [("y", "uint8", None)]),
    "scale is a double": model([node(QUANTIZE, ["x", "s"])], ["x", ("s", "double", None)], [("y", "uint8", None)]),
    "dequantize of floats": scaled([node(DEQUANTIZE, ["x", "s"])]),
    "negative dimension": changed(lambda m: m.graph.initializer.append(initializer("scale", [-1], b"1234"))),
    "too little data": changed(lambda m: m.graph.initializer.append(initializer("scale", [9], b"1234"))),
    "huge dimensions": changed(lambda m: m.graph.initializer.append(initializer("scale", [2**62, 2**62], b"1234"))),
    "data of no type": changed(lambda m: m.graph.initializer.append(initializer("scale", [], b"1234", 0))),
    "data of an unknown type": changed(lambda m: m.graph.initializer.append(initializer("scale", [], b"1234", 99))),
    "no graph": onnx.ModelProto(ir_version=10),
    "a future opset": changed(lambda m: setattr(m.opset_import[0], "version", 10**6)),
    "no opsets": changed(lambda m: m.ClearField("opset_import")),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.by_default(10)
def test_broken_models(name):
    with pytest.raises(Exception, match=r"ONNXRuntimeError|quark_numba"):
        session(BROKEN[name])


@pytest.mark.parametrize("part", [0, 1, 7, 20, 50, 80, 99])
@pytest.mark.parametrize("damage", ["cut", "zeros", "noise"])
def test_damaged_files(part, damage, tmp_path):
    """Every damaged file gives an error. A model that can still be read despite the damage must not crash either."""
    content = one_node("quantize", "int8").SerializeToString()
    start = len(content) * part // 100
    rest = len(content) - start
    content = content[:start] + {"cut": b"", "zeros": bytes(rest), "noise": np.random.default_rng(part).bytes(rest)}[damage]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        session(path)


@pytest.mark.parametrize("operation", ["quantize", "dequantize"])
@pytest.mark.parametrize(
    ("x", "scale", "zero_point", "axis"),
    [((2, 3), (4,), (4,), 1), ((2, 3), (3,), (2,), 1), ((2, 3), (3, 1), (3, 1), 1), ((2, 3), (2, 3), (2, 3), 0)]
    + [((0, 3), (4,), (4,), 1), ((2, 0), (3,), (3,), 1), ((), (2,), (2,), 0), ((2,), (2,), (2,), 1)]
    + [((1,) * 30, (2,), (2,), 29)],
    ids=str,
)
def test_wrong_shapes(operation, x, scale, zero_point, axis):
    types = {"x": "float32", "zero_point": "int8"} if operation == "quantize" else {"x": "int8", "zero_point": "int8"}
    loaded = session(one_node(operation, "int8", attributes={"axis": axis}))
    feeds = {"x": np.ones(x, types["x"]), "scale": np.ones(scale, np.float32), "zero_point": np.zeros(zero_point, np.int8)}
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*Extended.*(has shape|out of range)"):
        run(loaded, **feeds)
    good = {"x": np.ones((2, 3), types["x"]), "scale": np.float32(1), "zero_point": np.int8(0)}
    assert (run(loaded, **good) == 1).all()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("operation", ["quantize", "dequantize"])
def test_no_elements(operation, shape):
    x = np.ones(shape, "float32" if operation == "quantize" else "int8")
    y = run(session(one_node(operation, "int8")), x=x, scale=np.float32(1), zero_point=np.int8(0))
    assert y.shape == shape


def test_the_model_that_is_mutated():
    """The model is valid, and every pass finds something to rewrite in it."""
    whole, x = mutated_models.sound(), np.linspace(-3, 3, 12, dtype=np.float32).reshape(4, 3)
    expected = session(whole).run(None, {"x": x})[0]
    assert quark_numba.InferenceSession(whole).run(None, {"x": x})[0].tobytes() == expected.tobytes()
    done = {what for _, what in rewrite_model(whole).done}
    assert done == {constants.CONSTANT, functions.INLINED, round_trips.ROUND_TRIP, pairs.FUSED, regions.MERGED}


def drop_in(path):
    with suppress(UnicodeDecodeError):
        return session(path, threads=1)
    raise ModelError


def test_a_name_that_is_not_utf_8(tmp_path):
    """ONNX Runtime quotes the name in a message that Python cannot decode."""
    content = (MODELS / "textline_cls_bf16.onnx").read_bytes()
    assert b"kernel_shape" in content
    content = content.replace(b"kernel_shape", b"kernel\xffshape", 1)
    (tmp_path / "m.onnx").write_bytes(content)
    for source in (content, tmp_path / "m.onnx"):
        with pytest.raises(ModelError, match=r"not a valid model: .*kernel\\xffshape"):
            quark_numba.InferenceSession(source, enable_fallback=False)


@pytest.mark.parametrize("location", ["a\0b", "x" * 5000, "", "."])
def test_locations_that_no_file_has(location, tmp_path):
    broken = one_node("quantize", "int8")
    tensor = broken.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    path = tmp_path / "m.onnx"
    path.write_bytes(broken.SerializeToString())
    for use in (
        lambda: quark_numba.InferenceSession(path),
        lambda: quark_numba.InferenceSession(path, cache=tmp_path / "cache"),
        lambda: optimize(path),
        lambda: quark_numba.evaluate(path, quark_numba.RandomData(1)),
    ):
        with pytest.raises(ModelError, match="tensor w"):
            use()


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ([-1, 3], r"its shape is \(-1, 3\); expected no negative dimension"),
        ([-3, -1], r"its shape is \(-3, -1\); expected no negative dimension"),
        ([3, 10**12], "its shape needs 12000000000000 bytes, and the file has "),
        ([3, 4], "it has 12 bytes; expected 48"),
    ],
)
def test_tensors_that_their_shape_does_not_fit(dims, reason, tmp_path):
    wrong = initializer("s", dims, np.ones(3, np.float32).tobytes())
    broken = model(["y = Mul (x, s)"], [("x", "float32", [3])], ["y"], initializers=[wrong])
    onnx.save(broken, tmp_path / "broken.onnx")
    for use in (quark_numba.optimize, quark_numba.InferenceSession):
        with pytest.raises(ModelError, match=f"broken.onnx: tensor s: {reason}"):
            use(tmp_path / "broken.onnx")


@pytest.mark.parametrize("dims", [[2**63 - 1], [2**20, 2**20], [13]])
def test_tensors_with_fewer_numbers_than_their_shape_needs(dims, tmp_path):
    """Their elements are in a field of their type. Somebody who asks for the elements may get memory for the whole shape."""
    broken = model(["y = Add (x, w)"], ["x"], ["y"], initializers=[], domains=[])
    broken.graph.initializer.append(onnx.TensorProto(name="w", dims=dims, data_type=1, float_data=[1.0, 2.0, 3.0]))
    onnx.save(broken, tmp_path / "m.onnx")
    message = rf"tensor w: its shape has {np.prod(dims, dtype=object)} elements, and it has 3 numbers"
    for use in (optimize, quark_numba.InferenceSession):
        with pytest.raises(ModelError, match=message):
            use(tmp_path / "m.onnx")


def test_paths_that_no_file_has(tmp_path):
    onnx.save(one_node("quantize", "int8"), tmp_path / "m.onnx")
    for wrong in ("a\0b", "x" * 5000):
        with pytest.raises(ModelError):
            optimize(wrong)
        with pytest.raises(ModelError):
            optimize(tmp_path / "m.onnx", wrong)


def test_a_file_that_is_too_large_for_protobuf(tmp_path):
    path = tmp_path / "m.onnx"
    path.touch()
    os.truncate(path, 2**31)
    data = quark_numba.RandomData(1)
    for use in (optimize, quark_numba.InferenceSession, lambda path: quark_numba.evaluate(path, data)):
        with pytest.raises(ModelError, match=r"m\.onnx: 2,147,483,648 bytes; expected a file of less than 2 GiB"):
            use(path)


def test_nodes_that_take_their_own_results():
    """Passes that follow values from node to node would not end."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Transpose", ["t"], ["t"], name="turn"),
        helper.make_node("MatMul", ["d", "t"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ]
    scales = [initializer("s", [], np.float32(0.5).tobytes()), initializer("z", [], b"\0", TensorProto.INT8)]
    turning = model(nodes, [("x", "float32", [2, 3])], [("y", "int8", None)], initializers=scales)
    for broken, names in ((turning, "turn -> turn"), (cyclic(), "a -> b -> a|b -> a -> b")):
        for use in (optimize, quark_numba.InferenceSession):
            with pytest.raises(ModelError, match=f"not a valid model: nodes take their own results: ({names})"):
                use(broken)


def test_subgraphs_that_take_the_results_of_their_node():
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Identity", ["r"], ["v"], "inner")], "branch", [], [value])
    nodes = [
        helper.make_node("If", ["c"], ["q"], "outer", then_branch=branch, else_branch=branch),
        helper.make_node("Relu", ["q"], ["r"], "after"),
        node(QUANTIZE, ["r", "s"]),
    ]
    with pytest.raises(ModelError, match=r"nodes take their own results: (outer -> )?after -> inner -> outer"):
        optimize(scaled(nodes, inputs=[("c", "bool", []), "s"]))


def test_what_analyze_finds_in_broken_models():
    x = {"x": np.ones((1, 3), np.float32)}
    broken = scaled([node(QUANTIZE, ["x", "s"], ["q"]), node(DEQUANTIZE, ["q", "s"]), helper.make_node("Constant", [], [])])
    broken.graph.initializer.append(initializer("s", [], np.float32(0.5).tobytes()))
    with pytest.raises(ModelError, match="not a valid model"):
        quark_numba.analyze(broken, [x | {"s": np.float32(0.5)}])
    trunc = onnx.load(MODELS / "qonnx" / "trunc.onnx")
    (bits,) = {each.input[3] for each in trunc.graph.node if each.op_type == "Trunc"}
    for each in trunc.graph.initializer:
        if each.name == bits:
            each.CopyFrom(numpy_helper.from_array(np.array([8, 8], np.float32), bits))
    with pytest.raises(ModelError, match=r"tensor .*: not valid: in_bits has shape \(2,\)"):
        quark_numba.analyze(trunc, [np.ones((2, 3, 16, 16), np.float32)])


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(first, first + 100), id=f"{first}-{first + 99}", marks=mark)
        for first in range(0, 2000, 100)
        for mark in [pytest.mark.exhaustive if first else pytest.mark.slow]
    ],
)
def test_mutated_models_in_every_use(seeds):
    """No use of a model ends the process or hangs, and each gives a clean error or the result of a drop-in session."""
    assert mutated_sessions.findings(seeds) == []


@sizes("count", 20, slow=200, exhaustive=10_000)
def test_mutated_models(count, tmp_path):
    """Mutated models run, or raise an error of this package or of ONNX Runtime. ONNX Runtime's own session raises
    UnicodeDecodeError for names that are not UTF-8."""
    whole, path, refused = mutated_models.sound(), tmp_path / "mutated.onnx", 0
    for seed in range(count):
        path.write_bytes(mutated_models.mutated(np.random.default_rng(seed), whole))
        for use in (
            lambda: inventory.quantization_nodes(path),
            lambda: optimize(path),
            lambda: drop_in(path),
            lambda: quark_numba.InferenceSession(path, session_options(threads=1), enable_fallback=False),
        ):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    use()
            except ModelError:
                refused += 1
            except Exception as error:
                if not type(error).__module__.startswith("onnxruntime"):
                    raise AssertionError(f"seed {seed}") from error
                refused += 1
    assert count < refused < 4 * count
