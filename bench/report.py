"""Save the results of `pytest bench --benchmark-json=FILE` in `results/`, and write all pages anew: the tables of RESULTS.md
(`result_tables.py`), what other pages say (`page_texts.py`), the list of files in the map (`module_list.py`),
and the charts (`charts.py`).

    PYTHONPATH=tests/support python bench/report.py [FILE...]

Prints what became slower than in the results that were saved before: a contender's time, as a multiple of the reference's of
the same run. Results are not saved if the machine was busy, or if contenders of the saved ones are missing. Then the exit
status is 1."""

import argparse
import sys
from pathlib import Path

from charts import draw
from module_list import module_list
from page_texts import FINDINGS
from pages import FRONT, MAP, PERFORMANCE, README, RESULTS, SESSIONS, with_part
from result_tables import TABLES, run_line, runs_list
from saved_results import Saved, keep, read_all

PAGES = (RESULTS, README, PERFORMANCE, FRONT, MAP, SESSIONS)


def written(path: Path, saved: Saved) -> str:
    """Return the text of a page with the numbers of the saved results."""
    text = path.read_text(encoding="utf-8")
    for page, part, finding in FINDINGS:
        if page == path:
            text = with_part(text, part, finding(saved), "page_texts")
    if path == MAP:
        text = with_part(text, "the files", module_list(), "module_list")
    if path == RESULTS:
        text = with_part(text, "runs", runs_list(saved), "result_tables")
        for part, name, table in TABLES:
            if name in saved:
                text = with_part(text, part, [run_line(saved[name], saved), *table(saved[name])], "result_tables")
    return text


def main() -> bool:
    """Return whether results were left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="the JSON files of runs")
    are_saved = [keep(path) for path in parser.parse_args().files]
    saved = read_all()
    for path in PAGES:
        path.write_text(written(path, saved), encoding="utf-8")
    draw(RESULTS.parent, saved)
    return not all(are_saved)


if __name__ == "__main__":
    sys.exit(main())
