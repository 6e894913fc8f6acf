"""Tests of `load`, `find`, `list` and `inbox`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from everhold.core.metrics import Metrics
from everhold.core.query import ANSWERABLE, EFFECTS, Kind, Rerun
from everhold.core.session import SessionId, SessionState, mint
from everhold.core.status import Raised, Returned, Stopped
from everhold.errors import UnknownSession
from everhold.ports.store import (
    FROM_RESTART,
    Effect,
    InboxPlace,
    Letter,
    SessionFilter,
    Store,
    place_in_inbox,
)
from everhold.testing.conformance.factories import (
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    commit_touch,
    list_session_ids,
    make_notice,
    make_query,
    make_start,
)
from everhold.testing.conformance.harness import (
    StoreContractBase,
    find_problems,
    list_orphans,
)


class LoadContract(StoreContractBase):
    """MUSTs of `load` and `find`."""

    @pytest.mark.parametrize(
        "other", ["s-2", "s-", "s-10", "S-1", "", "s-1\0", "s_1", "%", "\ud800"]
    )
    async def test_only_the_exact_id_is_known(self, store: Store, other: str) -> None:
        """`load` and `delete` raise `UnknownSession` for anything but the id itself."""
        await commit_start(store, "s-1")

        with pytest.raises(UnknownSession) as refused:
            await store.load(other)
        with pytest.raises(UnknownSession):
            await store.delete(other, 1)

        assert refused.value.session_id == other

    @pytest.mark.parametrize(
        ("since", "numbers"), [(0, [0, 1, 2, 3]), (2, [2, 3]), (3, [3]), (4, []), (99, [])]
    )
    async def test_deliveries_since(self, store: Store, since: int, numbers: list[int]) -> None:
        """Deliveries are read from `since` on, in their order."""
        record = await commit_start(store, "s-1", make_query(0))
        for q in range(3):
            record = await commit_step(store, record, answers={q: q}, asked=[make_query(q + 1)])

        assert [one.n for one in (await store.load("s-1", since)).deliveries] == numbers

    async def test_since_the_first_open_query(self, store: Store) -> None:
        """With -1, deliveries are read from the earliest with an open query."""
        record = await commit_start(store, "s-1", make_query(0))
        record = await commit_step(
            store, record, answers={0: 0}, asked=[make_query(1), make_query(2)]
        )
        record = await commit_step(store, record, answers={2: 2}, asked=[make_query(3)])

        assert [one.n for one in (await store.load("s-1", -1)).deliveries] == [1, 2]

    async def test_since_when_nothing_is_open(self, store: Store) -> None:
        """With -1 and nothing open there is nothing to read."""
        record = await commit_start(store, "s-1", make_query(0))
        await commit_step(store, record, answers={0: 0})

        assert (await store.load("s-1", -1)).deliveries == []

    async def test_since_the_program_began_again(self, store: Store) -> None:
        """With -2, deliveries are read from the last restart; without a restart, all."""
        record = await commit_start(store, "s-1", make_query(0))
        assert [one.n for one in (await store.load("s-1", FROM_RESTART)).deliveries] == [0]
        for q in range(3):
            record = await commit_step(
                store,
                record,
                answers={q: q},
                asked=[make_query(q + 1)],
                tip={"metrics": Metrics(begun=q)},
            )
            found = await store.load("s-1", FROM_RESTART)
            assert ([one.n for one in found.deliveries], found.head) == (
                [*range(q, q + 2)],
                record.head,
            )

    async def test_a_fork_since_the_program_began_again(self, store: Store) -> None:
        """The shared deliveries of a fork are read from the last restart too."""
        record = await commit_start(store, "s-1", make_query(0))
        for q in range(3):
            record = await commit_step(
                store,
                record,
                answers={q: q},
                asked=[make_query(q + 1)],
                tip={"metrics": Metrics(begun=2)},
            )
        other = await commit_fork(store, record, "s-2", 2)
        other = await commit_step(
            store, other, answers={2: 2}, asked=[make_query(3)], tip={"metrics": Metrics(begun=1)}
        )
        await commit_step(
            store, other, answers={3: 3}, asked=[make_query(4)], tip={"metrics": Metrics(begun=1)}
        )

        assert [one.n for one in (await store.load("s-2", FROM_RESTART)).deliveries] == [1, 2, 3, 4]
        assert [one.n for one in (await store.load("s-1", FROM_RESTART)).deliveries] == [2, 3]

    async def test_find_by_key(self, store: Store) -> None:
        """A key finds its session, and only the exact key does."""
        await commit_start(store, "s-1", key="mine")
        await commit_start(store, "s-2")

        assert await store.find("mine") == "s-1"
        assert [await store.find(key) for key in ("Mine", "min", "mine ", "", "s-2", "%")] == [
            None
        ] * 6

    async def test_a_store_says_what_it_is(self, store: Store) -> None:
        """`where` names the store for people, and `durability` what a commit survives."""
        assert store.where
        assert store.durability in ("none", "process", "mixed", "power")

    async def test_alone_nobody_else_has_written(self, store: Store) -> None:
        """A handle's own commits are not changes by another process."""
        await store.changed()
        await commit_start(store, "s-1")

        assert await store.changed() is False


class ListContract(StoreContractBase):
    """What `list` shows."""

    async def test_the_newest_session_is_first(self, store: Store) -> None:
        """Sessions are listed by birth, the newest first, and by id where that is the same."""
        for id, at in [("s-2", 10.0), ("s-1", 30.0), ("s-5", 20.0), ("s-3", 20.0), ("s-4", 20.0)]:
            await commit_start(store, id, created_at=at)

        assert list_session_ids(await store.list(SessionFilter())) == [
            "s-1",
            "s-5",
            "s-4",
            "s-3",
            "s-2",
        ]

    async def test_a_summary_is_birth_and_head(self, store: Store) -> None:
        """A listed summary equals the loaded session."""
        record = await commit_start(store, "s-1", make_query(0), labels={"a": "b"})

        (summary,) = await store.list(SessionFilter())

        assert (summary.birth, summary.head) == (record.birth, record.head)

    async def test_pages_follow_each_other(self, store: Store) -> None:
        """Pages follow each other without a gap or a repetition, also among the same birth
        times.
        """
        for n in range(7):
            await commit_start(store, f"s-{n}", created_at=float(n // 3))
        pages = []
        after = None
        while page := list_session_ids(await store.list(SessionFilter(limit=3, after=after))):
            pages.append(page)
            after = page[-1]

        assert pages == [["s-6", "s-5", "s-4"], ["s-3", "s-2", "s-1"], ["s-0"]]

    async def test_a_page_after_a_deleted_session(self, store: Store) -> None:
        """After the sessions of a page are deleted, the next page still follows."""
        minted = [mint(1000.0 + n, n) for n in range(4)]
        for n, id in enumerate(minted):
            await commit_start(store, id, created_at=1000.0 + n)
        page = list_session_ids(await store.list(SessionFilter(limit=2)))
        for id in page:
            await store.delete(id, 1)

        assert list_session_ids(await store.list(SessionFilter(limit=2, after=page[-1]))) == [
            minted[1],
            minted[0],
        ]

    async def test_a_page_of_a_filter(self, store: Store) -> None:
        """`after` and `limit` count what the filter lets through."""
        for n in range(6):
            await commit_start(store, f"s-{n}", created_at=float(n), labels={"odd": str(n % 2)})

        wanted = SessionFilter(labels={"odd": "1"}, limit=1, after=SessionId("s-5"))

        assert list_session_ids(await store.list(wanted)) == ["s-3"]

    @pytest.mark.parametrize("limit", [0, 1])
    async def test_a_list_has_a_limit(self, store: Store, limit: int) -> None:
        """At most the requested number is listed."""
        await commit_start(store, "s-1")
        await commit_start(store, "s-2")

        assert len(await store.list(SessionFilter(limit=limit))) == limit

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ((), ["s-5", "s-4", "s-3", "s-2", "s-1"]),
            ((SessionState.PAUSED,), ["s-1"]),
            ((SessionState.RUNNING,), ["s-2"]),
            ((SessionState.COMPLETED, SessionState.CANCELLED), ["s-5", "s-3"]),
            ((SessionState.FAILED,), ["s-4"]),
        ],
    )
    async def test_a_list_by_state(
        self, store: Store, wanted: tuple[SessionState, ...], found: list[str]
    ) -> None:
        """Any of the given states; without states, all."""
        records = [await commit_start(store, f"s-{n}", created_at=float(n)) for n in range(1, 6)]
        await commit_touch(store, records[1], tip={"state": SessionState.RUNNING})
        await commit_end(store, records[2], Returned(1))
        await commit_end(store, records[3], Raised("no"))
        await commit_end(store, records[4], Stopped())

        assert list_session_ids(await store.list(SessionFilter(state=wanted))) == found

    async def test_the_longest_unmoved_is_first(self, store: Store) -> None:
        """With `older_than`, sessions are listed by when they last moved, page after page."""
        for n, at in enumerate([30.0, 10.0, 40.0, 20.0, 10.0]):
            record = await commit_start(store, f"s-{n}", created_at=float(n))
            await commit_step(store, record, outcome=Returned(n), at=at)
        pages = []
        after = None
        wanted = SessionFilter(state=(SessionState.COMPLETED,), older_than=40.0, limit=3)
        while page := await store.list(msgspec.structs.replace(wanted, after=after)):
            pages.append(list_session_ids(page))
            after = page[-1].birth.id

        assert pages == [["s-1", "s-4", "s-3"], ["s-0"]]
        assert list_session_ids(await store.list(SessionFilter(older_than=15.0))) == ["s-1", "s-4"]

    @pytest.mark.parametrize("limit", [2, 1000])
    async def test_filters_of_many_sessions(self, store: Store, limit: int) -> None:
        """Every pair of filters finds what both match, newest first, also if both match more than
        a store counts.
        """
        many = 640
        odd, ended = {"odd": "1"}, (SessionState.COMPLETED, SessionState.FAILED)
        for n in range(many):
            labels = {"odd": str(n % 2), "all": "x"}
            change = make_start(
                f"s-{n:04}", created_at=float(n), program=f"m:p{n % 3 == 0}", labels=labels
            )
            if n % 4:
                change = make_start(
                    f"s-{n:04}", created_at=float(n), program=f"m:p{n % 3 == 0}", labels=labels
                )
                change.head.state = SessionState.COMPLETED if n % 4 == 1 else SessionState.FAILED
                change.head.open_from = 1
            await store.commit(change, 0)
        tests: dict[str, tuple[Any, Callable[[int], object]]] = {
            "state": (ended, lambda n: n % 4),
            "programs": (("pTrue", "m:pNone"), lambda n: n % 3 == 0),
            "labels": (odd, lambda n: n % 2),
            "prefix": ("s-00", lambda n: n < 100),
        }
        for one, (first, matches) in tests.items():
            for other, (second, also) in tests.items():
                wanted: dict[str, Any] = {one: first, other: second}
                found = await store.list(SessionFilter(**wanted, limit=limit))
                expected = [n for n in reversed(range(many)) if matches(n) and also(n)]
                assert list_session_ids(found) == [f"s-{n:04}" for n in expected[:limit]], wanted

    @pytest.mark.parametrize(
        ("program", "found"),
        [
            ("pkg.mod:plan_a", ["s-1"]),
            ("plan_a", ["s-1"]),
            ("a.py:plan_a", []),
            ("/x/a.py:planXa", ["s-2"]),
            ("Plan_a", []),
            ("plan", []),
            ("%", []),
            ("", []),
        ],
    )
    async def test_a_list_by_program(self, store: Store, program: str, found: list[str]) -> None:
        """A program is named by its whole reference, or by what follows the colon."""
        await commit_start(store, "s-1", program="pkg.mod:plan_a")
        await commit_start(store, "s-2", program="/x/a.py:planXa")

        assert list_session_ids(await store.list(SessionFilter(programs=(program,)))) == found

    @pytest.mark.parametrize(
        ("labels", "found"),
        [
            ({}, ["s-3", "s-2", "s-1"]),
            ({"team": "blue"}, ["s-2", "s-1"]),
            ({"team": "blue", "env": "prod"}, ["s-2"]),
            ({"team": "blue", "env": "test"}, []),
            ({"team": "Blue"}, []),
            ({'a."b$[0]': "1"}, ["s-3"]),
            ({'a."b$[0]': "2"}, []),
        ],
    )
    async def test_a_list_by_labels(
        self, store: Store, labels: dict[str, str], found: list[str]
    ) -> None:
        """Every label named must be there with that value; any text can be a label."""
        await commit_start(store, "s-1", labels={"team": "blue"})
        await commit_start(store, "s-2", labels={"team": "blue", "env": "prod"})
        await commit_start(store, "s-3", labels={'a."b$[0]': "1"})

        assert list_session_ids(await store.list(SessionFilter(labels=labels))) == found

    @pytest.mark.parametrize(
        ("prefix", "found"),
        [
            ("", ["s_2", "s-11", "s-1"]),
            ("s-1", ["s-11", "s-1"]),
            ("s_", ["s_2"]),
            ("S", []),
            ("%", []),
        ],
    )
    async def test_a_list_by_prefix(self, store: Store, prefix: str, found: list[str]) -> None:
        """By the beginning of an id, character by character."""
        for id in ("s-1", "s-11", "s_2"):
            await commit_start(store, id)

        assert list_session_ids(await store.list(SessionFilter(prefix=prefix))) == found

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ({"older_than": 20.0}, ["s-1"]),
            ({"newer_than": 20.0}, ["s-3", "s-2"]),
            ({"newer_than": 20.0, "older_than": 30.0}, ["s-2"]),
        ],
    )
    async def test_a_list_by_age(
        self, store: Store, wanted: dict[str, Any], found: list[str]
    ) -> None:
        """Age counts from the last move, not from birth; `older_than` is before, `newer_than` at or
        after.
        """
        for id, at in [("s-1", 10.0), ("s-2", 20.0), ("s-3", 30.0)]:
            await commit_touch(store, await commit_start(store, id), tip={"updated_at": at})

        assert list_session_ids(await store.list(SessionFilter(**wanted))) == found

    async def test_a_list_by_parent(self, store: Store) -> None:
        """The children of one session."""
        await commit_start(store, "s-1")
        await commit_start(store, "s-2", parent="s-1")
        await commit_start(store, "s-3", parent="s-2")

        assert list_session_ids(await store.list(SessionFilter(parent=SessionId("s-1")))) == ["s-2"]

    async def test_all_conditions_hold_together(self, store: Store) -> None:
        """A session is listed only if it matches every condition."""
        await commit_start(store, "s-1", program="m:f", labels={"a": "b"})
        await commit_start(store, "s-2", program="m:f")
        await commit_start(store, "t-3", program="m:f", labels={"a": "b"})
        await commit_start(store, "s-4", program="m:g", labels={"a": "b"})

        wanted = SessionFilter(
            state=(SessionState.PAUSED,), programs=("m:f",), labels={"a": "b"}, prefix="s-"
        )

        assert list_session_ids(await store.list(wanted)) == ["s-1"]


OTHERS = sorted(set(Kind) - ANSWERABLE)


async def list_inbox(
    store: Store, kind: Kind | None = None, to: str | None = None, limit: int = 99
) -> list[tuple[str, int]]:
    """Session and number of the inbox rows."""
    return [
        (birth.id, query.q) for birth, query, _ in await store.inbox(kind=kind, to=to, limit=limit)
    ]


class InboxContract(StoreContractBase):
    """The inbox contains exactly the open queries that can be answered from outside."""

    async def test_a_row_is_birth_query_and_moment(self, store: Store) -> None:
        """A row has the session, the query and the time it was asked."""
        record = await commit_start(store, "s-1", make_query(0))
        query = make_query(1, Kind.APPROVAL, to="ada", args={"amount": 3}, expires_at=9.5)
        record = await commit_step(
            store, record, answers={0: "a"}, asked=[query, make_query(2)], at=1234.5
        )

        inbox = await store.inbox(kind=None, to=None, limit=9)

        assert inbox == [(record.birth, query, 1234.5), (record.birth, make_query(2), 1234.5)]

    @pytest.mark.parametrize("kind", sorted(ANSWERABLE))
    async def test_what_can_be_answered(self, store: Store, kind: Kind) -> None:
        """Every kind that can be answered from outside is listed, a signal only if it is named."""
        await commit_start(store, "s-1", make_query(0, kind))

        assert await list_inbox(store) == ([] if kind is Kind.SIGNAL else [("s-1", 0)])
        assert await list_inbox(store, kind=kind) == [("s-1", 0)]

    @pytest.mark.parametrize("kind", OTHERS)
    async def test_what_moves_by_itself(self, store: Store, kind: Kind) -> None:
        """Calls, timers, children and durable values are not listed."""
        await commit_start(store, "s-1", make_query(0, kind))

        assert await list_inbox(store) == []
        assert await list_inbox(store, kind=kind) == []

    @pytest.mark.parametrize("kind", sorted(EFFECTS))
    async def test_an_unknown_outcome(self, store: Store, kind: Kind) -> None:
        """An effect that was started and lost is closed and noted in one change, and listed as
        noted.
        """
        query = make_query(0, kind, rerun=Rerun.ASK)
        record = await commit_start(store, "s-1", query)
        record = await commit_touch(store, record, effects=[Effect(0, "w", 1.0)])
        assert await list_inbox(store) == []
        question = make_query(
            0, kind, rerun=Rerun.ASK, prompt="Did it happen?", schema={"type": "boolean"}
        )

        record = await commit_touch(
            store, record, closed=[0], notices=[make_notice(question, at=1111.0)]
        )

        assert await store.inbox(kind=kind, to=None, limit=9) == [(record.birth, question, 1111.0)]
        assert record.effects == []
        assert await find_problems(store) == []

    async def test_the_oldest_session_is_first(self, store: Store) -> None:
        """The questions of the oldest session come first, in the order asked, whatever their
        kind.
        """
        late = await commit_start(store, "s-1", make_query(0), created_at=10.0)
        await commit_start(store, "s-2", make_query(0), created_at=30.0)
        await commit_start(store, "s-3", make_query(0, Kind.INPUT), created_at=20.0)
        await commit_step(
            store, late, answers={0: "a"}, asked=[make_query(1, Kind.INPUT), make_query(2)], at=40.0
        )

        assert await list_inbox(store) == [("s-1", 1), ("s-1", 2), ("s-3", 0), ("s-2", 0)]

    async def test_pages_of_the_inbox_follow_each_other(self, store: Store) -> None:
        """Pages follow each other without a gap or a repetition, also if the last question of a
        page was answered meanwhile, and among sessions of one moment.
        """
        records = {}
        for n in range(5):
            asked = [make_query(0), make_query(1, Kind.APPROVAL), make_query(2, Kind.TOOL)]
            records[f"s-{n}"] = await commit_start(
                store, f"s-{n}", *asked, created_at=float(n // 2)
            )
        pages: list[list[tuple[str, int]]] = []
        after = None
        while page := await store.inbox(kind=None, to=None, limit=4, after=after):
            pages.append([(birth.id, query.q) for birth, query, _ in page])
            after = place_in_inbox(page[-1])
            if len(pages) == 1:
                await commit_step(store, records["s-1"], answers={0: "a"})

        assert pages == [
            [("s-0", 0), ("s-0", 1), ("s-0", 2), ("s-1", 0)],
            [("s-1", 1), ("s-1", 2), ("s-2", 0), ("s-2", 1)],
            [("s-2", 2), ("s-3", 0), ("s-3", 1), ("s-3", 2)],
            [("s-4", 0), ("s-4", 1), ("s-4", 2)],
        ]

    async def test_a_page_by_kind_and_addressee_follows(self, store: Store) -> None:
        """`after` holds for the questions that a kind or an addressee selects."""
        for n in range(3):
            asked = [make_query(0), make_query(1, Kind.INPUT, to="ada")]
            await commit_start(store, f"s-{n}", *asked, created_at=float(n))
        first = InboxPlace(0.0, "s-0", 1)

        for given, q in (({"kind": Kind.LLM}, 0), ({"to": "ada"}, 1), ({"kind": Kind.INPUT}, 1)):
            wanted: dict[str, Any] = {"kind": None, "to": None, **given}
            page = await store.inbox(**wanted, limit=9, after=first)
            assert [(birth.id, query.q) for birth, query, _ in page] == [("s-1", q), ("s-2", q)]

    async def test_the_inbox_has_a_limit(self, store: Store) -> None:
        """A limit keeps the oldest rows, not the first found."""
        for id, at in [("s-1", 30.0), ("s-2", 20.0), ("s-3", 10.0)]:
            await commit_start(store, id, make_query(0), make_query(1, Kind.INPUT), created_at=at)

        assert await list_inbox(store, limit=3) == [("s-3", 0), ("s-3", 1), ("s-2", 0)]
        assert await list_inbox(store, limit=0) == []

    async def test_the_inbox_by_kind(self, store: Store) -> None:
        """Only queries of the given kind."""
        await commit_start(
            store,
            "s-1",
            make_query(0),
            make_query(1, Kind.INPUT),
            make_query(2, Kind.APPROVAL),
            make_query(3),
        )

        assert await list_inbox(store, kind=Kind.LLM) == [("s-1", 0), ("s-1", 3)]
        assert await list_inbox(store, kind=Kind.APPROVAL) == [("s-1", 2)]
        assert await list_inbox(store, kind=Kind.TOOL) == []

    async def test_signals_are_listed_if_named(self, store: Store) -> None:
        """A wait for a signal is listed by its kind or addressee, and does not hide questions."""
        for id in ("s-1", "s-2"):
            await commit_start(
                store,
                id,
                make_query(0, Kind.SIGNAL, name="é\0"),
                make_query(1, Kind.SIGNAL, name="b", to="ada"),
                created_at=10.0,
            )
        await commit_start(
            store, "s-3", make_query(0, Kind.TOOL), make_query(1, Kind.INPUT), created_at=20.0
        )

        assert await list_inbox(store) == [("s-3", 0), ("s-3", 1)]
        assert await list_inbox(store, to="ada") == [("s-1", 1), ("s-2", 1)]
        assert await list_inbox(store, kind=Kind.SIGNAL, limit=3) == [
            ("s-1", 0),
            ("s-1", 1),
            ("s-2", 0),
        ]

    async def test_the_inbox_by_addressee(self, store: Store) -> None:
        """Only queries with exactly this addressee, of any kind."""
        queries = [
            make_query(0),
            make_query(1, Kind.INPUT, to="ada"),
            make_query(2, Kind.INPUT, to="Ada"),
            make_query(3, to="ada"),
            make_query(4, Kind.INPUT),
        ]
        await commit_start(store, "s-1", *queries)

        assert await list_inbox(store, to="ada") == [("s-1", 1), ("s-1", 3)]
        assert await list_inbox(store, to="ada", kind=Kind.LLM) == [("s-1", 3)]
        assert await list_inbox(store, to="bob") == []
        assert await list_inbox(store) == [("s-1", q) for q in range(5)]

    async def test_an_answered_query_leaves(self, store: Store) -> None:
        """A query is removed by the change that answers it; others of its delivery stay."""
        record = await commit_start(
            store,
            "s-1",
            make_query(0),
            make_query(1),
            make_query(2, Kind.INPUT),
            make_query(3, Kind.INPUT),
        )

        await commit_step(store, record, answers={0: "a", 2: "b"})

        assert await list_inbox(store) == [("s-1", 1), ("s-1", 3)]

    async def test_an_early_query_stays(self, store: Store) -> None:
        """A query stays as long as it is open, however many steps follow."""
        record = await commit_start(store, "s-1", make_query(0), make_query(1))
        for q in range(1, 6):
            record = await commit_step(store, record, answers={q: "a"}, asked=[make_query(q + 1)])

        assert await list_inbox(store) == [("s-1", 0), ("s-1", 6)]

    async def test_a_withdrawn_query_leaves(self, store: Store) -> None:
        """The loser of a race is removed by the change that withdraws it."""
        record = await commit_start(
            store, "s-1", make_query(0), make_query(1), make_query(2, Kind.APPROVAL)
        )

        await commit_step(store, record, answers={0: "a"}, withdrawn=[1, 2], asked=[make_query(3)])

        assert await list_inbox(store) == [("s-1", 3)]

    @pytest.mark.parametrize("kind", sorted(ANSWERABLE))
    async def test_an_answer_in_the_intake_hides_its_query(self, store: Store, kind: Kind) -> None:
        """A query whose answer waits for delivery is not listed."""
        record = await commit_start(store, "s-1", make_query(0, kind), make_query(1, kind))
        letter = Letter("answer", {"q": 0, "value": "a"}, 1.0)

        record = await commit_touch(
            store, record, letters=[letter], tip={"mail": 1, "state": SessionState.RUNNING}
        )
        assert await list_inbox(store, kind=kind) == [("s-1", 1)]
        record = await commit_step(
            store, record, answers={0: "a"}, read=[record.letters[0].id], tip={"mail": 0}
        )

        assert await list_inbox(store, kind=kind) == [("s-1", 1)]

    async def test_other_letters_hide_nothing(self, store: Store) -> None:
        """A signal or a cancel in the intake is not an answer."""
        record = await commit_start(store, "s-1", make_query(0))
        letters = [
            Letter("signal", {"name": "go", "value": 0}, 1.0),
            Letter("cancel", "enough", 1.0),
        ]

        await commit_touch(
            store, record, letters=letters, tip={"mail": 2, "state": SessionState.RUNNING}
        )

        assert await list_inbox(store) == [("s-1", 0)]

    @pytest.mark.parametrize("kind", sorted(ANSWERABLE))
    async def test_work_under_way_hides_its_query(self, store: Store, kind: Kind) -> None:
        """A query that a worker is answering is not listed; when the mark is removed, it is listed
        again.
        """
        query = make_query(0, kind)
        record = await commit_start(store, "s-1", query, make_query(1, kind))
        record = await commit_touch(
            store, record, effects=[Effect(0, "w", 1.0)], tip={"state": SessionState.RUNNING}
        )
        assert await list_inbox(store, kind=kind) == [("s-1", 1)]

        await commit_touch(store, record, closed=[0], notices=[make_notice(query)])

        assert await list_inbox(store, kind=kind) == [("s-1", 0), ("s-1", 1)]

    @pytest.mark.parametrize("outcome", [Returned(1), Raised("no"), Stopped()])
    async def test_an_ended_session_asks_nothing(
        self, store: Store, outcome: Returned | Raised | Stopped
    ) -> None:
        """The change that ends a session removes all its rows."""
        record = await commit_start(
            store, "s-1", make_query(0), make_query(1, Kind.INPUT), make_query(2, Kind.CALL)
        )
        record = await commit_touch(store, record, effects=[Effect(2, "w", 1.0)])

        ended = await commit_end(store, record, outcome)

        assert await list_inbox(store) == []
        assert ended.effects == []
        assert await list_orphans(store, set()) == []

    async def test_a_retried_session_asks_again(self, store: Store) -> None:
        """Queries that a retry lists as open are listed again."""
        record = await commit_start(store, "s-1", make_query(0), make_query(1, Kind.INPUT))
        failed = await commit_end(store, record, Raised("no"))

        await commit_step(store, failed, asked=[make_query(0), make_query(1, Kind.INPUT)])

        assert await list_inbox(store) == [("s-1", 0), ("s-1", 1)]

    async def test_a_running_session_may_be_answered(self, store: Store) -> None:
        """While one question is being answered, the others can be answered too."""
        await commit_start(
            store, "s-1", make_query(0), make_query(1, Kind.INPUT), state=SessionState.RUNNING
        )

        assert await list_inbox(store) == [("s-1", 0), ("s-1", 1)]
