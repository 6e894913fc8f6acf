"""What tools hold open between calls (processes, connections): one of each for a loop, closed with
its last runtime.

Whoever opens something says how it is closed; `Runtime` comes and goes. Where nobody came, as in a
script that uses a tool by itself, what was opened ends with the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

log = logging.getLogger("everhold")


class _House:
    def __init__(self) -> None:
        self.inside = 0
        self.closes: dict[object, Callable[[], Awaitable[None]]] = {}


_HOUSES: WeakKeyDictionary[asyncio.AbstractEventLoop, _House] = WeakKeyDictionary()


def _house() -> _House:
    return _HOUSES.setdefault(asyncio.get_running_loop(), _House())


def retain_resources() -> None:
    """Somebody came who will leave."""
    _house().inside += 1


async def release_resources() -> None:
    """Somebody left; the last one closes everything."""
    house = _house()
    house.inside -= 1
    while house.inside <= 0 and house.closes:
        _, close = house.closes.popitem()
        try:
            await close()
        except Exception:
            log.exception("a tool's resource could not be closed")


def register_closer(owner: object, close: Callable[[], Awaitable[None]]) -> None:
    """Have `close` called when everybody has left; of one owner only the last is kept."""
    _house().closes[owner] = close


def unregister_closer(owner: object) -> None:
    """Its resource is closed already."""
    _house().closes.pop(owner, None)
