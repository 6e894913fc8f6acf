"""How coroutines and async generators go when a program is dropped: at once, and without a word.

Closing throws GeneratorExit where the coroutine waits. Its `finally` blocks run; an `await` in one of them suspends
again, and the next close goes on from there. A coroutine that will not go is kept for ever, because Python complains
about such a one when it is freed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final

#: Times a coroutine is asked to end: once for every `await` in its `finally` blocks.
CLOSES: Final = 1_000
#: Coroutines that refused.
UNDEAD: Final[list[Any]] = []


def close(coro: Any, context: Context) -> None:
    """Close a coroutine, the innermost that it waits in first: closing from outside loses one that suspends again."""
    chain, refused = [coro], 0
    while chain:
        while (inner := _awaited(chain[-1])) is not None:
            chain.append(inner)
        try:
            context.run(chain[-1].close)
        except RuntimeError as error:
            if "ignored GeneratorExit" in str(error):
                refused += 1
                if refused < CLOSES:
                    continue
                UNDEAD.append(coro)
                return
        except BaseException:  # what `finally` raises while being dropped concerns nobody
            pass
        chain.pop()


def _awaited(coro: Any) -> Any:
    """The coroutine in which another one waits, if it is not closed already."""
    inner = getattr(coro, "cr_await", None)
    return inner if getattr(inner, "cr_frame", None) is not None else None


def bury() -> None:
    """At the end of the process: keep what refused from being freed even then."""
    if UNDEAD:
        import ctypes
    for coro in UNDEAD:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))


@contextmanager
def silence() -> Iterator[None]:
    """No warning for coroutines that were never awaited: they were not given the time.

    Not `warnings.catch_warnings`, which makes the whole process forget what it has warned of.
    """
    module: Any = warnings
    before = module._warn_unawaited_coroutine
    module._warn_unawaited_coroutine = _say_nothing
    try:
        yield
    finally:
        module._warn_unawaited_coroutine = before


def _say_nothing(coro: object) -> None:
    pass


def _references() -> int:
    """How many references a finalizer sees when the last one outside has gone; it differs between Pythons."""
    seen: list[int] = []

    async def numbers() -> Any:
        yield

    def finalize(agen: Any) -> None:
        seen.append(sys.getrefcount(agen))

    async def leave() -> None:
        async for _ in numbers():
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


#: References to an async generator that nobody holds any more; one that the garbage collector found has more.
LAST: Final = _references()
