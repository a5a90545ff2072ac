"""Session options: which entries change a model, and whether options replace its tensors. This module imports neither onnx nor
Numba."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

import onnxruntime

from ..errors import errors_ignored, reraise_of_signal_handler
from ..ort import DISABLED_OPTIMIZERS, TENSORS_FOLDER, config_entry

# The entries of session options, in ONNX Runtime 1.20 to 1.32, that change what ONNX Runtime makes of a model. They also apply
# to the session that optimizes the model for the blocked layout, and are part of the key of a cached model. All other entries
# affect only the session that is created.
ENTRIES = (
    "ep.cpu.qmoe_deferred_scale",
    "mlas.disable_kleidiai",
    "mlas.kleidiai.conv_igemm_max_work",
    "mlas.nchwc_depthwise_sliding",
    "mlas.nchwc_pointwise_conv_max_input_channel_batch",
    "mlas.qnbit.force_fp32",
    "mlas.use_lut_gemm",
    "optimization.constant_folding_max_output_size_in_bytes",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.allow_released_opsets_only",
    "session.disable_aot_function_inlining",
    "session.disable_double_qdq_remover",
    "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq",
    DISABLED_OPTIMIZERS,
    "session.enable_dq_matmulnbits_fusion",
    "session.enable_quant_qdq_cleanup",
    "session.function_expansion_byte_limit",
    "session.function_expansion_node_limit",
    "session.gqa_value_layout",
    "session.graph_optimizations_loop_level",
    "session.kernel_dispatch_policy",
    "session.max_shape_override",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.qdqisint8allowed",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.x64quantprecision",
)

# Held while session options of the caller are temporarily changed, because several threads may share the options. A forked
# process gets a free lock.
options_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=options_lock._at_fork_reinit)  # type: ignore[attr-defined]


class Replacements(NamedTuple):
    """The tensors of a model that session options replace.

    `names` are their names. `in_files` are the names of replaced tensors that the model has in files. These files are not read
    and need not exist. `from_memory` says whether ONNX Runtime looks in memory for every file of tensors, even for files
    of a model that this package writes."""

    names: frozenset[str]
    in_files: frozenset[str]
    from_memory: bool


NOTHING_REPLACED = Replacements(frozenset(), frozenset(), False)


def options_choose_providers(options: onnxruntime.SessionOptions) -> bool:
    """Return whether options choose the execution providers themselves, for example by `add_provider`. ONNX Runtime warns if
    further providers are given as an argument."""
    return bool(getattr(options, "has_providers", bool)())  # ONNX Runtime 1.22 or later


def create_probe_session(probe: bytes, options: onnxruntime.SessionOptions, providers: Any = None) -> Any:
    """Return a session of a small model, which writes neither a profile nor a model. `providers` are used only if ONNX Runtime
    refuses the options with the CPU provider alone, or if the options choose providers themselves."""
    with options_lock:
        before = options.enable_profiling, options.optimized_model_filepath, options.log_severity_level
        try:
            options.enable_profiling, options.optimized_model_filepath = False, ""
            options.log_severity_level = 4  # errors come as exceptions
            chosen = providers if _refuses_cpu(options) or options_choose_providers(options) else ["CPUExecutionProvider"]
            return onnxruntime.InferenceSession(probe, options, chosen, enable_fallback=False)
        finally:
            options.enable_profiling, options.optimized_model_filepath, options.log_severity_level = before


def find_error(probe: bytes, options: onnxruntime.SessionOptions, providers: Any = None) -> Exception | None:
    """Return the exception of `create_probe_session`, or None if the session works."""
    try:
        create_probe_session(probe, options, providers)
    except Exception as error:
        reraise_of_signal_handler(error)
        return error
    return None


def has_files_in_memory(options: onnxruntime.SessionOptions, plain_probe: bytes, probe: bytes, providers: Any = None) -> bool:
    """Return whether options have files in memory (``SessionOptions.add_external_initializers_from_files_in_memory``).

    Both probes (``initializers.make_probe_of_a_file``) have a tensor in a file that does not exist. If the message of ONNX
    Runtime differs from the one with plain options, it looked for the file in memory. `probe` also has the initializers that
    were added to the options in the place of files."""
    if not hasattr(options, "add_external_initializers_from_files_in_memory"):
        return False
    plain = onnxruntime.SessionOptions()
    if folder := config_entry(options, TENSORS_FOLDER):
        plain.add_session_config_entry(TENSORS_FOLDER, folder)  # the message may have it
    return str(find_error(probe, options, providers)) != str(find_error(plain_probe, plain))


def _refuses_cpu(options: onnxruntime.SessionOptions) -> bool:
    """Return whether ONNX Runtime refuses sessions with the CPU provider alone, for which this package is made."""
    return bool(config_entry(options, "session.disable_cpu_ep_fallback") == "1")


def options_replace_nothing(options: onnxruntime.SessionOptions, probe: bytes, probe_of_a_file: bytes) -> bool:
    """Return whether options are known to replace no initializer of a model, and to have no files in memory. The probes are
    those of ``initializers``."""
    if _refuses_cpu(options):
        return False
    with errors_ignored():
        session = create_probe_session(probe, options)
        values = session.run_with_ort_values([output.name for output in session.get_outputs()], {})
        is_empty = all(value.shape() == [0] for value in values)
        return is_empty and not has_files_in_memory(options, probe_of_a_file, probe_of_a_file)
    return False
