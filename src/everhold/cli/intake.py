"""Commands for what enters conversations: send, intake, command."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.context import CommandRuntime, open_command_runtime, read_text_argument
from everhold.cli.options import (
    AnswerOptions,
    Duration,
    add_answer_options,
    add_common_options,
    make_usage_error,
    open_moving_runtime,
    session_argument,
)
from everhold.cli.output import (
    format_ago,
    format_line,
    format_moment,
    format_plain_value,
    format_turn,
    get_outcome_tag,
    print_footer,
    print_json,
    print_table,
    print_waiting,
    queries_to_json,
)
from everhold.errors import NotAnAgent
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
@click.argument("words")
@click.option("--key", metavar="KEY", help="The same words under the same key are said once.")
@click.option(
    "--busy",
    type=click.Choice(BUSY_POLICIES),
    default="queue",
    show_default=True,
    help="What to do during a turn.",
)
@click.option(
    "--no-wait", is_flag=True, help="Only keep it; whoever works on the session lets it in."
)
@click.option(
    "--at",
    type=click.Choice(STEER_POSITIONS),
    default="next",
    show_default=True,
    help="Where it enters, with --no-wait.",
)
@click.option("--wait", type=Duration(), metavar="S", help="Seconds to wait for the turn at most.")
@add_answer_options
@add_common_options
def send_(
    session: str,
    words: str,
    key: str | None,
    busy: str,
    no_wait: bool,
    at: str,
    wait: float | None,
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Say something to a conversation, also while it works. WORDS may be - for standard input."""
    if words == "-":
        words = read_text_argument("-", "WORDS").rstrip("\n")
    if at != "next" and not no_wait:
        raise make_usage_error("--at goes with --no-wait")
    if no_wait:
        return _keep(session, words, key, at, database, as_json=as_json)
    with open_moving_runtime(database, who) as opened:
        session_id = opened.session(session)
        handle = opened.runtime.session(_agent(opened, session_id), session_id)
        return _told(opened, handle.send(words, id=key, busy=busy, wait=wait), as_json=as_json)


def _keep(
    session: str, words: str, key: str | None, at: str, database: str | None, *, as_json: bool
) -> int:
    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        handle = opened.runtime.session(_agent(opened, session_id), session_id)
        receipt = handle.enqueue(words, key=key, at=at)
        if as_json:
            print_json({"session_id": session_id, "new": receipt.new, "item": _item(receipt.item)})
        else:
            click.echo(
                f"kept as {receipt.item.id}"
                if receipt.new
                else f"it was kept before, as {receipt.item.id}"
            )
    return ExitCode.OK


def _agent(opened: CommandRuntime, session_id: str) -> Agent:
    from everhold.agents.agent import Agent

    birth = opened.record(session_id, since=-1).birth
    found = opened.programs.find(birth.program, birth.version)
    if not isinstance(found, Agent):
        named = shlex.quote(opened.name(session_id))
        raise NotAnAgent(
            birth.program, f"Send it a signal: everhold signal {named} NAME{opened.place}"
        )
    return found


def _told(opened: CommandRuntime, turn: Turn, *, as_json: bool) -> int:
    """Say what became of what was said."""
    name = opened.name(turn.session_id)
    if as_json:
        facts = {
            "session_id": turn.session_id,
            "input": turn.input_id,
            "outcome": get_outcome_tag(turn),
            "text": turn.text,
        }
        print_json({**facts, "waiting": queries_to_json(turn.queries)})
    elif not turn.waiting:
        click.echo(format_turn(turn))
    else:
        print_waiting(turn.queries, name, opened.place)
        listing = f"everhold intake {shlex.quote(name)}{opened.place}"
        click.echo(f"kept as {turn.input_id}; `{listing}` lists what waits", err=True)
    return ExitCode.WAITING if turn.waiting else ExitCode.OK


@click.command("intake")
@session_argument
@click.option(
    "--all", "whole", is_flag=True, help="Also what somebody is letting in, and what has ended."
)
@click.option(
    "--cancel",
    "names",
    multiple=True,
    metavar="NAME",
    help="Take this back, by id or key; may be repeated.",
)
@click.option(
    "--cancel-from",
    "anchor",
    metavar="NAME",
    help="Take this back, and all that came after it in its lane.",
)
@click.option("--reason", default="", help="Why it is taken back.")
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
    """List what waits to enter a conversation, or take it back.

    A reset, a wake or an input waits until no turn is under way; `everhold explain` says what keeps
    it out.
    """
    from everhold.agents.inputs import cancel_intake_items, cancel_items_from, list_intake_items

    if names and anchor is not None:
        raise make_usage_error("give --cancel or --cancel-from, not both")
    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        if names:
            return _outcomes(
                opened.ask(
                    lambda runtime: cancel_intake_items(runtime.engine, session_id, names, reason)
                ),
                as_json=as_json,
            )
        if anchor is not None:
            found = opened.ask(
                lambda runtime: cancel_items_from(runtime.engine, session_id, anchor, reason)
            )
            return _outcomes(found, as_json=as_json)
        items = opened.ask(lambda runtime: list_intake_items(runtime.engine, session_id, all=whole))
        if as_json:
            rows = [_item(item) for item in items]
            return print_json(
                {"database": opened.database, "session_id": session_id, "items": rows}
            )
        if items:
            columns = ("id", "kind", "state", "for", "since", "what")
            print_table(columns, [_row(item) for item in items], wide=("id", "what"))
        else:
            click.echo("nothing waits" if not whole else "nothing waits, and nothing did")
        print_footer(opened.database)


def _row(item: IntakeItem) -> tuple[str, ...]:
    whither = "the next turn" if item.running is None else f"turn {item.running}"
    if item.waits and item.available_at > time.time():
        whither = f"after {format_moment(item.available_at)}"
    state = "being let in" if item.hold is not None and item.waits else str(item.state)
    return item.id, item.kind, state, whither, format_ago(item.at), format_line(_words(item), 80)


def _words(item: IntakeItem) -> str:
    from everhold.core.graph import extract_text

    body: Any = item.body if isinstance(item.body, dict) else {"content": item.body}
    if "do" in body:
        return f"{body['do']}{': ' + str(body['reason']) if body.get('reason') else ''}"
    return extract_text(body.get("content")) or format_plain_value(body)


def _item(item: IntakeItem) -> dict[str, JSON]:
    import msgspec

    told: dict[str, JSON] = {"state": item.state, **msgspec.to_builtins(item)}
    return told | {"at": int(item.at * 1000), "available_at": int(item.available_at * 1000)}


def _outcomes(found: list[ItemCancellation], *, as_json: bool) -> None:
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
    metavar="KEY",
    help="The same key is the same command, and is done once.",
)
@click.option("--reason", default="", help="Kept with it; no model is told.")
@add_answer_options
@add_common_options
def command_(
    session: str,
    do: str,
    key: str,
    reason: str,
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Have a conversation reset, compacted, refreshed, or its turn stopped.

    It is done when no turn is under way (cancel_turn at once), here if the agent is here, else
    where it is.
    """
    from everhold.agents.inputs import enqueue_command, read_input_status

    with open_moving_runtime(database, who) as opened:
        session_id = opened.session(session)
        receipt = opened.ask(
            lambda runtime: enqueue_command(runtime.engine, session_id, do, key=key, reason=reason)
        )
        opened.ask(lambda runtime: runtime.mover.rest())
        stands = opened.ask(
            lambda runtime: read_input_status(runtime.engine, session_id, receipt.item.id)
        )
        return _done(session_id, do, stands, new=receipt.new, as_json=as_json)


def _done(session_id: str, do: str, stands: InputStatus, *, new: bool, as_json: bool) -> int:
    settled = stands.stage == "settled"
    if as_json:
        facts = {
            "session_id": session_id,
            "id": stands.id,
            "new": new,
            "stage": stands.stage,
            "turn": stands.turn,
        }
        print_json({**facts, "reason": stands.reason})
    elif settled:
        ended: Any = stands.item.end if stands.item is not None else None
        nothing = isinstance(ended, dict) and ended.get("applied") is False
        click.echo(f"{do}: there was nothing to do" if nothing else f"{do}: done")
    else:
        click.echo(f"{do}: {stands.stage}{': ' + stands.reason if stands.reason else ''}")
    return (
        ExitCode.OK
        if settled
        else ExitCode.WAITING
        if stands.stage in ("waiting", "in_turn")
        else ExitCode.FAILED
    )
