"""The results of runs: which are saved in `results/`, and how they are read."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from labels import COPY, DROP_IN, FLOAT, ONNX_RUNTIME, ONNX_RUNTIMES_OPERATOR, PROCESSOR_TIME, QUARK, group_of, label_of
from pages import digits, in_brackets, machine_name

SAVED = Path(__file__).parent / "results"

THREADS = (1, 2)
# What others are compared with, the first one that was measured.
REFERENCES = (FLOAT, ONNX_RUNTIMES_OPERATOR, ONNX_RUNTIME, QUARK, COPY, f"{DROP_IN}/per_tensor")
SLOWER = 1.15
# On an idle machine, a float model that takes longer than this on one thread is hardly ever slower on two.
SECONDS_FOR_TWO_THREADS, SLOWER_ON_TWO_THREADS = 1e-3, 1.1


class Results:
    """The saved results of one of the files with benchmarks: the seconds of each contender."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.date: str = content["date"]
        self.machine: str = content["machine"]
        self.instruction_sets: list[str] = content.get("instruction_sets", [])  # older results do not have them
        self.versions: dict[str, str] = content["versions"]
        self.groups: dict[str, dict[str, float]] = content["seconds"]
        self.turns: list[int] = content["turns"]
        self.spread: float = content["spread"]
        self.note: str = content.get("note", "")

    @property
    def run(self) -> tuple[str, str, str]:
        """The day, the machine with its instruction sets, and the versions of the run."""
        return self.date, f"{self.machine}{in_brackets(self.instruction_sets)}", ", ".join(map(" ".join, self.versions.items()))

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(who for group in self.groups.values() for who in group))

    def get(self, group: str, who: str = "") -> float | None:
        return self.groups.get(group, {}).get(who)

    def ratios(self) -> dict[tuple[str, str], float]:
        """Return the times of all contenders as multiples of their reference's."""
        found = {}
        for group, seconds in self.groups.items():
            reference = next((seconds[each] for each in REFERENCES if each in seconds), None)
            if reference:
                found |= {(group, who): each / reference for who, each in seconds.items()}
        return found


Saved = dict[str, Results]


def runs_of(saved: Saved) -> list[tuple[str, str, str]]:
    """Return the day, the machine and the versions of each run, in the order in which pages number them."""
    return sorted({each.run for each in saved.values()})


def read_all() -> Saved:
    """Return the results by the names of their files."""
    return {path.stem: _read(path) for path in sorted(SAVED.glob("*.json"))}


def _read(path: Path) -> Results:
    return Results(json.loads(path.read_text(encoding="utf-8")))


def results_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is saved of a run: the name of each file with benchmarks, and its results."""
    content = json.loads(path.read_text())
    machine = content["machine_info"]
    seconds: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for benchmark in content["benchmarks"]:
        file, _, test = benchmark["fullname"].partition("::")
        if "briefly" not in test:
            info = benchmark["extra_info"]
            key = benchmark["group"], info.get("contender", "")
            of_file = seconds[Path(file).stem.removeprefix("test_")]
            # a turn counts as the median of its runs
            of_file[key] += info.get("seconds") or [benchmark["stats"]["median"]]
            if processor_seconds := info.get("processor_seconds"):
                of_file[f"{key[0]}{PROCESSOR_TIME}", key[1]].append(processor_seconds)
    for name, found in seconds.items():
        groups: dict[str, dict[str, float]] = {}
        for (group, who), values in found.items():
            groups.setdefault(group, {})[who] = float(f"{min(values):.4g}")
        yield (
            name,
            {
                "date": content["datetime"][:10],
                "machine": machine_name(machine["cpu"]["brand_raw"], machine["cpu"]["count"]),
                "instruction_sets": machine["instruction_sets"],
                "versions": machine["quark_numba"],
                "turns": sorted({len(values) for values in found.values()}),
                # how much longer the slowest turn took than the best, the median of all times
                "spread": round(median(max(values) / min(values) for values in found.values()) - 1, 2),
                "seconds": groups,
            },
        )


def slower_on_two_threads(results: Results) -> Iterator[str]:
    """Yield the float models that took clearly longer on two threads than on one, which shows that the machine was busy."""
    for group in results.groups:
        model, mark, _ = group.partition("/threads=1")
        one, two = (results.get(group_of(model, threads), FLOAT) for threads in THREADS)
        if mark and one and two and one > SECONDS_FOR_TWO_THREADS and two > SLOWER_ON_TWO_THREADS * one:
            yield f"{label_of(model)}: {digits(1e3 * one)} ms on one thread, {digits(1e3 * two)} ms on two"


def faults(results: Results, before: Results | None) -> Iterator[str]:
    """Yield why results are not saved: a busy machine, or missing contenders of the results before."""
    yield from (f"the float model of {each}" for each in slower_on_two_threads(results))
    yield from (f"no {label_of(each)}" for each in (before.contenders if before else ()) if each not in results.contenders)


def keep(path: Path) -> bool:
    """Keep the results of a run, and print what became slower. Return whether all were saved."""
    is_complete = True
    for name, content in results_of(path):
        saved = SAVED / f"{name}.json"
        results, before = Results(content), _read(saved) if saved.exists() else None
        if found := [*faults(results, before)]:
            print(f"{name} is not saved:", *found, sep="\n  ")
            is_complete = False
            continue
        ratios = before.ratios() if before else {}
        for key, ratio in results.ratios().items():
            if ratio > SLOWER * ratios.get(key, ratio):
                print(f"slower: {', '.join(key)}: {ratio:.2f}, before {ratios[key]:.2f}")
        SAVED.mkdir(exist_ok=True)
        saved.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return is_complete
