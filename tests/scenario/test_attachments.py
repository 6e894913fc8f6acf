"""Attachments: what is too long for a model, or not for its eyes, is kept beside the
conversation.
"""

import sqlite3
from base64 import b64encode
from contextlib import closing
from hashlib import sha256

import pytest

from everhold.agents.agent import Agent
from everhold.agents.builtin_tools import read_attachment
from everhold.core.tool import Later, Window
from everhold.errors import BadArguments, BadExport, ForeignCall, UnknownAttachment
from everhold.ports import attachment
from everhold.ports.attachment import keep_attachment
from everhold.ports.tool import ToolContext, tool
from everhold.stores.memory import MemoryStore
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted, told, use

LONG = "".join(f"{n}: and so on, and so on\n" for n in range(2_000))
NAME = sha256(LONG.encode()).hexdigest()
runs = []


@pytest.fixture(autouse=True)
def fresh_runs():
    runs.clear()


@tool(read_only=True)
def log() -> str:
    """A long text."""
    runs.append("log")
    return LONG


@tool(read_only=True, output=Window(lines=3, keep="tail"))
async def end_of_log() -> str:
    """The end of it."""
    return LONG


@tool(read_only=True)
def table() -> list[int]:
    """A long table."""
    return list(range(10_000))


@tool(read_only=True, output=None)
def all_of_it() -> str:
    """All of it."""
    return LONG


@tool
async def draw(context: ToolContext) -> str:
    """Draw something, and keep it."""
    made = await context.attach(b"\x89PNG", "image/png")
    again = await context.attach(b"\x89PNG")
    assert made.id == again.id
    return f"drawn as {made.id}"


@tool
def write(context: ToolContext) -> str:
    """Write something from a thread, and keep it."""
    return context.attach_from_thread("words").id


agent = Agent(
    tools=[log, end_of_log, table, all_of_it, draw, write, read_attachment], name="keeper"
)


async def say(runtime, id="chat"):
    session = await runtime.session(agent, id)
    await session.send("Go on.")
    return session


async def test_a_long_result_is_shown_in_part_and_kept_whole(tmp_path):
    """Row 29: the model is told where the rest is; the journal has only what was shown."""
    model = Scripted(use("log"))
    async with opened(tmp_path, llm=model) as runtime:
        session = await say(runtime)
        [shown] = model.results
        lines = shown.splitlines()
        assert lines[:400] == LONG.splitlines()[:400]
        assert lines[400:] == [
            f"[Truncated to the first {len(''.join(LONG.splitlines(True)[:400])):,} of"
            f" {len(LONG):,} bytes (2,000 lines). The whole result is attachment {NAME}.]"
        ]
        assert await runtime.attachment(session.id, NAME) == LONG.encode()

    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        assert told(await session.history()) == [shown]
        assert [made.id for made in await runtime.attachments(session.id)] == [NAME]
    assert runs == ["log"]


async def test_the_end_may_be_shown_instead():
    model = Scripted(use("end_of_log"))
    async with opened(llm=model) as runtime:
        await say(runtime)
    note, *lines = model.results[0].splitlines()
    assert note.startswith("[Truncated to the last ")
    assert lines == LONG.splitlines()[-3:]


async def test_a_long_table_is_kept_as_json():
    model = Scripted(use("table"))
    async with opened(llm=model) as runtime:
        session = await say(runtime)
        [made] = await runtime.attachments(session.id)
        assert made.media_type == "application/json"
        assert (await runtime.attachment(session.id, made.id)).startswith(b"[0,1,2,")
    assert len(model.results[0]) < 17_000


async def test_a_tool_may_show_everything():
    model = Scripted(use("all_of_it"))
    async with opened(llm=model) as runtime:
        session = await say(runtime)
        assert await runtime.attachments(session.id) == []
    assert model.results == [LONG]


async def test_a_model_reads_the_rest_with_a_tool():
    """A part at a time; what is not there, or not text, is said."""
    model = Scripted(
        use("log"),
        use("read_attachment", id=NAME, offset=5, length=10),
        use("draw"),
        use("read_attachment", id=sha256(b"\x89PNG").hexdigest()),
        use("read_attachment", id="nowhere"),
    )
    async with opened(llm=model) as runtime:
        session = await say(runtime)
        found = told(await session.history())
    assert found[1] == f"{LONG[5:15]}\n[Characters 5 to 15 of {len(LONG):,}.]"
    assert found[3] == "The attachment is not text: image/png, 4 bytes."
    assert found[4] == "There is no attachment 'nowhere' in this conversation."


async def test_tools_keep_what_they_make(tmp_path):
    """Row 29: bytes are kept before the result that names them is recorded; from a thread too."""
    model = Scripted(use("draw"), use("write"))
    async with opened(tmp_path, llm=model) as runtime:
        session = await say(runtime)
        assert [made.media_type for made in await runtime.attachments(session.id)] == [
            "image/png",
            "text/plain",
        ]
        assert await runtime.attachment(session.id, sha256(b"words").hexdigest()) == b"words"


@tool
def long_work() -> Later:
    """Finishes later, with a long result."""
    return Later()


worker = Agent(tools=[long_work], name="worker")


async def test_a_long_result_that_came_later_is_kept_too(tmp_path):
    """Whoever gave it, the model is shown a part."""
    model = Scripted(use("long_work"))
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(worker, "chat")
        turn = await session.send("Work.")
        await runtime.answer(turn.queries[0], LONG)
        await session.turn(turn.input_id)
        assert await runtime.attachment(session.id, NAME) == LONG.encode()
        assert told(await session.history()) == model.results
    assert model.results[0].endswith(f"The whole result is attachment {NAME}.]")


async def test_another_session_cannot_read_it():
    """Row 29: whoever knows the name of an attachment has nothing; a fork reads what it shares."""
    model = Scripted(
        use("log"),
        "Done.",
        use("read_attachment", id=NAME),
        "Done.",
        use("read_attachment", id=NAME),
    )
    async with opened(llm=model) as runtime:
        session = await say(runtime)
        other = await say(runtime, "other")
        assert told(await other.history()) == [
            f"There is no attachment '{NAME}' in this conversation."
        ]
        with pytest.raises(UnknownAttachment):
            await runtime.attachment(other.id, NAME)
        fork = await session.fork()
        await fork.send("Read it.")
        assert told(await fork.history())[1].startswith("0: and so on")


async def test_what_nobody_refers_to_is_gone(tmp_path):
    """Row 29: bytes go with the last session that keeps them, a fork's origin included."""
    model = Scripted(use("log"), "Done.", use("log"))
    async with opened(tmp_path, llm=model) as runtime:
        first, second = await say(runtime), await say(runtime, "other")
        fork = await first.fork()
        for session, left in ((first, 1), (second, 1), (fork, 0)):
            await runtime.cancel(session.id)
            await runtime.delete(session.id)
            assert blobs(tmp_path) == left
        assert await runtime.store.maintenance.verify() == []


def blobs(tmp_path):
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        return connection.execute("SELECT count(*) FROM blob").fetchone()[0]


async def test_attachments_come_along_with_their_session(tmp_path):
    """Exported and imported, a fork's shared ones too; a file whose bytes were changed is
    refused.
    """
    model = Scripted(use("log"))
    file = tmp_path / "all.jsonl"
    async with opened(tmp_path, llm=model) as runtime:
        session = await say(runtime)
        fork = await session.fork()
        await runtime.archive.export(file)
    (tmp_path / "other").mkdir()
    async with opened(tmp_path / "other", llm=model) as other:
        await other.archive.import_(file)
        for session_id in (session.id, fork.id):
            assert await other.attachment(session_id, NAME) == LONG.encode()
        assert await other.store.maintenance.verify() == []
    encoded = b64encode(LONG.encode())
    lines = [line.replace(encoded, b64encode(b"other")) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"\n".join(lines))
    async with opened(llm=model) as other:
        with pytest.raises(BadExport):
            await other.archive.import_(file)


class Dying(MemoryStore):
    """Dies before the n-th write of an import."""

    left = 0

    async def commit(self, change, fence):
        self._die()
        await super().commit(change, fence)

    async def attach(self, *given):
        self._die()
        await super().attach(*given)

    def _die(self):
        self.left -= 1
        if self.left == 0:
            raise OSError("killed")


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 5, 6])
async def test_an_import_that_dies_leaves_no_session_without_its_attachments(tmp_path, writes):
    """They land before its steps; importing the file again goes on where it died."""
    model, file = Scripted(use("log"), use("draw"), "Done.", "Done."), tmp_path / "all.jsonl"
    async with opened(tmp_path, llm=model) as runtime:
        session = await say(runtime)
        await session.send("Draw.")
        kept = await runtime.attachments(session.id)
        await runtime.archive.export(file)
    store = Dying()
    async with opened(on=store, llm=model, recover=False, replay=False) as other:
        store.left = writes
        try:
            await other.archive.import_(file)
        except OSError:
            found = await other.sessions()
            assert [row.steps for row in found] in ([], [-1])
            store.left = 0
            await other.archive.import_(file)
        assert await other.attachments(session.id) == kept != []
        assert len(await (await other.session(agent, session.id)).turns()) == 2


async def test_damaged_bytes_are_never_handed_out(tmp_path):
    """The name is the seal: what does not match it is damage, and `verify` finds it."""
    model = Scripted(use("log"))
    async with opened(tmp_path, llm=model, replay=False) as runtime:
        session = await say(runtime)
        with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
            connection.execute("UPDATE blob SET data = x'00'")
            connection.execute(
                "INSERT INTO attachment SELECT 99, blob, n, media_type, size, at FROM attachment"
            )
        with pytest.raises(Exception, match="does not match its name"):
            await runtime.attachment(session.id, NAME)
        assert {problem.code for problem in await runtime.store.maintenance.verify()} == {
            "broken_seal",
            "dangling_attachment",
        }


async def test_an_attachment_belongs_to_the_work_of_a_session(monkeypatch):
    """Outside of it there is nobody to keep it for; and nothing without end is kept."""
    with pytest.raises(ForeignCall):
        await keep_attachment(b"")
    monkeypatch.setattr(attachment, "LARGEST", 3)
    with pytest.raises(BadArguments, match="of 4 bytes is larger than 3"):
        await keep_attachment(b"1234")
