"""Answers from a function of the query.

It returns the value, or `Answer(value, usage)`. What it raises is an answer too: the program sees
an error. A plain function runs in a thread, so that a slow client library stops nobody; there it
cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from everhold.core.query import MODEL_KINDS, Query, refuse_other_kinds
from everhold.errors import BadSetting
from everhold.ports.answerer import Answerer


class FunctionModel(Answerer):
    """Asks a function of the query, which may be async."""

    kinds = MODEL_KINDS

    def __init__(self, function: Callable[[Query], Any]) -> None:
        _refuse_misfit(function)
        self._function = function
        call = getattr(function, "__call__", None)  # noqa: B004  an object may have an async one
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def __repr__(self) -> str:
        return f"FunctionModel({getattr(self._function, '__qualname__', self._function)})"

    async def answer(self, query: Query, session_id: str) -> Any:
        refuse_other_kinds(self.kinds, query)
        if self._is_async:
            return await self._function(query)
        said = await asyncio.to_thread(self._function, query)
        return await said if inspect.isawaitable(said) else said


def _refuse_misfit(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise BadSetting("llm", f"{function!r} should take one query: {error}") from None
    except ValueError:  # a builtin that does not tell
        pass
