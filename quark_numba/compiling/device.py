"""Kernels for NVIDIA GPUs: the threads of a thread block, the bytes of a vector, PTX text, which the driver compiles, and the
other facts that a launch needs. This module does not need a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from . import jit, other_machines
from .cache import digest, kept_text
from .lock import created_once

THREADS = 256  # of a thread block
VECTOR = 16  # the bytes that a thread reads or writes at once

_SIGNATURE = types.int64(types.int64, types.int64, types.int64)


def work_dtype(signed: Sequence[str], unsigned: Sequence[str]) -> Any:
    """Return the dtype of a kernel's record, of 64-bit words: addresses and numbers with a sign, and numbers without one, of
    which the first is `units`, the number of the units of work."""
    return np.dtype([(name, np.int64) for name in signed] + [(name, np.uint64) for name in ("units", *unsigned)])


class DeviceKernel:
    """A kernel for GPUs, and what its launch needs.

    A launch of the function `entry` has one parameter, a record of the dtype `work`, which is passed by value. A thread block
    has `threads` threads and does `units_per_thread_block` units of work, of which the record's field `units` is the number.
    Thread blocks and threads are in one dimension. There is no shared memory, and thread blocks may run in any order.

    Parameters
    ----------
    module : str
        The name of a module whose sources, and those of the modules that it imports, decide what is compiled.
    function : function
        The work of a thread: (address of the record, number of the thread block, number of the thread) -> 0.
    name : str
        The name in PTX, unique to the function.
    work : dtype
        From `work_dtype`.
    units_per_thread : int
    """

    threads = THREADS

    def __init__(self, module: str, function: Callable[..., Any], name: str, work: Any, units_per_thread: int) -> None:
        self.entry, self.work, self.units_per_thread_block = name, work, units_per_thread * THREADS
        self._function = jit._named(function, name)
        self._function.__qualname__ = f"gpu_{name}_{digest(module)}"

    def count_thread_blocks(self, units: int) -> int:
        """Return the number of thread blocks for so many units of work. If it is 0, there is nothing to launch."""
        return -(-units // self.units_per_thread_block)

    @created_once
    def ptx(self) -> str:
        """The PTX text. It is kept on disk as kernels are."""
        return kept_text(self._function.__qualname__, other_machines.CUDA, self._make)

    def _make(self) -> str:
        return other_machines.ptx(self.thread_function, self.entry, self.work.itemsize // 8)

    @created_once
    def thread_function(self) -> Any:
        """The function that becomes PTX, compiled for this machine: int64_t (int64_t record, int64_t thread_block, int64_t
        thread)."""
        compiled = CFunc(self._function, normalize_signature(_SIGNATURE), locals={}, options=jit._FLAGS)
        with global_compiler_lock:
            # A thread has no vectors of numbers. While the lock is held, only this function and those that it calls are
            # compiled, and they have no loops.
            before, config.LOOP_VECTORIZE = config.LOOP_VECTORIZE, 0
            try:
                compiled.compile()
            finally:
                config.LOOP_VECTORIZE = before
        return compiled


@functools.cache
def loader(count: int) -> Any:
    """Return the function (array, index) -> a tuple of `count` elements from an index on. Their address is a multiple of their
    size, which is at most VECTOR bytes."""

    @intrinsic
    def load(typingctx: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # The words are integers: LLVM would take a vector of numbers for single ones, and join them with those of a branch
            # that loads numbers from other places.
            pointer = builder.gep(make_array(array)(context, builder, arguments[0]).data, [arguments[1]])
            element = context.get_data_type(array.dtype)
            bits = 8 * context.get_abi_sizeof(element)
            per_word = min(count, 64 // bits)
            word, part = ir.IntType(per_word * bits), ir.IntType(bits)
            words = builder.bitcast(pointer, word.as_pointer())
            items = []
            for at in range(0, count, per_word):
                loaded = builder.load(builder.gep(words, [ir.IntType(64)(at // per_word)]))
                loaded.align = (count if at == 0 else per_word) * bits // 8
                for k in range(per_word):
                    item = builder.lshr(loaded, word(k * bits))
                    items.append(builder.bitcast(builder.trunc(item, part) if per_word > 1 else item, element))
            return context.make_tuple(builder, signature.return_type, items)

        return types.UniTuple(array.dtype, count)(array, types.uintp), generate

    return load


@intrinsic
def store(typingctx: Any, array: Any, index: Any, items: Any) -> Any:
    """Write a tuple to an array, from an index on. The address is as for `loader`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(make_array(array)(context, builder, arguments[0]).data, [arguments[1]])
        element = context.get_data_type(array.dtype)
        vector = ir.VectorType(element, len(items))
        whole = ir.Constant(vector, ir.Undefined)
        for i in range(len(items)):
            item = context.cast(builder, builder.extract_value(arguments[2], i), items[i], array.dtype)
            whole = builder.insert_element(whole, item, ir.IntType(32)(i))
        stored = builder.store(whole, builder.bitcast(pointer, vector.as_pointer()))
        stored.align = context.get_abi_sizeof(element) * len(items)
        return context.get_dummy_value()

    return types.void(array, types.uintp, items), generate
