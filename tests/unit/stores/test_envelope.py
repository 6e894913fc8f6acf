"""The envelope of fluers, its store, and the files it is kept in."""

import asyncio
import json
import os
import stat
import uuid
from pathlib import Path

import msgspec
import pytest

from everhold.agents import Message, Role, Text, ToolUse, assistant, user
from everhold.errors import StoreError, UsageError
from everhold.stores import (
    DeserializeFailed,
    EnvelopeSession,
    FileFailed,
    InvalidSessionId,
    JsonFiles,
    MemoryAdapter,
    SerializeFailed,
    SessionNotFound,
    SessionStore,
    UnsupportedVersion,
    pack,
    read_envelope,
    unpack,
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


class Untouched:
    """An adapter that nobody may call."""

    async def save_session(self, session_id, data):
        raise AssertionError("saved")


class Strays:
    """An adapter that holds what fluers would not have written."""

    async def list_sessions(self):
        return [str(ID), "notes"]


# The format


def test_an_envelope_of_fluers_is_written_back_unchanged():
    """Six fields in, the same six fields out, in the same order."""
    again = pack(unpack(FLUERS, ID))

    assert json.dumps(again) == json.dumps(FLUERS)


def test_the_largest_number_of_turns_survives():
    """fluers counts turns in an unsigned 64-bit number; all of them can be read and written."""
    most = {**FLUERS, "max_turns": 2**64 - 1}

    assert pack(unpack(most, ID)) == most


def test_a_missing_system_message_reads_as_none_and_is_written_as_null():
    """The one key that may be missing is written all the same."""
    without = {key: value for key, value in FLUERS.items() if key != "system_message"}
    session = unpack(without, ID)

    assert session.system_message is None
    assert pack(session)["system_message"] is None


def test_other_keys_are_ignored():
    """What a later fluers adds to version 1 does not stop us."""
    assert read_envelope({**FLUERS, "colour": "blue"}, ID) == read_envelope(FLUERS, ID)


@pytest.mark.parametrize(
    "newer", [{"schema_version": 2}, {"schema_version": 2, "messages": "gone", "turns": []}]
)
def test_the_version_is_checked_before_the_shape(newer):
    """A newer envelope of any shape is called newer, not broken."""
    with pytest.raises(UnsupportedVersion) as refused:
        read_envelope(newer, ID)

    assert str(refused.value) == f"the envelope of session {ID} has version 2; only 1 is read"


@pytest.mark.parametrize(
    "damage",
    [
        {"schema_version": None},
        {"schema_version": "1"},
        {"schema_version": True},
        {"schema_version": -1},
        {"schema_version": 2**32},
        {"model": None},
        {"max_turns": -1},
        {"max_turns": 1.5},
        {"max_turns": 2**64},
        {"system_message": 7},
        {"messages": None},
        {"messages": [{"role": "robot"}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": {"media_type": "a", "data": "?"}}],
                }
            ]
        },
        {"metadata": {"n": 1}},
        {"metadata": []},
    ],
)
def test_what_is_not_an_envelope_is_refused(damage):
    """A value of the wrong kind, in any field, is a failure to deserialize that names the
    session.
    """
    with pytest.raises(DeserializeFailed, match=f"the envelope of session {ID} cannot be read: "):
        read_envelope({**FLUERS, **damage}, ID)


@pytest.mark.parametrize("key", ["schema_version", "model", "max_turns", "messages", "metadata"])
def test_every_other_key_is_required(key):
    """A missing key is a failure to deserialize that names it."""
    with pytest.raises(DeserializeFailed, match=f"`{key}`"):
        read_envelope({name: value for name, value in FLUERS.items() if name != key}, ID)


@pytest.mark.parametrize("data", [None, [], "text", 1])
def test_only_an_object_is_an_envelope(data):
    """Any other JSON value is a failure to deserialize."""
    with pytest.raises(DeserializeFailed, match="an envelope is an object"):
        read_envelope(data, ID)


@pytest.mark.parametrize(
    ("session", "place"),
    [
        (EnvelopeSession(id=ID, model="\ud800"), "model"),
        (EnvelopeSession(id=ID, system_message="\udfff"), "system_message"),
        (EnvelopeSession(id=ID, max_turns=-1), "max_turns"),
        (EnvelopeSession(id=ID, max_turns=2**64), "max_turns"),
        (EnvelopeSession(id=ID, metadata={"n": 1}), "metadata"),
        (EnvelopeSession(id=ID, metadata={1: "n"}), "metadata"),
        (EnvelopeSession(id=ID, messages=(user("\ud800"),)), "messages[0].content[0].text"),
        (
            EnvelopeSession(id=ID, messages=(user(ToolUse("t", "n", {1, 2})),)),
            "messages[0].content[0].input",
        ),
        (
            EnvelopeSession(id=ID, messages=(Message(Role.USER, (Text(7),)),)),
            "messages[0].content[0].text",
        ),
    ],
)
def test_what_could_not_be_read_back_is_not_written(session, place):
    """A session that JSON or fluers has no form for is a failure to serialize that names the
    place.
    """
    with pytest.raises(SerializeFailed) as refused:
        pack(session)

    assert str(refused.value).startswith(f"session {ID} cannot be written as an envelope: ")
    assert place in refused.value.cause


def test_each_failure_has_its_own_code_and_branch():
    """Codes are part of the contract; the branch says whose move is next."""
    usage = {SessionNotFound, InvalidSessionId, SerializeFailed}
    store = {DeserializeFailed, UnsupportedVersion, FileFailed}

    assert all(issubclass(leaf, UsageError) for leaf in usage)
    assert all(issubclass(leaf, StoreError) for leaf in store)
    assert sorted(leaf.code for leaf in usage | store) == [
        "envelope_deserialize_failed",
        "envelope_file_failed",
        "envelope_invalid_id",
        "envelope_serialize_failed",
        "envelope_session_not_found",
        "envelope_unsupported_version",
    ]


# The store


def test_a_bare_session_is_empty():
    """`create` gives a random UUID, no model, no turns and nothing said."""
    store = SessionStore()
    first, second = store.create(), store.create()

    assert first != second and first.version == 4
    assert store.session(first) == EnvelopeSession(
        id=first, model="", max_turns=0, messages=(), metadata={}
    )


def test_messages_are_appended_in_order_and_handed_out_as_a_copy():
    """What a caller does to the list it got changes nothing."""
    store = SessionStore()
    session_id = store.create_with_config("gpt-4o", 12, "Be brief.")
    store.append(session_id, user("one"))
    store.append(session_id, assistant("two"))
    store.messages(session_id).clear()

    assert store.messages(session_id) == [user("one"), assistant("two")]
    assert store.session(session_id).system_message == "Be brief."


async def test_a_saved_session_loads_as_it_was():
    """Everything but the version comes back, and loading does not take it in."""
    store, adapter = SessionStore(), MemoryAdapter()
    session_id = store.create_with_config("gpt-4o", 12, "Be brief.")
    store.append(session_id, user("one"))
    await store.save(adapter, session_id)

    loaded = await SessionStore.load(adapter, session_id)
    other = SessionStore()

    assert loaded == store.session(session_id)
    with pytest.raises(SessionNotFound, match=f"there is no session {session_id}"):
        other.messages(session_id)


async def test_a_loaded_session_goes_on_where_it_is_adopted():
    """Load, adopt, append and save is how a session moves between processes."""
    adapter, store = MemoryAdapter(), SessionStore()
    await adapter.save_session(str(ID), FLUERS)
    session = await SessionStore.load(adapter, str(ID))
    store.adopt(msgspec.structs.replace(session, metadata={"channel": "http"}))
    store.append(ID, user("more"))
    await store.save(adapter, ID)

    kept = await adapter.load_session(str(ID))
    assert kept["messages"] == [
        *FLUERS["messages"],
        {"role": "user", "content": [{"type": "text", "text": "more"}]},
    ]
    assert kept["metadata"] == {"channel": "http"}


async def test_an_unknown_session_never_reaches_the_adapter():
    """Saving or appending to what is not there fails first."""
    store = SessionStore()

    with pytest.raises(SessionNotFound):
        await store.save(Untouched(), ID)
    with pytest.raises(SessionNotFound):
        store.append(ID, user("one"))


async def test_what_was_never_saved_loads_as_none():
    """Absence is not an error."""
    assert await SessionStore.load(MemoryAdapter(), ID) is None


async def test_delete_removes_both_copies():
    """It says whether there was one, here or there, and may be said again."""
    store, adapter = SessionStore(), MemoryAdapter()
    session_id = store.create()
    await store.save(adapter, session_id)

    assert await store.delete(adapter, session_id) is True
    assert await SessionStore.list(adapter) == []
    with pytest.raises(SessionNotFound):
        store.messages(session_id)
    assert await store.delete(adapter, str(session_id)) is False


async def test_listing_fails_on_an_id_that_is_no_uuid():
    """One stray name fails the call."""
    with pytest.raises(InvalidSessionId, match="'notes' is not the id of a session: "):
        await SessionStore.list(Strays())


# The files


async def test_a_session_is_one_pretty_file(tmp_path):
    """The file is named after the id and laid out for people."""
    files = JsonFiles(tmp_path)
    await files.save_session(str(ID), FLUERS)
    text = (tmp_path / f"{ID}.json").read_text()

    assert text.startswith('{\n  "schema_version": 1,\n  "model": "gpt-4o",\n')
    assert "Grüße" in text
    assert await files.load_session(str(ID)) == FLUERS
    assert await files.list_sessions() == [str(ID)]


async def test_files_and_directories_are_for_their_owner_only(tmp_path):
    """Directories are made on the first save, with mode 0700, and files have 0600."""
    files = JsonFiles(tmp_path / "a" / "b")
    await files.save_session(str(ID), FLUERS)
    made = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / f"{ID}.json"]

    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize(
    "bad",
    [
        "../x",
        "a/b",
        "",
        ".",
        "notes",
        f"{ID}/../x",
        f"{ID}\n",
        f"{{{ID.hex}}}",
        f"{ID}\x00",
    ],
)
async def test_only_a_uuid_becomes_a_file_name(tmp_path, bad):
    """Anything else is refused before the disk is touched, by every verb."""
    home = tmp_path / "home"
    files = JsonFiles(home)

    for call in (files.save_session(bad, {}), files.load_session(bad), files.delete_session(bad)):
        with pytest.raises(InvalidSessionId):
            await call
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_that_is_not_there_is_empty(tmp_path):
    """Nothing was saved, so nothing is listed, loaded or deleted."""
    files = JsonFiles(tmp_path / "none")

    assert await files.list_sessions() == []
    assert await files.load_session(str(ID)) is None
    assert await files.delete_session(str(ID)) is False


async def test_what_a_crash_left_behind_is_not_listed(tmp_path):
    """Temporary files, ours and fluers', directories and other files are no sessions."""
    for name in (f".{ID}.json.x1.tmp", f"{ID}.json.tmp", "notes.txt", os.fsdecode(b"\xff.json")):
        (tmp_path / name).write_text("{")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "notes.txt")

    assert await JsonFiles(tmp_path).list_sessions() == []


@pytest.mark.parametrize(
    "content", [b"", b'{"schema_version": 1, "mod', b'{"a": "\xff"}', b"\xff\xfe", b"[" * 5000]
)
async def test_a_file_without_json_is_named(tmp_path, content):
    """Empty, truncated, non-UTF-8 and bottomless files are refused with their path."""
    path = tmp_path / f"{ID}.json"
    path.write_bytes(content)

    with pytest.raises(FileFailed, match=f"cannot parse session file {path}"):
        await SessionStore.load(JsonFiles(tmp_path), ID)


async def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A directory in the place of a file is refused with its path, whatever is asked."""
    path = tmp_path / f"{ID}.json"
    path.mkdir()
    (path / "inside").touch()
    files = JsonFiles(tmp_path)

    with pytest.raises(FileFailed, match=f"read session file {path}"):
        await files.load_session(str(ID))
    with pytest.raises(FileFailed, match=f"replace session file {path}"):
        await files.save_session(str(ID), FLUERS)
    with pytest.raises(FileFailed, match=f"delete session file {path}"):
        await files.delete_session(str(ID))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


async def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    """A file where the directory should be is refused with its path."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    with pytest.raises(FileFailed, match="create session directory"):
        await JsonFiles(blocked).save_session(str(ID), FLUERS)
    with pytest.raises(FileFailed, match="read session directory"):
        await JsonFiles(blocked).list_sessions()


async def test_no_room_for_a_temporary_file_is_said(tmp_path, monkeypatch):
    """When not even a temporary file can be made, the session that was there stays."""
    files = JsonFiles(tmp_path)
    await files.save_session(str(ID), FLUERS)

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.raises(FileFailed, match="No space left"):
        await files.save_session(str(ID), {})
    assert await files.load_session(str(ID)) == FLUERS


async def test_the_file_is_on_the_disk_before_it_is_renamed(tmp_path, monkeypatch):
    """File sync, rename, directory sync: in this order, so that a power cut leaves the old or the
    new one.
    """
    files, order = JsonFiles(tmp_path), []
    sync, rename = os.fsync, os.replace

    def synced(handle):
        order.append("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def renamed(old, new):
        order.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    await files.save_session(str(ID), FLUERS)

    assert order == ["file", "rename", "directory"]


async def test_ten_writers_leave_one_whole_session(tmp_path):
    """Writers of one session do not meet: one of them wins whole, and nothing is left over."""
    sessions = [{**FLUERS, "model": str(n) * 50_000} for n in range(10)]
    await asyncio.gather(*(JsonFiles(tmp_path).save_session(str(ID), data) for data in sessions))

    assert await JsonFiles(tmp_path).load_session(str(ID)) in sessions
    assert [path.name for path in tmp_path.iterdir()] == [f"{ID}.json"]


async def test_a_huge_message_comes_back(tmp_path):
    """Twenty megabytes of text, with every awkward character in it, are the same afterwards."""
    store, files = SessionStore(), JsonFiles(tmp_path)
    text = '\x00\u2028"\\\U0001f600é\n' * 1_500_000
    session_id = store.create()
    store.append(session_id, user(text))
    await store.save(files, session_id)

    loaded = await SessionStore.load(files, session_id)
    assert loaded.messages[0].content[0].text == text


@pytest.mark.parametrize("data", [{"a": "\ud800"}, {"a": float("nan")}, {"a": {1}}])
async def test_what_is_not_json_is_not_written(tmp_path, data):
    """An adapter used by itself refuses it too, and leaves no file."""
    with pytest.raises(SerializeFailed, match=f"session {ID} cannot be written as an envelope"):
        await JsonFiles(tmp_path).save_session(str(ID), data)

    assert list(Path(tmp_path).iterdir()) == []


async def test_a_deleted_file_is_gone(tmp_path):
    """Deleting says that it was there, once."""
    files = JsonFiles(tmp_path)
    await files.save_session(str(ID), FLUERS)

    assert await files.delete_session(str(ID)) is True
    assert await files.delete_session(str(ID)) is False
    assert await files.list_sessions() == []


def test_errors_name_the_session():
    for error, words in (
        (SessionNotFound(ID), f"there is no session {ID}"),
        (SerializeFailed(ID, "why"), f"session {ID} cannot be written as an envelope: why"),
        (DeserializeFailed(ID, "why"), f"the envelope of session {ID} cannot be read: why"),
        (
            UnsupportedVersion(2, ID, 1),
            f"the envelope of session {ID} has version 2; only 1 is read",
        ),
        (InvalidSessionId("x", "why"), "'x' is not the id of a session: why"),
    ):
        assert str(error) == words


@pytest.mark.parametrize(
    "spelled", [str(ID), str(ID).upper(), ID.hex, ID.hex.upper(), f"{{{ID}}}", f"urn:uuid:{ID}"]
)
async def test_a_file_may_be_named_in_any_spelling(tmp_path, spelled):
    """What was written under another spelling is listed, loaded, replaced in place and deleted."""
    (tmp_path / f"{spelled}.json").write_text(json.dumps(FLUERS))
    files = JsonFiles(tmp_path)

    assert await SessionStore.list(files) == [ID]
    session = await SessionStore.load(files, ID)
    assert session == unpack(FLUERS, ID)
    await files.save_session(str(ID), pack(msgspec.structs.replace(session, max_turns=3)))
    assert [file.name for file in tmp_path.iterdir()] == [f"{spelled}.json"]
    assert (await SessionStore.load(files, ID)).max_turns == 3
    assert await files.delete_session(str(ID))
    assert list(tmp_path.iterdir()) == []
