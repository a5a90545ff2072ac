"""Arguments that several commands have: their types, and what they are made into."""

from __future__ import annotations

import argparse
import math
from typing import Any

_MOST_THREADS = 1024


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def threads(text: str) -> int:
    number = positive(text)
    if number > _MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text} threads; expected at most {_MOST_THREADS}")
    return number


def seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def tolerance(text: str) -> float:
    value = number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def dimension(text: str) -> tuple[str, int]:
    name, separator, value = text.rpartition("=")
    if not name or not separator or not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N")
    return name, int(value)


def add_threads(parser: argparse.ArgumentParser, what: str = "of a session (default: ONNX Runtime's)") -> None:
    parser.add_argument("--threads", type=threads, default=0, metavar="N", help=what)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Where batches are run, and what is done about those that fail."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--workers", type=positive, metavar="N", help="run the batches in so many processes; needs the extra `dask`"
    )
    where.add_argument("--scheduler", metavar="ADDRESS", help="run them on the dask cluster of this scheduler")
    parser.add_argument(
        "--on-error",
        choices=("stop", "continue"),
        default="stop",
        help="after a batch that cannot be read or run (default: %(default)s)",
    )
    parser.add_argument("--resume", metavar="FILE", help="keep in FILE what there is so far, and go on from it if it is there")


def runs_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_threads` and `add_runs` added, as the functions of the package take it."""
    return {name: getattr(options, name) for name in ("threads", "workers", "scheduler", "on_error", "resume")}


def add_data(parser: argparse.ArgumentParser, *, inputs: bool = False, required: bool = False) -> None:
    """Where the batches come from. With `inputs`, also one file by that name."""
    source = parser.add_mutually_exclusive_group(required=required)
    if inputs:
        source.add_argument(
            "--inputs", metavar="FILE.npz", help="one batch: inputs by name (default: random, of the model's shapes)"
        )
    source.add_argument(
        "--data",
        metavar="PATH",
        help="batches: an .npz file, by input name; a folder of such, or of .npy for one input; or module:function, which "
        "gives feeds",
    )
    source.add_argument("--random", type=positive, metavar="N", help="so many random batches, of the model's shapes")
    parser.add_argument("--limit", type=positive, metavar="N", help="take at most so many batches")
    parser.add_argument("--batch", type=positive, metavar="N", help="cut the arrays of --data into batches of so many rows")
    parser.add_argument(
        "--dim",
        type=dimension,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a free dimension of random inputs, by its name or as INPUT[AXIS] (default: 1)",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of random inputs (default: %(default)s)")


def data_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_data` added, as the functions of the package take it."""
    return {
        "data": options.data,
        "random": options.random,
        "seed": options.seed,
        "dimensions": dict(options.dim),
        "limit": options.limit,
        "batch": options.batch,
    }


def check_data(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What argparse cannot say: dimensions are those of random inputs, batches are cut of data."""
    for given, what in (("dim", "inputs"), ("dim", "data"), ("batch", "inputs"), ("batch", "random"), ("limit", "inputs")):
        if getattr(options, given, None) and getattr(options, what, None):
            parser.error(f"argument --{given}: not allowed with argument --{what}")
