"""Options that several subcommands share: their names, defaults, types, help texts and checks, and the objects made from
them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..checks import QDQ
from ..compiling.threads import MOST_THREADS

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from ..running.data import Data, RandomData
    from ..running.runs import Execution
    from ..running.sessions import Arrays


def whole_number(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return the type of an option that takes whole numbers."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            limits = f"of {least} or more" if math.isinf(most) else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return int(text)

    return parse


positive = whole_number(1)


def number(text: str, least: float = -math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number" + ("" if math.isinf(least) else f" of {least} or more"))
    return value


def dimension(text: str) -> tuple[str, int]:
    name, separator, value = text.rpartition("=")
    if not name or not separator or not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=N")
    return name, int(value)


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=whole_number(1, MOST_THREADS),
        default=0,
        metavar="N",
        help="how many threads of a process compute (default: about one for each processor)",
    )


def add_providers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--providers",
        type=lambda text: text.split(","),
        metavar="NAME[,NAME...]",
        help="ONNX Runtime's execution providers, such as cuda or CUDAExecutionProvider (default: the CPU provider); with "
        "others, quantization nodes run in ONNX's standard operators",
    )


def _check_providers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse providers that this build of ONNX Runtime lacks, and give the others the names that it uses. Workers of a cluster
    may have another build."""
    if getattr(options, "providers", None) is None or getattr(options, "scheduler", None):
        return
    from ..ort.providers import providers_of

    try:
        options.providers = providers_of(options.providers)
    except ValueError as error:
        parser.error(f"argument --{error}")
    if has_other_providers(options) and getattr(options, "optimize", False):
        parser.error("argument --optimize: not allowed with other --providers, as these run the model in standard operators")


def has_other_providers(options: argparse.Namespace) -> bool:
    """Return whether the command was given execution providers other than the CPU provider."""
    from ..ort.providers import beside_cpu

    return bool(beside_cpu(options.providers or []))


def add_top(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--top",
        type=positive,
        default=default,
        metavar="N",
        help="the largest number of rows in a table of nodes or tensors (default: %(default)s)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_qdq(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--qdq",
        choices=QDQ,
        default="auto",
        help="who runs ONNX's own quantization nodes: quark_numba in float, onnxruntime, or the best (default: %(default)s)",
    )


def add_runner(parser: argparse.ArgumentParser) -> None:
    """Add the options of a subcommand that runs a model."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    add_data(parser)
    add_threads(parser)
    add_providers(parser)
    parser.add_argument("--runs", type=positive, default=50, metavar="N", help="how many runs to time (default: %(default)s)")
    add_json(parser)


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        nargs="?",
        const=True,
        default=False,
        metavar="FOLDER",
        help="keep the optimized model, and use the one that was kept, in FOLDER (default: the user's cache)",
    )


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the options for the place where batches run, and for batches that fail."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=positive, metavar="N", help="run the batches in N processes; needs the extra `dask`")
    where.add_argument("--scheduler", metavar="ADDRESS", help="run the batches on the dask cluster of this scheduler")
    add_providers(parser)
    parser.add_argument(
        "--on-error",
        choices=("stop", "continue"),
        default="stop",
        help="what to do after a batch that cannot be read or run (default: %(default)s)",
    )
    parser.add_argument("--resume", metavar="FILE", help="keep intermediate results in FILE, and continue from it if it exists")


def given_of(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return these options as the arguments of a function that has the same names for them."""
    return {name: getattr(options, name) for name in names}


def execution_of(options: argparse.Namespace, update: Callable[..., None]) -> Execution:
    """Return the options of `add_threads` and `add_runs`, with a function that updates the progress bar."""
    from ..running.runs import Execution

    given = given_of(options, "threads", "workers", "scheduler", "providers", "on_error", "resume")
    return Execution(**given, progress=lambda done, total: update(completed=done, total=total))


def add_data(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add the options for the source of batches. If no source is given, and `required` is False, there is one random batch."""
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument(
        "--data",
        metavar="PATH",
        help="batches: an .npz file with an array for each input, by name, or an .npy file if the model has one input; a "
        "folder of such files; or module:function, which returns feeds",
    )
    source.add_argument(
        "--random",
        type=positive,
        metavar="N",
        help="N random batches, in the model's shapes" + ("" if required else " (default: one)"),
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="--data is a text file, or a folder of .txt files; FILE is the model's tokenizer.json (needs the extra `text`)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="take at most N batches")
    parser.add_argument("--batch", type=positive, metavar="N", help="cut the arrays of --data into batches of N rows")
    parser.add_argument(
        "--dim",
        type=dimension,
        action="append",
        default=[],
        metavar="NAME=N",
        help="set a free dimension of random inputs, given by its name or as INPUT[AXIS] (default: 1)",
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="seed of random inputs (default: %(default)s)"
    )


def data_of(options: argparse.Namespace) -> Data | RandomData:
    """Return the data that the options of `add_data` select; by default one random batch."""
    from ..running.data import Data, RandomData

    if options.data is not None:
        return Data(options.data, options.batch, options.limit, options.tokenizer)
    batches = options.random or 1
    return RandomData(min(batches, options.limit or batches), options.seed, dict(options.dim))


def batches_of(options: argparse.Namespace, session: InferenceSession) -> Iterator[Arrays]:
    """Return the batches that the options of `add_data` select for the inputs of this session."""
    from ..running.data import open_batches
    from ..running.inputs import inputs_of

    return iter(open_batches(inputs_of(session), data_of(options)))


def check_written(options: argparse.Namespace, *written: str) -> None:
    """Raise ModelError if these options name a file that the command reads, or name a file twice."""
    from ..models import model_files
    from ..models.genai_folders import decoder_at

    def given(*names: str) -> list[str]:
        return [path for name in names if (path := getattr(options, name, None))]

    models = [decoder_at(path) for path in given("model", "reference")]
    model_files.check_written(given(*written), models, given("data", "expected", "tokenizer"))


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse arguments that argparse accepts: empty names, options that would be ignored, and wrong combinations. --dim is for
    random inputs, --batch for data."""
    for name, value in vars(options).items():
        if value == "" or (isinstance(value, list) and "" in value):
            parser.error(f"argument {name.replace('_', '-')}: it is empty; expected a name")
    _check_providers(parser, options)
    needs = {"cache": "optimize", "tolerance": "expected", "exclude": "exclude_config", "batch": "data", "tokenizer": "data"}
    needs |= {"next_token": "labels", "context": "decode", "generate": "decode", "input_name": "decode"}
    if not getattr(options, "decode", None):  # the labels are the next tokens
        needs["ignore_label"] = "labels"
    for given, needed in needs.items():
        value = getattr(options, given, None)
        if value is not None and value is not False and not getattr(options, needed, True):
            parser.error(f"argument --{given.replace('_', '-')}: only allowed with argument --{needed.replace('_', '-')}")
    for given, what in (("dim", "data"), ("batch", "random")):
        if getattr(options, given, None) and getattr(options, what, None):
            parser.error(f"argument --{given}: not allowed with argument --{what}")
