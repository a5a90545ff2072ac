"""The subcommand `build-library`: its options, for models and the library that runs them outside of Python (``library``)."""

from __future__ import annotations

import argparse

from .arguments import add_qdq, given_of
from .printing import progress, tell

PURPOSE = "write models and a library that runs them outside of Python"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="*", help="ONNX models, or one folder of ONNX Runtime GenAI")
    parser.add_argument(
        "--all", action="store_true", help="instead of models: all types, formats and attributes of Quark's operators"
    )
    parser.add_argument("-o", "--out", metavar="FOLDER", required=True, help="the folder of the models and of the library")
    parser.add_argument(
        "--target", metavar="NAME", help="a system, such as linux-aarch64 (default: this machine); needs ziglang"
    )
    parser.add_argument("--cpu", metavar="NAME", help="native, or one or more of x86-64, x86-64-v2, -v3, -v4, with commas")
    parser.add_argument("--as-written", action="store_true", help="do not optimize the models")
    add_qdq(parser)


def action(options: argparse.Namespace) -> int:
    from ..errors import ModelError
    from ..library.build import build_library

    if bool(options.models) == options.all:
        raise ModelError("expected either models or --all")
    with progress(f"building {options.out}"):
        try:
            given = given_of(options, "target", "cpu", "qdq")
            library = build_library(options.models or None, options.out, optimize=not options.as_written, **given)
        except ValueError as error:
            raise ModelError(str(error)) from error
    tell("green", "written", f"{library}, {library.stat().st_size:,} bytes; README.txt beside it says how to register it")
    return 0
