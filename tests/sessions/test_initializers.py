"""Initializers that are added to the session options in the place of missing files. Results are those of ONNX Runtime's own
session, to the last bit."""

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from onnx_models import model, session_options
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba import ModelError
from quark_numba.models import model_files
from quark_numba.session import initializers
from quark_numba.session import session_options as options_of_sessions

pytestmark = pytest.mark.compiled

X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(4, 4)).astype(np.float32),
        "s": np.array(0.05 + seed, np.float32),
        "z": np.array(1 + seed, np.int8),
        "b": rng.normal(size=4).astype(np.float32),
        "shape": np.array([4, 3]),
    }


def in_files(whole, names, location="nowhere"):
    """Return the model with these initializers in a file."""
    result = onnx.ModelProto()
    result.CopyFrom(whole)
    for each in result.graph.initializer:
        if each.name in names:
            each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each), each.name))
            external_data_helper.set_external_data(each, location, offset=0, length=len(each.raw_data))
            each.ClearField("raw_data")
    return result


def small(names, values=None, location="nowhere"):
    """Return a model with quantization nodes of one scale around a weight and activations."""
    text = """(float[3, 4] x) => (float[] y) {
        v = Pair (w, s, z)  a = Pair (x, s, z)  m = MatMul (a, v)  n = Add (m, b)  r = Relu (n)
        t = Pair (r, s, z)  y = Reshape (t, shape)
    }"""
    return in_files(text_model(text, **(values or arrays())), names, location)


KEPT = []  # added values, which have to live as long as the sessions


def options_with(values, **entries):
    """Return session options with these initializers."""
    options = session_options(**entries)
    KEPT.append([onnxruntime.OrtValue.ortvalue_from_numpy(np.array(each)) for each in values.values()])
    if values:
        options.add_external_initializers(list(values), KEPT[-1])
    return options


def add_initializer(options, name, array, number=TensorProto.FLOAT):
    KEPT.append((array, onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)))
    options.add_initializer(name, KEPT[-1][1])


def both(source, values, x=X, **entries):
    """Return the results of ONNX Runtime's session, and those of this package's session."""
    found = []
    for create in (onnxruntime.InferenceSession, quark_numba.InferenceSession):
        options = options_with(values, **entries)
        if create is onnxruntime.InferenceSession:
            quark_numba.register(options)
        content = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
        session = create(content, options, providers=["CPUExecutionProvider"])
        found.append([each.tobytes() for each in session.run(None, {session.get_inputs()[0].name: x})])
    return found


@pytest.mark.parametrize("names", ["w", "s", "z", "sz", "bw", "wszb"])
@pytest.mark.by_default(1)
def test_given_ones_need_no_file(names, tmp_path):
    """Added initializers need no file, whichever nodes take them. The model is given as bytes, a path or a ModelProto."""
    given = {name: each for name, each in arrays(seed=1).items() if name in names}
    source = small(names)
    onnx.save(source, tmp_path / "m.onnx")
    expected = both(small([], arrays() | given), {})[0]
    for each in (source, str(tmp_path / "m.onnx")):
        theirs, ours = both(each, given)
        assert theirs == ours == expected
    before = source.SerializeToString()
    session = quark_numba.InferenceSession(source, options_with(given))
    assert source.SerializeToString() == before
    assert session.run(None, {"x": X})[0].tobytes() == expected[0]


@pytest.mark.parametrize("names", ["w", "bsz"])
def test_others_are_read_from_their_files(names, tmp_path):
    """Other initializers are read from files beside the model, or in the folder of the options."""
    (other,) = {"w", "b"} - {*names}
    source = small([*names, other], location="values")
    (tmp_path / "values").write_bytes(arrays()[other].tobytes())
    onnx.save(source, tmp_path / "m.onnx")
    given = {name: each for name, each in arrays(seed=2).items() if name in names}
    expected = both(small([], arrays() | given), {})[0]
    theirs, ours = both(tmp_path / "m.onnx", given)
    assert theirs == ours == expected
    entry = {"model_external_initializers_file_folder_path": str(tmp_path)}
    theirs, ours = both(source, given, **entry)
    assert theirs == ours == expected
    (tmp_path / "values").unlink()
    options = options_with(given)
    with pytest.raises(ModelError, match=f"tensor {other}: "):
        quark_numba.InferenceSession(tmp_path / "m.onnx", options)
    with pytest.raises(ModelError, match=f"tensor {other} is in the file 'values'"):
        quark_numba.InferenceSession(source, options)


def test_beside_added_initializers():
    options = options_with({"w": arrays(seed=3)["w"]})
    options.add_initializer("b", b := onnxruntime.OrtValue.ortvalue_from_numpy(arrays(seed=3)["b"]))
    session = quark_numba.InferenceSession(small(["w"]), options)
    expected = both(small([], arrays() | {name: arrays(seed=3)[name] for name in "wb"}), {})[0]
    assert session.run(None, {"x": X})[0].tobytes() == expected[0]
    del b


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"w": arrays()["w"], "unused": X}, "Failed to find existing initializer with name unused"),
        ({"w": arrays()["w"], "shape": arrays()["shape"]}, "Cannot parse data from external tensors"),
        ({"w": X}, "dimensions do not match"),
        ({"w": np.zeros((4, 4))}, "data type does not match"),
        ({"w": arrays()["w"], "v2": X}, "Failed to find existing initializer with name v2"),
        ({"w": arrays()["w"], "b": arrays()["b"]}, "Failed to find existing initializer with name b|non-external initializer"),
    ],
)
def test_wrong_ones_are_told_by_onnx_runtime(values, message):
    raised, files = [], ["w", "shape"] if "shape" in values else ["w", "unused"]
    for create in (onnxruntime.InferenceSession, quark_numba.InferenceSession):
        options = options_with(values)
        quark_numba.register(options)
        with pytest.raises(Exception, match=message) as error:
            create(small(files).SerializeToString(), options)
        raised.append(error.type)
    assert raised[0] is raised[1]


def test_many_of_which_some_are_given(tmp_path):
    """Some of many initializers are given, among them names that end alike."""
    names = [f"{prefix}{number}" for number in range(30) for prefix in ("w", "a w")]
    values = {name: np.full(4, number, np.float32) for number, name in enumerate(names)}
    nodes = [
        helper.make_node("Add", [before, name], [f"sum of {name}"])
        for before, name in zip(["x", *(f"sum of {name}" for name in names)], names, strict=False)
    ]
    tensors = [numpy_helper.from_array(each, name) for name, each in values.items()]
    whole = model(nodes, [("x", "float32", [3, 4])], [f"sum of {names[-1]}"], initializers=tensors, domains=[])
    source = in_files(whole, names, "zeros")
    (tmp_path / "zeros").write_bytes(bytes(16))
    onnx.save(source, tmp_path / "m.onnx")
    theirs, ours = both(tmp_path / "m.onnx", {name: values[name] for name in names[::3]})
    assert theirs == ours
    assert np.frombuffer(ours[0], np.float32)[0] == X[0, 0] + sum(range(0, 60, 3))


# Files in memory. What is on the disk has the same size.

has_files_in_memory = pytest.mark.skipif(
    not hasattr(onnxruntime.SessionOptions, "add_external_initializers_from_files_in_memory"),
    reason="ONNX Runtime has no files in memory before 1.24",
)


def options_with_files(**files):
    result = session_options()
    content = [np.array(each).tobytes() for each in files.values()]
    KEPT.append(content)
    result.add_external_initializers_from_files_in_memory([*files], content, [*map(len, content)])
    return result


def result_of(source, options, **how):
    return quark_numba.InferenceSession(source, options, **how).run(None, {"x": X})[0].tobytes()


def expected_of(**values):
    return both(small([], arrays() | values), {})[0][0]


@has_files_in_memory
@pytest.mark.parametrize("on_disk", [True, False])
def test_files_in_memory(on_disk, tmp_path, monkeypatch):
    """The session has the weights in memory, also if all tensors go to separate files, with the name of one in memory."""
    path = tmp_path / "m.onnx"
    given = arrays(seed=4)["w"]
    onnx.save(small(["w"], location="model.onnx.data"), path)
    if on_disk:
        (tmp_path / "model.onnx.data").write_bytes(bytes(given.nbytes))
    expected = expected_of(w=given)
    for most in (model_files.MAX_IN_MEMORY, 0):
        monkeypatch.setattr(model_files, "MAX_IN_MEMORY", most)
        monkeypatch.setattr(model_files, "LEAST_APART", most and model_files.LEAST_APART)
        for source in (str(path), path.read_bytes(), onnx.load(path, load_external_data=False)):
            assert result_of(source, options_with_files(**{"model.onnx.data": given})) == expected


@has_files_in_memory
def test_cached_models_and_files_in_memory(tmp_path):
    """A model that was kept without files in memory is not taken with them, nor the other way round."""
    path, cache = tmp_path / "m.onnx", tmp_path / "cache"
    onnx.save(small(["w"], location="values"), path)
    (tmp_path / "values").write_bytes(arrays()["w"].tobytes())
    for _ in range(2):
        for seed in (5, 6):
            given = arrays(seed)["w"]
            assert result_of(path, options_with_files(values=given), cache=cache) == expected_of(w=given)
        assert result_of(path, session_options(), cache=cache) == expected_of()
    model = onnx.load(path, load_external_data=False)
    probes = initializers.make_probe(model), initializers.make_probe_of_a_file()
    assert options_of_sessions.options_replace_nothing(session_options(), *probes)
    assert not options_of_sessions.options_replace_nothing(options_with_files(values=given), *probes)


@has_files_in_memory
def test_files_in_memory_beside_added_initializers():
    options = options_with_files(values=arrays(seed=7)["w"])
    KEPT.append(added := [onnxruntime.OrtValue.ortvalue_from_numpy(arrays(seed=7)["b"])])
    options.add_external_initializers(["b"], added)
    expected = expected_of(w=arrays(seed=7)["w"], b=arrays(seed=7)["b"])
    assert result_of(small(["w", "b"], location="values"), options) == expected


@has_files_in_memory
def test_a_file_that_is_not_in_memory(tmp_path):
    """ONNX Runtime then refuses the model, although the file is on the disk."""
    path = tmp_path / "m.onnx"
    onnx.save(small(["w"], location="values"), path)
    (tmp_path / "values").write_bytes(arrays()["w"].tobytes())
    raised = []
    for create in (onnxruntime.InferenceSession, quark_numba.InferenceSession):
        options = options_with_files(others=arrays()["w"])
        quark_numba.register(options)
        with pytest.raises(Exception, match="values not found") as error:
            create(path, options)
        raised.append(error.type)
    assert raised[0] is raised[1]


@has_files_in_memory
def test_a_constant_in_a_file_in_memory():
    source = small(["w"], location="values")
    (w,) = (each for each in source.graph.initializer if each.name == "w")
    source.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=w))
    source.graph.initializer.remove(w)
    with pytest.raises(ModelError, match="node 'w' has a tensor in a file, and the session options have files in memory"):
        result_of(source, options_with_files(values=arrays()["w"]))


def test_the_folder_of_the_options_holds_for_paths(tmp_path):
    """The folder in the options holds for models with a path, from ONNX Runtime 1.28 on."""
    path, other = tmp_path / "m.onnx", tmp_path / "other"
    other.mkdir()
    onnx.save(small(["w"], location="values"), path)
    (tmp_path / "values").write_bytes(arrays(seed=8)["w"].tobytes())
    (other / "values").write_bytes(arrays(seed=9)["w"].tobytes())
    for how in ({}, {"cache": tmp_path / "cache"}, {"cache": tmp_path / "cache"}):
        for folder in (tmp_path, other):
            entry = {"model_external_initializers_file_folder_path": str(folder)}
            options = session_options(**entry)
            quark_numba.register(options)
            theirs = onnxruntime.InferenceSession(path, options).run(None, {"x": X})[0].tobytes()
            assert result_of(path, session_options(**entry), **how) == theirs


@pytest.mark.parametrize("place", ["initializer", "Constant", "subgraph", "Constant in a subgraph"])
def test_what_is_added_by_name_replaces_constants_everywhere(place):
    w = numpy_helper.from_array(arrays()["b"], "w")
    inner = [helper.make_node("Constant", [], ["w"], value=w)] if place.startswith("Constant") else []
    held = [] if inner else [w]
    nodes, initializers_of_graph = [*inner, "v = Pair (w, s, z)  y = Add (x, v)"], held
    scales = [numpy_helper.from_array(arrays()[name], name) for name in "sz"]
    if "subgraph" in place:
        graph = model(nodes, [], ["y"], initializers=held).graph
        branch = onnx.GraphProto()
        branch.CopyFrom(graph)
        del branch.input[:]
        nodes = [
            "f = Equal (n, four)  n = Size (x)",
            helper.make_node("If", ["f"], ["y"], then_branch=branch, else_branch=branch),
        ]
        initializers_of_graph = [numpy_helper.from_array(np.array(X.size), "four")]
    whole = model(nodes, [("x", "float32", [3, 4])], ["y"], initializers=[*initializers_of_graph, *scales])
    found = []
    for create in (onnxruntime.InferenceSession, quark_numba.InferenceSession):
        options = session_options()
        add_initializer(options, "w", arrays(seed=3)["b"])
        if create is onnxruntime.InferenceSession:
            quark_numba.register(options)
        found.append(create(whole.SerializeToString(), options).run(None, {"x": X})[0])
    np.testing.assert_array_equal(*found)
    assert not np.array_equal(found[0], quark_numba.InferenceSession(whole).run(None, {"x": X})[0])


@pytest.mark.parametrize(("number", "dtype"), [(17, np.uint8), (22, np.uint8), (1, np.float32)])
def test_types_that_numpy_lacks_are_found(number, dtype):
    """Added initializers of all types of ONNX Runtime."""
    tensor = TensorProto(name="w", data_type=number, dims=[2], raw_data=bytes(8 if number == 1 else 2 if number == 17 else 1))
    whole = model(["y = Identity (x)"], ["x"], ["y"], initializers=[tensor], domains=[])
    options = session_options()
    add_initializer(options, "w", np.ones(2, dtype), number)
    assert initializers.find_replacements(whole, options).names == {"w"}
    assert initializers.find_replacements(whole, session_options()) == options_of_sessions.NOTHING_REPLACED


def test_options_without_the_cpu_provider():
    """ONNX Runtime refuses the CPU provider alone with this entry. The probes have the providers of the session."""
    options = session_options(disable_cpu_ep_fallback="1")
    add_initializer(options, "b", arrays(seed=3)["b"])
    assert initializers.find_replacements(small(""), options, []).names == {"b"}


@pytest.mark.parametrize("names", ["", "w"])
def test_the_optimized_model_may_replace_the_original(names, tmp_path):
    """As in ONNX Runtime. What asks ONNX Runtime for the replaced initializers writes nothing there."""
    onnx.save(in_files(small(""), names), tmp_path / "m.onnx")
    options = options_with({name: arrays()[name] for name in names})
    options.optimized_model_filepath = str(tmp_path / "m.onnx")
    session = quark_numba.InferenceSession(tmp_path / "m.onnx", options)
    assert [each.name for each in session.get_outputs()] == ["y"]
    assert options.optimized_model_filepath == str(tmp_path / "m.onnx")


def test_profiles_of_others_stay(tmp_path, monkeypatch):
    """Another session may begin one while the options are probed, which leaves no profile and does not change them."""
    options = options_with({"w": arrays()["w"]})
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    probe, others = initializers.create_probe_session, []

    def while_another_begins(*arguments):
        others.append(tmp_path / f"profile of another {len(others)}")
        others[-1].touch()
        return probe(*arguments)

    monkeypatch.setattr(initializers, "create_probe_session", while_another_begins)
    session = quark_numba.InferenceSession(small(["w"]), options)
    session.end_profiling()
    assert others
    assert all(each.exists() for each in others)
    assert len(os.listdir(tmp_path)) == len(others) + 1
    assert options.enable_profiling


@pytest.mark.slow
def test_a_real_model():
    """All float initializers of the model are added in the place of files, so that nodes that take them are not folded."""
    whole = onnx.load(MODELS / "textline_cls_bf16.onnx")
    values = {each.name: numpy_helper.to_array(each) for each in whole.graph.initializer if each.data_type == TensorProto.FLOAT}
    with np.load(MODELS / "textline_cls_expected.npz") as file:
        theirs, ours = both(in_files(whole, values), values, file["x"], disable_quant_qdq="1")
    assert theirs == ours
