"""What a model is told beside the tools: instructions, prompts, the guide, and what strategies are
for and cost.

A sub-agent for a host: a prompt that makes a model run a strategy to its end by itself, and
bring back the result.

The main conversation then sees one call and one result, and none of the questions in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from everhold.core.codec import JSON
from everhold.errors import BadHostFile
from everhold.mcp.hosts import HostEnvironment, rewrite_host_file
from everhold.packages import catalog
from everhold.packages.catalog import ProgramCatalog, ProgramEntry
from everhold.packages.strategies import strategies, strategy
from everhold.packages.strategies.metadata import Strategy

GUIDE: Final = "everhold://guide"
#: Characters of what a program says of itself in a list of all; one alone is described in full.
SUMMARY_LENGTH: Final = 200

INSTRUCTIONS: Final = (
    "The loop: `run` starts a strategy and returns status needs_response with prompts. YOU are"
    " the model that answers"
    " them: write an honest answer to each prompt, send all with `answer`, and repeat until"
    " status is completed; then"
    " report `result`. Each result has `next`, which says exactly what to do.\n\n"
    "Use a strategy when one straight answer may be wrong or shallow: `strategies` lists them"
    " with their cost in"
    " answers and rounds. Sessions are kept on disk: if you lost track, `sessions` finds them"
    " and `status` shows the"
    " open prompts again.\n\n"
    "Answer each prompt on its own, as if you knew only what it says. Approvals and questions"
    " for a person are never"
    " yours to answer: tell the user, or use `ask_person`. To write a program of your own in"
    " Lua, read the resource"
    " everhold://guide first."
)


def load_guide() -> str:
    """One page from which a model writes a correct program in Lua."""
    return files("everhold.mcp").joinpath("guide.md").read_text(encoding="utf-8")


def make_session_title(name: str, args: Mapping[str, Any]) -> str:
    """A title for a session that was given none: its program and how its task begins."""
    task = args.get("task")
    words = " ".join(task.split()) if isinstance(task, str) else ""
    short = name.replace("\\", "/").rpartition("/")[2]
    return f"{short}: {words[:60]}{'…' if len(words) > 60 else ''}" if words else short


# ---- strategies


def render_estimate(program: Any, args: Mapping[str, JSON]) -> dict[str, JSON] | None:
    """What a session of this program will cost; None if nobody knows."""
    found = catalog.estimate_program(program, args)
    return None if found is None else found.plain


def render_catalog(found: ProgramCatalog) -> dict[str, JSON]:
    """What `run` can start."""
    told: dict[str, JSON] = {"strategies": [_shortened(_row(entry)) for entry in found.entries]}
    if found.problems:
        told["problems"] = [str(problem) for problem in found.problems]
    told["next"] = (
        'To start one, call the everhold tool `run`, for example {"program": "reflect", "args":'
        ' {"task": "…"}}; with a'
        " name, `strategies` describes its parameters."
    )
    return told


def _row(entry: ProgramEntry) -> dict[str, JSON]:
    row: dict[str, JSON] = {"name": entry.ref if entry.hidden else entry.name, "kind": entry.kind}
    row |= {key: words for key in ("summary", "cost", "category") if (words := getattr(entry, key))}
    if entry.kind == "strategy":
        about = strategy(entry.name)
        row |= {"use_when": about.use_when, "estimate": about.estimate().plain}
    return row


def _shortened(row: dict[str, JSON]) -> dict[str, JSON]:
    summary = row.get("summary")
    if isinstance(summary, str) and len(summary) > SUMMARY_LENGTH:
        row["summary"] = summary[:SUMMARY_LENGTH].rstrip() + "…"
    return row


def render_program(program: Any) -> dict[str, JSON]:
    """One program in full."""
    told = _row(catalog.describe_program(program))
    about = catalog.strategy_of(program)
    if about is None:
        words = inspect.cleandoc(program.__doc__ or "")
        told |= {"summary": words} if words else {}
        told["parameters"] = [str(one) for one in program.signature.parameters.values()]
        return told
    papers: list[JSON] = [str(paper) for paper in about.papers]
    return {**told, "not_when": about.not_when, "papers": papers, "parameters": _parameters(about)}


def _parameters(about: Strategy) -> list[JSON]:
    rows: list[JSON] = []
    for one in about.parameters:
        row: dict[str, JSON] = {
            "name": one.name,
            "description": one.description,
            "schema": one.schema,
        }
        rows.append(row | ({"required": True} if one.required else {"default": one.default}))
    return rows


# ---- prompts

_TASK: Final = ("task", "What is to be solved or written.", True)
_SESSION: Final = ("session_id", "Which session; without it, the newest that waits.", False)


def list_prompts() -> dict[str, tuple[str, str, tuple[str, str, bool]]]:
    """Every prompt by name: title, description, and its one argument (name, description,
    required).
    """
    found = {
        one.name: (f"Strategy: {one.name}", f"{one.summary} {one.formula}.", _TASK)
        for one in strategies()
    }
    found["resume"] = ("Resume a session", "Go on with a session that was begun earlier.", _SESSION)
    found["status"] = (
        "Status of sessions",
        "Say where sessions stand and what they wait for.",
        _SESSION,
    )
    return found


def render_prompt(name: str, arguments: Mapping[str, str]) -> str:
    """The words of a prompt."""
    session = arguments.get("session_id", "")
    if name == "resume":
        find = (
            f"session_id {session!r}"
            if session
            else "the newest paused session that the tool `sessions` lists"
        )
        return (
            f"Go on with an everhold session. Call the everhold tool `status` for {find}. If it"
            " has open questions,"
            " answer each of them yourself with the tool `answer`, and repeat what `next` says"
            " until the status is"
            " completed. Then tell me its result. If it waits for a person, tell me what to"
            " decide and how."
        )
    if name == "status":
        if session:
            return (
                f"Call the everhold tools `status` and `explain` with session_id {session!r} and"
                " tell me in a few"
                " sentences where it stands, what it waits for and what would move it. Answer no"
                " questions."
            )
        return (
            "Call the everhold tool `sessions` and tell me in a short table which sessions there"
            " are, where each stands"
            " and which of them wait for me. Answer no questions."
        )
    task = arguments.get("task", "")
    return (
        f"Use the everhold strategy `{name}` for the task below. Call the everhold tool `run`"
        f" with program {name!r} and"
        ' args {"task": …the task, word for word…}. Then answer every prompt it returns yourself'
        " with the tool"
        " `answer`, each on its own and with care, as `next` says, until the status is"
        " completed. Then tell me the"
        f" result, and in one sentence how it came about.\n\nTask:\n{task}"
    )


#: What a file that we wrote holds, so that nobody else's is replaced.
GENERATED_MARK: Final = "written by `everhold mcp agent`"


def render_subagent(server: str) -> str:
    """The sub-agent of Claude Code for a server of this name."""
    text = files("everhold.mcp").joinpath("agent.md").read_text(encoding="utf-8")
    return text.replace("SERVER", server)


def get_subagent_file(world: HostEnvironment, scope: Literal["user", "project"]) -> Path:
    if scope == "project":
        return world.folder / ".claude" / "agents" / "everhold.md"
    return (
        Path(world.env.get("CLAUDE_CONFIG_DIR") or world.home / ".claude")
        / "agents"
        / "everhold.md"
    )


def write_subagent_file(file: Path, text: str) -> bool:
    """Write the sub-agent; whether that changed anything."""
    return rewrite_host_file(file, lambda there: _ours(file, there) or text, makes=True)


def remove_subagent_file(file: Path) -> bool:
    """Take the sub-agent away; whether it was there."""
    return rewrite_host_file(file, lambda there: _ours(file, there), makes=False)


def _ours(file: Path, there: str) -> str:
    if there.strip() and GENERATED_MARK not in there:
        raise BadHostFile(
            str(file), "somebody else wrote it", "Nothing was changed. Print ours: --print"
        )
    return ""
