"""Models that InferenceSession keeps for later sessions (`cache`)."""

import dataclasses
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from cached_models import EXPECTED, entry_of, kept_result, result, write
from onnx_models import feeds_of, model
from paths import MODELS

import quark_numba
from quark_numba import ModelError, catalog, cli
from quark_numba.compiling import sources, user_folder
from quark_numba.errors import EnvironmentVariableError
from quark_numba.models import file_states, model_files
from quark_numba.rewriting import fusions
from quark_numba.session import build, cache_keys, initializers, model_cache
from quark_numba.session.model_cache import ModelCache

pytestmark = pytest.mark.compiled


@pytest.fixture(params=["small", "large"])
def path(request, tmp_path, monkeypatch):
    """A model of y = x + w with w quantized and dequantized, in memory or in files."""
    if request.param == "large":
        monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 10)
    write(tmp_path / "m.onnx", 1)
    return tmp_path / "m.onnx"


@pytest.fixture
def folder(path):
    """The folder in which the tests keep the model."""
    return path.parent / "cache"


@pytest.fixture
def builds(monkeypatch):
    """The models that were built, and not found in the cache."""
    made = []
    optimized = build.rewrite_model

    def counted(*arguments, **named):
        made.append(arguments)
        return optimized(*arguments, **named)

    monkeypatch.setattr(build, "rewrite_model", counted)
    return made


@pytest.mark.by_default(1)
def test_the_command_and_sessions_share_models(path, folder, builds):
    assert cli.main(["run", str(path), "--optimize", "--runs", "1", "--cache", str(folder)]) == 0
    assert kept_result(path) == EXPECTED
    assert len(builds) == 1


@pytest.mark.by_default(1)
def test_a_model_is_built_once(path, folder, builds):
    for _ in range(3):
        session = quark_numba.InferenceSession(path, cache=folder)
        assert result(session) == EXPECTED
        session.set_providers(["CPUExecutionProvider"])
        assert result(session) == EXPECTED
    assert len(builds) == 1
    assert {each.name for each in folder.iterdir()} - {entry_of(folder).name} == {
        each.name for each in folder.glob("*.digests")
    }


@pytest.mark.by_default(1)
def test_each_model_and_each_option_has_its_own(path, folder, builds):
    quark_numba.InferenceSession(path, cache=folder)
    quark_numba.InferenceSession(path, cache=folder, keep_quantized_weights=True)
    quark_numba.InferenceSession(path, cache=folder, blocked_layout=False)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    quark_numba.InferenceSession(path, options, cache=folder)
    options = onnxruntime.SessionOptions()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(2, np.float32))
    options.add_initializer("s", value)  # which does not keep it
    assert result(quark_numba.InferenceSession(path, options, cache=folder)) == [0, 0, 2, 4, 4, 4, 6]
    assert len(builds) == 5
    shutil.copytree(path.parent, path.parent / "copy", ignore=lambda folder, names: ["cache", "copy"])
    assert result(quark_numba.InferenceSession(path.parent / "copy" / "m.onnx", cache=folder)) == EXPECTED
    assert len(builds) == 5  # the content counts, and not the path


@pytest.mark.parametrize("changed", ["m.onnx", "weights"])
def test_a_model_that_was_changed_is_built_again(path, folder, builds, changed):
    quark_numba.InferenceSession(path, cache=folder)
    times = os.stat(path.with_name(changed))
    write(path, 2)
    os.utime(path.with_name(changed), ns=(times.st_atime_ns, times.st_mtime_ns))  # the inode's own time shows the change
    assert kept_result(path) == [0, 2, 4, 6, 8, 10, 12]
    assert len(builds) == 2


def test_a_model_that_is_replaced_while_it_is_read(path, folder, monkeypatch):
    """A model that is replaced while it is read is not kept under the digest of the new file."""
    find_replacements = initializers.find_replacements

    def replacing(*arguments):
        write(path, 2)
        return find_replacements(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(initializers, "find_replacements", replacing)
        with pytest.raises(ModelError, match="was changed while it was read"):
            quark_numba.InferenceSession(path, onnxruntime.SessionOptions(), cache=folder)
    assert kept_result(path) == [0, 2, 4, 6, 8, 10, 12]


def test_the_key_has_the_sources_of_the_kernels():
    kernels = {path.read_bytes() for path in Path(build.__file__).parents[1].rglob("arithmetic.py")}
    read = []
    content = sources.content

    def recorded(path):
        read.append(content(path))
        return read[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "content", recorded)
        sources.digest_of_package.__wrapped__()
    assert kernels
    assert kernels <= set(read)


def damage_content(entry):
    largest = max(entry.iterdir(), key=lambda each: each.stat().st_size)
    with open(largest, "r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(b"\x00\x01\x02\x03")


DAMAGES = {
    "content": damage_content,
    "shorter": lambda entry: os.truncate(max(entry.iterdir(), key=lambda each: each.stat().st_size), 100),
    "a file less": lambda entry: os.remove(entry / "model.onnx"),
    "no manifest": lambda entry: os.remove(entry / "kept.json"),
    "half a manifest": lambda entry: os.truncate(entry / "kept.json", 20),
    "another manifest": lambda entry: (entry / "kept.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
@pytest.mark.covering
@pytest.mark.by_default(3)
def test_a_damaged_entry_is_made_again(path, folder, builds, damage):
    quark_numba.InferenceSession(path, cache=folder)
    entry = entry_of(folder)
    DAMAGES[damage](entry)
    for _ in range(2):
        assert kept_result(path) == EXPECTED
    assert len(builds) == 2
    assert entry_of(folder) == entry


@pytest.mark.by_default(1)
def test_a_copied_folder_is_checked_and_used(path, folder, builds):
    quark_numba.InferenceSession(path, cache=folder)
    shutil.copytree(folder, path.parent / "copy")
    quark_numba.InferenceSession(path, cache=path.parent / "copy")
    assert len(builds) == 1
    manifest = json.loads((entry_of(path.parent / "copy") / "kept.json").read_text())
    assert manifest["files"]["model.onnx"][0] == file_states.state_of(entry_of(path.parent / "copy") / "model.onnx")


@pytest.mark.by_default(1)
def test_the_models_used_least_recently_go_first(path, folder, monkeypatch):
    monkeypatch.setattr(cache_keys, "_RACY_NS", 10**12)  # keep no digests, and so no kernels: all entries have one size
    for number, name in enumerate(("a", "b", "c")):
        (path.parent / name).mkdir()
        write(path.parent / name / "m.onnx", number + 1)
        quark_numba.InferenceSession(path.parent / name / "m.onnx", cache=folder)
        time.sleep(0.02)
    quark_numba.InferenceSession(path.parent / "a" / "m.onnx", cache=folder)
    size = max(size for _, size, _ in ModelCache(folder).entries())
    oldest = ModelCache(folder).entries()[0][0]
    monkeypatch.setenv("QUARK_NUMBA_CACHE_GB", str(2.9 * size / 1e9))
    write(path, 9)
    quark_numba.InferenceSession(path, cache=folder)
    names = {json.loads((entry / "kept.json").read_text())["facts"]["original"] for entry, _, _ in ModelCache(folder).entries()}
    assert names == {str(path.parent / "a" / "m.onnx"), str(path)}
    assert not oldest.exists()
    write(path, 10)
    for wrong in ("many", "nan", "-1"):
        monkeypatch.setenv("QUARK_NUMBA_CACHE_GB", wrong)
        with pytest.raises(
            EnvironmentVariableError, match=f"QUARK_NUMBA_CACHE_GB is '{wrong}'; expected a number of gigabytes"
        ):
            quark_numba.InferenceSession(path, cache=folder)
    monkeypatch.setenv("QUARK_NUMBA_CACHE_GB", "inf")
    quark_numba.InferenceSession(path, cache=folder)
    for entry, _, _ in ModelCache(folder).entries():  # what a removal that was killed leaves
        (entry / "kept.json").unlink()
    ModelCache(folder).clear()
    assert not list(folder.iterdir())


def failing(function, fails, reason):
    """A function that fails where `fails` holds for its arguments."""

    def either(*arguments, **named):
        if fails(*arguments, **named):
            raise OSError(28, reason)
        return function(*arguments, **named)

    return either


def in_cache(path, *_, **__):
    return "cache" in Path(path).parts


FULL = "No space left on device"


def without_room(patch, folder):
    free = {True: 10, False: 10**9}
    patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, free[in_cache(path)]))
    patch.setattr(Path, "write_bytes", failing(Path.write_bytes, in_cache, FULL))


UNWRITABLE = {
    "a file in its place": lambda patch, folder: folder.touch(),
    "read-only": lambda patch, folder: patch.setattr(os, "mkdir", failing(os.mkdir, in_cache, "Read-only file system")),
    "no room": without_room,
    "no new name": lambda patch, folder: patch.setattr(os, "rename", failing(os.rename, in_cache, FULL)),
}


@pytest.mark.parametrize("cause", list(UNWRITABLE))
@pytest.mark.by_default(4)
def test_a_folder_that_cannot_be_written_to(path, cause, monkeypatch, caplog):
    """The session runs all the same, and the folder is named."""
    folder = path.parent / "parent" / "cache"
    folder.parent.mkdir()
    with monkeypatch.context() as patch:
        UNWRITABLE[cause](patch, folder)
        session = quark_numba.InferenceSession(path, cache=folder, temporary_folder=path.parent)
    assert result(session) == EXPECTED
    (warning,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert warning.startswith(f"{folder}: could not cache the optimized model: ")
    del session
    assert not ModelCache(folder).entries()
    assert not [*path.parent.rglob("quark_numba_*")]


def begun_and_refused(_, options, *__):
    """Begin a file and refuse the rest, as ONNX Runtime does on a full disk."""
    Path(options.optimized_model_filepath).touch()
    raise RuntimeError("Protobuf serialization failed.")


@pytest.mark.parametrize("cause", ["no folder", "no room"])
def test_no_place_for_temporary_files(tmp_path, builds, cause, monkeypatch, caplog):
    """ONNX Runtime cannot give the answers without which regions are smaller. The model is prepared once, and not kept."""
    folder, place = tmp_path / "cache", tmp_path / "temporary"
    nodes = "v = Relu (x)", "q = QuantizeLinear (v, s)", "y = DequantizeLinear (q, s)"
    scale = onnx.numpy_helper.from_array(np.float32(0.5), "s")
    onnx.save(model(nodes, [("x", "float32", [4000])], ["y"], initializers=[scale]), tmp_path / "m.onnx")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        if cause == "no room":
            place.mkdir()
            full = vars(onnxruntime) | {"InferenceSession": begun_and_refused}
            patch.setattr(fusions, "onnxruntime", SimpleNamespace(**full))
        quark_numba.InferenceSession(tmp_path / "m.onnx", cache=folder)
    (warning,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert warning.startswith(f"{folder}: could not cache the optimized model: a temporary file cannot be written: {place}: ")
    assert len(builds) == 1
    assert not ModelCache(folder).entries()
    quark_numba.InferenceSession(tmp_path / "m.onnx", cache=folder)
    assert entry_of(folder)


@pytest.fixture
def users(monkeypatch, tmp_path):
    """Return the folder that contains the cache of the user."""
    monkeypatch.setattr(user_folder, "named_folder", lambda: str(tmp_path / "users"))
    user_folder.warn.cache_clear()
    return tmp_path / "users"


@pytest.mark.skipif(os.name != "posix", reason="modes and owners of POSIX")
@pytest.mark.by_default(1)
def test_the_users_folder_is_for_this_user_alone(path, users):
    assert result(quark_numba.InferenceSession(path, cache=True)) == EXPECTED
    assert stat.S_IMODE((users / "quark_numba").stat().st_mode) == 0o700
    assert entry_of(users / "quark_numba" / "models")


def without_home():
    raise FileNotFoundError(2, "this user has no home folder")


UNUSABLE = {
    "another user's": lambda patch, place: patch.setattr(os, "geteuid", lambda: 12345),
    "a file": lambda patch, place: (place.rmdir(), place.touch()),
    "no home": lambda patch, place: patch.setattr(model_cache, "own_folder", without_home),
}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root's folders belong to another user for others")
@pytest.mark.parametrize("cause", UNUSABLE)
@pytest.mark.by_default(3)
def test_the_users_folder_cannot_be_used(path, users, cause, monkeypatch, caplog):
    """Sessions run, nothing is kept, and one warning tells why."""
    place = users / "quark_numba"
    place.mkdir(parents=True)
    os.chown(place, 54321, 54321)
    with monkeypatch.context() as patch:
        UNUSABLE[cause](patch, place)
        for _ in range(2):
            assert result(quark_numba.InferenceSession(path, cache=True)) == EXPECTED
    (warning,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert "compiled kernels and models cannot be kept: " in warning
    assert not [*users.rglob("quark_numba-*")]


@pytest.mark.parametrize("wrong", ["x" * 5000, "a\0b", "", "\udcff"])
def test_a_wrong_folder(path, wrong):
    with pytest.raises(ModelError, match=r"cache is '.*'; expected the path of a folder: "):
        quark_numba.InferenceSession(path, cache=wrong)


@pytest.mark.parametrize("wrong", [5, 1.0, b"folder", ["folder"]])
def test_a_folder_of_a_wrong_type(path, wrong):
    with pytest.raises(TypeError, match=f"cache is a {type(wrong).__name__}; expected True, False or the path of a folder"):
        quark_numba.InferenceSession(path, cache=wrong)


def contents(folder):
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


FOREIGN = (
    "0123456789abcdef0123456789abcdef/artifacts/weights.bin",  # as MLflow and uuid4().hex name folders
    "0123456789abcdef0123456789abcdef/kept.json",
    "fedcba9876543210fedcba9876543210/weights.bin",
    "my.digests.txt",
    "0123456789abcdef0123456789abcdef.digests",
    f"quark_numba-{20 * '0'}/weights.bin",
    f"quark_numba-{20 * '1'}/kept by quark_numba",
    f"quark_numba-{20 * '1'}/lock",
    f"quark_numba-{20 * '2'}.digests",
    f"quark_numba-{20 * '3'}",
    "quark_numba_training/in use",
    "quark_numba_models.tmp/notes",
    "quark_numba_weights1.tmp/in use",
    "quark_numba_weights1.tmp/files/weights.bin",
)


@pytest.mark.by_default(1)
def test_only_own_files_are_removed(path, monkeypatch, tmp_path):
    """Names like those of cached models, or even the same, are not enough."""
    folder, theirs = tmp_path / "cache", tmp_path / "theirs"
    monkeypatch.setattr(cache_keys, "_RACY_NS", -(10**9))  # keep the digests of files that were just written
    quark_numba.InferenceSession(path, cache=folder)
    own, *_ = (each for each, _, _ in ModelCache(folder).entries())
    record, *_ = folder.glob("*.digests")
    for name in FOREIGN:
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text("precious")
    shutil.copy(record, theirs / f"quark_numba-{20 * '4'}.digests")  # a name that differs from that of its path
    shutil.copytree(theirs, folder, dirs_exist_ok=True)
    (folder / "quark_numba_datasets").mkdir()
    monkeypatch.setenv("QUARK_NUMBA_CACHE_GB", "0")
    write(path, 2)
    quark_numba.InferenceSession(path, cache=folder)  # makes room
    assert not own.exists()
    monkeypatch.setattr("quark_numba.compiling.cache.files", list)
    assert record.exists()
    assert cli.main(["info", "--json", "--cached-models", str(folder), "--clear-cache"]) == 0
    assert contents(folder) == contents(theirs)
    assert (folder / "quark_numba_datasets").is_dir()


@pytest.mark.by_default(1)
def test_a_folder_of_somebody_else_under_the_name_of_a_model(path, folder, caplog):
    """A folder of another user with the name of a cached model stays, and the session runs without a cached model."""
    quark_numba.InferenceSession(path, cache=folder)
    entry = entry_of(folder)
    shutil.rmtree(entry)
    entry.mkdir()
    (entry / "weights.bin").write_text("precious")
    assert kept_result(path) == EXPECTED
    assert contents(entry) == {"weights.bin": b"precious"}
    assert f"{folder}: could not cache the optimized model: {entry.name} is in the way" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="Windows removes no file that is open")
def test_a_folder_that_is_removed_while_a_session_is_created(path, caplog, monkeypatch):
    get_or_create = ModelCache.get_or_create

    def got_and_removed(*arguments):
        artifact = get_or_create(*arguments)
        shutil.rmtree(Path(artifact.path).parent)
        return artifact

    monkeypatch.setattr(ModelCache, "get_or_create", got_and_removed)
    assert result(quark_numba.InferenceSession(path, cache=path.parent / "cache")) == EXPECTED
    assert "could not cache the optimized model: it was removed while a session was created" in caplog.text


@pytest.mark.by_default(1)
def test_what_a_killed_removal_leaves(path, folder, monkeypatch):
    """It is no entry, and the next process that writes to the folder removes it."""
    quark_numba.InferenceSession(path, cache=folder)
    entry = entry_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if the process had been killed before
        ModelCache(folder).remove(entry)
    assert [each.name for each in folder.rglob(entry.name)] == [entry.name]
    assert not ModelCache(folder).entries()
    assert kept_result(path) == EXPECTED
    ModelCache(folder).clear()
    assert not list(folder.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Specified 'providers'")
@pytest.mark.skipif(not hasattr(onnxruntime.SessionOptions, "add_provider"), reason="ONNX Runtime 1.22 or later")
def test_providers_of_the_options_count(tmp_path, builds):
    """A session with providers other than the CPU provider has no blocked layout, also if the options name them."""
    others = [each for each in onnxruntime.get_available_providers() if each != "CPUExecutionProvider"]
    if not others:
        pytest.skip("ONNX Runtime has no other provider")

    def in_blocks(of_options, of_session):
        options = onnxruntime.SessionOptions()
        for each in of_options:
            options.add_provider(each, {})
        quark_numba.InferenceSession(MODELS / "textline_cls_bf16.onnx", options, of_session, cache=tmp_path)
        facts = [json.loads((entry / "kept.json").read_text())["facts"] for entry, _, _ in ModelCache(tmp_path).entries()]
        return sorted(each["regions_in_blocked_layout"] > 0 for each in facts)

    assert in_blocks([], None) == [True]
    assert in_blocks([], ["CPUExecutionProvider"]) == [True]
    assert in_blocks(others[:1], None) == [False, True]
    assert in_blocks([], [others[0], "CPUExecutionProvider"]) == [False, True]
    assert len(builds) == 2


def test_operators_from_outside_of_the_package_count(tmp_path, monkeypatch):
    """The rewriting depends on the providers. It also depends on the build of ONNX Runtime: a version may have several."""
    write(tmp_path / "m.onnx", 1)
    keys = [cache_keys.name_entry(tmp_path, [tmp_path / "m.onnx"], {})]
    versions = {name: [*each] for name, each in catalog.OPERATORS._versions.items()}
    monkeypatch.setattr(catalog.OPERATORS, "_versions", versions)
    newest = catalog.OPERATORS.newest("com.amd.quark")[0]
    catalog.OPERATORS.add(dataclasses.replace(newest, since_version=newest.since_version + 1))
    keys.append(cache_keys.name_entry(tmp_path, [tmp_path / "m.onnx"], {}))
    monkeypatch.setattr(onnxruntime, "get_build_info", lambda: "another build")
    keys.append(cache_keys.name_entry(tmp_path, [tmp_path / "m.onnx"], {}))
    assert len({*keys}) == 3


WITH_A_SET = """
import sys
import quark_numba
names = {"MatMulAddFusion", "GeluFusion", "LayerNormFusion"}
quark_numba.InferenceSession(sys.argv[1], cache=sys.argv[2], disabled_optimizers=names)
"""


@pytest.mark.slow
def test_a_set_of_optimizers(tmp_path):
    """A set of disabled optimizers finds a cached model, though its order differs between processes."""
    write(tmp_path / "m.onnx", 1)
    for seed in "0123":
        command = [sys.executable, "-c", WITH_A_SET, tmp_path / "m.onnx", tmp_path / "cache"]
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, check=True)
    assert len([each for each in (tmp_path / "cache").iterdir() if each.is_dir()]) == 1


def test_a_model_without_a_path(path):
    with pytest.raises(ValueError, match="cache is set, but the model has no path"):
        quark_numba.InferenceSession(onnx.load(path), cache=True)


@pytest.mark.slow
def test_the_command_shows_and_clears_it(path, folder, capsys, monkeypatch):
    quark_numba.InferenceSession(path, cache=folder)
    assert cli.main(["info", "--json", "--cached-models", str(folder)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["folder of cached models"] == str(folder)
    assert facts["cached models"].startswith("1, 0.0 MB")
    monkeypatch.setattr("quark_numba.compiling.cache.files", list)
    assert cli.main(["info", "--json", "--cached-models", str(folder), "--clear-cache"]) == 0
    assert json.loads(capsys.readouterr().out)["cached models"] == "0, 0.0 MB"
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["textline_cls_bf16", "textline_cls_mx9", "tagger_u16"])
@pytest.mark.by_default(1)
def test_real_models(name, tmp_path):
    sessions = [quark_numba.InferenceSession(MODELS / f"{name}.onnx", cache=tmp_path) for _ in range(2)]
    sessions.append(quark_numba.InferenceSession(MODELS / f"{name}.onnx"))
    outputs = [session.run(None, feeds_of(session, 1)) for session in sessions]
    for others in outputs[1:]:
        for one, other in zip(outputs[0], others, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize("has_modes", [True, False])
def test_modes_of_digest_records(has_modes, tmp_path, monkeypatch):
    """Others may not change a record. A file system without modes has records, too."""
    if not has_modes:
        monkeypatch.setattr(Path, "chmod", lambda *_: os.chmod("/nowhere", 0))
    before = os.umask(0)
    try:
        cache_keys.write(tmp_path, tmp_path / "record.digests", {})
    finally:
        os.umask(before)
    assert (tmp_path / "record.digests").stat().st_mode & user_folder.OTHERS_WRITE == (
        0 if has_modes else user_folder.OTHERS_WRITE
    )
