"""Compiled functions for C as object files, which LLVM loads without Numba: their content, and what takes the place of Numba's
own functions."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .lifetimes import keep_alive

# Functions of Numba that only error paths call. Compiled functions raise nothing, so these paths never run.
_ERROR_API = re.compile(r"_?Py[A-Z_]\w+|numba_(gil_\w+|do_raise|unpickle|runtime_build_excinfo_struct)|NRT_MemInfo_call_dtor")

# Functions of Numba that are C's `malloc` and `free` here.
_MEMORY = {"NRT_Allocate", "NRT_Free"}


class ObjectFile(NamedTuple):
    """An object file. `symbols` are those of its functions, by names that tell them apart. `needed` are the symbols that it
    lacks, without those that LLVM itself makes code of."""

    symbols: Mapping[str, str]
    needed: Sequence[str]
    code: bytes

    def to_bytes(self) -> bytes:
        """Return the content of a file."""
        return json.dumps([self.symbols, self.needed]).encode() + b"\n" + self.code

    @classmethod
    def of_bytes(cls, content: bytes) -> ObjectFile:
        """Return what `to_bytes` wrote. Raise ValueError if the content is something else."""
        header, end, code = content.partition(b"\n")
        symbols, needed = json.loads(header)
        if not end:
            raise ValueError("an object file ends within its header")
        return cls(symbols, needed, code)

    def load(self) -> dict[str, int]:
        """Load the object file into this process, where it stays. Return the addresses of its functions by their names.

        Raises
        ------
        LookupError
            If this process lacks a needed symbol, as it may before Numba is imported, or if the file lacks a function.
        """
        import llvmlite.binding as ll

        stubs = {name for name in self.needed if _ERROR_API.fullmatch(name)}
        missing = [name for name in self.needed if not (name in stubs | _MEMORY or ll.address_of_symbol(name))]
        if missing:
            raise LookupError(f"an object file needs {', '.join(missing)}")
        engine = _engine()
        _add_stubs(engine, stubs)
        engine.add_object_file(ll.ObjectFileRef.from_data(self.code))
        engine.finalize_object()
        addresses = {name: engine.get_function_address(symbol) for name, symbol in self.symbols.items()}
        if not all(addresses.values()):
            raise LookupError("an object file lacks a function")
        return addresses


def compile_assembly(text: str) -> bytes:
    """Return the object file of a module in LLVM's assembly, for this processor."""
    import llvmlite.binding as ll

    return bytes(_machine().emit_object(ll.parse_assembly(text)))


def _machine() -> Any:
    """Return LLVM's description of this machine."""
    import llvmlite.binding as ll

    ll.initialize_native_target()
    ll.initialize_native_asmprinter()
    return ll.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)


# The stubs that the engine has.
_stubs: set[str] = set()


def _add_stubs(engine: Any, names: set[str]) -> None:
    """Add functions without parameters that end the process."""
    import llvmlite.binding as ll

    if new := names - _stubs:
        _stubs.update(new)
        texts = (f"define void @{name}() {{\n call void @llvm.trap()\n unreachable\n}}\n" for name in sorted(new))
        engine.add_module(ll.parse_assembly("declare void @llvm.trap()\n" + "".join(texts)))


_MEMORY_STUBS = """
    declare ptr @malloc(i64)
    declare void @free(ptr)
    define ptr @NRT_Allocate(i64 %size) {
        %memory = call ptr @malloc(i64 %size)
        ret ptr %memory
    }
    define void @NRT_Free(ptr %memory) {
        call void @free(ptr %memory)
        ret void
    }
"""


@functools.cache
def _engine() -> Any:
    """Return LLVM's engine that owns the loaded code."""
    import llvmlite.binding as ll

    return keep_alive(ll.create_mcjit_compiler(ll.parse_assembly(_MEMORY_STUBS), _machine()))
