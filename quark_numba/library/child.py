"""The child process that compiles the functions of a library for its target, and writes their tables. It runs none of them."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import NamedTuple

from ..compiling import elsewhere
from ..ort.native import Need
from .targets import Check


class Job(NamedTuple):
    """What the child gets: the machine, the processor's name in messages, what to check on it, its place among the processors
    of the library and their number, what nodes need, whether ONNX's own operators are in it, and the folder that gets
    ``tables.h`` and an object file for each function."""

    machine: elsewhere.Machine
    cpu: str
    checks: list[Check]
    place: int
    places: int
    needs: list[Need]
    standard_ops: bool
    folder: str


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    elsewhere.begin(job.machine)
    from .tables import Tables  # only now: compiled functions depend on the machine

    tables, folder = Tables(job), Path(job.folder)
    (folder / "tables.h").write_text(tables.header(), encoding="ascii")
    for symbol, address in tables.functions.items():
        (folder / f"{symbol}.o").write_bytes(elsewhere.object_file(address))
