"""Functions that are compiled for calls from Python with flat arrays and numbers.

They take Python's objects, and are functions for C: a process that finds one on disk calls it without Numba. Such a call takes
a tenth of a microsecond. Numba's own dispatcher takes more than half of one, in which it looks at the types of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from . import jit
from .intrinsics import address_of, allocate, array_at, release
from .lifetimes import keep_alive
from .python_calls import DATA, DIMENSIONS, PYTHON, python_function
from .text import function_of

_WORD, _DOUBLE = ir.IntType(64), ir.DoubleType()


def new_words(count: int) -> Any:
    """Return a new array of int64, whose address is 0 if memory runs out. numpy's functions would raise an exception, which
    compiled functions for C must not. `release_words` frees it."""
    return np.empty(count, np.int64)


def release_words(words: Any) -> None:
    """Free the memory of `new_words`."""


if jit.JIT_ENABLED:
    new_words = jit.inline(lambda count: array_at(allocate(8 * count), count, np.int64))
    release_words = jit.inline(lambda words: release(address_of(words, 0)))


def array_function(function: Callable[..., Any], name: str, signature: Any) -> Callable[..., Any]:
    """Compile `function` for calls from Python, and keep it on disk under `name`.

    The parameters in `signature` are arrays of one dimension, integers, booleans, floats, and tuples of integers; the result is
    void, a boolean or an integer. The compiled function takes these types alone, without a check. It must not raise, and runs
    without Python's lock."""
    if not jit.JIT_ENABLED:
        return jit.interpreted(function)
    arguments = ", ".join(f"a{k}" for k in range(len(signature.args)))
    text = f"""
def entry(record, objects, count):
    if count != {len(signature.args)}:
        return np.int64(0)
    state, {arguments} = enter(record, objects)
    return leave(record, state, function({arguments}))
"""
    names = {"function": jit.expand(function), "enter": _enter(signature.args), "leave": _leave}
    entry = function_of(text, function.__module__, __file__, names)
    compiled = keep_alive(jit.c_function(entry, name, types.int64(*[types.int64] * 3)))
    return python_function(compiled.address)


def _word_at(builder: Any, address: Any, offset: int) -> Any:
    return builder.load(builder.inttoptr(builder.add(address, _WORD(offset)), _WORD.as_pointer()))


class _Python:
    """Calls of Python's C API by the functions of a record PYTHON, whose numpy array is the object at an address."""

    def __init__(self, builder: Any, address: Any) -> None:
        self._builder, self._record = builder, _word_at(builder, address, DATA)

    def word(self, name: str) -> Any:
        return _word_at(self._builder, self._record, 8 * (PYTHON.names or ()).index(name))

    def call(self, name: str, *arguments: Any, result: Any = _WORD) -> Any:
        function_type = ir.FunctionType(result, [_WORD] * len(arguments))
        return self._builder.call(self._builder.inttoptr(self.word(name), function_type.as_pointer()), arguments)


def _enter(parameters: Sequence[Any]) -> Any:
    """Return the function (address of the record, address of the arguments) -> (the state of the thread, the arguments as these
    types), which releases Python's lock."""
    taken = [types.Array(each.dtype, 1, "C") if isinstance(each, types.Array) else each for each in parameters]

    @intrinsic
    def enter(typingctx: Any, record: Any, objects: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            python = _Python(builder, values[0])
            found = [
                _taken(context, builder, python, _word_at(builder, values[1], 8 * k), each) for k, each in enumerate(taken)
            ]
            return context.make_tuple(builder, signature.return_type, (python.call("save_thread"), *found))

        return types.Tuple((types.int64, *taken))(record, objects), generate

    return enter


def _taken(context: Any, builder: Any, python: _Python, address: Any, taken: Any) -> Any:
    """Return the content of the object at an address as a type."""
    if isinstance(taken, types.Array):
        array = make_array(taken)(context, builder)
        data = builder.inttoptr(_word_at(builder, address, DATA), array.data.type)
        size = _word_at(builder, _word_at(builder, address, DIMENSIONS), 0)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(taken.dtype)))
        populate_array(array, data=data, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None)
        return array._getvalue()
    if isinstance(taken, types.BaseTuple):
        items = [python.call("as_int", python.call("tuple_item", address, _WORD(k))) for k in range(len(taken))]
        return context.make_tuple(builder, taken, items)
    if isinstance(taken, types.Float):
        number = python.call("as_double", address, result=_DOUBLE)
        return context.cast(builder, number, types.float64, taken)
    return context.cast(builder, python.call("as_int", address), types.int64, taken)


@intrinsic
def _leave(typingctx: Any, record: Any, state: Any, result: Any) -> Any:
    """Take Python's lock, and return the address of a result as an object: None, a bool or an int."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        python = _Python(builder, values[0])
        python.call("restore_thread", values[1])
        if result == types.none:
            python.call("incref", python.word("none"))
            return python.word("none")
        number = context.cast(builder, values[2], result, types.int64)
        return python.call("of_bool" if result == types.boolean else "of_int", number)

    return types.int64(record, state, result), generate
