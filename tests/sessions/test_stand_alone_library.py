"""Libraries that run models outside of Python: what is in them, what they compute, and what they refuse."""

import importlib.util
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pefile
import pytest
from elftools.elf.elffile import ELFFile
from onnx import helper
from onnx_models import model, one_node
from paths import MODELS
from stand_alone import NAMES, feeds_of, own_session

from quark_numba import ModelError, build_library
from quark_numba.cli import main
from quark_numba.library import targets

HAS_ZIG = importlib.util.find_spec("ziglang") is not None
HAS_LINKER = sys.platform == "linux" and bool(HAS_ZIG or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"))

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not HAS_LINKER, reason="Linux with a C compiler or ziglang only: this is where libraries run here"),
]
zig = pytest.mark.skipif(not HAS_ZIG, reason="ziglang only")

# What a library may need: of the C library, and what the compiler's own start files mention.
NEEDED = {"malloc", "free", "memcpy", "memset", "strchr", "strcmp", "strlen", "strncmp", "strstr", "tanhf"}
OF_START_FILES = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__"}

# Runs models with the library, in a process without this package. Arguments: the folder, the file of results, threads, models.
RUN = """
import sys
import numpy as np
import onnxruntime

folder, results, threads, *names = sys.argv[1:]
found = {}
for name in names:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.register_custom_ops_library(f"{folder}/quark_operators.so")
    session = onnxruntime.InferenceSession(f"{folder}/{name}", options, providers=["CPUExecutionProvider"])
    for i, y in enumerate(session.run(None, dict(np.load(f"{results}.{name}.npz")))):
        found[f"{name}:{i}"] = y
np.savez(results, **found)
assert not {"numba", "llvmlite", "quark_numba"} & set(sys.modules)
"""

# Creates a session, and prints why it fails.
REFUSED = """
import sys
import onnxruntime

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
try:
    options.register_custom_ops_library(sys.argv[1])
    onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
except Exception as error:
    print(error)
"""

# Loads the library, runs a model and releases both, and prints the process's memory in kilobytes after some cycles.
CYCLES = """
import gc, sys
import numpy as np
import onnxruntime

library, model, feeds = sys.argv[1], sys.argv[2], dict(np.load(sys.argv[3]))

def cycle():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)

for count in (30, 100):
    for _ in range(count):
        cycle()
    gc.collect()
    print([int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")][0])
assert library.rpartition("/")[2] not in open("/proc/self/maps").read(), "it is still loaded"
"""


def child(code, *arguments):
    process = subprocess.run([sys.executable, "-I", "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="session", params=[True, False], ids=["optimised", "as written"])
def library(request, tmp_path_factory):
    """A library of all models."""
    folder = tmp_path_factory.mktemp("library")
    return build_library([MODELS / f"{name}.onnx" for name in NAMES], folder, optimize=request.param)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_without_this_package(library, threads, tmp_path):
    results, expected = tmp_path / "results.npz", {}
    models = sorted(library.parent.glob("*.onnx"))
    assert len(models) == len(NAMES)
    for path in models:
        session = own_session(path, threads)
        feeds = feeds_of(session)
        np.savez(f"{results}.{path.name}.npz", **feeds)
        expected |= {f"{path.name}:{i}": y for i, y in enumerate(session.run(None, feeds))}
    child(RUN, library.parent, results, threads, *(path.name for path in models))
    found = np.load(results)
    assert set(found) == set(expected)
    for name, y in expected.items():
        assert found[name].dtype == y.dtype, name
        assert found[name].tobytes() == y.tobytes(), name
        assert np.ptp(y) > 0, name


def test_symbols(library):
    """An independent reader finds one export, nothing of Python's or of Numba's, and no function that runs at loading."""
    with open(library, "rb") as file:
        elf = ELFFile(file)
        symbols = [each for each in elf.get_section_by_name(".dynsym").iter_symbols() if each.name]
        exported = [each.name for each in symbols if each["st_shndx"] != "SHN_UNDEF"]
        undefined = {each.name for each in symbols if each["st_shndx"] == "SHN_UNDEF"}
        needed = [each.needed for each in elf.get_section_by_name(".dynamic").iter_tags() if each.entry.d_tag == "DT_NEEDED"]
        start = elf.get_section_by_name(".init_array")
        assert exported == ["RegisterCustomOps"]
        assert undefined <= NEEDED | OF_START_FILES
        assert {name.partition(".")[0] for name in needed} <= {"libc", "libm"}
        assert start is None or start.data_size == 8  # the compiler's own, which registers frames


def test_memory_of_cycles(library, tmp_path):
    path = library.with_name("textline_cls_bf16.onnx")
    np.savez(tmp_path / "feeds.npz", **feeds_of(own_session(path, 1)))
    first, last = map(int, child(CYCLES, library, path, tmp_path / "feeds.npz").split())
    assert last - first < 1024


LACKING = {
    "types": (
        one_node("quantize", "uint32"),
        "lacks com.amd.quark::ExtendedQuantizeLinear of float32, float32, uint32 with axis = 1",
    ),
    "attributes": (
        model(
            [
                helper.make_node(
                    "MXQuantizeDequantize", ["x"], ["y"], name="here", domain="com.amd.quark", element_dtype="fp6_e2m3"
                )
            ],
            ["x"],
            ["y"],
        ),
        "lacks com.amd.quark::MXQuantizeDequantize of float32 with element_dtype = fp6_e2m3, axis = 1, block_size = 32",
    ),
}


@pytest.mark.parametrize("case", LACKING)
def test_a_node_that_the_library_lacks(library, tmp_path, case):
    source, message = LACKING[case]
    onnx.save(source, tmp_path / "model.onnx")
    found = child(REFUSED, library, tmp_path / "model.onnx")
    assert message in found
    assert "quark-numba build-library MODEL... -o FOLDER" in found
    assert "(node '" in found


def test_a_missing_attribute(library, tmp_path):
    node = helper.make_node("Region", ["x"], ["y"], name="here", domain="quark_numba")
    onnx.save(model([node], ["x"], ["y"], domains=["quark_numba"]), tmp_path / "model.onnx")
    assert "attribute program is missing (node 'here')" in child(REFUSED, library, tmp_path / "model.onnx")


def test_a_region_with_other_types(tmp_path):
    """The types of a region's inputs are not in its overload, and its program reads them as what they were."""
    build_library(MODELS / "textline_cls_bf16.onnx", tmp_path)
    nodes = onnx.load(tmp_path / "textline_cls_bf16.onnx").graph.node
    region = next(each for each in nodes if each.op_type == "Region" and len(each.input) > 1)
    inputs = [f"x{i}" for i in range(len(region.input))]
    other = helper.make_node("Region", inputs, ["y"], name="here", domain="quark_numba")
    other.attribute.extend(region.attribute)
    onnx.save(
        model([other], [(each, "float64", [1]) for each in inputs], ["y"], domains=["quark_numba"]), tmp_path / "other.onnx"
    )
    assert "lacks quark_numba::Region" in child(REFUSED, tmp_path / "quark_operators.so", tmp_path / "other.onnx")


def small(folder):
    path = folder / "small.onnx"
    onnx.save(one_node("quantize", "int16"), path)
    return path


def test_a_processor_without_the_instructions(tmp_path, monkeypatch):
    """What CPUID does not tell of, the library refuses before any such instruction runs."""
    reserved = (1, 0, 3, 10)  # a bit of EDX that no processor sets
    monkeypatch.setitem(targets.CPUID, "sse4.1", reserved)
    path = small(tmp_path)
    library = (
        build_library(path, tmp_path / "out", cpu="x86-64-v2") if os.uname().machine == "x86_64" else pytest.skip("x86-64")
    )
    found = child(REFUSED, library, path)
    assert "built for x86-64-v2, and this processor lacks sse4.1; build it with another --cpu" in found


def test_the_command(tmp_path, capsys):
    path = small(tmp_path)
    assert main(["build-library", str(path), "-o", str(tmp_path / "out"), "--as-written"]) == 0
    assert "quark_operators.so" in capsys.readouterr().err
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"small.onnx", "quark_operators.so", "README.txt"}
    readme = (tmp_path / "out" / "README.txt").read_text()
    for language in ("C ", "C++", "C#", "Java", "Node", "Python"):
        assert f"\n{language}" in readme
    assert child(REFUSED, tmp_path / "out" / "quark_operators.so", tmp_path / "out" / "small.onnx") == ""
    assert main(["build-library", str(path), "-o", str(tmp_path / "none"), "--target", "amiga"]) == 1
    assert not (tmp_path / "none").exists()


def test_wrong_arguments(tmp_path):
    path = small(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="models is empty"):
        build_library([], out)
    with pytest.raises(ValueError, match=r"models has two files of one name: small\.onnx, small\.onnx"):
        build_library([path, path], out)
    with pytest.raises(ValueError, match="target is 'amiga'; expected one of linux-x86-64, "):
        build_library(path, out, target="amiga")
    with pytest.raises(ValueError, match="cpu is 'z80'; expected native or "):
        build_library(path, out, cpu="z80")
    with pytest.raises(ValueError, match="cpu is 'native'; expected generic for linux-aarch64"):
        build_library(path, out, target="linux-aarch64", cpu="native")
    with pytest.raises(ModelError, match=r"small\.onnx is in .*; expected another folder"):
        build_library(path, tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        build_library(tmp_path / "bad.onnx", out)
    onnx.save(model([helper.make_node("NoSuch", ["x"], ["y"])], ["x"], ["y"]), tmp_path / "refused.onnx")
    with pytest.raises(ModelError, match=r"refused\.onnx: ONNX Runtime refuses it"):
        build_library(tmp_path / "refused.onnx", out, optimize=False)
    assert not out.exists()


def test_no_linker(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs a C compiler on the PATH, or zig: pip install 'quark_numba\[build\]'"):
        build_library(small(tmp_path), tmp_path / "out")
    with pytest.raises(ModelError, match=r"a library for windows-x86-64 needs zig"):
        build_library(small(tmp_path), tmp_path / "out", target="windows-x86-64")


def test_a_linker_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "linker", lambda target: ["false"])
    with pytest.raises(ModelError, match="cannot be linked"):
        build_library(small(tmp_path), tmp_path / "out", optimize=False)
    assert not (tmp_path / "out").exists()


# (linked here, not run)
FORMATS = {
    "linux-aarch64": "ELF EM_AARCH64",
    "linux-x86-64": "ELF EM_X86_64",
    "windows-x86-64": "PE 8664",
    "windows-aarch64": "PE aa64",
    "macos-x86-64": "Mach-O 1000007",
    "macos-arm64": "Mach-O 100000c",
}


def format_of(path):
    content = path.read_bytes()
    if content[:4] == b"\x7fELF":
        with open(path, "rb") as file:
            return f"ELF {ELFFile(file)['e_machine']}"
    if content[:2] == b"MZ":
        dll = pefile.PE(data=content)
        assert [each.name for each in dll.DIRECTORY_ENTRY_EXPORT.symbols] == [b"RegisterCustomOps"]
        return f"PE {dll.FILE_HEADER.Machine:x}"
    assert content[:4] == b"\xcf\xfa\xed\xfe"
    return f"Mach-O {int.from_bytes(content[4:8], 'little'):x}"


@zig
@pytest.mark.parametrize(
    "target", [each if each == "linux-aarch64" else pytest.param(each, marks=pytest.mark.full) for each in FORMATS]
)
def test_other_systems(target, tmp_path):
    """The library is linked, with nothing undefined. It is not run here."""
    library = build_library([MODELS / "textline_cls_bf16.onnx", MODELS / "tagger_u16.onnx"], tmp_path, target=target)
    assert library.suffix == targets.TARGETS[target].suffix
    assert format_of(library) == FORMATS[target]
