"""Runs of models over data with execution providers other than the CPU provider. The plain build of ONNX Runtime has one that
computes nothing, so that all nodes run on the CPU."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_models import model
from other_providers import CPU, OTHERS, other_provider  # noqa: F401
from rewritten_models import floats, pair, scale_and_zero_point

import quark_numba
from quark_numba import Execution, ModelError
from quark_numba.ort.providers import providers_of

pytestmark = [pytest.mark.compiled, pytest.mark.usefixtures("other_provider")]

SHORT = OTHERS[0].removesuffix("ExecutionProvider").lower()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return the path of a quantized model, and that of a batch for it."""
    folder = tmp_path_factory.mktemp("small")
    rng = np.random.default_rng(7)
    nodes = [*pair(y="d"), "t = MatMul (d, w)", *pair("t", "codes_of_t", "y")]
    initializers = [*scale_and_zero_point("int8", 0.03, 1), *floats(w=rng.normal(0, 0.3, (4, 3)))]
    onnx.save(model(nodes, [("x", "float32", [2, 4])], ["y"], initializers=initializers), folder / "m.onnx")
    np.savez(folder / "x.npz", x=rng.normal(0, 1, (2, 4)).astype(np.float32))
    return str(folder / "m.onnx"), str(folder / "x.npz")


@pytest.fixture
def created(monkeypatch):
    """Return a list of the sessions that are created: their providers, and whether their models have custom operators."""
    sessions, create = [], onnxruntime.InferenceSession.__init__

    def spy(self, source, options=None, providers=None, *arguments, **named):
        create(self, source, options, providers, *arguments, **named)
        proto = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)
        sessions.append((self.get_providers(), any(node.domain for node in proto.graph.node)))

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", spy)
    return sessions


@pytest.mark.parametrize("providers", [OTHERS, [SHORT], [SHORT.upper(), "cpu"]])
def test_evaluate(small, providers, created):
    expected = quark_numba.evaluate(*small)
    assert created == [(CPU, True), (CPU, False)]
    created.clear()
    assert quark_numba.evaluate(*small, execution=Execution(providers=providers)) == expected
    assert created == [(OTHERS, False)] * 2


def test_analyze(small, created):
    expected = quark_numba.analyze(*small, sweep=True)
    created.clear()
    assert quark_numba.analyze(*small, sweep=True, execution=Execution(providers=OTHERS)) == expected
    assert (CPU, True) not in created
    assert created[-1] == (OTHERS, False)  # of the whole model


@pytest.mark.slow
def test_workers(small):
    pytest.importorskip("distributed", exc_type=ImportError)
    for run in (quark_numba.evaluate, quark_numba.analyze):
        assert run(*small, execution=Execution(providers=[SHORT], workers=1)) == run(*small)


def test_other_machines_may_have_other_providers():
    execution = Execution(providers=["nonsense"], scheduler="tcp://127.0.0.1:9")
    assert execution.providers_here is None


def test_interrupted_runs_are_not_continued_on_other_providers(small, tmp_path):
    quark_numba.evaluate(*small, execution=Execution(resume=tmp_path / "kept"))
    with pytest.raises(ModelError, match="kept"):
        quark_numba.evaluate(*small, execution=Execution(resume=tmp_path / "kept", providers=OTHERS))


def test_providers_that_do_not_start(small, monkeypatch):
    """ONNX Runtime continues without a provider that does not start; the package refuses it."""
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda self: CPU)
    with pytest.raises(ModelError, match=rf"the model: {OTHERS[0]} did not start"):
        quark_numba.evaluate(*small, execution=Execution(providers=OTHERS))


def test_names():
    assert providers_of(None) == CPU
    assert providers_of([SHORT, "CPU", OTHERS[0]]) == OTHERS
    for wrong, message in {"AMDExecutionProvider": "AMDExecutionProvider", SHORT[:2]: SHORT[:2]}.items():
        with pytest.raises(ValueError, match=rf"^providers: {message}; this build of ONNX Runtime has .*{OTHERS[0]}"):
            providers_of([SHORT, wrong])


def test_commands(small, terminal, created):
    path, data = small
    words = ["--data", data, "--providers", f"{SHORT},cpu"]
    report = terminal.report("run", path, "--reference", path, *words, "--runs", "1")
    assert report["providers"] == OTHERS
    assert report["left"] == []
    assert report["reference"]["outputs"][0]["largest_difference"] == 0
    assert {*report} - {*terminal.report("run", path, "--data", data, "--runs", "1")} >= {"left"}
    assert f"providers: {', '.join(OTHERS)};" in " ".join(terminal.text("run", path, *words, "--runs", "1").split())
    created.clear()
    report = terminal.report("profile", path, *words, "--runs", "1", "--qdq", "float")
    assert report["left"] == []
    assert "before" not in report
    assert created[-1] == (OTHERS, False)
    for command in ("evaluate", "analyze"):
        assert terminal.report(command, path, *words) == terminal.report(command, path, "--data", data)


@pytest.mark.parametrize("command", ["run", "profile", "evaluate", "analyze"])
def test_wrong_providers(command, small, terminal):
    path, data = small
    for names, message in [("nonsense", r"nonsense; this build of ONNX Runtime has"), ("cpu,", "it is empty")]:
        assert message in terminal.refusal(command, path, "--data", data, "--providers", names)


def test_what_is_not_for_other_providers(small, terminal):
    words = ["run", small[0], "--optimize", "--runs", "1", "--providers"]
    assert "--optimize: not allowed with other --providers" in terminal.refusal(*words, SHORT)
    assert "optimized" in terminal.report(*words, "cpu")
