"""One turn of an agent: the model, its tools, the model again, until the turn settles; plugins
decide in between.

| event | outcome |
|---|---|
| the model calls no more tools | `answered`, with a value if the agent returns one |
| a plugin (`Finish`) or a program of the model (`finish`) ends the turn | `answered`, with its value |
| the model still calls tools after its last round and the extra round | `max_turns` |
| a program that the host runs has ended, also with an error | `executed` |
| a caller cancels the turn | `cancelled` |
| a plugin stops it (`Abort`) | `aborted` |
| a model call fails, the reply is empty or never fits; a plugin fails; a budget is used up | `failed` |

Rules
  1. There is a checkpoint after the tools of each round, and one before the turn ends. Inputs that
     arrive during the turn are added there, once; inputs after the last checkpoint start the next
     turn.
  2. A reply that does not fit the agent's return type is sent back, at most twice.
"""  # noqa: E501

from __future__ import annotations

from typing import Any, Final

from everhold.agents import frames
from everhold.agents.builtin_tools import AgentToolCall
from everhold.agents.code_tool import CodeRun, find_executor
from everhold.agents.loop_state import LoopState, get_input_role
from everhold.agents.model_calls import ModelReply, describe_return_format, parse_model_reply
from everhold.core.codec import JSON, dumps, to_plain
from everhold.core.graph import ModelView, Node, NodeKind
from everhold.core.message import Role, ToolUse
from everhold.core.schema import PositiveInt, describe_misfit, parse_answer, schema_of
from everhold.core.tool import Confirm, Deny, make_call_key
from everhold.core.turn import (
    CodeExecuted,
    MaxTurnsReached,
    TurnAborted,
    TurnAnswered,
    TurnFailed,
    TurnOutcome,
)
from everhold.errors import AnswerRefused, BadArguments
from everhold.hooks import (
    Abort,
    AddMessages,
    Compact,
    ContinueAs,
    Contribute,
    Finish,
    ReplaceInput,
    ReplaceResult,
    SetOptions,
    Show,
)
from everhold.hooks import Reply as Replied

#: How often a reply that does not fit is sent back.
MAX_REPAIRS: Final = 2
#: Inputs with this boundary are added only before the turn ends.
LAST_CHECKPOINT: Final = "before_completion"
LAST_ROUND_NOTE: Final = (
    "This turn has no rounds left. Answer now with what you know, and call no more tools."
)


class StopTurn(Exception):
    """Ends the turn with this outcome."""

    def __init__(self, outcome: TurnOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class TurnRunner:
    """Runs the rounds of one turn."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self._repaired = 0

    async def run(self) -> TurnOutcome:
        """Run rounds until there is an outcome; raises `StopTurn` if a plugin ends the turn."""
        loop = self.loop
        await self._begin()
        most = _most(loop.effective, loop.most)
        while True:
            loop.rounds += 1
            grace = loop.rounds > most
            reply = await self._ask(grace)
            if not reply.calls:
                if not grace and await self.checkpoint(completing=True):
                    continue
                outcome = self._ended(reply, grace)
                if outcome is not None:
                    return outcome
            elif grace:
                loop.give_up("the tool was not called; this turn has no rounds left")
                return MaxTurnsReached(most)
            else:
                await self._work(reply.calls)
                if loop.toolbox.failed is not None:
                    return loop.toolbox.failed
                if loop.toolbox.finish:
                    return self._finished(loop.toolbox.finish[0])
                await self.checkpoint()

    async def execute(self, given: dict[str, JSON]) -> TurnOutcome:
        """Run a program of the host, with the tools that the model has."""
        loop = self.loop
        box = loop.toolbox
        code = {name: given.get(name) for name in ("id", "language", "code")}
        loop.add(Node("", None, NodeKind.CODE, content=code))
        await loop.open()
        await loop.refresh()
        box.offer.access(loop.effective.get("tools"), loop.plugged.fingerprint)
        box.before = self._before
        box.after = self._shown
        box.begin_round()
        box.failed, box.finish = None, []
        call = f"execute-{loop.turn}"
        run = CodeRun(
            box,
            find_executor(loop.agent.executors, str(given.get("language"))),
            str(given.get("code")),
            call,
            make_call_key(loop.ctx.session_id, loop.turn, call),
            accept_finish=given.get("accept_finish") is True,
            variables=given.get("variables") is not False,
        )
        ended = await run.run()
        if box.failed is not None:
            return box.failed
        finished = bool(ended.finish) and ended.error is None
        return CodeExecuted(
            run.language,
            ended.finish[0] if finished else ended.value,
            "\n".join(run.printed),
            ended.error,
            finished,
        )

    async def _begin(self) -> None:
        """Refresh the tools and ask the plugins, before the first model call."""
        loop = self.loop
        await loop.open()
        await loop.refresh()
        decided = await loop.decide("before_turn")
        loop.land()
        for plugin, _, one in decided:
            match one:
                case SetOptions():
                    loop.turn_options = {**loop.turn_options, **one.options}
                case Contribute():
                    loop.contributions.append(one)
                case _:
                    await self._act(plugin, one)
        await loop.learn_events()

    async def checkpoint(self, *, completing: bool = False) -> bool:
        """Add pending inputs and ask the plugins. Returns whether the model has something new to
        read.
        """
        loop = self.loop
        heard = loop.land()
        now = [
            one for one in loop.waiting if completing or one[1].get("boundary") != LAST_CHECKPOINT
        ]
        loop.waiting = [one for one in loop.waiting if one not in now]
        for q, said in now:
            loop.taken.append(str(said["id"]))
            loop.say(get_input_role(said), q, said)
            heard = True
        decided = await loop.decide("before_checkpoint", completing=completing)
        heard = loop.land() or heard
        for plugin, _, one in decided:
            heard = await self._act(plugin, one) or heard
        return heard

    async def _act(self, plugin: str, directive: Any) -> bool:
        """Carry out a directive. Returns whether the model has something new to read."""
        loop = self.loop
        match directive:
            case Abort(reason=reason):
                raise StopTurn(TurnAborted(plugin, reason))
            case Finish(value=value):
                raise StopTurn(self._valued(value, plugin))
            case AddMessages(messages=messages):
                frames.add_messages(loop, messages)
                return bool(messages)
            case Compact():
                await frames.compact_frame(loop)
            case ContinueAs():
                return frames.continue_in_frame(loop, directive)
        return False

    # ---- the model

    async def _ask(self, grace: bool) -> ModelReply:
        """Ask the model, or the plugin that replies for it, and add the reply to the
        conversation.
        """
        loop = self.loop
        prompt = loop.models.told()
        skip = 0
        extra = [frames.normalize_message(LAST_ROUND_NOTE)] if grace else []
        more = {}
        for plugin, _, one in await loop.decide("before_model_call"):
            match one:
                case Abort(reason=reason):
                    raise StopTurn(TurnAborted(plugin, reason))
                case Replied(content=content):
                    return self._said(None, content)
                case Show():
                    skip = max(skip, one.skip)
                    extra = [*extra, *(frames.normalize_message(each) for each in one.extra)]
                case SetOptions():
                    more.update(one.options)
        prompt = loop.models.told_for(more, prompt)
        view = ModelView(
            loop.tip, prompt, min(skip, len(loop.graph.messages())) if skip else 0, extra
        )
        q, said = await loop.models.ask(view, {**loop.effective, **more})
        loop.tell("after_model_call", loop.ctx.cost)
        return self._said(q, said)

    def _said(self, q: int | None, said: JSON) -> ModelReply:
        loop = self.loop
        reply = parse_model_reply(said, f"{loop.turn}.{loop.ordinal}")
        whole = reply.blocks is None
        loop.toolbox.begin_round()
        loop.say(Role.ASSISTANT, q if whole else None, said if whole else reply.blocks)
        return reply

    def _ended(self, reply: ModelReply, grace: bool) -> TurnOutcome | None:
        """The outcome, or None if the reply goes back to the model for correction."""
        recorded = self.loop.ctx.recorded()
        if recorded is None:
            outcome, words = self._judged(reply, grace)
        else:  # on replay the recorded outcome holds, even if the return type has changed
            outcome = None if recorded.settled is None else recorded.settled.outcome
            words = ""
        if outcome is None:
            self._repaired += 1
            self.loop.say(Role.USER, None, words)
        return outcome

    def _judged(self, reply: ModelReply, grace: bool) -> tuple[TurnOutcome | None, str]:
        """The outcome, or the message to the model about a reply that does not fit."""
        returns = self.loop.agent.returns
        if returns is None:
            return TurnAnswered(), ""
        try:
            return TurnAnswered(parse_answer(_bare(reply.text), schema_of(returns))), ""
        except AnswerRefused as error:
            wrong = f"{error.path} should be {error.expected}, got {error.got}"
        if grace or self._repaired == MAX_REPAIRS:
            return TurnFailed(f"the model's reply does not fit: {wrong}", AnswerRefused.code), ""
        return None, f"Your answer does not fit: {wrong}. {describe_return_format(returns)}"

    def _finished(self, value: JSON) -> TurnOutcome:
        """A tool ended the turn; its value takes the place of the model's last message."""
        outcome = self._valued(value, "a tool")
        self.loop.land()
        if isinstance(outcome, TurnAnswered):
            self.loop.say(
                Role.ASSISTANT, None, value if isinstance(value, str) and value else dumps(value)
            )
        return outcome

    def _valued(self, value: JSON, who: str) -> TurnOutcome:
        """The outcome for a value that a plugin or tool finished with. The value must fit the
        agent's return type.
        """
        recorded = self.loop.ctx.recorded()
        returns = self.loop.agent.returns
        # on replay the recorded outcome holds, even if the return type has changed
        if recorded is not None and recorded.settled is not None:
            return recorded.settled.outcome
        try:
            return TurnAnswered(
                value if returns is None else parse_answer(value, schema_of(returns))
            )
        except AnswerRefused as error:
            return TurnFailed(f"{who} finished with a value that does not fit: {error}", error.code)

    # ---- tools

    async def _work(self, calls: list[AgentToolCall]) -> None:
        """Call the tools, as far as plugins allow, and add the results to the conversation."""
        loop = self.loop
        loop.toolbox.before = self._before
        loop.toolbox.after = self._shown
        done = await loop.toolbox.run(calls)
        await loop.toolbox.effects.wait_sent()
        loop.say(Role.TOOL, None, [done[call.id] for call in calls])

    async def _before(
        self, wanted: dict[str, AgentToolCall], done: dict[str, JSON], inner: bool
    ) -> None:
        """Let plugins decide about calls before they run."""
        if "before_tool_call" not in self.loop.hooks:
            return
        given = [(call.id, (self._use(call),)) for call in wanted.values()]
        box = self.loop.toolbox
        for plugin, about, one in await self.loop.decide(
            "before_tool_call", given, in_program=inner
        ):
            call = wanted[about]
            match one:
                case Abort(reason=reason):
                    raise StopTurn(TurnAborted(plugin, reason))
                case Deny(reason=reason):
                    done[about] = call.result(
                        f"Error: denied by {plugin}: {reason}".strip(": "), error=True
                    )
                case ReplaceInput(input=changed):
                    wanted[about] = AgentToolCall(call.id, call.name, changed)
                case Confirm():
                    box.confirms.setdefault(about, []).append(one)
                case Replied(content=content) if about in box.confirms:
                    box.replies[about] = content
                case Replied(content=content):
                    done[about] = call.result(content)

    async def _shown(
        self, wanted: dict[str, AgentToolCall], done: dict[str, JSON], inner: bool
    ) -> None:
        """Notify plugins of results, and let them change what the model sees."""
        loop = self.loop
        decides = "before_result" in loop.hooks and (loop.inner_results or not inner)
        if not decides and "after_tool_call" not in loop.plugged.hooks:
            return
        given = [
            (call.id, (self._use(call), self._content(done[call.id]))) for call in wanted.values()
        ]
        for _, (use, content) in given:
            loop.tell(
                "after_tool_call", ToolUse(use.id, use.name, to_plain(use.input)), to_plain(content)
            )
        for plugin, about, one in (
            await loop.decide("before_result", given, in_program=inner) if decides else ()
        ):
            if isinstance(one, Abort):
                raise StopTurn(TurnAborted(plugin, one.reason))
            if isinstance(one, ReplaceResult):
                done[about] = wanted[about].result(
                    one.content, error=bool(done[about].get("is_error"))
                )

    def _use(self, call: AgentToolCall) -> ToolUse:
        """The call, with the input that its tool would get."""
        return ToolUse(call.id, call.name, self.loop.toolbox.input_of(call))

    def _content(self, block: JSON) -> JSON:
        return self.loop.toolbox.answers[block["q"]] if "q" in block else block["content"]


def _most(options: dict[str, JSON], most: int) -> int:
    found: int = options.get("max_turns", most)
    if misfit := describe_misfit(found, PositiveInt):
        raise BadArguments("max_turns", misfit)
    return found


def _bare(words: str) -> str:
    """Text without the code fence that models often put around JSON."""
    inner = words.strip()
    if inner.startswith("```") and inner.endswith("```") and "\n" in inner:
        return inner[inner.index("\n") : -3].strip()
    return inner
