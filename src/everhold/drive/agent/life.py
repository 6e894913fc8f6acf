"""The life of an agent: inputs come, and each is a turn: the model, its tools, the model again, until it is settled.

Rules
  1. Everything the loop knows came through `ctx`, so that a replay finds the same words in the same order.
  2. The journal keeps each answer at once; the conversation takes a turn over as a whole, with its outcome.
  3. Whatever happens in a turn, it settles: the model's failure and a cancel are outcomes, not exceptions.
  4. Every tool that the model called has a result in the conversation, also when the turn was cancelled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from everhold.core.codec import JSON
from everhold.core.errors import BudgetExceeded, EverholdError, TurnStopped
from everhold.core.graph import Graph, Node, NodeKind, View, applicable, text
from everhold.core.message import Role
from everhold.core.query import Kind, Query
from everhold.core.turn import Answered, MaxTurns, Settled, TurnCancelled, TurnFailed, TurnOutcome
from everhold.drive.agent.reply import Reply, understood
from everhold.drive.agent.tools import Toolbox
from everhold.ports.agent import Stage

if TYPE_CHECKING:
    from everhold.drive.agent.agent import Agent

#: The signal that a conversation listens to: inputs, and what is said to a turn under way.
INPUT = "input"


class Life:
    """One conversation, as its program sees it."""

    def __init__(self, ctx: Stage, agent: Agent) -> None:
        self.ctx, self.agent = ctx, agent
        self.graph = Graph()
        self.toolbox = Toolbox(ctx, agent.tools, agent.concurrency, agent.policy)
        self.turn = 0
        self._ordinal = 0
        self._rounds = 0
        self._heard: set[str] = set()  # the ids of all inputs
        self._running: asyncio.Future[TurnOutcome] | None = None
        self._cancelled: str | None = None
        self._waiting: list[JSON] = []  # said while a turn runs, for its next round

    # ---- inputs

    async def serve(self) -> None:
        """Take inputs, one turn after another, until the session is ended."""
        inputs: asyncio.Queue[tuple[int | None, dict[str, JSON]]] = asyncio.Queue()
        listening = asyncio.ensure_future(self._listen(inputs))
        try:
            while True:
                q, given = await inputs.get()
                await self._hold(str(given["id"]), q, given)
                for late in self._waiting:
                    inputs.put_nowait((None, late))
                self._waiting = []
        finally:
            listening.cancel()

    async def once(self, task: str) -> JSON:
        """Do one task, and return what came of it."""
        outcome = await self._hold("task", None, {"content": task})
        if isinstance(outcome, Answered):
            return self.words if self.agent.returns is None else outcome.value
        raise TurnStopped(str(type(outcome).__struct_config__.tag), getattr(outcome, "error", ""))

    async def _listen(self, inputs: asyncio.Queue[tuple[int | None, dict[str, JSON]]]) -> None:
        """Hear whatever is said to the conversation. One question stands open for it, always."""
        while True:
            q, said = await self.ctx.put(Kind.SIGNAL, name=INPUT)
            match said:
                case {"do": "cancel", "turn": turn}:
                    if turn == self.turn and self._running is not None:
                        self._cancelled = str(said.get("reason", ""))
                        self._running.cancel()
                case {"do": "steer"}:
                    if self._running is None:
                        inputs.put_nowait((q, said))
                    else:
                        self._waiting.append(said)
                case {"do": "branch", "to": to}:
                    if self._running is None and (to is None or to in self.graph.nodes):
                        self.graph.move(to)
                        self.ctx.note(leaf=to)
                case {"do": "apply", "id": str(input_id)} if self._running is None and inputs.empty():
                    self._apply(input_id, said)
                case {"id": str(input_id), "content": _}:
                    if input_id not in self._heard:  # else somebody said it twice, to be sure
                        self._heard.add(input_id)
                        inputs.put_nowait((q, said))
                case _:
                    self.ctx.log(f"a signal that is no input was ignored: {said!r:.200}", "warn")

    def _apply(self, input_id: str, said: dict[str, JSON]) -> None:
        """Stand where another conversation stands: what follows the node that both have is added on a branch."""
        self.turn, self._ordinal = self.turn + 1, 0
        outcome: TurnOutcome = Answered()
        try:
            to, nodes = said.get("to"), applicable(said.get("nodes"))
            self.graph.move(to)
        except EverholdError as error:
            to, nodes, outcome = self.graph.leaf, [], TurnFailed(str(error), error.code)
        if not nodes:
            self.ctx.note(leaf=to)
        for node in nodes:
            kept = Node(self._next(), self.graph.tip, node.kind, node.role, None, node.content)
            self.ctx.note(self.graph.add(kept))
        self.graph.settle()
        self.ctx.note(settled=Settled(self.turn, input_id, outcome, self.graph.tip))

    # ---- a turn

    async def _hold(self, input_id: str, q: int | None, given: JSON) -> TurnOutcome:
        self.turn, self._ordinal, self._rounds, self._cancelled = self.turn + 1, 0, 0, None
        self._say(Role.USER, q, given)
        running = self._running = asyncio.ensure_future(self._rounds_of())
        try:
            outcome = await running
        except asyncio.CancelledError:
            if self._cancelled is None:
                raise  # the session itself is ended
            self._give_up()
            outcome = TurnCancelled(self._cancelled)
        except BudgetExceeded as error:
            outcome = TurnFailed(str(error), error.code)
        finally:
            self._running = None
        self.graph.settle()
        self.ctx.note(settled=Settled(self.turn, input_id, outcome, self.graph.tip, self._rounds))
        return outcome

    async def _rounds_of(self) -> TurnOutcome:
        for _ in range(self.agent.max_turns):
            self._rounds += 1
            try:
                reply = await self._ask()
            except EverholdError as error:
                return TurnFailed(str(error), getattr(error, "kind", "") or error.code)
            if not reply.calls:
                return Answered()
            results = await self.toolbox.run(reply.calls)
            self._say(Role.TOOL, None, results)
            if self.toolbox.failed is not None:
                return self.toolbox.failed
            while self._waiting:
                self._say(Role.USER, None, self._waiting.pop(0))
        return MaxTurns(self.agent.max_turns)

    async def _ask(self) -> Reply:
        """Ask the model, and take what it says into the conversation."""
        agent, view = self.agent, View(self._tip(), self._prompt())
        options: dict[str, JSON] = {} if agent.model is None else {"model": agent.model}
        q, said = await self.ctx.put(
            Kind.LLM,
            lambda: self._in_full(view, options),
            args=msgspec.to_builtins(view),
            options=options or None,
        )
        reply = understood(said, f"{self.turn}.{self._ordinal}")
        self._say(Role.ASSISTANT, q if reply.blocks is None else None, said if reply.blocks is None else reply.blocks)
        return reply

    def _in_full(self, view: View, options: dict[str, JSON]) -> Query:
        """A question to the model with everything it is shown; the journal has the view only."""
        system, messages, tools = self.graph.shown(view)
        more = {**self.agent.options, **options}
        if tools:
            more["tools"] = tools
        return Query(0, "", messages=messages, system=system, max_tokens=self.agent.max_tokens, options=more or None)

    # ---- the conversation

    def _say(self, role: Role, q: int | None, content: JSON) -> None:
        """Add a message. What is an answer of the journal is named there, not repeated."""
        kept = Node(self._next(), self.graph.tip, role=role, q=q, content=None if q is not None else content)
        self.graph.add(kept, self.toolbox.answers if q is None else {q: content})
        self.toolbox.answers.clear()
        self.ctx.note(kept)

    def _prompt(self) -> str | None:
        """The node that has what the model is told beside the messages; a new one where that has changed."""
        told: dict[str, JSON] = {}
        if self.agent.instructions:
            told["system"] = self.agent.instructions
        if self.toolbox.specs:
            told["tools"] = self.toolbox.specs
        known = self.graph.last(NodeKind.PROMPT)
        if known is not None and known.content == told:
            return known.id
        if not told and known is None:
            return None
        node = self.graph.add(Node(self._next(), self.graph.tip, NodeKind.PROMPT, content=told))
        self.ctx.note(node)
        return node.id

    def _give_up(self) -> None:
        """Give every tool that was called and has no result one that says so."""
        last = self.graph.nodes[self._tip()]
        if last.role is Role.ASSISTANT:
            calls = understood(last.content, "").calls
            if calls:
                self._say(Role.TOOL, None, [call.result("Error: the turn was cancelled", error=True) for call in calls])

    def _next(self) -> str:
        found = f"{self.turn}.{self._ordinal}"
        self._ordinal += 1
        return found

    def _tip(self) -> str:
        assert self.graph.tip is not None
        return self.graph.tip

    @property
    def words(self) -> str:
        """What was said last."""
        return text(self.graph.nodes[self._tip()].content)
