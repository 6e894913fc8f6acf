"""Letting one session go on as far as it can here: models answer, then the person at the terminal, then time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from everhold.core.errors import AnswerConflict, AnswerRefused, BadValue, QueryClosed
from everhold.core.query import Kind
from everhold.core.status import Accepted, Finished, OpenQuery, Paused, Status
from everhold.fronts.cli import talk
from everhold.fronts.cli.house import House, at_terminal, me
from everhold.fronts.cli.paper import headline, report

if TYPE_CHECKING:
    from everhold.ports.program import Answerer
    from everhold.runtime import Runtime


def carry(
    house: House, status: Status, *, llm: Answerer | None, wait: float | None, as_json: bool, talks: bool = True
) -> int:
    """Go on until the session has ended, or nobody here can answer; tell where it stands, and how to go on."""
    name = house.name(status.session_id)
    talks = talks and at_terminal() and not as_json
    with kept(lambda: name):
        try:
            status = _carried(house, status, llm=llm, wait=wait, talks=talks, name=name)
        except talk.Quit:
            status = house.runtime.status(status.session_id)
    code = report(status, name, as_json=as_json, terminal=at_terminal())
    if not isinstance(status, Finished) and not as_json:
        _how_to_go_on(name)
    return code


@contextmanager
def kept(name: Callable[[], str | None]) -> Iterator[None]:
    """After Ctrl-C, say that the session is kept and how to go on; `name` knows it, or that there is none yet."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("", err=True)
        found = name()
        if found is not None:
            _how_to_go_on(found)
        raise


def _carried(
    house: House, status: Status, *, llm: Answerer | None, wait: float | None, talks: bool, name: str
) -> Status:
    while not isinstance(status, Finished):
        if isinstance(status, Accepted):
            if not status.remaining and wait == 0:
                return status  # its program is elsewhere
            status = house.runtime.status(status.session_id)
            continue
        if not isinstance(status, Paused) or not status.queries:
            if wait is None and talks:
                click.secho(headline(status, name), dim=True, err=True)
            status = house.runtime.wait(status.session_id, wait)
            if wait is not None and not (isinstance(status, Paused) and status.queries):
                return status
            continue
        for_models = [query for query in status.queries if query.kind is Kind.LLM and query.to is None]
        if llm is not None and for_models:
            status = house.ask(lambda runtime, queries=for_models: _by_model(runtime, llm, queries))  # type: ignore[misc]
        elif talks:
            status = _by_person(house, status.queries[0], name)
        else:
            return status
    return status


async def _by_model(runtime: Runtime, llm: Answerer, queries: list[OpenQuery]) -> Status:
    """Answer questions that were left open before a model was here."""
    import asyncio

    async def one(query: OpenQuery) -> None:
        try:
            said = await llm.answer(query.query, query.session_id)
            await runtime.answer(query, said, by={"front": "cli", "answerer": repr(llm)})
        except (AnswerConflict, QueryClosed):
            pass  # somebody else was quicker
        except Exception as error:
            await runtime.answer(query, error=str(error) or type(error).__name__)

    await asyncio.gather(*map(one, queries))
    return await runtime.status(queries[0].session_id)


def _by_person(house: House, query: OpenQuery, name: str) -> Status:
    while True:
        spoken = talk.ask(query, name)
        try:
            if spoken.error is not None:
                return house.runtime.answer(query, error=spoken.error, by=me())
            return house.runtime.answer(query, spoken.value, by=me())
        except (AnswerRefused, BadValue) as refused:
            click.secho(str(refused), fg="red", err=True)
        except (AnswerConflict, QueryClosed) as late:
            click.secho(str(late), fg="red", err=True)
            return house.runtime.status(query.session_id)


def _how_to_go_on(name: str) -> None:
    click.secho(f"the session is kept; go on with: everhold run -c {name}", dim=True, err=True)
