"""`analyze` and `evaluate` on models whose weights stay in files give what they give on the models in memory."""

import dataclasses
import weakref

import numpy as np
import onnx
import pytest
from large_models import apart
from onnx import helper
from onnx_models import model
from processes import python
from rewritten_models import floats
from textline import X, path_of

import quark_numba
from quark_numba import Execution, ModelError, RandomData
from quark_numba.analysis.twin import float_twin
from quark_numba.models import model_files, tensors

pytestmark = pytest.mark.compiled

FEEDS = [{"x": X[:2]}, {"x": X[2:4]}]


def large(variant, folder):
    folder.mkdir()
    apart(onnx.load(path_of(variant)), folder / "m.onnx")
    return folder / "m.onnx"


# a8w8 and i32 have only codes of their weights.
VARIANTS = [
    ("mx9", True, ""),
    ("a8w8", False, ""),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (("bf16", False, ""), ("a8w8", True, ""), ("i32", True, "mxfp4_e2m1"))
    ),
]


@pytest.mark.parametrize(("variant", "has_reference", "what_if"), VARIANTS)
@pytest.mark.slow
def test_the_same_numbers(variant, has_reference, what_if, tmp_path, request):
    reference = path_of("float") if has_reference else None
    options = {"sweep": True, "by": "operator", "what_if": [what_if] if what_if else [], "histograms": 3}
    whole = quark_numba.analyze(path_of(variant), FEEDS, reference, **options)
    evaluated = quark_numba.evaluate(path_of(variant), FEEDS, reference)
    request.getfixturevalue("is_large")
    path, reference = large(variant, tmp_path / "model"), reference and large("float", tmp_path / "float")
    found = quark_numba.analyze(path, FEEDS, reference, **options)
    for each in dataclasses.fields(whole):
        assert repr(getattr(found, each.name)) == repr(getattr(whole, each.name)), each.name
    assert quark_numba.evaluate(path, FEEDS, reference) == evaluated


@pytest.mark.slow
@pytest.mark.usefixtures("is_large")
def test_weights_are_read_one_at_a_time(tmp_path, monkeypatch):
    """Few other weights are in memory when a weight is read from its file."""
    read, alive, numbers = tensors.array_of, set(), []

    def array_of(tensor):
        found = read(tensor)
        if not tensors.is_in_memory(tensor):
            numbers.append(len(alive))
            alive.add(tensor.name)
            weakref.finalize(found, alive.discard, tensor.name)
        return found

    monkeypatch.setattr("quark_numba.analysis.twin.quantizers.array_of", array_of)
    quark_numba.analyze(large("bf16", tmp_path / "model"), FEEDS, execution=Execution(threads=1))
    assert max(numbers) <= 2  # those that the same nodes take
    assert len(numbers) > 100


@pytest.mark.slow
@pytest.mark.usefixtures("is_large")
def test_a_weight_that_is_an_output(tmp_path):
    weight = np.random.default_rng(1).normal(0, 1, (40, 30))
    nodes = ["y = com.amd.quark.MXQuantizeDequantize (w)", "z = MatMul (x, y)"]
    content = model(nodes, [("x", "float32", [2, 40])], ["z", "w", "y"], initializers=floats(w=weight))
    whole = quark_numba.analyze(content, RandomData(1))
    apart(content, tmp_path / "m.onnx")
    assert quark_numba.analyze(tmp_path / "m.onnx", RandomData(1)) == whole
    assert quark_numba.evaluate(tmp_path / "m.onnx", RandomData(1)) == quark_numba.evaluate(content, RandomData(1))


@pytest.mark.slow
@pytest.mark.usefixtures("is_large")
def test_an_output_in_a_longer_file_without_a_length(tmp_path):
    weight = np.random.default_rng(1).normal(0, 1, (200, 100)).astype(np.float32)
    nodes = ["d = com.amd.quark.MXQuantizeDequantize (x)", "y = Add (d, w)"]
    content = model(nodes, [("x", "float32", [200, 100])], ["y", "w"], initializers=floats(w=weight))
    whole = quark_numba.analyze(content, RandomData(1))
    (tmp_path / "w").write_bytes(2 * weight.tobytes())
    (tensor,) = content.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w")
    (tmp_path / "m.onnx").write_bytes(content.SerializeToString())
    assert quark_numba.analyze(tmp_path / "m.onnx", RandomData(1)) == whole


@pytest.mark.slow
@pytest.mark.usefixtures("is_large")
@pytest.mark.parametrize("has_types", [True, False])
def test_weights_that_are_inputs_too(has_types, tmp_path):
    """In IR version 3 all weights are graph inputs, too."""
    random = np.random.default_rng(2)
    weights = {name: random.normal(0, 1, (40, 40)) for name in ("w", "w2")}
    nodes = ["v = com.amd.quark.MXQuantizeDequantize (w)", "y = MatMul (x, v)", "z = MatMul (y, w2)"]
    content = model(nodes, [("x", "float32", [2, 40])], ["z"], initializers=floats(**weights))
    content.ir_version = 3
    content.graph.input.extend(helper.make_tensor_value_info(name, 1, [40, 40] if has_types else None) for name in weights)
    whole = quark_numba.analyze(content, RandomData(1))
    apart(content, tmp_path / "m.onnx")
    assert quark_numba.analyze(tmp_path / "m.onnx", RandomData(1)) == whole


@pytest.mark.slow
@pytest.mark.usefixtures("is_large")
def test_tensors_in_several_files(tmp_path):
    """The digest of a run does not depend on the order of a set of names."""
    content = onnx.load(path_of("bf16"))
    onnx.save(content, tmp_path / "m.onnx", save_as_external_data=True, all_tensors_to_one_file=False)
    code = f"from quark_numba.models.model_files import Source; print(Source.open({str(tmp_path / 'm.onnx')!r}).digest())"
    (digest,) = {python("-c", code, PYTHONHASHSEED=seed).stdout for seed in "123"}
    assert len(digest) == 65


@pytest.mark.slow
@pytest.mark.usefixtures("is_large")
def test_a_file_that_disappears(tmp_path):
    path = large("bf16", tmp_path / "model")

    def feeds():
        yield FEEDS[0]
        (path.parent / "weights").unlink()
        yield FEEDS[1]

    with pytest.raises(ModelError, match=r"weights(: No such file| was changed)"):
        quark_numba.analyze(path, feeds)


@pytest.mark.slow
def test_a_small_model_is_read_at_once(tmp_path):
    """The file of a small model may change after the call has read it."""
    path = large("bf16", tmp_path / "model")

    def feeds():
        yield FEEDS[0]
        for each in path.parent.iterdir():
            each.unlink()
        yield FEEDS[1]

    assert quark_numba.analyze(path, feeds) == quark_numba.analyze(path_of("bf16"), FEEDS)


@pytest.mark.slow
def test_a_reference_is_not_read_as_a_whole(tmp_path, request):
    """A large reference stays in its file, and a model in memory keeps its tensors."""
    request.getfixturevalue("is_large")
    reference = float_twin.load(large("float", tmp_path / "float"))
    size = reference.proto.ByteSize()
    float_twin.make_twin(float_twin.load(path_of("a8w8")), reference)
    assert reference.proto.ByteSize() < size + 100


@pytest.mark.slow
def test_a_model_in_memory_that_is_too_large_for_one_file(monkeypatch):
    monkeypatch.setattr(model_files, "_MAX_BYTES", 2000)
    content = onnx.load(path_of("bf16"))
    before = content.SerializeToString()
    found = [quark_numba.evaluate(content, FEEDS) for _ in range(2)]
    assert content.SerializeToString() == before
    monkeypatch.undo()
    assert found == [quark_numba.evaluate(content, FEEDS)] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("is_large")
@pytest.mark.parametrize("call", [quark_numba.analyze, quark_numba.evaluate])
def test_a_file_that_changes(call, tmp_path):
    path = large("bf16", tmp_path / "model")

    def feeds():
        yield FEEDS[0]
        content = (path.parent / "weights").read_bytes()
        (path.parent / "weights").unlink()
        (path.parent / "weights").write_bytes(content)
        yield FEEDS[1]

    with pytest.raises(ModelError, match="weights was changed while it was read"):
        call(path, feeds)
