"""Keep the results of `pytest bench --benchmark-json=FILE` in `results/`, and write the tables and charts of all kept ones.

    PYTHONPATH=tests/support python bench/report.py [FILE...]

Prints what became slower than in the results that were kept before: a contender's time, as a multiple of the reference's of the
same run. Results are not kept if the machine was busy, or if contenders of the kept ones are missing: then the exit status
is 1."""

import argparse
import sys
from pathlib import Path

from charts import draw
from findings import FINDINGS
from kept_results import Kept, keep, read_all
from pages import FRONT, PERFORMANCE, README, RESULTS, SESSIONS, with_part
from tables import TABLES, run_line, runs_list

PAGES = (RESULTS, README, PERFORMANCE, FRONT, SESSIONS)


def written(path: Path, kept: Kept) -> str:
    """Return the text of a page with the numbers of the kept results."""
    text = path.read_text(encoding="utf-8")
    for page, part, finding in FINDINGS:
        if page == path:
            text = with_part(text, part, finding(kept))
    if path == RESULTS:
        text = with_part(text, "runs", runs_list(kept))
        for part, name, table in TABLES:
            if name in kept:
                text = with_part(text, part, [run_line(kept[name], kept), *table(kept[name])])
    return text


def main() -> bool:
    """Return whether results were left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="the JSON files of runs")
    are_kept = [keep(path) for path in parser.parse_args().files]
    kept = read_all()
    for path in PAGES:
        path.write_text(written(path, kept), encoding="utf-8")
    draw(RESULTS.parent, kept)
    return not all(are_kept)


if __name__ == "__main__":
    sys.exit(main())
