"""`python -m bench`: measure, print, and if asked write the docs.

Exit codes: 0 measured (the table says which targets were missed), 2 could not be measured.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench import machine
from bench.contender import CONTENDERS
from bench.environment import NoEnvironment
from bench.figure import Figure
from bench.measures import MEASURES
from bench.report import Report
from bench.scale import COUNTS, QUICK
from bench.stage import Stage, say
from bench.worker import ROOT, WorkerFailed

DATA = ROOT / ".bench-data"
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="everhold beside the floor and its peers"
    )
    parser.add_argument(
        "--quick", action="store_true", help="little of everything: shows that the bench works"
    )
    parser.add_argument(
        "--only", action="append", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES)
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
        "--write-docs", action="store_true", help="write docs/benchmarks.md and bench/results.json"
    )
    given = parser.parse_args()
    if given.write_docs and (given.quick or given.only or given.contender):
        parser.error("the docs show one whole run: not with --quick, --only or --contender")
    return given


def measure(given: argparse.Namespace, data: Path) -> Report:
    stage = Stage(data, QUICK if given.quick else COUNTS, given.contender or list(CONTENDERS))
    measured_on = machine.describe(data)
    figures: dict[str, Figure] = {}
    for name in given.only or MEASURES:
        say(f"measuring: {name}")
        for figure in MEASURES[name](stage):
            figures[figure.name] = figure
            say(f"  {figure.name:55} {figure.value:14,.2f} {figure.unit}")
    return Report(figures, measured_on, stage.versions, quick=given.quick)


def show(report: Report) -> None:
    for table in (
        report.targets(),
        report.steps(),
        report.crowds(),
        report.turns(),
        report.fleets(),
    ):
        print(table, end="\n\n")
    for target in report.unmeasured():
        print(f"not measured in this run: {target.figure}")
    if report.quick:
        print(
            "A quick run: little work, few slices. Its figures show that the bench works and"
            " nothing else."
        )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> int:
    given = arguments()
    DATA.mkdir(exist_ok=True)
    (DATA / ".gitignore").write_text("*\n")
    data = Path(tempfile.mkdtemp(dir=DATA))
    try:
        report = measure(given, data)
    except (WorkerFailed, NoEnvironment) as failure:
        print(failure, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(data)
    show(report)
    text = json.dumps(report.record(), indent=2, ensure_ascii=False) + "\n"
    if given.json:
        write(given.json, text)
    if given.write_docs:
        write(RESULTS, text)
        write(PAGE, report.page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
