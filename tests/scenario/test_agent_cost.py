"""What a turn costs does not grow with the turns before it.

Counted, so that it holds on a busy machine too: in calls of functions, in what is asked of the
store, in rows that are read, in bytes that are held at once (calls do not show what one of them
does in C), and in bytes that are kept.
"""

import sys
import tracemalloc
from collections import Counter

import everhold
from everhold.core.query import Usage
from everhold.plugins.approval import Approval
from everhold.plugins.budget import Allowance
from everhold.plugins.compaction import Compaction
from everhold.plugins.redaction import Redaction
from everhold.ports.answerer import Answer
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from tests.scenario.harness import Rows, opened

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
    """Counts the deliveries that are read, and what else is asked of the store."""

    read = 0

    def __init__(self):
        super().__init__()
        self.asked = Counter()

    async def load(self, session_id, since=0):
        record = await super().load(session_id, since)
        self.read += len(record.deliveries)
        self.asked["load"] += 1
        return record

    async def list(self, wanted):
        self.asked["list"] += 1
        return await super().list(wanted)

    async def intake(self, session_id, act, **more):
        self.asked["intake"] += 1
        return await super().intake(session_id, act, **more)

    async def commit(self, change, fence):
        self.asked["commit"] += 1
        await super().commit(change, fence)


async def costs(session, turns):
    """The calls of a turn: the median, as in some of them something else happens too (a beat)."""
    found = []
    for _ in range(turns):
        with Calls() as calls:
            await session.send("q" * WORDS)
        found.append(calls.made)
    return sorted(found)[len(found) // 2]


async def held_at_once(session, turns):
    """The most bytes that a turn has in memory beside what was there before it: the median."""
    found = []
    tracemalloc.start()
    try:
        for _ in range(turns):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            await session.send("q" * WORDS)
            found.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
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
    """Turn 1000 does the work of turn 10, at most a fifth more, and reads as little of the
    journal.
    """
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


async def test_a_late_turn_holds_no_more_in_memory_than_one_list_of_the_messages():
    """The model is handed a list of its own; nothing else of the history is copied, put together or
    encoded.
    """
    async with opened(llm=answers, replay=False, recover=False) as runtime:
        session = await runtime.session(spoken, "long")
        await silently(session, 5)
        early = await held_at_once(session, 9)
        await silently(session, 977)
        late = await held_at_once(session, 9)
    assert late - early <= 1.2 * 8 * 2000  # a reference to each message of a thousand turns


async def test_a_turn_is_two_commits_and_one_look():
    """What goes on in this process is not looked for: neither the turn, nor what it or a session
    below waits for.
    """
    store = Counting()
    async with opened(on=store, llm=answers, replay=False, recover=False) as runtime:
        session = await runtime.session(spoken, "brief")
        await silently(session, 2)
        store.asked.clear()
        await session.send("q" * WORDS)
        assert store.asked == {"intake": 1, "commit": 2, "load": 1}


async def test_a_conversation_that_is_taken_up_is_read_once():
    """By its program; whoever says something there need not read what was said before. A look at it
    reads it.
    """
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


async def test_an_input_costs_the_same_however_much_waits(tmp_path):
    """What is enqueued, asked for by name or taken back reads nothing of the nine hundred that wait
    before it.
    """
    store, found = Rows(tmp_path / "app.db"), []
    async with opened(on=store, llm=answers, replay=False, recover=False) as runtime:
        session = await runtime.session(spoken, "long")
        for more in (10, 890):
            for _ in range(more):
                await session.enqueue("q")
            store.steps = 0
            with Calls() as calls:
                await session.enqueue("q", key=f"k-{more}")
                await session.enqueue("q", key=f"k-{more}")
                await session.input(f"k-{more}")
                await session.cancel(f"k-{more}")
            found.append((calls.made, store.steps))
    (early, early_steps), (late, late_steps) = found
    assert late <= 1.1 * early
    assert late_steps <= 1.1 * early_steps


async def test_a_thousand_turns_are_kept_in_three_megabytes(tmp_path):
    """Storage is linear: what was said is kept once. A late turn costs what an early one costs here
    too.
    """
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
    """The name of the model in each question and the tokens in each answer: still three kilobytes a
    turn.
    """
    usage = Usage(123_456, 1_024, cache_read_tokens=120_000, model="claude-sonnet-4-6")
    sizes = []
    for turns in (10, 100):
        store = SQLiteStore(tmp_path / "app.db")
        async with opened(
            on=store, llm=lambda query: Answer("a" * WORDS, usage), replay=False
        ) as runtime:
            await silently(await runtime.session(named, "long"), turns)
        sizes.append(size(tmp_path))
    assert sizes[1] - sizes[0] <= 300_000
