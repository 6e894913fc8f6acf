"""What a model is asked, and what it is told: by reference in the journal, in full to whoever
answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from everhold.agents import frames
from everhold.agents.loop_state import LoopState
from everhold.agents.parse_reply import parse_model_reply
from everhold.agents.prompt import PromptBuilder, PromptLayer, parse_prompt_layer
from everhold.agents.prompt import check_slot as known_slot
from everhold.agents.turn import TurnRunner
from everhold.core.codec import JSON
from everhold.core.graph import ModelView, Node, NodeKind
from everhold.core.ledger import TURN, Ledger, count_usage_tokens
from everhold.core.query import Kind, Query, Usage
from everhold.errors import AnswerFailed
from everhold.hooks import Ask, Contribute, apply_before_store
from everhold.ports.program import KeptEffect

#: Options that are the loop's own; all others go to whoever answers for the model.
LOOP_OPTIONS: Final = frozenset({"max_tokens", "max_turns", "prompt", "tools"})


class ModelCalls:
    """The models of one conversation: how they are asked, what they are told, and what they have
    cost.
    """

    def __init__(self, life: LoopState) -> None:
        self._life = life
        self._text = PromptBuilder()
        self.spent, self.spent_now = Ledger(), Ledger()  # in all, and in this turn
        self.context = 0  # tokens that the model last had before its eyes

    async def ask(
        self,
        view: ModelView,
        options: dict[str, JSON],
        source: str = TURN,
        system: str | None = None,
    ) -> tuple[int, JSON]:
        """Ask a model, by reference; returns the query with what was said."""
        marks = self._marks(options, source)
        effect = functools.partial(self._in_full, view, {**options, **marks}, system)
        return await self._put(
            effect, source, args=msgspec.to_builtins(view), options=marks or None
        )

    async def completed(self, ask: Ask) -> JSON:
        """A model's words for a plugin; None if it has none."""
        try:
            return await self.complete(ask)
        except AnswerFailed as error:
            self._life.ctx.log(f"the model could not be asked for {ask.source}: {error}", "warn")
            return None

    async def complete(self, ask: Ask) -> JSON:
        """Ask a model something beside the conversation, and return its words."""
        options = {**self._life.effective, "max_tokens": ask.max_tokens}
        if ask.shown is None:
            marks = self._marks(options, ask.source)
            whole = Query(
                0, "", ask.prompt, system=ask.system, max_tokens=ask.max_tokens, options=marks
            )
            _, said = await self._put(lambda: whole, ask.source, prompt=ask.prompt, options=marks)
            return parse_model_reply(said, "").text
        known = self._life.graph.last(NodeKind.PROMPT)
        leaf = frames.find_nth_message(self._life.graph, ask.shown)
        prompt = None if known is None else known.id
        view = ModelView(leaf, prompt, extra=[frames.normalize_message(ask.prompt)])
        _, said = await self.ask(view, options, ask.source, ask.system)
        return parse_model_reply(said, "").text

    def _marks(self, options: dict[str, JSON], source: str) -> dict[str, JSON]:
        """What is stored with a question to a model: which one, and who spends the tokens."""
        model = options.get("model", self._life.agent.model)
        marks: dict[str, JSON] = {} if model is None else {"model": model}
        return marks if source == TURN else {**marks, "source": source}

    async def _put(self, effect: Callable[[], Query], source: str, **more: Any) -> tuple[int, JSON]:
        if "before_store" in self._life.plugged.hooks:
            keep = functools.partial(apply_before_store, self._life.plugged.plugins)
            effect = KeptEffect(effect, keep)
        try:
            return await self._life.ctx.put(Kind.LLM, effect, **more)
        finally:
            usage = self._life.ctx.cost
            self.paid(source, usage)
            if usage is not None and source == TURN:
                self.context = count_usage_tokens(usage).context

    def paid(self, source: str, usage: Usage | None) -> None:
        """Take note of what somebody has spent."""
        self.spent.add(source, usage)
        self.spent_now.add(source, usage)

    def _in_full(self, view: ModelView, options: dict[str, JSON], system: str | None) -> Query:
        """A question to the model with everything it is shown; the journal has the view only."""
        told, messages, tools = self._life.graph.shown(view)
        more = {
            **self._life.agent.options,
            **{name: value for name, value in options.items() if name not in LOOP_OPTIONS},
        }
        if tools:
            more["tools"] = tools
        most = options.get("max_tokens", self._life.agent.max_tokens)
        return Query(
            0, "", messages=messages, system=system or told, max_tokens=most, options=more or None
        )

    def told(self) -> str | None:
        """The node that has what the model is told beside the messages; a new one where that has
        changed.

        What is no prompt is refused on replay, too: there the turn has failed because of it.
        """
        layers = self._layers()
        self._life.toolbox.offer.access(
            self._life.effective.get("tools"), self._life.plugged.fingerprint
        )
        known = self._life.graph.last(NodeKind.PROMPT)
        recorded = self._life.ctx.recorded()
        if recorded is not None:
            following = f"{self._life.turn}.{self._life.ordinal}"
            for node in recorded.nodes:
                if node.id == following and node.kind is NodeKind.PROMPT:
                    return self._life.add(node).id
            return None if known is None else known.id
        now = self._prompt(layers)
        if known is not None and known.content == now:
            return known.id
        if not now and known is None:
            return None
        return self._life.add(Node("", None, NodeKind.PROMPT, content=now)).id

    def _layers(self) -> list[PromptLayer | None]:
        """The layers that lie over the instructions; raises `BadArguments` for what is none, or is
        for no slot.
        """
        for one in self._life.contributions:
            known_slot(one.slot)
        held = self._life.options.of(self._life.graph.frame.id)
        return [
            parse_prompt_layer(held.get("prompt")),
            parse_prompt_layer(self._life.turn_options.get("prompt")),
        ]

    def _prompt(self, layers: list[PromptLayer | None]) -> dict[str, JSON]:
        """What the model is to be told: instructions, contributions and layers, and the tools."""
        specs = self._life.toolbox.specs
        system = self._text.text(layers, self._contributed(), [str(spec["name"]) for spec in specs])
        told: dict[str, JSON] = {"system": system} if system else {}
        return {**told, "tools": specs} if specs else told

    def _contributed(self) -> list[Contribute]:
        found = (
            [Contribute("intro", self._life.agent.instructions)]
            if self._life.agent.instructions
            else []
        )
        if self._life.agent.returns is not None:
            found.append(Contribute("execution", TurnRunner.wanted(self._life.agent.returns)))
        return [*found, *self._life.contributions]
