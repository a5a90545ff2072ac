"""The files that a model names, and the file that a model is in: every use reads what ONNX Runtime reads, and refuses all
else."""

import contextlib
import functools
import io
import os
import tempfile
import unittest.mock
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model, session, session_options
from text_graphs import text_model
from watched import Child

import quark_numba
from quark_numba import ModelError, cli
from quark_numba.library import build

pytestmark = [pytest.mark.compiled, pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")]

SECONDS = 300
VALUE, SECRET = 3.0, 7.0

# The numbers of rows, of 100 floats, of a tensor that is read at once, and of one that stays in its file.
SMALL, LARGE = 10, 200


def tensor(name, rows, entries):
    result = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[rows, 100], data_location=TensorProto.EXTERNAL)
    for key, value in entries:
        result.external_data.add(key=key, value=value)
    return result


def initializer(rows, entries):
    return {"initializers": [tensor("w", rows, entries)]}


def constant(rows, entries):
    return {"nodes": [helper.make_node("Constant", [], ["w"], value=tensor("w", rows, entries))]}


def subgraph(rows, entries):
    output = helper.make_tensor_value_info("v", TensorProto.FLOAT, None)
    identity = helper.make_node("Identity", ["u"], ["v"])
    branch = helper.make_graph([identity], "branch", [], [output], [tensor("u", rows, entries)])
    return {
        "nodes": [helper.make_node("If", ["flag"], ["w"], then_branch=branch, else_branch=branch)],
        "initializers": [helper.make_tensor("flag", TensorProto.BOOL, [], [True])],
    }


def function(rows, entries):
    body = [helper.make_node("Constant", [], ["fw"], value=tensor("w", rows, entries))]
    made = helper.make_function("local", "F", [], ["fw"], body, [helper.make_opsetid("", 21)])
    return {"nodes": [helper.make_node("F", [], ["w"], domain="local")], "functions": [made]}


def model_with(place, rows, entries):
    """Return a model of y = x + w, with w quantized and dequantized."""
    parts = place(rows, entries)
    nodes = [*parts.get("nodes", ()), "d = Pair (w, s, z)  y = Add (d, x)"]
    scales = [helper.make_tensor("s", TensorProto.FLOAT, [], [0.25]), helper.make_tensor("z", TensorProto.INT8, [], [0])]
    initializers = [*scales, *parts.get("initializers", ())]
    result = model(nodes, [("x", "float32", [])], ["y"], initializers=initializers, domains=["com.amd.quark", "local"])
    result.functions.extend(parts.get("functions", ()))
    return result


def make_folder(top, rows):
    """Make the folder of the model, `top`/m, and files outside of it."""
    folder = top / "m"
    (folder / "sub").mkdir(parents=True)
    (top / "out").mkdir()
    values, secret = (np.full((rows, 100), value, np.float32).tobytes() for value in (VALUE, SECRET))
    files = {"w": values, "sub/w": values, "linked": values, "two": secret + values, "long": values + secret, "empty": b""}
    files["../secret"] = secret
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to(top / "secret")
    (folder / "inner").symlink_to("w")
    (folder / "folder").symlink_to(top)
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    (folder / "inner folder").symlink_to("sub")
    os.link(folder / "linked", top / "out" / "other name")
    os.mkfifo(folder / "fifo")
    return folder


READ = {
    "a name": [("location", "w")],
    "./": [("location", "./w")],
    "a folder": [("location", "sub/w")],
    "a longer file": [("location", "long")],
    "an offset": [("location", "two"), ("offset", "{n}"), ("length", "{n}")],
    "the last offset": [("location", "two"), ("offset", "0"), ("offset", "{n}")],
    "length 0": [("location", "two"), ("offset", "{n}"), ("length", "0")],
    "a link": [("location", "inner")],
    "a hard link": [("location", "linked")],
    "a link to a folder": [("location", "inner folder/w")],
}
REFUSED = {
    **{name: [("location", name)] for name in ("../secret", "sub/../../secret", "{top}/secret", "{top}/m/w", "/dev/zero")},
    **{name: [("location", name)] for name in ("link", "folder/secret", "folder/m/../secret", "fifo", "zero", "loop", "sub")},
    **{name: [("location", name)] for name in ("", ".", "missing", "w/x", "a\0b", "empty", "/proc/self/mem")},
    "the last location": [("location", "w"), ("location", "../secret")],
    **{f"offset {k}": [("location", "w"), ("offset", k)] for k in ("-1", "x", "1e3", "4", "{n}", "9" * 30, "9" * 5000)},
    **{f"offset {k}": [("location", "w"), ("offset", k)] for k in ("\u0660", "0_0", " 0", "+0")},
    **{f"offset {k}, length": [("location", "w"), ("offset", k), ("length", "{n}")] for k in ("4", str(2**63), str(2**64))},
    **{f"length {k}": [("location", "two"), ("length", k)] for k in ("-1", "x", "4", "{m}", str(2**64))},
    "no location": [("length", "{n}")],
}


RUN_AS_WRITTEN = {"command run", "command run --optimize", "command profile"}


def y_of(made):
    return made.run(None, {"x": np.zeros((), np.float32)})[0]


options = functools.partial(session_options, threads=1)


def optimized(path):
    return y_of(session(quark_numba.optimize(path), threads=1))


def optimized_in_a_file(path):
    out = path.parents[1] / "out" / "o.onnx"
    quark_numba.optimize(path, out)
    return y_of(session(out, threads=1))


def from_the_folder(path):
    given = options(model_external_initializers_file_folder_path=str(path.parent))
    return y_of(quark_numba.InferenceSession(path.read_bytes(), given))


def with_cache(path):
    return y_of(quark_numba.InferenceSession(path, options(), cache=path.parents[1] / "cache"))


def evaluated(path, reference=None):
    seen = []

    def metric(outputs, reference_outputs, feed):
        seen.append((reference_outputs if reference else outputs)["y"])
        return 0

    models = (reference, path) if reference else (path, None)
    quark_numba.evaluate(models[0], [{"x": np.zeros((), np.float32)}], models[1], metric=metric)
    return seen[0]


def as_reference(path):
    onnx.save(text_model("(float x) => (float[] y) { y = Identity (x) }"), path.parents[1] / "plain.onnx")
    return evaluated(path, path.parents[1] / "plain.onnx")


def analyzed(path):
    quark_numba.analyze(path, [{"x": np.zeros((), np.float32)}])


class ReadError(Exception):
    """Raised when all models of a library are read."""


def in_a_library(path, optimize=True):
    with unittest.mock.patch.object(build, "_compile", side_effect=ReadError), contextlib.suppress(ReadError):
        quark_numba.build_library(path, path.parents[1] / "out" / "library", optimize=optimize)


def by_command(*words):
    def use(path):
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            code = cli.main([each.format(path, path.parents[1] / "out" / "c.onnx") for each in words])
        if code:
            assert code == 1
            assert "\nerror: " in f"\n{errors.getvalue()}"
            raise ModelError(errors.getvalue())

    return use


FROM_THE_FOLDER = "InferenceSession, the folder of the options"
USES = {
    "optimize": optimized,
    "optimize, to a file": optimized_in_a_file,
    "InferenceSession": lambda path: y_of(quark_numba.InferenceSession(path, options())),
    "InferenceSession, cache": lambda path: y_of(
        quark_numba.InferenceSession(path, options(), cache=path.parents[1] / "cache")
    ),
    FROM_THE_FOLDER: from_the_folder,
    "evaluate": evaluated,
    "evaluate, reference": as_reference,
    "analyze": analyzed,
    "build_library": in_a_library,
    "build_library, as written": lambda path: in_a_library(path, optimize=False),
    "command run": by_command("run", "{}", "--runs", "1"),
    "command run --optimize": by_command("run", "{}", "--runs", "1", "--optimize"),
    "command optimize": by_command("optimize", "{0}", "{1}"),
    "command profile": by_command("profile", "{}", "--runs", "1"),
}


def try_uses(argument, found):
    """Try each use of a model with a tensor in a file, or of a path that is not a file. See `watched.Child`."""
    if isinstance(argument, str):
        yield from try_a_path(argument, found)
        return
    if len(argument) == 2:
        yield from try_links(*argument, found)
        return
    place, rows, name = argument
    with tempfile.TemporaryDirectory() as top:
        folder = make_folder(Path(top), rows)
        path = folder / "m.onnx"
        n = rows * 400
        entries = [(key, value.format(top=top, n=n, m=n - 4)) for key, value in (READ | REFUSED)[name]]
        path.write_bytes(model_with(place, rows, entries).SerializeToString())
        # ONNX Runtime's checker refuses links in subgraphs, and these commands also run the model as it is written.
        is_refused = place is subgraph and name in ("a link", "a hard link", "a link to a folder")
        yield from uses_of(path, name in READ, found, RUN_AS_WRITTEN if is_refused else ())


def uses_of(path, is_read, found, left_out=()):
    for name, use in USES.items():
        if name in left_out:
            continue
        yield name
        try:
            y = use(path)
        except Exception as error:
            is_clean = isinstance(error, ModelError) or type(error).__module__.startswith("onnxruntime")
            if is_read or not is_clean:
                found.append(f"{name}: {type(error).__name__}: {error}")
        else:
            if not is_read:
                found.append(f"{name}: no error")
            elif y is not None and not (y == VALUE).all():
                found.append(f"{name}: {np.unique(y)}")


# Where the model is, where its tensors are (both through links in the folder that users open), and whether they belong to the
# model.
LINKED = {
    "the hub's cache": ("blobs/m", "blobs/w", True),
    "tensors beside the model": ("blobs/m", "blobs/deep/w", True),
    "the folder of the link": ("blobs/m", "snapshots/1/deep/w", True),
    "elsewhere": ("blobs/m", "others/w", False),
    "above": ("blobs/m", "w", False),
    "a folder whose name begins alike": ("blobs/m", "blobs2/w", False),
    "only tensors": ("snapshots/1/m", "blobs/w", False),
}


def try_links(name, rows, found):
    model_at, tensors_at, is_read = LINKED[name]
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top, "hub", "snapshots", "1")
        (folder / "sub").mkdir(parents=True)
        (folder.parent / "out").mkdir()
        for link, place in ((folder / "m.onnx", model_at), (folder / "sub" / "w.data", tensors_at)):
            file = Path(top, "hub", place)
            file.parent.mkdir(parents=True, exist_ok=True)
            content = model_with(initializer, rows, [("location", "sub/w.data")]).SerializeToString()
            file.write_bytes(content if link.suffix == ".onnx" else np.full((rows, 100), VALUE, np.float32).tobytes())
            link.symlink_to(os.path.relpath(file, link.parent))
        # The only folder of a model in memory is that of the options.
        is_here = tensors_at.startswith("snapshots/1/")
        yield from uses_of(folder / "m.onnx", is_read, found, () if is_here or not is_read else {FROM_THE_FOLDER})


@pytest.fixture(scope="module")
def child():
    with Child(try_uses, SECONDS) as started:
        yield started


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("place", [initializer, constant, subgraph, function])
@pytest.mark.parametrize("entries", [*READ, *REFUSED])
@pytest.mark.covering("exhaustive")
@pytest.mark.by_default(1)
def test_tensors_in_files(entries, place, rows, child):
    assert child.call((place, rows, entries)) == []


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("name", LINKED)
@pytest.mark.covering("exhaustive")
@pytest.mark.by_default(1)
def test_links_to_models_and_tensors(name, rows, child):
    """As in ONNX Runtime, tensors may be in the folder of the path, or in that of the file to which a link there leads."""
    assert child.call((name, rows)) == []


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.slow
def test_why_a_file_is_refused(rows, tmp_path):
    folder = make_folder(tmp_path, rows)
    reasons = {
        "link": "'link' leads through a link to a file outside of the folder of the model; expected a file in it",
        "folder/../w": "'folder/../w' leads through a link to a file outside of the folder of the model; expected a file in it",
        f"{folder}/w": f"'{folder}/w' is an absolute path; expected a file in the folder of the model",
        "sub": "'sub' is a folder; expected a file",
        "../secret": "'../secret' is outside of the folder of the model; expected a file in it",
        "missing": "missing: No such file or directory",
        "w/x": "w/x: Not a directory",
    }
    for location, reason in reasons.items():
        (folder / "m.onnx").write_bytes(model_with(initializer, rows, [("location", location)]).SerializeToString())
        with pytest.raises(ModelError) as error:
            quark_numba.optimize(folder / "m.onnx")
        assert str(error.value) == f"{folder / 'm.onnx'}: tensor w: {reason}"


def try_a_path(kind, found):
    with tempfile.TemporaryDirectory() as top:
        path = Path(top, "m", "m.onnx")
        path.parent.mkdir()
        (path.parents[1] / "out").mkdir()
        if kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(kind)
        yield from uses_of(path, False, found, {FROM_THE_FOLDER})


@pytest.mark.parametrize("kind", ["fifo", "/dev/null", "/dev/zero", "loop", "missing", "."])
@pytest.mark.slow
def test_models_that_are_no_files(kind, child):
    assert child.call(kind) == []
