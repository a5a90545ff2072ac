"""The arguments of `InferenceSession`, their checks, and what follows from them: the operators of its model, who runs ONNX's
own nodes, and the facts in the key of a cached model. This module imports neither onnx nor Numba."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import onnxruntime

from ..checks import QDQ, Qdq, check_choices, check_flags, check_paths, refuse
from ..ort import FLOAT_QDQ, TENSORS_FOLDER, config_entry, register
from ..ort.providers import available, beside_cpu, operators_for
from .cache_keys import check_cache
from .session_options import ENTRIES, NOTHING_REPLACED, Replacements, options_choose_providers

if TYPE_CHECKING:
    from ..compiling.helpers import Helpers

# The operators of a session's model, as in `optimize`. `operators_for` explains "auto".
RequestedOperators = Literal["auto", "custom", "cuda", "standard"]
CHOICES: tuple[RequestedOperators, ...] = get_args(RequestedOperators)

# The arguments that ONNX Runtime takes only by name.
_ORT_ARGUMENTS = {"disabled_optimizers", "enable_fallback", "read_config_from_model"}


class SessionRequest(NamedTuple):
    """The arguments of an ``InferenceSession``, which explains them.

    `ort_arguments` are the arguments that ONNX Runtime takes only by name. Three fields are set later. `replaced`
    names the tensors of the model that the options replace, and is None until then. `is_native` says whether the operators are
    registered natively. `helpers` are processes that help to compile for this session, or None."""

    model: Any
    options: onnxruntime.SessionOptions
    providers: Any = None
    qdq: Qdq = "auto"
    operators: RequestedOperators = "auto"
    blocked_layout: bool = True
    keep_quantized_weights: bool = False
    keep_initializers_as_inputs: bool = True
    temporary_folder: str | os.PathLike[str] | None = None
    cache: bool | str | os.PathLike[str] | None = False
    ort_arguments: Mapping[str, Any] = MappingProxyType({})
    replaced: Replacements | None = None
    is_native: bool = True
    helpers: Helpers | None = None

    def check(self) -> None:
        """Raise ValueError, TypeError or ModelError if an argument has a value outside its choices or of the wrong type, and
        TypeError for an argument that ONNX Runtime would ignore. The model itself is checked when it is read."""
        check_choices(QDQ, qdq=self.qdq)
        check_choices(CHOICES, operators=self.operators)
        if unknown := ", ".join(sorted({*self.ort_arguments} - _ORT_ARGUMENTS)):
            raise TypeError(f"InferenceSession has no argument {unknown}")
        check_flags(
            blocked_layout=self.blocked_layout,
            keep_quantized_weights=self.keep_quantized_weights,
            keep_initializers_as_inputs=self.keep_initializers_as_inputs,
        )
        check_paths(temporary_folder=self.temporary_folder)
        check_cache(self.cache)
        if not isinstance(self.options, onnxruntime.SessionOptions):
            refuse("sess_options", self.options, "onnxruntime.SessionOptions")

    @property
    def path(self) -> str | None:
        """The path of the model, or None if it is in memory."""
        return os.fspath(self.model) if isinstance(self.model, (str, os.PathLike)) else None

    @property
    def replacements(self) -> Replacements:
        """The tensors that the options replace, as far as they are known."""
        return self.replaced or NOTHING_REPLACED

    @property
    def other_providers(self) -> list[str]:
        """The names of the execution providers other than the CPU provider. If the options choose providers, ONNX Runtime does
        not tell which providers. Then all providers of this build are listed, and one that stands for other libraries."""
        names = (provider if isinstance(provider, str) else provider[0] for provider in self.providers or [])
        chosen = ["one that the options choose", *beside_cpu(available())] if options_choose_providers(self.options) else []
        return [*beside_cpu(names), *chosen]

    @property
    def written_operators(self) -> Literal["custom", "cuda", "standard"]:
        """The operators in which the model is written for these providers. Only the native backend has operators on GPUs."""
        chosen = operators_for(self.other_providers) if self.operators == "auto" else self.operators
        return "standard" if chosen == "cuda" and not self.is_native else chosen

    @property
    def takes_all_qdq(self) -> bool:
        """Return whether this package runs all of ONNX's own quantization nodes, because `qdq` or the options say so."""
        return self.qdq == "float" or (self.qdq == "auto" and bool(config_entry(self.options, FLOAT_QDQ)))

    def register(self) -> SessionRequest:
        """Register the operators with the options, and return the request with `is_native` set."""
        qdq = "auto" if self.written_operators == "standard" else self.qdq
        return self._replace(is_native=register(self.options, qdq=qdq) == "native")

    def facts(self) -> dict[str, Any]:
        """Return everything besides the original files that a session's model depends on, in JSON types."""
        names = ("qdq", "blocked_layout", "keep_quantized_weights", "keep_initializers_as_inputs", "is_native")
        arguments = {name: getattr(self, name) for name in names} | dict(self.ort_arguments)
        replaced = self.replacements
        folder = config_entry(self.options, TENSORS_FOLDER)
        return {
            # The order of a set changes from process to process.
            **{name: repr(sorted(value) if isinstance(value, Set) else value) for name, value in arguments.items()},
            "operators": self.written_operators,
            "providers": sorted(self.other_providers),
            "replaced": sorted(replaced.names),
            "from_memory": replaced.from_memory,
            "level": str(self.options.graph_optimization_level),
            "path": self.options.optimized_model_filepath,
            "entries": {name: config_entry(self.options, name) for name in (*ENTRIES, FLOAT_QDQ)},
            "tensors_folder": os.path.abspath(folder) if folder else None,
        }
