"""The shared library of the native backend: its bytes, and how a process loads it on Linux and on Windows."""

import ctypes
import os
import struct
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numba
import onnxruntime
import pefile
import processes
import pytest
import unicorn
from marks import needs_extensions
from onnx_models import one_node, session
from unicorn import arm64_const, x86_const

import quark_numba
from quark_numba.compiling import cache
from quark_numba.ort import native
from quark_numba.ort.shared_library import elf, load, pe

pytestmark = pytest.mark.compiled

linux = pytest.mark.skipif(sys.platform != "linux", reason="how Linux loads it")
windows = pytest.mark.skipif(sys.platform != "win32", reason="how Windows loads it")

dlls = pytest.mark.parametrize("machine", pe.MACHINES)


@pytest.mark.parametrize("machine", elf.MACHINES)
def test_library_segments(machine):
    """No segment, including the stack, is both writable and executable, and no two segments share a page."""
    library = elf.shared_library("RegisterCustomOps", 0x1234, 0x5678, elf.MACHINES[machine])
    assert library[:4] == b"\x7fELF"
    assert struct.pack("<Q", 0x1234) in library
    assert struct.pack("<Q", 0x5678) in library
    count = struct.unpack_from("<H", library, 56)[0]
    headers = [struct.unpack_from("<IIQQQQQQ", library, 64 + 56 * i) for i in range(count)]
    assert not any(flags & 1 and flags & 2 for _, flags, *_ in headers)
    assert 0x6474E551 in [kind for kind, *_ in headers]
    pages = [range(start // 4096, -(-(start + size) // 4096)) for kind, _, _, start, _, _, size, _ in headers if kind == 1]
    assert not set(pages[0]) & set(pages[1])


@dlls
def test_dll(machine):
    """An independent reader finds two exports, and nothing to run, import or relocate at loading."""
    content = pe.shared_library("RegisterCustomOps", pe.MACHINES[machine])
    assert len(content) < 4096
    dll = pefile.PE(data=content)
    assert dll.is_dll()
    assert dll.FILE_HEADER.Machine == {"win-amd64": 0x8664, "win-arm64": 0xAA64}[machine]
    assert dll.OPTIONAL_HEADER.AddressOfEntryPoint == 0
    assert [each.name for each in dll.OPTIONAL_HEADER.DATA_DIRECTORY if each.VirtualAddress] == ["IMAGE_DIRECTORY_ENTRY_EXPORT"]
    exports = {each.name: each.address for each in dll.DIRECTORY_ENTRY_EXPORT.symbols}
    assert list(exports) == [b"RegisterCustomOps", b"words"]  # in the order of their bytes
    sections = {each.Name.rstrip(b"\0"): each for each in dll.sections}
    for name, flags in ((b".text", "xr"), (b".rdata", "r"), (b".data", "rw")):
        each = sections[name]
        found = each.IMAGE_SCN_MEM_EXECUTE, each.IMAGE_SCN_MEM_READ, each.IMAGE_SCN_MEM_WRITE
        assert found == ("x" in flags, "r" in flags, "w" in flags)
    for name, section in ((b"RegisterCustomOps", b".text"), (b"words", b".data")):
        assert sections[section].contains_rva(exports[name])
    starts = [each.VirtualAddress for each in dll.sections]
    assert all(start % dll.OPTIONAL_HEADER.SectionAlignment == 0 for start in starts)
    assert starts == sorted(set(starts))


# For each processor: its emulator; and the registers of the first three arguments, three registers that have to keep their
# values, with the stack pointer last, the register of the result, and the program counter.
PROCESSORS = {
    "win-amd64": (unicorn.UC_ARCH_X86, unicorn.UC_MODE_64, x86_const, "X86", "RCX RDX R8 R9 RBX RSP RAX RIP"),
    "win-arm64": (unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, arm64_const, "ARM64", "X0 X1 X2 X3 X30 SP X0 PC"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows runs it itself")
@pytest.mark.parametrize("is_set", [True, False])
@dlls
def test_dll_jumps(machine, is_set):
    """On an emulated processor, with the file loaded anywhere, the code jumps to the address with the argument as the third
    one. Without an address, it returns 0."""
    dll = pefile.PE(data=pe.shared_library("RegisterCustomOps", pe.MACHINES[machine]))
    address, argument, target, stack, back = 0x7FF712340000, 0x1122334455667788, 0x7FF812345670, 0x20000, 0x30000
    exports = {each.name: address + each.address for each in dll.DIRECTORY_ENTRY_EXPORT.symbols}
    architecture, mode, constants, prefix, names = PROCESSORS[machine]
    *registers, result, place = (getattr(constants, f"UC_{prefix}_REG_{name}") for name in names.split())
    processor = unicorn.Uc(architecture, mode)
    processor.mem_map(address, dll.OPTIONAL_HEADER.SizeOfImage)
    processor.mem_write(address, bytes(dll.get_memory_mapped_image()))
    for other in (target, stack, back):
        processor.mem_map(other & -0x10000, 0x10000)
    processor.mem_write(stack, struct.pack("<Q", back))  # where x86-64 has the return address; AArch64 has it in x30
    before = dict(zip(registers, [11, 22, 33, 44, back, stack], strict=True))
    for register, value in before.items():
        processor.reg_write(register, value)
    if is_set:
        processor.mem_write(exports[b"words"], struct.pack("<2Q", argument, target))
        expected = before | {registers[2]: argument}
    else:
        expected = before | {result: 0} | ({registers[5]: stack + 8} if machine == "win-amd64" else {})
    processor.emu_start(exports[b"RegisterCustomOps"], target if is_set else back, count=10)
    assert {register: processor.reg_read(register) for register in expected} == expected
    assert processor.reg_read(place) == (target if is_set else back)


@pytest.fixture
def no_library(monkeypatch):
    vars(native.REGISTRY).pop("library", None)
    yield monkeypatch
    vars(native.REGISTRY).pop("library", None)


def _refuse(*_):
    raise OSError("refused")


@linux
def test_a_temporary_file_where_memory_files_are_refused(no_library):
    no_library.setattr(os, "memfd_create", _refuse)
    path = quark_numba.get_library_path()
    assert not path.startswith("/proc")
    assert os.stat(path).st_mode & 0o777 == 0o600
    session(one_node("quantize", "uint8"))


@linux
def test_a_python_without_memory_files(no_library):
    no_library.delattr(os, "memfd_create")
    assert not quark_numba.get_library_path().startswith("/proc")
    session(one_node("quantize", "uint8"))


@linux
def test_the_number_of_a_memory_file_that_was_another_library(no_library):
    """The library's path differs from that of an earlier memory file, as the linker knows libraries by their paths."""
    descriptor = os.memfd_create("another")
    os.write(descriptor, elf.shared_library("Another", 0, 0, elf.MACHINES[sysconfig.get_platform()]))
    ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)
    path = quark_numba.get_library_path()
    assert path != f"/proc/self/fd/{descriptor}"
    session(one_node("quantize", "uint8"))


@linux
def test_files_that_cannot_be_loaded_are_not_left_behind(no_library, tmp_path):
    no_library.setattr(ctypes, "CDLL", _refuse)
    no_library.setattr(tempfile, "tempdir", str(tmp_path))
    descriptors = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot be loaded"):
            quark_numba.get_library_path()
    assert os.listdir("/proc/self/fd") == descriptors
    assert not os.listdir(tmp_path)


@linux
@needs_extensions
def test_extensions_where_files_are_refused_too(no_library):
    no_library.setattr(load, "_load_memory_file", _refuse)
    no_library.setattr(load, "_load_temporary_file", _refuse)
    with pytest.raises(RuntimeError, match="cannot be loaded: refused; refused"):
        quark_numba.register(onnxruntime.SessionOptions(), backend="native")
    with pytest.warns(RuntimeWarning, match="lacks float16 and bfloat16.*speed") as warnings:
        assert quark_numba.register(onnxruntime.SessionOptions()) == "extensions"
    assert len(warnings) == 1


def test_another_platform(no_library):
    no_library.setattr(sysconfig, "get_platform", lambda: "freebsd-14.3-amd64")
    expected = (
        "needs linux-x86_64, linux-aarch64, macos-x86_64, macos-arm64, win-amd64 or win-arm64, this is freebsd-14.3-amd64"
    )
    with pytest.raises(RuntimeError, match=expected):
        quark_numba.get_library_path()


@pytest.fixture
def loaded(monkeypatch):
    """The contents of the kept files that would have been loaded."""
    contents = []
    monkeypatch.setattr(load, "_load", lambda path, *_: contents.append(Path(path).read_bytes()))
    monkeypatch.setattr(load, "_PAUSE", 0)
    return contents


CONTENT = pe.shared_library("RegisterCustomOps", pe.MACHINES["win-amd64"])
DAMAGED = {
    "truncated": CONTENT[:700],
    "longer": CONTENT + b"\0",
    "a bit": CONTENT[:515] + bytes([CONTENT[515] ^ 4]) + CONTENT[516:],
    "another library": pe.shared_library("Another", pe.MACHINES["win-amd64"]),
    "empty": b"",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_kept_file_that_is_another_is_replaced(damage, loaded, tmp_path):
    path = tmp_path / "folder" / "kept.dll"
    for before in (None, DAMAGED[damage], CONTENT):
        if before is not None:
            path.write_bytes(before)
        load._loaded_kept_file(str(path), CONTENT, "", b"")
        assert loaded.pop() == path.read_bytes() == CONTENT
        assert os.listdir(path.parent) == [path.name]


def test_a_kept_file_that_cannot_be_replaced_is_not_loaded(loaded, tmp_path, monkeypatch):
    path = tmp_path / "kept.dll"
    path.write_bytes(DAMAGED["another library"])
    monkeypatch.setattr(os, "replace", _refuse)
    with pytest.raises(OSError, match=r"kept.dll is another file; it cannot be written"):
        load._loaded_kept_file(str(path), CONTENT, "", b"")
    assert not loaded
    assert os.listdir(tmp_path) == [path.name]


def test_a_kept_file_that_another_process_has_just_written(loaded, tmp_path, monkeypatch):
    """Windows lets no process replace the file then."""
    path = tmp_path / "kept.dll"

    def lose(*_):
        path.write_bytes(CONTENT)
        raise PermissionError(13, "refused")

    monkeypatch.setattr(os, "replace", lose)
    load._loaded_kept_file(str(path), CONTENT, "", b"")
    assert loaded == [CONTENT]


@needs_extensions
def test_extensions_where_no_folder_can_be_written(no_library, tmp_path):
    cache.location()  # kernels stay where other tests have them
    (tmp_path / "file").write_bytes(b"")
    no_library.setattr(sysconfig, "get_platform", lambda: "win-amd64")
    no_library.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    no_library.setattr(load, "_PAUSE", 0)
    with pytest.warns(RuntimeWarning, match=r"native backend is not available.*\.dll: .*cannot be written: .*lacks float16"):
        assert quark_numba.register(onnxruntime.SessionOptions()) == "extensions"


KEPT = """
from quark_numba.ort.shared_library import load, pe
import ctypes, sysconfig
path = load._kept_file(pe.shared_library("RegisterCustomOps", pe.MACHINES[sysconfig.get_platform()]))
handle_of = ctypes.WinDLL("kernel32").GetModuleHandleW
"""


@windows
@pytest.mark.slow
def test_eight_processes_with_one_file(tmp_path):
    """At first the kernels are compiled, but there is no library. A ninth process finds the library and leaves it unchanged."""
    code = f"""{KEPT}
import numba, onnxruntime
folder = {str(tmp_path)!r}
open(os.path.join(folder, f"ready{{os.getpid()}}"), "w").close()
while not os.path.exists(os.path.join(folder, "go")): time.sleep(0.001)
assert get_library_path() == path
check('int8')
"""
    (tmp_path / "go").write_bytes(b"")
    processes.run(code, NUMBA_CACHE_DIR=str(tmp_path))
    (path,) = tmp_path.rglob("*.dll*")
    for each in (path, tmp_path / "go", *tmp_path.glob("ready*")):
        each.unlink()
    children = [processes.start(code, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(8)]
    while len(list(tmp_path.glob("ready*"))) < len(children):
        assert not any(child.poll() for child in children)
        time.sleep(0.1)
    (tmp_path / "go").write_bytes(b"")
    assert [child.wait(300) for child in children] == [0] * 8
    assert list(tmp_path.rglob("*.dll*")) == [path]
    before = path.stat()
    processes.run(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@windows
def test_damaged_dlls_are_not_loaded(tmp_path):
    """Damaged libraries are replaced, or refused if they are open elsewhere."""
    code = f"""{KEPT}
from quark_numba.ort import native
load._PAUSE = 0
os.makedirs(os.path.dirname(path))
def damage(content):
    with open(path, "wb") as file:
        file.write(content)
for content in {list(DAMAGED.values())!r}:
    damage(content)
    with open(path, "rb"):
        try:
            get_library_path()
        except RuntimeError as error:
            assert "is another file; it cannot be written" in str(error), error
        else:
            raise SystemExit("loaded")
    assert not handle_of(path)
    vars(native.REGISTRY).pop("library", None)
check('int8')
assert handle_of(path)
with open(path, "rb") as file:
    assert file.read() == pe.shared_library("RegisterCustomOps", pe.MACHINES[sysconfig.get_platform()])
"""
    processes.run(code, NUMBA_CACHE_DIR=str(tmp_path))


@windows
def test_a_process_that_was_given_the_path(tmp_path):
    """A process that loads the library by its path, without `get_library_path`, has no operators, and goes on."""
    processes.run("get_library_path()", NUMBA_CACHE_DIR=str(tmp_path))
    code = f"""{KEPT}
import onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(path)
try:
    onnxruntime.InferenceSession(one_node("quantize", "int8").SerializeToString(), options)
except Exception as error:
    assert "ExtendedQuantizeLinear" in str(error), error
else:
    raise SystemExit("created")
"""
    processes.run(code, NUMBA_CACHE_DIR=str(tmp_path))
