"""Print, as Markdown, the medians of `pytest bench --benchmark-json=FILE`: a row for each operation, type and size."""

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    results = json.loads(parser.parse_args().file.read_text())

    medians: dict[str, dict[str, float]] = {}
    for benchmark in results["benchmarks"]:
        contender = benchmark["extra_info"]["contender"]
        medians.setdefault(benchmark["group"], {})[contender] = 1e6 * benchmark["stats"]["median"]

    names = list(dict.fromkeys(name for row in medians.values() for name in row))
    print(f"{results['machine_info']['cpu']['brand_raw']}; medians in µs\n")
    print(f"| | {' | '.join(names)} |")
    print(f"| --- |{' ---: |' * len(names)}")
    for group, row in medians.items():
        print(f"| {group} | {' | '.join(f'{row[name]:.1f}' if name in row else '' for name in names)} |")


if __name__ == "__main__":
    main()
