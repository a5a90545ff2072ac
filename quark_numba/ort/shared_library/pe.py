"""A DLL made without a compiler: a PE32+ file with one exported function, which jumps to an address held in a variable.

Windows does not let anybody remove a file that is loaded. So one file serves all processes, and each process sets the variable
in its own memory. The file has no more than Windows' loader requires (Microsoft's "PE Format"): a table of exports. There is no
entry point, nothing is imported, and nothing depends on where the file is loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

# The exported variable: two words, the function's third argument and the address that it jumps to.
WORDS = "words"

# The addresses of the sections, one page apart.
_PAGE = 0x1000
_TEXT, _RDATA, _DATA = _PAGE, 2 * _PAGE, 3 * _PAGE
_SIZE_OF_WORDS = 16

# In the file, sections begin at multiples of this.
_FILE_ALIGNMENT = 0x200


class Machine(NamedTuple):
    """A processor: its number in PE files, and the machine code of a function that sets its third argument and jumps.

    `code` takes the distances from the first byte of the code to the two words, the argument and the address. If the address is
    0, the function returns 0, which ONNX Runtime takes for success although no operators are registered. That happens in a
    process that got the path from another one."""

    pe_number: int
    code: Callable[[int, int], bytes]


def _x86_64(argument: int, address: int) -> bytes:
    # mov rax, [rip + …]; test rax, rax; jz . + 11; mov r8, [rip + …]; jmp rax; ret. rip is the address of the next instruction.
    parts = b"\x48\x8b\x05", address - 7, b"\x48\x85\xc0\x74\x09", b"\x4c\x8b\x05", argument - 19, b"\xff\xe0\xc3"
    return struct.pack("<3si5s3si3s", *parts)


def _aarch64(argument: int, address: int) -> bytes:
    # ldr x16, …; cbz x16, . + 12; ldr x2, …; br x16; mov x0, xzr; ret. The distance from an instruction is counted in
    # instructions, of 4 bytes, and begins at bit 5.
    load_address, load_argument = 0x58000010 | address // 4 << 5, 0x58000002 | (argument - 8) // 4 << 5
    return struct.pack("<6I", load_address, 0xB4000070, load_argument, 0xD61F0200, 0xAA1F03E0, 0xD65F03C0)


# By sysconfig.get_platform().
MACHINES = {"win-amd64": Machine(0x8664, _x86_64), "win-arm64": Machine(0xAA64, _aarch64)}

_IMAGE_FILE_EXECUTABLE_IMAGE, _IMAGE_FILE_LARGE_ADDRESS_AWARE, _IMAGE_FILE_DLL = 0x2, 0x20, 0x2000
_PE32_PLUS, _IMAGE_SUBSYSTEM_WINDOWS_GUI = 0x20B, 2
_HIGH_ENTROPY_VA, _DYNAMIC_BASE, _NX_COMPAT = 0x20, 0x40, 0x100
_CODE, _INITIALIZED, _UNINITIALIZED = 0x20, 0x40, 0x80
_EXECUTE, _READ, _WRITE = 0x20000000, 0x40000000, 0x80000000

_DOS_HEADER, _FILE_HEADER, _SECTION = "<2s58xI", "<4sHHIIIHH", "<8sIIIIIIHHI"
_OPTIONAL_HEADER = "<HBBIIIIIQIIHHHHHHIIIIHHQQQQII"
_DIRECTORIES, _DIRECTORY = 16, "<II"
_EXPORTS = "<IIHHIIIIIII"


def code(machine: Machine) -> bytes:
    """Return the machine code of the function."""
    return machine.code(_DATA - _TEXT, _DATA + 8 - _TEXT)


def shared_library(symbol: str, machine: Machine) -> bytes:
    """Return the bytes of a DLL that exports a function and a variable. The variable, WORDS, holds an argument and an address,
    and is zero at first. The function, `symbol`, jumps to that address with that third argument.

    Three sections are loaded: code (readable, executable), the table of exports (readable), and the variable (readable,
    writable). Nothing is both writable and executable.
    """
    exports = _export_table({symbol: _TEXT, WORDS: _DATA})
    sections = [
        (b".text", _TEXT, code(machine), 0, _CODE | _EXECUTE | _READ),
        (b".rdata", _RDATA, exports, 0, _INITIALIZED | _READ),
        (b".data", _DATA, b"", _SIZE_OF_WORDS, _UNINITIALIZED | _READ | _WRITE),
    ]
    dos_size = struct.calcsize(_DOS_HEADER)
    optional_size = struct.calcsize(_OPTIONAL_HEADER) + _DIRECTORIES * struct.calcsize(_DIRECTORY)
    file_header = struct.pack(
        _FILE_HEADER,
        b"PE\0\0",
        machine.pe_number,
        len(sections),
        0,  # no timestamp
        *(0, 0),  # no symbols
        optional_size,
        _IMAGE_FILE_EXECUTABLE_IMAGE | _IMAGE_FILE_LARGE_ADDRESS_AWARE | _IMAGE_FILE_DLL,
    )
    optional_header = struct.pack(
        _OPTIONAL_HEADER,
        _PE32_PLUS,
        *(0, 0),  # no linker version
        *(_FILE_ALIGNMENT, _FILE_ALIGNMENT, 0),  # sizes of code, of initialized and of uninitialized data
        0,  # no entry point
        _TEXT,
        0x180000000,  # where linkers place DLLs of 64 bits; Windows places it elsewhere
        _PAGE,
        _FILE_ALIGNMENT,
        *(6, 2, 0, 0, 6, 2),  # Windows 8, the first on AArch64
        0,
        _DATA + _PAGE,
        _FILE_ALIGNMENT,  # size of headers
        0,  # no checksum: only drivers need one
        _IMAGE_SUBSYSTEM_WINDOWS_GUI,
        _HIGH_ENTROPY_VA | _DYNAMIC_BASE | _NX_COMPAT,
        *(1 << 20, _PAGE, 1 << 20, _PAGE),  # sizes of stack and heap, which matter only in programs
        0,
        _DIRECTORIES,
    )
    directories = struct.pack(_DIRECTORY, _RDATA, len(exports)).ljust(_DIRECTORIES * struct.calcsize(_DIRECTORY), b"\0")
    headers = struct.pack(_DOS_HEADER, b"MZ", dos_size) + file_header + optional_header + directories
    contents = b""
    for name, start, content, size_of_zeros, flags in sections:
        raw = _padded(content)
        at = _FILE_ALIGNMENT + len(contents) if content else 0
        headers += struct.pack(_SECTION, name, len(content) or size_of_zeros, start, len(raw), at, 0, 0, 0, 0, flags)
        contents += raw
    return _padded(headers) + contents


def _export_table(addresses: dict[str, int]) -> bytes:
    """Return the table of exports, loaded at _RDATA. Names are sorted by their bytes, because the loader does a binary
    search."""
    names = sorted(addresses)
    functions_at = _RDATA + struct.calcsize(_EXPORTS)
    names_at = functions_at + 4 * len(names)
    ordinals_at = names_at + 4 * len(names)
    strings_at = ordinals_at + 2 * len(names)
    strings, places = b"", []
    for name in (*names, "quark_numba.dll"):
        places.append(strings_at + len(strings))
        strings += name.encode() + b"\0"
    count = len(names)
    table = struct.pack(_EXPORTS, 0, 0, 0, 0, places[-1], 1, count, count, functions_at, names_at, ordinals_at)
    table += struct.pack(f"<{count}I{count}I{count}H", *(addresses[name] for name in names), *places[:-1], *range(count))
    return table + strings


def _padded(content: bytes) -> bytes:
    return content.ljust(-(-len(content) // _FILE_ALIGNMENT) * _FILE_ALIGNMENT, b"\0")
