"""Tests of attachments: stored once, read by the sessions that stored them, deleted with the last
one.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from everhold.errors import BadArguments, UnknownAttachment, UnknownSession
from everhold.ports.attachment import Attachment
from everhold.ports.store import Store
from everhold.testing.conformance.factories import (
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    make_query,
)
from everhold.testing.conformance.harness import (
    StoreContractBase,
    find_problems,
)

DATA = b"\x00\xff bytes, not text"


def make_attachment(data: bytes, media_type: str = "text/plain") -> Attachment:
    return Attachment(sha256(data).hexdigest(), len(data), media_type)


async def is_attachment_refused(store: Store, session_id: str, id: str) -> bool:
    with pytest.raises(UnknownAttachment) as told:
        await store.attachment(session_id, id)
    return told.value.attachment_id == id


class AttachmentContract(StoreContractBase):
    """`attach`, `attachment`, `attachments`, and the effect of `delete` on them."""

    async def test_what_is_kept_is_read_again(self, store: Store) -> None:
        """The bytes and their metadata are read back, also for an empty attachment."""
        await commit_start(store, "s-1")
        for data in (DATA, b""):
            await store.attach("s-1", make_attachment(data, "image/png"), data, 5.0)

            assert await store.attachment("s-1", make_attachment(data).id) == (
                make_attachment(data, "image/png"),
                data,
            )

    async def test_attachments_are_listed_in_the_order_kept(self, store: Store) -> None:
        """In the order of their creation; an empty list if there are none."""
        await commit_start(store, "s-1")
        assert await store.attachments("s-1") == []
        for at, data in enumerate([b"c", b"a", b"b"]):
            await store.attach("s-1", make_attachment(data), data, float(at))

        assert await store.attachments("s-1") == [
            make_attachment(b"c"),
            make_attachment(b"a"),
            make_attachment(b"b"),
        ]

    async def test_the_same_bytes_are_kept_once(self, store: Store) -> None:
        """Storing the same bytes again changes nothing; the first metadata stays."""
        await commit_start(store, "s-1")
        await store.attach("s-1", make_attachment(DATA), DATA, 1.0)
        await store.attach("s-1", make_attachment(DATA, "image/png"), DATA, 2.0)

        assert await store.attachments("s-1") == [make_attachment(DATA)]

    async def test_a_large_attachment(self, store: Store) -> None:
        """A2: three megabytes of varied data are stored like a few bytes."""
        data = b"".join(n.to_bytes(4, "big") for n in range(3 * 2**18)) + b"\0"
        await commit_start(store, "s-1")
        await store.attach("s-1", make_attachment(data), data, 1.0)

        assert await store.attachment("s-1", make_attachment(data).id) == (
            make_attachment(data),
            data,
        )

    async def test_the_same_bytes_at_once(self, store: Store) -> None:
        """A4: concurrent writers of the same bytes all succeed, and the bytes are stored once."""
        await commit_start(store, "s-1")
        await asyncio.gather(
            *(store.attach("s-1", make_attachment(DATA), DATA, float(n)) for n in range(8))
        )

        assert await store.attachments("s-1") == [make_attachment(DATA)]
        assert (await store.attachment("s-1", make_attachment(DATA).id))[1] == DATA
        assert await find_problems(store) == []

    @pytest.mark.parametrize("data", [b"other", DATA[:-1], DATA + b"\0", DATA[:-1] + b"T"])
    @pytest.mark.parametrize("known", [True, False])
    async def test_bytes_that_are_not_what_they_are_called(
        self, store: Store, data: bytes, known: bool
    ) -> None:
        """A5, A7, A8: another length, other content, or both, under a known or a new name, are
        refused, and nothing changes.
        """
        await commit_start(store, "s-1")
        if known:
            await store.attach("s-1", make_attachment(DATA), DATA, 1.0)

        with pytest.raises(BadArguments):
            await store.attach("s-1", make_attachment(DATA), data, 2.0)
        assert await store.attachments("s-1") == ([make_attachment(DATA)] if known else [])
        assert not known or (await store.attachment("s-1", make_attachment(DATA).id))[1] == DATA
        assert await find_problems(store) == []

    async def test_another_session_cannot_read_it(self, store: Store) -> None:
        """Knowing the name is not enough; a session that stored the same bytes reads its own."""
        await commit_start(store, "s-1")
        await commit_start(store, "s-2")
        await store.attach("s-1", make_attachment(DATA), DATA, 1.0)

        assert await is_attachment_refused(store, "s-2", make_attachment(DATA).id)
        assert await store.attachments("s-2") == []
        await store.attach("s-2", make_attachment(DATA, "image/png"), DATA, 1.0)
        assert (await store.attachment("s-2", make_attachment(DATA).id))[0] == make_attachment(
            DATA, "image/png"
        )

    async def test_nothing_is_attached_to_nobody(self, store: Store) -> None:
        """An unknown session and an unknown name are refused."""
        await commit_start(store, "s-1")
        with pytest.raises(UnknownSession):
            await store.attach("s-9", make_attachment(DATA), DATA, 1.0)
        with pytest.raises(UnknownSession):
            await store.attachment("s-9", make_attachment(DATA).id)
        with pytest.raises(UnknownSession):
            await store.attachments("s-9")
        assert await is_attachment_refused(store, "s-1", "no such name\0")

    async def test_a_fork_reads_what_was_kept_before_it_differed(self, store: Store) -> None:
        """Attachments after the fork point are not shared, in either direction."""
        record = await commit_start(store, "s-1", make_query(0))
        await store.attach("s-1", make_attachment(b"early"), b"early", 1.0)
        record = await commit_step(store, record, answers={0: "a"}, asked=[make_query(1)])
        await store.attach("s-1", make_attachment(b"at the step"), b"at the step", 2.0)
        await commit_fork(store, record, "s-2", 1)
        await store.attach("s-2", make_attachment(b"own"), b"own", 3.0)

        assert await store.attachments("s-2") == [
            make_attachment(b"early"),
            make_attachment(b"own"),
        ]
        assert (await store.attachment("s-2", make_attachment(b"early").id))[1] == b"early"
        assert await is_attachment_refused(store, "s-2", make_attachment(b"at the step").id)
        assert await is_attachment_refused(store, "s-1", make_attachment(b"own").id)

    async def test_what_is_kept_goes_with_its_session(self, store: Store) -> None:
        """MA7: another session with the same bytes still has them; a new session under the same id
        has none.
        """
        record = await commit_end(store, await commit_start(store, "s-1"))
        await commit_start(store, "s-2")
        for session_id in ("s-1", "s-2"):
            await store.attach(session_id, make_attachment(DATA), DATA, 1.0)
        await store.attach("s-1", make_attachment(b"only here"), b"only here", 1.0)

        await store.delete("s-1", record.head.revision)

        assert await store.attachment("s-2", make_attachment(DATA).id) == (
            make_attachment(DATA),
            DATA,
        )
        assert await is_attachment_refused(store, "s-2", make_attachment(b"only here").id)
        assert await find_problems(store) == []

    async def test_a_fork_outlives_what_it_shares(self, store: Store) -> None:
        """Attachments of a fork stay when its origin is deleted, and are deleted with the fork."""
        record = await commit_start(store, "s-1", make_query(0))
        await store.attach("s-1", make_attachment(b"early"), b"early", 1.0)
        record = await commit_step(store, record, answers={0: "a"}, asked=[make_query(1)])
        forked = await commit_fork(store, record, "s-2", 1)
        record = await commit_end(store, record)
        await store.attach("s-1", make_attachment(b"late"), b"late", 2.0)

        await store.delete("s-1", record.head.revision)

        assert await store.attachments("s-2") == [make_attachment(b"early")]
        forked = await commit_end(store, forked)
        await store.delete("s-2", forked.head.revision)
        assert await find_problems(store) == []
