"""How coroutines and async generators go when a program is dropped: at once, and without a word.

Closing throws GeneratorExit where the program stands: into the innermost coroutine that is waited
in, then into the one around it, and so on to the outermost. Their `finally` blocks run; an `await`
in one of them suspends again, and the next GeneratorExit goes on from there. Python by itself would
begin with the outermost, and lose what suspends again further in: it is told off when it is freed,
whenever that is. A coroutine that will not go is kept for ever, because Python complains about such
a one when it is freed.
"""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import AsyncGenerator, Callable
from contextvars import Context, copy_context
from operator import attrgetter
from types import CoroutineType, GeneratorType
from typing import Any, Final

#: Times a coroutine is asked to end: once for every `await` in its `finally` blocks.
MAX_CLOSES: Final = 1_000
#: Coroutines that refused.
UNCLOSED_COROUTINES: Final[list[Any]] = []


def close_coroutine(coro: Any, context: Context) -> None:
    """Close a coroutine, and before it all that it waits in."""
    chain = [coro]
    refused = 0
    _deepen(chain)
    while chain:
        try:
            context.run(chain[-1].throw, GeneratorExit)
        # it has ended, and what `finally` raises while being dropped concerns nobody
        except BaseException:
            chain.pop()
            continue
        refused += 1
        if refused == MAX_CLOSES:
            UNCLOSED_COROUTINES.append(coro)
            return
        _deepen(chain)


def close_async_generator(agen: Any) -> None:
    """Close an async generator that its program let go of while it was dropped."""
    leaving = agen.aclose()
    try:
        leaving.send(None)
    except BaseException:  # it has ended, one way or another
        return
    close_coroutine(leaving, copy_context())


def _deepen(chain: list[Any]) -> None:
    """Add what the last of a chain waits in, and what that waits in, down to where the program
    stands.
    """
    look = INNER_AWAITS.get(type(chain[-1]))
    while look is not None:
        inner = look(chain[-1])
        look = INNER_AWAITS.get(type(inner))
        if look is not None:
            chain.append(inner)


def _held(holder: Any) -> Any:
    """What is awaited by way of a holder, which does not say so itself: the first thing it refers
    to but its type.
    """
    return next(found for found in gc.get_referents(holder) if not isinstance(found, type))


def _in_generator(step: Any) -> Any:
    """What the async generator waits in whose step is awaited."""
    return _held(step).ag_await


async def _numbers() -> AsyncGenerator[None, None]:
    yield


async def _nothing() -> None:
    pass


def _inside() -> dict[type, Callable[[Any], Any]]:
    """For each type of thing that a program can wait in: how to look inside."""
    agen: Any = _numbers()
    steps = [agen.asend(None), agen.athrow(GeneratorExit)]
    holders = [anext(_numbers(), None), _nothing().__await__()]
    for one in [*steps, *holders]:
        one.close()
    return {
        CoroutineType: attrgetter("cr_await"),
        GeneratorType: attrgetter("gi_yieldfrom"),
        **{type(step): _in_generator for step in steps},
        **{type(holder): _held for holder in holders},
    }


INNER_AWAITS: Final = _inside()


def pin_unclosed_coroutines() -> None:
    """At the end of the process: keep what refused from being freed even then."""
    if UNCLOSED_COROUTINES:
        import ctypes
    for coro in UNCLOSED_COROUTINES:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))


class NeverAwaitedSilencer:
    """No warning for coroutines that were never awaited: they were not given the time.

    Not `warnings.catch_warnings`, which makes the whole process forget what it has warned of.
    """

    def __enter__(self) -> None:
        module: Any = warnings
        self._before = module._warn_unawaited_coroutine
        self._filters = module.filters
        module._warn_unawaited_coroutine = _say_nothing
        self._filters.insert(0, _UNAWAITED)

    def __exit__(self, *_: object) -> None:
        module: Any = warnings
        module._warn_unawaited_coroutine = self._before
        self._filters.remove(_UNAWAITED)


#: From Python 3.13 on there is a warning for the steps of async generators too, and it comes as any
#: other.
_UNAWAITED: Final = (
    "ignore",
    re.compile("coroutine method .* was never awaited"),
    RuntimeWarning,
    None,
    0,
)


def _say_nothing(coro: object) -> None:
    pass


def _references() -> int:
    """How many references a finalizer sees when the last one outside has gone; it differs between
    Pythons.
    """
    seen: list[int] = []

    def finalize(agen: Any) -> None:
        seen.append(sys.getrefcount(agen))

    async def leave() -> None:
        async for _ in _numbers():
            break

    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, finalize)
    try:
        leave().send(None)
    except StopIteration:
        pass
    finally:
        sys.set_asyncgen_hooks(*before)
    return seen[0]


#: References to an async generator that nobody holds any more; one that the garbage collector found
#: has more.
LAST_REFCOUNT: Final = _references()
