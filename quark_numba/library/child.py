"""The child process that compiles the functions of a library for its target, and writes their tables. It runs none of them."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from ..compiling import elsewhere
from .targets import Job


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    elsewhere.begin(job.machine)
    from .tables import Tables  # only now: compiled functions depend on the machine

    tables, folder = Tables(job), Path(job.folder)
    (folder / "tables.h").write_text(tables.header(), encoding="ascii")
    for symbol, address in tables.functions.items():
        (folder / f"{symbol}.o").write_bytes(elsewhere.object_file(address))
