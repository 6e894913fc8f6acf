"""What a model is told beside the tools: instructions, prompts, the guide, and what strategies are for and cost."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from everhold.core.codec import JSON
from everhold.core.errors import BadArguments, EverholdError
from everhold.packages.strategies import strategies
from everhold.packages.strategies.about import Strategy

GUIDE: Final = "everhold://guide"

INSTRUCTIONS: Final = (
    "The loop: `run` starts a strategy and returns status needs_response with prompts. YOU are the model that answers"
    " them: write an honest answer to each prompt, send all with `answer`, and repeat until status is completed; then"
    " report `result`. Each result has `next`, which says exactly what to do.\n\n"
    "Use a strategy when one straight answer may be wrong or shallow: `strategies` lists them with their cost in"
    " answers and rounds. Sessions are kept on disk: if you lost track, `sessions` finds them and `status` shows the"
    " open prompts again.\n\n"
    "Answer each prompt on its own, as if you knew only what it says. Approvals and questions for a person are never"
    " yours to answer: tell the user, or use `ask_person`. To write a program of your own in Lua, read the resource"
    " everhold://guide first."
)


def guide() -> str:
    """One page from which a model writes a correct program in Lua."""
    return files("everhold.fronts.mcp").joinpath("guide.md").read_text(encoding="utf-8")


def title(name: str, args: Mapping[str, Any]) -> str:
    """A title for a session that was given none: its program and how its task begins."""
    task = args.get("task")
    words = " ".join(task.split()) if isinstance(task, str) else ""
    short = name.replace("\\", "/").rpartition("/")[2]
    return f"{short}: {words[:60]}{'…' if len(words) > 60 else ''}" if words else short


# ---- strategies


@cache
def _by_ref() -> dict[str, Strategy]:
    return {strategy.program.ref: strategy for strategy in strategies()}


def estimate(program: Any, args: Mapping[str, JSON]) -> dict[str, JSON] | None:
    """What a session of this program will cost; None if nobody knows."""
    known = _by_ref().get(program.ref)
    try:
        return None if known is None else known.estimate(args).plain
    except BadArguments:
        return None


def listed(programs: Sequence[Any], problems: Sequence[EverholdError]) -> dict[str, JSON]:
    """What `run` can start."""
    rows: list[JSON] = [_row(strategy) for strategy in strategies()]
    rows += [_brief(program) for program in programs if program.ref not in _by_ref()]
    told: dict[str, JSON] = {"strategies": rows}
    if problems:
        told["problems"] = [str(problem) for problem in problems]
    told["next"] = (
        'To start one, call the everhold tool `run`, for example {"program": "reflect", "args": {"task": "…"}}; with a'
        " name, `strategies` describes its parameters."
    )
    return told


def _row(strategy: Strategy) -> dict[str, JSON]:
    return {
        "name": strategy.name,
        "summary": strategy.summary,
        "use_when": strategy.use_when,
        "cost": strategy.formula,
        "estimate": strategy.estimate().plain,
    }


def _brief(program: Any) -> dict[str, JSON]:
    words = inspect.cleandoc(program.__doc__ or "").partition("\n")[0]
    return {"name": program.name, "summary": words}


def described(program: Any) -> dict[str, JSON]:
    """One program in full."""
    known = _by_ref().get(program.ref)
    if known is None:
        parameters = [str(one) for one in program.signature.parameters.values()]
        about = inspect.cleandoc(program.__doc__ or "")
        return {"name": program.name, "summary": about, "program": program.ref, "parameters": parameters}
    papers: list[JSON] = [str(paper) for paper in known.papers]
    return {**_row(known), "not_when": known.not_when, "papers": papers, "parameters": _parameters(known)}


def _parameters(strategy: Strategy) -> list[JSON]:
    rows: list[JSON] = []
    for one in strategy.parameters:
        row: dict[str, JSON] = {"name": one.name, "description": one.description, "schema": one.schema}
        rows.append(row | ({"required": True} if one.required else {"default": one.default}))
    return rows


# ---- prompts

_TASK: Final = ("task", "What is to be solved or written.", True)
_SESSION: Final = ("session_id", "Which session; without it, the newest that waits.", False)


def prompts() -> dict[str, tuple[str, str, tuple[str, str, bool]]]:
    """Every prompt by name: title, description, and its one argument (name, description, required)."""
    found = {one.name: (f"Strategy: {one.name}", f"{one.summary} {one.formula}.", _TASK) for one in strategies()}
    found["resume"] = ("Resume a session", "Go on with a session that was begun earlier.", _SESSION)
    found["status"] = ("Status of sessions", "Say where sessions stand and what they wait for.", _SESSION)
    return found


def prompt(name: str, arguments: Mapping[str, str]) -> str:
    """The words of a prompt."""
    session = arguments.get("session_id", "")
    if name == "resume":
        find = f"session_id {session!r}" if session else "the newest paused session that the tool `sessions` lists"
        return (
            f"Go on with an everhold session. Call the everhold tool `status` for {find}. If it has open questions,"
            " answer each of them yourself with the tool `answer`, and repeat what `next` says until the status is"
            " completed. Then tell me its result. If it waits for a person, tell me what to decide and how."
        )
    if name == "status":
        if session:
            return (
                f"Call the everhold tools `status` and `explain` with session_id {session!r} and tell me in a few"
                " sentences where it stands, what it waits for and what would move it. Answer no questions."
            )
        return (
            "Call the everhold tool `sessions` and tell me in a short table which sessions there are, where each stands"
            " and which of them wait for me. Answer no questions."
        )
    task = arguments.get("task", "")
    return (
        f"Use the everhold strategy `{name}` for the task below. Call the everhold tool `run` with program {name!r} and"
        ' args {"task": …the task, word for word…}. Then answer every prompt it returns yourself with the tool'
        " `answer`, each on its own and with care, as `next` says, until the status is completed. Then tell me the"
        f" result, and in one sentence how it came about.\n\nTask:\n{task}"
    )
