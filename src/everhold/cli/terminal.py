"""A session at the terminal: asks the person its questions, and moves it until it ends or waits.

In an answer, lines that begin with a colon are commands:

:e            write the answer in an editor      :f FILE   read the answer from a file
:error TEXT   answer with an error               :quit     leave; the session is kept
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from everhold.cli.context import CommandRuntime, at_terminal, describe_user, read_text_argument
from everhold.cli.output import (
    format_headline,
    format_moment,
    print_answer_command,
    report_status,
    strip_controls,
)
from everhold.core.codec import JSON
from everhold.core.intake import INPUT
from everhold.core.query import KINDS, MODEL_KINDS, Kind, Query
from everhold.core.status import Accepted, Finished, OpenQuery, Paused, Raised, Running, Status
from everhold.core.turn import TurnAnswered, TurnFailed
from everhold.errors import (
    AnswerConflict,
    AnswerRefused,
    BadSetting,
    BadValue,
    NotAnAgent,
    QueryClosed,
)
from everhold.shell_command import format_command

if TYPE_CHECKING:
    from everhold.runtime import Runtime

_YES = frozenset({"yes", "y", "true"})
_NO = frozenset({"no", "n", "false"})
#: Seconds between two looks at a session whose progress is shown.
POLL_SECONDS = 0.5
#: Open questions whose commands are printed.
MAX_COMMANDS = 3
_HELP = ":e editor  :f FILE  :error TEXT  :quit"


# ---- asking a person


class PromptQuit(Exception):
    """The person left with `:quit` or Ctrl-D; the session is kept."""


@dataclass(frozen=True, slots=True)
class TypedAnswer:
    """What the person typed: a value, or an error instead of one."""

    value: JSON = None
    error: str | None = None


def prompt_for_answer(query: OpenQuery, name: str) -> TypedAnswer:
    """Shows a question and reads its answer; raises `PromptQuit`."""
    with suppress(ImportError):  # Python may be built without it
        import readline  # noqa: F401  (loading it makes the arrow keys work)
    _show_question(query, name)
    while True:
        text = _read_line("yes or no> ") if KINDS[query.kind].verdict else _read_lines()
        try:
            typed = _run_prompt_command(text) if text.startswith(":") else text
            if isinstance(typed, TypedAnswer):
                return typed
            if typed is not None:
                return TypedAnswer(parse_typed_answer(query.query, typed))
        except AnswerRefused as refused:
            click.secho(str(refused), fg="red", err=True)


def parse_typed_answer(query: Query, text: str) -> JSON:
    """The value of a typed answer: true or false for `yes` or `no`, else the text itself."""
    if query.schema is not None and query.schema.get("type") == "boolean":
        word = text.strip().lower()
        if word not in _YES | _NO:
            raise AnswerRefused("answer", "yes or no", repr(text))
        return word in _YES
    return text  # where the question has another schema, the runtime reads the text as JSON


def is_no(text: str) -> bool:
    """Whether a typed answer means no."""
    return text.strip().lower() in _NO


def _show_question(query: OpenQuery, name: str) -> None:
    facts = [str(query.kind), query.id, name]
    if query.kind is Kind.LLM:
        facts.append(f"at most {query.max_tokens} tokens")
    if query.to:
        facts.append(f"to {query.to}")
    if query.expires_at is not None:
        facts.append(f"until {format_moment(query.expires_at)}")
    click.secho("\n" + " · ".join(facts), fg="cyan")
    if query.system:
        click.secho(f"system: {strip_controls(query.system)}", dim=True)
    for message in () if query.prompt else query.messages or ():
        click.echo(strip_controls(f"{message.get('role')}: {message.get('content')}"))
    click.echo(strip_controls(query.prompt or query.name))
    if query.schema is not None and not KINDS[query.kind].verdict:
        from everhold.wire import dump_wire_json

        click.secho(f"the answer must match {dump_wire_json(query.schema)}", dim=True)
    click.secho(
        _HELP if KINDS[query.kind].verdict else f"an empty line ends the answer  {_HELP}",
        dim=True,
    )


def _read_lines() -> str:
    """Several lines, up to an empty one."""
    first = _read_line("> ")
    if first.startswith(":"):
        return first
    lines = [first]
    while lines[-1]:
        try:
            lines.append(input("… "))
        except EOFError:
            break
    return "\n".join(lines).rstrip("\n")


def _read_line(prompt: str) -> str:
    while True:
        try:
            text = input(prompt)
        except EOFError:
            click.echo()
            raise PromptQuit from None
        if text.strip() == "/quit":  # as in a chat, which asks here, too
            raise PromptQuit
        if text.strip():
            return text


def _run_prompt_command(text: str) -> TypedAnswer | str | None:
    """Runs a line that begins with a colon. Returns an error, or the text of the answer; None means
    that the person is asked again.
    """
    word, _, rest = text.strip().partition(" ")
    match word:
        case ":quit" | ":q":
            raise PromptQuit
        case ":error" if rest.strip():
            return TypedAnswer(error=rest.strip())
        case ":f" if rest:
            return _read_answer_file(rest)
        case ":e":
            try:
                edited = click.edit("", require_save=False)
            except click.ClickException as error:
                click.secho(error.format_message(), fg="red", err=True)
                return None
            return edited.rstrip("\n") if edited and edited.strip() else None
    problem = "needs an argument" if word in (":f", ":error") else "is not a command here"
    click.secho(f"{word} {problem}: {_HELP}", fg="red", err=True)
    return None


def _read_answer_file(path: str) -> str | None:
    try:
        return read_text_argument(path.strip(), ":f").rstrip("\n")
    except BadSetting as error:
        click.secho(str(error), fg="red", err=True)
        return None


# ---- moving a session


def drive_until_blocked(
    opened: CommandRuntime,
    status: Status,
    *,
    wait: float | None,
    as_json: bool,
    talks: bool = True,
    tried: bool = False,
    answered: bool = False,
) -> int:
    """Drives a session until it has ended, or waits for an answer that neither a model nor the
    person here gives. Prints its status and the next command; returns the exit code.

    With `tried`, the models here have already failed to answer the open questions. With `answered`,
    the status is that after an answer.
    """
    name = opened.name(status.session_id)
    resumed = answered or not _waits_for_input(status)
    talks = talks and at_terminal() and not as_json
    if opened.bar is not None:
        opened.bar.follow(lambda birth: birth.id == status.session_id)
    with _hiding_bar(opened):
        try:
            known = _list_model_queries(status) if tried else set()
            status = _drive(opened, status, wait=wait, talks=talks, name=name, tried=known)
        except PromptQuit:
            status = opened.runtime.status(status.session_id)
    if resumed and not as_json and _waits_for_input(status):
        _print_last_turn(opened, status.session_id)
    option = opened.database_option
    code = report_status(status, name, as_json=as_json, terminal=at_terminal(), option=option)
    if not as_json:
        if isinstance(status, Paused) and status.signals and not status.queries:
            _print_send_commands(opened, status.signals, name)
        elif not isinstance(status, Finished):
            if isinstance(status, Paused):
                for query in status.queries[:MAX_COMMANDS]:
                    print_answer_command(query, name, opened.database_option)
            _print_resume_command(opened, name)
        elif isinstance(status.outcome, Raised) and not _is_in_memory(opened):
            moves = opened.runtime.explain(status.session_id).moves
            click.secho(moves[0], dim=True, err=True)
    return code


def _drive(
    opened: CommandRuntime,
    status: Status,
    *,
    wait: float | None,
    talks: bool,
    name: str,
    tried: set[str],
) -> Status:
    while not isinstance(status, Finished):
        if isinstance(status, Accepted):
            if not status.remaining and wait == 0:
                return status  # another process has its program
            status = opened.runtime.status(status.session_id)
            continue
        if isinstance(status, Paused) and status.signals and not status.queries:
            return status
        if not isinstance(status, Paused) or not status.queries:
            if wait is None and isinstance(status, Running):
                opened.ask(lambda runtime, which=status.session_id: _check_resumes(runtime, which))  # type: ignore[misc]
            if wait is None and talks:
                click.secho(format_headline(status, name), dim=True, err=True)
            status = _wait(opened, status, wait)
            if wait is not None and not (isinstance(status, Paused) and status.needs_outside):
                return status
            continue
        if _list_model_queries(status) - tried:  # each question is sent to a model only once
            tried = tried | _list_model_queries(status)
            status = opened.runtime.move(status)
        elif talks:
            with _hiding_bar(opened):
                status = _answer_by_person(opened, status.queries[0], name)
        else:
            return status
    return status


@contextmanager
def _hiding_bar(opened: CommandRuntime) -> Iterator[None]:
    """Hides the progress bar before and after something else is shown."""
    try:
        if opened.bar is not None:
            opened.bar.hide()
        yield
    finally:
        if opened.bar is not None:
            opened.bar.hide()


def _wait(opened: CommandRuntime, status: Status, wait: float | None) -> Status:
    """Waits for the session. With a progress bar, reads meanwhile what other processes report."""
    if opened.bar is None:
        return opened.runtime.wait(status.session_id, wait)
    end = None if wait is None else time.monotonic() + wait
    while True:
        if isinstance(status, Paused | Running) and status.progress is not None:
            opened.bar.show(status.progress)
        left = POLL_SECONDS if end is None else min(POLL_SECONDS, max(0, end - time.monotonic()))
        status = opened.runtime.wait(status.session_id, left)
        if (
            isinstance(status, Finished)
            or (isinstance(status, Paused) and status.needs_outside)
            or (end is not None and time.monotonic() >= end)
        ):
            return status


def _waits_for_input(status: Status) -> bool:
    """Whether a conversation waits for its next message."""
    return isinstance(status, Paused) and INPUT in status.signals and not status.queries


def _print_last_turn(opened: CommandRuntime, session_id: str) -> None:
    """Prints what the agent said in its last turn, or how the turn ended."""
    from everhold.core.graph import extract_text

    try:
        conversation = opened.runtime.conversation(session_id)
    except NotAnAgent:  # another program, which receives a signal of this name
        return
    turns = conversation.turns()
    if not turns:
        return
    last = turns[-1]
    if isinstance(last.outcome, TurnAnswered) and last.leaf is not None:
        click.echo(strip_controls(extract_text(conversation.node(last.leaf).content)))
    elif isinstance(last.outcome, TurnFailed):
        click.secho(f"(the turn failed: {strip_controls(last.outcome.error)})", err=True, fg="red")


def _list_model_queries(status: Status) -> set[str]:
    """The open questions that a model may answer."""
    queries = status.queries if isinstance(status, Paused) else ()
    return {query.id for query in queries if query.kind in MODEL_KINDS and query.to is None}


async def _check_resumes(runtime: Runtime, session_id: str) -> None:
    """Raises the reason if a session that no process works on cannot resume here, because waiting
    for it would never end.
    """
    from everhold.engine.live_session import rebuild_session

    record = await runtime.store.load(session_id)
    if not record.head.ended and not record.effects:
        (await rebuild_session(record, runtime.engine.host)).drop()


def _answer_by_person(opened: CommandRuntime, query: OpenQuery, name: str) -> Status:
    while True:
        typed = prompt_for_answer(query, name)
        try:
            if typed.error is not None:
                return opened.runtime.answer(query, error=typed.error, by=describe_user())
            return opened.runtime.answer(query, typed.value, by=describe_user())
        except (AnswerRefused, BadValue) as refused:
            click.secho(str(refused), fg="red", err=True)
        except (AnswerConflict, QueryClosed) as late:
            click.secho(str(late), fg="red", err=True)
            return opened.runtime.status(query.session_id)


def _print_send_commands(opened: CommandRuntime, signals: Sequence[str], name: str) -> None:
    """Prints how to send the signals, or the input, that a session waits for."""
    for signal in signals:
        words = ("send", name) if signal == INPUT else ("signal", name, signal)
        command = format_command(*words) + opened.database_option
        click.secho(f"to send it: {command}", dim=True, err=True)


def _print_resume_command(opened: CommandRuntime, name: str) -> None:
    command = format_command("run", "-c", name) + opened.database_option
    text = (
        "the session is not kept: its database was in memory"
        if _is_in_memory(opened)
        else f"the session is kept; to resume it: {command}"
    )
    click.secho(text, dim=True, err=True)


def _is_in_memory(opened: CommandRuntime) -> bool:
    return opened.database.startswith("memory:")
