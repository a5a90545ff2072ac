"""Libraries that run models outside of Python: what is in them, what they compute, and what they refuse."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pefile
import pytest
from elftools.elf.elffile import ELFFile
from libraries import (
    HAS_FLOAT_QDQ,
    HAS_ZIG,
    NAMES,
    REFUSED,
    REFUSED_AS_WRITTEN,
    RUN,
    SIZE,
    TOO_OLD,
    built,
    check_bits,
    child,
    linked,
    models_beside,
    own_session,
)
from marks import sizes
from onnx import helper
from onnx_models import feeds_of, model, one_node
from paths import MODELS
from rewritten_models import operators
from text_graphs import text_model

from quark_numba import ModelError, build_library, optimize
from quark_numba.cli import main
from quark_numba.library import build, targets
from quark_numba.models import model_files

pytestmark = linked
zig = pytest.mark.skipif(not HAS_ZIG, reason="ziglang only")

# What a library may need: of the C library, and what the compiler's own start files mention.
NEEDED = {"malloc", "free", "memcpy", "memset", "strchr", "strcmp", "strlen", "strncmp", "strstr", "tanhf"}
OF_START_FILES = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__"}

# Loads the library, runs a model and releases both, again and again. Prints the process's least memory in kilobytes, in the
# first half of the cycles and in the second. It rises and falls by a megabyte, also without a library.
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

def memory_after(count):
    for _ in range(count):
        cycle()
    gc.collect()
    return [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")][0]

cycles = int(sys.argv[4])
memory_after(max(200, cycles // 2))  # memory becomes fragmented
for half in range(2):
    print(min(memory_after(cycles // 10) for _ in range(5)))
assert library.rpartition("/")[2] not in open("/proc/self/maps").read(), "it is still loaded"
"""


@pytest.fixture(scope="session", params=["optimized", "as written"])
def library(request, tmp_path_factory):
    """A library of some models."""
    return built(NAMES, request.param, tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.slow
def test_the_same_bits_without_this_package(library, threads, tmp_path):
    check_bits(library, models_beside(library), threads, tmp_path)


@pytest.mark.slow
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


@sizes("count", 100, exhaustive=1000)
@pytest.mark.slow
def test_memory_of_cycles(library, count, tmp_path):
    path = library.with_name("textline_cls_bf16.onnx")
    np.savez(tmp_path / "feeds.npz", **feeds_of(own_session(path, 1), SIZE))
    first, last = map(int, child(CYCLES, library, path, tmp_path / "feeds.npz", count).split())
    assert last - first < 1024


LACKING = {
    "types": (
        one_node("quantize", "uint32"),
        "lacks com.amd.quark::ExtendedQuantizeLinear of float32, float32, uint32 with axis = 1",
    ),
    "attributes": (
        text_model('(float[] x) => (float[] y) { y = MXQuantizeDequantize <element_dtype = "fp6_e2m3"> (x) }'),
        "lacks com.amd.quark::MXQuantizeDequantize of float32 with element_dtype = fp6_e2m3, axis = 1, block_size = 32",
    ),
    # 0 is not the default.
    "an attribute of 0": (
        text_model('(float[] x) => (float[] y) { y = BFPQuantizeDequantize <bfp_method = "to_bfp", bit_width = 0> (x) }'),
        "lacks com.amd.quark::BFPQuantizeDequantize of float32 with bfp_method = to_bfp, axis = 1, bit_width = 0",
    ),
    "a long attribute": (
        text_model(f'(float[] x) => (float[] y) {{ y = quark_numba.Region <program = "{"long " * 400}"> (x) }}'),
        "lacks quark_numba::Region of ? with program = long long",
    ),
}


@pytest.mark.parametrize("case", LACKING)
@pytest.mark.slow
def test_a_node_that_the_library_lacks(library, tmp_path, case):
    source, message = LACKING[case]
    onnx.save(source, tmp_path / "model.onnx")
    found = child(REFUSED, library, tmp_path / "model.onnx")
    assert message in found
    assert "quark-numba build-library MODEL... -o FOLDER" in found
    assert "(node '" in found


@pytest.mark.slow
def test_a_model_as_written_with_a_library_of_the_optimized_one(tmp_path):
    """The optimized model has other nodes. The error names the option that keeps them, and the file that says more does too."""
    path = MODELS / "textline_cls_bf16.onnx"
    library = build_library(path, tmp_path)
    for text in (child(REFUSED, library, path), (tmp_path / "README.txt").read_text()):
        assert "quark-numba build-library MODEL... -o FOLDER, with --as-written if the models" in text
    assert "run the models beside it, or build one" in child(REFUSED, library, path)


@pytest.mark.slow
def test_a_missing_attribute(library, tmp_path):
    node = helper.make_node("Region", ["x"], ["y"], name="here", domain="quark_numba")
    onnx.save(model([node], ["x"], ["y"], domains=["quark_numba"]), tmp_path / "model.onnx")
    assert "attribute program is missing (node 'here')" in child(REFUSED, library, tmp_path / "model.onnx")


@pytest.mark.slow
def test_a_region_with_other_types(tmp_path):
    """The types of a region's inputs are not in its overload, and its program reads them as what they were."""
    build_library(MODELS / "textline_cls_bf16.onnx", tmp_path)
    nodes = onnx.load(tmp_path / "textline_cls_bf16.onnx").graph.node
    region = next(each for each in nodes if each.op_type == "Region" and len(each.input) > 1)
    inputs = [f"x{i}" for i in range(len(region.input))]
    other = helper.make_node("Region", inputs, ["y"], name="here", domain="quark_numba")
    other.attribute.extend(region.attribute)
    source = model([other], [(each, "float64", [1]) for each in inputs], ["y"], domains=["quark_numba"])
    onnx.save(source, tmp_path / "other.onnx")
    assert "lacks quark_numba::Region" in child(REFUSED, tmp_path / "quark_operators.so", tmp_path / "other.onnx")


def small(folder):
    path = folder / "small.onnx"
    onnx.save(one_node("quantize", "int16"), path)
    return path


LEVELS = "x86-64-v2,x86-64-v4,x86-64-v3"
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64 only")


@pytest.mark.parametrize("name", REFUSED_AS_WRITTEN)
def test_types_that_onnx_runtime_lacks(name, tmp_path):
    with pytest.raises(ModelError, match=re.escape(REFUSED_AS_WRITTEN[name]) + ".*try --qdq float"):
        built([name], "as written", tmp_path)


@pytest.mark.skipif(not HAS_FLOAT_QDQ, reason=TOO_OLD)
@pytest.mark.slow
def test_the_operators_of_onnx(tmp_path):
    """float4e2m1, 16 bits and 8 bits in ONNX's own operators, as written."""
    names = [*REFUSED_AS_WRITTEN, "ort/ort_cnn_a16w8_ms", "textline_cls_a8w8"]
    library = built(names, "with ONNX's own operators", tmp_path / "out")
    check_bits(library, models_beside(library), 2, tmp_path, qdq="float")
    onnx.save(one_node("quantize", "int4", domain=""), tmp_path / "other.onnx")
    assert "lacks ai.onnx::QuantizeLinear of float32, float32, int4" in child(REFUSED, library, tmp_path / "other.onnx")
    with pytest.raises(ValueError, match="qdq is 'float' without models"):
        build_library(None, tmp_path / "all", qdq="float")


@pytest.mark.slow
def test_a_damaged_library(tmp_path):
    path = small(tmp_path)
    library = build_library(path, tmp_path / "out", optimize=False)
    whole = library.read_bytes()
    for name, content in {"empty": b"", "short": whole[:100], "other": b"MZ" + whole[2:]}.items():
        damaged = tmp_path / f"{name}.so"
        damaged.write_bytes(content)
        assert f"{name}.so" in child(REFUSED, damaged, path)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind only")
def test_memory_under_valgrind(tmp_path):
    """A model runs without an invalid access and without a lost block in the library."""
    library = build_library(MODELS / "tagger_u16.onnx", tmp_path / "out", cpu="x86-64-v3")
    path = library.with_name("tagger_u16.onnx")
    feeds = tmp_path / "results.npz.tagger_u16.onnx.npz"
    np.savez(feeds, **feeds_of(own_session(path, 1), SIZE))
    options = "--leak-check=full", "--num-callers=30", "--keep-debuginfo=yes"  # the library is unloaded at the end
    command = ["valgrind", *options, sys.executable, "-I", "-c", RUN]
    run = subprocess.run([*command, library, tmp_path / "results.npz", "1", path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert (tmp_path / "results.npz").exists()
    assert "HEAP SUMMARY" in run.stderr
    # Python and the loader have findings of their own.
    assert f"(in {library})" not in run.stderr
    assert "definitely lost: 0 bytes" in run.stderr


# The types that attributes or parameters give: uint16, float16 and int8.
TYPED = {
    "quantize": "q = quark_numba.Quantize <output_dtype = 4> (x, scale)  d = quark_numba.Dequantize (q, scale)",
    "quantize by the zero point": "q = quark_numba.Quantize (x, scale, zero)  d = quark_numba.Dequantize (q, scale, zero)",
    "dequantize": """
        q = quark_numba.Quantize (x, scale, zero)  d = quark_numba.Dequantize <output_dtype = 10> (q, scale, zero)
    """,
    "dequantize by the scale": "q = quark_numba.Quantize <output_dtype = 3> (x, scale)  d = quark_numba.Dequantize (q, half)",
}


@pytest.mark.parametrize("case", TYPED)
@pytest.mark.slow
def test_types_that_attributes_give(case, tmp_path):
    """Types that the model does not declare: without inference by the library ONNX Runtime would take an overload's."""
    constants = {"scale": np.float32(0.01), "zero": np.int16(300), "half": np.float16(0.01)}
    used = {name: value for name, value in constants.items() if name in TYPED[case]}
    source = text_model(f"(float[N, 5] x) => (float[] y) {{ {TYPED[case]} y = Cast <to = 1> (d) }}", **used)
    onnx.save(source, tmp_path / "typed.onnx")
    library = build_library(tmp_path / "typed.onnx", tmp_path / "out", optimize=False)
    check_bits(library, [tmp_path / "typed.onnx"], 1, tmp_path)


@pytest.mark.slow
@x86_64
def test_a_processor_without_the_instructions(tmp_path, monkeypatch):
    """What CPUID does not tell of, the library refuses before any such instruction runs."""
    reserved = targets.CpuidBit(1, 0, 3, 10)  # a bit of EDX that no processor sets
    monkeypatch.setitem(targets.CPUID, "sse4.1", reserved)
    path = small(tmp_path)
    library = build_library(path, tmp_path / "out", cpu="x86-64-v2")
    found = child(REFUSED, library, path)
    assert "built for x86-64-v2, and this processor lacks sse4.1; build it with another --cpu" in found


@x86_64
@pytest.mark.parametrize(("absent", "works"), [("avx512f", True), ("avx2", True), ("sse4.1", False)])
@pytest.mark.slow
def test_the_best_of_several_processors(absent, works, tmp_path, monkeypatch):
    """Each lacking level leaves the work to the next one; if all lack something, the error is of the lowest."""
    monkeypatch.setitem(targets.CPUID, absent, targets.CpuidBit(1, 0, 3, 10))
    path = tmp_path / "small.onnx"
    onnx.save(one_node("quantize_dequantize", "int8", domain="quark_numba", shapes={"x": [70], "scale": []}), path)
    library = build_library(path, tmp_path / "out", cpu=LEVELS, optimize=False)
    with open(library, "rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        assert [each.name for each in symbols if each.name and each["st_shndx"] != "SHN_UNDEF"] == ["RegisterCustomOps"]
    found = child(REFUSED, library, path)
    assert found == "" if works else "built for x86-64-v2, and this processor lacks sse4.1" in found
    assert "linux-x86-64, x86-64-v4 or x86-64-v3 or x86-64-v2." in (tmp_path / "out" / "README.txt").read_text()


# Registers a library with an ONNX Runtime of release 1.N, whose functions do nothing, and prints the message of an error.
REGISTER = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static unsigned newest;
static int64_t nothing(void) { return 0; }
static int64_t status(int code, const char *message) { puts(message); return 1; }
static void *table[500];
static void *api(uint32_t version) { return version > newest ? 0 : table; }
static const char *release(void) { static char text[16]; sprintf(text, "1.%u.0", newest); return text; }
int main(int count, char **arguments) {
    void *base[2] = {(void *)api, (void *)release};
    newest = atoi(arguments[2]);
    for (int i = 0; i < 500; i++) table[i] = (void *)nothing;
    table[0] = (void *)status;
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    int64_t (*of)(void *, void *) = (int64_t(*)(void *, void *))dlsym(library, "RegisterCustomOps");
    int64_t result = of(table, base);
    dlclose(library);
    return (int)result;
}
"""


@pytest.fixture(scope="session")
def registered(tmp_path_factory):
    """Return a function that registers a library with a release of ONNX Runtime, and returns the message of the error."""
    if not shutil.which("cc"):
        pytest.skip("a C compiler only")
    folder = tmp_path_factory.mktemp("register")
    (folder / "register.c").write_text(REGISTER)
    subprocess.run(["cc", "-w", "-o", folder / "register", folder / "register.c", "-ldl"], check=True)

    def registered(library, release, *emulator):
        command = [*emulator, folder / "register", library, str(release)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == bool(run.stdout)
        return run.stdout.strip()

    return registered


@x86_64
@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="QEMU only")
@pytest.mark.slow
def test_on_other_processors(registered, tmp_path):
    """Emulated processors: one of 2008 has the second level, and one of 2003 none."""
    library = build_library(small(tmp_path), tmp_path / "out", cpu="x86-64-v2,x86-64-v3", optimize=False)
    assert registered(library, 20, "qemu-x86_64", "-cpu", "Nehalem") == ""
    message = registered(library, 20, "qemu-x86_64", "-cpu", "Opteron_G1")
    assert "built for x86-64-v2, and this processor lacks" in message


@pytest.mark.slow
@pytest.mark.skipif(not HAS_FLOAT_QDQ, reason=TOO_OLD)
def test_older_releases_of_onnx_runtime(registered, tmp_path):
    path = small(tmp_path)
    library = build_library(path, tmp_path / "out", optimize=False)
    message = "quark_numba: the library needs ONNX Runtime 1.20 or later; this is 1.19.0"
    assert [registered(library, release) for release in (20, 19)] == ["", message]
    library = build_library(path, tmp_path / "standard", optimize=False, qdq="float")
    message = "quark_numba: the library has ONNX's own operators, which needs ONNX Runtime 1.31 or later; this is 1.30.0"
    assert [registered(library, release) for release in (31, 30)] == ["", message]


@pytest.mark.slow
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
    with pytest.raises(ValueError, match=r"models: two files have the same name: small\.onnx, small\.onnx"):
        build_library([path, path], out)
    with pytest.raises(ValueError, match="target is 'amiga'; expected one of linux-x86-64, "):
        build_library(path, out, target="amiga")
    with pytest.raises(ValueError, match="cpu is 'z80'; expected native or "):
        build_library(path, out, cpu="z80")
    with pytest.raises(ValueError, match="cpu is 'native'; expected generic for linux-aarch64"):
        build_library(path, out, target="linux-aarch64", cpu="native")
    with pytest.raises(ModelError, match=r"small\.onnx, which is read; expected another folder"):
        build_library(path, tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        build_library(tmp_path / "bad.onnx", out)
    onnx.save(model([helper.make_node("NoSuch", ["x"], ["y"])], ["x"], ["y"]), tmp_path / "refused.onnx")
    with pytest.raises(ModelError, match=r"refused\.onnx: ONNX Runtime refuses it"):
        build_library(tmp_path / "refused.onnx", out, optimize=False)
    assert not out.exists()


@pytest.mark.parametrize("name", ["a.onnx", "b.onnx.data", "quark_operators.so", "README.txt"])
def test_no_file_of_a_library_replaces_a_model(name, tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "_MAX_BYTES", -1)
    out = tmp_path / "out"
    out.mkdir()
    one, other = small(tmp_path).rename(tmp_path / "a.onnx"), tmp_path / "b.onnx"
    content = one.read_bytes()
    (out / name).write_bytes(content)
    other.symlink_to(out / name)
    with pytest.raises(ModelError, match=rf"{name}: it is .*b\.onnx, which is read; expected another folder"):
        build_library([one, other], out)
    assert [each.read_bytes() for each in out.iterdir()] == [content]


@pytest.mark.parametrize("name", ["small.onnx.data", "quark_operators.so", "README.txt"])
def test_models_with_the_names_of_other_files(name, tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "_MAX_BYTES", -1)
    (tmp_path / name).write_bytes(small(tmp_path).read_bytes())
    with pytest.raises(ModelError, match=rf"{name}: to be written twice; expected different files"):
        build_library([tmp_path / "small.onnx", tmp_path / name], tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["small.onnx", "README.txt"])
def test_a_folder_in_the_place_of_a_file(name, tmp_path):
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(ModelError, match=rf"{name}: Is a directory"):
        build_library(small(tmp_path), tmp_path / "out")
    assert [each.name for each in (tmp_path / "out").iterdir()] == [name]


def test_models_are_optimized_with_qdq(tmp_path, monkeypatch):
    """The library gets ONNX's own operators with "float" alone."""
    path, jobs, written = MODELS / "textline_cls_a8w8.onnx", [], {}
    monkeypatch.setattr(build, "_needs", lambda models, qdq: [])
    monkeypatch.setattr(build, "_compile", lambda job, name: jobs.append(job))
    monkeypatch.setattr(targets, "link", lambda command, name, work, library: library.touch())
    for qdq in ("auto", "float", "onnxruntime"):
        build_library(path, tmp_path / qdq, qdq=qdq)
        written[qdq] = onnx.load(tmp_path / qdq / path.name)
        assert operators(written[qdq]) == operators(optimize(path, qdq=qdq))
    assert [job.has_qdq for job in jobs] == [False, True, False]
    assert "QuantizeLinear" in operators(written["onnxruntime"])
    assert "QuantizeLinear" not in operators(written["float"])


def test_a_folder_named_like_a_file_of_tensors(tmp_path, monkeypatch):
    """A folder at the name of the file of tensors is refused only if that file is to be written."""
    (tmp_path / "out" / "small.onnx.data").mkdir(parents=True)
    monkeypatch.setattr(build, "_needs", lambda models, qdq: [])
    monkeypatch.setattr(build, "_compile", lambda job, name: None)
    monkeypatch.setattr(targets, "link", lambda command, name, work, library: library.touch())
    build_library(small(tmp_path), tmp_path / "out")
    monkeypatch.setattr(model_files, "_MAX_BYTES", -1)
    with pytest.raises(ModelError, match=r"small\.onnx\.data: Is a directory"):
        build_library(tmp_path / "small.onnx", tmp_path / "out")


def test_no_linker(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs a C compiler on the PATH, or zig: pip install 'quark_numba\[build\]'"):
        build_library(small(tmp_path), tmp_path / "out")
    with pytest.raises(ModelError, match=r"a library for windows-x86-64 needs zig"):
        build_library(small(tmp_path), tmp_path / "out", target="windows-x86-64")


def test_a_linker_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "linker", lambda target: ["false"])
    monkeypatch.setattr(build, "_compile", lambda job, name: None)
    with pytest.raises(ModelError, match="cannot be linked: false ended with exit code 1: it printed nothing"):
        build_library(small(tmp_path), tmp_path / "out", optimize=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.slow
def test_a_full_disk(tmp_path, monkeypatch):
    """The child process cannot write. It says so in a line, without a traceback."""
    compile_ = build._compile

    def compile_on_a_full_disk(job, name):
        Path(job.folder, "tables.h").symlink_to("/dev/full")
        compile_(job, name)

    monkeypatch.setattr(build, "_compile", compile_on_a_full_disk)
    with pytest.raises(ModelError, match=r"^[^\n]*: No space left on device$"):
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


@pytest.mark.slow
@zig
@pytest.mark.parametrize(
    "target", [each if each == "linux-aarch64" else pytest.param(each, marks=pytest.mark.slow) for each in FORMATS]
)
def test_other_systems(target, tmp_path):
    """The library is linked, with nothing undefined. It is not run here."""
    library = build_library([MODELS / "textline_cls_bf16.onnx", MODELS / "tagger_u16.onnx"], tmp_path, target=target)
    assert library.suffix == targets.TARGETS[target].suffix
    assert format_of(library) == FORMATS[target]
