"""Tables in Markdown, and the parts of pages that programs write."""

import os
from collections.abc import Iterable, Iterator, Sequence
from math import floor, log10
from pathlib import Path

README, RESULTS, PERFORMANCE, FRONT, MAP, SESSIONS = (
    Path(__file__).parent / name
    for name in (
        "README.md",
        "RESULTS.md",
        "PERFORMANCE.md",
        "../README.md",
        "../quark_numba/README.md",
        "../quark_numba/session/README.md",
    )
)


# The instruction sets that results name, by the names that LLVM has for them: of x86-64, and of Arm.
_INSTRUCTION_SETS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avxvnni": "AVX-VNNI",
    "avx512vnni": "AVX-512 VNNI",
    "avx512bf16": "AVX-512 BF16",
    "amx-int8": "AMX-INT8",
    "amx-bf16": "AMX-BF16",
    "neon": "NEON",
    "dotprod": "DotProd",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
    "sve2": "SVE2",
}


def digits(value: float) -> str:
    """Return a number with two significant digits, and without an exponent."""
    rounded = float(f"{value:.1e}")
    decimals = 1 - floor(log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(decimals, 0)}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, whose columns are also aligned in the source, and an empty one. Columns of numbers are on the
    right, and columns without a value are left out."""
    columns = [column for column in zip(header, *rows, strict=True) if any(column[1:])]
    lines = [list(line) for line in zip(*columns, strict=True)]
    widths = [max(3, *map(len, column)) for column in columns]
    are_numbers = [all(cell[:1].isdigit() for cell in column[1:] if cell) for column in columns]
    lines.insert(1, [f"{'-' * (width - 1)}{':' if right else '-'}" for width, right in zip(widths, are_numbers, strict=True)])
    for line in lines:
        cells = zip(line, widths, are_numbers, strict=True)
        yield f"| {' | '.join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells)} |"
    yield ""


def with_part(text: str, part: str, lines: Iterable[str], program: str) -> str:
    """Return a text with these lines between the marks of a part, which a module of this folder writes. Raise ValueError if it
    lacks the marks."""
    before, mark, rest = text.partition(f"<!-- what bench/{program}.py writes of {part} -->\n")
    _, end, after = rest.partition(f"<!-- end of {part} -->")
    if not (mark and end):
        raise ValueError(f"the page has no part {part!r}; expected its two marks")
    return "".join([before, mark, "\n", *(f"{line}\n" for line in lines), end, after])


def write_part(part: str, lines: Iterable[str], program: str) -> None:
    """Write a part of RESULTS.md."""
    RESULTS.write_text(with_part(RESULTS.read_text(encoding="utf-8"), part, lines, program), encoding="utf-8")


def machine_name(brand: str, count: int) -> str:
    """Return "Intel Xeon, 2 processors", for example, of a brand like "Intel(R) Xeon(R) Processor"."""
    return f"{brand.replace('(R)', '').removesuffix(' Processor')}, {count} processors"


def this_machine() -> str:
    """Return the name of this machine, as the saved results have it, and its instruction sets."""
    import cpuinfo  # only here: it would count in the memory that programs measure

    name = machine_name(cpuinfo.get_cpu_info()["brand_raw"], os.cpu_count())
    return f"{name}{in_brackets(instruction_sets())}"


def instruction_sets() -> list[str]:
    """Return the instruction sets of this machine's processor for vectors and matrices."""
    import llvmlite.binding  # only here, as above

    features = llvmlite.binding.get_host_cpu_features()
    return [name for feature, name in _INSTRUCTION_SETS.items() if features.get(feature)]


def in_brackets(names: Sequence[str]) -> str:
    """Return names in brackets after a space, or nothing if there are none."""
    return f" ({', '.join(names)})" if names else ""
