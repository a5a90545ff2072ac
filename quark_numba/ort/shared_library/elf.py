"""A shared library made without a compiler: an ELF file with one exported function, which jumps to an address of this process.

ONNX Runtime loads custom operators from shared libraries only. This one has no more than the dynamic linker requires (System V
ABI, "Object Files" and "Program Loading and Dynamic Linking"): a symbol table with one function.
"""

from __future__ import annotations

import struct
from typing import NamedTuple


class Machine(NamedTuple):
    """A processor: its number in ELF files, and the machine code of a function that sets its third argument and jumps."""

    elf_number: int
    parts: tuple[bytes | None, ...]  # of the code; the first None stands for the argument, the second for the address

    def code(self, address: int, argument: int) -> bytes:
        words = iter((argument, address))
        return b"".join(struct.pack("<Q", next(words)) if part is None else part for part in self.parts)


# By sysconfig.get_platform().
MACHINES = {
    # movabs rdx, argument; movabs rax, address; jmp rax
    "linux-x86_64": Machine(62, (b"\x48\xba", None, b"\x48\xb8", None, b"\xff\xe0")),
    # ldr x2, . + 16; ldr x16, . + 20; br x16; nop; argument; address. x16 is a register that a call may clobber on its way.
    "linux-aarch64": Machine(183, (struct.pack("<4I", 0x58000082, 0x580000B0, 0xD61F0200, 0xD503201F), None, None)),
}

_EHDR, _PHDR, _SYM, _DYN = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<IBBHQQ", "<QQ"
_ET_DYN, _EV_CURRENT = 3, 1
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_X, _W, _R = 1, 2, 4
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 4, 5, 6, 10, 11
_STB_GLOBAL_STT_FUNC = 1 << 4 | 2

# The largest size of a page on these machines: segments this far apart never share a page.
_PAGE = 0x10000


def shared_library(symbol: str, address: int, argument: int, machine: Machine) -> bytes:
    """Return the bytes of a library that exports `symbol`, which jumps to `address` with `argument` as its third argument.

    Two segments are loaded: one with headers, symbols and code (readable, executable), one with the dynamic section (readable,
    writable: the linker relocates it in place). Nothing is both writable and executable, not even the stack.
    """
    strings = b"\0" + symbol.encode() + b"\0"
    code = machine.code(address, argument)
    # One bucket, which holds symbol 1, and a chain of two, which ends there.
    hash_table = struct.pack("<5I", 1, 2, 1, 0, 0)

    program_headers = 4
    offset = struct.calcsize(_EHDR) + program_headers * struct.calcsize(_PHDR)
    symbols_at, offset = offset, offset + 2 * struct.calcsize(_SYM)
    hash_at, offset = offset, offset + len(hash_table)
    code_at = -(-offset // 8) * 8
    strings_at = code_at + len(code)
    dynamic_at = -(-(strings_at + len(strings)) // 8) * 8

    symbols = struct.pack(_SYM, 0, 0, 0, 0, 0, 0)
    symbols += struct.pack(_SYM, 1, _STB_GLOBAL_STT_FUNC, 0, 1, code_at, len(code))
    entries = [
        (_DT_HASH, hash_at),
        (_DT_STRTAB, strings_at),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, struct.calcsize(_SYM)),
        (0, 0),
    ]
    dynamic = b"".join(struct.pack(_DYN, *entry) for entry in entries)

    def segment(kind: int, flags: int, start: int, size: int, page: int = 0, align: int = _PAGE) -> bytes:
        return struct.pack(_PHDR, kind, flags, start, page + start, page + start, size, size, align)

    identification = b"\x7fELF" + bytes([2, 1, _EV_CURRENT])  # 64-bit, little-endian
    header = struct.pack(
        _EHDR,
        identification,
        _ET_DYN,
        machine.elf_number,
        _EV_CURRENT,
        0,  # no entry point
        struct.calcsize(_EHDR),  # the program headers follow
        *(0, 0),  # no section headers, no flags
        struct.calcsize(_EHDR),
        struct.calcsize(_PHDR),
        program_headers,
        *(0, 0, 0),  # of section headers: size, number, and which one has their names
    )
    header += segment(_PT_LOAD, _R | _X, 0, dynamic_at)
    header += segment(_PT_LOAD, _R | _W, dynamic_at, len(dynamic), _PAGE)
    header += segment(_PT_DYNAMIC, _R | _W, dynamic_at, len(dynamic), _PAGE, 8)
    header += segment(_PT_GNU_STACK, _R | _W, 0, 0, 0, 16)

    file = bytearray(dynamic_at + len(dynamic))
    for at, part in ((0, header + symbols + hash_table), (code_at, code), (strings_at, strings), (dynamic_at, dynamic)):
        file[at : at + len(part)] = part
    return bytes(file)
