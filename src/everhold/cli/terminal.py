"""A session at the terminal: asks the person its questions, and drives it until it ends or waits.


:e            write the answer in an editor          :f FILE       take it from a file
:error TEXT   answer with an error                   :quit         leave; the session stays as it is
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from everhold.cli.context import CommandRuntime, at_terminal, describe_user, read_text_argument
from everhold.cli.output import format_headline, format_moment, report_status, strip_controls
from everhold.core.codec import JSON
from everhold.core.query import KINDS, MODEL_KINDS, Kind, Query
from everhold.core.status import Accepted, Finished, OpenQuery, Paused, Raised, Running, Status
from everhold.errors import AnswerConflict, AnswerRefused, BadValue, QueryClosed
from everhold.wire import add_database_option

if TYPE_CHECKING:
    from everhold.runtime import Runtime

_YES = frozenset({"yes", "y", "true"})
_NO = frozenset({"no", "n", "false"})
_HELP = ":e editor  :f FILE  :error TEXT  :quit"


class PromptQuit(Exception):
    """The person leaves; the session stays as it is."""


@dataclass(frozen=True, slots=True)
class TypedAnswer:
    """What the person said: a value, or an error instead of one."""

    value: JSON = None
    error: str | None = None


def prompt_for_answer(query: OpenQuery, name: str) -> TypedAnswer:
    """Show a question and read its answer; raises `PromptQuit`."""
    _editable()
    _show(query, name)
    while True:
        text = _line("yes or no> ") if KINDS[query.kind].verdict else _lines()
        try:
            spoken = _command(text) if text.startswith(":") else text
            if spoken is not None:
                return (
                    spoken
                    if isinstance(spoken, TypedAnswer)
                    else TypedAnswer(parse_typed_answer(query.query, spoken))
                )
        except AnswerRefused as refused:
            click.secho(str(refused), fg="red", err=True)


def parse_typed_answer(query: Query, text: str) -> JSON:
    """Words as the value that the question wants: yes and no for a boolean, JSON where there is a
    schema.
    """
    if query.schema is None or query.schema.get("type") == "string":
        return text
    if query.schema.get("type") == "boolean":
        word = text.strip().lower()
        if word not in _YES | _NO:
            raise AnswerRefused("answer", "yes or no", repr(text))
        return word in _YES
    return text  # the door reads it as JSON


def _show(query: OpenQuery, name: str) -> None:
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

        click.secho(f"it should fit {dump_wire_json(query.schema)}", dim=True)
    click.secho(
        _HELP if KINDS[query.kind].verdict else f"an empty line ends the answer  {_HELP}",
        dim=True,
    )


def _editable() -> None:
    """Let the arrow keys work in what is typed, where Python was built with that."""
    with suppress(ImportError):
        import readline  # noqa: F401  (loading it is enough)


def _lines() -> str:
    """Several lines, up to an empty one."""
    first = _line("> ")
    if first.startswith(":"):
        return first
    lines = [first]
    while lines[-1]:
        try:
            lines.append(input("… "))
        except EOFError:
            break
    return "\n".join(lines).rstrip("\n")


def _line(prompt: str) -> str:
    while True:
        try:
            text = input(prompt)
        except EOFError:
            click.echo()
            raise PromptQuit from None
        if text.strip():
            return text


def _command(text: str) -> TypedAnswer | str | None:
    """Do what a line that begins with a colon says: an error, or the words of the answer. None asks
    again.
    """
    word, _, rest = text.strip().partition(" ")
    match word:
        case ":quit" | ":q":
            raise PromptQuit
        case ":error" if rest.strip():
            return TypedAnswer(error=rest.strip())
        case ":f" if rest:
            return _file(rest)
        case ":e":
            return _edited()
    wrong = "needs more" if word in (":f", ":error") else "is not known here"
    click.secho(f"{word} {wrong}; there are {_HELP}", fg="red", err=True)
    return None


def _edited() -> str | None:
    try:
        text = click.edit("", require_save=False)
    except click.ClickException as error:
        click.secho(error.format_message(), fg="red", err=True)
        return None
    return text.rstrip("\n") if text and text.strip() else None


def _file(path: str) -> str | None:
    from everhold.errors import BadSetting

    try:
        return read_text_argument(path.strip(), ":f").rstrip("\n")
    except BadSetting as error:
        click.secho(str(error), fg="red", err=True)
        return None


# ---- driving a session


def drive_until_blocked(
    opened: CommandRuntime,
    status: Status,
    *,
    wait: float | None,
    as_json: bool,
    talks: bool = True,
    tried: bool = False,
) -> int:
    """Go on until the session has ended, or nobody here can answer; tell where it stands, and how
    to go on.

    `tried` says that no model here could answer what is open.
    """
    name = opened.name(status.session_id)
    talks = talks and at_terminal() and not as_json
    with report_on_interrupt(opened, lambda: name):
        try:
            known = _for_models(status) if tried else set()
            status = _carried(opened, status, wait=wait, talks=talks, name=name, tried=known)
        except PromptQuit:
            status = opened.runtime.status(status.session_id)
    code = report_status(status, name, as_json=as_json, terminal=at_terminal())
    if not as_json:
        _what_next(opened, status, name)
    return code


@contextmanager
def report_on_interrupt(opened: CommandRuntime, name: Callable[[], str | None]) -> Iterator[None]:
    """After Ctrl-C, say that the session is kept and how to go on; `name` knows it, or that there
    is none yet.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo("", err=True)
        found = name()
        if found is not None:
            _how_to_go_on(opened, found)
        raise


def _carried(
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
                return status  # its program is elsewhere
            status = opened.runtime.status(status.session_id)
            continue
        if not isinstance(status, Paused) or not status.queries:
            if wait is None and isinstance(status, Running):
                opened.ask(lambda runtime, which=status.session_id: _goes_on(runtime, which))  # type: ignore[misc]
            if wait is None and talks:
                click.secho(format_headline(status, name), dim=True, err=True)
            status = opened.runtime.wait(status.session_id, wait)
            if wait is not None and not (isinstance(status, Paused) and status.queries):
                return status
            continue
        if _for_models(status) - tried:  # what a model could not answer, it is not asked again
            tried = tried | _for_models(status)
            status = opened.runtime.move(status)
        elif talks:
            status = _by_person(opened, status.queries[0], name)
        else:
            return status
    return status


def _for_models(status: Status) -> set[str]:
    """The open questions that a model may answer."""
    open_ = status.queries if isinstance(status, Paused) else ()
    return {query.id for query in open_ if query.kind in MODEL_KINDS and query.to is None}


async def _goes_on(runtime: Runtime, session_id: str) -> None:
    """Raise why a session that nobody works on cannot go on here: to wait for it would take for
    ever.
    """
    from everhold.engine.live_session import rebuild_session

    record = await runtime.store.load(session_id)
    if not record.head.ended and not record.effects:
        (await rebuild_session(record, runtime.engine.host)).drop()


def _by_person(opened: CommandRuntime, query: OpenQuery, name: str) -> Status:
    while True:
        spoken = prompt_for_answer(query, name)
        try:
            if spoken.error is not None:
                return opened.runtime.answer(query, error=spoken.error, by=describe_user())
            return opened.runtime.answer(query, spoken.value, by=describe_user())
        except (AnswerRefused, BadValue) as refused:
            click.secho(str(refused), fg="red", err=True)
        except (AnswerConflict, QueryClosed) as late:
            click.secho(str(late), fg="red", err=True)
            return opened.runtime.status(query.session_id)


def _what_next(opened: CommandRuntime, status: Status, name: str) -> None:
    """How to go on, unless the session has come to its end."""
    if not isinstance(status, Finished):
        _how_to_go_on(opened, name)
    elif isinstance(status.outcome, Raised) and not _forgets(opened):
        moves = opened.runtime.explain(status.session_id).moves
        click.secho(add_database_option(moves[0], opened.place), dim=True, err=True)


def _how_to_go_on(opened: CommandRuntime, name: str) -> None:
    again = f"the session is kept; go on with: everhold run -c {shlex.quote(name)}{opened.place}"
    click.secho(
        "the session is not kept: its database was in memory" if _forgets(opened) else again,
        dim=True,
        err=True,
    )


def _forgets(opened: CommandRuntime) -> bool:
    """Whether the database ends with this command."""
    return opened.database.startswith("memory:")
