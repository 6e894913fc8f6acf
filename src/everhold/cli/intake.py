"""The commands for input of conversations: send, intake, command."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.context import (
    CommandRuntime,
    at_terminal,
    open_command_runtime,
    read_text_argument,
)
from everhold.cli.options import (
    AnswerOptions,
    add_answer_options,
    add_common_options,
    make_usage_error,
    open_moving_runtime,
    session_argument,
    wait_option,
)
from everhold.cli.output import (
    format_ago,
    format_line,
    format_moment,
    format_plain_value,
    format_turn,
    get_turn_exception,
    print_exception,
    print_footer,
    print_json,
    print_table,
    print_waiting,
    queries_to_json,
    turn_to_json,
)
from everhold.errors import NotAnAgent
from everhold.shell_command import format_command
from everhold.wire import ExitCode

if TYPE_CHECKING:
    from everhold.agents import Turn
    from everhold.agents.agent import Agent
    from everhold.agents.inputs import InputStatus
    from everhold.core.codec import JSON
    from everhold.core.intake import IntakeItem, ItemCancellation

BUSY_POLICIES = ("queue", "reject", "steer", "fork")
STEER_POSITIONS = ("next", "after_work", "before_completion")


@click.command("send")
@session_argument
@click.argument("message", required=False)
@click.option(
    "--key", metavar="TEXT", help="Send it once, however often the command runs with this key."
)
@click.option(
    "--busy",
    type=click.Choice(BUSY_POLICIES),
    default="queue",
    show_default=True,
    help="If a turn is running: queue the message, refuse it, steer the turn, or fork the session.",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="Only queue it; the process that works on the session accepts it.",
)
@click.option(
    "--at",
    type=click.Choice(STEER_POSITIONS),
    default="next",
    show_default=True,
    help="With --no-wait: where it enters a running turn.",
)
@click.option(
    "--after",
    metavar="NODE",
    help="Refuse it if the conversation has moved on: only after this node, its last message.",
)
@wait_option("How long to wait for the end of the turn. Default: until it ends.")
@add_answer_options
@add_common_options
def send_(
    session: str,
    message: str | None,
    key: str | None,
    busy: str,
    no_wait: bool,
    at: str,
    after: str | None,
    wait: float | None,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Send a message to a conversation, also during a turn.

    Without a MESSAGE, everhold reads it at the terminal; - is standard input.
    """
    if message == "-":
        message = read_text_argument("-", "MESSAGE").rstrip("\n")
    if message is None:
        message = _read_message()
    if at != "next" and not no_wait:
        raise make_usage_error("--at needs --no-wait")
    if after is not None and (no_wait or busy != "queue"):
        raise make_usage_error("--after excludes --no-wait and --busy")
    more: dict[str, Any] = {} if after is None else {"after": after}
    if no_wait:
        return _queue(session, message, key, at, database, as_json=as_json)
    with open_moving_runtime(database, answerer) as opened:
        session_id = opened.session(session)
        handle = opened.runtime.session(_find_agent(opened, session_id), session_id)
        return _report_turn(
            opened, handle.send(message, id=key, busy=busy, wait=wait, **more), as_json=as_json
        )


def _read_message() -> str:
    """The line that the person at the terminal types."""
    if not at_terminal():
        raise make_usage_error("MESSAGE is missing, and there is no terminal to read it from")
    message = ""
    while not message:
        try:
            message = input("> ").strip()
        except EOFError:
            raise click.Abort from None
    return message


def _queue(
    session: str, message: str, key: str | None, at: str, database: str | None, *, as_json: bool
) -> int:
    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        handle = opened.runtime.session(_find_agent(opened, session_id), session_id)
        receipt = handle.enqueue(message, key=key, at=at)
        if as_json:
            print_json({"session_id": session_id, "new": receipt.new, "item": _item(receipt.item)})
        else:
            click.echo(
                f"queued as {receipt.item.id}"
                if receipt.new
                else f"it was queued before, as {receipt.item.id}"
            )
    return ExitCode.OK


def _find_agent(opened: CommandRuntime, session_id: str) -> Agent:
    from everhold.agents.agent import Agent

    birth = opened.record(session_id, since=-1).birth
    found = opened.programs.find(birth.program, birth.version)
    if not isinstance(found, Agent):
        command = format_command("explain", opened.name(session_id)) + opened.database_option
        raise NotAnAgent(birth.program, f"See what it waits for: {command}")
    return found


def _report_turn(opened: CommandRuntime, turn: Turn, *, as_json: bool) -> int:
    """Prints the answer of a turn, or what it waits for; returns the exit code."""
    name = opened.name(turn.session_id)
    if as_json:
        facts = {
            "session_id": turn.session_id,
            "input": turn.input_id,
            **turn_to_json(turn),
        }
        print_json({**facts, "waiting": queries_to_json(turn.queries)})
    elif not turn.waiting:
        click.echo(format_turn(turn))
        print_exception(get_turn_exception(turn), err=True)
    else:
        print_waiting(turn.queries, name, opened.database_option)
        listing = format_command("intake", name) + opened.database_option
        click.echo(f"queued as {turn.input_id}; to list the queue: {listing}", err=True)
    return ExitCode.WAITING if turn.waiting else ExitCode.OK


@click.command("intake")
@session_argument
@click.option(
    "--all", "whole", is_flag=True, help="Also list items that are being accepted, and ended ones."
)
@click.option(
    "--cancel",
    "names",
    multiple=True,
    metavar="NAME",
    help="Cancel this item, by its id or key. May be repeated.",
)
@click.option(
    "--cancel-from",
    "anchor",
    metavar="NAME",
    help="Cancel this item and all later ones of its lane: messages, or commands.",
)
@click.option("--reason", metavar="TEXT", default="", help="Why they are cancelled.")
@add_common_options
def intake_(
    session: str,
    whole: bool,
    names: tuple[str, ...],
    anchor: str | None,
    reason: str,
    database: str | None,
    as_json: bool,
) -> None:
    """List the queued input of a conversation, or cancel it.

    Messages and commands wait until no turn is running; `everhold explain` says why one is not yet
    accepted.
    """
    if names and anchor is not None:
        raise make_usage_error("give --cancel or --cancel-from, not both")
    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        conversation = opened.runtime.conversation(session_id)
        if names:
            return _print_outcomes(conversation.cancel(*names, reason=reason), as_json=as_json)
        if anchor is not None:
            return _print_outcomes(conversation.cancel_from(anchor, reason=reason), as_json=as_json)
        items = conversation.intake(all=whole)
        if as_json:
            rows = [_item(item) for item in items]
            return print_json(
                {"database": opened.database, "session_id": session_id, "items": rows}
            )
        if items:
            columns = ("id", "kind", "state", "for", "since", "what")
            print_table(columns, [_row(item) for item in items], wide=("id", "what"))
        else:
            click.echo("the queue is empty" if not whole else "no input, queued or ended")
        print_footer(opened.database)


def _row(item: IntakeItem) -> tuple[str, ...]:
    target = "the next turn" if item.running is None else f"turn {item.running}"
    if item.waits and item.available_at > time.time():
        target = f"after {format_moment(item.available_at)}"
    state = "being accepted" if item.hold is not None and item.waits else str(item.state)
    return (
        item.id,
        item.kind,
        state,
        target,
        format_ago(item.at),
        format_line(_format_content(item), 80),
    )


def _format_content(item: IntakeItem) -> str:
    from everhold.core.graph import extract_text

    body: Any = item.body if isinstance(item.body, dict) else {"content": item.body}
    if "do" in body:
        return f"{body['do']}{': ' + str(body['reason']) if body.get('reason') else ''}"
    return extract_text(body.get("content")) or format_plain_value(body)


def _item(item: IntakeItem) -> dict[str, JSON]:
    import msgspec

    fields: dict[str, JSON] = {"state": item.state, **msgspec.to_builtins(item)}
    return fields | {"at": int(item.at * 1000), "available_at": int(item.available_at * 1000)}


def _print_outcomes(found: list[ItemCancellation], *, as_json: bool) -> None:
    if as_json:
        return print_json(
            {"outcomes": [{"name": one.name, "outcome": one.outcome} for one in found]}
        )
    for one in found:
        click.echo(f"{one.name}: {one.outcome.replace('_', ' ')}")


@click.command("command")
@session_argument
@click.argument("do", type=click.Choice(("refresh_tools", "reset", "compact", "cancel_turn")))
@click.option(
    "--key",
    required=True,
    metavar="TEXT",
    help="Do it once, however often the command runs with this key.",
)
@click.option(
    "--reason", metavar="TEXT", default="", help="Why; recorded, but not shown to the model."
)
@add_answer_options
@add_common_options
def command_(
    session: str,
    do: str,
    key: str,
    reason: str,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Reset or compact a conversation, or stop its turn.

    It is done when no turn is running (cancel_turn: at once), in the process that has the agent.

    \b
    everhold command ana cancel_turn --key stop-1
    """
    with open_moving_runtime(database, answerer) as opened:
        session_id = opened.session(session)
        conversation = opened.runtime.conversation(session_id)
        receipt = conversation.command(do, key=key, reason=reason)
        opened.ask(lambda runtime: runtime.mover.rest())
        status = conversation.input(receipt.item.id)
        return _report_command(session_id, do, status, new=receipt.new, as_json=as_json)


def _report_command(
    session_id: str, do: str, status: InputStatus, *, new: bool, as_json: bool
) -> int:
    settled = status.stage == "settled"
    if as_json:
        facts = {
            "session_id": session_id,
            "id": status.id,
            "new": new,
            "stage": status.stage,
            "turn": status.turn,
        }
        outcome = status.settled.outcome if status.settled is not None else None
        print_json({**facts, "reason": status.reason or getattr(outcome, "why", "")})
    elif settled:
        ended: Any = status.item.end if status.item is not None else None
        nothing = isinstance(ended, dict) and ended.get("applied") is False
        why = getattr(status.settled.outcome, "why", "") if status.settled is not None else ""
        said = f"nothing was done: {why}" if why else "done"
        click.echo(f"{do}: there was nothing to do" if nothing else f"{do}: {said}")
    else:
        click.echo(f"{do}: {status.stage}{': ' + status.reason if status.reason else ''}")
    return (
        ExitCode.OK
        if settled
        else ExitCode.WAITING
        if status.stage in ("waiting", "in_turn")
        else ExitCode.FAILED
    )
