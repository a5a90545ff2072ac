"""`build_library`, which writes models and the library that runs them outside of Python: its arguments, which operators the
library gets, the names of files, and the text of README.txt."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import onnxruntime

from ..catalog import OPERATORS
from ..checks import QDQ, Qdq, check_choices, check_flags, check_paths, check_texts, refuse
from ..compiling import helpers
from ..dialects import quark
from ..errors import ModelError, file_error, reraise_of_signal_handler
from ..models import model_files
from ..models.genai_folders import CONFIGURATION, GenaiFolder
from ..ort import NO_FUSIONS, native, register
from ..ort.custom_op import Need, need_of
from ..rewriting.graph import Settings
from ..rewriting.optimize import rewrite_model
from . import child, targets

NAME, _README = "quark_operators", "README.txt"


def build_library(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    cpu: str | None = None,
    optimize: bool = True,
    qdq: Qdq = "auto",
) -> Path:
    """Write models, and one library with the operators that they need, for programs outside of Python: whatever uses ONNX
    Runtime registers the library with ``RegisterCustomOpsLibrary``.

    The folder gets a file for each model, under its name, the library ``quark_operators.so``, ``.dll`` or ``.dylib``, and
    ``README.txt`` with the line that registers it. The models are optimized as by `optimize`, without the blocked layout that
    `InferenceSession` adds: that depends on the processor and on ONNX Runtime's version.

    For a folder of ONNX Runtime GenAI, the result is such a folder. Its ``genai_config.json`` names the library, and all other
    files are copied, except hidden ones.

    Parameters
    ----------
    models : path, or a sequence of paths, or None
        ONNX models with different file names, or one folder of ONNX Runtime GenAI, with a ``genai_config.json`` that names its
        models. With None the library has all types, formats and attributes of Quark operators (com.amd.quark,
        com.vai.quantize), so that any model by Quark runs as it is written. It takes a minute or two.
    path : path
        The folder. It is created, and files of the same names are replaced.
    target : str, optional
        "linux-x86-64", "linux-aarch64", "windows-x86-64", "windows-aarch64", "macos-x86-64" or "macos-arm64", linked by zig
        (``pip install 'quark_numba[build]'``). The default is this machine, for which a C compiler on the PATH serves as well.
    cpu : str, optional
        "x86-64", "x86-64-v2", "x86-64-v3" (the default of a named target) or "x86-64-v4"; "native" (the default without a
        target): this processor. Several levels go in one library, as "x86-64-v2,x86-64-v3,x86-64-v4": when it is registered, it
        takes the best one that the processor has. Registering the library on a processor that lacks the instructions gives an
        error. AArch64 has one choice.
    optimize : bool
        Whether the models are optimized. Otherwise they stay as written.
    qdq : "auto", "float" or "onnxruntime"
        Who runs ONNX's own QuantizeLinear and DequantizeLinear. The models are optimized with this argument, as by `optimize`.
        "float": the library also replaces these two operators of ONNX Runtime, as `register` does it, and with the same
        configuration entries. Models as written need it for types that ONNX Runtime's CPU provider lacks. The library then
        needs ONNX Runtime 1.31 or later.

    Returns
    -------
    The path of the library.

    Raises
    ------
    ModelError
        If a model or a configuration cannot be used, or ONNX Runtime refuses a model; if there is no linker, or it fails; if a
        file cannot be written; or in a frozen application, which has no Python for another process.
    RuntimeError
        If the native backend is not available: it creates the sessions that tell what the models need. If ONNX Runtime is too
        old for `qdq` = "float".
    ValueError
        If there is no model, if two have the same file name, if there is no such target or processor, or if `qdq` is not one of
        the above, or is "float" without models.
    """
    check_paths(path="" if path is None else path)
    check_texts(target=target, cpu=cpu)
    check_flags(optimize=optimize)
    check_choices(QDQ, qdq=qdq)
    given = (models,) if isinstance(models, (str, os.PathLike)) else () if models is None else models
    if not (isinstance(given, Sequence) and all(isinstance(model, (str, os.PathLike)) for model in given)):
        refuse("models", models, "a path, or a sequence of paths, or None")
    if models is not None and not given:
        raise ValueError("models is empty; expected the path of a model, or several")
    genai = GenaiFolder.find(given[0]) if len(given) == 1 else None
    sources = {name: genai.path / name for name in genai.models} if genai else _by_name([*map(Path, given)])
    if qdq == "float" and not sources:
        raise ValueError("qdq is 'float' without models; expected models, whose nodes the library gets")
    if getattr(sys, "frozen", False):
        raise ModelError("this is a frozen application, which has no Python to compile with; build libraries with Python")
    name, cpus = targets.resolve_target(target, cpu)
    command = targets.linker(target)
    folder = Path(path).absolute()
    if genai and folder.resolve().is_relative_to(genai.path.resolve()):
        raise ModelError(f"{path}: it is in {genai.path}, which is read; expected another folder")
    try:
        others = genai.other_files(()) if genai else []
        with (
            _folders({folder, *((folder / each).parent for each in (*sources, *others))}),
            tempfile.TemporaryDirectory(dir=folder, prefix=".quark_numba_") as place,
        ):
            return _build(sources, genai, folder, Path(place), name, cpus, command, optimize, qdq)
    except ModelError:
        raise
    except OSError as error:
        raise file_error(error.filename or folder, error) from error


def _by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the paths of models by the names of their files. Raise ValueError if two names are the same, and ModelError for a
    folder."""
    names = [path.name for path in paths]
    if len({*names}) < len(names):
        raise ValueError(f"models: two files have the same name: {', '.join(names)}")
    for path in paths:
        if path.is_dir():
            raise ModelError(f"{path}: a folder; expected an ONNX model, or alone a folder with a {CONFIGURATION}")
    return dict(zip(names, paths, strict=True))


@contextmanager
def _folders(places: Iterable[Path]) -> Iterator[None]:
    """A context with these folders. Those that are new and still empty at its end are removed."""
    new = {each for place in places for each in (place, *place.parents) if not each.exists()}
    try:
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for each in sorted(new, key=lambda each: len(each.parts), reverse=True):
            with suppress(OSError):  # it is not empty
                each.rmdir()


def _build(
    sources: Mapping[str, Path],
    genai: GenaiFolder | None,
    folder: Path,
    place: Path,
    name: str,
    cpus: Sequence[str],
    command: Sequence[str],
    optimize: bool,
    qdq: Qdq,
) -> Path:
    """Build everything in `place`, and move it to the folder. `sources` has the models by their paths in the folder."""
    # What each step writes has a folder of its own, because files of different steps may have the same name.
    done, work, of_library = place / "done", place / "work", place / "done" / "library"
    of_library.mkdir(parents=True)
    work.mkdir()
    library = NAME + targets.TARGETS[name].suffix
    configuration = genai.with_library(library, NO_FUSIONS if qdq == "float" else {}) if genai else ""
    models = [done / str(i) / target for i, target in enumerate(sources)]
    read = [file for path, to in zip(sources.values(), models, strict=True) for file in _write(path, to, optimize, qdq)]
    if genai:
        others = [each for each in genai.other_files(read) if each not in (library, _README)]
        (done / "others").mkdir()
        for each in others:
            (done / "others" / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(genai.path / each, done / "others" / each)
        (done / "others" / CONFIGURATION).write_text(configuration, encoding="utf-8")
        read += [str(genai.path / each) for each in (*others, CONFIGURATION)]
    (of_library / library).touch()
    text = _readme(library, [*sources], name, " or ".join(cpus), genai)
    (of_library / _README).write_text(text, encoding="utf-8")
    files = [each for each in done.rglob("*") if each.is_file()]
    written = [folder.joinpath(*each.relative_to(done).parts[1:]) for each in files]
    model_files.check_written(map(str, written), (), read, "another folder")
    needs = _needs(models, qdq) if sources else _needs_of_quark()
    for i, cpu in enumerate(cpus):
        machine, checks = targets.machine_of(name, cpu)
        part = work / cpu
        part.mkdir()
        _compile(targets.Job(machine, cpu, checks, i, len(cpus), needs, qdq == "float", str(part)), name)
    targets.link(command, name, work, of_library / library)
    for file, target in zip(files, written, strict=True):
        file.replace(target)
    return folder / library


def _write(path: Path, target: Path, optimize: bool, qdq: Qdq) -> list[str]:
    """Write a model as programs use it, and return the files that were read."""
    target.parent.mkdir(parents=True)
    source = model_files.Source.from_argument(path)
    if optimize:
        rewrite_model(source, Settings(qdq=qdq)).save(target)
    else:
        model_files.save(source.whole(), target, apart=source.is_apart, check=source.check)
    return [str(path), *source.files]


def _compile(job: targets.Job, name: str) -> None:
    program, environment = helpers.program(f"from {child.__name__} import main; main()")
    result = subprocess.run(
        program,
        input=pickle.dumps(job),
        capture_output=True,
        check=False,
        cwd=helpers.PLACE,
        # Intel's vectors of functions are not everywhere.
        env=environment | {"NUMBA_DISABLE_INTEL_SVML": "1"},
    )
    if result.returncode == child.CANNOT_WRITE:
        raise ModelError(f"{job.folder}: {result.stderr.decode(errors='replace').strip()}")
    if result.returncode:
        why = result.stderr.decode(errors="replace").strip()[-2000:]
        raise ModelError(f"the functions cannot be compiled for {name}, {job.cpu} (exit code {result.returncode}): {why}")


def _needs(models: Sequence[Path], qdq: Qdq) -> list[Need]:
    """Return the operators, types and attributes that the nodes of models need."""
    with native.REGISTRY.listing_needs() as needs:
        for model in models:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            # With ONNX Runtime's optimizations nodes would be lost that other options keep.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry(native.LISTS_NEEDS, "1")
            register(options, backend="native", qdq=qdq)
            try:
                onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
            except Exception as error:
                reraise_of_signal_handler(error)
                is_lacking = "Could not find an implementation" in str(error) and qdq != "float"
                hint = '; try --qdq float (qdq="float")' if is_lacking else ""
                raise ModelError(f"{model.name}: ONNX Runtime refuses it: {error}{hint}") from error
        return [*needs]


def _needs_of_quark() -> list[Need]:
    """Return all that nodes of Quark operators may need."""
    needs = []
    for operator in dict.fromkeys(operator for domain in quark.DOMAINS for operator in OPERATORS.newest(domain)):
        # An attribute without a list of values may have any, and any of them stands for all.
        values = [option.values or (1 if option.default is None else option.default,) for option in operator.attributes]
        names = [attribute.name for attribute in operator.attributes]
        for overload in operator.overloads(lambda element_type: element_type.has_tensors()):
            needs += [need_of(operator, overload, (*zip(names, chosen, strict=True),)) for chosen in product(*values)]
    return needs


def _readme(library: str, models: Sequence[str], name: str, cpu: str, genai: GenaiFolder | None) -> str:
    here = f"the models in this folder ({', '.join(models)})"
    subject = here if models else "any model of AMD Quark's as it is written,"
    of_genai = f"""
ONNX Runtime GenAI 0.9.2 or later runs this folder as it is, and also after it was moved: {CONFIGURATION} names the library.
For an earlier version, write the library's absolute path there, as "custom_ops_library".
"""
    return f"""{library} has the operators of {subject} for ONNX Runtime 1.20 or later on {name}, {cpu}.
Register it before you create a session. It needs nothing of Python.
{of_genai if genai else ""}
C       OrtApi: api->RegisterCustomOpsLibrary_V2(session_options, ORT_TSTR("./{library}"));
C++     session_options.RegisterCustomOpsLibrary(ORT_TSTR("./{library}"));
C#      sessionOptions.RegisterCustomOpLibrary("./{library}");
Java    sessionOptions.registerCustomOpLibrary("./{library}");
Node    onnxruntime-node's session options have no entry for such libraries so far; use one of the others.
Python  session_options.register_custom_ops_library("./{library}")

A model with int32 zero points may need the configuration entry session.disable_quant_qdq = 1.
For other models build a library of all of them:
{targets.COMMAND}
"""
