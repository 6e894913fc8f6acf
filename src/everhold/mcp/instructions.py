"""Texts for models beside the tools.

Instructions, prompts, the guide, descriptions and costs of programs, and the sub-agent of Claude
Code. The sub-agent runs a strategy to its end in a conversation of its own: the main conversation
sees one call and one result, not the questions in between.
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

GUIDE: Final = "everhold://guide"
#: Characters of a summary in a list of programs. A single program is described in full.
SUMMARY_LENGTH: Final = 200

INSTRUCTIONS: Final = (
    "How to use everhold: `run` starts a strategy and returns status needs_response with"
    " questions. YOU are the model that answers them. Write an honest answer to each question,"
    " send all answers with `answer`, and repeat until the status is completed. Then report"
    " `result`. Each result has `next`, which says exactly what to do.\n\n"
    "Use a strategy if a single direct answer may be wrong or shallow. `strategies` lists them"
    " with their cost in answers and rounds. Sessions are stored on disk. If you lose track,"
    " `sessions` finds them, and `status` shows their open questions again.\n\n"
    "Answer each question by itself, using only what it contains. Never answer approvals or"
    " questions for a person: tell the user, or use `ask_person`. Before you write a program in"
    " Lua, read the resource everhold://guide."
)


def load_guide() -> str:
    """The guide to Lua programs, one page."""
    return files("everhold.mcp").joinpath("guide.md").read_text(encoding="utf-8")


def make_session_title(name: str, args: Mapping[str, Any]) -> str:
    """A title from the program and the beginning of its task."""
    task = args.get("task")
    words = " ".join(task.split()) if isinstance(task, str) else ""
    short = name.replace("\\", "/").rpartition("/")[2]
    return f"{short}: {words[:60]}{'…' if len(words) > 60 else ''}" if words else short


# ---- strategies


def render_estimate(program: Any, args: Mapping[str, JSON]) -> dict[str, JSON] | None:
    """The expected cost of a session of this program, or None if it is not known."""
    found = catalog.estimate_program(program, args)
    return None if found is None else found.plain


def render_catalog(found: ProgramCatalog) -> dict[str, JSON]:
    """The programs that `run` can start."""
    listed: dict[str, JSON] = {
        "strategies": [_shorten_summary(_row(entry)) for entry in found.entries]
    }
    if found.problems:
        listed["problems"] = [str(problem) for problem in found.problems]
    listed["next"] = (
        'To start one, call the everhold tool `run`, for example {"program": "reflect", "args":'
        ' {"task": "…"}}. To see the parameters of one, call `strategies` with its name.'
    )
    return listed


def _row(entry: ProgramEntry) -> dict[str, JSON]:
    row: dict[str, JSON] = {"name": entry.ref if entry.hidden else entry.name, "kind": entry.kind}
    row |= {key: words for key in ("summary", "cost", "category") if (words := getattr(entry, key))}
    if entry.kind == "strategy":
        about = strategy(entry.name)
        row |= {"use_when": about.use_when, "estimate": about.estimate().plain}
    return row


def _shorten_summary(row: dict[str, JSON]) -> dict[str, JSON]:
    summary = row.get("summary")
    if isinstance(summary, str) and len(summary) > SUMMARY_LENGTH:
        row["summary"] = summary[:SUMMARY_LENGTH].rstrip() + "…"
    return row


def render_program(program: Any) -> dict[str, JSON]:
    """One program, described in full."""
    described = _row(catalog.describe_program(program))
    about = catalog.strategy_of(program)
    if about is None:
        words = inspect.cleandoc(program.__doc__ or "")
        described |= {"summary": words} if words else {}
        described["parameters"] = [str(one) for one in program.signature.parameters.values()]
        return described
    papers: list[JSON] = [str(paper) for paper in about.papers]
    rows: list[JSON] = []
    for parameter in about.parameters:
        row: dict[str, JSON] = {
            "name": parameter.name,
            "description": parameter.description,
            "schema": parameter.schema,
        }
        rows.append(
            row | ({"required": True} if parameter.required else {"default": parameter.default})
        )
    return {
        **described,
        "not_when": about.not_when,
        "papers": papers,
        "parameters": rows,
    }


# ---- prompts

_TASK: Final = ("task", "The problem to solve, or the text to write.", True)
_SESSION: Final = (
    "session_id",
    "The id of the session. Default: the newest session that waits.",
    False,
)


def list_prompts() -> dict[str, tuple[str, str, tuple[str, str, bool]]]:
    """All prompts: name -> title, description, and argument (name, description, required)."""
    found = {
        one.name: (f"Strategy: {one.name}", f"{one.summary} {one.formula}.", _TASK)
        for one in strategies()
    }
    found["resume"] = ("Resume a session", "Continue a session that was started earlier.", _SESSION)
    found["status"] = (
        "Status of sessions",
        "Report the status of sessions and what they wait for.",
        _SESSION,
    )
    return found


def render_prompt(name: str, arguments: Mapping[str, str]) -> str:
    """The text of a prompt."""
    session = arguments.get("session_id", "")
    if name == "resume":
        find = (
            f"session_id {session!r}"
            if session
            else "the newest paused session that the tool `sessions` lists"
        )
        return (
            f"Continue an everhold session. Call the everhold tool `status` for {find}. If it has"
            " open questions, answer each of them yourself with the tool `answer`, and do what"
            " `next` says until the status is completed. Then tell me its result. If it waits for"
            " a person, tell me what I have to decide and how."
        )
    if name == "status":
        if session:
            return (
                f"Call the everhold tools `status` and `explain` with session_id {session!r}. Tell"
                " me in a few sentences what its status is, what it waits for and what would move"
                " it. Answer no questions."
            )
        return (
            "Call the everhold tool `sessions`. Show me in a short table all sessions, their"
            " states, and which of them wait for me. Answer no questions."
        )
    task = arguments.get("task", "")
    return (
        f"Use the everhold strategy `{name}` for the task below. Call the everhold tool `run`"
        f" with program {name!r} and"
        ' args {"task": …the task, word for word…}. Then answer each question that it returns'
        " yourself with the tool `answer`, each by itself and with care, as `next` says, until"
        " the status is completed. Then tell me the result, and in one sentence how it was found."
        f"\n\nTask:\n{task}"
    )


#: A text in each file that everhold wrote. Only such files are replaced.
GENERATED_MARK: Final = "written by `everhold mcp agent`"


def render_subagent(server: str) -> str:
    """The sub-agent of Claude Code, for a server with this name."""
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
    """Write the sub-agent. Return whether the file changed."""
    return rewrite_host_file(
        file, lambda before: _clear_generated(file, before) or text, makes=True
    )


def remove_subagent_file(file: Path) -> bool:
    """Delete the sub-agent. Return whether it was there."""
    return rewrite_host_file(file, lambda before: _clear_generated(file, before), makes=False)


def _clear_generated(file: Path, before: str) -> str:
    """Empty text, if everhold wrote the file."""
    if before.strip() and GENERATED_MARK not in before:
        raise BadHostFile(
            str(file),
            "everhold did not write it",
            "Nothing was changed. To print the sub-agent: --print",
        )
    return ""
