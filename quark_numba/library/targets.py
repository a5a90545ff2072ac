"""The systems and processor levels that libraries are built for, with the defaults, the oldest glibc, the instruction sets of a
level, and the compilers and linkers. A library has its functions for some levels; ``operators.c`` chooses one when it is
registered."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from ..compiling.other_machines import Machine
from ..errors import ModelError
from ..ort.custom_op import Need

# The command, as messages of libraries name it. A model as written has nodes that the optimized one lacks.
COMMAND = "quark-numba build-library MODEL... -o FOLDER, with --as-written if the models are to run as they were written"


class Target(NamedTuple):
    """A system and its processors."""

    triple: str  # of LLVM
    zig: str  # its name for zig
    suffix: str  # of libraries
    cpus: tuple[str, ...]  # the default first
    platform: str = ""  # its name for sysconfig, if a library for this machine may have no named target


_X86_64 = ("x86-64-v3", "x86-64", "x86-64-v2", "x86-64-v4")

TARGETS = {
    # The oldest glibc that has what the library needs, and all that ONNX Runtime runs on.
    "linux-x86-64": Target("x86_64-unknown-linux-gnu", "x86_64-linux-gnu.2.17", ".so", _X86_64, "linux-x86_64"),
    "linux-aarch64": Target("aarch64-unknown-linux-gnu", "aarch64-linux-gnu.2.17", ".so", ("generic",), "linux-aarch64"),
    "windows-x86-64": Target("x86_64-w64-windows-gnu", "x86_64-windows-gnu", ".dll", _X86_64, "win-amd64"),
    "windows-aarch64": Target("aarch64-w64-windows-gnu", "aarch64-windows-gnu", ".dll", ("generic",), "win-arm64"),
    "macos-x86-64": Target("x86_64-apple-macosx11.0.0", "x86_64-macos.11.0", ".dylib", _X86_64),
    "macos-arm64": Target("arm64-apple-macosx11.0.0", "aarch64-macos.11.0", ".dylib", ("apple-m1",)),
}

NATIVE = "native"


class CpuidBit(NamedTuple):
    """Where CPUID tells of an instruction set."""

    leaf: int
    subleaf: int
    register_: int  # 0 is EAX
    bit: int


class Job(NamedTuple):
    """What the child process gets."""

    machine: Machine
    cpu: str  # the processor, as messages name it
    checks: dict[str, CpuidBit]  # by the names of instruction sets that the processor needs
    place: int  # among the processors of the library
    places: int
    needs: list[Need]
    has_qdq: bool  # whether ONNX's own operators are in the library
    folder: str  # gets ``tables.h`` and an object file for each function


# The instruction sets of x86-64 that LLVM uses by itself, by its names. Each is followed by its bit.
_BITS = {
    (1, 0, 2): "sse3 0, ssse3 9, fma 12, cx16 13, sse4.1 19, sse4.2 20, movbe 22, popcnt 23, avx 28, f16c 29",
    (7, 0, 1): "bmi 3, avx2 5, bmi2 8, avx512f 16, avx512dq 17, adx 19, avx512ifma 21, avx512cd 28, avx512bw 30, avx512vl 31",
    (7, 0, 2): "avx512vbmi 1, avx512vbmi2 6, gfni 8, avx512vnni 11, avx512bitalg 12, avx512vpopcntdq 14",
    (7, 0, 3): "avx512vp2intersect 8, avx512fp16 23",
    (7, 1, 0): "avxvnni 4, avx512bf16 5, avxifma 23",
    (0x80000001, 0, 2): "sahf 0, lzcnt 5, sse4a 6, xop 11, fma4 16",
}
CPUID = {name: CpuidBit(*where, int(bit)) for where, bits in _BITS.items() for name, bit in map(str.split, bits.split(", "))}

_V2 = ("cx16", "sahf", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_LEVELS: dict[str, tuple[str, ...]] = {"x86-64": (), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}


def here() -> str:
    """Return the name of this system. Raise ModelError if it is not one of the targets."""
    platform = sysconfig.get_platform()
    names = {target.platform: name for name, target in TARGETS.items() if target.platform}
    if platform not in names:
        raise ModelError(f"this machine is {platform}; expected one of {', '.join(names)}")
    return names[platform]


def machine_of(name: str, cpu: str) -> tuple[Machine, dict[str, CpuidBit]]:
    """Return the machine of a target and a processor, and the instruction sets to check for there."""
    target = TARGETS[name]
    features: Sequence[str] = _LEVELS.get(cpu, ())
    text = ",".join(f"+{feature}" for feature in features)
    if cpu == NATIVE:
        import llvmlite.binding as ll
        from numba.core.codegen import get_host_cpu_features

        text = get_host_cpu_features()
        features = [feature[1:] for feature in text.split(",") if feature.startswith("+")]
        cpu = ll.get_host_cpu_name()
    checks = {feature: CPUID[feature] for feature in features if feature in CPUID} if "x86-64" in name else {}
    return Machine(target.triple, cpu, text), checks


def resolve_target(target: str | None, cpu: str | None) -> tuple[str, list[str]]:
    """Return the names of the target and of the processors, the best first. Raise ValueError if there is no such target or
    processor."""
    name = here() if target is None else target
    if name not in TARGETS:
        raise ValueError(f"target is {target!r}; expected one of {', '.join(TARGETS)}, or None for this machine")
    cpus = TARGETS[name].cpus
    # What CPUID does not tell cannot be checked when the library is loaded.
    allowed = (NATIVE, *cpus) if target is None and "x86-64" in name else cpus
    levels = [allowed[0]] if cpu is None else cpu.split(",")
    if not {*levels} <= {*allowed}:
        raise ValueError(f"cpu is {cpu!r}; expected {' or '.join(allowed)} for {name}")
    if len(levels) > 1 and not {*levels} <= {*_LEVELS}:
        raise ValueError(f"cpu is {cpu!r}; only {', '.join(_LEVELS)} go together in a library")
    return name, [level for level in reversed(_LEVELS) if level in levels] or levels


def linker(target: str | None) -> list[str]:
    """Return the beginning of the command that compiles C and links for a target, by default this machine, for which a C
    compiler on the PATH will do. Raise ModelError if there is no compiler."""
    name = here() if target is None else target
    compiler = None
    if target is None and TARGETS[name].suffix == ".so":
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler:
        return [compiler]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[name].zig]
    instead = "a C compiler on the PATH, or " if target is None else ""
    raise ModelError(f"a library for {name} needs {instead}zig: pip install 'quark_numba[build]'")


# Further flags of the compiler, by the end of a library's name.
_FLAGS = {".so": ["-fPIC", "-Wl,--no-undefined", "-Wl,-z,noexecstack"], ".dylib": ["-fPIC"], ".dll": []}


def link(command: Sequence[str], name: str, folder: Path, library: Path) -> None:
    """Compile operators.c with the tables in each folder of a folder, and link them with the objects there. Raise ModelError if
    this fails."""
    flags = ["-shared", "-O2", "-std=gnu11", "-fvisibility=hidden", "-w", "-s", *_FLAGS[library.suffix]]
    if "ziglang" in command:
        flags.append("-fno-sanitize=all")
    for part in folder.iterdir():
        for source in resources.files(__package__).iterdir():
            if source.name.endswith((".c", ".h")):
                (part / source.name).write_bytes(source.read_bytes())  # beside the tables that it includes
    inputs = [*sorted(folder.glob("*/*.c")), *sorted(folder.glob("*/*.o"))]
    math = ["-lm"] if library.suffix == ".so" else []
    result = subprocess.run(
        [*command, *flags, "-o", str(library), *map(str, inputs), *math], capture_output=True, text=True, check=False
    )
    if result.returncode:
        end = f"{' '.join(command)} ended with exit code {result.returncode}"
        why = result.stderr.strip()[-2000:] or "it printed nothing"
        raise ModelError(f"the library for {name} cannot be linked: {end}: {why}")
