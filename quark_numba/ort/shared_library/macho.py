"""A shared library for macOS, made without a compiler: a Mach-O file with one exported function, which jumps to an address of
this process, and with the signature that Apple's processors require.

The file has what macOS's dynamic linker requires ("mach-o/loader.h") and nothing that it would have to change. The signature is
"ad hoc": it holds digests of the pages of the file, and no name of a signer ("kern/cs_blobs.h").
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import NamedTuple

from . import elf


class Machine(NamedTuple):
    """A processor: its type and subtype in Mach-O files, and its code (a function of address and argument), as on Linux."""

    cpu_type: int
    cpu_subtype: int
    code: Callable[[int, int], bytes]


# By the processor that the process runs on.
MACHINES = {
    "macos-x86_64": Machine(0x01000007, 3, elf.MACHINES["linux-x86_64"].code),
    "macos-arm64": Machine(0x0100000C, 0, elf.MACHINES["linux-aarch64"].code),
}

# The larger one of the two processors' pages, to which segments are aligned, and the pages that the signature counts.
_PAGE, _SIGNED_PAGE_BITS = 0x4000, 12
_NAME = b"quark_numba.dylib"

_HEADER, _SEGMENT, _SECTION = "<8I", "<II16s4Q4I", "<16s16sQQ8I"
_MH_MAGIC_64, _MH_DYLIB = 0xFEEDFACF, 6
_MH_NOUNDEFS, _MH_DYLDLINK, _MH_TWOLEVEL, _MH_NO_REEXPORTED_DYLIBS = 1, 4, 0x80, 0x100000
_LC_SYMTAB, _LC_DYSYMTAB, _LC_LOAD_DYLIB, _LC_ID_DYLIB, _LC_SEGMENT_64, _LC_UUID = 0x2, 0xB, 0xC, 0xD, 0x19, 0x1B
_LC_CODE_SIGNATURE, _LC_DYLD_INFO_ONLY, _LC_BUILD_VERSION = 0x1D, 0x80000022, 0x32
_READ, _EXECUTE = 1, 4
_INSTRUCTIONS = 0x80000400  # S_ATTR_PURE_INSTRUCTIONS | S_ATTR_SOME_INSTRUCTIONS
_PLATFORM_MACOS, _MACOS_11 = 1, 11 << 16
_N_SECT_EXT, _NLIST = 0xF, "<IBBHQ"

_CSMAGIC_EMBEDDED_SIGNATURE, _CSMAGIC_CODEDIRECTORY, _CSSLOT_CODEDIRECTORY = 0xFADE0CC0, 0xFADE0C02, 0
_CS_SUPPORTSEXECSEG = 0x20400
_CS_ADHOC, _CS_LINKER_SIGNED = 0x2, 0x20000
_CS_HASHTYPE_SHA256 = 2
_SUPER_BLOB, _CODE_DIRECTORY = ">5I", ">9I4B4I4Q"


def shared_library(symbol: str, address: int, argument: int, machine: Machine) -> bytes:
    """Return the bytes of a library that exports `symbol`, which jumps to `address` with `argument` as its third argument.

    Two segments are loaded: one with headers and code (readable, executable), one with symbols and the signature (readable).
    Nothing is writable.
    """
    code = machine.code(address, argument)
    name = b"_" + symbol.encode()
    commands_size = sum(map(len, _commands(0, 0, b"", b"", 0, 0, b"")))
    code_at = _aligned(struct.calcsize(_HEADER) + commands_size, 16)

    trie = _export_trie(name, code_at)
    symbols = struct.pack(_NLIST, 2, _N_SECT_EXT, 1, 0, code_at)
    strings = _padded(b" \0" + name + b"\0", 8)
    signature_at = _aligned(_PAGE + len(trie) + len(symbols) + len(strings), 16)
    size = signature_at + _size_of_signature(signature_at)

    def headers(uuid: bytes) -> bytes:
        commands = _commands(code_at, len(code), trie, strings, signature_at, size, uuid)
        flags = _MH_NOUNDEFS | _MH_DYLDLINK | _MH_TWOLEVEL | _MH_NO_REEXPORTED_DYLIBS
        kind = machine.cpu_type, machine.cpu_subtype, _MH_DYLIB
        return struct.pack(_HEADER, _MH_MAGIC_64, *kind, len(commands), commands_size, flags, 0) + b"".join(commands)

    def signed(uuid: bytes) -> bytes:
        text = (headers(uuid).ljust(code_at, b"\0") + code).ljust(_PAGE, b"\0")
        return (text + trie + symbols + strings).ljust(signature_at, b"\0")

    # The identifier of the content, as linkers make it.
    content = signed(hashlib.sha256(signed(b"")).digest()[:16])
    return content + _signature(content)


def _aligned(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _padded(content: bytes, multiple: int) -> bytes:
    return content.ljust(_aligned(len(content), multiple), b"\0")


def _commands(
    code_at: int, code_size: int, trie: bytes, strings: bytes, signature_at: int, size: int, uuid: bytes
) -> list[bytes]:
    """Return the load commands. Their sizes do not depend on the arguments."""

    def command(kind: int, *words: int, rest: bytes = b"") -> bytes:
        content = struct.pack(f"<{len(words)}I", *words) + rest
        return struct.pack("<II", kind, 8 + len(content)) + content

    def segment(name: bytes, start: int, length: int, protection: int, sections: bytes, count: int) -> bytes:
        total = struct.calcsize(_SEGMENT) + len(sections)
        memory = start, _aligned(length, _PAGE), start, length
        return struct.pack(_SEGMENT, _LC_SEGMENT_64, total, name, *memory, protection, protection, count, 0) + sections

    def dylib(kind: int, name: bytes) -> bytes:
        return command(kind, 24, 0, 1 << 16, 1 << 16, rest=_padded(name + b"\0", 8))

    text = struct.pack(_SECTION, b"__text", b"__TEXT", code_at, code_size, code_at, 4, 0, 0, _INSTRUCTIONS, 0, 0, 0)
    symbols_at = _PAGE + len(trie)
    strings_at = symbols_at + struct.calcsize(_NLIST)
    return [
        segment(b"__TEXT", 0, _PAGE, _READ | _EXECUTE, text, 1),
        segment(b"__LINKEDIT", _PAGE, max(0, size - _PAGE), _READ, b"", 0),
        dylib(_LC_ID_DYLIB, _NAME),
        # Nothing to rebase or to bind: only an export trie.
        command(_LC_DYLD_INFO_ONLY, *[0] * 8, _PAGE, len(trie)),
        command(_LC_SYMTAB, symbols_at, 1, strings_at, len(strings)),
        # No local symbol, one external symbol, no undefined symbol.
        command(_LC_DYSYMTAB, 0, 0, 0, 1, 1, *[0] * 13),
        command(_LC_UUID, rest=uuid.ljust(16, b"\0")),
        command(_LC_BUILD_VERSION, _PLATFORM_MACOS, _MACOS_11, _MACOS_11, 0),
        # The linker refuses a library that does not need the system's library.
        dylib(_LC_LOAD_DYLIB, b"/usr/lib/libSystem.B.dylib"),
        command(_LC_CODE_SIGNATURE, signature_at, size - signature_at),
    ]


def _export_trie(name: bytes, at: int) -> bytes:
    """Return a root with one edge, the whole name, to a node with the address."""
    node = b"\0" + _uleb128(at)  # EXPORT_SYMBOL_FLAGS_KIND_REGULAR
    root = b"\0\1" + name + b"\0"
    return _padded(root + bytes([len(root) + 1, len(node)]) + node + b"\0", 8)


def _uleb128(number: int) -> bytes:
    result = b""
    while number >= 0x80:
        result += bytes([number & 0x7F | 0x80])
        number >>= 7
    return result + bytes([number])


def _size_of_signature(covered: int) -> int:
    pages = _aligned(covered, 1 << _SIGNED_PAGE_BITS) >> _SIGNED_PAGE_BITS
    return struct.calcsize(_SUPER_BLOB) + struct.calcsize(_CODE_DIRECTORY) + len(_NAME) + 1 + 32 * pages


def _signature(content: bytes) -> bytes:
    """Return the signature of all bytes before it: a digest for each page."""
    size = 1 << _SIGNED_PAGE_BITS
    digests = [hashlib.sha256(content[start : start + size]).digest() for start in range(0, len(content), size)]
    name_at = struct.calcsize(_CODE_DIRECTORY)
    digests_at = name_at + len(_NAME) + 1
    total = _size_of_signature(len(content))
    begin = struct.calcsize(_SUPER_BLOB)
    directory = struct.pack(
        _CODE_DIRECTORY,
        _CSMAGIC_CODEDIRECTORY,
        total - begin,
        _CS_SUPPORTSEXECSEG,
        _CS_ADHOC | _CS_LINKER_SIGNED,
        digests_at,
        name_at,
        0,  # no special slots
        len(digests),
        len(content),
        *(hashlib.sha256().digest_size, _CS_HASHTYPE_SHA256, 0, _SIGNED_PAGE_BITS),
        *(0, 0, 0, 0),  # reserved, no scattered pages, no team, reserved
        0,  # no size of more than 32 bits
        *(0, _PAGE, 0),  # the executable segment, which is no main program's
    )
    blob = struct.pack(_SUPER_BLOB, _CSMAGIC_EMBEDDED_SIGNATURE, total, 1, _CSSLOT_CODEDIRECTORY, begin)
    return blob + directory + _NAME + b"\0" + b"".join(digests)
