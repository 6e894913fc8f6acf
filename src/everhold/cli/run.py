"""Commands that make sessions move: run, retry, fork, and the demo."""

from __future__ import annotations

import time
from typing import Any

import click

from everhold.cli.context import CommandRuntime, format_short_name, resolve_program
from everhold.cli.options import (
    AnswerOptions,
    Duration,
    add_answer_options,
    add_common_options,
    build_call,
    make_usage_error,
    open_moving_runtime,
    parse_pairs,
    session_argument,
)
from everhold.cli.terminal import drive_until_blocked, report_on_interrupt
from everhold.errors import UnknownProgram, UnknownSession


@click.command("run")
@click.argument("program", required=False)
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--json-args", metavar="FILE", help="Arguments as a JSON object; - reads standard input."
)
@click.option("--key", help="Same key, same session: run it again and it goes on.")
@click.option(
    "--again", is_flag=True, help="Begin a new session if the one with this key was deleted."
)
@click.option(
    "-c",
    "--continue",
    "goes_on",
    is_flag=True,
    help="Go on: PROGRAM may name a session; else its newest one.",
)
@click.option("--title", default="", help="What people call the session.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="To find it again; may be repeated.",
)
@click.option(
    "--wait", type=Duration(), metavar="S", help="Seconds to wait for timers and other processes."
)
@add_answer_options
@add_common_options
def run_(
    program: str | None,
    arguments: tuple[str, ...],
    json_args: str | None,
    key: str | None,
    again: bool,
    goes_on: bool,
    title: str,
    labels: tuple[str, ...],
    wait: float | None,
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Run a program, or go on with one that stopped.

    PROGRAM is a name (`everhold programs` lists them), module:function, path/file.py:function, or a
    Lua file. At a terminal you are asked what it asks; without one, its open questions are printed
    as JSON and the exit code is 10.
    """
    if not goes_on and program is None:
        raise make_usage_error("it needs a PROGRAM, or -c to go on with the last session")
    with open_moving_runtime(database, who, makes=True) as opened:
        if goes_on:
            status = opened.runtime.status(_stopped(opened, database, program or "@last"))
        else:
            found = resolve_program(database, program or "")
            call = build_call(found, arguments, json_args)
            told = parse_pairs(labels, "--label")
            since = time.time()
            with report_on_interrupt(opened, lambda: _begun(opened, found.ref, since)):
                status = opened.runtime.start(
                    call, key=key, title=title, labels=told, wait=wait, again=again
                )
        return drive_until_blocked(opened, status, wait=wait, as_json=as_json, tried=not goes_on)


def _begun(opened: CommandRuntime, program: str, since: float) -> str | None:
    """What people call the session of this program that moved last, if it did since a moment."""
    for info in opened.runtime.sessions(
        program=program, newer_than=time.time() - since + 1, limit=1
    ):
        return format_short_name(info.session_id, info.key)
    return None


def _stopped(opened: CommandRuntime, database: str | None, name: str) -> str:
    """The session that is meant by its name, else the newest one of the program of this name."""
    try:
        return opened.session(name)
    except UnknownSession:
        if name == "@last":
            raise
    try:
        wanted = resolve_program(database, name).ref
    except UnknownProgram:
        if not name.isidentifier():
            raise
        raise UnknownSession(name, opened.database) from None
    for info in opened.runtime.sessions(program=wanted):
        if info.parent is None:
            return info.session_id
    raise UnknownSession(f"of {name}", opened.database)


@click.command("retry")
@session_argument
@click.option(
    "--wait", type=Duration(), metavar="S", help="Seconds to wait for timers and other processes."
)
@add_answer_options
@add_common_options
def retry_(
    session: str,
    wait: float | None,
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Go on from a failed session's last answer, with mended code."""
    with open_moving_runtime(database, who) as opened:
        session_id = opened.session(session)
        with report_on_interrupt(opened, lambda: opened.name(session_id)):
            status = opened.runtime.retry(session_id, wait=wait)
        return drive_until_blocked(opened, status, wait=wait, as_json=as_json)


@click.command("fork")
@session_argument
@click.option("--at", type=int, metavar="N", help="The last step to share; the newest by default.")
@click.option("--answer", "answer", metavar="VALUE", help="Replace the answer given at that step.")
@click.option(
    "--query", "query_id", metavar="ID", help="Which answer, where several were given at once."
)
@click.option("--key", help="A key for the new session.")
@click.option(
    "--again", is_flag=True, help="Use the key also if a session that had it was deleted."
)
@click.option("--title", default="", help="What people call the new session.")
@click.option(
    "--wait", type=Duration(), metavar="S", help="Seconds to wait for timers and other processes."
)
@add_answer_options
@add_common_options
def fork_(
    session: str,
    at: int | None,
    answer: str | None,
    query_id: str | None,
    key: str | None,
    again: bool,
    title: str,
    wait: float | None,
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Begin a session that shares the steps of another; change an answer."""
    with open_moving_runtime(database, who) as opened:
        session_id = opened.session(session)
        if answer is None:
            status = opened.runtime.fork(
                session_id, at=at, key=key, title=title, wait=wait, again=again
            )
        else:
            at, value = _replacement(opened, session_id, at, query_id, answer)
            status = opened.runtime.fork(
                session_id,
                at=at,
                answer=value,
                query_id=query_id,
                key=key,
                title=title,
                wait=wait,
                again=again,
            )
        return drive_until_blocked(opened, status, wait=wait, as_json=as_json)


def _replacement(
    opened: CommandRuntime, session_id: str, at: int | None, query_id: str | None, text: str
) -> tuple[int, Any]:
    """The step (the last that has an answer, by default) and the new answer as its question wants
    it.
    """
    from everhold.cli.terminal import parse_typed_answer
    from everhold.engine.journal_reader import read_steps

    deliveries = opened.record(session_id).deliveries
    answered = [step for step in read_steps(deliveries) if step.answered and at in (None, step.n)]
    if not answered:
        return at or 0, text
    replaced = [
        one.query
        for one in answered[-1].answered
        if one.query is not None and query_id in (None, one.answer.id)
    ]
    return answered[-1].n, parse_typed_answer(replaced[0], text) if replaced else text
