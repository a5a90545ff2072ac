"""The subcommand `optimize`: its options, writing the optimized model, and the lists of changes and of nodes that stay (what
changes is decided in ``rewriting``)."""

from __future__ import annotations

import argparse
import os

from . import arguments
from .printing import print_counts, print_json, progress

PURPOSE = "write a faster model"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="an ONNX model")
    parser.add_argument(
        "out",
        metavar="OUT",
        help="the optimized model, which replaces IN if it has its path; its tensors go to OUT.data if they are large and IN "
        "has them in files, or beyond 2 GiB",
    )
    parser.add_argument(
        "--keep-quantized-weights", action="store_true", help="keep constants quantized: a smaller, slower model"
    )
    arguments.add_qdq(parser)
    parser.add_argument(
        "--operators",
        choices=("custom", "cuda", "standard", "webgpu"),
        default="custom",
        help="custom: this package's operators, the fastest on the CPU; cuda: those with kernels for NVIDIA GPUs; standard: "
        "ONNX's operators alone, for any execution provider and without this package; webgpu: those of them that ONNX Runtime "
        "Web has on a GPU (default: %(default)s)",
    )
    parser.add_argument(
        "--no-regions", action="store_true", help="do not fuse elementwise nodes; onnxruntime-extensions cannot run fused nodes"
    )
    parser.add_argument(
        "--no-initializers-as-inputs",
        action="store_true",
        help="make constants of initializers that are graph inputs: they are folded, and sessions refuse values for them",
    )
    arguments.add_json(parser)


def action(options: argparse.Namespace) -> int:
    from ..rewriting import optimize
    from ..rewriting.graph import Settings

    settings = Settings(
        **arguments.given_of(options, "keep_quantized_weights", "qdq", "operators"),
        native_operators=not options.no_regions,
        keep_initializers_as_inputs=not options.no_initializers_as_inputs,
    )
    with progress(f"optimizing {options.model}"):
        result = optimize.rewrite_model(options.model, settings)
        result.check_operators()
        result.save(options.out)
    if _is_output(options.out):
        return 0  # tables after the model would damage it
    if options.json:
        done = [{"operator": operator, "nodes": count, "what": what} for (operator, what), count in sorted(result.done.items())]
        left = [{"operator": operator, "nodes": count, "why": why} for (operator, why), count in sorted(result.left.items())]
        print_json({"model": options.model, "out": options.out, "done": done, "left": left})
    else:
        print_counts(f"Nodes that {options.out} no longer has", "change", result.done)
        print_counts("Nodes that were left", "why", result.left)
    return 0


def _is_output(path: str) -> bool:
    """Return whether the path leads to the command's own output, as /dev/stdout does."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(1)) and not os.path.isfile(path)
    except OSError:
        return False
