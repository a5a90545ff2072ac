"""Compiled kernels that are kept for a model, so that a later process loads them with LLVM alone: it needs neither Numba nor
the declarations of operators.

What is kept is JSON: the descriptions of all overloads, the states of the model's nodes, and object files."""

from __future__ import annotations

import base64
import ctypes
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .c_api import Description, keep_alive, texts_at

if TYPE_CHECKING:
    from ..declaration import Operator, Overload


class KeptKernel(NamedTuple):
    """The address of a state, and the addresses of the functions of its nodes, 0 for one that the family does not have."""

    state: int
    compute: int
    prepare: int
    destroy: int


class _Kept:
    """The kept kernels that this process has loaded, and what belongs to them."""

    def __init__(self) -> None:
        self.descriptions: list[Description] = []
        self.callbacks: dict[str, str] = {}  # the symbols of the functions that all operators share
        self.messages: dict[str, list[str]] = {}  # by operator
        self.states: dict[str, dict[str, Any]] = {}  # by the key of a kernel
        self.objects: dict[str, str] = {}  # by the symbols of their functions, base64
        self.stubs: set[str] = set()  # the symbols that objects need of Numba
        self.addresses: dict[str, int] = {}  # of functions, by symbol


_kept = _Kept()

# By the key of each kernel of a session, a function that returns what is to be kept of its state.
Recorded = Mapping[str, Callable[[], dict[str, Any]]]

# The kernels of the sessions that are being created.
_recordings: list[dict[str, Callable[[], dict[str, Any]]]] = []

# The functions that Numba's error paths call. Kernels raise nothing, so these paths never run. All other undefined
# functions are functions of C.
_ERROR_API = re.compile(r"_?Py[A-Z_]\w+|numba_(gil_\w+|do_raise|unpickle|runtime_build_excinfo_struct)|NRT_MemInfo_call_dtor")
_C_FUNCTIONS = {"malloc", "free", "memcpy", "memset", "memmove", "tanhf", "NRT_Allocate", "NRT_Free"}


def load(content: Mapping[str, Any]) -> None:
    """Load what `content_of` returned. Call this under the creation lock, before the library is made.

    Raises
    ------
    ValueError, LookupError, TypeError, RuntimeError
        If it is damaged; then nothing is loaded.
    """
    names = ("callbacks", "messages", "states", "kernels", "objects", "stubs")
    callbacks, messages, states, kernels, objects, stubs = (content[name] for name in names)
    descriptions = [Description(*fields) for fields in content["descriptions"]]
    by_key = {key: states[index] for key, index in kernels.items()}
    new = {names: code for names, code in objects.items() if names.split()[0] not in _kept.addresses}
    addresses = _addresses_of(new, stubs) if new else {}
    if not _kept.descriptions:
        _kept.descriptions, _kept.callbacks = descriptions, callbacks
    _kept.messages |= messages
    _kept.states = by_key | _kept.states  # nodes keep the state that they have, with its address
    _kept.objects |= new
    _kept.stubs |= {*stubs}
    _kept.addresses |= addresses


def _addresses_of(objects: Mapping[str, str], stubs: list[str]) -> dict[str, int]:
    """Load object files into this process, and return the addresses of their functions, by symbol. An object file's name is
    the symbols of its functions."""
    import llvmlite.binding as ll

    ll.initialize_native_target()
    ll.initialize_native_asmprinter()
    target = ll.Target.from_default_triple()
    engine = ll.create_mcjit_compiler(
        ll.parse_assembly(_stubs(stubs)), target.create_target_machine(codemodel="jitdefault", jit=True)
    )
    for code in objects.values():
        engine.add_object_file(ll.ObjectFileRef.from_data(base64.b64decode(code)))
    engine.finalize_object()
    keep_alive(engine)
    addresses = {symbol: engine.get_function_address(symbol) for names in objects for symbol in names.split()}
    if not all(addresses.values()):
        raise LookupError("an object file lacks its function")
    return addresses


def _stubs(names: list[str]) -> str:
    """Return LLVM's assembly of what objects need of Numba: memory is C's, and the functions of error paths, which never run,
    end the process."""
    memory = """
        declare ptr @malloc(i64)
        declare void @free(ptr)
        declare void @llvm.trap()
        define ptr @NRT_Allocate(i64 %size) {
            %memory = call ptr @malloc(i64 %size)
            ret ptr %memory
        }
        define void @NRT_Free(ptr %memory) {
            call void @free(ptr %memory)
            ret void
        }
    """
    return memory + "".join(f"define void @{name}() {{\n call void @llvm.trap()\n unreachable\n}}\n" for name in names)


def descriptions() -> list[Description]:
    """Return the descriptions of all overloads, or an empty list if nothing is loaded."""
    return _kept.descriptions


def callbacks() -> dict[str, int]:
    """Return the addresses of the functions that all operators share, or an empty dict if nothing is loaded."""
    return {name: _kept.addresses[symbol] for name, symbol in _kept.callbacks.items()}


def key_of(description: Description, attributes: Mapping[str, Any], inputs: Any, outputs: Any) -> str:
    """Return the key of a kernel: all that its creation depends on. `inputs` and `outputs` are the types and shapes that are
    checked."""
    return json.dumps([description.domain, description.name, description.number, attributes, inputs, outputs])


def find(key: str, api: int, has_shape_reference: bool) -> KeptKernel | None:
    """Return the kept kernel of a node, or None if no kernel is kept for it."""
    state = _kept.states.get(key)
    if state is None:
        return None
    record(key, lambda: state)
    if "address" not in state:
        words = [*state["words"]]
        for index, symbol in state["functions"]:
            words[index] = _kept.addresses[symbol]
        messages = texts_at(tuple(text.encode() for text in _kept.messages[state["operator"]]))
        words[:3] = api, has_shape_reference, messages  # the first fields of `nodes.context.STATE`
        state["address"] = ctypes.addressof(keep_alive((ctypes.c_int64 * len(words))(*words)))
    return KeptKernel(state["address"], *(_kept.addresses[symbol] if symbol else 0 for symbol in state["node"]))


@contextmanager
def recording() -> Iterator[Recorded]:
    """Record the kernels that are created within the context, in any thread."""
    made: dict[str, Callable[[], dict[str, Any]]] = {}
    _recordings.append(made)
    try:
        yield made
    finally:
        _recordings[:] = [recording for recording in _recordings if recording is not made]


def record(key: str, state: Callable[[], dict[str, Any]]) -> None:
    """Record a kernel by its key, with the function that returns the state to keep."""
    for recording in [*_recordings]:
        recording[key] = state


def content_of(recorded: Recorded, release: tuple[int, ...]) -> dict[str, Any]:
    """Return what a later process needs to create these kernels, for JSON.

    Raises
    ------
    LookupError
        If it cannot be kept: a function has no file, or it needs what is only in this process.
    """
    from . import operators

    states: dict[str, dict[str, Any]] = {}
    kernels: dict[str, int] = {}
    for key, state in recorded.items():
        made = {name: value for name, value in state().items() if name != "address"}
        text = json.dumps(made)
        states.setdefault(text, made)
        kernels[key] = [*states].index(text)
    shared = _kept.callbacks or _shared()
    symbols = {*shared.values()}
    for made in states.values():
        symbols |= {symbol for symbol in [*made["node"], *(symbol for _, symbol in made["functions"])] if symbol}
    return {
        "descriptions": _kept.descriptions or operators.descriptions(release),
        "callbacks": shared,
        "messages": {made["operator"]: _kept.messages[made["operator"]] for made in states.values()},
        "states": [*states.values()],
        "kernels": kernels,
        "objects": {names: code for names, code in _kept.objects.items() if symbols & {*names.split()}},
        "stubs": sorted(_kept.stubs),
    }


def state_of(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be kept of a state that this process has made. Raise LookupError if it cannot be kept."""
    from . import operators

    words, functions = operators.words_of(operator, overload, attributes)
    _kept.messages[operator.full_name] = [text.decode() for text in operators.messages_of(operator)]
    return {
        "operator": operator.full_name,
        "words": [0 if index in functions else word for index, word in enumerate(words)],
        "functions": [[index, _symbol_of(words[index])] for index in functions],
        "node": [_symbol_of(address) if address else "" for address in operators.node_functions(operator.family)],
    }


def _shared() -> dict[str, str]:
    """Return the symbols of the functions that all operators share."""
    from . import callbacks

    symbols, code = callbacks.plain_object()
    _kept.objects[" ".join(symbols.values())] = base64.b64encode(code).decode()
    return symbols | {function.__name__: _symbol_of(callbacks.compiled(function)) for function in callbacks.SHARED}


def _symbol_of(address: int) -> str:
    """Return the symbol of a function, whose object file is kept from now on."""
    import llvmlite.binding as ll

    from ..compiling.cache import object_of

    symbol, code, bitcode = object_of(address)
    if symbol not in _kept.objects:
        module = ll.parse_bitcode(bitcode)
        needed = {value.name for value in (*module.functions, *module.global_variables) if value.is_declaration}
        needed = {name for name in needed if not name.startswith("llvm.")} - _C_FUNCTIONS
        if not all(map(_ERROR_API.fullmatch, needed)):
            raise LookupError(f"{symbol} needs {', '.join(sorted(needed))}")
        _kept.stubs |= needed
        _kept.objects[symbol] = base64.b64encode(code).decode()
    return symbol
