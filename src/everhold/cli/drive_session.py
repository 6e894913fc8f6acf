"""Letting one session go on as far as it can here: models answer, then the person at the terminal,
then time.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from everhold.cli import prompt
from everhold.cli.context import CommandRuntime, at_terminal, describe_user
from everhold.cli.output import format_headline, report_status
from everhold.core.query import MODEL_KINDS
from everhold.core.status import Accepted, Finished, OpenQuery, Paused, Raised, Running, Status
from everhold.engine.live_session import rebuild_session
from everhold.errors import AnswerConflict, AnswerRefused, BadValue, QueryClosed
from everhold.wire import add_database_option

if TYPE_CHECKING:
    from everhold.runtime import Runtime


def drive_until_blocked(
    house: CommandRuntime,
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
    name = house.name(status.session_id)
    talks = talks and at_terminal() and not as_json
    with report_on_interrupt(house, lambda: name):
        try:
            known = _for_models(status) if tried else set()
            status = _carried(house, status, wait=wait, talks=talks, name=name, tried=known)
        except prompt.PromptQuit:
            status = house.runtime.status(status.session_id)
    code = report_status(status, name, as_json=as_json, terminal=at_terminal())
    if not as_json:
        _what_next(house, status, name)
    return code


@contextmanager
def report_on_interrupt(house: CommandRuntime, name: Callable[[], str | None]) -> Iterator[None]:
    """After Ctrl-C, say that the session is kept and how to go on; `name` knows it, or that there
    is none yet.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo("", err=True)
        found = name()
        if found is not None:
            _how_to_go_on(house, found)
        raise


def _carried(
    house: CommandRuntime,
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
            status = house.runtime.status(status.session_id)
            continue
        if not isinstance(status, Paused) or not status.queries:
            if wait is None and isinstance(status, Running):
                house.ask(lambda runtime, which=status.session_id: _goes_on(runtime, which))  # type: ignore[misc]
            if wait is None and talks:
                click.secho(format_headline(status, name), dim=True, err=True)
            status = house.runtime.wait(status.session_id, wait)
            if wait is not None and not (isinstance(status, Paused) and status.queries):
                return status
            continue
        if _for_models(status) - tried:  # what a model could not answer, it is not asked again
            tried = tried | _for_models(status)
            status = house.runtime.move(status)
        elif talks:
            status = _by_person(house, status.queries[0], name)
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
    record = await runtime.store.load(session_id)
    if not record.head.ended and not record.effects:
        (await rebuild_session(record, runtime.engine.host)).drop()


def _by_person(house: CommandRuntime, query: OpenQuery, name: str) -> Status:
    while True:
        spoken = prompt.prompt_for_answer(query, name)
        try:
            if spoken.error is not None:
                return house.runtime.answer(query, error=spoken.error, by=describe_user())
            return house.runtime.answer(query, spoken.value, by=describe_user())
        except (AnswerRefused, BadValue) as refused:
            click.secho(str(refused), fg="red", err=True)
        except (AnswerConflict, QueryClosed) as late:
            click.secho(str(late), fg="red", err=True)
            return house.runtime.status(query.session_id)


def _what_next(house: CommandRuntime, status: Status, name: str) -> None:
    """How to go on, unless the session has come to its end."""
    if not isinstance(status, Finished):
        _how_to_go_on(house, name)
    elif isinstance(status.outcome, Raised) and not _forgets(house):
        moves = house.runtime.explain(status.session_id).moves
        click.secho(add_database_option(moves[0], house.place), dim=True, err=True)


def _how_to_go_on(house: CommandRuntime, name: str) -> None:
    again = f"the session is kept; go on with: everhold run -c {shlex.quote(name)}{house.place}"
    click.secho(
        "the session is not kept: its database was in memory" if _forgets(house) else again,
        dim=True,
        err=True,
    )


def _forgets(house: CommandRuntime) -> bool:
    """Whether the database ends with this command."""
    return house.database.startswith("memory:")
