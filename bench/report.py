"""Formats the figures: a table for the terminal, docs/benchmarks.md, JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contender import CONTENDERS, FLOOR
from bench.figure import Figure
from bench.target import TARGETS, Target

#: Whose conversations are held, and what they are called.
SPEAKERS = {"everhold": "**everhold**", "langgraph": "LangGraph", "pydantic-ai": "Pydantic AI"}
#: Whose workers share a Postgres.
FLEETS = {"everhold": "**everhold**", "dbos": "DBOS"}
METHOD = Path(__file__).with_name("method.md")


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    figures: Mapping[str, Figure]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    quick: bool

    def record(self) -> dict[str, Any]:
        """Everything, under stable names."""
        targets = {
            target.figure: {
                "limit": target.limit,
                "at_least": target.at_least,
                "met": target.is_met(figure),
            }
            for target, figure in self.judged()
        }
        return {
            "quick": self.quick,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "figures": {name: figure.record() for name, figure in sorted(self.figures.items())},
            "targets": targets,
        }

    def judged(self) -> Iterator[tuple[Target, Figure]]:
        return (
            (target, self.figures[target.figure])
            for target in TARGETS
            if target.figure in self.figures
        )

    def unmeasured(self) -> list[Target]:
        return [target for target in TARGETS if target.figure not in self.figures]

    def targets(self) -> str:
        rows = [
            (
                target.what,
                f"{_round(figure.value)} {figure.unit}",
                f"{_round(figure.low)} – {_round(figure.high)}",
                f"{target.sign} {_round(target.limit)} {figure.unit}",
                "met" if target.is_met(figure) else "**missed**",
            )
            for target, figure in self.judged()
        ]
        return _table(("what", "measured", "middle half", "target", ""), rows)

    def steps(self) -> str:
        """The work of 20 pauses side by side, both pairs of levels."""
        header = [
            "",
            "`NORMAL`, µs",
            "× floor",
            "`FULL`, µs",
            "× floor",
            "memory, µs",
            "start, µs",
            "bytes a step",
        ]
        return _table(
            header, [self._step_row(name) for name in CONTENDERS if self._has("step", name)]
        )

    def _step_row(self, name: str) -> list[str]:
        row = [CONTENDERS[name].title]
        for level in ("normal", "full"):
            row += [
                self._cell(f"step.{level}.{name}.us"),
                "1" if name == FLOOR else self._cell(f"step.{level}.{name}.over_floor"),
            ]
        last = (
            f"step.memory.{name}.us",
            f"start.normal.{name}.us",
            f"size.{name}.in_sequence.bytes_per_step",
        )
        return [*row, *map(self._cell, last)]

    def crowds(self) -> str:
        """Long sessions and many sessions side by side."""
        columns = ("length.{}.early_us", "length.{}.late_us", "crowd.{}.steps_per_s")
        header = ["", *("step 10, µs", "step 1000, µs", "1000 at once, steps/s") * 2]
        rows = [
            [
                CONTENDERS[name].title,
                *(
                    self._cell(column.format(f"{level}.{name}"))
                    for level in ("normal", "full")
                    for column in columns
                ),
            ]
            for name in CONTENDERS
            if self._has("length", name)
        ]
        return _table(header, rows)

    def turns(self) -> str:
        """A conversation with an agent side by side."""
        found = {
            int(name.split(".")[2])
            for name in self.figures
            if name.startswith("turn.") and name.endswith(".ms")
        }
        columns = [column for turn in sorted(found) for column in (f"{turn}.ms", f"{turn}.bytes")]
        header = [
            "",
            *(text for turn in sorted(found) for text in (f"turn {turn}, ms", "bytes a turn")),
        ]
        rows = [
            [title, *(self._cell(f"turn.{name}.{column}") for column in columns)]
            for name, title in SPEAKERS.items()
            if self._has("turn", name)
        ]
        return _table(header, rows)

    def fleets(self) -> str:
        """Workers on Postgres side by side."""
        sizes = (1, 2, 4)
        header = [
            "",
            *(f"{size} workers, steps/s" for size in sizes),
            *(f"{size}, turn ms" for size in sizes),
        ]
        rows = [
            [
                title,
                *(
                    self._cell(f"postgres.{size}.{name}.{what}")
                    for what in ("steps_per_s", "turn_ms")
                    for size in sizes
                ),
            ]
            for name, title in FLEETS.items()
            if any(f"postgres.{size}.{name}.steps_per_s" in self.figures for size in sizes)
        ]
        return _table(header, rows)

    def page(self) -> str:
        """The whole of docs/benchmarks.md."""
        facts = [f"- {what}: {fact}" for what, fact in {**self.machine, **self.versions}.items()]
        fsync = self._cell("fsync.us")
        return (
            "\n\n".join(
                [
                    "# Benchmarks",
                    "Written by `python -m bench --write-docs`; do not edit. "
                    "`python -m bench --quick` shows that the bench works; its figures do not"
                    " count.",
                    "## What we want to reach",
                    self.targets(),
                    "## 20 pauses, one session alone",
                    self.steps(),
                    f"An fsync cost about {fsync} µs in this run (the floor's step, `FULL` less"
                    " `NORMAL`). "
                    "At `FULL` everybody pays it at least once a step, so ratios are closer"
                    " together there.",
                    "## 1000 pauses, and 1000 sessions at once",
                    "The first three columns are at `NORMAL`, the last three at `FULL`.",
                    self.crowds(),
                    "## A conversation with an agent",
                    "Inputs and answers of 1 KB each, on the same scripted model, at `NORMAL`.",
                    self.turns(),
                    "## Workers on Postgres",
                    "Sessions of 20 steps lie in the database; workers take them there. Every"
                    " commit is synced.",
                    self.fleets(),
                    "A turn that a front accepts and a worker does takes"
                    f" {self._cell('postgres.turn.statements')} SQL "
                    f"statements, BEGIN and COMMIT included; reconciliation and chores send "
                    f"{self._cell('postgres.turn.statements_aside')} a turn beside them.\n\n"
                    f"A paused session is {self._cell('fleet.idle.rows_per_session')} rows"
                    " there, with "
                    f"{self._cell('fleet.idle.bytes_per_session')} bytes.",
                    "## The machine",
                    "\n".join(facts),
                    METHOD.read_text(encoding="utf-8").strip(),
                    "All figures, with their spread: [bench/results.json](../bench/results.json).",
                ]
            )
            + "\n"
        )

    def _has(self, kind: str, name: str) -> bool:
        return any(
            figure.startswith(f"{kind}.") and f".{name}." in figure for figure in self.figures
        )

    def _cell(self, name: str) -> str:
        return _round(self.figures[name].value) if name in self.figures else "–"


def _round(value: float) -> str:
    """Rounds to three significant digits."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _table(header: Any, rows: Any) -> str:
    lines = [list(header), ["---"] * len(header), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
