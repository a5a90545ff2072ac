"""Checks of PTX: of its text, and by ptxas, the NVIDIA assembler, which needs no GPU. `tests/gpu/make_environment.sh` makes an
environment with it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quark_numba" / "gpu"
PTXAS = next(map(str, PLACE.glob("**/bin/ptxas")), shutil.which("ptxas"))
ARCHITECTURES = (75, 80, 90, 100, 120)

# What rounds otherwise than IEEE, rounds once where the source rounds twice, or takes subnormal numbers for 0.
INEXACT = re.compile(r"\.approx|div\.full|\.ftz|\b(fma|mad)\.[\w.]*f(16|32|64)|[fF]16x2")


def check_text(text, *, divides):
    """Check that the arithmetic is that of IEEE 754. `divides` says whether the kernel has divisions of floats."""
    assert not INEXACT.search(text), INEXACT.search(text)
    assert bool(re.search(r"\bdiv\.rn\.f(32|64)", text)) == divides
    assert re.findall(r"\bdiv\.(?!rn\.f|[us](?:32|64))\S*", text) == []
    for operation in ("add", "sub", "mul"):
        # Without .rn, ptxas may join a product and a sum.
        assert not re.search(rf"\b{operation}\.f(32|64)", text), operation
    assert ".target sm_60" in text


def assembled(text, folder):
    """Yield for each architecture: (its number, registers, bytes of stack frame, bytes of spills)."""
    if not PTXAS:
        pytest.skip(f"no ptxas: tests/gpu/make_environment.sh {PLACE}")
    source = folder / "kernel.ptx"
    source.write_text(text)
    for architecture in ARCHITECTURES:
        command = [
            PTXAS,
            "--verbose",
            "--warning-as-error",
            f"--gpu-name=sm_{architecture}",
            source,
            "-o",
            folder / "kernel.cubin",
        ]
        result = subprocess.run([*map(str, command)], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        (registers,) = re.findall(r"Used (\d+) registers", result.stderr)
        ((stack, stores, loads),) = re.findall(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", result.stderr
        )
        yield architecture, int(registers), int(stack), int(stores) + int(loads)
