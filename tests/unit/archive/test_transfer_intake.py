"""What waits for a session moves along with it, and what has ended is known where it arrives."""

import hashlib
import io
import json

import pytest

from everhold.core.intake import IntakeItem, ItemKind, ItemState
from everhold.core.lease import LeaseGranted
from everhold.errors import BadExport, InputConflict
from everhold.ports.store import SessionFilter
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.factories import commit_end, commit_start, make_query, make_step
from everhold.testing.conformance.harness import list_ready, using_store
from everhold.testing.conformance.intake import (
    act_on_intake,
    enqueue_items,
    list_all_items,
    make_input,
    make_task,
)
from everhold.testing.conformance.lease import (
    BOB,
    get_current_lease,
    take_free_lease,
    try_take_lease,
)
from tests.postgres import fresh


def made(kind, folder, request):
    """A store of a kind, empty."""
    if kind == "postgres":
        return PostgresStore(fresh(request.getfixturevalue("postgres"), "moved"))
    return MemoryStore() if kind == "memory" else SQLiteStore(folder / f"{kind}.db")


async def furnished(store):
    """A session for which something waits, is claimed, was completed and was cancelled."""
    await commit_start(store, "s-1", make_query(0))
    await enqueue_items(
        store,
        make_input("i-1", key="k-1"),
        make_input("i-2", key="k\0-2"),
        make_task("i-3", available_at=5e9),
        make_input("i-4"),
    )
    fence = await take_free_lease(store)
    claim = await act_on_intake(store, lambda intake: intake.claim_next(fence, "c-1", 1))
    await act_on_intake(store, lambda intake: intake.complete(claim, {"step": 1}))
    await act_on_intake(store, lambda intake: intake.cancel(["i-4"], "é"))
    await act_on_intake(store, lambda intake: intake.claim_next(fence, "c-2"))


async def exported(store, file, **options):
    await Runtime(store, clock=ManualClock(), recover=False).archive.export(file, **options)


async def imported(store, file):
    return await Runtime(store, clock=ManualClock(), recover=False).archive.import_(file)


KINDS = [
    ("memory", "sqlite"),
    ("sqlite", "memory"),
    pytest.param(("sqlite", "postgres"), marks=pytest.mark.xdist_group("postgres")),
    pytest.param(("postgres", "sqlite"), marks=pytest.mark.xdist_group("postgres")),
]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
async def test_what_waits_moves_along(tmp_path, request, kinds):
    """Items in order, with their ends and keys; the claim and the lease stay behind."""
    there, here = (made(kind, tmp_path, request) for kind in kinds)
    file = tmp_path / "file.jsonl"
    async with using_store(there), using_store(here):
        await furnished(there)
        before = await list_all_items(there)
        await exported(there, file)
        await imported(here, file)

        found = await list_all_items(here)
        assert [
            (item.id, item.seq, item.key, item.body, item.state, item.end)
            for item in found.values()
        ] == [
            (item.id, item.seq, item.key, item.body, item.state, item.end)
            for item in before.values()
        ]
        assert [item.state for item in found.values()] == [
            ItemState.COMPLETED,
            ItemState.WAITING,
            ItemState.WAITING,
            ItemState.CANCELLED,
        ]
        assert [item.hold for item in found.values()] == [None] * 4
        assert before["i-2"].hold is not None and await get_current_lease(here) is None
        assert await list_ready(here, 9) == ["s-1"]
        assert await here.maintenance.verify() == []

        lines = file.read_bytes().splitlines()
        await exported(here, file)
        assert file.read_bytes().splitlines()[1:] == lines[1:]


async def test_a_key_is_known_where_it_arrives(tmp_path):
    """Said again, it is what was said; other words are a conflict; what waits can be claimed and
    handed over.
    """
    there, here, file = MemoryStore(), MemoryStore(), tmp_path / "file.jsonl"
    await furnished(there)
    await exported(there, file)
    await imported(here, file)

    again = IntakeItem("i-9", ItemKind.INPUT, {"text": "i-1"}, key="k-1")
    assert not (await act_on_intake(here, lambda intake: intake.enqueue(again), "k-1")).new
    with pytest.raises(InputConflict):
        await act_on_intake(
            here, lambda intake: intake.enqueue(make_input("i-9", key="k-1")), "k-1"
        )
    assert (
        await act_on_intake(
            here, lambda intake: intake.enqueue(make_input("i-9", key="k-9")), "k-9"
        )
    ).item.seq == 5

    found = await try_take_lease(here, BOB, "t-9")
    assert isinstance(found, LeaseGranted) and found.lease.generation == 1
    claim = await act_on_intake(here, lambda intake: intake.claim_next(found.lease.fence, "c"))
    record = await here.load("s-1")
    await here.commit(
        make_step(record, answers={0: "a"}, intake=lambda intake: intake.complete(claim)), 1
    )
    assert (await list_all_items(here))["i-2"].state is ItemState.COMPLETED


async def test_what_waits_for_a_session_that_has_ended_moves_too(tmp_path):
    """Whoever looks there tells it so."""
    there, here, file = MemoryStore(), MemoryStore(), tmp_path / "file.jsonl"
    record = await commit_start(there, "s-1")
    await enqueue_items(there, make_input("i-1"))
    await commit_end(there, record)
    await exported(there, file)
    await imported(here, file)

    assert await list_ready(here, 9) == ["s-1"]


async def test_what_waits_is_redacted(tmp_path):
    """It is somebody's words."""
    store, file = MemoryStore(), tmp_path / "file.jsonl"
    await commit_start(store, "s-1")
    await enqueue_items(
        store, IntakeItem("i-1", ItemKind.INPUT, {"content": "Ann"}), make_input("i-2")
    )
    await act_on_intake(store, lambda intake: intake.cancel(["i-2"], "Ann said so"))
    await exported(store, file, redact=True)

    assert "Ann" not in file.read_text() and '"content":"xxx"' in file.read_text()


class Moving(MemoryStore):
    """A store in which a step lands between two reads of an export."""

    moves = 0

    async def intake(self, session_id, act, *, whole=False, **more):
        if whole and self.moves:
            self.moves -= 1
            record = await self.load(session_id)
            waiting = await super().intake(session_id, lambda intake: intake.waiting())
            done = (lambda intake: intake.cancel([waiting[0].id])) if waiting else None
            await self.commit(
                make_step(record, asked=[make_query(record.head.n + 1)], intake=done),
                record.head.revision,
            )
        return await super().intake(session_id, act, whole=whole, **more)


async def test_a_session_and_its_intake_are_of_one_moment(tmp_path):
    """What steps hand over while it is read is in its journal or waits, never both, never
    neither.
    """
    store, here, file = Moving(), MemoryStore(), tmp_path / "file.jsonl"
    await commit_start(store, "s-1", make_query(0))
    await enqueue_items(store, *(make_input(f"i-{n}") for n in range(3)))
    store.moves = 2
    await exported(store, file)
    await imported(here, file)

    record = await here.load("s-1")
    assert [one.n for one in record.deliveries] == [0, 1, 2]
    assert [item.waits for item in (await list_all_items(here)).values()] == [False, False, True]


ODD = [
    (lambda item: item.update(id="i-2"), "empty or repeated ids or keys"),
    (lambda item: item.update(key="k\0-2"), "empty or repeated ids or keys"),
    (lambda item: item.update(key=" "), "empty or repeated ids or keys"),
    (lambda item: item.update(state="lost"), "lost"),
    (lambda item: item.update(body=2**70), "64 bits"),
    (lambda item: item.pop("kind"), "kind"),
]


@pytest.mark.parametrize(("change", "reason"), ODD)
async def test_an_intake_that_makes_no_sense_is_refused(tmp_path, change, reason):
    """With a right checksum too; nothing arrives."""
    there, here, file = MemoryStore(), MemoryStore(), tmp_path / "file.jsonl"
    await furnished(there)
    await exported(there, file)
    lines = file.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"line":"item"' in line)
    line = json.loads(lines[at])
    change(line["item"])
    lines[at] = json.dumps(line).encode() + b"\n"
    last = next(n for n, line in enumerate(lines) if b'"line":"end"' in line)
    ending = json.loads(lines[last])
    ending["sha256"] = hashlib.sha256(b"".join(lines[1:last])).hexdigest()
    lines[last] = json.dumps(ending).encode() + b"\n"

    with pytest.raises(BadExport, match=reason):
        await imported(here, io.BytesIO(b"".join(lines)))
    assert await here.list(SessionFilter()) == []
