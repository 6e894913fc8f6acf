"""The session layer of fluers, through the public API."""

import json
import uuid

import pytest

from everhold.agents import Message, Role, Text, ToolUse, assistant, user
from everhold.errors import StoreError, UsageError
from everhold.stores import (
    DeserializeFailed,
    Envelope,
    EnvelopeAdapter,
    EnvelopeSession,
    FileFailed,
    InvalidSessionId,
    JsonFiles,
    MemoryAdapter,
    SerializeFailed,
    SessionNotFound,
    SessionStore,
    UnsupportedVersion,
    read_envelope,
)

ID = uuid.UUID("6f1c1f0e-8a53-4f0b-9a3e-5a7d0c1b2e3f")
FLUERS = {
    "schema_version": 1,
    "model": "gpt-4o",
    "max_turns": 12,
    "system_message": None,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Grüße"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "ls", "input": {}}],
        },
        {
            "role": "tool",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": {"content": []}}],
        },
        {"role": "assistant"},
    ],
    "metadata": {"channel": "cli"},
}


def test_the_version_is_one_and_only_one_is_read():
    assert read_envelope(FLUERS, ID).schema_version == 1
    for newer in ({"schema_version": 2}, {"schema_version": 2, "messages": "gone"}):
        with pytest.raises(UnsupportedVersion) as refused:
            read_envelope(newer, ID)
        assert str(refused.value) == f"the envelope of session {ID} has version 2; only 1 is read"


def test_an_envelope_has_six_fields_of_their_types():
    found = read_envelope(FLUERS, ID)
    assert isinstance(found, Envelope)
    assert (found.model, found.max_turns, found.system_message) == ("gpt-4o", 12, None)
    assert [message.role for message in found.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert found.messages[0] == Message(Role.USER, (Text("Grüße"),))
    assert found.metadata == {"channel": "cli"}


def test_unknown_keys_are_ignored_and_a_missing_system_message_is_none():
    without = {name: value for name, value in FLUERS.items() if name != "system_message"}
    assert read_envelope({**without, "colour": "blue"}, ID) == read_envelope(FLUERS, ID)


@pytest.mark.parametrize("key", ["schema_version", "model", "max_turns", "messages", "metadata"])
def test_every_other_key_is_required(key):
    with pytest.raises(DeserializeFailed, match=f"`{key}`"):
        read_envelope({name: value for name, value in FLUERS.items() if name != key}, ID)


@pytest.mark.parametrize(
    "damage",
    [{"max_turns": -1}, {"metadata": {"n": 1}}, {"messages": [{"role": "robot"}]}, {"model": None}],
)
def test_what_is_not_an_envelope_is_refused_with_its_session(damage):
    with pytest.raises(DeserializeFailed, match=f"the envelope of session {ID} cannot be read: "):
        read_envelope({**FLUERS, **damage}, ID)


async def test_an_envelope_of_fluers_is_written_back_unchanged():
    """Byte for byte as JSON, after a load and a save."""
    adapter, store = MemoryAdapter(), SessionStore()
    await adapter.save_session(str(ID), FLUERS)
    store.adopt(await SessionStore.load(adapter, ID))
    await store.save(adapter, ID)
    assert json.dumps(await adapter.load_session(str(ID))) == json.dumps(FLUERS)


def test_create_makes_an_empty_session_with_a_random_id():
    store = SessionStore()
    first, second = store.create(), store.create()
    assert first != second and first.version == 4
    assert store.session(first) == EnvelopeSession(
        id=first, model="", max_turns=0, messages=(), metadata={}
    )


def test_create_with_config_sets_model_turns_and_system_message():
    store = SessionStore()
    made = store.session(store.create_with_config("gpt-4o", 12, "Be brief."))
    assert (made.model, made.max_turns, made.system_message) == ("gpt-4o", 12, "Be brief.")


def test_messages_are_appended_in_order_and_handed_out_as_a_copy():
    store = SessionStore()
    name = store.create()
    store.append(name, user("one"))
    store.append(name, assistant(ToolUse("c", "ls", {})))
    store.messages(name).clear()
    assert store.messages(name) == [user("one"), assistant(ToolUse("c", "ls", {}))]


async def test_an_unknown_session_is_not_found_and_reaches_no_adapter():
    class Untouched(MemoryAdapter):
        async def save_session(self, session_id, data):
            raise AssertionError("saved")

    store = SessionStore()
    for call in (lambda: store.messages(ID), lambda: store.append(ID, user("x"))):
        with pytest.raises(SessionNotFound, match=f"there is no session {ID}"):
            call()
    with pytest.raises(SessionNotFound):
        await store.save(Untouched(), ID)


async def test_a_saved_session_loads_as_it_was_and_is_not_taken_in():
    store, adapter = SessionStore(), MemoryAdapter()
    name = store.create_with_config("gpt-4o", 12, "Be brief.")
    store.append(name, user("one"))
    await store.save(adapter, name)
    assert await SessionStore.load(adapter, name) == store.session(name)
    with pytest.raises(SessionNotFound):
        SessionStore().messages(name)


async def test_what_was_never_saved_loads_as_none():
    assert await SessionStore.load(MemoryAdapter(), ID) is None


async def test_listing_gives_all_ids_and_fails_on_one_that_is_none():
    class Strays(MemoryAdapter):
        async def list_sessions(self):
            return [str(ID), "notes"]

    adapter = MemoryAdapter()
    await adapter.save_session(str(ID), FLUERS)
    assert await SessionStore.list(adapter) == [ID]
    with pytest.raises(InvalidSessionId, match="'notes' is not the id of a session: "):
        await SessionStore.list(Strays())


async def test_what_json_has_no_form_for_is_not_written():
    store, adapter = SessionStore(), MemoryAdapter()
    store.adopt(EnvelopeSession(id=ID, metadata={"n": 1}))
    with pytest.raises(SerializeFailed, match=f"session {ID} cannot be written as an envelope: "):
        await store.save(adapter, ID)
    assert await SessionStore.list(adapter) == []


async def test_files_are_one_session_each(tmp_path):
    files = JsonFiles(tmp_path)
    await files.save_session(str(ID), FLUERS)
    assert (tmp_path / f"{ID}.json").read_text().startswith('{\n  "schema_version": 1,')
    assert await files.load_session(str(ID)) == FLUERS
    assert await files.list_sessions() == [str(ID)]
    (tmp_path / f"{ID}.json").write_text("{")
    with pytest.raises(FileFailed, match=str(tmp_path)):
        await SessionStore.load(files, ID)
    assert await files.delete_session(str(ID)) and await files.list_sessions() == []


async def test_only_an_id_becomes_a_file_name(tmp_path):
    for bad in ("../x", "a/b", "", "notes"):
        with pytest.raises(InvalidSessionId):
            await JsonFiles(tmp_path / "home").load_session(bad)
    assert list(tmp_path.iterdir()) == []


async def test_delete_removes_both_copies():
    store, adapter = SessionStore(), MemoryAdapter()
    name = store.create()
    await store.save(adapter, name)
    assert await store.delete(adapter, name) is True
    assert await SessionStore.list(adapter) == []
    assert await store.delete(adapter, name) is False


def test_an_adapter_has_four_methods():
    assert issubclass(MemoryAdapter, object)
    wanted = {"save_session", "load_session", "list_sessions", "delete_session"}
    assert {name for name in vars(EnvelopeAdapter) if not name.startswith("_")} == wanted


def test_each_failure_has_a_code_and_a_branch():
    usage = {SessionNotFound, InvalidSessionId, SerializeFailed}
    store = {DeserializeFailed, UnsupportedVersion, FileFailed}
    assert all(issubclass(leaf, UsageError) for leaf in usage)
    assert all(issubclass(leaf, StoreError) for leaf in store)
    assert len({leaf.code for leaf in usage | store}) == 6
