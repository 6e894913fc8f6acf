"""What `inbox` shows: what somebody outside can answer now, the oldest first."""

from __future__ import annotations

import pytest

from everhold.core.query import ANSWERABLE, EFFECTS, Kind, Rerun
from everhold.core.session import SessionState
from everhold.core.status import Raised, Returned, Stopped
from everhold.ports.store import Effect, Letter, Store
from everhold.testing.conformance.factories import (
    commit_end,
    commit_start,
    commit_step,
    commit_touch,
    make_notice,
    make_query,
)
from everhold.testing.conformance.harness import (
    StoreContractBase,
    find_problems,
    list_orphans,
)

OTHERS = sorted(set(Kind) - ANSWERABLE)


async def list_inbox(
    store: Store, kind: Kind | None = None, to: str | None = None, limit: int = 99
) -> list[tuple[str, int]]:
    """Session and number of what the inbox shows."""
    return [
        (birth.id, query.q) for birth, query, _ in await store.inbox(kind=kind, to=to, limit=limit)
    ]


class InboxContract(StoreContractBase):
    """The inbox holds exactly the open queries that somebody outside can answer."""

    async def test_a_row_is_birth_query_and_moment(self, store: Store) -> None:
        """A row says who asks, what is asked and since when."""
        record = await commit_start(store, "s-1", make_query(0))
        query = make_query(1, Kind.APPROVAL, to="ada", args={"amount": 3}, expires_at=9.5)
        record = await commit_step(
            store, record, answers={0: "a"}, asked=[query, make_query(2)], at=1234.5
        )

        inbox = await store.inbox(kind=None, to=None, limit=9)

        assert inbox == [(record.birth, query, 1234.5), (record.birth, make_query(2), 1234.5)]

    @pytest.mark.parametrize("kind", sorted(ANSWERABLE))
    async def test_what_can_be_answered(self, store: Store, kind: Kind) -> None:
        """Every kind that somebody outside can answer is shown."""
        await commit_start(store, "s-1", make_query(0, kind))

        assert await list_inbox(store) == [("s-1", 0)]
        assert await list_inbox(store, kind=kind) == [("s-1", 0)]

    @pytest.mark.parametrize("kind", OTHERS)
    async def test_what_moves_by_itself(self, store: Store, kind: Kind) -> None:
        """Calls, timers, children and durable values are nobody's to answer."""
        await commit_start(store, "s-1", make_query(0, kind))

        assert await list_inbox(store) == []
        assert await list_inbox(store, kind=kind) == []

    @pytest.mark.parametrize("kind", sorted(EFFECTS))
    async def test_an_unknown_outcome(self, store: Store, kind: Kind) -> None:
        """An effect that was started and lost is closed and noted in one change, and shown as
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

    async def test_the_oldest_question_is_first(self, store: Store) -> None:
        """The oldest question comes first, whatever its session, kind and number."""
        late = await commit_start(store, "s-1", make_query(0), created_at=10.0)
        await commit_start(store, "s-2", make_query(0), created_at=30.0)
        await commit_start(store, "s-3", make_query(0, Kind.INPUT), created_at=20.0)
        await commit_step(
            store, late, answers={0: "a"}, asked=[make_query(1, Kind.INPUT), make_query(2)], at=40.0
        )

        assert await list_inbox(store) == [("s-3", 0), ("s-2", 0), ("s-1", 1), ("s-1", 2)]

    async def test_the_inbox_has_a_limit(self, store: Store) -> None:
        """A limit keeps the oldest, not the first that were found."""
        for id, at in [("s-1", 30.0), ("s-2", 20.0), ("s-3", 10.0)]:
            await commit_start(store, id, make_query(0), make_query(1, Kind.INPUT), created_at=at)

        assert await list_inbox(store, limit=3) == [("s-3", 0), ("s-3", 1), ("s-2", 0)]
        assert await list_inbox(store, limit=0) == []

    async def test_the_inbox_by_kind(self, store: Store) -> None:
        """Only queries of the kind asked for."""
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

    async def test_the_inbox_without_a_signal(self, store: Store) -> None:
        """Signals of one name are left out before the rest is counted; nothing else of that name
        is.
        """
        for id in ("s-1", "s-2"):
            await commit_start(
                store,
                id,
                make_query(0, Kind.SIGNAL, name="é\0"),
                make_query(1, Kind.SIGNAL, name="b"),
                created_at=10.0,
            )
        await commit_start(
            store,
            "s-3",
            make_query(0, Kind.TOOL, name="é\0"),
            make_query(1, Kind.INPUT, name="é\0"),
            created_at=20.0,
        )

        async def but(limit: int) -> list[tuple[str, int]]:
            found = await store.inbox(kind=None, to=None, limit=limit, without="é\0")
            return [(birth.id, query.q) for birth, query, _ in found]

        assert await but(9) == [("s-1", 1), ("s-2", 1), ("s-3", 0), ("s-3", 1)]
        assert await but(2) == [("s-1", 1), ("s-2", 1)]

    async def test_the_inbox_by_addressee(self, store: Store) -> None:
        """Only queries addressed to exactly that one, of any kind."""
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
        """A query leaves with the change that answers it; others of its delivery stay."""
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
        """A query stays as long as it is open, however far the session goes."""
        record = await commit_start(store, "s-1", make_query(0), make_query(1))
        for q in range(1, 6):
            record = await commit_step(store, record, answers={q: "a"}, asked=[make_query(q + 1)])

        assert await list_inbox(store) == [("s-1", 0), ("s-1", 6)]

    async def test_a_withdrawn_query_leaves(self, store: Store) -> None:
        """The loser of a race leaves with the change that withdraws it."""
        record = await commit_start(
            store, "s-1", make_query(0), make_query(1), make_query(2, Kind.APPROVAL)
        )

        await commit_step(store, record, answers={0: "a"}, withdrawn=[1, 2], asked=[make_query(3)])

        assert await list_inbox(store) == [("s-1", 3)]

    @pytest.mark.parametrize("kind", sorted(ANSWERABLE))
    async def test_an_answer_in_the_intake_hides_its_query(self, store: Store, kind: Kind) -> None:
        """A query whose answer waits to be handed over is not asked again."""
        record = await commit_start(store, "s-1", make_query(0, kind), make_query(1, kind))
        letter = Letter("answer", {"q": 0, "value": "a"}, 1.0)

        record = await commit_touch(
            store, record, letters=[letter], tip={"mail": 1, "state": SessionState.RUNNING}
        )
        assert await list_inbox(store) == [("s-1", 1)]
        record = await commit_step(
            store, record, answers={0: "a"}, read=[record.letters[0].id], tip={"mail": 0}
        )

        assert await list_inbox(store) == [("s-1", 1)]

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
        """A query that a worker answers right now is nobody else's; when the mark goes, it is shown
        again.
        """
        query = make_query(0, kind)
        record = await commit_start(store, "s-1", query, make_query(1, kind))
        record = await commit_touch(
            store, record, effects=[Effect(0, "w", 1.0)], tip={"state": SessionState.RUNNING}
        )
        assert await list_inbox(store) == [("s-1", 1)]

        await commit_touch(store, record, closed=[0], notices=[make_notice(query)])

        assert await list_inbox(store) == [("s-1", 0), ("s-1", 1)]

    @pytest.mark.parametrize("outcome", [Returned(1), Raised("no"), Stopped()])
    async def test_an_ended_session_asks_nothing(
        self, store: Store, outcome: Returned | Raised | Stopped
    ) -> None:
        """Everything a session asked leaves with the change in which it ends."""
        record = await commit_start(
            store, "s-1", make_query(0), make_query(1, Kind.INPUT), make_query(2, Kind.CALL)
        )
        record = await commit_touch(store, record, effects=[Effect(2, "w", 1.0)])

        ended = await commit_end(store, record, outcome)

        assert await list_inbox(store) == []
        assert ended.effects == []
        assert await list_orphans(store, set()) == []

    async def test_a_retried_session_asks_again(self, store: Store) -> None:
        """What a retry lists as open is shown again."""
        record = await commit_start(store, "s-1", make_query(0), make_query(1, Kind.INPUT))
        failed = await commit_end(store, record, Raised("no"))

        await commit_step(store, failed, asked=[make_query(0), make_query(1, Kind.INPUT)])

        assert await list_inbox(store) == [("s-1", 0), ("s-1", 1)]

    async def test_a_running_session_may_be_answered(self, store: Store) -> None:
        """While one question is worked on, the others can be answered."""
        await commit_start(
            store, "s-1", make_query(0), make_query(1, Kind.INPUT), state=SessionState.RUNNING
        )

        assert await list_inbox(store) == [("s-1", 0), ("s-1", 1)]
