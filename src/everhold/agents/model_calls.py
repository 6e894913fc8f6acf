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
from everhold.agents.child_usage import publish_child_usage
from everhold.agents.loop_state import ChildPlace, LoopState
from everhold.core.codec import JSON, dumps, to_plain
from everhold.core.graph import ModelView, Node, NodeKind, extract_text, to_blocks
from everhold.core.ledger import TURN, Ledger, count_usage_tokens
from everhold.core.message import CopiedOnRead
from everhold.core.model_settings import parse_model_settings
from everhold.core.query import ON_UNAVAILABLE, Kind, Query, Usage
from everhold.core.schema import PositiveInt, describe_misfit, schema_of
from everhold.core.turn import merge_options
from everhold.errors import AnswerFailed, BadArguments
from everhold.hooks import SLOTS, Ask, Contribute, apply_before_store
from everhold.ports.answerer import check_on_unavailable
from everhold.ports.process_environment import ENVIRONMENT, parse_environment
from everhold.ports.program import KeptEffect


class PromptLayer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Changes to a prompt, from options: `{"prompt": {"add": {"guidance": "…"}}}`."""

    add: dict[str, str] = {}
    replace: dict[str, str] = {}
    clear: list[str] = []
    template: list[str] | None = None


def parse_prompt_layer(given: JSON) -> PromptLayer | None:
    """A layer from its option; raises `BadArguments`."""
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
    """The slot, if it exists; raises `BadArguments`."""
    if slot not in SLOTS:
        raise BadArguments(
            "prompt", f"there is no slot {slot!r}; the slots are: {', '.join(SLOTS)}"
        )
    return slot


def refuse_unknown_options(options: Mapping[str, JSON]) -> None:
    """Raise `BadArguments` for an option of a conversation that does not exist, or for an unfit
    setting. None, which removes an option, is accepted for every name.
    """
    others = (*LOOP_OPTIONS, "model", ON_UNAVAILABLE)
    given = {name: options[name] for name in options if name not in others}
    settings = {name: value for name, value in given.items() if value is not None}
    parse_model_settings("options", settings, also=others)


def check_options(options: Mapping[str, JSON]) -> dict[str, JSON]:
    """Options as plain JSON; raises `BadValue` or `BadArguments`."""
    found: Any = to_plain(dict(options), "options")
    parse_prompt_layer(found.get("prompt"))
    parse_environment(found.get(ENVIRONMENT))
    for name in ("max_turns", "max_tokens"):
        most = found.get(name)
        if most is not None and (misfit := describe_misfit(most, PositiveInt)):
            raise BadArguments("options", f"{name} {misfit}")
    if misfit := describe_misfit(found.get("model") or "", str):
        raise BadArguments("options", f"model {misfit}")
    check_on_unavailable(found.get(ON_UNAVAILABLE))
    return dict(found)


class PromptBuilder:
    """Builds the system prompt, and caches the last one."""

    def __init__(self) -> None:
        self._key: Any = None
        self._text = ""
        self.built = 0  # number of prompts built

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
    """A parsed reply: its text and tool calls. `blocks` is set if the reply is stored in another
    form than it came.
    """

    text: str
    calls: list[AgentToolCall]
    blocks: list[JSON] | None = None


def parse_model_reply(said: JSON, where: str) -> ModelReply:
    """Parse a reply; raises `AnswerFailed` for any other form. `where` names calls without an
    id.
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
        raise AnswerFailed("the model's reply is empty", "empty_response")
    parts = _told_apart(found, where)
    calls = [
        AgentToolCall(one["id"], one["name"], one.get("input", {}))
        for one in parts
        if one.get("type") == "tool_use"
    ]
    return ModelReply(extract_text(said), calls, None if parts == found else parts)


def _told_apart(parts: list[Any], where: str) -> list[Any]:
    """Blocks in which each tool call has a unique id, since results are matched by it. Existing
    unique ids stay.
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
    """The simple form, if the text is JSON with `tool_calls`."""
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
        raise AnswerFailed("the text of a reply must be a string", "bad_response")
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
        raise AnswerFailed("the model's reply is empty", "empty_response")
    kept = _told_apart(kept, where)
    calls = [
        AgentToolCall(one["id"], one["name"], one["input"])
        for one in kept
        if one["type"] == "tool_use"
    ]
    return ModelReply(words, calls, kept)


#: Options that change the prompt.
OF_PROMPT: Final = ("tools", "prompt")
#: Options for the loop itself; all others go to the answerer.
LOOP_OPTIONS: Final = ("environment", "max_tokens", "max_turns", "prompt", "tools")


class ModelCalls:
    """The model calls of one conversation: prompt, question, and usage."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._text = PromptBuilder()
        self.spent = Ledger()  # of the session
        self.spent_now = Ledger()  # of this turn
        self.context = 0  # tokens of the context at the last model call
        self._of_call: dict[str, JSON] = {}  # `tools` and `prompt` of the last model call

    async def ask(
        self,
        view: ModelView,
        options: dict[str, JSON],
        source: str = TURN,
        system: str | None = None,
    ) -> tuple[int, JSON]:
        """Ask the model by reference; returns the query number and the reply."""
        marks = self._marks(options, source)
        effect = functools.partial(self._in_full, view, {**options, **marks}, system)
        return await self._put(
            effect, source, args=msgspec.to_builtins(view), options=marks or None
        )

    async def completed(self, ask: Ask) -> JSON:
        """A model's text for a plugin; None if the model call failed."""
        try:
            return await self.complete(ask)
        except AnswerFailed as error:
            self._loop.ctx.log(f"the model call for {ask.source} failed: {error}", "warn")
            return None

    async def complete(self, ask: Ask) -> JSON:
        """Ask a model beside the conversation, and return its text."""
        options = {**self._loop.effective, "max_tokens": ask.max_tokens}
        if ask.shown is None:
            marks = self._marks(options, ask.source)
            whole = Query(
                0, "", ask.prompt, system=ask.system, max_tokens=ask.max_tokens, options=marks
            )
            _, said = await self._put(lambda: whole, ask.source, prompt=ask.prompt, options=marks)
            return parse_model_reply(said, "").text
        known = self._loop.graph.last(NodeKind.PROMPT)
        leaf = frames.find_nth_message(self._loop.graph, ask.shown)
        prompt = None if known is None else known.id
        view = ModelView(leaf, prompt, extra=[frames.normalize_message(ask.prompt)])
        _, said = await self.ask(view, options, ask.source, ask.system)
        return parse_model_reply(said, "").text

    def _marks(self, options: dict[str, JSON], source: str) -> dict[str, JSON]:
        """The options that are stored with a question: the model, whether to wait for one, and
        the source of the usage.
        """
        model = options.get("model", self._loop.agent.model)
        marks: dict[str, JSON] = {} if model is None else {"model": model}
        unavailable = options.get(ON_UNAVAILABLE, self._loop.agent.on_unavailable)
        if unavailable is not None:
            marks[ON_UNAVAILABLE] = unavailable
        return marks if source == TURN else {**marks, "source": source}

    async def _put(self, effect: Callable[[], Query], source: str, **more: Any) -> tuple[int, JSON]:
        if "before_store" in self._loop.plugged.hooks:
            keep = functools.partial(apply_before_store, self._loop.plugged.plugins)
            effect = KeptEffect(effect, keep)
        try:
            return await self._loop.ctx.put(Kind.LLM, effect, **more)
        finally:
            usage = self._loop.ctx.cost
            self.paid(source, usage)
            if usage is not None and source == TURN:
                self.context = count_usage_tokens(usage).context
            if usage is not None and self._loop.place is not None:
                self._tell_above(usage, self._loop.place)

    def _tell_above(self, usage: Usage, place: ChildPlace) -> None:
        """Tell the sessions above a subagent what it has used, once that is stored."""
        ctx = self._loop.ctx
        if ctx.parent is not None and ctx.recorded() is None:
            above = place.list_above(ctx.parent)
            source = f"subagent:{'/'.join(place.path)}"
            ctx.after(functools.partial(publish_child_usage, above, source, ctx.session_id, usage))

    def paid(self, source: str, usage: Usage | None) -> None:
        """Record usage under a source."""
        self.spent.add(source, usage)
        self.spent_now.add(source, usage)

    def _in_full(self, view: ModelView, options: dict[str, JSON], system: str | None) -> Query:
        """The full question to the model; the journal has only the view."""
        told, messages, tools = self._loop.graph.shown(view)
        more = {
            **self._loop.agent.options,
            **{name: value for name, value in options.items() if name not in LOOP_OPTIONS},
        }
        if tools:
            more["tools"] = CopiedOnRead(tools)
        most = options.get("max_tokens", self._loop.agent.max_tokens)
        return Query(
            0,
            "",
            messages=messages,
            system=system or told,
            max_tokens=most,
            options=more or None,
        )

    def told(self, call: dict[str, JSON] | None = None) -> str | None:
        """The prompt node: the current one, or a new one if the prompt has changed.

        `call` has the options `tools` and `prompt` of one model call. Without it, those of the last
        call are assumed, so that a plugin that sets the same ones for each call adds no prompts.

        An invalid prompt is refused on replay too: the recorded turn failed because of it.
        """
        own = self._of_call if call is None else call
        self._of_call = {}  # also if these are refused
        layers = self._layers(own)
        options = merge_options(self._loop.effective, own)
        self._loop.toolbox.offer.access(options.get("tools"), self._loop.plugged.fingerprint)
        self._of_call = own
        known = self._loop.graph.last(NodeKind.PROMPT)
        recorded = self._loop.ctx.recorded()
        if recorded is not None:
            following = f"{self._loop.turn}.{self._loop.ordinal}"
            for node in recorded.nodes:
                if node.id == following and node.kind is NodeKind.PROMPT:
                    return self._loop.add(node).id
            return None if known is None else known.id
        now = self._prompt(layers)
        if known is not None and known.content == now:
            return known.id
        if not now and known is None:
            return None
        return self._loop.add(Node("", None, NodeKind.PROMPT, content=now)).id

    def told_for(self, options: dict[str, JSON], prompt: str | None) -> str | None:
        """The prompt node of a model call with options of its own; `prompt` is the one before."""
        own: dict[str, JSON] = {name: options[name] for name in OF_PROMPT if name in options}
        return prompt if own == self._of_call else self.told(own)

    def _layers(self, own: dict[str, JSON]) -> list[PromptLayer | None]:
        """The layers over the instructions; raises `BadArguments` for an invalid layer or slot."""
        for one in self._loop.contributions:
            check_slot(one.slot)
        held = self._loop.options.of(self._loop.graph.frame.id)
        return [
            parse_prompt_layer(held.get("prompt")),
            parse_prompt_layer(self._loop.turn_options.get("prompt")),
            *([parse_prompt_layer(own["prompt"])] if "prompt" in own else []),
        ]

    def _prompt(self, layers: list[PromptLayer | None]) -> dict[str, JSON]:
        """The prompt: instructions, contributions and layers as text, and the tools."""
        specs = self._loop.toolbox.specs
        system = self._text.text(layers, self._contributed(), [str(spec["name"]) for spec in specs])
        told: dict[str, JSON] = {"system": system} if system else {}
        return {**told, "tools": specs} if specs else told

    def _contributed(self) -> list[Contribute]:
        found = (
            [Contribute("intro", self._loop.agent.instructions)]
            if self._loop.agent.instructions
            else []
        )
        if self._loop.agent.returns is not None:
            found.append(Contribute("execution", describe_return_format(self._loop.agent.returns)))
        laid = [
            Contribute(one.slot, one.content, one.title, one.priority, list(one.tools))
            for one in self._loop.toolbox.offer.catalog.contributions
        ]
        return [*found, *self._loop.contributions, *laid]


def describe_return_format(returns: Any) -> str:
    """The instruction to the model of an agent that returns a value."""
    return f"Answer with nothing but JSON that fits this JSON Schema: {dumps(schema_of(returns))}"
