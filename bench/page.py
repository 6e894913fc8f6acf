"""docs/benchmarks.md with its pictures, and the figures that other pages quote: all of them written
from a record, so that they can be written again without measuring.
"""

from pathlib import Path
from typing import Final

from bench import quote, report
from bench.plot import list_plots
from bench.record import RESULTS, Record
from bench.worker import ROOT

PAGE: Final = ROOT / "docs" / "benchmarks.md"
IMAGES: Final = ROOT / "docs" / "images"
METHOD: Final = Path(__file__).with_name("method.md")

_HEAD: Final = """\
# Benchmarks

What durability costs with everhold, beside a floor that no runtime can beat, and beside
LangGraph, DBOS and Pydantic AI doing the same work. Figures are multiples within one run on one
machine, not times: they say less about the machine. [How to read this](#how-to-read-this) says
what was measured, and [what is missed](#what-is-missed-and-why) where we are not yet good enough.

Written by `python -m bench --write-docs`; do not edit."""

_STEPS: Final = """\
A session asks 20 questions; a step is one answer, durable together with the next question. All
columns but the last are multiples of the floor's step at the same level (*in memory only*: at
`NORMAL`; *start*: of the floor's start).

**Cold and warm.** everhold keeps sessions in memory, so its `NORMAL`, `FULL` and PostgreSQL
columns are answered from there. LangGraph loads its state at each step. *Not in memory* is the
step after 20 answers of a session that everhold has to read and replay first, as after a restart;
LangGraph's is its ordinary step after as many answers. DBOS holds a waiting workflow in its
process; how it recovers one was not measured."""

_CALLS: Final = """\
From one call of a function to the next, at `NORMAL`. everhold commits that a call begins, and
then its result: after a crash it knows which calls may have been made. DBOS commits the result. A
task of LangGraph is written by a thread while the program goes on."""

_GROWTH: Final = """\
One session that grows to 10,000 of something. The exponent is that of its CPU time: with 1, twice
as much costs twice as much; with 2, four times as much."""

_INSTRUCTIONS: Final = """\
Of the processor in user space, counted by callgrind: they do not depend on what else the machine
does. The kernel's part is not among them."""

_PARTS: Final = """\
Each part was measured in one run, and no figure compares two runs. *Everhold's code* is a digest
of it: equal digests, equal code."""


def render(record: Record) -> str:
    """The text of docs/benchmarks.md."""
    figures = record.figures
    pictures = [f"![{plot.alt}](images/{plot.name}.svg)" for plot, _ in list_plots(figures)]
    facts = [f"- {what}: {fact}" for what, fact in {**record.machine, **record.versions}.items()]
    sections = [
        _section("A durable step", _STEPS, report.steps(figures)),
        _section("Calls and approvals", _CALLS, report.others(figures)),
        _section(
            "Long sessions, and many at once",
            "1000 pauses in one session, and 1000 sessions at once (peers: 300, and 30).",
            report.crowds(figures),
        ),
        _section(
            "A conversation with an agent",
            "Inputs and answers of 1 KB each, on the same scripted model, at `NORMAL`. × floor is"
            " over the floor's step.",
            report.turns(figures),
        ),
        _section(
            "Workers on Postgres",
            "Sessions of 20 steps lie in the database; workers take them there. Every commit is"
            " synced.",
            report.fleets(figures),
        ),
        _section(
            "Many sessions in one file",
            "CPU time of the event loop's thread over the same in a file with a thousand sessions.",
            report.lists(figures),
        ),
        _section("One session that grows", _GROWTH, report.growth(figures)),
        _section("Instructions", _INSTRUCTIONS, report.instructions(figures)),
        _section(
            "Orders of magnitude",
            "Times, only to tell microseconds from seconds. Another machine has others.",
            report.magnitudes(figures),
        ),
        _section("What we want to reach", _unmeasured(record), report.targets(figures)),
        ["## What is missed, and why", _missed(record)],
        ["## The machine", "\n".join(facts), _PARTS, report.parts(record)],
        [METHOD.read_text(encoding="utf-8").strip()],
        ["All figures, with their spread: [bench/results.json](../bench/results.json)."],
    ]
    paragraphs = [_HEAD, *pictures, *(text for section in sections for text in section if text)]
    return "\n\n".join(paragraphs) + "\n"


def _section(title: str, words: str, table: str) -> list[str]:
    """A section, or nothing if its table is empty: none of it was measured."""
    return [f"## {title}", words, table] if table else []


def _unmeasured(record: Record) -> str:
    names = [f"`{target.figure}`" for target in report.list_unmeasured(record.figures)]
    return f"Not measured on this machine: {', '.join(names)}." if names else ""


def _missed(record: Record) -> str:
    """What is missed, with the reason where it is known."""
    lines = [
        f"- **{target.what.removeprefix('… ')}** (`{target.figure}`): "
        + (target.why or "not explained yet.")
        for target, _ in report.list_missed(record.figures)
    ]
    return "\n".join(lines) or "Nothing."


def write(record: Record) -> None:
    """Write the record, the page, its pictures, and what other pages quote."""
    figures = record.figures
    RESULTS.write_text(record.dump(report.judge(figures)), encoding="utf-8")
    PAGE.write_text(render(record), encoding="utf-8")
    _write_pictures(record, IMAGES)
    quote.write(figures)


def preview(record: Record, folder: Path) -> None:
    """Write the page and its pictures to a folder."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / PAGE.name).write_text(render(record), encoding="utf-8")
    _write_pictures(record, folder / "images")


def _write_pictures(record: Record, folder: Path) -> None:
    for path in folder.glob("bench-*.svg"):
        path.unlink()
    for plot, drawn in list_plots(record.figures):
        (folder / f"{plot.name}.svg").write_text(drawn, encoding="utf-8")
