"""The command that holds a conversation: chat.

At a terminal, words appear as they are said, what a person has to decide is asked in place, and
Ctrl-C stops the turn. Without one, each line of standard input is said, and each answer is a line
of standard output.
"""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.context import CommandRuntime, at_terminal, describe_user, resolve_program
from everhold.cli.options import (
    AnswerOptions,
    add_answer_options,
    add_common_options,
    open_moving_runtime,
)
from everhold.cli.output import (
    NO_MODEL,
    format_count,
    format_line,
    format_plain_value,
    format_turn,
    get_outcome_tag,
    print_json,
    print_waiting,
    queries_to_json,
    strip_controls,
)
from everhold.core.query import MODEL_KINDS
from everhold.errors import NotAnAgent
from everhold.wire import ExitCode

if TYPE_CHECKING:
    from everhold.agents import Turn
    from everhold.agents.agent import Agent
    from everhold.agents.events import Event
    from everhold.blocking import BlockingSession
    from everhold.core.codec import JSON
    from everhold.core.ledger import TokenCounts
    from everhold.core.status import OpenQuery

_HELP: Final = "/usage what it cost   /quit leave; the conversation is kept   Ctrl-C stop the turn"


@click.command("chat")
@click.argument("agent")
@click.option(
    "--session", "name", metavar="ID", help="Which conversation; one that is kept goes on."
)
@click.option(
    "--again", is_flag=True, help="Begin a new conversation if the one of this id was deleted."
)
@add_answer_options
@add_common_options
def chat_(
    agent: str,
    name: str | None,
    again: bool,
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Hold a conversation with an agent, or go on with one.

    AGENT is a name (`everhold programs` lists them), module:variable or path/file.py:variable.
    Without a terminal, each line of standard input is said; where a person is asked something, it
    stops with exit code 10.
    """
    found = _agent(database, agent)
    name = name or f"chat-{secrets.token_hex(4)}"
    with open_moving_runtime(database, who, makes=True) as opened:
        session = opened.runtime.session(found, name, again=again)
        if at_terminal() and not as_json:
            next_time = (
                f"everhold chat {shlex.quote(agent)} --session {shlex.quote(name)}{opened.place}"
            )
            return ChatTerminal(opened, session, name, f"{next_time}{_with(who)}").hold(agent)
        return _piped(opened, session, name, as_json=as_json)


def _with(who: AnswerOptions) -> str:
    """The options that say who answers, as they were typed."""
    given = {"--model": who.model, "--answer-with": who.answer_with}
    return "".join(
        f" {option} {shlex.quote(value)}" for option, value in given.items() if value is not None
    )


def _agent(database: str | None, name: str) -> Agent:
    from everhold.agents.agent import Agent

    found = resolve_program(database, name)
    if not isinstance(found, Agent):
        needed = [
            one.name for one in found.signature.parameters.values() if one.default is one.empty
        ]
        words = [shlex.quote(name), *(f"{one}=…" for one in needed)]
        raise NotAnAgent(name, f"Run it: everhold run {' '.join(words)}")
    return found


# ---- without a terminal


def _piped(opened: CommandRuntime, session: BlockingSession, name: str, *, as_json: bool) -> int:
    rows: list[JSON] = []
    waiting: tuple[OpenQuery, ...] = ()
    for words in _lines(sys.stdin):
        turn = session.send(words)
        rows.append({"input": words, "text": turn.text, "outcome": get_outcome_tag(turn)})
        if not as_json:
            click.echo(format_turn(turn))
        if turn.waiting:
            waiting = turn.queries
            break
    if as_json:
        print_json(
            {
                "session": name,
                "session_id": session.id,
                "turns": rows,
                "waiting": queries_to_json(waiting),
            }
        )
    else:
        print_waiting(waiting, name, opened.place)
    return ExitCode.WAITING if waiting else ExitCode.OK


def _lines(lines: Iterable[str]) -> Iterator[str]:
    for words in lines:
        if words.strip() == "/quit":
            return
        if words.strip():
            yield words.rstrip("\n")


# ---- at a terminal


def _cost(spent: TokenCounts) -> str:
    """Tokens as people count them; what a provider did not tell is not among them."""
    cached = f", {spent.cache_read} of them from its cache" if spent.cache_read else ""
    return (
        f"{format_count(spent.total, 'token')}: {spent.context} read{cached}, {spent.output}"
        " written"
    )


class ChatTerminal:
    """One conversation with the person at the keyboard."""

    def __init__(
        self, opened: CommandRuntime, session: BlockingSession, name: str, again: str
    ) -> None:
        self._house = opened
        self._session = session
        self._name = name
        self._again = again
        self._since = 0  # the first turn that is shown
        self._streamed: set[str] = set()  # questions whose answers appeared word by word
        self._called: set[str] = set()  # calls of tools that were shown
        self._cursor: str | None = None
        self._alone = False  # whether it was said that no model answers

    def hold(self, agent: str) -> int:
        """Talk until the person leaves."""
        click.secho(f"{agent} · {self._name} · {_HELP}", dim=True)
        try:
            self._take_up()
            while True:
                words = self._words()
                if words == "/quit":
                    break
                if words == "/usage":
                    click.echo(_cost(self._session.usage().total))
                elif words.startswith("/"):
                    click.secho(_HELP, dim=True)
                elif words:
                    self._turn(words)
        except (EOFError, KeyboardInterrupt):
            click.echo()
        click.secho(f"kept; go on with: {self._again}", dim=True)
        return ExitCode.OK

    def _words(self) -> str:
        return input("> ").strip()

    def _take_up(self) -> None:
        """Finish a turn that was under way when somebody left."""
        told = self._session.conversation()
        left = [input_id for input_id in told.inputs if told.settled(input_id) is None]
        if left and told.graph.tip != told.graph.leaf:
            click.secho("(going on with the turn that was under way)", dim=True)
            self._since = len(told.turns) + 1
            self._follow(left[0], self._session.follow(left[0]))

    def _turn(self, words: str) -> None:
        input_id = f"i-{secrets.token_hex(8)}"
        self._follow(input_id, self._session.stream(words, id=input_id))

    def _follow(self, input_id: str, events: Iterable[Event]) -> None:
        """Show a turn as it goes, and ask in place whatever a person has to say."""
        try:
            self._show_all(events)
            turn = self._session.turn(input_id, wait=0)
            while turn.waiting:
                if turn.queries:
                    self._ask(turn)
                self._show_all(self._session.follow(input_id, self._cursor))
                turn = self._session.turn(input_id, wait=0)
        except KeyboardInterrupt:
            self._session.cancel_turn("Ctrl-C")
            click.secho("\n(the turn was stopped)", fg="yellow")
            return
        if get_outcome_tag(turn) != "answered":
            why = getattr(turn.outcome, "error", "") or getattr(turn.outcome, "reason", "")
            click.secho(
                f"({get_outcome_tag(turn)}{': ' + strip_controls(why) if why else ''})", fg="red"
            )

    def _ask(self, turn: Turn) -> None:
        from everhold.cli.terminal import PromptQuit, prompt_for_answer

        for query in turn.queries:
            if query.kind in MODEL_KINDS and not self._alone:
                self._alone = True
                click.secho(f"({NO_MODEL}; until then, you are asked)", dim=True)
            try:
                spoken = prompt_for_answer(query, self._name)
            except PromptQuit:
                raise EOFError from None
            given: dict[str, Any] = (
                {"error": spoken.error} if spoken.error is not None else {"value": spoken.value}
            )
            by = describe_user() if query.kind not in MODEL_KINDS else None
            self._house.runtime.answer(query, by=by, wait=0, **given)

    def _show_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self._cursor = event.cursor
            if event.turn >= self._since:
                self._show(event)

    def _show(self, event: Event) -> None:
        match event.kind:
            case "text":
                self._streamed.add(event.query)
                click.echo(strip_controls(event.text), nl=False)
            case "model_answered" if event.query in self._streamed:
                click.echo()
            case "message" if event.node is not None and event.node.role == "assistant":
                from everhold.core.graph import extract_text

                words = extract_text(event.node.content)
                if words and f"q-{event.node.q}" not in self._streamed:
                    click.echo(strip_controls(words))
            case "tool_started" if event.call not in self._called:
                self._called.add(event.call)
                click.secho(
                    f"· {event.name} {format_line(format_plain_value(event.value), 100)}", dim=True
                )
            case "tool_finished" if event.error:
                click.secho(f"· {event.name} failed: {format_line(event.error, 100)}", fg="red")
            case "progress":
                click.secho(f"· {event.name}: {format_line(event.text, 100)}", dim=True)
            case "reset":
                self._streamed.discard(event.query)
                click.secho("\n(asked again)", dim=True)
