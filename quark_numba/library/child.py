"""The child process that compiles the functions of a library for its target, and writes their tables. It does not run them."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from ..compiling import other_machines
from ..errors import reason_of
from .targets import Job

# The exit code if a file cannot be written. The reason is all that is printed then.
CANNOT_WRITE = 3


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    other_machines.begin(job.machine)
    from .operator_tables import Tables  # only now: compiled functions depend on the machine

    tables, folder = Tables(job), Path(job.folder)
    files = {"tables.h": tables.header().encode("ascii")}
    files |= {f"{symbol}.o": other_machines.object_file(address) for symbol, address in tables.functions.items()}
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:  # the disk is full, for instance
        print(reason_of(error), file=sys.stderr)
        sys.exit(CANNOT_WRITE)
