"""Write a python.exe (x86-64). Like the one of CPython, it does little more than call Py_Main.

python3 make_python_exe.py python311.dll python.exe
"""

import struct
import sys

PAGE, BLOCK, BASE = 0x1000, 0x200, 0x140000000
TEXT, RDATA = PAGE, 2 * PAGE


def main(library, path):
    imports = {"KERNEL32.dll": ["GetCommandLineW", "ExitProcess"], "SHELL32.dll": ["CommandLineToArgvW"], library: ["Py_Main"]}

    # The import directory, with one row per DLL and an empty one; two equal tables for each DLL; names.
    tables_at = RDATA + 20 * (len(imports) + 1)
    words = sum(len(names) + 1 for names in imports.values())
    texts_at = tables_at + 2 * 8 * words
    texts, lookups, rows, slots = b"", b"", b"", {}
    for dll, names in imports.items():
        start = len(lookups)
        for name in names:
            slots[name] = tables_at + 8 * words + len(lookups)
            lookups += struct.pack("<Q", texts_at + len(texts))
            texts += b"\0\0" + name.encode() + b"\0"
            texts += b"\0" * (len(texts) % 2)
        lookups += bytes(8)
        rows += struct.pack("<5I", tables_at + start, 0, 0, texts_at + len(texts), tables_at + 8 * words + start)
        texts += dll.encode() + b"\0"
        texts += b"\0" * (len(texts) % 2)
    rdata = rows + bytes(20) + lookups + lookups + texts

    code = b"\x48\x83\xec\x38"  # sub rsp, 0x38

    def call(name):
        nonlocal code
        code += b"\xff\x15" + struct.pack("<i", slots[name] - (TEXT + len(code) + 6))

    call("GetCommandLineW")
    code += b"\x48\x89\xc1"  # mov rcx, rax
    code += b"\x48\x8d\x54\x24\x28"  # lea rdx, [rsp + 0x28]
    call("CommandLineToArgvW")
    code += b"\x8b\x4c\x24\x28"  # mov ecx, [rsp + 0x28]
    code += b"\x48\x89\xc2"  # mov rdx, rax
    call("Py_Main")
    code += b"\x89\xc1"  # mov ecx, eax
    call("ExitProcess")
    code += b"\xcc"

    def whole(part):
        return part.ljust(-(-len(part) // BLOCK) * BLOCK, b"\0")

    header = struct.pack("<2s58xI", b"MZ", 64) + struct.pack("<4sHHIIIHH", b"PE\0\0", 0x8664, 2, 0, 0, 0, 240, 0x22)
    header += struct.pack(
        "<HBBIIIIIQIIHHHHHHIIIIHHQQQQII",
        *(0x20B, 14, 0, BLOCK, len(whole(rdata)), 0, TEXT, TEXT, BASE, PAGE, BLOCK),
        *(6, 0, 0, 0, 6, 0, 0, 3 * PAGE, 2 * BLOCK, 0),
        *(3, 0x160),  # console; NX, ASLR and high addresses, as in CPython's
        *(2_000_000, 0x1000, 0x100000, 0x1000, 0, 16),  # CPython's stack
    )
    header += (bytes(8) + struct.pack("<II", RDATA, 20 * (len(imports) + 1))).ljust(128, b"\0")
    header += struct.pack("<8sIIIIIIHHI", b".text", len(code), TEXT, BLOCK, 2 * BLOCK, 0, 0, 0, 0, 0x60000020)
    header += struct.pack("<8sIIIIIIHHI", b".rdata", len(rdata), RDATA, len(whole(rdata)), 3 * BLOCK, 0, 0, 0, 0, 0xC0000040)
    with open(path, "wb") as file:
        file.write(header.ljust(2 * BLOCK, b"\0") + whole(code) + whole(rdata))


main(*sys.argv[1:])
