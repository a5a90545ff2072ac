"""What of a session's arguments a prepared model depends on. This module does without onnx and Numba."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import onnxruntime

from ..errors import reraise_of_signal_handler
from ..ort import DISABLED_OPTIMIZERS, STANDARD_OPS, entry

# The entries of session options that change ONNX Runtime's optimisations.
ENTRIES = (
    "optimization.constant_folding_max_output_size_in_bytes",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.disable_aot_function_inlining",
    "session.disable_double_qdq_remover",
    "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq",
    DISABLED_OPTIMIZERS,
    "session.enable_quant_qdq_cleanup",
)

# Arguments of ``InferenceSession`` that others who prepare a model may leave out.
_DEFAULTS = {"qdq": "auto", "keep_quantized_weights": False, "blocked_layout": True}


def runs_on_cpu_alone(options: onnxruntime.SessionOptions, providers: Any) -> bool:
    """Whether a session with these arguments has no other execution provider than the CPU's."""
    names = {provider if isinstance(provider, str) else provider[0] for provider in providers or ["CPUExecutionProvider"]}
    has_providers = getattr(options, "has_providers", bool)  # ONNX Runtime 1.22 or later
    return names == {"CPUExecutionProvider"} and not has_providers()


def facts(options: onnxruntime.SessionOptions, providers: Any, replaced: Iterable[str], how: dict[str, Any]) -> dict[str, Any]:
    """Return what a prepared model depends on, for JSON. `how` are other arguments of the session."""
    return {
        # The order of a set changes from process to process.
        **{name: repr(sorted(value) if isinstance(value, Set) else value) for name, value in (_DEFAULTS | how).items()},
        "runs_on_cpu_alone": runs_on_cpu_alone(options, providers),
        "replaced": sorted(replaced),
        "level": str(options.graph_optimization_level),
        "path": options.optimized_model_filepath,
        "entries": {name: entry(options, name) for name in (*ENTRIES, STANDARD_OPS)},
    }


def probe_session(probe: bytes, options: onnxruntime.SessionOptions) -> Any:
    """Return a session of a small model, which writes neither a profile nor a model."""
    before = options.enable_profiling, options.optimized_model_filepath
    try:
        options.enable_profiling, options.optimized_model_filepath = False, ""
        return onnxruntime.InferenceSession(probe, options, ["CPUExecutionProvider"])
    finally:
        options.enable_profiling, options.optimized_model_filepath = before


def cannot_be_asked(options: onnxruntime.SessionOptions) -> bool:
    """Whether ONNX Runtime refuses sessions of the CPU provider alone, the only provider that this package is for."""
    return bool(entry(options, "session.disable_cpu_ep_fallback") == "1")


def replace_nothing(options: onnxruntime.SessionOptions, probe: bytes) -> bool:
    """Whether options are known to replace no initializer. `probe` is that of the model (``initializers.probe_of_all``)."""
    if cannot_be_asked(options):
        return False
    try:
        session = probe_session(probe, options)
        values = session.run_with_ort_values([output.name for output in session.get_outputs()], {})
        return all(value.shape() == [0] for value in values)
    except Exception as error:
        reraise_of_signal_handler(error)
        return False
