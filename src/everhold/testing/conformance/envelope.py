"""The contract of adapters for fluers' session envelopes (`everhold.stores.EnvelopeAdapter`).

    class TestMyEnvelopes(EnvelopeAdapterContract):
        @pytest.fixture
        def open_adapter(self, tmp_path):
            return lambda: MyEnvelopes(tmp_path)

`open_adapter` is a fixture that returns a function without arguments. All adapters that it makes in
one test use the same data. An adapter may have an async `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, Protocol, runtime_checkable
from uuid import UUID, uuid4

import pytest

from everhold.core.codec import JSON
from everhold.core.message import Image, ImageData, Message, Role, ToolResult, ToolUse, user
from everhold.errors import UsageError
from everhold.stores.envelope import EnvelopeAdapter, EnvelopeSession, SessionStore, pack, unpack

#: Makes an adapter.
OpenAdapter = Callable[[], EnvelopeAdapter]

ID: Final = UUID("6f1c1f0e-8a53-4f0b-9a3e-5a7d0c1b2e3f")
OTHER: Final = UUID("0d9f7a52-3c1e-4a5e-8a57-2f1f8f0b7c11")
SPELLED: Final = (
    str(ID).upper(),
    ID.hex,
    ID.hex.upper(),
    f"{{{ID}}}",
    f"urn:uuid:{ID}",
)
NOT_IDS: Final = (
    "",
    "notes",
    "../6f1c1f0e",
    f"{ID}x",
    f" {ID}",
    f"{{{ID.hex}}}",
    f"urn:uuid:{ID.hex}",
    f"URN:UUID:{ID}",
    f"{ID}\n",
)


def make_envelope(*words: str, id: UUID = ID) -> EnvelopeSession:
    """A session with a message for each text."""
    return EnvelopeSession(
        id=id,
        model="m",
        max_turns=3,
        system_message="Be brief.",
        messages=tuple(user(one) for one in words),
        metadata={"channel": "cli"},
    )


@runtime_checkable
class ClosableAdapter(Protocol):
    """An adapter with a connection to close."""

    async def close(self) -> None: ...


@asynccontextmanager
async def using_adapter(open_adapter: OpenAdapter) -> AsyncIterator[Any]:
    """An adapter that is closed at the end, if it can be."""
    adapter = open_adapter()
    try:
        yield adapter
    finally:
        if isinstance(adapter, ClosableAdapter):
            await adapter.close()


async def _store_and_load(open_adapter: OpenAdapter, session: EnvelopeSession) -> JSON | None:
    """Save with one adapter, and load with another."""
    async with using_adapter(open_adapter) as adapter:
        await adapter.save_session(str(session.id), pack(session))
    async with using_adapter(open_adapter) as adapter:
        found: JSON | None = await adapter.load_session(str(session.id))
        return found


class EnvelopeAdapterContract:
    """What every adapter promises. Every class that subclasses it has a fixture `open_adapter`."""

    #: Whether text may contain the character NUL; `jsonb` of Postgres refuses it.
    holds_nul: ClassVar[bool] = True

    def test_what_was_saved_is_loaded(self, open_adapter: OpenAdapter) -> None:
        """EA1: another adapter on the same data loads what was saved."""
        session = make_envelope("Grüße \U0001f600 \u2028", "and more")

        assert asyncio.run(_store_and_load(open_adapter, session)) == pack(session)

    def test_every_block_and_role_is_held(self, open_adapter: OpenAdapter) -> None:
        """EA2: images, tool calls, results, empty messages and any JSON in them survive."""
        deep: JSON = {"a": [1, -2.5, None, True, {"": ""}], "big": 2**53, "text": 'q"\\/\n'}
        session = EnvelopeSession(
            id=ID,
            messages=(
                Message(Role.SIGNAL),
                Message(Role.USER, (Image(ImageData("image/png", bytes(range(256)))),)),
                Message(Role.ASSISTANT, (ToolUse("c", "ls", deep),)),
                Message(Role.TOOL, (ToolResult("c", {"content": [], "details": deep}),)),
            ),
        )

        data = asyncio.run(_store_and_load(open_adapter, session))

        assert data == pack(session)
        assert unpack(data, ID) == session

    def test_a_large_session_is_held(self, open_adapter: OpenAdapter) -> None:
        """EA3: a message of 256 KiB and a thousand messages survive."""
        session = make_envelope("x" * (256 << 10), *(str(n) for n in range(1000)))

        assert asyncio.run(_store_and_load(open_adapter, session)) == pack(session)

    def test_an_unknown_session_is_none(self, open_adapter: OpenAdapter) -> None:
        """EA4: loading what was never saved gives None and creates nothing."""

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                assert await adapter.load_session(str(ID)) is None
                assert await adapter.list_sessions() == []
                assert await adapter.delete_session(str(ID)) is False
                assert await adapter.list_sessions() == []

        asyncio.run(run())

    def test_saving_again_replaces(self, open_adapter: OpenAdapter) -> None:
        """EA5: the last save wins, whole; other sessions stay."""

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                first = make_envelope("a", "b", "c")
                other = make_envelope("other", id=OTHER)
                for session in (first, other, make_envelope("d")):
                    await adapter.save_session(str(session.id), pack(session))
                assert await adapter.load_session(str(ID)) == pack(make_envelope("d"))
                assert await adapter.load_session(str(OTHER)) == pack(other)

        asyncio.run(run())

    def test_all_sessions_are_listed(self, open_adapter: OpenAdapter) -> None:
        """EA6: each id is listed once, and a deleted one no more."""
        ids = sorted(str(uuid4()) for _ in range(5))

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                for one in [*ids, *ids]:
                    await adapter.save_session(one, pack(make_envelope(one)))
                assert sorted(await adapter.list_sessions()) == ids
                assert await adapter.delete_session(ids[0]) is True
                assert await adapter.delete_session(ids[0]) is False
                assert await adapter.load_session(ids[0]) is None
                assert sorted(await adapter.list_sessions()) == ids[1:]

        asyncio.run(run())

    @pytest.mark.parametrize("spelled", SPELLED)
    def test_an_id_may_be_spelled_in_any_way(self, open_adapter: OpenAdapter, spelled: str) -> None:
        """EA7: all spellings of a UUID name one session; it is listed in lower case with
        hyphens.
        """

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                await adapter.save_session(spelled, pack(make_envelope("a")))
                assert await adapter.list_sessions() == [str(ID)]
                assert await adapter.load_session(str(ID)) == pack(make_envelope("a"))
                await adapter.save_session(str(ID), pack(make_envelope("b")))
                assert await adapter.load_session(spelled) == pack(make_envelope("b"))
                assert await adapter.delete_session(spelled) is True
                assert await adapter.list_sessions() == []

        asyncio.run(run())

    @pytest.mark.parametrize("raw", NOT_IDS)
    def test_another_text_is_no_id(self, open_adapter: OpenAdapter, raw: str) -> None:
        """EA8: what is not a UUID is refused by every operation, and nothing is stored."""

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                for act in (
                    adapter.save_session(raw, pack(make_envelope("a"))),
                    adapter.load_session(raw),
                    adapter.delete_session(raw),
                ):
                    with pytest.raises(UsageError) as raised:
                        await act
                    assert raised.value.code == "envelope_invalid_id"
                assert await adapter.list_sessions() == []

        asyncio.run(run())

    def test_what_was_given_can_be_changed_afterwards(self, open_adapter: OpenAdapter) -> None:
        """EA9: neither the value that was saved nor the one that was loaded is the stored one."""

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                given: Any = pack(make_envelope("a"))
                await adapter.save_session(str(ID), given)
                given["metadata"]["channel"] = "changed"
                loaded: Any = await adapter.load_session(str(ID))
                loaded["messages"].clear()
                assert await adapter.load_session(str(ID)) == pack(make_envelope("a"))

        asyncio.run(run())

    def test_what_json_cannot_hold_is_refused(self, open_adapter: OpenAdapter) -> None:
        """EA10: a value that is not JSON is refused by type, and the old session stays."""

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                await adapter.save_session(str(ID), pack(make_envelope("a")))
                for wrong in ({"n": float("nan")}, {"n": object()}):
                    with pytest.raises(UsageError) as raised:
                        await adapter.save_session(str(ID), wrong)
                    assert raised.value.code == "envelope_serialize_failed"
                assert await adapter.load_session(str(ID)) == pack(make_envelope("a"))

        asyncio.run(run())

    def test_nul_is_held_or_refused(self, open_adapter: OpenAdapter) -> None:
        """EA11: text with NUL comes back as it was, or is refused by type; it is never changed."""
        session = make_envelope("a\0b")

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                if self.holds_nul:
                    await adapter.save_session(str(ID), pack(session))
                    assert await adapter.load_session(str(ID)) == pack(session)
                    return
                with pytest.raises(UsageError) as raised:
                    await adapter.save_session(str(ID), pack(session))
                assert raised.value.code == "envelope_serialize_failed"
                assert await adapter.list_sessions() == []

        asyncio.run(run())

    def test_adapters_write_at_once(self, open_adapter: OpenAdapter) -> None:
        """EA12: saves of several adapters at the same time lose no session, and one of those of
        the same session wins whole.
        """
        ids = [str(uuid4()) for _ in range(8)]

        async def save(one: str) -> None:
            async with using_adapter(open_adapter) as adapter:
                await adapter.save_session(one, pack(make_envelope(one)))
                await adapter.save_session(str(ID), pack(make_envelope(*[one] * 50)))

        async def run() -> None:
            async with using_adapter(open_adapter) as adapter:
                await asyncio.gather(*map(save, ids))
                assert sorted(await adapter.list_sessions()) == sorted([*ids, str(ID)])
                data = await adapter.load_session(str(ID))
                assert data in [pack(make_envelope(*[one] * 50)) for one in ids]

        asyncio.run(run())

    def test_a_session_store_works_on_it(self, open_adapter: OpenAdapter) -> None:
        """EA13: create, append, save; then list and load with another adapter, and delete."""

        async def run() -> None:
            store = SessionStore()
            id = store.create_with_config("gpt-4o", 12, "Be brief.")
            store.append(id, user("Hello"))
            async with using_adapter(open_adapter) as adapter:
                await store.save(adapter, id)
            async with using_adapter(open_adapter) as adapter:
                assert await SessionStore.list(adapter) == [id]
                assert await SessionStore.load(adapter, f"urn:uuid:{id}") == store.session(id)
                assert await store.delete(adapter, id)
                assert await SessionStore.list(adapter) == []

        asyncio.run(run())
