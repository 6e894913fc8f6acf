"""Conversations with agents: the handle of a session whose program is an `Agent`.

    session = await runtime.session(agent, "chat-42")
    turn = await session.send("Refund order 7")
    print(turn.text)

A handle only caches what the store has. Any number of handles of a session may be open.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from everhold.agents.added_tools import (
    describe_option,
    describe_tools,
    provide_tool,
    share_tools,
    withdraw_tools,
)
from everhold.agents.agent import Agent
from everhold.agents.code_tool import find_executor
from everhold.agents.conversation_handle import ConversationHandle
from everhold.agents.conversation_reader import (
    RESIDENCY_ALL,
    ConversationReader,
    Stored,
    TurnReader,
    copy_receipt,
    has_path,
    list_frame_options,
    plan_apply,
    read_effective_options,
)
from everhold.agents.envelopes import read_conversation
from everhold.agents.events import Event, EventKind, LiveBuffers
from everhold.agents.frames import normalize_messages
from everhold.agents.inputs import (
    NEXT_TURN,
    BusyPolicy,
    check_input_key,
    check_moment,
    enqueue_item,
    has_same_input,
    parse_boundary,
    parse_busy_policy,
    require_not_ended,
    require_same_input,
)
from everhold.agents.model_calls import check_options, refuse_unknown_options
from everhold.agents.plugin_operations import PluginHandle
from everhold.agents.session_provider import (
    PROVIDER_FACT,
    is_other_provider,
    make_mismatch,
    name_providers,
)
from everhold.agents.subagents import (
    CHILD_POLL_SECONDS,
    ChangeWaiter,
    find_all_questions,
    find_questions_below,
    is_worked_on_here,
    select_open_questions,
    stream_until_question,
)
from everhold.agents.tool_view import ToolsView, read_registry
from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.conversation import Conversation
from everhold.core.graph import NodeKind, compact_blocks, extract_text, to_blocks
from everhold.core.intake import (
    IntakeItem,
    ItemKind,
    ItemState,
    MergePolicy,
    Receipt,
    require_input_fits,
)
from everhold.core.message import Message, Role, encode_message
from everhold.core.query import FOR_PEOPLE, Blocked
from everhold.core.status import Finished, OpenQuery, Paused
from everhold.core.tool_registry import ToolChange, ToolRegistry, encode_tools
from everhold.core.turn import (
    CodeExecuted,
    FrameOpened,
    SettledTurn,
    TurnAnswered,
    TurnFailed,
    TurnOutcome,
)
from everhold.engine.arguments import UNSET, check_seconds_arg, parse_by_arg
from everhold.engine.engine import Engine
from everhold.errors import (
    BadArguments,
    KeyConflict,
    Outdated,
    ProviderMismatch,
    SessionBusy,
    SessionEnded,
    TurnWaiting,
    UnknownSession,
)
from everhold.hooks import apply_before_store as kept
from everhold.ports.program import ForkVerb
from everhold.ports.tool import Tool
from everhold.ports.tool_services import INJECTED_ROLES
from everhold.stores.envelope import EnvelopeSession

#: A tool, or the name or reference of one.
ToolLike = Tool | Callable[..., Any] | str
#: The content of an input: text, blocks (see core.message), or a message.
InputContent = str | Message | Sequence[JSON]


class Turn(msgspec.Struct, frozen=True):
    """A turn: its outcome, or the open questions that it waits for."""

    session_id: str
    input_id: str
    settled: SettledTurn | None
    queries: tuple[OpenQuery, ...] = ()
    text: str = ""  # the model's last message, if the turn was answered

    @property
    def outcome(self) -> TurnOutcome | None:
        """How the turn ended; None while it runs or waits."""
        return None if self.settled is None else self.settled.outcome

    @property
    def waiting(self) -> bool:
        """Whether the turn has not settled: it waits for answers, or still runs."""
        return self.settled is None

    @property
    def blocked(self) -> Blocked | None:
        """Why the turn waits, if a model was to answer and could not; None otherwise."""
        return next((query.blocked for query in self.queries if query.blocked is not None), None)

    @property
    def value(self) -> JSON:
        """The value of an answered turn, for an agent with `returns=`, or of a program that ran."""
        outcome = self.outcome
        return outcome.value if isinstance(outcome, TurnAnswered | CodeExecuted) else None


class AgentSession(ConversationHandle):
    """One conversation with its agent. `Runtime.session` makes it."""

    def __init__(
        self,
        engine: Engine,
        buffers: LiveBuffers,
        fork: ForkVerb,
        agent: Agent,
        session_id: str,
        residency: str = RESIDENCY_ALL,
    ) -> None:
        super().__init__(engine, buffers, session_id, residency)
        self._fork = fork
        self.agent = agent
        self._tail = TurnReader(engine.store, session_id)
        self._mismatch: ProviderMismatch | None = None

    async def _check_provider(self) -> None:
        """Compare the provider of the agent with that of the conversation, as far as it is in
        memory.

        Inputs are refused while they differ; reading and `configure` are not.
        """
        live = self._engine.sessions.cached(self.id)
        known: Any = [] if live is None else live.facts.get(PROVIDER_FACT)
        named = name_providers(self.agent.model)
        if not known or not is_other_provider(known, named):
            return
        if not read_effective_options(None, await self._told()).get("model"):
            self._mismatch = make_mismatch(self.id, known, named)

    def _refuse_provider(self, options: Any) -> None:
        if self._mismatch is not None and not (options or {}).get("model"):
            raise self._mismatch

    # ---- inputs and turns

    async def send(
        self,
        content: InputContent,
        *,
        id: str | None = None,
        wait: float | None = None,
        options: Mapping[str, JSON] | None = None,
        busy: str = BusyPolicy.QUEUE,
        after: str | int | None = UNSET,
    ) -> Turn:
        """Send an input, and return when its turn settles or waits for an answer from outside.

        With an `id`, sending the same input again returns the same turn, also from another process;
        other content under that id raises `KeyConflict`. `options` override those of the session,
        for this turn only. `busy` says what to do during a running turn: "queue" waits for the next
        turn (and raises `TurnWaiting` while a person is asked), "reject" raises `SessionBusy`,
        "steer" adds the input to the running turn, "fork" sends it to a fork made at the last
        settled turn; the result then names the fork.

        With `after`, the input is accepted only if the conversation has not moved on: its leaf is
        this node (None: it is empty), or the session is at this `revision`. Otherwise, and during
        a turn, raises `Outdated`.
        """
        check_seconds_arg("wait", wait)
        said = self._kept(content)
        policy = parse_busy_policy(busy)
        if id is not None and await self._was_said(id, said):
            return await self.turn(id, wait=wait)
        input_id = id or _new()
        if after is not UNSET:
            if policy is not BusyPolicy.QUEUE:
                raise BadArguments("send", "after= and busy= exclude each other")
            await self._say_after(after, input_id, said, self._more(content, options))
            return await self._ended(input_id, self._reading, wait, said=True)
        if (
            policy is BusyPolicy.FORK
            and id is not None
            and (fork := await self._fork_of(input_id)) is not None
        ):
            return await fork.send(content, id=input_id, wait=wait, options=options)
        more = self._more(content, options)
        read = self._tail if id is None and not self._reading.begun else self._reading
        if await self._say(input_id, said, more, read):
            turn = await self._ended(input_id, read, wait, said=True)
        elif policy is BusyPolicy.FORK:
            fork = await self._engine.shielded.run(self._say_to_fork(input_id, said, more))
            return await fork.send(content, id=input_id, wait=wait, options=options)
        else:
            await self._say_meanwhile(policy, input_id, said, more)
            turn = await self._ended(input_id, read, wait, queued=policy is BusyPolicy.QUEUE)
        self._same(input_id, said)  # another process may have used the id first
        return turn

    async def stream(
        self, content: InputContent, *, id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send an input, and yield events until its turn settles or waits for an answer."""
        said = self._kept(content)
        watch = self._watch()
        await watch.here()
        input_id = id or _new()
        known_before = id is not None and await self._was_said(id, said)
        more = self._more(content, None)
        if not known_before and not await self._say(input_id, said, more):
            await self._say_meanwhile(BusyPolicy.QUEUE, input_id, said, more)
            await self._entered(input_id)
        if id is not None:
            await self._reading.refresh()
            known = self._reading.settled(input_id)
            if known is not None and self._reading.steps[known.turn] < watch.at:
                self._same(input_id, said)
                receipt = copy_receipt(known)
                yield Event(EventKind.SETTLED, watch.cursor, turn=known.turn, settled=receipt)
                return
        async with aclosing(self._until(input_id, watch.further())) as events:
            async for event in events:
                yield event

    async def follow(self, input_id: str, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield events of an input's turn, after a cursor, until it settles or waits for an
        answer.
        """
        async with aclosing(self._until(input_id, self.events(cursor))) as events:
            async for event in events:
                yield event

    async def _until(
        self, input_id: str, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(stream_until_question(self._engine, self.id, events)) as open_events:
            async for event in open_events:
                yield event
                settled = event.settled
                inputs = () if settled is None else (settled.input, *settled.taken)
                if event.kind is EventKind.SETTLED and input_id in inputs:
                    return
                if event.kind in (EventKind.ASKED, EventKind.MODEL_ASKED):
                    waiting = select_open_questions(await self._engine.status(self.id))
                    if any(query.id == event.query for query in waiting):
                        return

    async def turn(self, input_id: str, *, wait: float | None = None) -> Turn:
        """Wait until an input's turn settles or waits for an answer from outside."""
        return await self._ended(input_id, self._reading, check_seconds_arg("wait", wait))

    async def _ended(
        self,
        input_id: str,
        read: ConversationReader | TurnReader,
        wait: float | None,
        *,
        queued: bool = False,
        said: bool = False,
    ) -> Turn:
        """The turn of an input, once it has settled or waits for an answer from outside.

        With `said`, the input was sent just now: the store is not read while this process runs the
        turn. Raises `InputEnded` for an input that was taken back before it entered.
        """
        loop = asyncio.get_running_loop()
        deadline = None if wait is None else loop.time() + wait
        if said and is_worked_on_here(self._engine, self.id):
            await self._engine.sessions.next_change(
                self.id, CHILD_POLL_SECONDS if wait is None else min(wait, CHILD_POLL_SECONDS)
            )
        while True:
            with ChangeWaiter(self._engine) as changes:
                changes.watch(self.id)
                await read.refresh()
                settled = read.settled(input_id)
                if settled is not None:
                    receipt = copy_receipt(settled)
                    return Turn(self.id, settled.input, receipt, text=read.words(input_id))
                open_now, look = await self._asked(input_id, read, queued, said, changes)
                left = None if deadline is None else deadline - loop.time()
                if open_now or (left is not None and left <= 0):
                    return Turn(self.id, input_id, None, open_now)
                await changes.wait(
                    left if look is None else look if left is None else min(look, left)
                )

    async def _asked(
        self,
        input_id: str,
        read: ConversationReader | TurnReader,
        queued: bool,
        said: bool,
        changes: ChangeWaiter,
    ) -> tuple[tuple[OpenQuery, ...], float | None]:
        """The open questions of a turn, and the seconds after which to read again without a
        notification.
        """
        if said and is_worked_on_here(self._engine, self.id, read.revision):
            return (), CHILD_POLL_SECONDS
        status = await self._engine.status(self.id)
        if isinstance(status, Finished):
            raise SessionEnded(self.id, status.state, "sent input")
        if queued or (isinstance(read, ConversationReader) and read.input(input_id) is None):
            await require_not_ended(self._engine, self.id, input_id)
        open_now = select_open_questions(status)
        if open_now or not isinstance(status, Paused):
            return open_now, None
        # it waits for a child session, or only for a moment
        return await find_questions_below(self._engine, self.id, changes.watch), CHILD_POLL_SECONDS

    async def steer(self, content: InputContent, *, id: str | None = None) -> str:
        """Add an input to the running turn; the model gets it in its next round. Returns the id of
        the input.
        """
        _check_id(id)
        input_id = id or _new()
        said = compact_blocks(self._kept(content))
        more = self._more(content, None)
        await self._command({"do": "steer", "id": input_id, "content": said, **more})
        return input_id

    async def cancel_turn(self, reason: str = "") -> Turn | None:
        """Cancel the running turn, if there is one. Its messages stay, and the conversation
        continues.
        """
        told = await self._told()
        number = len(told.turns) + 1
        if told.graph.tip == told.graph.leaf:
            return None
        await self._command({"do": "cancel", "turn": number, "reason": reason})
        while True:
            with self._engine.sessions.watched(self.id) as change:
                turns = (await self._told()).turns
                if len(turns) >= number:
                    settled = copy_receipt(turns[number - 1])
                    return Turn(
                        self.id, settled.input, settled, text=self._reading.words(settled.input)
                    )
                head = self._reading.head
                if head is not None and head.ended:
                    raise SessionEnded(self.id, head.state, "sent input")
                await asyncio.wait([change], timeout=1.0)

    async def branch(self, to: str | None) -> None:
        """Continue from an earlier node, or (None) from an empty conversation. Nothing is deleted.
        Refused during a turn.
        """
        graph = (await self._told()).graph
        if to is not None:
            await self._reading.node(to)
        await self._refuse_while_asked()
        if graph.tip == graph.leaf:
            await self._command({"do": "branch", "to": to})
            graph = (await self._told()).graph
        if graph.tip != graph.leaf:
            raise BadArguments("branch", "a turn is running; wait until it settles, or cancel it")

    async def fork(
        self, at: int | None = None, *, key: str | None = None, again: bool = False
    ) -> AgentSession:
        """A new conversation that shares this one up to turn `at` (by default, the last turn).

        The `key` of a deleted session raises `KeyDeleted`, unless `again` allows a new session.
        """
        await self._reading.refresh()
        count = len(self._reading.told.turns)
        if at is not None and (type(at) is not int or not 0 <= at <= count):
            raise BadArguments("fork", f"there is no turn {at}; {count} turns have settled")
        graph = self._reading.told.graph
        step = (
            None
            if at is None and graph.tip == graph.leaf
            else self._reading.steps[count if at is None else at]
        )
        share = step if step is None else max(step, 0)
        status = await self._fork(self.id, at=share, key=key, wait=0, again=again)
        share_tools(self.id, status.session_id)
        return self._sibling(status.session_id)

    # ---- programs of the host

    async def execute(
        self,
        language: str,
        code: str,
        *,
        accept_finish: bool = False,
        variables: bool = True,
        id: str | None = None,
        wait: float | None = None,
    ) -> Turn:
        """Run a program in this conversation, with the agent's executor and tools, in a turn of its
        own. The model does not see it.

        Returns when the turn settles, with `CodeExecuted` as its outcome, or waits for an answer
        from outside. Raises `CodeExecutionUnavailable` if the agent has no executor for the
        language. With `accept_finish`, the program may end with `finish(value)`. With
        `variables=False`, it neither sees nor changes the variables of other programs. With an
        `id`, the same program again is the same turn.
        """
        check_seconds_arg("wait", wait)
        said = self._program(language, code, accept_finish, variables)
        _check_id(id)
        input_id = id or _new()
        if id is None or not await self._was_executed(id, said):
            _refuse_while_waiting(await find_all_questions(self._engine, self.id))
            await self._command({**said, "id": input_id})
        turn = await self.turn(input_id, wait=wait)
        await self._was_executed(input_id, said)  # another process may have used the id first
        return turn

    async def stream_execution(
        self,
        language: str,
        code: str,
        *,
        accept_finish: bool = False,
        variables: bool = True,
    ) -> AsyncGenerator[Event, None]:
        """Run a program like `execute`, and yield events until its turn settles or waits for an
        answer. What it prints comes as `output` events.
        """
        said = self._program(language, code, accept_finish, variables)
        _refuse_while_waiting(await find_all_questions(self._engine, self.id))
        watch = self._watch()
        await watch.here()
        input_id = _new()
        await self._command({**said, "id": input_id})
        async with aclosing(self._until(input_id, watch.further())) as events:
            async for event in events:
                yield event

    def _program(
        self, language: str, code: str, accept_finish: bool, variables: bool
    ) -> dict[str, JSON]:
        """The command that runs a program; raises if nothing can run it."""
        find_executor(self.agent.executors, language)
        if not isinstance(code, str) or not code.strip():
            raise BadArguments("execute", "code must be text that is not blank")
        require_input_fits(code, self._engine.max_input)
        said: dict[str, JSON] = {"do": "execute", "language": language, "code": to_plain(code)}
        if accept_finish:
            said["accept_finish"] = True
        if not variables:
            said["variables"] = False
        return said

    async def _was_executed(self, input_id: str, said: dict[str, JSON]) -> bool:
        """Whether a program of this id runs or has run; raises `KeyConflict` for another one."""
        graph = (await self._told()).graph
        self._refuse_input_id(input_id)
        known: Any = {"id": input_id, "language": said["language"], "code": said["code"]}
        for node in graph.nodes.values():
            content: Any = node.content
            if node.kind is NodeKind.CODE and content.get("id") == input_id:
                if content != known:
                    raise KeyConflict(input_id, self.id, "content")
                return True
        return False

    # ---- frames and their options

    async def compact(self, instructions: str = "", *, id: str | None = None) -> FrameOpened:
        """Ask the plugins for a smaller context. The result is true if one was made; else its `why`
        says why not. Earlier frames stay readable.
        """
        turn = await self._run_command({"do": "compact", "instructions": instructions}, id)
        if isinstance(turn.outcome, FrameOpened):
            return turn.outcome
        why = getattr(turn.outcome, "error", "") or getattr(turn.outcome, "reason", "")
        return FrameOpened("compaction", None, why or "the command was stopped")

    async def reset(self, *, id: str | None = None) -> Turn:
        """Start a new, empty frame. History, usage and options stay; the state of plugins is
        reset.
        """
        return await self._run_command({"do": "reset"}, id)

    async def continue_as(
        self,
        frame: str,
        messages: str | Mapping[str, JSON] | Sequence[JSON] = (),
        *,
        id: str | None = None,
    ) -> Turn:
        """Continue in a new frame of this name that begins with these messages: a text, a message
        or several of them. The current frame is unchanged.
        """
        if not isinstance(frame, str):
            raise BadArguments("frame", f"the name of a frame must be text, got {frame!r:.100}")
        if not isinstance(messages, str | Mapping | Iterable):
            raise BadArguments("messages", f"{messages!r:.100} is no message or list of messages")
        given = messages if isinstance(messages, str | Mapping) else list(messages)
        seed: list[JSON] = [*normalize_messages(to_plain(given, "messages"))]
        return await self._run_command({"do": "continue_as", "frame": frame, "messages": seed}, id)

    async def configure(
        self, options: Mapping[str, JSON], *, everywhere: bool = False, id: str | None = None
    ) -> dict[str, JSON]:
        """Set options of the current frame, or of all frames, by name; None removes an option.
        Returns all options.

        The options are `model`, `max_tokens`, `max_turns`, `prompt`, `tools`, `environment`,
        `on_unavailable`, and the settings of `everhold.models.ModelSettings`. Another name raises
        `BadArguments`.
        """
        wanted = self._options(options)
        said: dict[str, JSON] = {"do": "configure", "options": wanted}
        turn = await self._run_command({**said, "everywhere": True} if everywhere else said, id)
        held = dict(getattr(turn.outcome, "options", {}))
        if held.get("model"):
            self._mismatch = None  # the caller allows another provider
        return held

    # ---- tools

    async def change_tools(
        self,
        *,
        add: Sequence[ToolLike] = (),
        replace: Sequence[ToolLike] = (),
        remove: Sequence[str] = (),
        hide: Sequence[str] = (),
        restore: Sequence[str] = (),
        generation: int | None = None,
        id: str | None = None,
    ) -> ToolsView:
        """Change the tools of this conversation, between turns and until they are changed again:
        all of it or nothing. Returns the tools.

        A tool is an object made by `@tool`, its reference "module:name", or the name of a tool of
        the agent. `restore` shows a tool again as its source has it: it undoes `hide`, `remove` and
        `replace`.

        With the `generation` that the caller saw, a change made meanwhile raises `StaleTools`. With
        an `id`, the same call again is the same change.
        """
        new = describe_tools(add, self._declared)
        other = describe_tools(replace, self._declared)
        change = ToolChange(
            tuple(one for one, _ in new),
            tuple(one for one, _ in other),
            _check_names("remove", remove),
            _check_names("hide", hide),
            _check_names("restore", restore),
        )
        if generation is not None and type(generation) is not int:
            raise BadArguments("tools", f"generation must be a number, got {generation!r:.100}")
        _check_id(id)
        made = id is not None and (await self._told()).settled(id) is not None
        if not made:
            await self._try_change(change, generation)
            _refuse_while_waiting(await find_all_questions(self._engine, self.id))
        for added, tool in (*new, *other):
            if not added.ref:
                provide_tool(self.id, tool, again=not made)
        said: dict[str, JSON] = {"do": "change_tools", "change": encode_tools(change)}
        turn = await self._run_command(
            said if generation is None else {**said, "generation": generation}, id
        )
        if isinstance(turn.outcome, TurnFailed):  # another change was made meanwhile
            await self._try_change(change, generation)
            raise BadArguments("tools", turn.outcome.error)
        left = {one.name for one in read_registry((await self._told()).tools, self.agent).added}
        withdraw_tools(self.id, {*change.remove, *change.restore} - left)
        return await self.tools()

    async def _try_change(self, change: ToolChange, generation: int | None) -> None:
        """Raise what a change of the tools would fail with now."""
        known = ToolRegistry()
        known.adopt(read_registry((await self._told()).tools, self.agent))
        known.change(change, generation)

    async def provide_tools(self, *tools: Tool | Callable[..., Any]) -> None:
        """Provide the code of tools that were added by another process without a reference, for as
        long as this process lives. The next turn offers them.
        """
        for _, tool in describe_tools(tools, ()):
            provide_tool(self.id, tool)

    def plugin(self, name: str) -> PluginHandle:
        """One plugin of the conversation, for the operations that it declares; raises
        `UnknownOperation`.
        """
        return PluginHandle(
            self.agent,
            name,
            self.id,
            self._reading,
            self._engine.store,
            self._engine.clock.now,
            self._operate,
        )

    async def _operate(
        self, plugin: str, operation: str, given: dict[str, JSON], id: str | None
    ) -> TurnOutcome | None:
        said: dict[str, JSON] = {"do": "operate", "plugin": plugin, "operation": operation}
        return (await self._run_command({**said, "input": given}, id)).outcome

    # ---- queued input

    async def enqueue(
        self,
        content: InputContent,
        *,
        key: str | None = None,
        at: str = NEXT_TURN,
        alone: bool = False,
        options: Mapping[str, JSON] | None = None,
        available_at: float = 0.0,
    ) -> Receipt:
        """Queue an input for the next turn, or for a checkpoint of the running one. Returns when it
        is stored.

        `at` is "next", "after_work" (the next checkpoint) or "before_completion" (the last one); an
        input that misses its turn enters the next one. Queued inputs are joined into one turn,
        except those with `alone`. The same key with the same content returns the first receipt;
        other content is a conflict.
        """
        self._refuse_provider(options)
        said = compact_blocks(self._kept(content))
        given = self._more(content, options)
        body: dict[str, JSON] = {"content": said, **given}
        input_id = check_input_key(key) or f"i-{secrets.token_hex(8)}"
        boundary = parse_boundary(at)
        if key is not None or boundary is not None:
            await self._reading.refresh()
        heard = None if key is None else self._reading.input(input_id)
        if heard is not None:
            require_same_input(self.id, input_id, heard, said)
            return Receipt(
                IntakeItem(input_id, ItemKind.INPUT, body, key, state=ItemState.COMPLETED), False
            )
        more: dict[str, Any] = {}
        if boundary is not None:
            more = {"turn": self._reading.under_way, "boundary": boundary}
        slot = MergePolicy.ALONE if alone or "role" in given else MergePolicy.JOIN
        item = IntakeItem(
            input_id,
            ItemKind.INPUT,
            body,
            key,
            slot=slot,
            available_at=check_moment(available_at),
            **more,
        )
        return await enqueue_item(self._engine, self.id, item)

    # ---- as data

    async def envelope(self) -> EnvelopeSession:
        """The conversation as a session of fluers: `everhold.stores.pack` encodes it, and
        `runtime.envelopes.export` writes it. Its `left_out` says what an envelope cannot carry.
        """
        record = await self._engine.store.load(self.id)
        return await read_conversation(self._engine, record, self.agent)

    async def apply(
        self, state: Stored, *, id: str | None = None, by: Mapping[str, JSON] | None = None
    ) -> Turn | None:
        """Move to the state of a stored conversation, with its options. The shared beginning stays;
        the rest is added as a branch.

        Nothing is deleted, and usage stays. Returns the receipt, or None if the conversation is in
        that state already. With an `id`, the same call again is the same turn, also concurrently.

        A `Stored` can be written by hand. So the receipt says who applied it (`by`), and whether
        this store has the conversation that it names, with the same nodes (`verified`).
        """
        _check_id(id)
        told = await self._told()
        graph = told.graph
        to, nodes = plan_apply(graph.path(graph.leaf), state)
        wanted = None if state.frame_options is None else [*map(check_options, state.frame_options)]
        tools = read_registry(told.tools, self.agent)
        same_tools = not state.tools.generation or (
            (tools.entries, tools.added) == (state.tools.entries, state.tools.added)
        )
        same_options = wanted in (None, list_frame_options(told))
        if not nodes and to == graph.leaf and same_options and same_tools:
            return None
        await self._refuse_while_asked()
        input_id = id or _new()
        said: dict[str, JSON] = {
            "do": "apply",
            "id": input_id,
            "to": to,
            "nodes": [msgspec.to_builtins(node) for node in nodes],
            "source": state.session_id,
            "verified": await self._has_stored(state),
        }
        if wanted is not None:
            said["options"] = wanted
        if state.tools.generation:
            said["tools"] = encode_tools(state.tools)
        if (applied_by := parse_by_arg(by)) is not None:
            said["by"] = applied_by
        await self._command(said)
        return await self.turn(input_id)

    async def _has_stored(self, state: Stored) -> bool:
        """Whether this store has the conversation of a stored state, with the same nodes."""
        try:
            record = await self._engine.store.load(state.session_id)
        except UnknownSession:
            return False
        return has_path(Conversation(record.deliveries), state.path())

    # ---- internals

    @property
    def _declared(self) -> list[Tool]:
        """The tools that the agent declares."""
        return [*self.agent.tools, *self.agent.extra_tools]

    def _options(self, options: Mapping[str, JSON]) -> dict[str, JSON]:
        """Options as they are stored. Tools in the option `tools` are described. Raises for a model
        that may not be asked here.
        """
        given = dict(options)
        if "tools" in given:
            given["tools"] = describe_option(given["tools"], self._declared, self.id)
        found = check_options(given)
        refuse_unknown_options(found)
        if found.get("model"):
            self._engine.policy.check_model(str(found["model"]))
        return found

    @property
    def _known_agent(self) -> Agent:
        return self.agent

    def _sibling(self, session_id: str) -> AgentSession:
        """A handle of another conversation with the same agent."""
        sibling = AgentSession(
            self._engine,
            self._buffers,
            self._fork,
            self.agent,
            session_id,
            self._reading.residency,
        )
        sibling._mismatch = self._mismatch
        return sibling

    async def _run_command(self, said: dict[str, JSON], given_id: str | None) -> Turn:
        """Send a command and wait until it has run. Refused while the turn waits for an answer: the
        command could never run.
        """
        _check_id(given_id)
        input_id = given_id or _new()
        if given_id is not None:
            await self._reading.refresh()
            self._refuse_input_id(given_id)
            if self._reading.settled(given_id) is not None:  # it has run; a later turn may wait
                return await self.turn(given_id)
        _refuse_while_waiting(await find_all_questions(self._engine, self.id))
        await self._command({**said, "id": input_id})
        turn = await self.turn(input_id)
        _refuse_while_waiting(turn.queries)
        return turn

    def _refuse_input_id(self, command_id: str) -> None:
        """Raise `KeyConflict` if the id of a command is that of an input."""
        if self._reading.input(command_id) is not None:
            raise KeyConflict(command_id, self.id, "content")

    def _kept(self, content: InputContent) -> list[JSON]:
        """The content as it is stored, after `before_store`."""
        return list(kept(self.agent.plugins, _said(content)))

    def _more(self, content: InputContent, options: Mapping[str, JSON] | None) -> dict[str, JSON]:
        """What is sent beside the content: options of the turn, and a role other than the
        user's.
        """
        found: dict[str, JSON] = {"options": self._options(options)} if options else {}
        if isinstance(content, Message) and content.role is not Role.USER:
            if content.role not in INJECTED_ROLES:
                raise BadArguments(
                    "send",
                    f"a message with the role {content.role} cannot be sent; the roles are"
                    f" {', '.join(INJECTED_ROLES)}",
                )
            found["role"] = str(content.role)
        return found

    async def _was_said(self, input_id: str, said: list[JSON]) -> bool:
        """Whether an input of this id was sent before, directly or queued; raises if its content
        differs.
        """
        if not input_id:
            raise BadArguments("send", "id must not be empty")
        _check_id(input_id)
        await self._reading.refresh()
        if self._reading.input(input_id) is None:
            return await has_same_input(self._engine, self.id, input_id, compact_blocks(said))
        self._same(input_id, said)
        return True

    async def _say(
        self,
        input_id: str,
        said: list[JSON],
        more: dict[str, JSON],
        read: ConversationReader | TurnReader | None = None,
    ) -> bool:
        """Hand an input to the program; returns False during a running turn, or if other inputs are
        queued.
        """
        self._refuse_provider(more.get("options"))
        if isinstance(read, TurnReader):
            await read.expect(input_id)
        return await self._engine.hand(
            self.id, {"id": input_id, "content": compact_blocks(said), **more}
        )

    async def _say_after(
        self,
        after: str | int | None,
        input_id: str,
        said: list[JSON],
        more: dict[str, JSON],
    ) -> None:
        """Hand an input to the program if the conversation is still at a node or revision; raises
        `Outdated`.
        """
        self._refuse_provider(more.get("options"))
        body: dict[str, JSON] = {"id": input_id, "content": compact_blocks(said), **more}
        while True:
            try:
                await self._require_at(after)
            except Outdated:
                if await self._was_said(input_id, said):
                    return  # the same call, made at the same time, was quicker
                raise
            try:
                if await self._engine.hand(self.id, body, self._reading.revision):
                    return
            except Outdated:
                continue  # something was committed just now; it may not have moved the conversation
            await self._require_at(after)
            raise Outdated(f"conversation {self.id!r}", after, "input", "queued")

    async def _require_at(self, after: str | int | None) -> None:
        """Raise `Outdated` if the conversation is not at this node or revision, or runs a turn."""
        await self._reading.refresh()
        where = f"conversation {self.id!r}"
        revision = self._reading.revision
        if isinstance(after, int) and not isinstance(after, bool):
            if revision != after:
                raise Outdated(where, after, revision)
        elif after is not None and not isinstance(after, str):
            raise BadArguments("send", f"after={after!r:.100} must be a node id or a revision")
        elif (leaf := self._reading.told.graph.leaf) != after:
            raise Outdated(where, after, leaf, "node")
        if self._reading.under_way is not None:
            raise Outdated(where, after, self._reading.under_way, "the running turn")

    async def _say_meanwhile(
        self, busy: BusyPolicy, input_id: str, said: list[JSON], more: dict[str, JSON]
    ) -> None:
        """Send an input during a running turn, as `busy` says."""
        body = {"content": compact_blocks(said), **more}
        if busy is BusyPolicy.REJECT:
            raise SessionBusy(self.id)
        if busy is BusyPolicy.STEER:
            await self._command({"do": "steer", "id": input_id, **body})
        else:
            await self._refuse_while_asked()
            await enqueue_item(
                self._engine, self.id, IntakeItem(input_id, ItemKind.INPUT, body, input_id)
            )

    async def _say_to_fork(
        self, input_id: str, said: list[JSON], more: dict[str, JSON]
    ) -> AgentSession:
        """Fork the conversation for an input, and send it there, unless that was done before."""
        try:
            fork = await self.fork(key=self._fork_key(input_id))
        except KeyConflict as conflict:  # the same input was sent twice at the same time
            fork = self._sibling(conflict.session_id)
        if not await fork._was_said(input_id, said) and not await fork._say(input_id, said, more):
            await fork._say_meanwhile(BusyPolicy.QUEUE, input_id, said, more)
        return fork

    async def _entered(self, input_id: str) -> None:
        """Wait until an input has left the intake, or an answer from outside is needed before
        that.
        """
        while True:
            with self._engine.sessions.watched(self.id) as change:
                await self._reading.refresh()
                if self._reading.input(input_id) is not None or await find_all_questions(
                    self._engine, self.id
                ):
                    return
                await require_not_ended(self._engine, self.id, input_id)
                await asyncio.wait([change], timeout=CHILD_POLL_SECONDS)

    def _fork_key(self, input_id: str) -> str:
        return f"{self.id}/{input_id}"

    async def _fork_of(self, input_id: str) -> AgentSession | None:
        """The fork that was made for an input, or None."""
        found = await self._engine.store.find(self._fork_key(input_id))
        return None if found is None else self._sibling(found)

    def _same(self, input_id: str, said: list[JSON]) -> None:
        """Raise `KeyConflict` if the input of this id has other content."""
        first = self._reading.input(input_id)
        if first is not None and not is_same_json(to_blocks(first), said):
            raise KeyConflict(input_id, self.id, "content")

    async def _refuse_while_asked(self) -> None:
        people = [
            query
            for query in await find_all_questions(self._engine, self.id)
            if query.kind in FOR_PEOPLE
        ]
        if people:
            raise TurnWaiting(people[0].session_id, people[0].id, people[0].kind)


def _refuse_while_waiting(queries: Sequence[OpenQuery]) -> None:
    if queries:
        first = queries[0]
        told = () if first.blocked is None else (first.blocked.message, first.blocked.hint)
        raise TurnWaiting(first.session_id, first.id, first.kind, *told)


def _check_names(what: str, given: Sequence[str]) -> tuple[str, ...]:
    if (
        isinstance(given, str)
        or not isinstance(given, Iterable)
        or not all(isinstance(one, str) for one in given)
    ):
        raise BadArguments("tools", f"{what} must be a list of names, got {given!r:.100}")
    return tuple(given)


def _check_id(id: Any) -> None:
    if id is not None and (not isinstance(id, str) or not id.strip()):
        raise BadArguments("id", f"an id must be text that is not blank, got {id!r:.100}")


def _new() -> str:
    return f"i-{secrets.token_hex(8)}"


def _said(content: InputContent) -> list[JSON]:
    """The content of an input, as blocks."""
    if isinstance(content, Message):
        parts: list[JSON] = encode_message(content).get("content", [])
    elif not isinstance(content, Sequence):
        raise BadArguments(
            "send", f"content must be text, blocks or a message, got {content!r:.100}"
        )
    else:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    found: list[JSON] = to_plain(parts, "the input")
    if not all(map(_is_part, found)):
        raise BadArguments(
            "send", "each block must be an object with a type, such as {'type': 'text', 'text': …}"
        )
    if not found or (
        len(found) == 1 and not extract_text(found) and found[0].get("type") == "text"
    ):
        raise BadArguments("send", "content must not be empty")
    return found


def _is_part(part: JSON) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] != "text" or isinstance(part.get("text"), str)
