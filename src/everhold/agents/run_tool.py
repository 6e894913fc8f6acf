"""Running one tool for one call: inside its effect, where the journal has only what comes of it.

What comes of it is a result, or an error with a code that says what else it came to: denied, in
need of a person's yes, to be finished later, handed on to a program, or an input that does not fit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from everhold.agents.tool_policy import Policy, evaluate_policies
from everhold.core.codec import JSON, dumps
from everhold.core.tool import (
    BAD_INPUT,
    DENIED,
    HANDED_OVER,
    LATER,
    NEEDS_CONFIRM,
    Confirm,
    Deny,
    Later,
    SideOutput,
    ToolHandoff,
    Wanted,
    Window,
    digest_tool_call,
    encode_pending_call,
    wrap_side_output,
)
from everhold.errors import AnswerFailed, AnswerRefused, EverholdError
from everhold.ports.attachment import keep_attachment
from everhold.ports.interrupts import INTERRUPTS, convert_interrupt, is_raised_by_code
from everhold.ports.program import Call
from everhold.ports.tool import Tool, ToolContext


async def execute_tool(
    tool: Tool,
    wanted: Wanted,
    policies: Sequence[Policy],
    confirms: Sequence[Confirm],
    approved: str | None,
    model: str | None,
    moment: Callable[[], Any],
) -> JSON:
    """Ask the policies, run the tool, and return what the model is shown of its result."""
    await _allowed(wanted, policies, confirms, approved)
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
    """What a model is told of an input that does not fit."""
    return f"{error.path.replace('answer', 'input', 1)} should be {error.expected}, got {error.got}"


async def _allowed(
    wanted: Wanted, policies: Sequence[Policy], confirms: Sequence[Confirm], approved: str | None
) -> None:
    """Raise unless everybody allows the call: the policies, and the people who are asked for them
    and for plugins.
    """
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
    except EverholdError as error:  # some mean that a query stays open, which a call cannot
        raise AnswerFailed(str(error), error.code) from None
    except SystemExit as error:  # a tool does not end the process
        raise convert_interrupt(error) from error
    except KeyboardInterrupt as error:
        if is_raised_by_code(error):
            raise convert_interrupt(error) from error
        raise


def _contained(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except INTERRUPTS as error:  # none comes into a thread from outside
        raise convert_interrupt(error) from error
    except StopIteration as error:  # a future cannot carry it, and would wait for ever
        raise RuntimeError(f"StopIteration: {error.value}") from error


async def truncate_result(result: JSON, window: Window | None) -> JSON:
    """The result, or as much of it as the model is shown; all of it is kept."""
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
    """Whether only a part of a result is shown."""
    if window is None or _has_pictures(result):
        return False
    return window.cut(result if isinstance(result, str) else dumps(result)) is not None


def _has_pictures(result: JSON) -> bool:
    return isinstance(result, list) and any(
        isinstance(one, dict) and one.get("type") == "image" for one in result
    )
