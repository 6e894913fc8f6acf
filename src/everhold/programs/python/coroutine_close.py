"""Closes the coroutines and async generators of a dropped program, at once and without warnings.

GeneratorExit is thrown into the innermost coroutine first, then into the one that awaits it, up to
the outermost. Their `finally` blocks run. An `await` in a `finally` block suspends the coroutine
again, and the next GeneratorExit continues from there.

`coro.close()` would begin with the outermost coroutine. It raises RuntimeError when an inner one
suspends again, and that inner coroutine is then closed when it is freed, at an unpredictable time.
A coroutine that never ends is kept for the life of the process, because Python prints a warning
when such a coroutine is freed.
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

#: GeneratorExits that one coroutine gets: each `await` in a `finally` block takes one.
MAX_CLOSES: Final = 1_000
#: Coroutines that did not end after `MAX_CLOSES`.
UNCLOSED_COROUTINES: Final[list[Any]] = []


def close_coroutine(coro: Any, context: Context) -> None:
    """Close a coroutine after everything that it awaits."""
    chain = [coro]
    refused = 0
    _extend_chain(chain)
    while chain:
        try:
            context.run(chain[-1].throw, GeneratorExit)
        # Any exception means that it ended. Errors of `finally` blocks are ignored: the program is
        # dropped, not finished.
        except BaseException:
            chain.pop()
            continue
        refused += 1
        if refused == MAX_CLOSES:
            UNCLOSED_COROUTINES.append(coro)
            return
        # It suspended again, perhaps inside a coroutine that its `finally` block has just called.
        _extend_chain(chain)


def close_async_generator(agen: Any) -> None:
    """Close an async generator that lost its last reference while its program was dropped."""
    closing = agen.aclose()
    try:
        closing.send(None)
    except BaseException:  # it has ended
        return
    close_coroutine(closing, copy_context())


def _extend_chain(chain: list[Any]) -> None:
    """Append what the last of the chain awaits, and what that awaits, down to the innermost."""
    look = INNER_AWAITS.get(type(chain[-1]))
    while look is not None:
        inner = look(chain[-1])
        look = INNER_AWAITS.get(type(inner))
        if look is not None:
            chain.append(inner)


def _get_wrapped(wrapper: Any) -> Any:
    """The awaitable inside a wrapper that has no attribute for it (`anext`, `coro.__await__`).

    The garbage collector knows: it is the wrapper's first referent that is not its type.
    """
    return next(found for found in gc.get_referents(wrapper) if not isinstance(found, type))


def _get_generator_await(step: Any) -> Any:
    # A step (`asend`, `athrow`) refers to its generator, and only the generator knows its await.
    return _get_wrapped(step).ag_await


async def _sample_generator() -> AsyncGenerator[None, None]:
    yield


async def _sample_coroutine() -> None:
    pass


def _make_inner_awaits() -> dict[type, Callable[[Any], Any]]:
    """For each type that a program can await: how to get what it awaits itself.

    The types have no public names, so they are taken from samples.
    """
    agen: Any = _sample_generator()
    steps = [agen.asend(None), agen.athrow(GeneratorExit)]
    wrappers = [anext(_sample_generator(), None), _sample_coroutine().__await__()]
    for sample in [*steps, *wrappers]:
        sample.close()
    return {
        CoroutineType: attrgetter("cr_await"),
        GeneratorType: attrgetter("gi_yieldfrom"),
        **{type(step): _get_generator_await for step in steps},
        **{type(wrapper): _get_wrapped for wrapper in wrappers},
    }


INNER_AWAITS: Final = _make_inner_awaits()


def pin_unclosed_coroutines() -> None:
    """At exit: keep coroutines that did not end from being freed, which would print a warning.

    The interpreter frees module globals at exit, so the list alone does not keep them; an extra
    reference count does.
    """
    if UNCLOSED_COROUTINES:
        import ctypes
    for coro in UNCLOSED_COROUTINES:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))


class NeverAwaitedSilencer:
    """Suppresses "never awaited" warnings for the coroutines of a dropped program.

    Not `warnings.catch_warnings`: it clears the registry of warnings that the process has already
    shown, so that all of them would be shown again.
    """

    def __enter__(self) -> None:
        module: Any = warnings
        self._before = module._warn_unawaited_coroutine
        self._filters = module.filters
        # The interpreter calls this function by name when it frees a coroutine that never started.
        module._warn_unawaited_coroutine = _ignore
        self._filters.insert(0, _UNAWAITED)

    def __exit__(self, *_: object) -> None:
        module: Any = warnings
        module._warn_unawaited_coroutine = self._before
        self._filters.remove(_UNAWAITED)


#: Python 3.13 added the warning for steps of async generators, as an ordinary warning.
_UNAWAITED: Final = (
    "ignore",
    re.compile("coroutine method .* was never awaited"),
    RuntimeWarning,
    None,
    0,
)


def _ignore(coro: object) -> None:
    pass


def _measure_last_refcount() -> int:
    """The reference count that a finalizer sees when the program has dropped the last reference.

    It differs between Python versions, so it is measured once.
    """
    seen: list[int] = []

    def finalize(agen: Any) -> None:
        seen.append(sys.getrefcount(agen))

    async def leave() -> None:
        async for _ in _sample_generator():
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


#: The reference count of an async generator when its last reference goes. One that the garbage
#: collector found in a cycle has more, which tells the two cases apart.
LAST_REFCOUNT: Final = _measure_last_refcount()
