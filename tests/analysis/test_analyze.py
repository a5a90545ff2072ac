"""`analyze` against an oracle that keeps every tensor of two sessions, and on models with faults that it has to find."""

import csv
import html
import io
import json
import math
import os
import re
import sys
import threading

import ml_dtypes
import numpy as np
import onnx
import processes
import pytest
from marks import default_of
from onnx import helper, numpy_helper, parser
from onnx_models import model, parsed, session
from paths import MODELS
from rewritten_models import VARIANTS, constant, floats, pair
from smaller_graphs import with_outputs
from textline import EXPECTED, FLOAT, X, path_of

import quark_numba
from quark_numba import Execution, RandomData, cli

pytestmark = pytest.mark.compiled

BLOCKS = ("BFPQuantizeDequantize", "MXQuantizeDequantize")


# The oracle: plain protobuf and numpy.


def quantizers_of(proto):
    """Yield (x, y, the nodes in between) of each quantizer. x is None if the model has only the codes."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    constants = {each.name for each in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type in BLOCKS:
            yield node.input[0], node.output[0], [node]
        elif node.op_type.endswith("DequantizeLinear"):
            before = makers.get(node.input[0])
            if before is None:
                assert node.input[0] in constants
                yield None, node.output[0], [node]
            else:
                yield before.input[0], node.output[0], [before, node]


def clip_bounds(proto, x, nodes):
    """Return the bounds of the activation function that a uint8 model leaves out, or None if there is no such function."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    arrays = {each.name: each for each in proto.graph.initializer}
    codes = arrays.get(nodes[0].input[2]) if len(nodes[0].input) > 2 else None
    if codes is None or codes.data_type != onnx.TensorProto.UINT8 or x not in makers or numpy_helper.to_array(codes).any():
        return None
    if makers[x].op_type not in ("Conv", "Add", "Gemm", "MatMul", "Mul"):
        return None
    return np.float32(0), np.float32(255) * numpy_helper.to_array(arrays[nodes[0].input[1]]).astype(np.float32).reshape(())


def exact(proto, outputs):
    tapped = with_outputs(proto, [helper.make_empty_tensor_value_info(name) for name in outputs])
    return session(tapped, level="DISABLE_ALL", threads=1)


def oracle(proto, x):
    """Return four arrays by the name of each quantized tensor, and the outputs of the quantized and of the float model. The
    arrays are the tensor in the float model, the same rounded, and the tensor in the quantized model before and after
    rounding."""
    every = list(quantizers_of(proto))
    constants = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer if each.data_type == 1}
    twin, rounding = onnx.ModelProto(), onnx.ModelProto()
    twin.CopyFrom(proto)
    rounding.CopyFrom(proto)
    del rounding.graph.node[:], rounding.graph.input[:]
    replaced = {}
    clips = {}
    for source, y, nodes in every:
        if source is None:
            continue
        bounds = clip_bounds(proto, source, nodes)
        if bounds:
            clips[source] = bounds
            names = [f"{y}_lowest", f"{y}_highest"]
            twin.graph.initializer.extend(constant(name, each) for name, each in zip(names, bounds, strict=True))
            replaced[y] = helper.make_node("Clip", [source, *names], [y])
        else:
            replaced[y] = helper.make_node("Identity", [source], [y])
        if source not in constants:
            fed = f"{source}_fed"
            rounding.graph.input.append(helper.make_tensor_value_info(fed, 1, None))
            for node in nodes:
                copy = rounding.graph.node.add()
                copy.CopyFrom(node)
                if node is nodes[0]:
                    copy.input[0] = fed
    kept = [replaced.get(node.output[0], node) for node in twin.graph.node]
    dropped = {id(nodes[0]) for source, _, nodes in every if source is not None and len(nodes) == 2}
    kept = [node for node, old in zip(kept, proto.graph.node, strict=True) if id(old) not in dropped]
    del twin.graph.node[:]
    twin.graph.node.extend(kept)
    activations = [(source, y) for source, y, _ in every if source is not None and source not in constants]
    xs, ys = [source for source, _ in activations], [y for _, y in activations]
    made = {name for node in proto.graph.node for name in node.output}
    taps = [name for name in dict.fromkeys([*xs, *ys]) if name in made]
    quantized = {"x": x} | dict(zip(taps, exact(proto, taps).run(None, {"x": x}), strict=True))
    floats = {"x": x} | dict(zip(taps, exact(twin, taps).run(None, {"x": x}), strict=True))

    def clipped(name, value):
        return np.clip(value, *clips[name]) if name in clips else value

    fed = {f"{name}_fed": clipped(name, floats[name]) for name in xs}
    own = dict(zip(ys, exact(rounding, ys).run(None, fed), strict=True))
    found = {
        name: (clipped(name, floats[name]), own[y], clipped(name, quantized[name]), quantized[y]) for name, y in activations
    }
    weights = [(source, y) for source, y, _ in every if source in constants]
    rounded = exact(proto, [y for _, y in weights]).run(None, {"x": x}) if weights else []
    for (name, _), y in zip(weights, rounded, strict=True):
        found[name] = (constants[name], y, constants[name], y)
    outputs = [each.name for each in proto.graph.output]
    return found, exact(proto, outputs).run(None, {"x": x})[0], exact(twin, outputs).run(None, {"x": x})[0]


def decibels(signal, noise):
    signal, noise = (np.sum(each.astype(np.float64) ** 2) for each in (signal, noise))
    return math.inf if noise == 0 else 10 * math.log10(signal / noise)


@pytest.mark.parametrize("variant", default_of(["a8w8", *VARIANTS], "a8w8"))
@pytest.mark.slow(3)
def test_sums_are_those_of_all_tensors(variant):
    """Two batches of two images run side by side on two threads."""
    proto = onnx.load(path_of(variant))
    parts = [oracle(proto, X[:2]), oracle(proto, X[2:4])]
    analysis = quark_numba.analyze(path_of(variant), [{"x": X[:2]}, {"x": X[2:4]}], execution=Execution(threads=2))
    tensors = {each.name: each for each in analysis.tensors}
    codes = [node.input[0] for source, _, (node, *_) in quantizers_of(proto) if source is None]
    assert set(tensors) == {*parts[0][0], *codes}
    assert set(codes) == set(analysis.unmatched)
    for name in parts[0][0]:
        is_weight = tensors[name].kind == "weight"
        f, own, arrived, kept = (
            np.concatenate([part[0][name][index].astype(np.float64).reshape(-1) for part in parts[: 1 if is_weight else 2]])
            for index in range(4)
        )
        each = tensors[name]
        close = {"rtol": 1e-9, "atol": 1e-9, "err_msg": name}
        np.testing.assert_allclose(each.own_sqnr_db, decibels(f, own - f), **close)
        np.testing.assert_allclose(each.sqnr_db, decibels(f, kept - f), **close)
        np.testing.assert_allclose(each.inherited_sqnr_db, decibels(f, arrived - f), **close)
        cosine = np.sum(f * kept) / np.sqrt(np.sum(f**2) * np.sum(kept**2))
        np.testing.assert_allclose(each.cosine, cosine, **close)
        assert each.max_abs_error == np.abs(kept - f).max(), name
        assert each.flushed_to_zero == np.mean((own == 0) & (f != 0)), name
    y, expected = (np.concatenate([part[index] for part in parts]).astype(np.float64) for index in (1, 2))
    (output,) = analysis.outputs
    np.testing.assert_allclose(output.sqnr_db, decibels(expected, y - expected), rtol=1e-9)
    assert output.max_abs_error == np.abs(y - expected).max()
    np.testing.assert_allclose(output.mean_abs_error, np.abs(y - expected).mean(), rtol=1e-12)
    assert all(each.sqnr_db > 100 for each in analysis.optimizations) or variant == "a8w8"


@pytest.mark.slow
def test_sources_and_threads_give_the_same(tmp_path):
    np.savez(tmp_path / "stack.npz", x=X.reshape(3, 2, *X.shape[1:]))
    folder = tmp_path / "folder"
    folder.mkdir()
    for index in range(3):
        np.savez(folder / f"{index}.npz", x=X[2 * index : 2 * index + 2])
    sources = [str(tmp_path / "stack.npz"), folder, ({"x": X[2 * i : 2 * i + 2]} for i in range(3))]
    found = [
        quark_numba.analyze(path_of("bf16"), source, execution=Execution(threads=threads))
        for source, threads in zip(sources, (1, 2, 3), strict=True)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_the_reference_gives_what_codes_lack():
    without, given = (quark_numba.analyze(path_of("u32"), [X[:2]], reference) for reference in (None, FLOAT))
    assert sum(each.own_sqnr_db is None for each in without.tensors) == 110
    (unknown,) = [each for each in given.tensors if each.own_sqnr_db is None]
    assert set(given.unmatched) == {unknown.name} == {given.tensors[-1].name}
    assert given.twin[0].sqnr_db > 100
    assert without.twin == []
    # Quark's biases lie far beyond the range that their scales allow.
    assert given.tensors[0].name.endswith("_bias_quantized")
    assert given.tensors[0].saturated == 1


def network(names="{}", order=None, wrong_scale=16.0, wrong_zero_point=20):
    """Return a chain of matrix products with uint8 activations and int8 weights. The third scale is too large, and the zero
    point of the second weight is wrong in its dequantize node, as if a tool had mixed zero points up."""
    texts, constants, x = [], [], "x"
    for layer, weight in enumerate(weights_of_network()):
        scale = np.float32(np.abs(weight).max() / 127)
        codes = np.clip(np.rint(weight / scale), -128, 127)
        w, t = f"w{layer}", f"t{layer}"
        constants += floats(**{f"{w}_s": scale, f"{t}_s": 0.05 * (wrong_scale if t == "t2" else 1)})
        constants += [constant(f"{w}_codes", codes, np.int8), constant(f"{t}_z", 128, np.uint8)]
        constants.append(constant(f"{w}_z", wrong_zero_point if w == "w1" else 0, np.int8))
        texts.append(f"{w}_y = DequantizeLinear ({w}_codes, {w}_s, {w}_z)")
        texts += [*pair(x, f"{t}_codes", f"{t}_y", [f"{t}_s", f"{t}_z"], ""), f"m{layer} = MatMul ({t}_y, {w}_y)"]
        x = f"m{layer}"
    nodes = parsed(*texts, f"y = Identity ({x})")
    for number, node in enumerate(nodes):
        node.name = names.format(number)
    nodes = [nodes[i] for i in order or range(len(nodes))]
    return model(nodes, [("x", "float32", [None, 16])], ["y"], initializers=constants, domains=[])


def weights_of_network():
    generator = np.random.default_rng(3)
    return [generator.normal(0, 0.3, (16, 16)).astype(np.float32) for _ in range(4)]


def float_network():
    chain = ["x", "m0", "m1", "m2", "m3"]
    nodes = [f"{chain[i + 1]} = MatMul ({chain[i]}, w{i})" for i in range(4)]
    weights = [constant(f"w{i}", weight) for i, weight in enumerate(weights_of_network())]
    floating = model([*nodes, "y = Identity (m3)"], [("x", "float32", [None, 16])], ["y"], initializers=weights, domains=[])
    return floating, network(wrong_scale=1, wrong_zero_point=0)


FEEDS = [np.random.default_rng(seed).normal(size=(8, 16)).astype(np.float32) for seed in range(3)]


def test_faults_come_first():
    """One scale is 16 times too large, and a weight's zero point is shifted. Both tensors are the worst by their own errors and
    by their effects."""
    reference, right = float_network()
    found = quark_numba.analyze(network(), FEEDS, reference, sweep=True)
    assert found.twin[0].sqnr_db > 100
    assert {each.name for each in found.tensors[:2]} == {"m1", "w1_codes"}
    assert found.tensors[1].own_sqnr_db < found.tensors[2].own_sqnr_db - 10
    singles = [each for each in found.sweep if not each.name.startswith("all ")]
    assert {each.name for each in singles[:2]} == {"m1", "w1_codes"}
    assert min(each.on_sqnr_db for each in singles[2:]) > max(each.on_sqnr_db for each in singles[:2]) + 5
    off = {each.name: each.off_sqnr_db for each in singles}
    assert sorted(off, key=off.get)[-1] in ("m1", "w1_codes")
    healthy = quark_numba.analyze(right, FEEDS, reference)
    assert healthy.outputs[0].sqnr_db > found.outputs[0].sqnr_db + 10


def test_names_and_order_do_not_matter():
    reference, _ = float_network()
    order = np.random.default_rng(0).permutation(17).tolist()
    one, other = (
        quark_numba.analyze(each, FEEDS, reference, sweep=True)
        for each in (network(), network(names="renamed/{}!", order=order))
    )
    assert [each.name for each in one.tensors] == [each.name for each in other.tensors]
    assert [each.own_sqnr_db for each in one.tensors] == [each.own_sqnr_db for each in other.tensors]
    assert one.sweep == other.sweep
    assert one.outputs == other.outputs


def naive_sweep(proto, group, is_on):
    """Return the output of the whole model without the quantizers that are off."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for node in result.graph.node:
        if node.op_type in BLOCKS and (node.input[0] in group) != is_on:
            copy = helper.make_node("Identity", [node.input[0]], list(node.output))
            node.CopyFrom(copy)
    outputs = [each.name for each in result.graph.output]
    return exact(result, outputs).run(None, {"x": X[:2]})[0].astype(np.float64)


@pytest.mark.slow
def test_sweep_against_whole_models():
    proto = onnx.load(path_of("mx9"))
    found = quark_numba.analyze(path_of("mx9"), [X[:2]], sweep=True, execution=Execution(threads=2))
    effects = {each.name: each for each in found.sweep}
    every = [x for x, _, _ in quantizers_of(proto)]
    weights = [each.name for each in found.tensors if each.kind == "weight"]
    assert set(effects) == {*every, "all weights", "all activations"}
    expected = naive_sweep(proto, every, False)
    groups = {"all weights": weights} | {name: [name] for name in (*every[:2], *every[150:290:40])}
    for name, group in groups.items():
        for is_on, ratio in ((False, effects[name].off_sqnr_db), (True, effects[name].on_sqnr_db)):
            np.testing.assert_allclose(ratio, decibels(expected, naive_sweep(proto, group, is_on) - expected), rtol=1e-9)
    assert [each.on_sqnr_db for each in found.sweep] == sorted(each.on_sqnr_db for each in found.sweep)


def test_sweep_by_node_and_operator():
    reference, _ = float_network()
    nodes, operators = (
        quark_numba.analyze(network("n{}"), FEEDS, reference, sweep=True, by=by).sweep for by in ("node", "operator")
    )
    assert {each.name for each in nodes} == {"n3", "n7", "n11", "n15", "all weights", "all activations"}
    assert {each.name for each in operators} == {"MatMul", "all weights", "all activations"}
    (product,) = [each for each in operators if each.name == "MatMul"]
    assert product.off_sqnr_db > 100  # nothing is rounded then
    whole = quark_numba.analyze(network("n{}"), FEEDS, reference).outputs[0].sqnr_db
    assert product.on_sqnr_db == pytest.approx(whole)


@pytest.mark.slow
def test_what_if():
    """Each tensor is measured in other formats. The trade-offs go from more to fewer bits, and their choices lead to the bits
    that they state."""
    found = quark_numba.analyze(path_of("bf16"), [X[:2]], what_if=["float32", "mxfp8_e4m3", "bfp16"])
    proto = onnx.load(path_of("bf16"))
    tensors, _, _ = oracle(proto, X[:2])
    for each in found.tensors[:: len(found.tensors) // 20]:
        f = tensors[each.name][0]
        assert each.what_if["float32"] == math.inf
        rounded = quark_numba.mx_quantize_dequantize(f, element_dtype="fp8_e4m3")
        np.testing.assert_allclose(each.what_if["mxfp8_e4m3"], decibels(f, rounded.astype(np.float64) - f), rtol=1e-9)
    points = found.trade_offs
    assert 2 <= len(points) <= 24
    assert [each.bits for each in points] == sorted((each.bits for each in points), reverse=True)
    assert points[0].sqnr_db > points[-1].sqnr_db + 20
    last = {name: type_name for point in points for name, type_name in point.choices.items()}
    assert set(last.values()) == {"mxfp8_e4m3"}
    assert set(last) == {each.name for each in found.tensors}
    # A weight counts as a whole, an activation per image.
    elements = sum(tensors[each.name][0].size / (1 if each.kind == "weight" else 2) for each in found.tensors)
    assert points[-1].bits == pytest.approx(8.25 * elements)


@pytest.mark.slow
def test_what_if_of_a_small_model():
    reference, quantized = float_network()
    found = quark_numba.analyze(quantized, FEEDS, reference, what_if=["bfp16", "mx4"])
    assert all(each.what_if["bfp16"] > each.what_if["mx4"] for each in found.tensors)
    points = found.trade_offs
    assert [each.bits for each in points] == sorted((each.bits for each in points), reverse=True)
    assert points[0].sqnr_db > points[-1].sqnr_db
    assert set({name: kind for each in points for name, kind in each.choices.items()}.values()) == {"mx4"}
    assert points[-1].bits == 4 * (4 * 256 + 4 * 16)
    with pytest.raises(ValueError, match="what_if is 'mxfp8'; expected any of"):
        quark_numba.analyze(quantized, FEEDS, what_if=["mxfp8"])


@pytest.mark.slow
def test_extended_operators_in_subgraphs_and_functions():
    """Tensors in a local function are measured. Tensors in a subgraph are listed, and are float in the twin."""

    def rounded(x, y):
        codes = f"{y}_codes = com.amd.quark.ExtendedQuantizeLinear ({x}, s, z)"
        return f"{codes} {y} = com.amd.quark.ExtendedDequantizeLinear ({y}_codes, s, z)"

    whole = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17, "local" : 1, "com.amd.quark" : 1]>
        g (float[4] x) => (float[] y) <float s = {{0.5}}, int8 z = {{0}}, bool condition = {{1}}> {{
          h = local.F (x)
          y = If (condition) <then_branch = t () => (inner) {{ {rounded("h", "inner")} }},
                              else_branch = e () => (other) {{ other = Identity (h) }}>
        }}
        <domain: "local", opset_import: ["" : 17, "com.amd.quark" : 1]> F (a) => (b) {{
          s = Constant <value = float {{0.5}}> () z = Constant <value = int8 {{0}}> () {rounded("a", "b")}
        }}""")
    x = np.array([0.3, 0.6, 100, -0.2], np.float32)
    found = quark_numba.analyze(whole, [x])
    (tensor,) = found.tensors
    assert (tensor.name, tensor.type) == ("x", "int8")
    y = np.clip(np.rint(x / 0.5), -128, 127) * 0.5
    assert tensor.own_sqnr_db == pytest.approx(decibels(x, y - x))
    assert tensor.saturated == 0.25
    assert tensor.flushed_to_zero == 0.25
    assert tensor.range_used == pytest.approx((127 - np.float64(x[3]) / 0.5) / 255, abs=1e-3)
    assert "in a subgraph" in found.unmatched["h"]
    assert found.outputs[0].sqnr_db == pytest.approx(tensor.own_sqnr_db)


def test_what_cannot_be_told_apart_is_listed():
    nodes = ["c = QuantizeLinear (x, s, z)", "p = MaxPool <kernel_shape = [2]> (c)", "y = DequantizeLinear (p, s, z)"]
    nodes += ["d, d_s, d_z = DynamicQuantizeLinear (y)", "w = DequantizeLinear (d, d_s, d_z)"]
    parameters = [*floats(s=0.5), constant("z", 3, np.uint8)]
    whole = model(nodes, [("x", "float32", [1, 1, 6])], ["w"], initializers=parameters, domains=[])
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(1, 1, 6)
    found = quark_numba.analyze(whole, [x])
    assert found.tensors == []
    assert found.unmatched["c"] == "ai.onnx::QuantizeLinear: its codes are used by ai.onnx::MaxPool"
    assert {"c", "y", "w"} <= set(found.unmatched)
    assert found.outputs[0].sqnr_db == math.inf


def test_per_axis_and_blocked_scales():
    """Saturation and the used range follow from the scale of each element."""
    scales = np.array([0.1, 1, 10], np.float32)
    initializers = [*floats(s=scales), constant("z", np.zeros(3), np.int8)]
    nodes = pair("x", "c", "y", ["s", "z"], "", axis=1)
    whole = model(nodes, [("x", "float32", [2, 3])], ["y"], initializers=initializers, domains=[])
    x = np.array([[12.7, 12.7, 12.7], [-13, 100, 1300]], np.float32)
    (tensor,) = quark_numba.analyze(whole, [x]).tensors
    assert tensor.saturated == pytest.approx(2 / 6)
    assert tensor.range_used == pytest.approx(1)
    y = np.clip(np.rint(x / scales), -128, 127) * scales
    assert tensor.own_sqnr_db == pytest.approx(decibels(x, y - x))
    assert tensor.parameters == {"scale": [pytest.approx(0.1), 10.0], "axis": 1}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data():
    code = f"""
import resource, sys
import numpy as np, quark_numba
def feeds(n):
    generator = np.random.default_rng(0)
    for _ in range(n):
        yield {{"x": generator.normal(size=(2, 3, 48, 192)).astype(np.float32)}}
quark_numba.analyze({path_of("bf16")!r}, feeds(8), execution=quark_numba.Execution(threads=2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
quark_numba.analyze({path_of("bf16")!r}, feeds(40), execution=quark_numba.Execution(threads=2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = processes.python("-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24 * 1024  # KiB; the tensors of 32 more batches are 560 MB


@pytest.mark.slow
def test_ctrl_c_writes_nothing(tmp_path):
    csv_file, exclude = tmp_path / "t.csv", tmp_path / "e.json"
    words = ["analyze", path_of("bf16"), "--random", "2000", "--dim", "?=48"]
    words += ["--sweep", "--csv", str(csv_file), "--exclude-config", str(exclude)]
    code, out, err = processes.interrupted(3, *words)
    assert code == 130, err
    assert out == b""
    assert b"Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_command(capsys, tmp_path, terminal):
    table, exclude = tmp_path / "t.csv", tmp_path / "e.json"
    arguments = ["analyze", path_of("bf16"), "--data", EXPECTED, "--batch", "3", "--limit", "1"]
    text = terminal.text(*arguments, "--top", "3", "--csv", str(table), "--exclude-config", str(exclude), "--exclude", "2")
    assert "the worst 3 of 258" in text
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [int(row["place"]) for row in rows] == list(range(258))
    excluded = json.loads(exclude.read_text())["exclude"]
    names = {node.name for node in onnx.load(path_of("bf16")).graph.node}
    assert 1 <= len(excluded) <= 4
    assert set(excluded) <= names
    report = terminal.report(*arguments)
    assert report["tensors"][0]["used_by"][0] == excluded[0]
    assert {"name", "kind", "type", "sqnr_db", "own_sqnr_db", "cosine", "max_abs_error"} <= set(report["tensors"][0])
    assert cli.main([*arguments, "--fail-below", "20"]) == 0
    assert cli.main([*arguments, "--fail-below", "90", "--csv", str(tmp_path / "none" / "t.csv")]) == 1
    reason = "No such file" if os.name == "posix" else "Path not found|The system cannot find"
    assert re.search(rf"none.t\.csv: ({reason})", capsys.readouterr().err.replace("\n", ""))
    onnx.save(network(names="n{}"), tmp_path / "m.onnx")
    small = ["analyze", str(tmp_path / "m.onnx"), "--random", "2", "--dim", "x[0]=4"]
    report = terminal.report(*small, "--by", "operator", "--what-if", "bfp16")
    assert {"MatMul", "all weights", "all activations"} == {each["name"] for each in report["sweep"]}
    assert report["trade_offs"][0].keys() == {"bits", "sqnr_db", "choices"}
    text = terminal.text(*small, "--sweep", "--what-if", "bfp16")
    assert all(each in text for each in ("only this quantized", "Best trade-offs", "all activations"))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="by is 'layer'"):
        quark_numba.analyze(path_of("bf16"), [X], by="layer")
    with pytest.raises(quark_numba.ModelError, match=r"input x is float64"):
        quark_numba.analyze(path_of("bf16"), [X.astype(np.float64)])
    assert threading.active_count() < 20


def reference_saturated(x, own, axis, block, highest, drop, sub=None, max_shift=0):
    """Return the share of elements that lie beyond the largest value of their block or sub-block, and that change in rounding.
    It is counted element by element."""
    count, sub = 0, sub or block
    rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    rounded = np.moveaxis(own, axis, -1).reshape(rounded_shape := rows.shape)
    for row, stays in zip(rows, rounded, strict=True):
        for start in range(0, rounded_shape[1], block):
            top = math.floor(math.log2(np.abs(row[start : start + block]).max()))
            for i in range(start, min(start + block, len(row)), sub):
                part = row[i : min(i + sub, start + block)]
                exponent = max(math.floor(math.log2(np.abs(part).max())), top - max_shift)
                beyond = np.abs(part) > 2.0 ** (exponent - drop) * highest
                count += int(np.sum(beyond & (stays[i : i + len(part)] != part)))
    return count / x.size


@pytest.mark.parametrize(
    ("operator", "attributes", "numbers"),
    [
        ("MXQuantizeDequantize", {"element_dtype": "fp8_e4m3", "block_size": 5}, {"block": 5, "highest": 448, "drop": 8}),
        ("MXQuantizeDequantize", {"element_dtype": "fp4_e2m1", "block_size": 8}, {"block": 8, "highest": 6, "drop": 2}),
        ("MXQuantizeDequantize", {"element_dtype": "int8", "block_size": 4}, {"block": 4, "highest": 127.5, "drop": 6}),
        ("BFPQuantizeDequantize", {"bit_width": 13, "block_size": 8}, {"block": 8, "highest": 15.5, "drop": 3}),
        (
            "BFPQuantizeDequantize",
            {"bfp_method": "to_bfp_prime", "bit_width": 12, "block_size": 8, "sub_block_size": 2, "sub_block_shift_bits": 1},
            {"block": 8, "highest": 7.5, "drop": 2, "sub": 2, "max_shift": 1},
        ),
    ],
)
@pytest.mark.parametrize(("shape", "axis"), [((3, 20), 1), ((2, 16, 3), 1), ((18, 7), 0)])
@pytest.mark.covering
@pytest.mark.slow
def test_saturated_in_blocks(operator, attributes, numbers, shape, axis):
    x = np.random.default_rng(8).normal(size=shape).astype(np.float32)
    node = helper.make_node(operator, ["x"], ["y"], domain="com.amd.quark", axis=axis, **attributes)
    whole = model([node], [("x", "float32", list(shape))], ["y"])
    call = quark_numba.mx_quantize_dequantize if operator[0] == "M" else quark_numba.bfp_quantize_dequantize
    own = call(x, axis=axis, **attributes)
    (tensor,) = quark_numba.analyze(whole, [x]).tensors
    assert tensor.saturated == pytest.approx(reference_saturated(x, own, axis, **numbers))
    assert tensor.range_used is None
    assert tensor.own_sqnr_db == pytest.approx(decibels(x, own.astype(np.float64) - x))


def test_page(tmp_path):
    """The page is one file that loads nothing. Its text is escaped, and it contains its plots."""
    name = "<b>&$.onnx" if os.name == "posix" else "&$.onnx"  # Windows allows no < and > in names
    path = tmp_path / name
    onnx.save(network(names="n{}"), path)
    reference, _ = float_network()
    onnx.save(reference, tmp_path / "float.onnx")
    file = tmp_path / "page.html"
    words = ["analyze", str(path), "--reference", str(tmp_path / "float.onnx"), "--random", "2", "--dim", "x[0]=8"]
    assert cli.main([*words, "--html", str(file), "--by", "operator", "--what-if", "bfp16"]) == 0
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert f"<title>{html.escape(name)}</title>" in text
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text.replace("xlink:href", "href")) == []
    assert not re.search(r"@import|url\((?!#)", text)
    assert text.count("<figure") == 2 + 8
    assert "prefers-color-scheme: dark" in text
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert used <= set(identifiers)
    for each in ("m1", "w1_codes", "all activations", "MatMul"):
        assert each in text


@pytest.mark.parametrize("variant", ["bf16", "fp16", "bfp16"])
@pytest.mark.by_default(1)
def test_histograms(variant):
    """Histograms are made without a warning, also for types that have NaN."""
    analysis = quark_numba.analyze(
        path_of(variant), RandomData(1, dimensions={"x[0]": 1, "x[2]": 48, "x[3]": 96}), histograms=3
    )
    assert [each.name for each in analysis.histograms] == [each.name for each in analysis.tensors[:3]]


def test_page_without_plots(tmp_path, terminal, monkeypatch):
    """A missing matplotlib is reported before anything runs, and no file is written."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["analyze", path_of("bf16"), "--data", EXPECTED, "--html", str(tmp_path / "page.html")]
    monkeypatch.setattr("quark_numba.analysis.analyze.analyze", None)
    assert "pip install 'quark_numba[plots]'" in terminal.error(*words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_values_that_numpy_lacks():
    """bfloat16 tensors and sequences are passed from step to step. An error of ONNX Runtime when it optimizes the model is
    listed."""
    initializers = [constant("s", 0.5, ml_dtypes.bfloat16), constant("z", 0, np.int8)]
    initializers += [constant("first", 0, np.int64), constant("second", 1, np.int64)]
    nodes = ["parts = SplitToSequence <axis = 0> (x)", "a = SequenceAt (parts, first)", "b = Cast <to = 16> (a)"]
    nodes += [*pair("b", "c", "d", ["s", "z"], ""), "e = Cast <to = 1> (d)"]
    nodes += ["f = SequenceAt (parts, second)", "y = Add (e, f)"]
    whole = model(nodes, [("x", "float32", [2, 3])], ["y"], initializers=initializers, domains=[])
    x = np.array([[0.3, 1.2, 100], [1, 2, 3]], np.float32)
    found = quark_numba.analyze(whole, [x])
    (tensor,) = found.tensors
    a = x[0].astype(ml_dtypes.bfloat16).astype(np.float64)
    rounded = np.clip(np.rint(a / 0.5), -128, 127) * 0.5
    assert tensor.own_sqnr_db == pytest.approx(decibels(a, rounded - a))
    assert found.outputs[0].sqnr_db == pytest.approx(decibels(a + x[1], rounded - a))
    assert "ONNX Runtime's optimizations" in found.unmatched


def test_branches_and_outputs_that_are_constants():
    """A node may take a tensor that is rounded late, and one that was computed long before. Outputs of the model may be
    constants or inputs."""
    generator = np.random.default_rng(9)
    w, v = generator.normal(size=(2, 4, 4))
    nodes = ["a = MatMul (x, w)", "b = MatMul (u, v)", *pair("a", "a_codes", "a_y", ["s", "z"], "")]
    nodes += ["c = Add (b, a_y)", "y = Sub (c, b)"]
    inputs, initializers = [(name, "float32", [2, 4]) for name in "xu"], [*floats(w=w, v=v, s=0.1), constant("z", 0, np.int8)]
    whole = model(nodes, inputs, ["y", "w", "u", "a_y"], initializers=initializers, domains=[])
    x, u = generator.normal(size=(2, 2, 4)).astype(np.float32)
    found = quark_numba.analyze(whole, [{"x": x, "u": u}], sweep=True)
    (tensor,) = found.tensors
    outputs = {each.name: each for each in found.outputs}
    assert outputs["w"].sqnr_db == outputs["u"].sqnr_db == math.inf
    assert outputs["a_y"].sqnr_db == pytest.approx(tensor.own_sqnr_db)
    assert outputs["y"].sqnr_db == pytest.approx(tensor.own_sqnr_db, abs=1e-3)
    assert {each.name: each.off_sqnr_db for each in found.sweep}["a"] == math.inf


def test_pairs_of_casts():
    """Two Casts are measured as the pair of Quark's operators with scale 1, which gives the same within the range."""
    rng = np.random.default_rng(61)
    w, x = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((4, 3), (5, 4)))

    def whole(rounding):
        nodes = [*rounding("x", "a"), *rounding("w", "v"), "b = MatMul (a, v)", *rounding("b", "y")]
        constants = [*floats(w=w, scale=1), constant("zero_point", 0, ml_dtypes.bfloat16)]
        return model(nodes, [("x", "float32", x.shape)], ["y"], initializers=constants)

    by_casts, by_operators = (
        quark_numba.analyze(whole(rounding), [{"x": x}]).tensors
        for rounding in (
            lambda x, y: [f"{y}_h = Cast <to = 16> ({x})", f"{y} = Cast <to = 1> ({y}_h)"],
            lambda x, y: pair(x, f"{y}_h", y),
        )
    )
    assert [each.name for each in by_casts] == [each.name for each in by_operators]
    for one, other in zip(by_casts, by_operators, strict=True):
        assert (one.type, one.kind, one.saturated) == (other.type, other.kind, other.saturated)
        assert one.own_sqnr_db == pytest.approx(other.own_sqnr_db)


@pytest.mark.slow
@pytest.mark.parametrize("is_optimized", [False, True])
def test_blocks_with_computed_scales(is_optimized, tmp_path):
    """Activations in NVFP4 are measured, whether a model has three nodes for each or one. The scales of weights are not counted
    as tensors."""
    path = MODELS / "nvidia" / "nvfp4_m.onnx"
    if is_optimized:
        quark_numba.optimize(path, tmp_path / "m.onnx", keep_initializers_as_inputs=False)  # it lists its weights there
        path = tmp_path / "m.onnx"
    with np.load(MODELS / "nvidia" / "nvfp4_expected.npz") as arrays:
        x = arrays["x"]
    found = quark_numba.analyze(path, [{"input": x}])
    activations = [each for each in found.tensors if each.kind == "activation"]
    assert [each.type for each in activations] == ["nvfp4"] * 8
    assert len(found.tensors) - len(activations) == (0 if is_optimized else 6)
    (of_input,) = [each for each in activations if each.name == "input"]
    scale = next(
        numpy_helper.to_array(node.attribute[0].t)
        for node in onnx.load(MODELS / "nvidia" / "nvfp4_m.onnx").graph.node
        if node.output[0] == "/0/input_quantizer/Constant_output_0"
    )
    rounded = quark_numba.nvfp4_dequantize(*quark_numba.nvfp4_quantize(x, scale, axis=-1), scale, axis=-1)
    error = (rounded.astype(np.float64) - x) ** 2
    assert of_input.own_sqnr_db == pytest.approx(10 * np.log10((x.astype(np.float64) ** 2).sum() / error.sum()))


@pytest.mark.compiled
@pytest.mark.parametrize(("levels", "low", "name"), [(255, -1, "int8"), (256, 0, "uint8"), (16, 0, "uint4"), (2, -1, "int1")])
@pytest.mark.slow
def test_types_of_levels(levels, low, name):
    """FakeQuantize of OpenVINO has a number of levels instead of bits."""
    node = f"y = org.openvinotoolkit.FakeQuantize <levels = {levels}> (x, low, high, low, high)"
    limits = [numpy_helper.from_array(np.array(each, np.float32), key) for key, each in (("low", low), ("high", 1))]
    made = model([node], [("x", "float32", [2, 4])], [("y", "float32", [2, 4])], initializers=limits)
    found = quark_numba.analyze(made, [{"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}])
    assert [(each.type, each.parameters["levels"]) for each in found.tensors] == [(name, levels)]
