"""Tool calls: policies, the run inside an effect, limits, approvals, and a result for every call.

    def careful(wanted: Wanted) -> Verdict:
        return Allow() if wanted.read_only else Confirm("it changes something")

Rules
  1. Every call has a result. If the call fails, the result is the error; the turn continues.
  2. Limits count running tools. A call that waits for an approval or for a later result takes no
     place.
  3. An approval shows the exact input, and that input runs. Each confirmation that a policy or a
     plugin wants is an approval of its own.
  4. Values that a tool writes are committed with its result. If a tool returns a call of a program,
     that program runs as a child session, and its result is the tool's.
  5. A call that was started and has no recorded outcome never runs again silently: see `rerun`.
  6. Plugins are asked before every call and see every result, including the calls of programs that
     the model wrote.

Rules for policies
  1. A policy is called inside the effect of the call. A replay uses the recorded verdict.
  2. Policies fail closed: one that raises, or returns something else than a verdict, denies.
  3. Several policies are called in order until one denies. Every confirmation is asked for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from everhold.agents.added_tools import ReferencedTool
from everhold.agents.builtin_tools import AgentToolCall, BuiltinTool
from everhold.agents.side_effects import SideEffects
from everhold.agents.tool_selection import SEARCH_ABOVE, ToolSelection
from everhold.agents.variables import ProgramVariables
from everhold.core.codec import JSON, dumps
from everhold.core.message import Role
from everhold.core.query import Kind, Rerun, Usage
from everhold.core.schema import parse_answer
from everhold.core.tool import (
    BAD_INPUT,
    DENIED,
    HANDED_OVER,
    LATER,
    NEEDS_CONFIRM,
    Allow,
    Confirm,
    Deny,
    Later,
    SideOutput,
    ToolHandoff,
    Verdict,
    Wanted,
    Window,
    decode_confirms,
    decode_handoff,
    decode_later,
    digest_tool_call,
    encode_pending_call,
    make_call_key,
    unwrap_side_output,
    wrap_side_output,
)
from everhold.core.turn import TurnFailed
from everhold.errors import (
    AnswerFailed,
    AnswerRefused,
    BadArguments,
    BadValue,
    ChildFailed,
    EverholdError,
    Expired,
    OutcomeUnknown,
    UnknownTool,
)
from everhold.ports.attachment import keep_attachment
from everhold.ports.context import AgentContext
from everhold.ports.program import (
    INTERRUPTS,
    Call,
    ProgramEffect,
    convert_interrupt,
    is_raised_by_code,
)
from everhold.ports.tool import Tool, ToolContext

log = logging.getLogger("everhold")

#: Decides whether a tool call may run.
Policy = Callable[[Wanted], Verdict | Awaitable[Verdict]]


def collect_policies(given: Any) -> tuple[Policy, ...]:
    """Policies from one, several or none."""
    found = () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)
    for one in found:
        if not callable(one):
            raise BadArguments("policy", f"{one!r} is not a function")
    return found


def inherit_policies(own: Sequence[Policy], parent: Sequence[Policy]) -> tuple[Policy, ...]:
    """The policies of a subagent: its parent's, then its own, so that delegating bypasses none."""
    return (*parent, *(one for one in own if one not in parent))


async def evaluate_policies(policies: Sequence[Policy], wanted: Wanted) -> Deny | list[Confirm]:
    """The first denial, or the confirmations that are needed. An empty list allows the call."""
    found: list[Confirm] = []
    for policy in policies:
        verdict = await _asked(policy, wanted)
        if isinstance(verdict, Deny):
            return verdict
        found += [verdict] if isinstance(verdict, Confirm) else []
    return found


async def _asked(policy: Policy, wanted: Wanted) -> Verdict:
    try:
        said: Any = policy(wanted)
        if inspect.isawaitable(said):
            said = await said
    except Exception as error:
        log.exception("the policy before %s failed; the call is denied", wanted.tool)
        return Deny(f"the policy failed ({type(error).__name__})")
    if isinstance(said, Allow | Deny | Confirm):
        return said
    log.error(
        "the policy before %s returned %r, not a verdict; the call is denied", wanted.tool, said
    )
    return Deny("the policy returned no verdict")


async def execute_tool(
    tool: Tool,
    wanted: Wanted,
    policies: Sequence[Policy],
    confirms: Sequence[Confirm],
    approved: str | None,
    model: str | None,
    moment: Callable[[], Any],
) -> JSON:
    """Ask the policies, run the tool, and return the part of its result that the model sees."""
    await _allowed(wanted, policies, confirms, approved)
    if isinstance(tool, ReferencedTool):
        try:
            tool = tool.find_code(wanted.session_id)
        except UnknownTool as error:
            raise AnswerFailed(str(error), error.code) from None
    context = ToolContext(wanted, model, moment)
    try:
        arguments = tool.arguments(wanted.input, context)
    except AnswerRefused as error:
        raise AnswerFailed(format_misfit(error), BAD_INPUT) from None
    try:
        value = await _run(tool.function, arguments)
    except Later as later:
        value = later
    finally:
        context.stop()
    if isinstance(value, Later):
        raise AnswerFailed(encode_pending_call(value), LATER)
    if isinstance(value, Call):
        raise AnswerFailed(
            encode_pending_call(ToolHandoff(value.program.ref, value.program.version, value.args)),
            HANDED_OVER,
        )
    return wrap_side_output(
        await truncate_result(tool.result(value), tool.output),
        SideOutput(context.said, context.writes),
    )


def format_misfit(error: AnswerRefused) -> str:
    """The message to the model about an input that does not fit."""
    return f"{error.path.replace('answer', 'input', 1)} should be {error.expected}, got {error.got}"


async def _allowed(
    wanted: Wanted, policies: Sequence[Policy], confirms: Sequence[Confirm], approved: str | None
) -> None:
    """Raise unless the policies allow the call and the needed approvals are given."""
    verdict = await evaluate_policies(policies, wanted)
    if isinstance(verdict, Deny):
        raise AnswerFailed(verdict.reason, DENIED)
    wished = [*verdict, *confirms]
    if wished and approved != digest_tool_call(wanted.tool, wanted.input):
        raise AnswerFailed(
            encode_pending_call(wished[0] if len(wished) == 1 else wished), NEEDS_CONFIRM
        )


async def _run(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        value = await asyncio.to_thread(_contained, function, arguments)
        return await value if inspect.isawaitable(value) and not isinstance(value, Call) else value
    except AnswerFailed:
        raise
    except EverholdError as error:  # some would leave the query open, but a call needs a result
        raise AnswerFailed(str(error), error.code) from error
    except SystemExit as error:  # a tool must not end the process
        raise convert_interrupt(error) from None
    except KeyboardInterrupt as error:
        if is_raised_by_code(error):
            raise convert_interrupt(error) from None
        raise


def _contained(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except INTERRUPTS as error:  # in a thread, only the function itself can raise these
        raise convert_interrupt(error) from None
    except StopIteration as error:  # asyncio cannot set it on a future: the caller would hang
        found = RuntimeError(f"StopIteration: {error.value}")
        raise found.with_traceback(error.__traceback__) from None


async def truncate_result(result: JSON, window: Window | None) -> JSON:
    """The result, or the part of it that the model sees. The whole is stored as an attachment."""
    text = result if isinstance(result, str) else dumps(result)
    part = None if window is None or _has_pictures(result) else window.cut(text)
    if window is None or part is None:
        return result
    kept = await keep_attachment(
        text, "text/plain" if isinstance(result, str) else "application/json"
    )
    note = window.note(text, part, kept.id)
    return "\n".join([part.removesuffix("\n"), note] if window.keep == "head" else [note, part])


def is_result_too_long(result: JSON, window: Window | None) -> bool:
    """Whether the model would see only a part of the result."""
    if window is None or _has_pictures(result):
        return False
    return window.cut(result if isinstance(result, str) else dumps(result)) is not None


def _has_pictures(result: JSON) -> bool:
    return isinstance(result, list) and any(
        isinstance(one, dict) and one.get("type") == "image" for one in result
    )


#: Characters of an error that the model sees.
MAX_ERROR_CHARS: Final = 2_000
#: A step over calls and results, both by call id; the flag says whether a program made the calls.
CallStep = Callable[[dict[str, AgentToolCall], dict[str, JSON], bool], Awaitable[None]]
#: Characters of an input in an approval prompt. The full input is in the query's `args`.
MAX_PROMPT_CHARS: Final = 4_000


class Toolbox:
    """Calls the tools of one conversation."""

    def __init__(
        self,
        ctx: AgentContext,
        tools: Sequence[Tool],
        concurrency: int,
        policies: Sequence[Policy] = (),
        *,
        extra: Sequence[Tool] = (),
        many: int = SEARCH_ABOVE,
        effects: SideEffects | None = None,
    ) -> None:
        self.ctx = ctx
        self.offer = ToolSelection(tools, extra, many)
        self._policies = policies
        self._free = asyncio.Semaphore(concurrency)
        self._places: dict[tuple[str, int], asyncio.Semaphore] = {}  # by tool and its limit
        self._called = 0  # calls of this session so far
        self._begun: set[str] = set()  # ids of calls whose tool was started, in this round
        self.answers: dict[int, JSON] = {}  # answers that blocks refer to, by query
        self.results: dict[str, JSON] = {}  # results of this round, by call id
        self.before: CallStep = _as_it_is  # runs before the calls
        self.after: CallStep = _as_it_is  # runs after the calls, before the model sees results
        # confirmations that a call needs, by call id
        self.confirms: dict[str, list[Confirm]] = {}
        # replies in place of results, used after approval
        self.replies: dict[str, JSON] = {}
        self.failed: TurnFailed | None = None  # set by a call that fails its turn
        self.finish: list[JSON] = []  # at most one value: set by a call that ends its turn
        self.effects = effects or SideEffects(ctx)
        self.turn = 0
        self.history: Callable[[], list[JSON]] = list
        self.given_environment: Callable[[], JSON] = lambda: None
        self.variables = ProgramVariables()
        self.spend: Callable[[str, Usage | None], None] = lambda source, usage: None
        self.model: str | None = None  # the agent's model, the default for tools
        self.moment: Callable[[], Any] = lambda: None  # the state of the conversation

    @property
    def specs(self) -> list[JSON]:
        """The tool specs that the model gets."""
        return self.offer.specs

    async def run(self, calls: Sequence[AgentToolCall]) -> dict[str, JSON]:
        """Call all tools and return the results by call id. `results` gets each result as it
        arrives.
        """
        self.failed = None
        self.finish = []
        await self._all(calls, self.results, inner=False)
        return dict(self.results)

    async def also(self, calls: Sequence[AgentToolCall]) -> list[tuple[bool, JSON]]:
        """Call more tools, for a builtin tool."""
        found: dict[str, Any] = {}
        await self._all(calls, found, inner=True)
        results = [found[call.id] for call in calls]
        contents = [
            self.answers[block["q"]] if "q" in block else block["content"] for block in results
        ]
        return [
            (bool(block.get("is_error")), content)
            for block, content in zip(results, contents, strict=True)
        ]

    def begin_round(self) -> None:
        """Start a round: call ids of earlier replies no longer count."""
        self.results, self._begun = {}, set()
        self.confirms = {}
        self.replies = {}

    async def _all(
        self, calls: Sequence[AgentToolCall], done: dict[str, JSON], *, inner: bool
    ) -> None:
        """Call the tools concurrently, unless `before` decides otherwise. An error that stops the
        turn cancels all calls.

        `inner` calls are made by a program that the model wrote.
        """
        wanted = {call.id: call for call in calls}
        await self.before(wanted, done, inner)
        running = [call for call in wanted.values() if call.id not in done]
        first = self._called
        self._called = self._called + len(running)
        tasks = [
            asyncio.ensure_future(self._into(done, call, first + index))
            for index, call in enumerate(running)
        ]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        await self.after(wanted, done, inner)

    def input_of(self, call: AgentToolCall) -> JSON:
        """The input that the tool would get; unchanged if it does not fit."""
        tool = self.offer.tool(call.name)
        try:
            return (
                call.input
                if tool is None
                else parse_answer({} if call.input is None else call.input, tool.schema)
            )
        except AnswerRefused:
            return call.input

    async def _into(self, done: dict[str, JSON], call: AgentToolCall, ordinal: int) -> None:
        done[call.id] = await self._one(call, ordinal)

    def given_up(self, call: AgentToolCall, why: str, *, shown: bool) -> JSON:
        """The result of a call whose turn was stopped: its own result if it has one and `shown`
        allows it.
        """
        if call.id in self.results:
            known = self.results[call.id]
            return (
                known
                if shown
                else call.result(
                    f"Error: {why}; the tool was run, and its result is not shown", error=True
                )
            )
        tool = self.offer.tool(call.name)
        if call.id in self._begun and tool is not None and not tool.read_only:
            why += "; the tool was started, and its effect may or may not have happened"
        return _wrong(call, why)

    async def _one(self, call: AgentToolCall, ordinal: int) -> JSON:
        tool = self.offer.tool(call.name)
        if tool is None:
            known = ", ".join(self.offer.names) or "none"
            return _wrong(call, f"there is no tool {call.name!r}; the tools are: {known}")
        try:
            given: Any = parse_answer({} if call.input is None else call.input, tool.schema)
        except AnswerRefused as error:
            return _wrong(call, format_misfit(error))
        session_id = self.ctx.session_id
        wanted = Wanted(
            tool=tool.name,
            input=given,
            call_id=call.id,
            session_id=session_id,
            key=make_call_key(session_id, ordinal, call.id),
            read_only=tool.read_only,
        )
        if call.id in self.replies:
            return await self._unapproved(
                tool, call, wanted, self.confirms[call.id]
            ) or call.result(self.replies[call.id])
        return await self._do(tool, call, wanted)

    async def _do(
        self, tool: Tool, call: AgentToolCall, wanted: Wanted, approved: str | None = None
    ) -> JSON:
        """Run the call; then approval, later result or handoff, if the tool asked for one."""
        try:
            answered = await self._run(tool, wanted, approved)
            q, found = await tool.held(self, wanted) if isinstance(tool, BuiltinTool) else answered
            found, also = unwrap_side_output(found)
            if also is not None:
                await self.effects.carry_out(also.writes)
                for words in also.said:
                    self.effects.say(Role.USER, words)
                return call.result(found)
            return call.result(found) if q is None else self._named(call, (q, found))
        except OutcomeUnknown:
            words = (
                f"The outcome of {tool.name} is unknown: it was started and may or may not"
                " have happened."
            )
            return call.result(words, error=True)
        except Expired:
            return _wrong(call, f"{tool.name} took longer than {tool.total_timeout:g} s")
        except BadValue as error:
            return _wrong(call, f"{tool.name} was run, but nothing was written: {error}")
        except AnswerFailed as error:
            failed = error
        if failed.kind == NEEDS_CONFIRM and approved is None:
            return await self._confirmed(tool, call, wanted, failed.message)
        if failed.kind == LATER:
            return await self._finished(tool, call, wanted, failed.message)
        if failed.kind == HANDED_OVER:
            return await self._handed(tool, call, failed.message)
        return _wrong(call, _told(failed))

    async def _run(self, tool: Tool, wanted: Wanted, approved: str | None) -> tuple[int, JSON]:
        options: dict[str, JSON] = {"call": wanted.call_id}
        confirms = self.confirms.get(wanted.call_id, ())
        effect = ProgramEffect(
            execute_tool, tool, wanted, self._policies, confirms, approved, self.model, self.moment
        )
        # an approval is missing: the policies are asked, and the tool is not run
        rerun = Rerun.SAFE if confirms and approved is None else tool.rerun
        async with AsyncExitStack() as places:
            if tool.concurrency:
                place = (tool.name, tool.concurrency)
                limit = self._places.setdefault(place, asyncio.Semaphore(tool.concurrency))
                await places.enter_async_context(limit)
            await places.enter_async_context(self._free)
            self._begun.add(wanted.call_id)
            try:
                return await self.ctx.put(
                    Kind.CALL,
                    effect,
                    name=tool.name,
                    args=wanted.input,
                    rerun=rerun,
                    options=options,
                    retry=tool.retry,
                    timeout=tool.total_timeout,
                    attempt_timeout=tool.timeout,
                )
            finally:
                self.spend(f"tool:{tool.name}", self.ctx.cost)

    def _named(self, call: AgentToolCall, answered: tuple[int, JSON]) -> JSON:
        q, found = answered
        self.answers[q] = found
        return call.named(q)

    # ---- approvals

    async def _confirmed(
        self, tool: Tool, call: AgentToolCall, wanted: Wanted, verdict: str
    ) -> JSON:
        """Ask for the approvals, and run the call if all are given."""
        self._begun.discard(call.id)
        refused = await self._unapproved(tool, call, wanted, decode_confirms(verdict))
        return refused or await self._do(
            tool, call, wanted, digest_tool_call(wanted.tool, wanted.input)
        )

    async def _unapproved(
        self, tool: Tool, call: AgentToolCall, wanted: Wanted, confirms: Sequence[Confirm]
    ) -> JSON:
        """Ask for each approval in turn. Returns the message to the model about the first refusal,
        or None.
        """
        bound = digest_tool_call(wanted.tool, wanted.input)
        for why in confirms:
            try:
                _, yes = await self.ctx.put(
                    Kind.APPROVAL,
                    name=tool.name,
                    args={
                        "tool": tool.name,
                        "input": wanted.input,
                        "call": wanted.call_id,
                        "digest": bound,
                    },
                    prompt=_question(wanted, why.reason),
                    schema={"type": "boolean", "$id": f"urn:everhold:call:{bound}"},
                    timeout=why.timeout,
                    to=why.to,
                )
            except Expired:
                return _wrong(call, f"{tool.name} was not approved in time")
            except AnswerFailed as error:
                return _wrong(
                    call, f"{tool.name} was not approved: {error.message[:MAX_ERROR_CHARS]}"
                )
            if yes is not True:
                return _wrong(call, f"a person declined {tool.name}")
        return None

    # ---- results that come later

    async def _finished(
        self, tool: Tool, call: AgentToolCall, wanted: Wanted, recorded: str
    ) -> JSON:
        """Wait for a result that is sent from outside."""
        later = decode_later(recorded)
        try:
            answered = await self.ctx.put(
                Kind.TOOL,
                name=wanted.tool,
                args=wanted.input,
                prompt=later.prompt or f"What is the result of {wanted.tool}?",
                options={"call": wanted.call_id, "key": wanted.key},
                timeout=later.timeout,
                to=later.to,
            )
        except Expired:
            words = f"{wanted.tool} gave no result within {later.timeout:g} s"
            if later.on_timeout == "fail":
                self.failed = TurnFailed(words, "tool_expired")
            return _wrong(call, words)
        except AnswerFailed as error:
            return _wrong(call, _told(error))
        return self._named(call, await self._in_part(tool, call, answered))

    async def _in_part(
        self, tool: Tool, call: AgentToolCall, answered: tuple[int, JSON]
    ) -> tuple[int, JSON]:
        """The part of a result from outside that the model sees. The whole is stored as an
        attachment.
        """
        if not is_result_too_long(answered[1], tool.output):
            return answered
        effect = functools.partial(truncate_result, answered[1], tool.output)
        return await self.ctx.put(
            Kind.CALL, effect, name=f"{tool.name}: keep", args={"call": call.id}
        )

    # ---- calls that a program takes over

    async def _handed(self, tool: Tool, call: AgentToolCall, recorded: str) -> JSON:
        """Run a program as a child session; its result and usage are the tool's."""
        handed = decode_handoff(recorded)
        program: Any = _Elsewhere(handed.program, handed.version)
        try:
            answered = await self.ctx.delegate(
                Call(program, handed.args), title=tool.name, source=f"tool:{tool.name}"
            )
        except ChildFailed as error:
            return _wrong(call, f"{tool.name} {error.state}: {error.error}")
        finally:
            self.spend(f"tool:{tool.name}", self.ctx.cost)
        return self._named(call, await self._in_part(tool, call, answered))


async def _as_it_is(wanted: dict[str, AgentToolCall], done: dict[str, JSON], inner: bool) -> None:
    """Changes nothing."""


class _Elsewhere:
    """A program by reference; the process that runs it loads it."""

    def __init__(self, ref: str, version: int) -> None:
        self.ref = ref
        self.version = version
        self.types: dict[str, Any] = {}


def _question(wanted: Wanted, reason: str) -> str:
    shown = dumps(wanted.input)
    if len(shown) > MAX_PROMPT_CHARS:
        shown = f"{shown[:MAX_PROMPT_CHARS]}… ({len(shown) - MAX_PROMPT_CHARS:,} more characters)"
    return f"Run {wanted.tool} with {shown}?" + (f" {reason}" if reason else "")


def _told(error: AnswerFailed) -> str:
    """The error text for the model. A Python error comes with its class name."""
    words = error.message
    if error.kind == DENIED:
        words = f"denied by policy: {words}".rstrip(": ")
    elif error.kind[:1].isupper() and error.kind not in ("TimeoutError", words):
        words = f"{error.kind}: {words}"
    return words if len(words) <= MAX_ERROR_CHARS else words[:MAX_ERROR_CHARS] + "…"


def _wrong(call: AgentToolCall, words: str) -> JSON:
    return call.result(f"Error: {words}", error=True)
