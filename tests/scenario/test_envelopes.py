"""Sessions of fluers go on as conversations, and conversations become sessions of fluers."""

import asyncio
import contextlib
import json
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

import everhold
from everhold.agents import (
    Image,
    ImageData,
    Message,
    Role,
    Text,
    ToolResult,
    ToolUse,
    assistant,
    extract_text,
    fluers,
    system,
    user,
)
from everhold.errors import BadSetting, KeyConflict, KeyDeleted, NotAnAgent
from everhold.stores import (
    BadEnvelopes,
    DeserializeFailed,
    EnvelopeSession,
    FileFailed,
    InvalidSessionId,
    JsonFiles,
    MemoryAdapter,
    MemoryStore,
    PostgresEnvelopes,
    PostgresStore,
    SQLiteEnvelopes,
    SQLiteStore,
    UnsupportedVersion,
    pack,
    unpack,
)
from everhold.testing import CrashingStore
from tests.postgres import fresh
from tests.scenario.harness import opened

NAME = "6f1c1f0e-8a53-4f0b-9a3e-5a7d0c1b2e3f"
OTHER = "0d9f7a52-3c1e-4a5e-8a57-2f1f8f0b7c11"
PIXEL = bytes.fromhex("89504e470d0a1a0a")
ASKED: list[everhold.Query] = []

support = everhold.Agent(instructions="You are support.", name="support_of_envelopes", max_turns=7)


@everhold.tool(rerun="safe")
def look(place: str) -> dict:
    """Look somewhere."""
    return {"place": place, "found": 3}


@everhold.tool(rerun="safe")
def fail() -> str:
    """Fail."""
    raise ValueError("broken")


looker = everhold.Agent(tools=[look, fail], name="looker_of_envelopes")


@everhold.program
async def plain(ctx) -> str:
    return "done"


def envelope(*messages: Message, id: str = NAME, **more) -> EnvelopeSession:
    given = {"model": "openai:gpt-4o", "max_turns": 5, "metadata": {"channel": "cli"}, **more}
    return EnvelopeSession(id=UUID(id), messages=messages, **given)


FULL = envelope(
    system("Be brief."),
    user("What is in the folder?", Image(ImageData("image/png", PIXEL))),
    assistant("I look.", ToolUse("c1", "ls", {"z": 1, "a": [1.5, None]}), ToolUse("c2", "ls", {})),
    Message(
        Role.TOOL,
        (ToolResult("c1", {"content": [{"type": "text", "text": "a.txt"}], "details": {"n": 1}}),),
    ),
    Message(Role.TOOL, (ToolResult("c2", "raw text"),)),
    Message(Role.ASSISTANT),
    Message(Role.SIGNAL, (Text("woken"),)),
    assistant("One file."),
    system_message="Be brief.",
)


def files(folder: Path, *sessions: EnvelopeSession) -> Path:
    folder.mkdir(exist_ok=True)
    for one in sessions:
        (folder / f"{one.id}.json").write_text(json.dumps(pack(one)))
    return folder


def replies(query):
    ASKED.append(query)
    return everhold.Answer("Sure.", usage=everhold.Usage(prompt_tokens=5, completion_tokens=1))


@pytest.fixture(autouse=True)
def nothing_asked():
    ASKED.clear()


@pytest.fixture(params=["memory", "sqlite"])
def path(request, tmp_path):
    return None if request.param == "memory" else tmp_path


async def test_an_imported_session_goes_on(path, tmp_path):
    """FL1: the next send has the envelope's model, system message and history; nothing was asked
    for the import.
    """
    folder = files(tmp_path / "in", FULL)
    async with opened(path, llm=replies) as runtime:
        made = await runtime.envelopes.import_(folder, agent=support)

        assert list(made.sessions) == [NAME] and ASKED == []
        session = await runtime.session(support, NAME)
        assert session.id == made.sessions[NAME]
        history = await session.history()
        assert [node.role for node in history][:3] == ["user", "assistant", "tool"]
        assert extract_text(history[-1].content) == "One file."

        turn = await session.send("And now?")

        assert turn.text == "Sure."
        (query,) = ASKED
        assert query.options["model"] == "openai:gpt-4o"
        assert query.system == "Be brief."
        said = [(one["role"], extract_text(one["content"])) for one in query.messages]
        assert said[0] == ("user", "What is in the folder?")
        assert said[-2:] == [("assistant", "One file."), ("user", "And now?")]
        assert (await session.options())["max_turns"] == 5
        assert (await session.envelope()).metadata == {"channel": "cli"}


async def test_max_turns_of_an_envelope_hold(path):
    """FL2: a turn ends after as many rounds as the envelope says, not as the agent does."""

    def calls(query):
        ASKED.append(query)
        return {"tool_calls": [{"name": "look", "input": {"place": "x"}}]}

    async with opened(path, llm=calls) as runtime:
        await runtime.envelopes.import_(envelope(user("a"), max_turns=2), agent=looker)
        turn = await (await runtime.session(looker, NAME)).send("go")

        assert turn.outcome == everhold.agents.MaxTurnsReached(2)
        assert len(ASKED) == 3  # the last one asks for an answer without tools


async def test_a_model_may_be_renamed(path):
    """FL18: names of models that mean nothing here are replaced, for what is asked from now on."""
    async with opened(path, llm=replies) as runtime:
        done = await runtime.envelopes.import_(FULL, models={"openai:gpt-4o": "anthropic:x"})
        session = await runtime.session(fluers, NAME)
        await session.send("now")

        assert done.models == ["anthropic:x"]
        assert ASKED[0].options["model"] == "anthropic:x"
        assert (await session.envelope()).model == "anthropic:x"
        assert (await runtime.envelopes.import_(FULL)).existing == done.sessions


async def test_without_an_agent_a_default_one_holds_it(path):
    """FL3: the session can be opened with the default agent, by its reference too."""
    async with opened(path, llm=replies) as runtime:
        made = await runtime.envelopes.import_(FULL)
        (row,) = await runtime.sessions()
        assert row.program == "everhold.agents.envelopes:fluers"
        assert row.program == fluers.ref
        session = await runtime.session(fluers, NAME)
        assert session.id == made.sessions[NAME]

        await session.send("And now?")

        assert ASKED[0].system == "Be brief."
        assert ASKED[0].options["model"] == "openai:gpt-4o"


ROUND_TRIPS = {
    "full": FULL,
    "empty": envelope(model="", max_turns=0, metadata={}),
    "no system": envelope(user("a"), assistant("b")),
    "system only in the field": envelope(user("a"), system_message="Be brief.\n"),
    "an empty system message": envelope(user("a"), system_message=""),
    "another system message": envelope(system("x"), user("a"), system_message="y"),
    "only a system message": envelope(system("Be"), system_message="Be"),
    "two system messages": envelope(system("Be"), system("Be"), system_message="Be"),
    "a call without a result": envelope(user("a"), assistant(ToolUse("c", "ls", {}))),
    "a call without a result, and then more": envelope(
        assistant(ToolUse("c", "ls", {}), ToolUse("d", "ls", {})),
        Message(Role.TOOL, (ToolResult("d", {"content": []}),)),
        user("go on"),
    ),
    "results without a call": envelope(Message(Role.TOOL, (ToolResult("c", None),))),
    "the largest limit": envelope(user("a"), max_turns=2**64 - 1),
    "any text": envelope(user("\0 \u2028 \U0001f600", ""), metadata={"": "", "ü": "\n"}),
    "an empty first message": envelope(Message(Role.USER), Message(Role.ASSISTANT)),
}


@pytest.mark.parametrize("agent", [None, support], ids=["default", "declared"])
@pytest.mark.parametrize("case", ROUND_TRIPS)
async def test_what_was_imported_is_exported_unchanged(path, tmp_path, case, agent):
    """FL4: import, export: the same bytes, once normalised; and again from the export."""
    before = files(tmp_path / "in", ROUND_TRIPS[case])
    normal = tmp_path / "normal"
    await JsonFiles(normal).save_session(
        NAME, pack(unpack(json.loads((before / f"{NAME}.json").read_text()), ROUND_TRIPS[case].id))
    )
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(before, agent=agent)
        done = await runtime.envelopes.export(tmp_path / "out", NAME)
        assert list(done.sessions.values()) == [NAME]
        assert list(done.left_out.values()) == [[]]
    async with opened(llm=replies) as runtime:
        await runtime.envelopes.import_(tmp_path / "out")
        await runtime.envelopes.export(tmp_path / "again", NAME)

    expected = (normal / f"{NAME}.json").read_bytes()
    assert (tmp_path / "out" / f"{NAME}.json").read_bytes() == expected
    assert (tmp_path / "again" / f"{NAME}.json").read_bytes() == expected


async def test_the_model_gets_a_result_for_every_call(path):
    """FL5: a call that fluers never finished has a result that says so, at its place."""
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(ROUND_TRIPS["a call without a result, and then more"])
        session = await runtime.session(fluers, NAME)
        await session.send("now")

        roles = [one["role"] for one in ASKED[0].messages]
        assert roles == ["assistant", "tool", "tool", "user", "user"]
        (block,) = ASKED[0].messages[2]["content"]
        assert block["tool_use_id"] == "c" and block["is_error"]

        found = await session.envelope()  # fluers gets it too: its model would refuse the call
        (block,) = found.messages[2].content
        assert block.tool_use_id == "c"
        assert block.content["content"][0]["text"].startswith("Error: no result")


async def test_importing_twice_changes_nothing(path):
    """FL6: the same envelope again is the session it became, also after it went on; another one of
    that id is a conflict by type, or skipped.
    """
    async with opened(path, llm=replies) as runtime:
        first = await runtime.envelopes.import_(FULL, agent=support)
        session = await runtime.session(support, NAME)
        await session.send("go on")
        again = await runtime.envelopes.import_(FULL, agent=support)

        assert again.sessions == {} and again.existing == first.sessions
        assert len(await session.turns()) == 3
        changed = msgspec.structs.replace(FULL, max_turns=6)
        with pytest.raises(KeyConflict, match="with other content"):
            await runtime.envelopes.import_(changed)
        with pytest.raises(KeyConflict, match="with other program"):
            await runtime.envelopes.import_(FULL, agent=looker)
        assert (await runtime.envelopes.import_(changed, existing="skip")).skipped == [NAME]
        assert (await runtime.envelopes.import_(FULL)).existing == first.sessions
        assert len(await runtime.sessions()) == 1


async def test_a_deleted_session_is_not_imported_again_by_itself(path):
    """FL7: the id of a deleted session is refused by type, or skipped."""
    async with opened(path, llm=replies, replay=False) as runtime:
        made = await runtime.envelopes.import_(FULL)
        await runtime.cancel(made.sessions[NAME])
        await runtime.delete(made.sessions[NAME])

        with pytest.raises(KeyDeleted):
            await runtime.envelopes.import_(FULL)
        assert (await runtime.envelopes.import_(FULL, existing="skip")).skipped == [NAME]


async def test_two_imports_at_once_make_one_session(path):
    """FL8: also between the check and the commit, nothing is imported twice."""
    async with opened(path, llm=replies) as runtime:
        done = await asyncio.gather(*(runtime.envelopes.import_(FULL) for _ in range(4)))

        (row,) = await runtime.sessions()
        assert all((one.sessions or one.existing) == {NAME: row.session_id} for one in done)


BAD = {
    "notes": (b"{}", "'notes' is not the id of a session"),
    OTHER: (b"{", "cannot parse session file"),
    "11111111-1111-4111-8111-111111111111": (b"[]", "the envelope of session"),
    "22222222-2222-4222-8222-222222222222": (
        b'{"schema_version": 2, "threads": []}',
        "session 22222222-2222-4222-8222-222222222222 has version 2; only 1 is read",
    ),
    "33333333-3333-4333-8333-333333333333": (
        b'{"schema_version": 1, "model": "m", "max_turns": 1, "messages": [], "metadata":'
        b' {"a": 1}}',
        "the envelope of session",
    ),
    NAME.upper(): (json.dumps(pack(FULL)).encode(), "it is the same session as"),
}


async def test_bad_files_among_good_ones_are_named(path, tmp_path):
    """FL9: each bad file is named with its reason, and nothing is imported; or only the good
    ones.
    """
    good = envelope(user("b"), id="44444444-4444-4444-8444-444444444444")
    folder = files(tmp_path / "in", FULL, good)
    for name, (text, _) in BAD.items():
        (folder / f"{name}.json").write_bytes(text)
    async with opened(path, llm=replies) as runtime:
        with pytest.raises(BadEnvelopes) as raised:
            await runtime.envelopes.import_(folder)

        assert "6 of 8 envelopes cannot be imported" in str(raised.value)
        for name, (_, reason) in BAD.items():
            assert name in str(raised.value) or name == NAME.upper()
            assert reason in str(raised.value)
        assert await runtime.sessions() == []

        done = await runtime.envelopes.import_(folder, invalid="skip")

        assert sorted(done.sessions) == sorted([NAME, str(good.id)])
        assert len(done.invalid) == 6
        assert len(await runtime.sessions()) == 2


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("notes", b"{}", InvalidSessionId),
        (NAME, b"\xff", FileFailed),
        (NAME, b"{}", DeserializeFailed),
        (NAME, b'{"schema_version": 9}', UnsupportedVersion),
    ],
)
async def test_a_single_bad_file_is_its_own_error(tmp_path, name, text, error):
    """FL10: for one file, the error of the envelope itself."""
    file = tmp_path / f"{name}.json"
    file.write_bytes(text)
    async with opened() as runtime:
        with pytest.raises(error):
            await runtime.envelopes.import_(file)
        assert await runtime.sessions() == []


async def test_what_cannot_be_a_source_is_refused(tmp_path):
    """FL11: a missing path, a program that is no agent, an unknown choice."""
    async with opened() as runtime:
        with pytest.raises(BadSetting, match="no file or directory"):
            await runtime.envelopes.import_(tmp_path / "none")
        with pytest.raises(NotAnAgent):
            await runtime.envelopes.import_(FULL, agent=plain)
        for choice in ("existing", "invalid"):
            with pytest.raises(BadSetting, match="'maybe' is not 'refuse' or 'skip'"):
                await runtime.envelopes.import_(FULL, **{choice: "maybe"})
        await runtime.run(plain(), key="p")
        with pytest.raises(NotAnAgent):
            await runtime.envelopes.read("p")


async def test_adapters_are_sources_and_targets(path, tmp_path):
    """FL12: a whole adapter is imported, and sessions are exported to one."""
    source, target = MemoryAdapter(), SQLiteEnvelopes(tmp_path / "out.db")
    others = [envelope(user(f"say {n}"), id=f"{n}" * 8 + NAME[8:]) for n in range(5)]
    for one in others:
        await source.save_session(str(one.id), pack(one))
    seen = []
    async with opened(path, llm=replies) as runtime:
        made = await runtime.envelopes.import_(source, progress=lambda *at: seen.append(at))
        await runtime.envelopes.export(target, list(made.sessions))

    assert seen[0] == (0, 5) and seen[-1] == (5, 5)
    for one in others:
        assert await target.load_session(str(one.id)) == pack(one)


async def test_a_conversation_of_everhold_is_written_for_fluers(path, tmp_path):
    """FL13: the prompt is the first message, each result has a message of its own in the form of
    fluers, and what an envelope cannot carry is said.
    """
    script = [
        {
            "tool_calls": [
                {"id": "c1", "name": "look", "input": {"place": "here"}},
                {"id": "c2", "name": "fail", "input": {}},
            ]
        },
        "Three things.",
    ]

    def model(query):
        usage = everhold.Usage(prompt_tokens=5, completion_tokens=1)
        return everhold.Answer(script.pop(0), usage=usage)

    async with opened(path, llm=model) as runtime:
        session = await runtime.session(looker, "mine")
        await session.configure({"model": "m-1", "temperature": 0.2})
        await session.send([{"type": "text", "text": "Look."}])
        found = await session.envelope()
        assert found == await session.envelope()
        assert found == await runtime.envelopes.read("mine")

    assert found.model == "m-1" and found.max_turns == 12 and found.metadata == {}
    assert [one.role for one in found.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    first, second = (one.content[0] for one in found.messages[2:4])
    assert first.tool_use_id == "c1" and first.content["details"] == {"place": "here", "found": 3}
    assert json.loads(first.content["content"][0]["text"]) == {"place": "here", "found": 3}
    assert second.content["content"][0]["text"].startswith("Error: ")
    assert any("temperature" in one for one in found.left_out)
    assert any("look" in one for one in found.left_out)
    assert "the usage" in found.left_out
    assert unpack(pack(found), found.id).messages == found.messages


async def test_a_conversation_that_went_on_is_written_whole(path, tmp_path):
    """FL14: imported messages as they were, then the new ones; the system message first."""
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(FULL, agent=support)
        session = await runtime.session(support, NAME)
        await session.send("And now?")
        found = await session.envelope()
        await session.configure({"model": "other", "max_turns": 3})
        later = await session.envelope()

    assert str(found.id) == NAME
    assert found.messages == (*FULL.messages, user("And now?"), assistant("Sure."))
    assert (found.model, found.max_turns, found.system_message) == ("openai:gpt-4o", 5, "Be brief.")
    assert (later.model, later.max_turns) == ("other", 3)


async def test_an_agents_own_instructions_are_the_system_message(path):
    """FL15: without an envelope before, the text that the model got is the system message."""
    async with opened(path, llm=replies) as runtime:
        session = await runtime.session(support, "mine")
        before = await session.envelope()
        await session.send("Hello")
        found = await session.envelope()

    assert before.system_message == found.system_message == "You are support."
    assert before.messages == (system("You are support."),)
    assert found.messages == (system("You are support."), user("Hello"), assistant("Sure."))
    assert (found.model, found.max_turns) == ("", 7)


async def test_what_is_not_on_the_path_is_left_out(path):
    """FL16: other branches, earlier frames and a running turn are said, not written."""
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(FULL)
        session = await runtime.session(fluers, NAME)
        await session.send("one")
        leaf = (await session.conversation()).graph.leaf
        await session.send("two")
        await session.branch(leaf)
        branched = await session.envelope()
        await session.continue_as("later", [{"role": "user", "content": "A summary."}])
        framed = await session.envelope()

    assert extract_text(pack(branched)["messages"][-2]["content"]) == "one"
    assert any("other branches" in one for one in branched.left_out)
    assert framed.messages == (system("Be brief."), user("A summary."))
    assert any("before the current frame" in one for one in framed.left_out)


def test_from_code_that_is_not_async(tmp_path):
    """FL17: the blocking runtime imports, exports and gives envelopes."""
    folder = files(tmp_path / "in", FULL)
    with everhold.open_blocking("memory://", llm=replies) as runtime:
        runtime.envelopes.import_(folder, agent=support)
        session = runtime.session(support, NAME)
        assert session.envelope() == FULL
        runtime.envelopes.export(tmp_path / f"{NAME}.json", session)

    assert json.loads((tmp_path / f"{NAME}.json").read_text()) == pack(FULL)


async def test_a_crash_at_any_commit_keeps_the_session_whole(path):
    """FL25: an import that dies before or after any of its commits is repeated; then there is one
    session, with everything, and it goes on.
    """
    undisturbed = 0
    async with opened(on=(counting := CrashingStore(MemoryStore())), llm=replies) as runtime:
        await runtime.envelopes.import_(FULL, agent=support)
        undisturbed = counting.commits
    assert undisturbed >= 2  # the session, and what it does with what the commit holds
    for at in range(1, undisturbed + 1):
        for when in ("before", "after"):
            base = MemoryStore() if path is None else SQLiteStore(path / f"{at}-{when}.db")
            dying = CrashingStore(base, at=at, when=when, die=died)
            with contextlib.suppress(Died):
                async with opened(on=dying, llm=replies, replay=False, recover=False) as runtime:
                    await runtime.envelopes.import_(FULL, agent=support)
            async with opened(on=base, llm=replies) as runtime:
                done = await runtime.envelopes.import_(FULL, agent=support)
                assert list(done.sessions or done.existing) == [NAME], (at, when)
                session = await runtime.session(support, NAME)
                assert await session.envelope() == FULL, (at, when)
                assert (await session.send("go on")).text == "Sure."
                assert len(await runtime.sessions()) == 1
                assert len(await session.turns()) == 3


class Died(BaseException):
    """The process is gone."""


def died():
    raise Died


async def test_a_fork_and_an_export_carry_it(path, tmp_path):
    """FL26: a fork of an imported conversation, and a copy in another database, have its options
    and messages.
    """
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(FULL, agent=support)
        session = await runtime.session(support, NAME)
        fork = await session.fork()
        forked = await fork.envelope()
        await runtime.archive.export(tmp_path / "all.jsonl")
    async with opened(llm=replies) as runtime:
        await runtime.archive.import_(tmp_path / "all.jsonl")
        session = await runtime.session(support, NAME)
        copied = await session.envelope()
        await session.send("And now?")

    assert forked.messages == FULL.messages and forked.id != FULL.id
    assert (forked.model, forked.max_turns) == (FULL.model, FULL.max_turns)
    assert copied == FULL
    assert ASKED[-1].options["model"] == "openai:gpt-4o" and ASKED[-1].system == "Be brief."


@pytest.mark.xdist_group("postgres")
async def test_on_postgres(postgres, tmp_path):
    """FL27: the same on Postgres, from and to a table of fluers."""
    url = fresh(postgres)
    postgres.run("DROP SCHEMA IF EXISTS theirs CASCADE")
    async with PostgresEnvelopes(f"{postgres.url}?schema=theirs") as theirs:
        await theirs.save_session(NAME, pack(FULL))
        async with everhold.Runtime(PostgresStore(url), llm=replies) as runtime:
            made = await runtime.envelopes.import_(theirs, agent=support)
            session = await runtime.session(support, NAME)
            assert session.id == made.sessions[NAME]
            assert await session.envelope() == FULL
            await session.send("And now?")
            await runtime.envelopes.export(theirs, session)
        found = unpack(await theirs.load_session(NAME), FULL.id)
    assert found.messages == (*FULL.messages, user("And now?"), assistant("Sure."))


class Masks(everhold.Plugin):
    """Hides a word before it is stored."""

    name = "masks"

    def before_store(self, value):
        return json.loads(json.dumps(value).replace("secret", "******"))


masked = everhold.Agent(plugins=[Masks()], name="masked_of_envelopes")


async def test_what_a_plugin_hides_is_hidden_before_it_is_stored(path):
    """FL28: messages of an envelope pass through `before_store`, as inputs do."""
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(envelope(user("a secret")), agent=masked)
        session = await runtime.session(masked, NAME)
        assert extract_text((await session.history())[0].content) == "a ******"


async def test_large_sessions_are_carried(path, tmp_path):
    """FL29: an image of 5 MB and two thousand messages, there and back."""
    many = [user(f"{n}") if n % 2 else assistant(f"{n}") for n in range(2000)]
    large = envelope(user(Image(ImageData("image/png", bytes(5_000_000)))), *many)
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(large, agent=support)
        session = await runtime.session(support, NAME)
        assert await session.envelope() == large


async def test_blocks_that_fluers_does_not_know_are_left_out(path):
    """FL30: thinking and the data of providers are said, and the rest is written."""
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "Yes.", "provider": {"name": "p", "id": "1"}},
    ]
    async with opened(path, llm=lambda query: {"content": blocks}) as runtime:
        session = await runtime.session(support, "mine")
        await session.send("Sure?")
        found = await session.envelope()

    assert found.messages[-1] == assistant("Yes.")
    assert "1 blocks of type thinking" in found.left_out
    assert "provider data of blocks" in found.left_out


async def test_a_running_turn_and_queued_inputs_are_left_out(path):
    """FL31: an envelope has what has settled."""
    async with opened(path, llm=None, replay=False) as runtime:
        await runtime.envelopes.import_(FULL, agent=support)
        session = await runtime.session(support, NAME)
        turn = await session.send("And now?")
        assert turn.waiting
        await session.enqueue("later", key="k")
        found = await session.envelope()

    assert found.messages == FULL.messages
    assert "the running turn" in found.left_out
    assert "1 queued inputs" in found.left_out


async def test_a_host_may_keep_its_sessions_as_envelopes(path, tmp_path):
    """FL32: each turn saved with an adapter, as `SessionRunner` of fluers does; an import of the
    last one elsewhere goes on from there.
    """
    adapter = SQLiteEnvelopes(tmp_path / "kept.db")
    async with opened(path, llm=replies) as runtime:
        session = await runtime.session(support, NAME)
        for n in range(3):
            await session.send(f"say {n}")
            await runtime.envelopes.export(adapter, session)
    async with opened(llm=replies) as runtime:
        await runtime.envelopes.import_(adapter, agent=support)
        session = await runtime.session(support, NAME)
        await session.send("more")

    assert [extract_text(one["content"]) for one in ASKED[-1].messages][::2] == [
        *("say 0", "say 1", "say 2"),
        "more",
    ]
    assert ASKED[-1].system == "You are support."


class Breaks(everhold.Plugin):
    """Makes messages that are none."""

    name = "breaks"

    def before_store(self, value):
        return ["no block"]


class Draws(everhold.Plugin):
    """Turns everything into a block of its own."""

    name = "draws"

    def before_store(self, value):
        return [{"type": "drawing", "of": len(value)}]


breaking = everhold.Agent(plugins=[Breaks()], name="breaking_of_envelopes")
drawing = everhold.Agent(plugins=[Draws()], name="drawing_of_envelopes")


async def test_an_agent_that_does_not_take_it_in_is_said(path):
    """FL33: why is in the result, also for one of several sessions; the options are there."""
    async with opened(path, llm=replies) as runtime:
        done = await runtime.envelopes.import_(FULL, agent=breaking)
        assert "is not a valid message node" in done.failed[NAME]
        found = await (await runtime.session(breaking, NAME)).envelope()
        assert found.model == FULL.model and len(found.messages) <= 1


async def test_what_a_plugin_made_of_it_can_be_exported(path):
    """FL34: blocks that a plugin put in the place of imported ones are left out like others."""
    async with opened(path, llm=replies) as runtime:
        await runtime.envelopes.import_(envelope(user("a"), user("b")), agent=drawing)
        found = await (await runtime.session(drawing, NAME)).envelope()
        assert found.messages == () and "2 blocks of type drawing" in found.left_out
