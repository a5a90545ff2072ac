"""Decoders with key-value caches (`Decoding`): runs over the tokens of a text, part by part, with the caches carried from run
to run; defaults, and the names of inputs and caches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_integers, check_positive, refuse
from ..element_types import find
from ..errors import ModelError
from ..models.genai_folders import GenaiFolder
from .data import Batch
from .inputs import ModelInput, fits, inputs_of, is_fixed
from .sessions import Arrays, dtype_of

# The inputs that are made for each run, by the names that optimum and ONNX Runtime GenAI give them.
TOKENS, MASK, POSITIONS, BRANCH = MADE = ("input_ids", "attention_mask", "position_ids", "use_cache_branch")

# The beginning of a cache's name, and what it may become in the name of the output that continues it.
_PRESENT = (("past_key_values", "present"), ("past_key_values", "present_key_values"), ("past", "present"))


@dataclass(frozen=True)
class Decoding:
    """How a decoder with key-value caches runs over texts.

    Parameters
    ----------
    window : int
        The number of tokens that a run takes.
    context : int, optional
        The number of tokens after which a text begins anew, with empty caches. Default: never.
    generate : int
        The number of tokens that both models write after each text, each the most probable one.
    names : mapping of str to str
        What inputs with other names are: "input_ids", "attention_mask", "position_ids" or "use_cache_branch", or for a cache
        the output that continues it, such as ``{"ids": "input_ids", "key_in.%d": "key_out.%d"}``. "%d" stands for a number.
    """

    window: int = 32
    context: int | None = None
    generate: int = 0
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_integers(1, float("inf"), "a positive integer", window=self.window)
        check_positive(context=self.context)
        check_integers(0, float("inf"), "an integer of 0 or more", generate=self.generate)
        pairs = [*self.names.items()] if isinstance(self.names, Mapping) else [(None, None)]
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            refuse("names", self.names, "a mapping of names of inputs to texts")


def decoding_of(decoding: Decoding | None, *models: Any) -> Decoding | None:
    """Return what an argument of this name means for these models: the names in the configurations of those that are folders of
    ONNX Runtime GenAI come after its own. Raise TypeError if it is not valid."""
    if decoding is None:
        return None
    if not isinstance(decoding, Decoding):
        refuse("decoding", decoding, "quark_numba.Decoding")
    names = dict(decoding.names)
    for folder in filter(None, map(GenaiFolder.find, models)):
        names |= folder.meanings() | names
    return replace(decoding, names=names)


def runs_of(decoding: Decoding, length: int) -> list[list[slice]]:
    """Return the tokens that each run takes of a text, for each part of the text that begins with empty caches."""
    context = decoding.context or length
    ends = [(first, min(first + context, length)) for first in range(0, length, context)]
    return [[slice(at, min(at + decoding.window, end)) for at in range(first, end, decoding.window)] for first, end in ends]


def texts_of(feed: Mapping[str, NDArray[Any]], key: str, batch: Batch) -> NDArray[Any]:
    """Return tokens of a batch, or their labels, of shape (texts, tokens). Raise ModelError if they have another shape, or
    there is none."""
    array = feed[key]
    if array.ndim == 1 and not batch.layout.batch:
        array = array[None]
    if array.ndim != 2:
        raise ModelError(f"{key} has shape {array.shape}; expected (texts, tokens), or (tokens,) without a size of batches")
    if not array.size:
        raise ModelError(f"{key} has shape {array.shape}; expected at least one token")
    return array


class Decoder:
    """The inputs of a decoder for its next run, with the caches of a text. `what` is the decoder's name in messages.

    Raise ModelError if an input can neither be made nor is a cache, or if there are no tokens or no caches."""

    def __init__(self, inputs: Iterable[ModelInput], outputs: Sequence[str], names: Mapping[str, str], what: str) -> None:
        self.what = what
        self.made: dict[str, ModelInput] = {}  # inputs, by what they are
        self.caches: dict[str, str] = {}  # the outputs that continue inputs
        self._inputs = {each.name: each for each in inputs}
        for name, model_input in self._inputs.items():
            meaning = _meaning(name, names, outputs)
            if meaning in MADE:
                self.made[meaning] = model_input
            elif meaning in outputs:
                self.caches[name] = meaning
            else:
                raise ModelError(
                    f"{what}: input {name} cannot be made for decoding; expected {', '.join(MADE)}, or a cache past… with an "
                    f"output present…, or its meaning in names; the outputs are {', '.join(outputs)}"
                )
        if TOKENS not in self.made or not self.caches:
            lacking = "input of tokens (input_ids)" if TOKENS not in self.made else "cache (past…)"
            raise ModelError(f"{what}: no {lacking} to decode with; its inputs are {', '.join(self._inputs)}")
        self.outputs = [name for name in outputs if name not in self.caches.values()]
        self._state: dict[str, NDArray[Any]] = {}
        self.length = 0  # tokens in the caches
        self._taken = 0  # tokens of the run for which inputs were made

    @classmethod
    def of_session(cls, session: Any, names: Mapping[str, str], what: str) -> Decoder:
        return cls(inputs_of(session), [output.name for output in session.get_outputs()], names, what)

    def start(self, rows: int) -> None:
        """Begin so many texts, with empty caches."""
        self.length = 0
        self._state = {name: self._empty_cache(self._inputs[name], rows) for name in self.caches}

    def step(self, run: Callable[[Arrays], Arrays], tokens: NDArray[Any]) -> Arrays:
        """Return the outputs of a run for the next tokens of the texts, of shape (texts, tokens), without the caches."""
        return self.take(run(self.feeds(tokens)))

    def feeds(self, tokens: NDArray[Any]) -> Arrays:
        """Return the inputs for the next tokens of the texts."""
        self._taken = tokens.shape[1]
        return self._made_inputs(tokens) | self._state

    def take(self, outputs: Mapping[str, Any]) -> Arrays:
        """Keep the caches that a run returned with `feeds`, and return its other outputs."""
        outputs = dict(outputs)
        for name, output in self.caches.items():
            cache = outputs.pop(output)
            wanted = self._inputs[name].shape or cache.shape
            if not isinstance(cache, np.ndarray) or not fits(cache.shape, wanted) or cache.dtype != self._state[name].dtype:
                found = f"{cache.dtype} of shape {cache.shape}" if isinstance(cache, np.ndarray) else "no array of numbers"
                raise ModelError(
                    f"{self.what}: output {output} is {found}; input {name}, which it continues, takes "
                    f"{self._state[name].dtype} of shape [{', '.join(map(str, wanted))}]"
                )
            self._state[name] = cache
        self.length += self._taken
        return outputs

    def _made_inputs(self, tokens: NDArray[Any]) -> dict[str, NDArray[Any]]:
        rows, count = tokens.shape
        end = self.length + count
        feeds = {}
        for meaning, model_input in self.made.items():
            if meaning == TOKENS:
                array = tokens
            elif meaning == MASK:
                array = np.ones((rows, end))
            elif meaning == POSITIONS:
                array = np.tile(np.arange(self.length, end), (rows, 1))
            else:
                array = np.array([self.length > 0]).reshape((1,) * len(model_input.shape or ()))
            array = np.ascontiguousarray(array, dtype_of(model_input.type_name))
            if fault := model_input.fault(array.dtype, array.shape):
                raise ModelError(f"{self.what}: input {model_input.name} {fault}; decoding makes {meaning} of that shape")
            feeds[model_input.name] = array
        return feeds

    def _empty_cache(self, cache: ModelInput, rows: int) -> NDArray[Any]:
        """Return a cache without tokens. Its first free axis is that of the texts, its last one that of the tokens; if only one
        is free, that is the axis of the tokens."""
        shape = [*(cache.shape or ())]
        free = [axis for axis, length in enumerate(shape) if not is_fixed(length)]
        dtype = dtype_of(cache.type_name)
        own = find(cache.type_name.removeprefix("tensor(").removesuffix(")"))
        if dtype is None and own is not None:  # numpy lacks it
            dtype = own.dtype
        if not 1 <= len(free) <= 2 or dtype is None:
            raise ModelError(
                f"{self.what}: input {cache.name} is {cache.type_name} of shape [{', '.join(map(str, shape))}]; expected a "
                "cache of numbers whose axes of texts and of tokens are free, and the others fixed"
            )
        sizes = iter([rows, 0] if len(free) == 2 else [0])
        return np.zeros([length if is_fixed(length) else next(sizes) for length in shape], dtype)


def _meaning(name: str, names: Mapping[str, str], outputs: Sequence[str]) -> str:
    """Return what an input is: one of MADE, or the output that continues it; "" if it is neither."""
    for pattern, meaning in names.items():
        found = re.fullmatch(re.escape(pattern).replace("%d", r"(\d+)"), name)
        if found:
            return meaning.replace("%d", found[1]) if found.groups() else meaning
    if name in MADE:
        return name
    candidates = [present + name.removeprefix(past) for past, present in _PRESENT if name.startswith(past)]
    return next((each for each in candidates if each in outputs), "")
