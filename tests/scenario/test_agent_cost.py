"""What a turn costs does not grow with the turns before it: counted in calls, in rows that are read, and in bytes."""

import sys

import everhold
from everhold.plugins.approval import Approval
from everhold.plugins.budget import Allowance
from everhold.plugins.compaction import Compaction
from everhold.plugins.redaction import Redaction
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from tests.scenario.house import opened

WORDS = 1024  # characters that each side says in a turn: 2 KB together

spoken = everhold.Agent(instructions="Be brief.", name="spoken")


def answers(query):
    return "a" * WORDS


class Calls:
    """Counts the calls of Python functions in its thread."""

    def __init__(self):
        self.made = 0

    def _count(self, frame, event, argument):
        self.made += event == "call"

    def __enter__(self):
        sys.setprofile(self._count)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)


class Counting(MemoryStore):
    """Counts the deliveries that are read."""

    read = 0

    async def load(self, session_id, since=0):
        record = await super().load(session_id, since)
        self.read += len(record.deliveries)
        return record


async def costs(session, turns):
    """The calls of a turn: the median, as in some of them something else happens too (a beat)."""
    found = []
    for _ in range(turns):
        with Calls() as calls:
            await session.send("q" * WORDS)
        found.append(calls.made)
    return sorted(found)[len(found) // 2]


async def silently(session, turns):
    for _ in range(turns):
        await session.send("q" * WORDS)


careful = everhold.Agent(
    instructions="Be brief.",
    plugins=[Allowance(session_tokens=10**12), Approval("pay"), Compaction(10**9), Redaction()],
    name="careful_speaker",
)


async def test_plugins_cost_the_same_in_a_late_turn():
    """Also one that looks at all of the frame: what it has seen it does not look at again."""
    async with opened(llm=answers, replay=False) as runtime:
        session = await runtime.session(careful, "long")
        await silently(session, 5)
        early = await costs(session, 9)
        await silently(session, 300)
        assert await costs(session, 9) <= 1.2 * early


async def test_a_late_turn_costs_what_an_early_one_costs():
    """Turn 1000 does the work of turn 10, at most a fifth more, and reads as little of the journal."""
    store = Counting()
    async with opened(on=store, llm=answers, replay=False) as runtime:
        session = await runtime.session(spoken, "long")
        await silently(session, 5)
        store.read = 0
        early, early_read = await costs(session, 9), store.read
        await silently(session, 981)
        store.read = 0
        late, late_read = await costs(session, 9), store.read
        assert len(await session.turns()) == 1004
    assert late <= 1.2 * early
    assert late_read <= 1.2 * early_read


async def test_a_thousand_turns_are_kept_in_three_megabytes(tmp_path):
    """Storage is linear: what was said is kept once. A late turn costs what an early one costs here too."""
    async with opened(on=SQLiteStore(tmp_path / "app.db"), llm=answers, replay=False) as runtime:
        session = await runtime.session(spoken, "long")
        await silently(session, 5)
        early = await costs(session, 9)
        await silently(session, 977)
        late = await costs(session, 9)
        assert len(await session.turns()) == 1000
    assert late <= 1.2 * early
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3_000_000
