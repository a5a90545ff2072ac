"""The shared library of the native backend for macOS, which is not run here: an independent reader accepts it, its signature
covers it, and its code jumps on emulated processors. The same checks hold for what zig links."""

import hashlib
import importlib.util
import platform
import struct
import subprocess
import sys
import sysconfig
import tempfile

import pytest
import unicorn
from unicorn import arm64_const, x86_const

from quark_numba.ort.shared_library import load, macho

lief = pytest.importorskip("lief")

ADDRESS, ARGUMENT = 0x7FF812345670, 0x1122334455667788
SOURCE = '__attribute__((visibility("default"))) int RegisterCustomOps(void *options, void *base) { return 0; }'
TARGETS = {"macos-x86_64": "x86_64-macos.11.0", "macos-arm64": "aarch64-macos.11.0"}

machines = pytest.mark.parametrize("machine", macho.MACHINES)


@pytest.fixture
def library(machine):
    return macho.shared_library("RegisterCustomOps", ADDRESS, ARGUMENT, macho.MACHINES[machine])


@pytest.fixture
def linked(machine, tmp_path):
    """The library that zig links for macOS."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang only")
    (tmp_path / "library.c").write_text(SOURCE)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[machine], "-shared", "-O2", "-s", "library.c"]
    subprocess.run([*command, "-o", "library.dylib"], check=True, cwd=tmp_path)
    return (tmp_path / "library.dylib").read_bytes()


def read(content):
    binary = lief.MachO.parse([*content]).at(0)
    assert lief.MachO.check_layout(binary) == (True, "")  # as macOS's dynamic linker looks at it
    return binary


def check_signature(content):
    """Check the signature: Apple's "kern/cs_blobs.h"."""
    found = read(content).code_signature
    assert found.data_offset % 16 == 0
    blob = content[found.data_offset :]
    magic, length, count, slot, at = struct.unpack_from(">5I", blob)
    assert (magic, count, slot) == (0xFADE0CC0, 1, 0)
    assert len(blob) >= length
    directory = blob[at:length]
    magic, size, version, flags, hashes, name, special, pages, limit = struct.unpack_from(">9I", directory)
    hash_size, hash_type, system, page_bits = directory[36:40]
    assert (magic, size, version) == (0xFADE0C02, len(directory), 0x20400)
    assert flags == 0x20002  # ad hoc, by a linker
    assert (hash_size, hash_type, system, special) == (32, 2, 0, 0)
    assert directory[name:].partition(b"\0")[0].isascii()
    assert limit == found.data_offset
    expected = [
        hashlib.sha256(content[start : min(start + (1 << page_bits), limit)]).digest()
        for start in range(0, limit, 1 << page_bits)
    ]
    assert pages == len(expected)
    assert directory[hashes : hashes + 32 * pages] == b"".join(expected)
    assert hashes + 32 * pages == size
    text = read(content).get_segment("__TEXT")
    base, end, kind = struct.unpack_from(">3Q", directory, 64)
    assert (base, end, kind) == (text.file_offset, text.file_size, 0)


@machines
def test_a_reader_accepts_it(library):
    binary = read(library)
    assert [(each.name, each.max_protection, each.init_protection) for each in binary.segments] == [
        ("__TEXT", 5, 5),
        ("__LINKEDIT", 1, 1),
    ]
    ends = [(each.file_offset + each.file_size, each.virtual_address % 0x4000) for each in binary.segments]
    assert ends == [(0x4000, 0), (len(library), 0)]
    exports = [(each.symbol.name, each.address) for each in binary.dyld_info.exports]
    assert exports == [("_RegisterCustomOps", binary.sections[0].offset)]
    assert [(each.name, each.value) for each in binary.symbols] == exports
    assert [*binary.bindings] == []
    assert [each.name for each in binary.libraries] == ["quark_numba.dylib", "/usr/lib/libSystem.B.dylib"]


@machines
@pytest.mark.slow
def test_it_is_like_what_zig_links(library, linked):
    ours, theirs = read(library), read(linked)
    for field in ("cpu_type", "cpu_subtype", "file_type", "flags"):
        assert getattr(ours.header, field) == getattr(theirs.header, field)
    # Each of its commands, except those that this library and the program that loads it do not have.
    spared = {"SEGMENT_64", "FUNCTION_STARTS", "DATA_IN_CODE", "LOAD_DYLINKER", "SOURCE_VERSION", "CODE_SIGNATURE"}
    names = [{each.command.name for each in binary.commands} for binary in (ours, theirs)]
    assert names[0] - spared == names[1] - spared
    assert ours.build_version.platform == theirs.build_version.platform
    assert ours.build_version.minos == theirs.build_version.minos
    assert "_RegisterCustomOps" in [each.symbol.name for each in theirs.dyld_info.exports]


@machines
def test_the_signature(library):
    check_signature(library)


@pytest.mark.parametrize("machine", ["macos-arm64"])
def test_the_signature_that_zig_makes(linked):
    """The check holds for what Apple's processors are known to run."""
    check_signature(linked)


@machines
def test_a_damaged_byte(library):
    """The check of a signature finds a damaged byte."""
    for at in (0x10, 0x250, 0x4010, len(library) - 1):
        damaged = bytearray(library)
        damaged[at] ^= 1
        with pytest.raises((AssertionError, AttributeError)):
            check_signature(bytes(damaged))


# Compiles for a machine, and prints whether kernels use its instructions for multiply-add and for float16.
INSTRUCTIONS = """
import sys
from quark_numba.compiling import other_machines

other_machines.begin(other_machines.Machine(*sys.argv[1:]))
from quark_numba.compiling import intrinsics

print(intrinsics.HAS_FMA, intrinsics.HAS_FLOAT16)
"""


@pytest.mark.compiled
@pytest.mark.parametrize("triple", ["arm64-apple-darwin23.6.0", "aarch64-unknown-linux-gnu"])
def test_instructions_of_aarch64(triple):
    """Apple uses another name for the processor."""
    command = [sys.executable, "-c", INSTRUCTIONS, triple, "apple-m1", ""]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True True\n"


# For each processor: its emulator; the registers of the first three arguments, three that have to keep their values, with the
# stack pointer last, and the program counter.
PROCESSORS = {
    "macos-x86_64": (unicorn.UC_ARCH_X86, unicorn.UC_MODE_64, x86_const, "X86", "RDI RSI RDX RCX RBX RSP RIP"),
    "macos-arm64": (unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, arm64_const, "ARM64", "X0 X1 X2 X3 X30 SP PC"),
}


@machines
def test_it_jumps(machine, library):
    """On an emulated processor, with the file loaded anywhere, the code jumps to the address with that third argument."""
    architecture, mode, constants, prefix, names = PROCESSORS[machine]
    *registers, place = (getattr(constants, f"UC_{prefix}_REG_{name}") for name in names.split())
    binary, base, stack = read(library), 0x7FF712340000, 0x20000
    processor = unicorn.Uc(architecture, mode)
    for each in binary.segments:
        start, length = base + each.virtual_address, each.virtual_size
        processor.mem_map(start, length, each.init_protection)
        processor.mem_write(start, library[each.file_offset :][: each.file_size])
    for other in (ADDRESS, stack):
        processor.mem_map(other & -0x10000, 0x10000)
    before = dict(zip(registers, [11, 22, 33, 44, 55, stack], strict=True))
    for register, value in before.items():
        processor.reg_write(register, value)
    (export,) = binary.dyld_info.exports
    processor.emu_start(base + export.address, ADDRESS, count=10)
    expected = before | {registers[2]: ARGUMENT, place: ADDRESS}
    assert {register: processor.reg_read(register) for register in expected} == expected


@pytest.mark.parametrize("processor", ["arm64", "x86_64"])
@pytest.mark.parametrize("name", ["macosx-11.0-arm64", "macosx-10.13-universal2"])
def test_the_file_that_macos_loads(processor, name, monkeypatch, tmp_path):
    """The file is written whole, under a private name, and is loaded, and is removed at the end of the process."""
    monkeypatch.setattr(sysconfig, "get_platform", lambda: name)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []
    monkeypatch.setattr(load, "_load", lambda path, *_: seen.append(path))
    load.check_platform()
    path = load.load("RegisterCustomOps", ADDRESS, ARGUMENT)
    assert seen == [path]
    assert path.endswith(".dylib")
    with open(path, "rb") as file:
        content = file.read()
    assert read(content).header.cpu_type.name == {"arm64": "ARM64", "x86_64": "X86_64"}[processor]
    load._remove(path, load.os.getpid())
    assert [*tmp_path.iterdir()] == []
