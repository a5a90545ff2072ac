"""InferenceSession: the files that it reads, and the behaviour that it keeps of ONNX Runtime's session."""

import gc
import os
import pickle
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import processes
import pytest
from onnx import TensorProto, external_data_helper, helper
from onnx_models import model, session_options
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba import ModelError, optimize
from quark_numba.models import model_files
from quark_numba.rewriting.optimize import has_nodes_to_rewrite

pytestmark = pytest.mark.compiled

VALUES = np.array([1.5, -2.25, 3.0], np.float32)
NODES = "d = Pair (w, s, z)  y = Add (x, d)"


def constant_model(location=None, nodes=NODES, functions="", **constants):
    """Return a model of y = x + w with w quantized and dequantized. With a location, w is in a file."""
    constants = {"w": VALUES, "s": np.float32(0.25), "z": np.int8(0)} | constants
    made = text_model(f"(float[3] x) => (float[] y) {{ {nodes} }} {functions}", **constants)
    if location is not None:
        w = made.graph.initializer[0]
        external_data_helper.set_external_data(w, location, offset=0, length=VALUES.nbytes)
        w.ClearField("raw_data")
    return made


def result(session):
    return session.run(None, {"x": np.zeros(3, np.float32)})[0].tolist()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a file of values."""
    (tmp_path / "values").write_bytes(VALUES.tobytes())
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("location", ["values", "/etc/passwd", "../values", "./values"])
def test_tensors_in_files_need_a_folder(folder, location):
    """The author of a model must not choose which files of the user's machine are read."""
    whole = constant_model(location)
    for use in (
        lambda: quark_numba.InferenceSession(whole),
        lambda: quark_numba.InferenceSession(whole.SerializeToString()),
        lambda: optimize(whole),
    ):
        with pytest.raises(ModelError, match=f"tensor w is in the file '{location}', and a model without a path"):
            use()


def test_tensors_of_attributes_subgraphs_and_functions_need_one_too(folder):
    tensor = constant_model("values").graph.initializer[0]
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    output = helper.make_tensor_value_info("c", TensorProto.FLOAT, None)
    branch = helper.make_graph([constant], "branch", [], [output])
    initializers = helper.make_graph([], "branch", [], [output], [tensor])
    function = model([], [], [])
    function.functions.append(helper.make_function("local", "F", [], ["c"], [constant], [helper.make_opsetid("", 21)]))
    for whole in (
        model([constant], [], ["c"]),
        model([helper.make_node("If", ["b"], ["y"], then_branch=branch, else_branch=branch)], ["b"], ["y"]),
        model([helper.make_node("If", ["b"], ["y"], then_branch=initializers, else_branch=branch)], ["b"], ["y"]),
        function,
    ):
        with pytest.raises(ModelError, match="tensor w is in the file 'values'"):
            optimize(whole)


@pytest.mark.parametrize("location", ["/etc/passwd", "../values", "other/../../values", "link", "missing"])
def test_files_elsewhere_are_refused(folder, location):
    """Files outside of the model's folder, also through links, are refused, as in onnx."""
    inner = folder / "other"
    (inner / "link").symlink_to("/etc/passwd")
    (inner / "m.onnx").write_bytes(constant_model(location).SerializeToString())
    for use in (optimize, quark_numba.InferenceSession):
        with pytest.raises(ModelError, match="tensor w: "):
            use(inner / "m.onnx")
    options = session_options(model_external_initializers_file_folder_path=str(inner))
    with pytest.raises(ModelError, match="tensor w: "):
        quark_numba.InferenceSession(constant_model(location), options)


def test_the_folder_of_the_session_options(folder):
    """Files are read from the folder in the session options, and not from the current folder."""
    (folder / "other" / "values").write_bytes((2 * VALUES).tobytes())
    for source in (constant_model("values"), constant_model("values").SerializeToString()):
        options = session_options(model_external_initializers_file_folder_path=str(folder / "other"))
        assert result(quark_numba.InferenceSession(source, options)) == (2 * VALUES).tolist()
    assert external_data_helper.uses_external_data(constant_model("values").graph.initializer[0])


def test_a_path_has_its_folder(folder):
    (folder / "m.onnx").write_bytes(constant_model("values").SerializeToString())
    assert result(quark_numba.InferenceSession("m.onnx")) == VALUES.tolist()
    assert result(quark_numba.InferenceSession(folder / "m.onnx")) == VALUES.tolist()


def test_added_initializers_replace_those_of_the_model():
    """Added initializers replace those of the model as in ONNX Runtime, although the nodes that take them would be folded."""
    for name, values, expected in (("w", 2 * VALUES, 2 * VALUES), ("s", np.array(0.5, np.float32), [1.5, -2.0, 3.0])):
        options = onnxruntime.SessionOptions()
        options.add_initializer(name, value := onnxruntime.OrtValue.ortvalue_from_numpy(values))
        session = quark_numba.InferenceSession(constant_model(), options)
        assert result(session) == np.asarray(expected).tolist()
        del value


def test_the_options_stay_as_they_are(tmp_path):
    """The sessions that find the replaced initializers do not change the options, leave no profile and write no model."""
    options = session_options("ENABLE_BASIC")
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    options.optimized_model_filepath = str(tmp_path / "written.onnx")
    session = quark_numba.InferenceSession(constant_model(), options)
    result(session)
    session.end_profiling()
    assert options.enable_profiling
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert len([each for each in os.listdir(tmp_path) if each.startswith("profile")]) == 1
    assert "Add" in [node.op_type for node in onnx.load(tmp_path / "written.onnx").graph.node]


@pytest.mark.slow
def test_threads_share_options():
    options = onnxruntime.SessionOptions()
    before = options.graph_optimization_level
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: quark_numba.InferenceSession(constant_model(), options), range(100)))
    assert options.graph_optimization_level == before


def test_initializers_of_any_name():
    whole = constant_model()
    renamed = {"w": "_axes", "s": "__shape0", "z": "shape_0"}
    for each in whole.graph.initializer:
        each.name = renamed[each.name]
    for node in whole.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    assert result(quark_numba.InferenceSession(whole)) == VALUES.tolist()


def test_a_handlers_exception_is_not_taken_for_a_faulty_model(tmp_path, monkeypatch):
    """The handler's exception is raised as it is, from any place, even if another exception wraps it."""

    def handler(*_):
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGTERM, handler)

    def interrupted(*_, **__):
        try:
            signal.raise_signal(signal.SIGTERM)
        except TimeoutError as error:
            raise ValueError("wrapped") from error

    path = tmp_path / "m.onnx"
    onnx.save(constant_model(), path)
    try:
        for owner, name in ((onnx, "load"), (onnx_ir, "from_proto"), (onnx_ir, "to_proto"), (onnx, "save")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, interrupted)
                with pytest.raises(TimeoutError, match="too long"):
                    model_files.save(optimize(path), tmp_path / "out.onnx")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_optimized_is_not_optimized_again():
    """Any other model is optimized, also if the package's nodes are only in a subgraph or a function. A model with
    other subgraphs and functions is not."""
    source = constant_model()
    branch = "graph = branch () => (float[] v) { d = Pair (w, s, z)  v = Add (x, d) }"
    in_branch = constant_model(nodes=f"y = If (flag) <then_branch: {branch}, else_branch: {branch}>", flag=np.array(True))
    function = f'<domain: "local", opset_import: ["" : 21]> F (x, w, s, z) => (y) {{ {NODES} }}'
    in_function = constant_model(nodes="y = local.F (x, w, s, z)", functions=function)
    for each in (source, in_branch, in_function):
        assert has_nodes_to_rewrite(each)
        assert result(quark_numba.InferenceSession(each)) == [1.5, -2.25, 3.0]
    plain = "graph = branch () => (float[] v) { v = Add (x, w) }"
    plain_function = '<domain: "local", opset_import: ["" : 21]> F (x, w) => (y) { y = Add (x, w) }'
    for nodes, functions in (
        (f"y = If (flag) <then_branch: {plain}, else_branch: {plain}>", ""),
        ("y = local.F (x, w)", plain_function),
    ):
        each = constant_model(nodes=nodes, functions=functions, flag=np.array(True))
        assert not has_nodes_to_rewrite(each)
        assert result(quark_numba.InferenceSession(each)) == [1.5, -2.25, 3.0]
    assert not has_nodes_to_rewrite(optimize(source))
    assert result(quark_numba.InferenceSession(optimize(source))) == [1.5, -2.25, 3.0]


def test_it_is_one_of_onnx_runtimes(tmp_path):
    assert issubclass(quark_numba.InferenceSession, onnxruntime.InferenceSession)
    for missing in (tmp_path / "missing.onnx", tmp_path / "missing.ort"):
        with pytest.raises(FileNotFoundError, match=f"{missing.name}: No such file or directory"):
            quark_numba.InferenceSession(missing)
    with pytest.raises(TypeError, match="path_or_bytes is a int; expected a path, bytes or"):
        quark_numba.InferenceSession(3)


def test_models_in_onnx_runtimes_own_format(tmp_path):
    options = session_options(save_model_format="ORT")
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    plain = text_model("(float[3] x) => (float[] y) { y = Add (x, x) }")
    onnxruntime.InferenceSession(plain.SerializeToString(), options)
    x = np.arange(3, dtype=np.float32)
    for source in (tmp_path / "m.ort", (tmp_path / "m.ort").read_bytes()):
        assert quark_numba.InferenceSession(source).run(None, {"x": x})[0].tolist() == [0, 2, 4]
    with pytest.raises(ModelError, match=r"m\.ort: a model in ONNX Runtime's own format; expected an ONNX model"):
        optimize(tmp_path / "m.ort")


def test_providers_of_a_large_model(monkeypatch, tmp_path):
    """ONNX Runtime reads the files again when providers are set."""
    monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 10)
    onnx.save(constant_model(), tmp_path / "m.onnx")
    session = quark_numba.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    session.set_providers(["CPUExecutionProvider"])
    assert result(session) == VALUES.tolist()
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(session)
    session = quark_numba.InferenceSession(constant_model(), providers=["CPUExecutionProvider"])
    with pytest.raises(RuntimeError, match="the session was made from a large model in memory"):
        session.set_providers(["CPUExecutionProvider"])
    assert result(session) == VALUES.tolist()


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.by_default(1)
def test_what_others_read_of_a_session(is_large, monkeypatch, tmp_path):
    """Hugging Face's optimum, for one, reads the path of the model, and copies the file with its session."""
    if is_large:
        monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 10)
    source = constant_model()
    source.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [3]))
    source.producer_name, source.producer_version, source.model_version = "a quantizer", "2", 3
    source.domain, source.doc_string, source.graph.doc_string = "example", "text", "of a graph"
    helper.set_model_props(source, {"author": "nobody"})
    path = tmp_path / "m.onnx"
    onnx.save(source, path)
    options = session_options()
    quark_numba.register(options)
    plain = onnxruntime.InferenceSession(path, options)
    for cache in (False, tmp_path / "cache", tmp_path / "cache"):
        session = quark_numba.InferenceSession(path, cache=cache)
        assert (session._model_path, session._model_bytes) == (plain._model_path, plain._model_bytes) == (str(path), None)
        session.set_providers(["CPUExecutionProvider"])
        assert (session._model_path, session._model_bytes) == (str(path), None)
        assert facts_of(session) == facts_of(plain)
        assert result(session) == VALUES.tolist()
    assert quark_numba.InferenceSession(source)._model_path is None


def facts_of(session):
    meta = session.get_modelmeta()
    read = ("description", "domain", "graph_description", "graph_name", "producer_name", "version")
    values = (*session.get_inputs(), *session.get_outputs(), *session.get_overridable_initializers())
    facts = [(value.name, value.type, value.shape) for value in values]
    return facts, [getattr(meta, name) for name in read], meta.custom_metadata_map


@pytest.mark.parametrize("keep", [False, True])
def test_options_that_name_their_providers(keep, tmp_path):
    """ONNX Runtime warns of providers that are given beside them. Here each warning is an error."""
    options = session_options()
    options.add_provider("CPUExecutionProvider", {})
    onnx.save(constant_model(), tmp_path / "m.onnx")
    for _ in range(2):
        session = quark_numba.InferenceSession(tmp_path / "m.onnx", options, cache=tmp_path / "cache" if keep else False)
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert result(session) == VALUES.tolist()


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.by_default(1)
def test_the_files_of_a_large_model(monkeypatch, tmp_path, given):
    """They are removed as soon as the session has opened them; on Windows, with the session."""
    monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 10)
    if not given:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    w = np.ones((100, 1000), np.float32)  # large enough to be read in place
    whole = text_model("(float[1, 100] x) => (float[] y) { y = MatMul (x, w) }", w=w)
    session = quark_numba.InferenceSession(whole, temporary_folder=tmp_path if given else None)
    assert bool(list(tmp_path.iterdir())) == (sys.platform == "win32")
    (y,) = session.run(None, {"x": np.ones((1, 100), np.float32)})
    assert (y == 100).all()
    del session
    gc.collect()
    assert not list(tmp_path.iterdir())


QDQ = "q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)"


def refused_model(nodes=QDQ):
    return text_model(f"(float[3] x) => (float[] y) {{ {nodes}  y = Missing (x) }}", s=np.float32(0.25), z=np.int8(0))


@pytest.mark.parametrize(
    ("source", "given", "level", "tries"),
    [
        ("missing.onnx", {}, "ENABLE_ALL", 0),
        (b"no model", {}, "ENABLE_ALL", 0),
        (refused_model(nodes=""), {}, "ENABLE_ALL", 1),
        (refused_model(), {"provider_options": [{}]}, "ENABLE_ALL", 1),
        (refused_model(), {"qdq": "float"}, "ENABLE_ALL", 1),
        (refused_model(), {"qdq": "onnxruntime"}, "DISABLE_ALL", 1),
        (refused_model(), {"qdq": "onnxruntime"}, "ENABLE_ALL", 2),
    ],
)
def test_only_what_fusions_may_cause_is_tried_again(source, given, level, tries, monkeypatch, capfd):
    count, create = [], onnxruntime.InferenceSession.__init__
    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", lambda *a, **b: (count.append(a[0]), create(*a, **b))[1])
    with pytest.raises(Exception, match=r"missing\.onnx|not an ONNX model|Missing|provider_options"):
        quark_numba.InferenceSession(source, session_options(level), **given)
    assert len([made for made in count if isinstance(made, quark_numba.InferenceSession)]) == tries
    assert "already exists" not in capfd.readouterr().err


def test_onnx_runtime_warns_of_no_entry(tmp_path, capfd):
    """It warns of configuration entries that are set once more."""
    onnx.save(constant_model(), tmp_path / "m.onnx")
    options = session_options()
    options.add_session_config_entry("session.disable_quant_qdq", "0")
    options.add_session_config_entry("optimization.disable_specified_optimizers", "GeluFusion")
    for named in ({}, {"qdq": "onnxruntime"}, {"cache": tmp_path}, {"cache": tmp_path}, {"qdq": "float"}):
        session = quark_numba.InferenceSession(tmp_path / "m.onnx", options, **named)
        session.set_providers(["CPUExecutionProvider"])
    drop_in = onnxruntime.SessionOptions()
    for qdq in ("auto", "onnxruntime", "float", "float", "auto"):
        quark_numba.register(drop_in, qdq=qdq)
        drop_in.register_custom_ops_library(quark_numba.get_library_path())
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), drop_in)
    assert "already exists" not in capfd.readouterr().err


@pytest.mark.skipif(sys.platform != "win32", reason="elsewhere than on Windows open files can be removed")
def test_temporary_files_that_are_in_use_are_removed_at_the_end(tmp_path):
    processes.run(
        """
from quark_numba.models.temporary import temporary_folder
with temporary_folder() as folder:
    file = open(os.path.join(folder, "f"), "w")
assert os.path.exists(folder)
file.close()
""",
        TEMP=str(tmp_path),
        TMP=str(tmp_path),
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_names_of_arguments():
    """ONNX Runtime ignores arguments that it does not know, so that a wrong name would have no effect."""
    source = str(MODELS / "textline_cls_a8w8.onnx")
    with pytest.raises(TypeError, match="InferenceSession has no argument keep_weights, quantize"):
        quark_numba.InferenceSession(source, quantize=True, keep_weights=True)
    with pytest.raises(ValueError, match="qdq is True; expected one of 'auto', 'float', 'onnxruntime'"):
        quark_numba.InferenceSession(source, qdq=True)
    with pytest.raises(ValueError, match="qdq is 'int'"):
        quark_numba.optimize(source, qdq="int")
    quark_numba.InferenceSession(source, enable_fallback=0, disabled_optimizers=["NchwcTransformer"])
