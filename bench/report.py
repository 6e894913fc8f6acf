"""The tables: of the terminal, and of docs/benchmarks.md. Ratios, counts and bytes; times stand in
one table of their own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from bench.contender import CONTENDERS, FLOOR
from bench.figure import Figure
from bench.record import Record
from bench.target import TARGETS, Target

Figures = Mapping[str, Figure]

#: Whose conversations are held, and what they are called.
SPEAKERS: Final = {
    "everhold": "**everhold**",
    "langgraph": "LangGraph, `MessagesState`",
    "langgraph-delta": "LangGraph, `DeltaChannel` (beta)",
    "pydantic-ai": "Pydantic AI",
}
#: Whose workers share a Postgres.
FLEETS: Final = {"everhold": "**everhold**", "dbos": "DBOS"}
CALLERS: Final = {
    "floor-call": "floor: two commits",
    "everhold": "**everhold**, `ctx.call`",
    "dbos-step": "DBOS, a step",
    "dbos-step-async": "DBOS, an async step",
    "langgraph-task": "LangGraph, a task",
}
#: What is done in files of many sessions.
LISTS: Final = {
    "open": "open the file",
    "answer": "answer a session that is not in memory",
    "inbox": "the inbox, 10 questions",
    "newest": "the newest 100 sessions",
    "state": "100 that failed",
    "label": "100 with a label",
    "retention": "100 that ended first",
    "delete": "retention deletes 5",
    "due": "timers and others that need a move",
}
GROWN: Final = {
    "deliveries": "answers in one session",
    "replay": "… read and replayed",
    "reading": "… listed as steps and transcript",
    "children": "children of one session",
    "questions": "open questions, answered one by one",
    "answers": "… answered by one call",
    "inputs": "inputs queued during a turn",
    "conversation": "turns of a conversation",
    "reopening": "… read again, and one more turn",
}
#: Times, for readers who need to know whether something takes microseconds or seconds.
MAGNITUDES: Final = {
    "step.normal.floor.us": "the floor: a bare coroutine and one SQLite commit",
    "step.normal.everhold.us": "a durable step, session in memory; a killed process loses nothing",
    "step.full.everhold.us": "… a power cut loses nothing",
    "cold.normal.everhold.us": "… of a session with 20 answers that is not in memory",
    "resume.everhold.cold_1000_ms": "… with 1000 answers",
    "turn.everhold.100.ms": "a turn of an agent, without its model",
    "paused.everhold.many.open_and_answer_ms": "open a file of 100,000 paused sessions, answer one",
    "lists.inbox.us": "ten questions of the inbox, among a million sessions",
    "postgres.1.everhold.turn_ms": "a turn that another process does, through PostgreSQL",
    "startup.help_ms": "`everhold --help`",
    "mcp.everhold.first_answer_ms": "`everhold mcp`, from its start to its first answer",
    "fleet.takeover.here_s": "another worker resumes the session of a killed one",
    "fleet.takeover.elsewhere_s": "… that was on another machine (lease of 10 s)",
}


def show(record: Record) -> None:
    """Print the tables, and the targets that were not measured."""
    figures = record.figures
    tables = (targets, steps, others, crowds, turns, fleets, lists, growth, instructions)
    for table in tables:
        text = table(figures)
        if text:
            print(text, end="\n\n")
    for target in list_unmeasured(figures):
        print(f"not measured in this run: {target.figure}")


def judge(figures: Figures) -> dict[str, Any]:
    """Every target whose figure was measured."""
    return {
        target.figure: {
            "limit": target.limit,
            "stretch": target.stretch,
            "at_least": target.at_least,
            "met": target.is_met(figure),
        }
        for target, figure in _measured(figures)
    }


def _measured(figures: Figures) -> Iterator[tuple[Target, Figure]]:
    return ((target, figures[target.figure]) for target in TARGETS if target.figure in figures)


def list_unmeasured(figures: Figures) -> list[Target]:
    return [target for target in TARGETS if target.figure not in figures]


def list_missed(figures: Figures) -> list[tuple[Target, Figure]]:
    return [(target, figure) for target, figure in _measured(figures) if not target.is_met(figure)]


# ---- tables: empty if nothing of them was measured


def targets(figures: Figures) -> str:
    rows = [
        (
            target.what,
            _with_unit(figure.value, figure),
            f"{format_value(figure.low)} – {format_value(figure.high)}",
            f"{target.sign} {_with_unit(target.limit, figure)}",
            "–" if target.stretch is None else format_value(target.stretch),
            "met" if target.is_met(figure) else "**missed**",
        )
        for target, figure in _measured(figures)
    ]
    return _table(("what", "measured", "middle half", "target", "stretch", ""), rows)


def steps(figures: Figures) -> str:
    """The work of 20 pauses side by side, as multiples of the floor."""
    columns = {
        "`NORMAL`": "step.normal.{}.over_floor",
        "not in memory": "cold.normal.{}.over_floor",
        "`FULL`": "step.full.{}.over_floor",
        "in memory only": "step.memory.{}.over_floor",
        "PostgreSQL": "step.postgres.{}.over_floor",
        "start": "start.normal.{}.over_floor",
        "bytes a step": "size.{}.in_sequence.bytes_per_step",
    }
    ones = set(columns) - {"bytes a step", "not in memory", "in memory only"}
    rows = []
    for name, contender in CONTENDERS.items():
        cells = [
            "1" if name == FLOOR and title in ones else _cell(figures, column.format(name))
            for title, column in columns.items()
        ]
        rows.append((contender.title, *cells))
    return _table(("", *columns), rows)


def others(figures: Figures) -> str:
    """Steps that call a function, and approvals."""
    rows = [
        (title, _cell(figures, f"call.normal.{name}.over_floor")) for name, title in CALLERS.items()
    ]
    rows.append(
        (
            "**everhold**, an approval answered",
            _cell(figures, "approval.normal.everhold.over_floor"),
        )
    )
    return _table(("", "× floor's step"), rows)


def crowds(figures: Figures) -> str:
    """Long sessions and many sessions side by side."""
    columns = {
        "step 1000 over step 10, `NORMAL`": "length.normal.{}.late_over_early",
        "`FULL`": "length.full.{}.late_over_early",
        "many at once, × floor, `NORMAL`": "crowd.normal.{}.over_floor",
        "`FULL` ": "crowd.full.{}.over_floor",
    }
    rows = [
        (contender.title, *(_cell(figures, column.format(name)) for column in columns.values()))
        for name, contender in CONTENDERS.items()
    ]
    return _table(("", *columns), rows)


def turns(figures: Figures) -> str:
    """A conversation with an agent side by side."""
    found = list_turns(figures)
    header = ["", *(text for turn in found for text in (f"turn {turn}, × floor", "bytes a turn"))]
    rows = [
        [
            title,
            *(
                _cell(figures, f"turn.{name}.{turn}.{column}")
                for turn in found
                for column in ("over_floor", "bytes")
            ),
        ]
        for name, title in SPEAKERS.items()
    ]
    return _table(header, rows)


def list_turns(figures: Figures) -> list[int]:
    """The turns of conversations that were measured."""
    names = (name.split(".") for name in figures if name.startswith("turn."))
    return sorted({int(words[2]) for words in names if words[2].isdigit()})


def fleets(figures: Figures) -> str:
    """Workers on Postgres side by side."""
    sizes = (1, 2, 4)
    header = ["", *(f"{size} workers" for size in sizes)]
    rows = [
        (
            "steps per second, everhold's over DBOS's",
            *(_cell(figures, f"postgres.{size}.over_dbos") for size in sizes),
        ),
        *(
            (
                f"… {title}, over its own with one worker",
                *(_cell(figures, f"postgres.{size}.{name}.over_one") for size in sizes),
            )
            for name, title in FLEETS.items()
        ),
        (
            "a turn, everhold's time over DBOS's workflow of one step",
            *(_cell(figures, f"postgres.{size}.turn_over_dbos") for size in sizes),
        ),
    ]
    return _table(header, rows)


def lists(figures: Figures) -> str:
    """Files of many sessions: CPU time over the same with the fewest."""
    sizes = list_sizes(figures)
    rows = [
        (title, *(_cell(figures, f"lists.{name}.{size}.over_few") for size in sizes))
        for name, title in LISTS.items()
    ]
    return _table(("", *(f"{size:,} sessions" for size in sizes)), rows)


def list_sizes(figures: Figures) -> list[int]:
    """Sessions of the files whose lists were read, without the smallest."""
    return sorted(
        int(name.split(".")[2])
        for name in figures
        if name.startswith("lists.inbox.") and name.endswith(".over_few") and "many" not in name
    )


def growth(figures: Figures) -> str:
    """One session that grows large."""
    rows = [
        (title, _cell(figures, f"growth.{name}.largest"), _cell(figures, f"growth.{name}.exponent"))
        for name, title in GROWN.items()
        if f"growth.{name}.largest" in figures
    ]
    return _table(("", "up to", "exponent"), rows)


def instructions(figures: Figures) -> str:
    """Instructions, which do not depend on the machine's load."""
    rows = [
        (
            what,
            _cell(figures, f"instructions.{name}"),
            _cell(figures, f"instructions.{name}_over_floor"),
        )
        for name, what in (
            ("floor", "floor: a step"),
            ("step", "a step, session in memory"),
            ("memory", "… in the memory store"),
            ("cold", "… not in memory, 20 answers"),
            ("start", "start to the first pause"),
            ("call", "a step that calls a function"),
            ("approval", "an approval answered"),
            ("turn", "a turn of an agent"),
        )
        if f"instructions.{name}" in figures
    ]
    return _table(("", "instructions", "× floor's step"), rows)


def magnitudes(figures: Figures) -> str:
    rows = [
        (what, _with_unit(figures[name].value, figures[name]))
        for name, what in MAGNITUDES.items()
        if name in figures
    ]
    return _table(("", "on this machine, about"), rows)


def parts(record: Record) -> str:
    rows = [
        (name, part.source or "–", f"{part.load:.1f}", f"{part.minutes:.1f}")
        for name, part in record.parts.items()
    ]
    return _table(("part", "everhold's code", "load before it", "minutes"), rows)


# ---- cells


def _cell(figures: Figures, name: str) -> str:
    return format_value(figures[name].value) if name in figures else "–"


def _with_unit(value: float, figure: Figure) -> str:
    return f"{format_value(value)} {figure.unit}".strip()


def format_value(value: float) -> str:
    """Round to three significant digits."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of the rows in which something was measured; empty if there are none."""
    kept = [row for row in rows if any(cell != "–" for cell in row[1:])]
    if not kept:
        return ""
    lines = [header, ["---"] * len(header), *kept]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
