"""The caretaker of a runtime, where timing could hide a mistake."""

import asyncio

from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock


async def test_a_call_between_two_rests_is_heard():
    """What happens after a rest was over, and before the next one begins, is looked at and not forgotten."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        caretaker = runtime._caretaker
        looks = []

        async def move():
            looks.append(1)
            return True

        caretaker.move = move
        runtime._sessions.poke()
        assert await asyncio.wait_for(caretaker._round(False), 60) is True
        assert looks == [1]
