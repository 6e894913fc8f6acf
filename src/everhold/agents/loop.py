"""The agent loop: inputs and commands arrive, and each becomes one turn (`agents/turn.py`) that
settles.

Rules
  1. Everything that the loop knows comes through `ctx`, so that a replay sees the same values in
     the same order. What the agent's author may change later (limits, plugins) is recorded when it
     takes effect.
  2. The journal keeps each answer at once. The conversation gets a turn as a whole, with its
     outcome.
  3. Every turn settles. A failed model call, a failed plugin and a cancellation are outcomes, not
     exceptions.
  4. Every tool call of the model has a result in the conversation, even if the turn was stopped.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from everhold.agents import frames
from everhold.agents.code_tool import keeps_variables
from everhold.agents.loop_state import AgentDefinition, ChildPlace, HeardInput, get_input_role
from everhold.agents.model_calls import (
    ModelCalls,
    check_options,
    parse_model_reply,
    parse_prompt_layer,
)
from everhold.agents.plugin_host import (
    Decision,
    GuardedContext,
    PluginHost,
    decode_decisions,
    run_operation,
)
from everhold.agents.session_provider import SessionProvider
from everhold.agents.side_effects import SideEffects
from everhold.agents.tool_calls import Toolbox
from everhold.agents.tool_selection import SourcedTools, ask_events, ask_missing
from everhold.agents.turn import StopTurn, TurnRunner
from everhold.core.codec import JSON
from everhold.core.conversation import extract_inputs
from everhold.core.graph import (
    INITIAL_FRAME,
    Graph,
    Node,
    NodeKind,
    extract_text,
    parse_nodes,
    to_blocks,
)
from everhold.core.intake import INPUT
from everhold.core.ledger import Ledger
from everhold.core.message import Role
from everhold.core.query import ASKED_OUTSIDE, HOOK_CALL, Kind, Query
from everhold.core.tool_registry import ToolChange, ToolRegistryState
from everhold.core.turn import (
    FrameOptions,
    OperationDone,
    OptionsConfigured,
    SettledTurn,
    StateApplied,
    ToolsChanged,
    ToolsRefreshed,
    TurnAnswered,
    TurnCancelled,
    TurnFailed,
    TurnOutcome,
    merge_options,
)
from everhold.errors import BadArguments, EverholdError, ProviderMismatch, TurnStopped
from everhold.hooks import Ask, Contribute, Moment, SetOptions, apply_before_store
from everhold.ports.context import AgentContext
from everhold.ports.process_environment import (
    ENVIRONMENT,
    ProcessEnvironment,
    merge_environment,
    parse_environment,
)
from everhold.ports.program import KeptErrors

#: Commands of a conversation.
CONVERSATION_COMMANDS: Final = frozenset(
    {
        "compact",
        "reset",
        "continue_as",
        "configure",
        "apply",
        "refresh_tools",
        "change_tools",
        "execute",
        "operate",
    }
)

#: The agent facts of sessions that recorded none.
DEFAULT_AGENT_FACTS: Final = {"hooks": [], "max_turns": 12}


class AgentLoop:
    """The loop of one conversation."""

    def __init__(
        self,
        ctx: AgentContext,
        agent: AgentDefinition,
        options: dict[str, JSON] | None = None,
        plugin_options: dict[str, JSON] | None = None,
        place: ChildPlace | None = None,
    ) -> None:
        self.ctx = ctx
        self.agent = agent
        self.first_options = options or {}  # given when the session was started
        self.plugin_options = plugin_options or {}  # the same, by plugin
        self.place = place
        self.graph = Graph()
        self.plugged = PluginHost(agent.plugins)
        self.hooks: list[str] = []  # hooks that are called in this turn
        # whether results of calls by programs pass through plugins too
        self.inner_results = False
        if "before_store" in self.plugged.hooks:
            ctx.keep_with(functools.partial(apply_before_store, self.plugged.plugins))
        guarded: Any = (
            GuardedContext(ctx, self.plugged, self._asking) if self.plugged.plugins else ctx
        )
        self.effects = SideEffects(ctx)
        self.toolbox = Toolbox(
            guarded,
            agent.tools,
            agent.concurrency,
            agent.policy,
            extra=agent.extra_tools,
            many=agent.search_above,
            effects=self.effects,
        )
        self.toolbox.model = agent.model
        self.sources = SourcedTools(guarded, agent.sources)
        self.models = ModelCalls(self)
        self.provider = SessionProvider(self)
        self.toolbox.spend = self.models.paid
        self.toolbox.history = self._history
        self.toolbox.given_environment = lambda: self.effective.get(ENVIRONMENT)
        self.toolbox.moment = self.moment
        self.options = FrameOptions()
        self.options.set(INITIAL_FRAME, self.first_options)
        self.turn = 0
        self.rounds = 0
        self.started = 0.0
        self.began = 0.0
        self.most = agent.max_turns  # rounds of a turn
        self.turn_options: dict[str, JSON] = {}
        self.contributions: list[Contribute] = []
        self.waiting: list[HeardInput] = []  # inputs for the next checkpoint of this turn
        self.taken: list[str] = []  # ids of inputs that this turn took
        self.ordinal = 0  # number of the next node of this turn
        self.switched = 0  # frames that this turn opened with ContinueAs
        self.instructions = ""  # for a compaction
        self._inputs: asyncio.Queue[HeardInput] = asyncio.Queue()
        self._heard: set[str] = set()  # the ids of all inputs
        self._running: asyncio.Future[TurnOutcome] | None = None
        self._cancelled: str | None = None
        self._replayed = False  # replayed, and `after_restore` was not called yet
        self._opened = False  # whether `before_session` was called

    # ---- inputs

    async def serve(self) -> None:
        """Take inputs, one turn after another, until the session ends."""
        listening = asyncio.ensure_future(self._listen())
        try:
            await self._begin()
            while True:
                q, given = await self._inputs.get()
                await self._take(str(given["id"]), q, given)
                for late in self.waiting:
                    self._inputs.put_nowait(late)
                self.waiting = []
                if not self._inputs.empty():
                    # ends the step: a step has room for one receipt only
                    await self.ctx.state("everhold").get("next")
        finally:
            listening.cancel()

    async def once(self, task: str) -> JSON:
        """Do one task, and return its result."""
        await self._begin()
        outcome = await self._take("task", None, {"content": task})
        if isinstance(outcome, TurnAnswered):
            return (
                self.words
                if self.agent.returns is None and outcome.value is None
                else outcome.value
            )
        why = getattr(outcome, "error", "") or getattr(outcome, "reason", "")
        stopped = TurnStopped(str(type(outcome).__struct_config__.tag), why)
        stopped.exception = getattr(outcome, "exception", None)
        raise stopped

    async def _begin(self) -> None:
        """Start the session. If a plugin fails here, there is no turn to report it; the first turn
        tries again.
        """
        self.began = self.ctx.now().timestamp()
        self._agree()
        try:
            await self.open()
        except EverholdError as error:
            self.ctx.log(f"{error}; the next turn tries again", "warn")
            self.ctx.fact("options", self.first_options, {})

    async def open(self) -> None:
        """Let plugins set options, once per session. Options that were set since then stay."""
        if self._opened:
            return
        given = self.first_options
        for _, _, one in await self.decide("before_session"):
            if isinstance(one, SetOptions):
                given = merge_options(given, one.options)
        first: Any = self.ctx.fact("options", given, {})
        if self.options.of(self.graph.frame.id) == self.first_options:
            self.options.set(self.graph.frame.id, first)
        self._opened = True

    async def _listen(self) -> None:
        """Receive everything that is sent to the conversation. One signal query stays open for
        it.
        """
        while True:
            q, said = await self.ctx.put(Kind.SIGNAL, name=INPUT)
            match said:
                case {"do": "cancel", "turn": turn}:
                    if turn == self.turn and self._running is not None:
                        self._cancelled = str(said.get("reason", ""))
                        self._running.cancel()
                case {"do": "branch", "to": to}:
                    if self._running is None and (to is None or to in self.graph.nodes):
                        self._branch(to)
                case {"do": "steer", "id": str(input_id), "content": _}:
                    if self._is_new(input_id):
                        (self._inputs.put_nowait if self._running is None else self.waiting.append)(
                            (q, said)
                        )
                case {"do": str(do), "id": str(input_id)} if do in CONVERSATION_COMMANDS:
                    if self._is_new(input_id):
                        self._inputs.put_nowait((q, said))
                case {"id": str(), "content": _}:
                    fresh = self._fresh(said)
                    if fresh is not None:
                        self._inputs.put_nowait((q if fresh is said else None, fresh))
                case _:
                    self.ctx.log(f"ignored a signal that is not an input: {said!r:.200}", "warn")

    def _is_new(self, input_id: str) -> bool:
        """Whether an id is new; a sender may repeat an input to be sure."""
        if input_id in self._heard:
            return False
        self._heard.add(input_id)
        return True

    def _fresh(self, said: dict[str, JSON]) -> dict[str, JSON] | None:
        """The new part of an input; None if all of it was received before."""
        given = extract_inputs(said)
        fresh = [
            (input_id, to_blocks(content)) for input_id, content in given if self._is_new(input_id)
        ]
        if len(fresh) in (0, len(given)):
            return said if fresh else None
        parts = [[input_id, len(part)] for input_id, part in fresh]
        return {
            **said,
            "id": parts[0][0],
            "content": [one for _, part in fresh for one in part],
            "parts": parts,
        }

    def _branch(self, to: str | None) -> None:
        self.graph.move(to)
        self.ctx.note(leaf=to)
        self._restore()

    def _restore(self) -> None:
        """Restore the plugins to their state at the tip."""
        kept = self.graph.last(NodeKind.PLUGIN)
        self.plugged.adopt(None if kept is None else kept.content, whole=True)
        self.toolbox.variables.restore(self.graph.path(self.graph.tip))

    # ---- a turn

    async def _take(self, input_id: str, q: int | None, given: dict[str, JSON]) -> TurnOutcome:
        """Run an input or a command, and settle it."""
        self.turn = self.turn + 1
        self.ordinal = 0
        self.rounds = 0
        self._cancelled = None
        self.taken = []
        self.turn_options = {}
        self.contributions = []
        self.switched = 0
        self.instructions = ""
        self.toolbox.turn = self.turn
        self.effects.begin_turn()
        self.models.spent_now, self.started = Ledger(), self.ctx.now().timestamp()
        self._agree()
        match given:
            case {"do": "configure"}:
                return await self._settle(input_id, self._configure(given))
            case {"do": "apply"}:
                return await self._settle(input_id, self._apply(given))
            case {"do": "operate"}:
                return await self._settle(input_id, self._operate(given))
            case {"do": "refresh_tools"}:
                return await self._settle(input_id, self._refreshed())
            case {"do": "change_tools"}:
                return await self._settle(input_id, self._change_tools(given))
            case {"do": "compact" | "reset" | "continue_as"}:
                return await self._settle(input_id, frames.run_frame_command(self, given))
            case {"do": "execute"}:
                return await self._settle(input_id, TurnRunner(self).execute(given))
        self.taken = [other for other, _ in extract_inputs(given)[1:]]
        self.turn_options = given.get("options") or {}
        self.say(get_input_role(given), q, given)
        return await self._settle(input_id, self._run())

    async def _run(self) -> TurnOutcome:
        """Run the rounds of a turn, unless its provider is refused."""
        self.provider.check()
        return await TurnRunner(self).run()

    async def _settle(self, input_id: str, work: Coroutine[Any, Any, TurnOutcome]) -> TurnOutcome:
        running = self._running = asyncio.ensure_future(work)
        try:
            outcome = await running
        except asyncio.CancelledError:
            if self._cancelled is None:
                raise  # the session itself was cancelled
            self.give_up("the turn was cancelled")
            outcome = TurnCancelled(self._cancelled)
        except StopTurn as stop:
            self.give_up("the turn was stopped")
            outcome = stop.outcome
        except EverholdError as error:
            self.give_up("the turn has failed")
            code = getattr(error, "kind", "") or error.code
            hint = error.hint if isinstance(error, ProviderMismatch) else getattr(error, "fix", "")
            outcome = TurnFailed(str(error), code, hint, error.exception)
        finally:
            self._running = None
        events = await self.effects.finish()
        self.land(ending=True)
        self._keep_plugins()
        for node, answers in self.toolbox.variables.take_changed():
            self.add(node, answers)
        self.graph.settle()
        settled = SettledTurn(
            self.turn, input_id, outcome, self.graph.tip, self.rounds, self.taken, events
        )
        self.ctx.note(settled=settled)
        self.tell("after_turn", settled)
        return outcome

    def land(self, *, ending: bool = False) -> bool:
        """Add the messages and nodes of tools and plugins. Returns whether the model has something
        new to read.
        """
        heard = False
        recorded = self.ctx.recorded() if ending else None
        for node in self.effects.take_nodes():
            id = f"{self.turn}.{self.ordinal}"
            # earlier versions dropped what was left when a turn ended
            if recorded is None or any(
                known.id == id and known.kind is node.kind and known.role is node.role
                for known in recorded.nodes
            ):
                self.add(node)
                heard = heard or node.kind is NodeKind.MESSAGE
        return heard

    def _history(self) -> list[JSON]:
        """The messages so far, for programs that the model writes."""
        path = self.graph.path(self.graph.tip)
        said = [node for node in path if node.kind is NodeKind.MESSAGE and node.role is not None]
        return [{"role": str(node.role), "text": extract_text(node.content)} for node in said]

    async def refresh(self) -> list[str]:
        """Ask the tool sources for this turn. The model is informed about sources that fail."""
        unreached = await self.sources.refresh()
        for words in unreached:
            self.contributions.append(Contribute("environment", words))
        offer = self.toolbox.offer
        added = list(offer.registry.added.values())
        missing = await ask_missing(self.ctx, added, offer.declared) if added else None
        if self.agent.sources or added:
            offer.also(self.sources.tools, missing)
            self._agree_on_tools()
        return unreached

    async def learn_events(self) -> None:
        """Read the events of all triggers for this turn, if the option `tools` wants them."""
        option = self.effective.get("tools")
        if isinstance(option, dict) and option.get("events") is True:
            self.toolbox.offer.know_events(await ask_events(self.ctx))

    async def _refreshed(self) -> TurnOutcome:
        """Ask the tool sources outside of a turn, and report the tools. A replay uses the recorded
        outcome.
        """
        unreached = await self.refresh()
        recorded = self.ctx.recorded()
        if recorded is not None and recorded.settled is not None:
            return recorded.settled.outcome
        self.toolbox.offer.access(self.effective.get("tools"), self.plugged.fingerprint)
        catalog = self.toolbox.offer.catalog
        return ToolsRefreshed(sorted(catalog.names), catalog.fingerprint, unreached)

    async def _change_tools(self, given: dict[str, JSON]) -> TurnOutcome:
        """Change the tools of the session, as a host wants it."""
        recorded = self.ctx.recorded()
        if recorded is not None and recorded.settled is not None:
            return recorded.settled.outcome
        offer = self.toolbox.offer
        try:
            change = msgspec.convert(given.get("change"), ToolChange)
        except msgspec.ValidationError as error:
            raise BadArguments("tools", str(error)) from None
        offer.change(change, given.get("generation"), self.effective.get("tools"))
        self._agree_on_tools()
        generation = offer.registry.generation
        return ToolsChanged(sorted(offer.catalog.names), generation, offer.catalog.fingerprint)

    def _agree_on_tools(self) -> None:
        """Record the registry of tools when it changes, so that a replay uses the recorded one.
        Journals of older versions have none.
        """
        offer = self.toolbox.offer
        if self.ctx.recorded() is None:
            offer.renew()
            self.ctx.fact("tools", offer.recorded())
            return
        held = self.ctx.fact("tools", None)
        if held is None:
            offer.renew()
        else:
            offer.adopt(held)

    def _agree(self) -> None:
        """Record limits and hooks when they take effect, so that a replay uses the recorded
        ones.
        """
        given: Any = {"hooks": list(self.plugged.hooks), "max_turns": self.agent.max_turns}
        if "before_result" in self.plugged.hooks and self.agent.executors:
            given["inner_results"] = True
        if any(map(keeps_variables, self.agent.executors.values())):
            given["variables"] = True
        held: Any = self.ctx.fact("agent", given, DEFAULT_AGENT_FACTS)
        self.hooks = held["hooks"]
        self.most = held["max_turns"]
        self.inner_results = "inner_results" in held
        self._agree_on_tools()
        self.toolbox.variables.enabled = "variables" in held
        if self.ctx.recorded() is not None:
            self._replayed = True
        elif self._replayed:
            self._replayed = False
            self.tell("after_restore")

    async def _configure(self, given: dict[str, JSON]) -> TurnOutcome:
        """Set options: `before_config` first, then the options, then `after_config`."""
        frame = self.graph.frame.id
        everywhere = bool(given.get("everywhere"))
        before = self.options.of(frame)
        wanted = merge_options(before, given.get("options"))
        if "before_config" in self.hooks:
            moment = self.moment(decides=True)
            effect = functools.partial(self.plugged.mutate, moment, wanted)
            answer = await self._call_plugins(effect, f"{HOOK_CALL}before_config")
            await self._adopt(answer)
            wanted = answer["options"]
        parse_prompt_layer(wanted.get("prompt"))
        self.toolbox.offer.access(wanted.get("tools"), self.plugged.fingerprint)
        self.options.set(frame, wanted, everywhere=everywhere)
        if wanted != before:
            self.tell("after_config", before, wanted)
        return OptionsConfigured(wanted, frame, everywhere)

    async def _operate(self, given: dict[str, JSON]) -> TurnOutcome:
        """Run an operation of a plugin, which the host called."""
        plugin = str(given.get("plugin"))
        operation = str(given.get("operation"))
        asked = given.get("input") or {}
        effect = functools.partial(
            run_operation, self.plugged, self.moment(decides=True), plugin, operation, asked
        )
        name = f"operation:{plugin}.{operation}"
        answer = await self._call_plugins(effect, name, args=asked)
        await self._adopt(answer)
        return OperationDone(plugin, operation, answer.get("value"))

    async def _apply(self, said: dict[str, JSON]) -> TurnOutcome:
        """Move to the state of another conversation: nodes after the last common one are added as a
        branch.
        """
        to = said.get("to")
        nodes = parse_nodes(said.get("nodes"))
        wanted = [check_options(options) for options in said.get("options") or ()]
        self.graph.move(to)
        if not nodes:
            self.ctx.note(leaf=to)
        for node in nodes:
            self.add(Node("", None, node.kind, node.role, None, node.content))
        if said.get("tools") is not None and self.ctx.recorded() is None:
            self.toolbox.offer.restore(msgspec.convert(said["tools"], ToolRegistryState))
        self._agree_on_tools()
        self._restore()
        before = self.options.of(self.graph.frame.id)
        changed = {
            frame.id: options
            for frame, options in zip(self.graph.frames, wanted, strict=False)
            if options != self.options.of(frame.id)
        }
        for frame, options in changed.items():
            self.options.set(frame, options)
        if self.options.of(self.graph.frame.id) != before:
            self.tell("after_config", before, self.options.of(self.graph.frame.id))
        return StateApplied(
            str(said.get("source", "")),
            len(nodes),
            said.get("verified") is True,
            said.get("by"),
            changed,
        )

    # ---- plugins

    def moment(
        self, *, completing: bool = False, in_program: bool = False, decides: bool = False
    ) -> Moment:
        """The state of the conversation, for plugins and tools."""
        return Moment(
            session_id=self.ctx.session_id,
            root=self.ctx.parent is None,
            turn=self.turn,
            round=self.rounds,
            now=self.ctx.now().timestamp(),
            started=self.started,
            began=self.began,
            frame=self.graph.frame,
            options=self.effective,
            usage=self.models.spent.copy(),
            turn_usage=self.models.spent_now.copy(),
            messages=self.graph.messages,
            context=self.models.context,
            completing=completing,
            in_program=in_program,
            instructions=self.instructions,
            decides=decides,
            plugin_options=self.plugin_options,
            turn_values=self.effects.turn_values,
            nodes=self.graph.custom,
            environment=self.environment,
            extensions=self.plugged.extensions,
        )

    async def decide(
        self, hook: str, given: Sequence[tuple[str, tuple[Any, ...]]] = (("", ()),), **where: bool
    ) -> list[Decision]:
        """Ask the plugins. A plugin that asks a model is called again with the answer."""
        if hook not in self.hooks:
            return []
        said: dict[str, tuple[JSON, ...]] = {}
        found: list[Decision] = []
        while True:
            moment = self.moment(decides=True, **where)
            effect = functools.partial(self.plugged.decide, hook, moment, given, found, dict(said))
            answer = await self._call_plugins(effect, f"{HOOK_CALL}{hook}")
            await self._adopt(answer)
            found = decode_decisions(answer)
            asks = [(plugin, one) for plugin, _, one in found if isinstance(one, Ask)]
            if not asks:
                return found
            for plugin, ask in asks:
                said[plugin] = (*said.get(plugin, ()), await self.models.completed(ask))

    async def _call_plugins(self, effect: Callable[[], Any], name: str, **more: Any) -> Any:
        """What plugins answer. What they raise is stored as `before_store` changes it."""
        if "before_store" in self.hooks:
            effect = KeptErrors(effect, functools.partial(apply_before_store, self.plugged.plugins))
        _, answer = await self.ctx.put(Kind.CALL, effect, name=name, **more)
        return answer

    async def _adopt(self, answer: JSON) -> None:
        """Take over plugin state and values that plugins wrote."""
        self.plugged.adopt_if(answer)
        await self.effects.carry_out(answer.get("writes", ()))
        await self.effects.wait_sent()

    def tell(self, hook: str, *arguments: Any) -> None:
        """Notify the plugins after the commit."""
        if hook in self.plugged.hooks and self.ctx.recorded() is None:
            self.ctx.after(self.plugged.told(hook, self.moment(), *arguments))

    def _asking(self, kind: Kind, about: dict[str, Any]) -> None:
        """Notify plugins if a tool makes a query that waits for people."""
        if kind in ASKED_OUTSIDE:
            known = {
                name: about[name]
                for name in ("prompt", "name", "args", "options")
                if about.get(name)
            }
            self.tell("after_query", Query(0, "", kind=kind, **known))

    def _keep_plugins(self) -> None:
        """Record the state of the plugins with the turn, if it has changed."""
        recorded = self.ctx.recorded()
        if recorded is None and not self.plugged.plugins:
            return
        if recorded is not None:
            kept = [node.content for node in recorded.nodes if node.kind is NodeKind.PLUGIN]
        else:
            kept = [state] if (state := self.plugged.unkept()) is not None else []
        for state in kept:
            self.add(Node("", None, NodeKind.PLUGIN, content=state))
            self.plugged.noted(state)

    @property
    def effective(self) -> dict[str, JSON]:
        """The current options: those of the frame, overridden by those of the turn."""
        return merge_options(self.options.of(self.graph.frame.id), self.turn_options)

    @property
    def environment(self) -> ProcessEnvironment:
        """The environment of what tools start: the agent's, overridden by the options."""
        return merge_environment(
            self.agent.environment, parse_environment(self.effective.get(ENVIRONMENT))
        )

    # ---- the conversation

    def add(self, node: Node, answers: dict[int, JSON] | None = None) -> Node:
        """Add a node at the tip, under the next id."""
        node = self._recorded(
            msgspec.structs.replace(node, id=f"{self.turn}.{self.ordinal}", parent=self.graph.tip)
        )
        self.ordinal += 1
        frame = self.graph.frame
        whole = self.graph.add(node, answers or {})
        if whole.kind is NodeKind.FRAME:
            self.options.opened(whole.id, frame.id)
        self.ctx.note(node)
        return whole

    def _recorded(self, node: Node) -> Node:
        """On replay, the node as recorded: another version of the agent may have written other
        text.
        """
        recorded = self.ctx.recorded()
        for known in recorded.nodes if recorded is not None else ():
            if (
                known.id == node.id
                and known.kind is node.kind
                and known.q is None
                and not _names(known.content)
            ):
                return msgspec.structs.replace(known, parent=node.parent)
        return node

    def say(self, role: Role, q: int | None, content: JSON) -> None:
        """Add a message. Content that is an answer in the journal is referenced, not copied."""
        node = Node("", None, role=role, q=q, content=None if q is not None else content)
        self.add(node, self.toolbox.answers if q is None else {q: content})
        self.toolbox.answers.clear()

    def give_up(self, why: str) -> None:
        """Give each open tool call a result: its own, if known, or that the turn was stopped.

        With `before_result` hooks, the own result is left out: the plugins may not have seen it.
        """
        last = self.graph.nodes[self.tip] if self.graph.tip is not None else None
        if last is not None and last.role is Role.ASSISTANT:
            calls = parse_model_reply(last.content, "").calls
            if calls:
                shown = "before_result" not in self.hooks
                self.say(
                    Role.TOOL,
                    None,
                    [self.toolbox.given_up(call, why, shown=shown) for call in calls],
                )

    @property
    def tip(self) -> str:
        assert self.graph.tip is not None
        return self.graph.tip

    @property
    def words(self) -> str:
        """The model's last message."""
        said = [node for node in self.graph.path(self.graph.tip) if node.role is Role.ASSISTANT]
        return extract_text(said[-1].content) if said else ""


def _names(content: JSON) -> bool:
    """Whether content refers to answers of the journal."""
    return isinstance(content, list) and any(
        isinstance(block, dict) and "q" in block for block in content
    )
