"""The four pictures of docs/benchmarks.md: which figures they show, and the words beside them.

A picture whose figures were not measured is not drawn. Each value is a ratio within one part.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bench.contender import CONTENDERS
from bench.figure import Figure
from bench.report import FLEETS, SPEAKERS, format_value, list_sizes, list_turns
from bench.svg import Bar, Panel, draw_bars, draw_lines

Figures = Mapping[str, Figure]
_OURS: Final = 0
_PEER: Final = 4
#: What is done in files of many sessions, as far as the picture shows it.
_HELD: Final = {
    "open": "open the file",
    "answer": "answer one session",
    "inbox": "ten questions of the inbox",
    "newest": "a page of 100 sessions",
}


@dataclass(frozen=True, slots=True)
class Plot:
    """`alt` says what a reader would see."""

    name: str
    alt: str
    draw: Callable[[Figures], str]


def list_plots(figures: Figures) -> Iterator[tuple[Plot, str]]:
    """The pictures that these figures make, each with its SVG."""
    for plot in PLOTS:
        drawn = plot.draw(figures)
        if drawn:
            yield plot, drawn


def _plain(title: str) -> str:
    return title.replace("*", "").replace("`", "")


def _draw_step(figures: Figures) -> str:
    bars = [Bar("floor", 1.0, "1")]
    for name, contender in CONTENDERS.items():
        found = figures.get(f"step.normal.{name}.over_floor")
        if found is not None:
            ours = name == "everhold"
            label = _plain(contender.title) + (", in memory" if ours else "")
            apart = name in ("everhold", "langgraph-loop", "dbos-step")
            text = format_value(found.value)
            bars.append(Bar(label, found.value, text, _OURS if ours else _PEER, apart))
        cold = figures.get("cold.normal.everhold.over_floor")
        if name == "everhold" and cold is not None:
            text = format_value(cold.value)
            bars.append(Bar("everhold, not in memory", cold.value, text, _OURS))
    if len(bars) < 3:
        return ""
    return draw_bars(
        "What a durable step costs",
        "Times a bare coroutine with one SQLite commit (the floor). One session alone; a killed"
        " process loses nothing.",
        bars,
    )


def _draw_conversation(figures: Figures) -> str:
    turns = list_turns(figures)
    if len(turns) < 2 or f"turn.everhold.{turns[0]}.over_floor" not in figures:
        return ""

    def series(column: str) -> dict[str, list[tuple[float, float]]]:
        return {
            _plain(title): [
                (turn, figures[f"turn.{name}.{turn}.{column}"].value)
                for turn in turns
                if f"turn.{name}.{turn}.{column}" in figures
            ]
            for name, title in SPEAKERS.items()
            if f"turn.{name}.{turns[0]}.{column}" in figures
        }

    return draw_lines(
        "How a conversation grows",
        "An agent's turn with 1 KB in and 1 KB out, its model for free. Both axes are logarithmic.",
        [
            Panel("time of a turn, times one bare SQLite commit", series("over_floor"), "turn"),
            Panel("bytes a turn adds to the file", series("bytes"), "turn"),
        ],
    )


def _draw_held(figures: Figures) -> str:
    sizes = list_sizes(figures)
    if not sizes:
        return ""
    series = {
        title: [
            (1000.0, 1.0),
            *((size, figures[f"lists.{name}.{size}.cpu_over_few"].value) for size in sizes),
        ]
        for name, title in _HELD.items()
    }
    return draw_lines(
        "How many sessions one file holds",
        "CPU time over the same with a thousand sessions: flat is good.",
        [Panel("times", series, "sessions in the file", log_y=False)],
    )


def _draw_workers(figures: Figures) -> str:
    bars = []
    for size in (1, 2, 4):
        for number, (name, title) in enumerate(FLEETS.items()):
            found = figures.get(f"postgres.{size}.{name}.over_dbos_one")
            if found is not None:
                label = f"{_plain(title)}, {size} worker{'s' if size > 1 else ''}"
                text = format_value(found.value)
                apart = bool(bars) and number == 0
                bars.append(Bar(label, found.value, text, _PEER if number else _OURS, apart))
    if not bars:
        return ""
    return draw_bars(
        "Steps per second by workers, on PostgreSQL",
        "Times those of one worker of DBOS. Every commit waits for the disk; server and workers"
        " share one machine.",
        bars,
    )


PLOTS: Final = (
    Plot(
        "bench-step",
        "Bars: the cost of a durable step of everhold, in memory and not, of LangGraph and of DBOS,"
        " over a bare SQLite commit.",
        _draw_step,
    ),
    Plot(
        "bench-conversation",
        "Lines: the time of a turn and the bytes that it adds, at turn 10, 100 and 1000, for"
        " everhold, LangGraph and Pydantic AI.",
        _draw_conversation,
    ),
    Plot(
        "bench-sessions",
        "Lines: opening a file, answering a session, the inbox and a page of sessions, with a"
        " thousand to a million sessions in the file.",
        _draw_held,
    ),
    Plot(
        "bench-workers",
        "Bars: steps per second of one, two and four workers on PostgreSQL, everhold and DBOS.",
        _draw_workers,
    ),
)
