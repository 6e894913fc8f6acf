"""`python -m bench`: measure, print, say what moved, and if asked write the docs.

Exit codes: 0 measured (the table says which targets were missed), 2 could not be measured.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench import machine, page, report
from bench.comparison import list_moved
from bench.contender import CONTENDERS
from bench.environment import NoEnvironment
from bench.figure import Figure
from bench.measures import MEASURES
from bench.record import RESULTS, CannotMerge, Part, Record, load, source
from bench.scale import COUNTS, QUICK
from bench.stage import Stage, say
from bench.worker import ROOT, WorkerFailed

DATA = ROOT / ".bench-data"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="everhold beside the floor and its peers"
    )
    parser.add_argument(
        "--quick", action="store_true", help="little of everything: shows that the bench works"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=MEASURES,
        metavar="NAME",
        help="measure this part; with --write-docs it replaces the part of the record: "
        + ", ".join(MEASURES),
    )
    parser.add_argument(
        "--contender",
        action="append",
        choices=CONTENDERS,
        metavar="NAME",
        help=", ".join(CONTENDERS),
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--preview", type=Path, metavar="FOLDER", help="write the page and its pictures there"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write bench/results.json, docs/benchmarks.md, its pictures, and the figures that"
        " other pages quote",
    )
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="measure nothing: write the docs again from bench/results.json",
    )
    given = parser.parse_args()
    if given.write_docs and (given.quick or given.contender):
        parser.error("the docs show whole parts: not with --quick or --contender")
    return given


def measure(given: argparse.Namespace, data: Path, recorded: Record) -> Record:
    """Measure part by part. With --write-docs each part is recorded when it is done, so that after
    a failure only the rest has to be measured. A run of all parts begins a new record.
    """
    stage = Stage(data, QUICK if given.quick else COUNTS, given.contender or list(CONTENDERS))
    measured = Record(machine.describe(data), quick=given.quick)
    if not given.only:
        recorded = Record()
    elif given.write_docs:
        recorded.merge(measured)  # raises before anything is measured on another machine
    code = source()
    names = given.only or list(MEASURES)
    for number, name in enumerate(names, 1):
        say(f"measuring: {name} ({number} of {len(names)})")
        part = Part(code, machine.load(), 0.0)
        began = time.monotonic()
        for figure in MEASURES[name](stage):
            part.figures[figure.name] = figure
            say(f"  {figure.name:55} {figure.value:14,.2f} {figure.unit}")
        part.minutes = (time.monotonic() - began) / 60
        done = Record(measured.machine, dict(stage.versions), {name: part})
        measured.merge(done)
        if given.write_docs:
            recorded.merge(done)
            page.write(recorded)
    return measured


def show_moved(before: Mapping[str, Figure], now: Mapping[str, Figure]) -> None:
    moved = list(list_moved(before, now))
    for title, absolute in (
        ("moved by more than noise since the recorded run", False),
        ("times and rates that moved; they move with the machine, too", True),
    ):
        found = [str(movement) for movement in moved if movement.is_absolute is absolute]
        print(f"\n{title}: {len(found)} of {len(before.keys() & now.keys())}", *found, sep="\n  ")


def main() -> int:
    given = arguments()
    recorded = load(RESULTS)
    if given.redraw:
        page.write(recorded)
        return 0
    before = recorded.figures
    DATA.mkdir(exist_ok=True)
    (DATA / ".gitignore").write_text("*\n")
    data = Path(tempfile.mkdtemp(dir=DATA))
    try:
        measured = measure(given, data, recorded)
    except (WorkerFailed, NoEnvironment, CannotMerge) as failure:
        print(failure, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(data)
    report.show(measured)
    if measured.quick:
        print(
            "A quick run: little work, few slices. Its figures show that the bench works and"
            " nothing else."
        )
    else:
        show_moved(before, measured.figures)
    if given.json:
        given.json.write_text(measured.dump(report.judge(measured.figures)), encoding="utf-8")
    if given.preview:
        page.preview(measured, given.preview)
    return 0


if __name__ == "__main__":
    sys.exit(main())
