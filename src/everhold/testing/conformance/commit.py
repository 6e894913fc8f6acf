"""Tests of `commit`: all or nothing, once, values unchanged, and many commits at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from everhold.core.budget import Budget
from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import Kind, Query, QueryAnswer, Rerun, Usage
from everhold.core.session import Seed, SessionId, SessionState
from everhold.core.status import Raised, Returned, Stopped
from everhold.errors import BadValue, KeyConflict, Overtaken, StoreError, UnknownSession
from everhold.ports.store import (
    Change,
    Effect,
    Letter,
    Notice,
    SessionFilter,
    SessionRecord,
    Store,
    ValueWrite,
)
from everhold.testing.conformance.factories import (
    commit_start,
    commit_step,
    commit_touch,
    make_birth,
    make_delivery,
    make_head,
    make_query,
    make_start,
    make_step,
    make_touch,
)
from everhold.testing.conformance.harness import (
    OpenStore,
    StoreContractBase,
    collect_refusals,
    dump_store,
    find_problems,
    using_store,
    wait_in_time,
)

TEXTS = (
    "",
    "a\0b\0",
    "naïve 漢字 🦉 e\u0301",
    "line\u2028separator\u2029 \ufeff \x7f \r\n\t",
    "'; DROP TABLE session; --",
    '{"not": "parsed"}',
    "\U0010ffff",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -(2**63),
    2**63 - 1,
    1.0,
    1e308,
    5e-324,
    [],
    {},
    {"z": 1, "a": [None, {"": "empty key"}], "n\0": "\0"},
    [[[[["deep"]]]]],
)
EVERYTHING = Query(
    3,
    "0.1:2",
    "prompt",
    Kind.TOOL,
    messages=[{"role": "user", "content": "hello"}],
    system="system",
    max_tokens=7,
    grounded=True,
    underspecified=True,
    options={"temperature": 0.5, "stop": ["\n"]},
    name="name",
    args={"x": [1, 2.5, None]},
    rerun=Rerun.ASK,
    to="ada",
    schema={"type": "object", "properties": {"a": {"type": "string"}}},
    expires_at=1234.5,
    default=None,
)
NOTED = DeliveryNotes(
    fired=True,
    cancel="enough",
    retry=True,
    withdrawn=[1, 2],
    log=[LogEntry(1000, "info", "ctx.log", "started")],
    progress=Progress(1, 3, "one of three"),
    record={"score": 0.5},
    versions={"prompt": 2},
)
STALE: list[Callable[[SessionRecord], Change]] = [
    lambda record: make_step(record, answers={0: "late"}),
    lambda record: make_touch(record, letters=[Letter("signal", "late", 1.0)], tip={"mail": 1}),
    lambda record: make_touch(record, writes=[ValueWrite("n", "k", ["late"], 0)]),
    lambda record: make_touch(record, births=[(make_birth("s-child", key="late"), make_head())]),
    lambda record: make_touch(record, effects=[Effect(0, "late", 1.0)], closed=[0]),
]


class CommitContract(StoreContractBase):
    """MUSTs of `commit`."""

    async def test_what_was_committed_is_read_back(self, store: Store) -> None:
        """A new session is read back as it was committed."""
        first = make_start("s-1", make_query(0), make_query(1, Kind.INPUT))

        await store.commit(first, 0)

        record = await store.load("s-1")
        assert (record.birth, record.head, record.deliveries) == (
            first.birth,
            first.head,
            first.deliveries,
        )
        assert (record.letters, record.effects) == ([], [])

    async def test_every_fact_of_a_birth_is_kept(self, store: Store) -> None:
        """Every field of a new session is stored unchanged."""
        born = make_birth(
            version=3,
            args={"topic": "owls", "deep": {"list": [1, 2.5, None, True]}},
            created_at=1234.567891,
            seeds=[Seed(0, "a"), Seed(4, "b")],
            key="the key",
            title="A title",
            labels={"team": "blue", "": "empty"},
            metadata={"ticket": "T-1"},
            budget=Budget(max_llm_calls=3),
            digest="d" * 16,
            python="3.11",
            everhold="0.1.0",
            parent=SessionId("s-parent"),
            parent_query=7,
        )

        await store.commit(Change(born.id, make_head(), birth=born), 0)

        assert (await store.load("s-1")).birth == born

    async def test_every_fact_of_a_head_is_kept(self, store: Store) -> None:
        """The head is rewritten whole by every commit."""
        record = await commit_start(store, "s-1", make_query(0))
        meter = Metrics(
            llm_calls=4, pauses=3, rounds=2, prompt_chars=99, prompt_tokens=12, open_tokens=5
        )
        facts = {
            "state": SessionState.RUNNING,
            "due_at": 5000.125,
            "metrics": meter,
            "attempts": 2,
            "updated_at": 4000.5,
        }

        await store.commit(
            change := make_step(record, answers={0: "a"}, asked=[make_query(1)], tip=facts), 1
        )

        assert (await store.load("s-1")).head == change.head
        assert change.head.metrics == meter

    async def test_every_fact_of_a_delivery_is_kept(self, store: Store) -> None:
        """Queries, answers and notes come back field by field, and an unset default stays unset."""
        record = await commit_start(store, "s-1", make_query(0), make_query(1), make_query(2))
        usage = Usage(prompt_tokens=10, completion_tokens=20)
        answers = [
            QueryAnswer(0, {"a": 1}, usage=usage, by={"front": "cli", "user": "ada", "at": 1.5}),
            QueryAnswer(1, error={"code": "busy", "message": "try later"}),
            QueryAnswer(2, "by default", expired=True),
        ]
        given = Delivery(1, 1000.123456, answers, [EVERYTHING, make_query(4)], NOTED)

        await store.commit(make_step(record, deliveries=[given]), 1)

        assert (await store.load("s-1", since=1)).deliveries == [given]

    @pytest.mark.parametrize(
        "outcome", [Returned({"a": [1]}), Raised("no", "ValueError", "Trace", 2), Stopped("enough")]
    )
    async def test_every_outcome_is_kept(self, store: Store, outcome: Any) -> None:
        """The outcome of a session is in its last delivery."""
        record = await commit_start(store, "s-1", make_query(0))

        record = await commit_step(store, record, answers={0: "a"}, outcome=outcome)

        notes = record.deliveries[-1].notes
        assert notes is not None
        assert notes.outcome == outcome

    @pytest.mark.parametrize("text", TEXTS)
    async def test_text_is_kept_exactly(self, store: Store, text: str) -> None:
        """NUL, characters beyond the basic plane and text that looks like code are stored
        unchanged.
        """
        record = await commit_start(
            store,
            "s-1",
            make_query(0, prompt=text),
            key=f"k{text}",
            title=text,
            labels={text: text},
        )
        written = [ValueWrite(text, text, [text], 0)]
        letter = Letter("signal", {text: text}, 1.0)

        found = await commit_step(
            store, record, answers={0: text}, writes=written, letters=[letter], tip={"mail": 1}
        )

        assert found.birth == make_birth(key=f"k{text}", title=text, labels={text: text})
        assert found.deliveries[0].asked[0].prompt == text
        assert found.deliveries[1].answers[0].value == text
        assert found.letters[0].body == {text: text}
        assert await store.find(f"k{text}") == "s-1"
        assert await store.value(text, text) == ([text], 1)
        assert await store.keys(text) == [text]

    @pytest.mark.parametrize("value", VALUES, ids=repr)
    async def test_values_are_kept_exactly(self, store: Store, value: Any) -> None:
        """JSON values come back with the same types, and objects in the same order."""
        record = await commit_start(store, "s-1", make_query(0))

        record = await commit_step(
            store, record, answers={0: value}, writes=[ValueWrite("n", "k", [value], 0)]
        )

        assert repr(record.deliveries[1].answers[0].value) == repr(value)
        assert repr(await store.value("n", "k")) == repr(([value], 1))

    async def test_a_large_answer(self, store: Store) -> None:
        """A megabyte is an answer like any other."""
        record = await commit_start(store, "s-1", make_query(0))
        large = "0123456789abcdé\0" * 65536

        record = await commit_step(store, record, answers={0: large})

        assert record.deliveries[1].answers[0].value == large

    async def test_a_large_batch(self, store: Store) -> None:
        """A thousand queries asked and answered together are one delivery each way."""
        record = await commit_start(store, "s-1", *(make_query(q) for q in range(1000)))

        record = await commit_step(store, record, answers={q: q for q in range(1000)})

        assert [answer.value for answer in record.deliveries[1].answers] == list(range(1000))

    async def test_several_deliveries_in_one_change(self, store: Store) -> None:
        """A change may hold more than one delivery; they are read in their order."""
        record = await commit_start(store, "s-1", make_query(0))
        more = [
            Delivery(n, 1000.0 + n, [QueryAnswer(n - 1, n)], [make_query(n)]) for n in (1, 2, 3)
        ]

        await store.commit(make_step(record, deliveries=more, tip={"n": 3, "open_from": 3}), 1)

        assert [one.n for one in (await store.load("s-1")).deliveries] == [0, 1, 2, 3]

    async def test_a_whole_life_in_one_change(self, store: Store) -> None:
        """One change can create a session with its journal and its end, as an import does."""
        first = make_start("s-1", make_query(0), key="mine")
        first.deliveries = [*first.deliveries, make_delivery(1, {0: "a"}, outcome=Returned(1))]
        first.head = make_head(n=1, open_from=2, state=SessionState.COMPLETED, revision=1)

        await store.commit(first, 0)

        found = await store.load("s-1")
        assert (found.head, found.deliveries) == (first.head, first.deliveries)
        assert await store.inbox(kind=None, to=None, limit=9) == []
        assert await find_problems(store) == []

    async def test_a_light_change_lands(self, store: Store) -> None:
        """A change marked light stores its deliveries and the head fields that every step
        changes.
        """
        record = await commit_start(store, "s-1", make_query(0))
        meter = Metrics(llm_calls=2)

        await store.commit(
            change := make_step(
                record, answers={0: "a"}, asked=[make_query(1)], tip={"metrics": meter}, light=True
            ),
            1,
        )

        found = await store.load("s-1")
        assert found.head == change.head
        assert found.deliveries[1:] == change.deliveries

    async def test_a_change_lands_without_waiting_or_not_at_all(self, store: Store) -> None:
        """`commit_now` stores what `commit` would, or returns that it did nothing."""
        record = await commit_start(store, "s-1", make_query(0))
        before = await store.load("s-1")
        change = make_step(record, answers={0: "a"}, asked=[make_query(1)], light=True)

        if not store.commit_now(change, 1):
            assert await store.load("s-1") == before
            await store.commit(change, 1)

        found = await store.load("s-1")
        assert found.head == change.head
        assert found.deliveries[1:] == change.deliveries

    async def test_a_late_change_does_not_land_without_waiting(self, store: Store) -> None:
        """`commit_now` raises `Overtaken` as `commit` does, or returns that it did nothing."""
        record = await commit_start(store, "s-1", make_query(0))
        await commit_step(store, record, answers={0: "first"}, asked=[make_query(1)])
        before = await dump_store(store)

        with pytest.raises(Overtaken):
            if not store.commit_now(make_step(record, answers={0: "late"}, light=True), 1):
                await store.commit(make_step(record, answers={0: "late"}, light=True), 1)

        assert await dump_store(store) == before

    async def test_a_durable_change_lands(self, store: Store) -> None:
        """A change that must survive power loss is stored like any other."""
        record = await commit_start(store, "s-1", make_query(0))

        record = await commit_step(store, record, answers={0: "a"}, durable=True)

        assert record.head.revision == 2

    async def test_a_new_session_gets_its_number(self, store: Store) -> None:
        """`commit` sets `head.ref` of a new session and of its children; no two have the same."""
        first = make_start("s-1")
        second = make_start("s-2")
        second.births = [(make_birth("s-3", parent=second.id), make_head())]

        await store.commit(first, 0)
        await store.commit(second, 0)

        refs = [first.head.ref, second.head.ref, second.births[0][1].ref]
        assert 0 not in refs
        assert len(set(refs)) == 3
        assert [(await store.load(id)).head.ref for id in ("s-1", "s-2", "s-3")] == refs

    async def test_children_are_born_with_the_step(self, store: Store) -> None:
        """The sessions that a step starts exist when it has landed."""
        record = await commit_start(store, "s-1", make_query(0))
        child = make_birth("s-2", parent=record.birth.id, parent_query=1, key="child")
        tip = make_head(state=SessionState.RUNNING)

        await store.commit(
            make_step(
                record, answers={0: "a"}, asked=[make_query(1, Kind.SESSION)], births=[(child, tip)]
            ),
            1,
        )

        found = await store.load("s-2")
        assert (found.birth, found.head, found.deliveries) == (child, tip, [])
        assert await store.find("child") == "s-2"

    @pytest.mark.parametrize("late", STALE)
    @pytest.mark.parametrize("fence", [1, 3, 0])
    async def test_another_fence_is_overtaken(self, store: Store, late: Any, fence: int) -> None:
        """A change whose fence is not the stored revision raises `Overtaken`, and changes
        nothing.
        """
        stale = await commit_start(store, "s-1", make_query(0))
        await commit_step(store, stale, answers={0: "in time"}, asked=[make_query(1)])
        before = await dump_store(store)

        with pytest.raises(Overtaken):
            await store.commit(late(stale), fence)

        assert await dump_store(store) == before

    async def test_an_unknown_session_is_overtaken(self, store: Store) -> None:
        """A change of a missing session raises `Overtaken`, and creates nothing."""
        with pytest.raises(Overtaken):
            await store.commit(Change(SessionId("s-1"), make_head(ref=1, revision=2)), 1)

        assert await store.list(SessionFilter()) == []

    async def test_a_forgotten_session_is_overtaken(self, store: Store) -> None:
        """A writer that still holds a deleted session cannot write into a later one."""
        stale = await commit_start(store, "s-1", make_query(0))
        await store.delete("s-1", 1)
        later = await commit_start(store, "s-2", make_query(0))

        with pytest.raises(Overtaken):
            await store.commit(make_step(stale, answers={0: "lost"}), 1)

        assert await store.load("s-2") == later

    async def test_an_id_is_used_once(self, store: Store) -> None:
        """A second session with the same id raises `Overtaken`; the first is unchanged."""
        first = await commit_start(store, "s-1", make_query(0))

        with pytest.raises(Overtaken):
            await store.commit(make_start("s-1", make_query(0), make_query(1), title="another"), 0)

        assert await store.load("s-1") == first

    async def test_a_key_is_used_once(self, store: Store) -> None:
        """A second session with the same key raises `KeyConflict`, which names the first."""
        await commit_start(store, "s-1", key="mine")
        before = await dump_store(store)

        with pytest.raises(KeyConflict) as refused:
            await store.commit(make_start("s-2", make_query(0, Kind.INPUT), key="mine"), 0)

        assert (refused.value.key, refused.value.session_id) == ("mine", "s-1")
        assert await dump_store(store) == before

    async def test_a_key_of_an_ended_session_stays_taken(self, store: Store) -> None:
        """The same key is the same session, also after its end."""
        record = await commit_start(store, "s-1", make_query(0), key="mine")
        await commit_step(store, record, outcome=Returned(1))

        with pytest.raises(KeyConflict):
            await store.commit(make_start("s-2", key="mine"), 0)

    @pytest.mark.parametrize(
        "child", [make_birth("s-3", key="taken"), make_birth("s-2")], ids=["key", "id"]
    )
    async def test_a_child_that_cannot_be_refuses_the_step(self, store: Store, child: Any) -> None:
        """If the key or id of one child is already used, neither the step nor another child
        lands.
        """
        record = await commit_start(store, "s-1", make_query(0))
        await commit_start(store, "s-2", key="taken")
        before = await dump_store(store)
        births = [(make_birth("s-4"), make_head()), (child, make_head())]

        with pytest.raises((KeyConflict, Overtaken)):
            await store.commit(make_step(record, answers={0: "a"}, births=births), 1)

        assert await dump_store(store) == before

    async def test_a_late_change_with_a_taken_key_is_overtaken(self, store: Store) -> None:
        """The fence is checked first: a late writer gets `Overtaken`, not `KeyConflict`."""
        stale = await commit_start(store, "s-1", make_query(0))
        births = [(make_birth("s-2", key="child"), make_head())]
        await store.commit(make_step(stale, answers={0: "a"}, births=births), 1)

        with pytest.raises(Overtaken):
            await store.commit(make_step(stale, answers={0: "a"}, births=births), 1)

    async def test_a_fork_of_nothing_is_refused(self, store: Store) -> None:
        """A fork whose origin is missing or deleted raises `UnknownSession`, and creates
        nothing.
        """
        orphan = make_birth("s-2", origin=SessionId("s-1"), origin_n=0)

        with pytest.raises(UnknownSession):
            await store.commit(Change(orphan.id, make_head(n=0), birth=orphan), 0)

        assert await store.list(SessionFilter()) == []

    async def test_a_number_is_delivered_once(self, store: Store) -> None:
        """A delivery with a number that the journal already has is refused: the journal is never
        rewritten.
        """
        record = await commit_start(store, "s-1", make_query(0))
        again = make_step(record, deliveries=[Delivery(0, 1.0, [], [make_query(9)])])

        with pytest.raises(StoreError):
            await store.commit(again, 1)

        assert await store.load("s-1") == record

    @pytest.mark.parametrize("taken", ["number", "id", "child"])
    async def test_what_is_taken_refuses_the_whole_change(self, store: Store, taken: str) -> None:
        """SC24: A number or id that is already used refuses the whole change."""
        record = await commit_start(store, "s-1", make_query(0))
        await commit_start(store, "s-2", make_query(0, Kind.SIGNAL))
        before = await dump_store(store)
        births = [(make_birth("s-3"), make_head())]
        if taken == "child":
            births.append((make_birth("s-2"), make_head()))
        change = (
            make_start("s-2", make_query(0), make_query(1))
            if taken == "id"
            else make_step(record, answers={0: "a"})
        )
        if taken == "number":
            change.deliveries = [Delivery(0, 1.0, [], [make_query(9)]), *change.deliveries]
        change.births, change.writes = births, [ValueWrite("n", "k", [1], 0)]
        change.letters = [Letter("signal", {"name": "go", "value": 1}, 1.0, to=SessionId("s-2"))]
        change.effects, change.notices = (
            [Effect(9, "w", 1.0)],
            [Notice(8, Kind.INPUT, None, 1.0, make_query(8, Kind.INPUT))],
        )

        with pytest.raises((Overtaken, StoreError)):
            await store.commit(change, 0 if taken == "id" else 1)

        assert await dump_store(store) == before
        assert await find_problems(store) == []

    @pytest.mark.parametrize("born", [False, True])
    async def test_a_number_twice_in_one_change(self, store: Store, born: bool) -> None:
        """SC25: two deliveries with one number refuse the whole change, of a new or an existing
        session.
        """
        record = await commit_start(store, "s-1", make_query(0))
        twice = [Delivery(1, 1.0, [], [make_query(8)]), Delivery(1, 1.0, [], [make_query(9)])]
        change = make_step(record, deliveries=twice, writes=[ValueWrite("n", "k", [1], 0)])
        if born:
            change = make_start("s-2", make_query(0))
            change.deliveries = [*change.deliveries, *twice]
        before = await dump_store(store)

        with pytest.raises(StoreError):
            await store.commit(change, 0 if born else 1)

        assert await dump_store(store) == before

    async def test_nothing_is_shared_with_the_writer(self, store: Store) -> None:
        """Changing the written objects after the commit does not change the store."""
        answer = {"a": [1]}
        body = {"b": [2]}
        value = [{"c": [3]}]
        args = {"d": [4]}
        record = await commit_start(store, "s-1", make_query(0), args=args)
        letter = Letter("signal", body, 1.0)
        write = ValueWrite("n", "k", value, 0)
        change = make_step(
            record, answers={0: answer}, tip={"mail": 1}, letters=[letter], writes=[write]
        )
        await store.commit(change, 1)
        before = await dump_store(store)

        answer["a"].append(9)
        body["b"].append(9)
        value[0]["c"].append(9)
        args["d"].append(9)
        change.deliveries[0].answers.clear()
        change.head.revision = change.head.metrics.rounds = 99

        assert await dump_store(store) == before
        assert before[0][0].birth.args == {"d": [4]}

    async def test_nothing_is_shared_with_the_reader(self, store: Store) -> None:
        """Changing objects that were read changes neither the store nor other readers."""
        record = await commit_start(
            store, "s-1", make_query(0, Kind.INPUT, args=[1]), args={"d": [4]}, labels={"a": "b"}
        )
        await commit_touch(store, record, writes=[ValueWrite("n", "k", [[1]], 0)])
        before = await dump_store(store)

        for found in await dump_store(store), await dump_store(store):
            records, inbox, values = found[:3]
            records[0].birth.args["d"].append(9)
            records[0].birth.labels.clear()
            records[0].deliveries[0].asked[0].args.append(9)
            records[0].deliveries.clear()
            records[0].head.metrics.rounds = 99
            inbox[0][1].args.append(9)
            values[0][1][0][0].append(9)

        assert await dump_store(store) == before


class ConcurrentCommitContract(StoreContractBase):
    """Commits of many tasks at the same time."""

    @pytest.mark.parametrize("late", STALE)
    async def test_one_refusal_harms_nobody(self, store: Store, late: Any) -> None:
        """Of twenty concurrent changes one is late: it is refused, and nineteen land."""
        records = [await commit_start(store, f"s-{n:02}", make_query(0)) for n in range(20)]
        await commit_step(store, records[7], answers={0: "first"})
        changes = [make_step(record, answers={0: "a"}, asked=[make_query(1)]) for record in records]
        changes[7] = late(records[7])

        refused = await collect_refusals(*(store.commit(change, 1) for change in changes))

        assert [n for n, error in enumerate(refused) if error is not None] == [7]
        assert isinstance(refused[7], Overtaken)
        for n, record in enumerate(records):
            found = await store.load(record.birth.id)
            assert found.deliveries[1].answers[0].value == ("first" if n == 7 else "a")
            assert found.head.revision == 2

    @pytest.mark.parametrize("light", [False, True])
    async def test_one_bad_number_harms_nobody(self, store: Store, light: bool) -> None:
        """Only the change that would rewrite the journal is refused."""
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(5)]
        changes = [make_step(record, answers={0: "a"}, light=light) for record in records]
        changes[2].deliveries[0].n = 0

        refused = await collect_refusals(*(store.commit(change, 1) for change in changes))

        assert [isinstance(error, StoreError) for error in refused] == [
            False,
            False,
            True,
            False,
            False,
        ]
        assert [(await store.load(f"s-{n}")).head.revision for n in range(5)] == [2, 2, 1, 2, 2]

    async def test_one_taken_key_harms_nobody(self, store: Store) -> None:
        """Of ten concurrent starts two have the same key: one of these is refused."""
        changes = [make_start(f"s-{n}", key="same" if n in (3, 6) else None) for n in range(10)]

        refused = await collect_refusals(*(store.commit(change, 0) for change in changes))

        assert [type(error) for error in refused if error is not None] == [KeyConflict]
        assert len(await store.list(SessionFilter())) == 9
        assert await store.find("same") in ("s-3", "s-6")

    @pytest.mark.parametrize("light", [False, True])
    async def test_one_bad_text_harms_nobody(self, store: Store, light: bool) -> None:
        """Only the change with text that cannot be encoded raises `BadValue`; the store
        continues.
        """
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(5)]
        changes = [
            make_step(one, answers={0: "\ud800" if n == 2 else "a"}, light=light)
            for n, one in enumerate(records)
        ]

        refused = await wait_in_time(
            collect_refusals(*(store.commit(change, 1) for change in changes))
        )

        assert [type(error) for error in refused] == [
            type(None),
            type(None),
            BadValue,
            type(None),
            type(None),
        ]
        assert [(await store.load(f"s-{n}")).head.revision for n in range(5)] == [2, 2, 1, 2, 2]
        with pytest.raises(BadValue):
            await store.commit(changes[2], 1)
        await commit_step(store, records[2], answers={0: "good"})

    @pytest.mark.parametrize("light", [False, True])
    async def test_one_who_gives_up_harms_nobody(self, store: Store, light: bool) -> None:
        """If a task is cancelled during its commit, its change lands as a whole or not at all; the
        others land.
        """
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(5)]
        changes = [make_step(one, answers={0: "a"}, light=light) for one in records]
        tasks = [asyncio.create_task(store.commit(change, 1)) for change in changes]
        await asyncio.sleep(0)

        tasks[2].cancel()
        await wait_in_time(collect_refusals(*tasks))

        found = [await store.load(f"s-{n}") for n in range(5)]
        assert [len(one.deliveries) for one in found] == [one.head.revision for one in found]
        assert [one.head.revision for n, one in enumerate(found) if n != 2] == [2, 2, 2, 2]

    async def test_nobody_waits_for_a_closed_store(self, open_store: OpenStore) -> None:
        """A commit that runs while the store is closed lands or is refused."""
        async with using_store(open_store()) as store:
            records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(3)]
            tasks = [
                asyncio.create_task(store.commit(make_step(one, answers={0: "a"}), 1))
                for one in records
            ]
            await asyncio.sleep(0)

        refused = await wait_in_time(collect_refusals(*tasks))

        assert [error for error in refused if not isinstance(error, StoreError | None)] == []

    async def test_one_of_many_wins(self, store: Store) -> None:
        """Of twenty changes computed from the same revision exactly one lands, whole."""
        record = await commit_start(store, "s-1", make_query(0))
        changes = [
            make_step(record, answers={0: n}, writes=[ValueWrite("n", str(n), [n], 0)])
            for n in range(20)
        ]

        refused = await collect_refusals(*(store.commit(change, 1) for change in changes))

        won = refused.index(None)
        assert [type(error) for error in refused] == [
            type(None) if n == won else Overtaken for n in range(20)
        ]
        assert (await store.load("s-1")).deliveries[1].answers[0].value == won
        assert await store.keys("n") == [str(won)]

    async def test_increments_are_not_lost(self, store: Store) -> None:
        """Sessions that increment one durable value, and retry when overtaken, lose no count."""

        async def count(id: str) -> None:
            record = await commit_start(store, id)
            left = 3
            for _ in range(1000):
                if not left:
                    break
                value, version = await store.value("n", "counter")
                write = ValueWrite("n", "counter", [(value or [0])[0] + 1], version)
                try:
                    record = await commit_touch(store, record, writes=[write])
                    left -= 1
                except Overtaken:
                    await asyncio.sleep(0)

        await asyncio.gather(*(count(f"s-{n}") for n in range(8)))

        assert await store.value("n", "counter") == ([24], 24)

    async def test_a_session_is_read_at_one_moment(self, store: Store) -> None:
        """While steps land, a reader always gets head and journal of the same revision."""
        record = await commit_start(store, "s-1", make_query(0))

        async def write() -> None:
            last = record
            for q in range(30):
                last = await commit_step(store, last, answers={q: q}, asked=[make_query(q + 1)])
                await asyncio.sleep(0)

        async def read() -> None:
            for _ in range(30):
                seen = await store.load("s-1")
                assert [one.n for one in seen.deliveries] == list(range(seen.head.n + 1))
                assert seen.head.revision == seen.head.n + 1
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())
