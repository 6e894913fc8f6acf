"""One turn of an agent: the model, its tools, the model again, until it settles; plugins are asked
in between.

| what happens | outcome |
|---|---|
| the model has nothing more to do | `answered`, with a value if the agent returns one |
| a plugin (`Finish`) or a program of the model's (`finish`) says that it is done | `answered`, with its value |
| it still calls tools when its rounds are used up, and in the one round of grace | `max_turns` |
| somebody cancels the turn | `cancelled` |
| a plugin stops it (`Abort`) | `aborted` |
| the model cannot be asked, says nothing, or never says what fits; a plugin fails; a budget is used up | `failed` |

Rules
  1. There is a checkpoint after the tools of a round, and one before the turn ends. What was said
     to the turn meanwhile is heard there, once; what comes after the last one is the next turn's.
  2. Words that do not fit what the agent returns are sent back, at most twice.
"""  # noqa: E501

from __future__ import annotations

from typing import Any, Final

from everhold.agents import frames
from everhold.agents.builtin_tools import AgentToolCall
from everhold.agents.loop_state import LoopState
from everhold.agents.model_calls import ModelReply, describe_return_format, parse_model_reply
from everhold.core.codec import JSON, dumps, to_plain
from everhold.core.graph import ModelView
from everhold.core.message import Role, ToolUse
from everhold.core.schema import PositiveInt, describe_misfit, parse_answer, schema_of
from everhold.core.tool import Confirm, Deny
from everhold.core.turn import MaxTurnsReached, TurnAborted, TurnAnswered, TurnFailed, TurnOutcome
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

#: How often words that do not fit are sent back.
MAX_REPAIRS: Final = 2
#: What is said with it is heard only before the turn ends.
LAST_CHECKPOINT: Final = "before_completion"
LAST_ROUND_NOTE: Final = (
    "All rounds of this turn are used up. Answer now with what you know, and call no more tools."
)


class StopTurn(Exception):
    """The turn ends here."""

    def __init__(self, outcome: TurnOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class TurnRunner:
    """The rounds of one turn."""

    def __init__(self, life: LoopState) -> None:
        self.life = life
        self._repaired = 0

    async def run(self) -> TurnOutcome:
        """Go on until there is an outcome; raises `StopTurn` where a plugin says so."""
        life = self.life
        await self._begin()
        most = _most(life.effective, life.most)
        while True:
            life.rounds += 1
            grace = life.rounds > most
            reply = await self._ask(grace)
            if not reply.calls:
                if not grace and await self.checkpoint(completing=True):
                    continue
                outcome = self._ended(reply, grace)
                if outcome is not None:
                    return outcome
            elif grace:
                life.give_up("it was not called; the rounds of this turn are used up")
                return MaxTurnsReached(most)
            else:
                await self._work(reply.calls)
                if life.toolbox.failed is not None:
                    return life.toolbox.failed
                if life.toolbox.finish:
                    return self._finished(life.toolbox.finish[0])
                await self.checkpoint()

    async def _begin(self) -> None:
        """It is asked which tools there are, and plugins have their say, before the model is
        asked.
        """
        life = self.life
        await life.open()
        await life.refresh()
        for plugin, _, one in await life.decide("before_turn"):
            match one:
                case SetOptions():
                    life.turn_options = {**life.turn_options, **one.options}
                case Contribute():
                    life.contributions.append(one)
                case _:
                    await self._act(plugin, one)

    async def checkpoint(self, *, completing: bool = False) -> bool:
        """Hear what was said meanwhile, and what plugins want; returns whether the model should
        hear of it.
        """
        life = self.life
        heard = False
        told = life.toolbox.said
        life.toolbox.said = []
        for words in told:
            life.say(Role.USER, None, words)
            heard = True
        now = [
            one for one in life.waiting if completing or one[1].get("boundary") != LAST_CHECKPOINT
        ]
        life.waiting = [one for one in life.waiting if one not in now]
        for q, said in now:
            life.taken.append(str(said["id"]))
            life.say(Role.USER, q, said)
            heard = True
        for plugin, _, one in await life.decide("before_checkpoint", completing=completing):
            heard = await self._act(plugin, one) or heard
        return heard

    async def _act(self, plugin: str, directive: Any) -> bool:
        """Do what a plugin wants; returns whether the model should hear of it."""
        life = self.life
        match directive:
            case Abort(reason=reason):
                raise StopTurn(TurnAborted(plugin, reason))
            case Finish(value=value):
                raise StopTurn(self._valued(value, plugin))
            case AddMessages(messages=messages):
                frames.add_messages(life, messages)
                return bool(messages)
            case Compact():
                await frames.compact_frame(life)
            case ContinueAs():
                return frames.continue_in_frame(life, directive)
        return False

    # ---- the model

    async def _ask(self, grace: bool) -> ModelReply:
        """Ask the model, or whoever replies for it, and take what is said into the conversation."""
        life = self.life
        prompt = life.models.told()
        skip = 0
        extra = [frames.normalize_message(LAST_ROUND_NOTE)] if grace else []
        more = {}
        for plugin, _, one in await life.decide("before_model_call"):
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
        view = ModelView(
            life.tip, prompt, min(skip, len(life.graph.messages())) if skip else 0, extra
        )
        q, said = await life.models.ask(view, {**life.effective, **more})
        life.tell("after_model_call", life.ctx.cost)
        return self._said(q, said)

    def _said(self, q: int | None, said: JSON) -> ModelReply:
        life = self.life
        reply = parse_model_reply(said, f"{life.turn}.{life.ordinal}")
        whole = reply.blocks is None
        life.toolbox.begin_round()
        life.say(Role.ASSISTANT, q if whole else None, said if whole else reply.blocks)
        return reply

    def _ended(self, reply: ModelReply, grace: bool) -> TurnOutcome | None:
        """The outcome, or None if what was said goes back to the model to be put right."""
        recorded = self.life.ctx.recorded()
        if recorded is None:
            outcome, words = self._judged(reply, grace)
        else:  # the journal knows, whatever the agent returns by now
            outcome = None if recorded.settled is None else recorded.settled.outcome
            words = ""
        if outcome is None:
            self._repaired += 1
            self.life.say(Role.USER, None, words)
        return outcome

    def _judged(self, reply: ModelReply, grace: bool) -> tuple[TurnOutcome | None, str]:
        """The outcome, or what the model is told of words that do not fit."""
        returns = self.life.agent.returns
        if returns is None:
            return TurnAnswered(), ""
        try:
            return TurnAnswered(parse_answer(_bare(reply.text), schema_of(returns))), ""
        except AnswerRefused as error:
            wrong = f"{error.path} should be {error.expected}, got {error.got}"
        if grace or self._repaired == MAX_REPAIRS:
            return TurnFailed(f"the model did not say what fits: {wrong}", AnswerRefused.code), ""
        return None, f"This does not fit: {wrong}. {describe_return_format(returns)}"

    def _finished(self, value: JSON) -> TurnOutcome:
        """A tool ended the turn, with a value in the place of the model's last words."""
        outcome = self._valued(value, "a tool")
        if isinstance(outcome, TurnAnswered):
            self.life.say(
                Role.ASSISTANT, None, value if isinstance(value, str) and value else dumps(value)
            )
        return outcome

    def _valued(self, value: JSON, who: str) -> TurnOutcome:
        """The outcome where somebody else than the model says what the turn came to: it has to fit,
        too.
        """
        recorded = self.life.ctx.recorded()
        returns = self.life.agent.returns
        # whatever the agent returns by now
        if recorded is not None and recorded.settled is not None:
            return recorded.settled.outcome
        try:
            return TurnAnswered(
                value if returns is None else parse_answer(value, schema_of(returns))
            )
        except AnswerRefused as error:
            return TurnFailed(f"{who} finished with what does not fit: {error}", error.code)

    # ---- tools

    async def _work(self, calls: list[AgentToolCall]) -> None:
        """Call the tools, unless plugins want it otherwise, and show the model what came of
        them.
        """
        life = self.life
        life.toolbox.before = self._before
        life.toolbox.after = self._shown
        done = await life.toolbox.run(calls)
        life.say(Role.TOOL, None, [done[call.id] for call in calls])

    async def _before(
        self, wanted: dict[str, AgentToolCall], done: dict[str, JSON], inner: bool
    ) -> None:
        """Let plugins decide about calls before they are made."""
        if "before_tool_call" not in self.life.hooks:
            return
        given = [(call.id, (self._use(call),)) for call in wanted.values()]
        box = self.life.toolbox
        for plugin, about, one in await self.life.decide(
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
        """Let plugins change what is shown of results, and tell them what came of the calls, as
        they were made.
        """
        life = self.life
        decides = "before_result" in life.hooks and (life.inner_results or not inner)
        if not decides and "after_tool_call" not in life.plugged.hooks:
            return
        given = [
            (call.id, (self._use(call), self._content(done[call.id]))) for call in wanted.values()
        ]
        for _, (use, content) in given:
            life.tell(
                "after_tool_call", ToolUse(use.id, use.name, to_plain(use.input)), to_plain(content)
            )
        for plugin, about, one in (
            await life.decide("before_result", given, in_program=inner) if decides else ()
        ):
            if isinstance(one, Abort):
                raise StopTurn(TurnAborted(plugin, one.reason))
            if isinstance(one, ReplaceResult):
                done[about] = wanted[about].result(
                    one.content, error=bool(done[about].get("is_error"))
                )

    def _use(self, call: AgentToolCall) -> ToolUse:
        """The call with the input that its tool would get."""
        return ToolUse(call.id, call.name, self.life.toolbox.input_of(call))

    def _content(self, block: JSON) -> JSON:
        return self.life.toolbox.answers[block["q"]] if "q" in block else block["content"]


def _most(options: dict[str, JSON], most: int) -> int:
    found: int = options.get("max_turns", most)
    if misfit := describe_misfit(found, PositiveInt):
        raise BadArguments("max_turns", misfit)
    return found


def _bare(words: str) -> str:
    """Words without the fence that models like to put around JSON."""
    inner = words.strip()
    if inner.startswith("```") and inner.endswith("```") and "\n" in inner:
        return inner[inner.index("\n") : -3].strip()
    return inner
