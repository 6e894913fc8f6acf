"""What a turn costs does not grow with the turns before it: counted in calls, in rows that are read, and in bytes."""

import sys

import everhold
from everhold.core.query import Usage
from everhold.plugins.approval import Approval
from everhold.plugins.budget import Allowance
from everhold.plugins.compaction import Compaction
from everhold.plugins.redaction import Redaction
from everhold.ports.said import Said
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from tests.scenario.house import opened

WORDS = 1024  # characters that each side says in a turn: 2 KB together

spoken = everhold.Agent(instructions="Be brief.", name="spoken")
named = everhold.Agent("anthropic:claude-sonnet-4-6", instructions="Be brief.")


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


def size(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


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


async def test_a_conversation_that_is_taken_up_is_read_once():
    """By its program; whoever says something there need not read what was said before. A look at it reads it."""
    store = Counting()
    async with opened(on=store, llm=answers, replay=False) as runtime:
        await silently(await runtime.session(spoken, "long"), 50)
    async with opened(on=store, llm=answers, replay=False) as runtime:
        store.read = 0
        session = await runtime.session(spoken, "long")
        taken_up = store.read
        turn = await session.send("q")
        assert turn.text == "a" * WORDS and taken_up >= 100
        assert store.read - taken_up < 20
        assert len(await session.turns()) == 51
        assert (await session.send("q")).settled.turn == 52
        assert store.read - taken_up < 160


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
    assert size(tmp_path) <= 3_000_000


async def test_what_real_models_tell_has_room_too(tmp_path):
    """The name of the model in each question and the tokens in each answer: still three kilobytes a turn."""
    usage = Usage(123_456, 1_024, cache_read_tokens=120_000, model="claude-sonnet-4-6")
    sizes = []
    for turns in (10, 100):
        store = SQLiteStore(tmp_path / "app.db")
        async with opened(on=store, llm=lambda query: Said("a" * WORDS, usage), replay=False) as runtime:
            await silently(await runtime.session(named, "long"), turns)
        sizes.append(size(tmp_path))
    assert sizes[1] - sizes[0] <= 300_000
