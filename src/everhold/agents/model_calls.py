"""Model calls: the system prompt, the question to the model, and the parsed reply.

Rules
  1. The journal keeps a question by reference; the answerer gets it in full.
  2. Prompt layers are applied in order: the agent's instructions, the session's layer, the turn's
     layer. A layer may add to a slot, replace it, clear it, or reorder the slots (`template`).
  3. Duplicate contributions (same slot, priority and text) appear once. Slots follow the template;
     within a slot, lower priorities come first.
  4. The last prompt is cached: the same inputs are not assembled twice.

A reply has one of three forms:

    "Paris."                                                  text: ends the turn
    {"content": [{"type": "text", …}, {"type": "tool_use", …}]}     blocks, as providers send them
    {"text": "…", "tool_calls": [{"name": "search", "input": {…}}]}   the simple form, written by
                                                   people and hosts; `content` may replace `text`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from everhold.agents import frames
from everhold.agents.builtin_tools import AgentToolCall
from everhold.agents.loop_state import LoopState
from everhold.core.codec import JSON, dumps, to_plain
from everhold.core.graph import ModelView, Node, NodeKind, extract_text, to_blocks
from everhold.core.ledger import TURN, Ledger, count_usage_tokens
from everhold.core.query import Kind, Query, Usage
from everhold.core.schema import PositiveInt, describe_misfit, schema_of
from everhold.errors import AnswerFailed, BadArguments
from everhold.hooks import SLOTS, Ask, Contribute, apply_before_store
from everhold.ports.program import KeptEffect


class PromptLayer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Changes to a prompt, as options say them: `{"prompt": {"add": {"guidance": "…"}}}`."""

    add: dict[str, str] = {}
    replace: dict[str, str] = {}
    clear: list[str] = []
    template: list[str] | None = None


def parse_prompt_layer(given: JSON) -> PromptLayer | None:
    """A layer as options hold it; raises `BadArguments` for what is none."""
    if given is None:
        return None
    try:
        found = msgspec.convert(
            {"add": {"guidance": given}} if isinstance(given, str) else given, PromptLayer
        )
    except msgspec.ValidationError as error:
        raise BadArguments("prompt", str(error)) from None
    for slot in (*found.add, *found.replace, *found.clear, *(found.template or ())):
        check_slot(slot)
    return found


def check_slot(slot: str) -> str:
    """The slot, if there is one of the name; raises `BadArguments`."""
    if slot not in SLOTS:
        raise BadArguments("prompt", f"there is no slot {slot!r}; the slots are {', '.join(SLOTS)}")
    return slot


def check_options(options: Mapping[str, JSON]) -> dict[str, JSON]:
    """Options as they are kept; raises `BadValue` or `BadArguments` for what cannot be."""
    found: Any = to_plain(dict(options), "options")
    parse_prompt_layer(found.get("prompt"))
    for name in ("max_turns", "max_tokens"):
        most = found.get(name)
        if most is not None and (misfit := describe_misfit(most, PositiveInt)):
            raise BadArguments("options", f"{name} {misfit}")
    if misfit := describe_misfit(found.get("model") or "", str):
        raise BadArguments("options", f"model {misfit}")
    return dict(found)


class PromptBuilder:
    """Puts the system text together, and remembers the last one."""

    def __init__(self) -> None:
        self._key: Any = None
        self._text = ""
        self.built = 0  # how often one was put together

    def text(
        self,
        layers: Sequence[PromptLayer | None],
        contributions: Sequence[Contribute],
        tools: Collection[str] = (),
    ) -> str:
        key = (
            tuple(map(msgspec.json.encode, layers)),
            msgspec.json.encode(contributions),
            tuple(tools),
        )
        if key != self._key:
            self._text = _build_text(layers, contributions, tools)
            self._key = key
            self.built += 1
        return self._text

    def forget(self) -> None:
        """Put the next one together anew, whatever it is."""
        self._key = None


def _build_text(
    layers: Sequence[PromptLayer | None],
    contributions: Sequence[Contribute],
    tools: Collection[str],
) -> str:
    slots: dict[str, list[Contribute]] = {slot: [] for slot in SLOTS}
    for one in contributions:
        if not one.tools or any(tool in tools for tool in one.tools):
            slots[check_slot(one.slot)].append(one)
    order: Sequence[str] = SLOTS
    for layer in layers:
        if layer is not None:
            order = layer.template if layer.template is not None else order
            _change(slots, layer)
    parts = [_said(one) for slot in order for one in _distinct(slots[slot])]
    return "\n\n".join(part for part in parts if part)


def _change(slots: dict[str, list[Contribute]], layer: PromptLayer) -> None:
    for slot in layer.clear:
        slots[slot] = []
    for slot, words in layer.replace.items():
        slots[slot] = [Contribute(slot, words)]
    for slot, words in layer.add.items():
        slots[slot].append(Contribute(slot, words))


def _distinct(given: list[Contribute]) -> list[Contribute]:
    found = {(one.priority, one.content.strip()): one for one in reversed(given)}
    kept = [one for one in given if found.get((one.priority, one.content.strip())) is one]
    return sorted(kept, key=lambda one: one.priority)


def _said(one: Contribute) -> str:
    words = one.content.strip()
    return f"## {one.title}\n\n{words}" if one.title and words else words


class ModelReply(msgspec.Struct, frozen=True):
    """What was said: its words, and the tools it calls. `blocks` is set if what was said is not
    kept as it came.
    """

    text: str
    calls: list[AgentToolCall]
    blocks: list[JSON] | None = None


def parse_model_reply(said: JSON, where: str) -> ModelReply:
    """What a model said; raises `AnswerFailed` for what is none of the forms. `where` names calls
    without id.
    """
    if isinstance(said, str):
        simple = _parse_written_reply(said)
        if simple is None:
            return ModelReply(said, [])
        said = simple
    if isinstance(said, dict) and (
        "tool_calls" in said or ("text" in said and "content" not in said)
    ):
        return _simple(said, where)
    found = to_blocks(said)
    if not found or not all(isinstance(block, dict) for block in found):
        raise AnswerFailed("the model said nothing that can be used", "empty_response")
    parts = _told_apart(found, where)
    calls = [
        AgentToolCall(one["id"], one["name"], one.get("input", {}))
        for one in parts
        if one.get("type") == "tool_use"
    ]
    return ModelReply(extract_text(said), calls, None if parts == found else parts)


def _told_apart(parts: list[Any], where: str) -> list[Any]:
    """Blocks in which each call has an id of its own: results are known by it. Those that have one
    keep it.
    """
    kept: list[Any] = []
    known: set[str] = set()
    for block in parts:
        if block.get("type") == "tool_use":
            if not isinstance(block.get("name"), str):
                raise AnswerFailed("a tool call needs a name and an input", "bad_tool_call")
            id = block.get("id")
            if not isinstance(id, str) or not id or id in known:
                block = {**block, "id": f"call-{where}-{len(known)}"}
            known.add(block["id"])
        kept.append(block)
    return kept


def _parse_written_reply(said: str) -> JSON:
    """The simple form, if somebody wrote it as text."""
    if not said.lstrip().startswith("{"):
        return None
    try:
        value = msgspec.json.decode(said)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("tool_calls"), list) else None


def _simple(said: dict[str, JSON], where: str) -> ModelReply:
    words = said.get("text", said.get("content")) or ""
    if not isinstance(words, str):
        raise AnswerFailed("the text of an answer should be words", "bad_response")
    kept: list[JSON] = [{"type": "text", "text": words}] if words else []
    wanted = said.get("tool_calls") or []
    for one in wanted if isinstance(wanted, list) else [None]:
        if not isinstance(one, dict):
            raise AnswerFailed("a tool call needs a name and an input", "bad_tool_call")
        kept.append(
            {
                "type": "tool_use",
                "id": one.get("id"),
                "name": one.get("name"),
                "input": one.get("input", {}),
            }
        )
    if not kept:
        raise AnswerFailed("the model said nothing that can be used", "empty_response")
    kept = _told_apart(kept, where)
    calls = [
        AgentToolCall(one["id"], one["name"], one["input"])
        for one in kept
        if one["type"] == "tool_use"
    ]
    return ModelReply(words, calls, kept)


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
            check_slot(one.slot)
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
            found.append(Contribute("execution", describe_return_format(self._life.agent.returns)))
        return [*found, *self._life.contributions]


def describe_return_format(returns: Any) -> str:
    """The instruction to the model for an agent that returns a value."""
    return f"Answer with nothing but JSON that fits this JSON Schema: {dumps(schema_of(returns))}"
