"""Large models: tensors stay in files, and are read, computed and written a part at a time. The limits from which a model is
large are lowered, so that small models take the same way."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from large_models import apart
from marks import default_of, sizes
from onnx import helper, numpy_helper
from onnx_models import feeds_of, session_options
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba import ModelError, optimize
from quark_numba.compiling import threads
from quark_numba.element_types import find
from quark_numba.models import files, model_files, temporary, tensors

pytestmark = pytest.mark.compiled


def arrays_of(path):
    """Return the tensors of a model, by name."""
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}


REAL = sorted(path.stem for path in MODELS.glob("*.onnx"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", default_of(REAL, "textline_cls_a8w8", "textline_cls_bf16", "textline_cls_mx9", "style_xint8"))
@pytest.mark.covering
@pytest.mark.slow(6)
def test_real_models(name, threads, tmp_path, request):
    """Sessions of large models give the same bits as those in memory, and files of optimized models have the same tensors."""
    before = onnx.load(MODELS / f"{name}.onnx")
    apart(before, tmp_path / "m.onnx")
    del before
    options = session_options(threads=threads)
    in_memory = quark_numba.InferenceSession(tmp_path / "m.onnx", options)
    optimize(tmp_path / "m.onnx", tmp_path / "whole.onnx")
    assert not (tmp_path / "whole.onnx.data").exists()
    inputs = feeds_of(in_memory, 2)
    expected = in_memory.run(None, inputs)
    request.getfixturevalue("is_large")
    mapped = quark_numba.InferenceSession(tmp_path / "m.onnx", options, temporary_folder=tmp_path)
    for one, other in zip(expected, mapped.run(None, inputs), strict=True):
        assert one.tobytes() == other.tobytes()
    optimize(tmp_path / "m.onnx", tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").exists() == (tmp_path / "weights").exists()  # not of Constant nodes
    found, wanted = arrays_of(tmp_path / "out.onnx"), arrays_of(tmp_path / "whole.onnx")
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape)
        assert found[key].tobytes() == array.tobytes()
    assert optimize(tmp_path / "m.onnx").graph.node == onnx.load(tmp_path / "out.onnx").graph.node


# Parts of a weight: shapes, granularities and formats.

W = (37, 6, 10)


def model_of(nodes, opset=21, **constants):
    """Return a model of y = d + x, in which nodes give d."""
    return text_model(f"(float x) => (float[] y) {{ {nodes}  y = Add (d, x) }}", opset=opset, **constants)


def attributes_of(attributes):
    given = ", ".join(f"{name} = {json.dumps(value)}" for name, value in attributes.items())
    return given and f"<{given}>"


def pair_model(shape, element_type, scale_shape, axis=1, block_size=0, domain="com.amd.quark"):
    """Return a model of y = w, rounded, with a quantize and a dequantize node."""
    rng = np.random.default_rng(9)
    row = find(element_type)
    scale = np.exp2(rng.integers(-4, 2, scale_shape)).astype(np.float32) * np.float32(1.1)
    zeros = (rng.integers(0, 3, scale_shape) if row.is_integer else np.zeros(scale_shape)).astype(row.dtype)
    given = attributes_of({"axis": axis} | ({"block_size": block_size} if block_size else {}))
    prefix = "Extended" if domain else ""
    nodes = f"q = {prefix}QuantizeLinear {given} (w, s, z)  d = {prefix}DequantizeLinear {given} (q, s, z)"
    return model_of(nodes, 25, w=weight_of(shape), s=scale, z=zeros)


def block_model(shape, operator, **attributes):
    return model_of(f"d = {operator}QuantizeDequantize {attributes_of(attributes)} (w)", w=weight_of(shape))


def weight_of(shape):
    return np.random.default_rng(10).normal(0, 2, shape).astype(np.float32)


def codes_model(element_type, shape, scale_shape, axis, block_size=0, zeros=None, nodes="", **constants):
    """Return a model of y = DequantizeLinear(c, s, z) of ONNX. The scales may be computed by nodes."""
    row, rng = find(element_type), np.random.default_rng(11)
    codes = rng.integers(0, 2**row.bits, shape).astype(np.uint8)
    codes = codes.view(row.dtype) if row.bits <= 8 else codes.astype(row.dtype)
    zero_point = np.zeros(scale_shape, row.dtype) if zeros is None else zeros.astype(row.dtype)
    given = attributes_of({"axis": axis} | ({"block_size": block_size} if block_size else {}))
    constants = constants or {"s": np.exp2(rng.integers(-3, 3, scale_shape)).astype(np.float32)}
    return model_of(f"{nodes} d = DequantizeLinear {given} (c, s, z)", 25, c=codes, z=zero_point, **constants)


def computed_scales():
    """Return a model whose scales are in blocks of seven rows themselves."""
    node = "s = MXQuantizeDequantize <axis = 0, block_size = 7> (t)"
    return codes_model("int8", (37, 96), (37, 12), 1, 8, nodes=node, t=np.abs(weight_of((37, 12))) + 1)


def fake_quantized_model(shape, of_scale, operator="Quant", domain="qonnx.custom_op.general", **attributes):
    """Return a model of a weight with scales of a shape: of QONNX's Quant, or of an operator of mct_quantizers."""
    arrays = {"w": weight_of(shape), "s": np.asarray(np.random.default_rng(12).uniform(0.1, 2, of_scale))}
    arrays |= {"z": np.ones(of_scale[1:]), "b": np.array(5)} if operator == "Quant" else {}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return model_of(f"d = {domain}.{operator} {attributes_of(attributes)} ({', '.join(arrays)})", **arrays)


MODEL = pair_model((500, 40), "int8", ())


def result(source, **options):
    """Return the outputs of a session of the large model."""
    return quark_numba.InferenceSession(source, **options).run(None, {"x": np.array(1, np.float32)})[0].tobytes()


MODELS_OF_ONE_WEIGHT = {
    "per tensor": lambda: pair_model(W, "int8", ()),
    "per row": lambda: pair_model(W, "int8", (37,), 0),
    "per column": lambda: pair_model(W, "uint16", (6,), 1),
    "per last axis": lambda: pair_model(W, "bfloat16", (10,), -1),
    "leading ones": lambda: pair_model((1, 1, *W), "int8", (37,), 2),
    "one dimension": lambda: pair_model((997,), "int8", (997,), 0),
    "blocks of rows": lambda: pair_model(W, "int8", (5, 6, 10), 0, 8, ""),
    "one block of rows": lambda: pair_model(W, "int8", (1, 6, 10), 0, 64, ""),
    "blocks of columns": lambda: pair_model(W, "int4", (37, 2, 10), 1, 4, ""),
    "blocks of the last axis": lambda: pair_model(W, "float8e4m3fn", (37, 6, 3), 2, 4, ""),
    "four bits": lambda: pair_model((37, 3, 3), "int4", (), 0, 0, ""),
    "four bits per row": lambda: pair_model((37, 3, 3), "uint4", (37,), 0, 0, ""),
    "two bits": lambda: pair_model((37, 3, 3), "uint2", (37,), 0, 0, ""),
    "MX of rows": lambda: block_model(W, "MX", axis=0, block_size=8, element_dtype="fp4_e2m1"),
    "MX of the last axis": lambda: block_model(W, "MX", axis=-1, block_size=32),
    "MX of one dimension": lambda: block_model((1025,), "MX", axis=1, block_size=8),
    "BFP16": lambda: block_model(W, "BFP", axis=1),
    "BFP prime of rows": lambda: block_model(W, "BFP", axis=0, block_size=16, bfp_method="to_bfp_prime"),
    "QONNX per tensor": lambda: fake_quantized_model(W, ()),
    "QONNX per row": lambda: fake_quantized_model(W, (37, 1, 1)),
    "QONNX per row and column": lambda: fake_quantized_model((1, *W), (37, 6, 1)),
    "MCT per row": lambda: fake_quantized_model(
        W, (37,), "WeightsPOTQuantizer", "mct_quantizers", num_bits=4, per_channel=1, channel_axis=0
    ),
    "codes of two bits": lambda: codes_model("uint2", (37, 5, 3), (37,), 0),
    "codes of four bits": lambda: codes_model("int4", (37, 15), (37,), 0),
    "zero points of four bits": lambda: codes_model("int4", (96, 15), (3, 15), 0, 32, zeros=np.arange(45).reshape(3, 15) % 7),
    "an odd block of four bits": lambda: codes_model("uint4", (37, 15), (8, 15), 0, 5, zeros=np.arange(120).reshape(8, 15) % 7),
    "one dimension of four bits": lambda: codes_model("int4", (997,), (200,), 0, 5),
    "computed scales": computed_scales,
}


@pytest.mark.parametrize("keep_quantized_weights", [False, True], ids=["floats", "codes"])
@pytest.mark.parametrize("kind", list(MODELS_OF_ONE_WEIGHT))
@pytest.mark.covering
@pytest.mark.by_default(3)
def test_parts_of_a_weight(kind, keep_quantized_weights, tmp_path, request):
    before = MODELS_OF_ONE_WEIGHT[kind]()
    whole = optimize(before, keep_quantized_weights=keep_quantized_weights, qdq="float")
    apart(before, tmp_path / "m.onnx")
    request.getfixturevalue("is_large")
    optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", keep_quantized_weights=keep_quantized_weights, qdq="float")
    found = onnx.load(tmp_path / "out.onnx")
    assert found.graph.node == whole.graph.node
    nodes_of_codes = 0 if kind.startswith(("BFP", "QONNX", "MCT")) else 1 + (kind == "computed scales")
    assert len(whole.graph.node) == 1 + keep_quantized_weights * nodes_of_codes
    assert [each.name for each in found.graph.initializer] == [each.name for each in whole.graph.initializer]
    for one, other in zip(found.graph.initializer, whole.graph.initializer, strict=True):
        assert (one.data_type, one.dims, one.raw_data) == (other.data_type, other.dims, other.raw_data)


def test_a_node_that_is_not_valid_in_a_late_row_stays(is_large):
    zeros = np.zeros(4000)
    zeros[-1] = 1  # int32 has no zero point other than 0
    before = codes_model("int32", (4000, 9), (4000,), 0, zeros=zeros)
    after = optimize(before, qdq="float")
    assert [node.op_type for node in after.graph.node] == ["DequantizeLinear", "Add"]


def test_the_folder_of_tensors_in_the_options(tmp_path, is_large):
    """ONNX Runtime looks for this package's files in their own folder, although the options name that of the model's."""
    apart(MODEL, tmp_path / "m.onnx", "model.onnx.data")
    for source in (tmp_path / "m.onnx", (tmp_path / "m.onnx").read_bytes()):
        options = session_options(model_external_initializers_file_folder_path=str(tmp_path))
        session = quark_numba.InferenceSession(source, options)
        expected = quark_numba.InferenceSession(tmp_path / "m.onnx")
        for _ in range(2):
            outputs = [each.run(None, {"x": np.zeros((), np.float32)})[0] for each in (session, expected)]
            assert outputs[0].tobytes() == outputs[1].tobytes()
            if not isinstance(source, bytes):
                session.set_providers(["CPUExecutionProvider"])
        folder = options.get_session_config_entry("session.model_external_initializers_file_folder_path")
        assert folder == str(tmp_path)


def test_a_target_that_has_tensors_of_the_original(tmp_path, is_large):
    apart(MODEL, tmp_path / "a.onnx", "b.onnx.data")
    content = (tmp_path / "b.onnx.data").read_bytes()
    with pytest.raises(ModelError, match=r"b\.onnx\.data has tensors of the original model; expected another name"):
        optimize(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx.data").read_bytes() == content
    optimize(tmp_path / "a.onnx", tmp_path / "a.onnx")
    assert arrays_of(tmp_path / "a.onnx").keys() == {"d"}


@pytest.mark.parametrize(
    ("target", "link"),
    [(target, link) for target in ("weights.onnx", "a.onnx") for link in (None, "symbolic")] + [("a.onnx", "hard")],
)
def test_a_target_that_is_read(tmp_path, is_large, target, link):
    """The target is the original model or its tensors, perhaps by another name. Nothing is written."""
    apart(MODEL, tmp_path / "a.onnx", "weights.onnx")
    out = tmp_path / target
    if link:
        out = tmp_path / "out" / "linked.onnx"
        out.parent.mkdir()
        (os.symlink if link == "symbolic" else os.link)(tmp_path / target, out)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
    if target == "a.onnx" and link != "hard":
        optimize(tmp_path / "a.onnx", out)  # in its place
        assert arrays_of(tmp_path / "a.onnx").keys() == {"d"}
        return
    what = "is" if target == "a.onnx" else "has tensors of"
    with pytest.raises(ModelError, match=rf"\.onnx {what} the original model; expected another name"):
        optimize(tmp_path / "a.onnx", out)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()} == before


def test_a_file_for_tensors_that_is_the_original(tmp_path, is_large):
    apart(MODEL, tmp_path / "b.onnx.data")
    before = (tmp_path / "b.onnx.data").read_bytes()
    with pytest.raises(ModelError, match=r"b\.onnx\.data is the original model; expected another name"):
        optimize(tmp_path / "b.onnx.data", tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx.data").read_bytes() == before


@pytest.mark.parametrize(("key", "value"), [("offset", "-5"), ("offset", "x"), ("length", "-1")])
def test_entries_that_are_not_valid(tmp_path, key, value):
    apart(MODEL, tmp_path / "m.onnx")
    before = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for each in before.graph.initializer[0].external_data:
        if each.key == key:
            each.value = value
    (tmp_path / "m.onnx").write_bytes(before.SerializeToString())
    for use in (optimize, quark_numba.InferenceSession):
        with pytest.raises(ModelError, match="tensor w: "):
            use(tmp_path / "m.onnx")


@pytest.mark.skipif(os.name != "posix", reason="it has no flock")
def test_a_file_system_without_locks(tmp_path, is_large, monkeypatch):
    import fcntl

    def flock(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    apart(MODEL, tmp_path / "m.onnx")
    for _ in range(2):
        if (tmp_path / "out").exists():
            optimize(tmp_path / "m.onnx", tmp_path / "out" / "m.onnx")
        (tmp_path / "out").mkdir(exist_ok=True)
        quark_numba.InferenceSession(tmp_path / "m.onnx", temporary_folder=tmp_path / "out", cache=tmp_path / "cache")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["m.onnx", "m.onnx.data"]


def test_equal_nodes_on_one_weight_are_folded_once(tmp_path, is_large):
    text = "(float[] x) => (float[] y) { d = Pair (w, s, z)  d2 = Pair (w, s, z)  y = Add (d, d2) }"
    whole = text_model(text, w=weight_of(W), s=np.float32(0.55), z=np.int8(1))
    after = optimize(whole)
    (add,) = after.graph.node
    assert add.input[0] == add.input[1]
    assert [each.name for each in after.graph.initializer] == [add.input[0]]


@pytest.mark.parametrize("keep_quantized_weights", [False, True])
@pytest.mark.slow
def test_weights_are_folded_on_one_thread(keep_quantized_weights, tmp_path, monkeypatch):
    """Other Numba threads would wait in a loop between the parts of a weight."""

    def number_of_threads():
        raise AssertionError

    block_format = block_model((1024, 256), "MX", element_dtype="fp4_e2m1", axis=0)
    for each in (pair_model((1024, 256), "bfloat16", ()), block_format):
        apart(each, tmp_path / "m.onnx")
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_number_of_threads", number_of_threads)
            optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", keep_quantized_weights=keep_quantized_weights)


# Files that change, disks that fill up, processes that are killed.


def test_models_that_are_not_rewritten(tmp_path, is_large, monkeypatch):
    """A file with nothing to rewrite is loaded by ONNX Runtime itself. In memory it may have what onnx-ir would lose."""
    plain = text_model("(float x) => (float[] y) { y = Add (w, x) }", w=weight_of(W))
    apart(plain, tmp_path / "m.onnx")
    loaded, create = [], onnxruntime.InferenceSession.__init__
    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", lambda *a, **b: (loaded.append(a[1]), create(*a, **b))[1])
    quark_numba.InferenceSession(tmp_path / "m.onnx", temporary_folder=tmp_path / "missing")
    assert loaded[-1] == tmp_path / "m.onnx"
    values = numpy_helper.from_array(np.ones(2, np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([1, 3]), "indices")
    plain = onnx.load(tmp_path / "m.onnx")
    plain.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [5]))
    plain.graph.node.append(helper.make_node("Identity", ["sparse"], ["z"]))
    plain.graph.output.append(helper.make_empty_tensor_value_info("z"))
    session = quark_numba.InferenceSession(plain)
    assert session.run(["z"], {"x": np.zeros((), np.float32)})[0].tolist() == [0, 1, 0, 1, 0]


def test_a_file_that_is_changed_while_it_is_read(tmp_path, is_large, monkeypatch):
    apart(MODEL, tmp_path / "m.onnx")
    (tmp_path / "out.onnx").write_bytes(b"before")

    def then_changing(read):
        def changed(*arguments):
            found = read(*arguments)
            os.utime(tmp_path / "weights", ns=(1, 1))
            return found

        return changed

    for name in ("write_to", "array_of"):
        monkeypatch.setattr(tensors, name, then_changing(getattr(tensors, name)))
    for use in (
        lambda: optimize(tmp_path / "m.onnx"),
        lambda: optimize(tmp_path / "m.onnx", tmp_path / "out.onnx"),
        lambda: quark_numba.InferenceSession(tmp_path / "m.onnx", temporary_folder=tmp_path),
    ):
        os.utime(tmp_path / "weights")
        with pytest.raises(ModelError, match="weights was changed while it was read"):
            use()
    assert (tmp_path / "out.onnx").read_bytes() == b"before"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "out.onnx", "weights"]


def test_a_file_that_becomes_shorter(tmp_path, is_large, monkeypatch):
    """A file that ends within a tensor is an error, before and while it is read."""
    apart(MODEL, tmp_path / "m.onnx")
    write_to = tensors.write_to

    def shorter(tensor, file):
        os.truncate(tmp_path / "weights", 100)
        write_to(tensor, file)

    monkeypatch.setattr(tensors, "write_to", shorter)
    with pytest.raises(ModelError, match=r"tensor w: .*weights is truncated"):
        quark_numba.InferenceSession(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="tensor w: "):
        optimize(tmp_path / "m.onnx")


def test_a_disk_without_room(tmp_path, is_large, monkeypatch):
    """The room that is needed is checked before anything is computed, and a disk that fills up meanwhile is an error."""
    apart(MODEL, tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    uses = (
        lambda: optimize(tmp_path / "m.onnx", tmp_path / "out" / "m.onnx"),
        lambda: quark_numba.InferenceSession(tmp_path / "m.onnx", temporary_folder=tmp_path / "out"),
    )
    for use in uses:
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 10))
            patch.setattr(tensors, "write_to", None)
            with pytest.raises(ModelError, match=r"out.* 0\.00 GB are needed, and 0\.00 GB are free"):
                use()

        def full(tensor, file):
            file.write(b"half")
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(tensors, "write_to", full)
            with pytest.raises(ModelError, match=r"out.*: No space left on device"):
                use()
        assert not list((tmp_path / "out").iterdir())


KILLED = """
import sys, time
from quark_numba.models import model_files, tensors
from quark_numba.rewriting import constants
import quark_numba
model_files.MAX_IN_MEMORY = 0
write_to = tensors.write_to

def slow(tensor, file):
    write_to(tensor, file)
    file.flush()
    print("writing", flush=True)
    time.sleep(60)

tensors.write_to = slow
if sys.argv[2] == "optimize":
    quark_numba.optimize(sys.argv[1] + "/m.onnx", sys.argv[1] + "/out/m.onnx")
else:
    quark_numba.InferenceSession(sys.argv[1] + "/m.onnx", temporary_folder=sys.argv[1] + "/out")
"""


@pytest.mark.parametrize("what", ["optimize", "session"])
@pytest.mark.by_default(1)
def test_what_a_killed_process_leaves_is_removed_by_the_next(what, tmp_path, monkeypatch):
    apart(MODEL, tmp_path / "m.onnx")
    out = tmp_path / "out"
    out.mkdir()
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path, what], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().strip() == b"writing"
        monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 0)
        quark_numba.InferenceSession(tmp_path / "m.onnx", temporary_folder=out)  # removes nothing that is in use
        assert len(list(out.iterdir())) == 1
        process.kill()
    assert len(list(out.iterdir())) == 1
    if what == "optimize":
        optimize(tmp_path / "m.onnx", out / "m.onnx")
    else:
        quark_numba.InferenceSession(tmp_path / "m.onnx", temporary_folder=out)
    assert {each.name for each in out.iterdir()} == ({"m.onnx", "m.onnx.data"} if what == "optimize" else set())


of_posix = pytest.mark.skipif(os.name != "posix", reason="of POSIX only")

EXCHANGE = """
import os, sys
from quark_numba.models import model_files
import quark_numba
model_files.MAX_IN_MEMORY = 0
path, left, replace = sys.argv[1], int(sys.argv[2]), os.replace

def replace_and_end(*paths):
    global left
    replace(*paths)
    left -= 1
    if not left:
        os._exit(9)

os.replace = replace_and_end
quark_numba.optimize(path, path)
"""


def exchange_and_end(path, replaced):
    """Optimize a model in its place in a process that ends when so many files have been moved."""
    assert subprocess.run([sys.executable, "-c", EXCHANGE, path, str(replaced)]).returncode == 9


@pytest.mark.parametrize("use", ["session", "optimize", "another"])
@pytest.mark.parametrize("replaced", [1, 2, 3, 4])
@pytest.mark.by_default(1)
def test_a_process_that_ends_while_it_exchanges_files_loses_none(replaced, use, tmp_path):
    """The model and the file of its tensors come back when the model, or another one in the folder, is used next."""
    apart(MODEL, tmp_path / "m.onnx", "m.onnx.data")
    apart(MODEL, tmp_path / "another.onnx", "another.data")
    exchange_and_end(tmp_path / "m.onnx", replaced)
    assert (tmp_path / "m.onnx").exists() is (replaced == 4)
    if use == "optimize":
        optimize(tmp_path / "m.onnx", tmp_path / "out.onnx")
    elif use == "another":
        optimize(tmp_path / "another.onnx", tmp_path / "out.onnx")
    assert result(tmp_path / "m.onnx") == result(MODEL)
    if replaced < 4 or use != "session":
        assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


@pytest.mark.parametrize("replaced", [2, 3])
@pytest.mark.slow
def test_a_file_of_somebody_else_in_the_place_of_one_that_was_moved_aside(replaced, tmp_path):
    """It is not replaced, and the files of before stay where they are, until it is gone."""
    apart(MODEL, tmp_path / "m.onnx", "m.onnx.data")
    exchange_and_end(tmp_path / "m.onnx", replaced)
    new = tmp_path / "m.onnx.data"
    assert new.exists() is (replaced == 3)
    new.unlink(missing_ok=True)
    new.write_bytes(b"notes")
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    for _ in range(2):
        with pytest.raises(ModelError, match=r"m\.onnx: a process was killed .*; the previous version is .*aside.m\.onnx$"):
            optimize(tmp_path / "m.onnx")
        with pytest.raises(ModelError, match=r"link\.onnx: a process was killed .*; the previous version is .*aside.m\.onnx$"):
            optimize(tmp_path / "link.onnx")
        assert new.read_bytes() == b"notes"
    new.unlink()
    assert result(tmp_path / "m.onnx") == result(MODEL)


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", ["out.onnx", "aside", "files"])
@pytest.mark.by_default(2)
def test_a_link_at_the_name_of_the_file_of_tensors(name, link, tmp_path, is_large):
    """The link is replaced and its target stays, because onnx refuses to follow links to tensors."""
    apart(MODEL, tmp_path / "m.onnx")
    (tmp_path / "else").write_bytes(b"else")
    link(tmp_path / "else", tmp_path / f"{name}.data")
    for _ in range(2):
        optimize(tmp_path / "m.onnx", tmp_path / name)
        assert result(tmp_path / name) == result(MODEL)
    assert (tmp_path / "else").read_bytes() == b"else"


@pytest.mark.parametrize("make", [os.mkdir, pytest.param(getattr(os, "mkfifo", None), marks=of_posix)], ids=["folder", "fifo"])
def test_what_is_no_file_at_the_name_of_the_file_of_tensors(make, tmp_path, is_large):
    apart(MODEL, tmp_path / "m.onnx")
    make(tmp_path / "out.onnx.data")
    with pytest.raises(ModelError, match=r"out\.onnx: out\.onnx\.data: not a regular file"):
        optimize(tmp_path / "m.onnx", tmp_path / "out.onnx")
    assert {each.name for each in tmp_path.iterdir()} == {"m.onnx", "weights", "out.onnx.data"}


LEFT = ".quark_numba_evil1234.tmp"


def left_behind(folder):
    """Make what a killed process seems to have left in a folder: a model aside, and a link to files of another user."""
    (folder / LEFT / "aside").mkdir(parents=True)
    (folder / LEFT / "files").mkdir()
    (folder / LEFT / "files" / "m.onnx").write_bytes(b"new")
    (folder / LEFT / "in use").write_bytes(temporary._MARK)
    (folder / LEFT / "aside" / "m.onnx").write_bytes(b"old")
    (folder / LEFT / "exchange.json").write_text('{"last": "m.onnx", "new": {}}')
    return folder / LEFT


def linked_aside(left):
    (left / "aside").rename(left.parent / "private")
    (left / "aside").symlink_to(left.parent / "private")


RECORDS = {
    "missing": lambda left: (left / "exchange.json").unlink(),
    "fifo": lambda left: ((left / "exchange.json").unlink(), os.mkfifo(left / "exchange.json")),
    "link aside": linked_aside,
    "file in place": lambda left: (left.parent / "m.onnx").write_bytes(b"restored"),
    **{
        text[:9]: lambda left, text=text: (left / "exchange.json").write_text(text)
        for text in ("", "{", "[1, 2]", "null", '{"last": 1, "new": {}}', '{"last": "m.onnx", "new": 1}', "[" * 100_000)
    },
}


@of_posix
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.by_default(2)
def test_what_is_aside_without_a_record_stays(record, tmp_path):
    left = left_behind(tmp_path)
    RECORDS[record](left)

    def content():
        return {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}

    before = content()
    for _ in range(2):
        files.write(tmp_path / "other", b"other")
        model_files.recover(tmp_path / "nothing")
        assert content() == before | {tmp_path / "other": b"other"}


@of_posix
def test_what_is_aside_with_a_record_comes_back(tmp_path):
    left_behind(tmp_path)
    files.write(tmp_path / "other", b"other")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"m.onnx": b"old", "other": b"other"}


@pytest.mark.slow
def test_a_new_model_that_is_renamed_before_what_was_aside_is_removed(tmp_path):
    """The process ended after its last file was in its place, so that nothing comes back."""
    apart(MODEL, tmp_path / "m.onnx", "m.onnx.data")
    exchange_and_end(tmp_path / "m.onnx", 4)
    data = (tmp_path / "m.onnx.data").read_bytes()
    (tmp_path / "m.onnx").rename(tmp_path / "renamed.onnx")
    with pytest.raises(ModelError, match="No such file"):
        optimize(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").read_bytes() == data
    assert result(tmp_path / "renamed.onnx") == result(MODEL)


@of_posix
@pytest.mark.slow
def test_a_link_to_a_model_that_was_moved_aside(tmp_path):
    """The model comes back. Its tensors are not found beside the link, as those of any model."""
    (tmp_path / "folder").mkdir()
    path, link = tmp_path / "folder" / "m.onnx", tmp_path / "link.onnx"
    apart(MODEL, path, "m.onnx.data")
    before = path.read_bytes()
    link.symlink_to(path)
    exchange_and_end(path, 3)
    assert not path.exists()
    with pytest.raises(ModelError, match=r"tensor w: m\.onnx\.data"):
        optimize(link)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_files_that_cannot_be_put_back_at_once(tmp_path, is_large, monkeypatch):
    """Files that cannot be put back stay in the temporary folder, from which the next use takes them."""
    apart(MODEL, tmp_path / "m.onnx", "m.onnx.data")
    replace, left = os.replace, [3]

    def failing(*paths):
        left[0] -= 1
        if left[0] < 0:
            raise PermissionError(13, "Permission denied")
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(ModelError, match=r"m\.onnx: Permission denied"):
            optimize(tmp_path / "m.onnx", tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
    assert result(tmp_path / "m.onnx") == result(MODEL)
    assert {each.name for each in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}


TWO = """
import sys
from pathlib import Path
from quark_numba.models import files

def write_to(path):
    Path(path).write_text(sys.argv[2])
    Path(path + ".data").write_text(sys.argv[2])

for _ in range(300):
    files.write_by(sys.argv[1], write_to)
"""


@of_posix
@pytest.mark.slow
def test_two_processes_that_write_one_model(tmp_path):
    """Model and file of tensors are always of one process."""
    out = tmp_path / "m.onnx"
    for _ in range(4):
        started = [subprocess.Popen([sys.executable, "-c", TWO, out, name]) for name in "ab"]
        assert [process.wait() for process in started] == [0, 0]
        assert out.read_text() == out.with_name("m.onnx.data").read_text()
    assert {each.name for each in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}


REPEATS = """
import itertools, sys
from pathlib import Path
from quark_numba.models import model_files
from quark_numba.session.model_cache import ModelCache
import quark_numba
model_files.MAX_IN_MEMORY = 0
folder = sys.argv[1]
for number in itertools.count():
    print(number, flush=True)
    quark_numba.optimize(folder + "/m.onnx", folder + "/out/m.onnx")
    quark_numba.InferenceSession(folder + "/m.onnx", temporary_folder=folder + "/out")
    quark_numba.InferenceSession(folder + "/m.onnx", cache=folder + "/cache")
    ModelCache(Path(folder, "cache")).clear()
"""


@pytest.mark.slow
@sizes("kills", 1, slow=2, exhaustive=30)
def test_processes_that_are_killed_at_random(kills, tmp_path, monkeypatch):
    """A target is what it was or what it was to become, and the next process removes all other files that are left."""
    before = pair_model((2000, 400), "int8", ())
    apart(before, tmp_path / "m.onnx")
    out, cache, moments = tmp_path / "out", tmp_path / "cache", np.random.default_rng(kills).uniform(0, 0.3, kills)
    out.mkdir()
    monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 0)
    expected = result(before)
    for moment in moments:
        with subprocess.Popen([sys.executable, "-c", REPEATS, tmp_path], stdout=subprocess.PIPE) as process:
            for _ in range(2):  # the first round imports and compiles
                process.stdout.readline()
            time.sleep(moment)
            process.kill()
        for path in (tmp_path / "m.onnx", *out.glob("m.onnx")):
            for options in ({"temporary_folder": out}, {"cache": cache}):
                assert result(path, **options) == expected
    optimize(tmp_path / "m.onnx", out / "m.onnx")
    assert {each.name for each in out.iterdir()} == {"m.onnx", "m.onnx.data"}
    assert not list(cache.glob("quark_numba_*"))


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    """Processes that start at the same time in one folder do not remove each other's files."""
    apart(MODEL, tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    code = KILLED.replace("tensors.write_to = slow", "") + "\nprint('done')"
    started = [subprocess.Popen([sys.executable, "-c", code, tmp_path, "session"], stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in started] == [b"done"] * 4
    assert not list((tmp_path / "out").iterdir())
