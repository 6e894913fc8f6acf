"""Sessions move between databases in a file, and go on where they arrive."""

import asyncio
import hashlib
import io
import json
import os
import stat
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everhold
from everhold.archive import redact
from everhold.archive.export_format import EXPORT_FORMAT, ExportReader
from everhold.core.codec import loads
from everhold.errors import (
    BadExport,
    BadSetting,
    KeyConflict,
    SessionExists,
    StoreUnavailable,
    UnknownSession,
)
from everhold.ports.store import Change, Letter
from everhold.programs.python.execution import PythonHost
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import at_top

DONE: list[str] = []


def send(what: str) -> str:
    DONE.append(what)
    return f"sent {what}"


@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?", system="Be brief.")
    if not await ctx.approval(f"Refund {order}? {reason}", to="ann"):
        return "declined"
    return await ctx.llm("Say goodbye.")


@everhold.program
async def counting(ctx: everhold.Context) -> int:
    await ctx.llm("Ready?")
    return int(await ctx.state("shop").incr("orders"))


@everhold.program
async def family(ctx: everhold.Context) -> str:
    return str(await ctx.spawn(refund(order="child")))


@everhold.program
async def waiting(ctx: everhold.Context) -> str:
    await ctx.sleep(60)
    return str(await ctx.receive("go"))


clerk = everhold.Agent(name="clerk_of_transfers")


class House:
    """Two databases: `there`, where sessions begin, and `here`, where they go on."""

    def __init__(self, folder, kinds=("memory", "memory"), recover=False):
        self.file = folder / "sessions.jsonl"
        self.clock = ManualClock()
        stores = [
            MemoryStore() if kind == "memory" else SQLiteStore(folder / f"{n}.db")
            for n, kind in enumerate(kinds)
        ]
        self.there, self.here = (
            Runtime(store, clock=self.clock, recover=recover) for store in stores
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self):
        for runtime in (self.there, self.here):
            await self._stack.enter_async_context(runtime)
        return self

    async def __aexit__(self, *gone):
        await self._stack.aclose()

    async def move(self, *ids, **options):
        await self.there.archive.export(self.file, ids or None, **options)
        return await self.here.archive.import_(self.file)

    def lines(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()]


async def paused(runtime, call=None, **options):
    """A session that waits for an approval, a second later than the one before it."""
    runtime.clock.advance(1)
    status = await runtime.start(call or refund(order="7"), **options)
    return await runtime.answer(status.queries[0], "broken")


# ---- there and back


@pytest.mark.parametrize(
    "kinds", [("memory", "sqlite"), ("sqlite", "memory"), ("sqlite", "sqlite")], ids="-".join
)
async def test_a_session_goes_on_where_it_arrives(tmp_path, kinds):
    """What was answered is not asked again, and the open question is in the inbox there."""
    async with House(tmp_path, kinds) as house:
        status = await paused(house.there)
        await house.move()

        (query,) = await house.here.inbox(to="ann")
        assert (query.session_id, query.prompt) == (status.session_id, "Refund 7? broken")
        status = await house.here.answer(query, True)
        assert (await house.here.answer(status.queries[0], "bye")).result == "bye"
        assert await house.here.archive.verify() == []


@pytest.mark.parametrize("kinds", [("memory", "sqlite"), ("sqlite", "memory")], ids="-".join)
async def test_what_arrived_is_exported_as_the_same_text(tmp_path, kinds):
    """Ids, keys, labels, times, dice, usage and revisions are kept: a second export has the very
    same sessions.
    """
    async with House(tmp_path, kinds) as house:
        first = await paused(
            house.there, key="refund-7", labels={"customer": "42"}, title="Order 7"
        )
        await house.there.answer(first.queries[0], False, by={"user": "ann"})
        await paused(house.there)
        await house.there.archive.export(house.file)
        before = house.lines()
        await house.here.archive.import_(house.file)
        await house.here.archive.export(house.file)

        assert house.lines() == before


async def test_nothing_changes_where_it_was_written(tmp_path):
    """Export only reads."""
    async with House(tmp_path) as house:
        status = await paused(house.there)
        before = await house.there.store.load(status.session_id)
        await house.there.archive.export(house.file)

        assert await house.there.store.load(status.session_id) == before


async def test_timers_and_signals_move_along(tmp_path):
    """A timer fires at its moment there, and a signal that nobody received yet is received."""
    async with House(tmp_path, recover=True) as house:
        status = await house.there.start(waiting())
        await house.there.signal(status.session_id, "go", "now")
        await house.move()
        house.clock.advance(61)

        assert (await house.here.wait(status.session_id)).result == "now"


async def test_an_answer_that_the_program_has_not_seen_moves_along(tmp_path):
    """Accepted where the program is not, taken where it is."""
    async with House(tmp_path) as house:
        status = await house.there.start(refund(order="7"))
        house.there.programs._given.clear()
        house.there.engine.sessions.drop(house.there.engine.sessions.cached(status.session_id))
        house.there.engine.sessions.host = PythonHost(_nothing)
        await house.there.answer(status.session_id, "broken")
        await house.move()

        assert (await house.here.status(status.session_id)).state == "running"
        assert (await house.here.answer(status.session_id, False)).result == "declined"


@pytest.mark.parametrize("kinds", [("memory", "sqlite"), ("sqlite", "memory")], ids="-".join)
async def test_signals_of_a_failed_session_move_along(tmp_path, kinds):
    """What was accepted and not received is received after a retry, in the order sent, wherever
    that is.
    """

    def edition(broken):
        @at_top
        async def hears(ctx: everhold.Context) -> list:
            await ctx.llm("Ready?")
            if broken:
                raise ValueError("broken")
            return [await ctx.receive("go") for _ in range(4)]

        return hears

    async with House(tmp_path, kinds, recover=True) as house:
        status = await house.there.start(edition(broken=True)())
        for value in (1, 1, 2):
            await house.there.signal(status.session_id, "go", value)
        assert (await house.there.answer(status.session_id, "yes")).state == "failed"
        await house.move()
        assert await house.here.archive.verify() == []

        edition(broken=False)
        await house.here.retry(status.session_id)
        await house.here.signal(status.session_id, "go", 3)
        assert (await house.here.wait(status.session_id, 60)).result == [1, 1, 2, 3]
        assert await house.here.archive.verify() == []


async def test_what_a_process_said_moves_along(tmp_path):
    """Words of a background process that its agent has not heard yet arrive with the agent."""
    async with House(tmp_path) as house:
        session = await house.there.session(clerk, "chat")
        record = await house.there.store.load(session.id)
        record.head.revision, record.head.mail = record.head.revision + 1, 1
        said = {
            "process": "s-1",
            "title": "the oven",
            "event": "end",
            "state": "completed",
            "value": "bread",
        }
        letters = [Letter("wake", said, record.head.updated_at)]
        await house.there.store.commit(
            Change(session.id, record.head, letters=letters), record.head.revision - 1
        )
        await house.move()

        assert [one.body for one in (await house.here.store.load(session.id)).letters] == [said]


def _nothing(ref, version):
    raise everhold.errors.UnknownProgram(ref)


async def test_ended_sessions_move_too(tmp_path):
    """A result can be read where it arrives, and what it cost."""
    async with House(tmp_path) as house:
        status = await paused(house.there)
        ended = await house.there.answer(status.queries[0], False)
        await house.move()

        assert await house.here.status(status.session_id) == ended


# ---- work under way


@everhold.program
async def paying(ctx: everhold.Context, rerun: str) -> str:
    try:
        return str(await ctx.call(send, rerun, rerun=rerun))
    except everhold.OutcomeUnknown:
        return "unknown"


@pytest.mark.parametrize(("rerun", "result"), [("safe", "sent safe"), ("never", "unknown")])
async def test_work_under_way_has_an_unknown_outcome(tmp_path, rerun, result):
    """Its mark moves along, and what happens then was declared."""
    async with House(tmp_path, recover=True) as house:
        session_id = await _marked(house, rerun)
        await house.here.archive.import_(house.file)

        assert (await house.here.wait(session_id, 60)).result == result


async def test_work_under_way_that_asks_is_asked_of_a_person(tmp_path):
    """`rerun="ask"` becomes a question in the inbox of the other database; a second move keeps
    it.
    """
    async with House(tmp_path, ("memory", "sqlite"), recover=True) as house:
        session_id = await _marked(house, "ask")
        await house.here.archive.import_(house.file)
        status = await house.here.wait(session_id, 60)
        assert await house.here.archive.verify() == []
        await house.here.archive.export(house.file)
        async with House(tmp_path, recover=False) as next_one:
            await next_one.here.archive.import_(house.file)
            (query,) = await next_one.here.inbox()

        assert query.query == status.queries[0].query
        assert "outcome was not recorded" in query.prompt


async def _marked(house, rerun):
    """A session exported while its call is under way."""
    gate = asyncio.Event()
    original = house.there.engine.effects._outcome

    async def held(*args):
        await gate.wait()
        return await original(*args)

    house.there.engine.effects._outcome = held
    status = await house.there.start(paying(rerun=rerun), wait=0)
    await house.there.archive.export(house.file)
    gate.set()
    await house.there.wait(status.session_id)
    return status.session_id


# ---- relations


async def test_children_come_with_their_parent(tmp_path):
    """A parent goes on when its child, which came along, has ended."""
    async with House(tmp_path, recover=True) as house:
        status = await house.there.start(family())
        (query,) = await _asked(house.there)
        moved = await house.move(status.session_id)
        assert moved.sessions == [status.session_id, query.session_id]

        answered = await house.here.answer(query.session_id, "broken")
        await house.here.answer(answered.queries[0], False)
        assert (await house.here.wait(status.session_id, 60)).result == "declined"


async def _asked(runtime):
    while not (found := await runtime.inbox()):
        await asyncio.sleep(0)
    return found


async def test_a_parent_written_before_its_child_ended_is_told(tmp_path):
    """A file that was written while sessions moved leaves nobody waiting for ever."""
    async with House(tmp_path, recover=True) as house:
        status = await house.there.start(family())
        (query,) = await _asked(house.there)
        await house.there.archive.export(house.file, status.session_id)
        text = house.file.read_text().splitlines(keepends=True)
        parent = text[: next(n for n, line in enumerate(text) if '"end"' in line) + 1]
        answered = await house.there.answer(query.session_id, "broken")
        await house.there.answer(answered.queries[0], False)
        await house.there.archive.export(house.file, query.session_id)
        child = house.file.read_text().splitlines(keepends=True)[1:-1]
        house.file.write_text(
            "".join([*parent, *child, '{"line":"close","sessions":2,"values":0}\n'])
        )
        await house.here.archive.import_(house.file)

        assert (await house.here.wait(status.session_id, 60)).result == "declined"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_fork_names_its_origin_in_the_same_file(tmp_path, kind):
    """What it shares is written once, and both go on."""
    async with House(tmp_path, ("memory", kind)) as house:
        origin = await paused(house.there)
        house.clock.advance(1)
        fork = await house.there.fork(origin.session_id, at=1, answer="late")
        await house.move()
        deliveries = [line for line in house.lines() if line.get("line") == "delivery"]

        assert len(deliveries) == 3
        assert [one.prompt for one in await house.here.inbox()] == [
            "Refund 7? broken",
            "Refund 7? late",
        ]
        assert await house.here.archive.verify() == []
        assert (await house.here.answer(fork.session_id, False)).result == "declined"


async def test_a_fork_alone_carries_what_it_shares(tmp_path):
    """It is a session of its own where it arrives, with the same journal."""
    async with House(tmp_path) as house:
        origin = await paused(house.there)
        fork = await house.there.fork(origin.session_id)
        await house.move(fork.session_id)

        arrived = await house.here.store.load(fork.session_id)
        assert arrived.birth.origin is None
        assert arrived.deliveries == (await house.there.store.load(fork.session_id)).deliveries
        assert house.lines()[1]["forked_from"] == origin.session_id
        with pytest.raises(UnknownSession):
            await house.here.status(origin.session_id)


async def test_a_fork_alone_still_knows_its_own_child(tmp_path):
    """The child of a fork is not the child of its origin, also when the origin stays behind."""
    async with House(tmp_path, recover=True) as house:
        origin = await house.there.start(family())
        await _asked(house.there)
        fork = await house.there.fork(origin.session_id)
        while len(await house.there.inbox()) < 2:
            await asyncio.sleep(0)
        moved = await house.move(fork.session_id)
        child = moved.sessions[1]
        answered = await house.here.answer(child, "broken")
        await house.here.answer(answered.queries[0], False)

        assert (await house.here.wait(fork.session_id, 60)).result == "declined"


async def test_a_fork_of_what_went_another_way_here_is_refused(tmp_path):
    """An origin that has other steps in this database is not taken for the one that was forked."""
    async with House(tmp_path) as house:
        origin = await house.there.start(refund(order="7"))
        await house.move()
        await house.here.answer(origin.session_id, "elsewise")
        await house.there.answer(origin.session_id, "broken")
        fork = await house.there.fork(origin.session_id)
        await house.there.archive.export(house.file)

        with pytest.raises(BadExport, match="steps here are different"):
            await house.here.archive.import_(house.file, existing="skip")
        with pytest.raises(UnknownSession):
            await house.here.status(fork.session_id)


# ---- what is there already


async def test_a_session_that_is_there_is_refused_and_nothing_changes(tmp_path):
    """Not even the other sessions of the file arrive."""
    async with House(tmp_path) as house:
        first = await paused(house.there)
        await house.move()
        second = await paused(house.there)
        with pytest.raises(SessionExists, match=first.session_id):
            await house.move()

        assert [row.session_id for row in await house.here.sessions()] == [first.session_id]
        moved = await house.here.archive.import_(house.file, existing="skip")
        assert (moved.sessions, moved.skipped) == ([second.session_id], [first.session_id])


async def test_a_session_that_is_there_is_never_touched(tmp_path):
    """Skipping leaves what happened here as it is."""
    async with House(tmp_path) as house:
        status = await paused(house.there)
        await house.move()
        ended = await house.here.answer(status.session_id, False)
        await house.here.archive.import_(house.file, existing="skip")

        assert await house.here.status(status.session_id) == ended


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_key_that_is_taken_is_a_conflict(tmp_path, kind):
    """Two sessions with one key are not brought together by a move."""
    async with House(tmp_path, ("memory", kind)) as house:
        await paused(house.there, key="k")
        other = await paused(house.here, key="k")
        with pytest.raises(KeyConflict) as caught:
            await house.move()

        assert caught.value.session_id == other.session_id
        assert len(await house.here.sessions()) == 1


async def test_existing_is_refuse_or_skip(tmp_path):
    """Another word is refused before the file is opened."""
    async with House(tmp_path) as house:
        with pytest.raises(BadSetting, match="existing"):
            await house.here.archive.import_(house.file, existing="replace")


# ---- durable values


async def test_values_move_when_asked(tmp_path):
    """The namespaces that the sessions have used, and a value that is here already stays."""
    async with House(tmp_path, ("memory", "sqlite")) as house:
        for runtime, times in ((house.there, 3), (house.here, 0)):
            for _ in range(times):
                await runtime.answer((await runtime.start(counting())).queries[0], "yes")
        moved = await house.move(values=True)
        assert moved.values == 1

        status = await house.here.start(counting())
        assert (await house.here.answer(status.queries[0], "yes")).result == 4
        await paused(house.there, counting())
        await house.there.archive.export(house.file, values=True)
        assert (await house.here.archive.import_(house.file, existing="skip")).values == 0


async def test_values_stay_behind_unless_asked_for(tmp_path):
    """They belong to a database, and other sessions may use them."""
    async with House(tmp_path) as house:
        await paused(house.there, counting())

        assert (await house.move()).values == 0


# ---- files


@pytest.mark.parametrize("level", ["process", "mixed", "power"])
async def test_an_import_is_synced_before_it_is_acknowledged(tmp_path, level):
    """The last commit of an import is synced at every level, and with it all that the log holds
    before it.
    """
    async with Runtime(SQLiteStore(tmp_path / "from.db"), recover=False) as runtime:
        for n in range(3):
            await runtime.start(refund(order=str(n)))
        await runtime.archive.export(tmp_path / "moved.jsonl")
    store = SQLiteStore(tmp_path / "to.db", durability=level)
    async with Runtime(store, recover=False) as runtime:
        said: list[str] = []
        store._connection.set_trace_callback(said.append)
        imported = await runtime.archive.import_(tmp_path / "moved.jsonl")
        store._connection.set_trace_callback(None)
    assert len(imported.sessions) == 3
    synced, writes, strengths = level == "power", False, []
    for words in said:
        if words.startswith("PRAGMA synchronous = "):
            synced = words.endswith("FULL")
        elif words.startswith("BEGIN"):
            writes = words == "BEGIN IMMEDIATE"
        elif words == "COMMIT" and writes:
            strengths.append(synced)
    assert len(strengths) == 3
    assert strengths[-1]


async def test_a_file_is_for_its_owner_alone(tmp_path):
    """What people said is in it."""
    async with House(tmp_path) as house:
        await house.there.archive.export(house.file)

        assert stat.S_IMODE(house.file.stat().st_mode) == 0o600


async def test_a_failed_export_leaves_the_file_that_was_there(tmp_path):
    """A file is new and whole, or the old one; nothing is left beside it."""
    async with House(tmp_path) as house:
        status = await paused(house.there)
        house.file.write_text("old")
        house.there.store.load = _broken
        with pytest.raises(RuntimeError):
            await house.there.archive.export(house.file, state="paused")

        assert house.file.read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == [house.file.name]
        assert status.state == "paused"


async def _broken(*args, **more):
    raise RuntimeError("the disk is gone")


async def test_streams_will_do(tmp_path):
    """Anything opened in binary mode can be written, and read even if it cannot be rewound."""
    async with House(tmp_path) as house:
        status = await paused(house.there)
        stream = io.BytesIO()
        await house.there.archive.export(stream, status.session_id)
        assert not stream.closed

        moved = await house.here.archive.import_(Pipe(stream.getvalue()))
        assert moved.sessions == [status.session_id]


class Pipe(io.BytesIO):
    def seekable(self):
        return False

    def seek(self, *where):
        raise io.UnsupportedOperation


async def test_a_pipe_that_has_a_name_will_do(tmp_path):
    """It is written to and read from like any pipe, and never replaced by a file. So are devices,
    such as /dev/null.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with House(tmp_path) as house:
        status = await paused(house.there)
        text = asyncio.get_running_loop().run_in_executor(None, pipe.read_bytes)
        await house.there.archive.export(pipe, status.session_id)
        assert pipe.is_fifo()

        sent = asyncio.get_running_loop().run_in_executor(None, pipe.write_bytes, await text)
        assert (await house.here.archive.import_(pipe)).sessions == [status.session_id]
        await sent
        with pytest.raises(StoreUnavailable, match="Is a directory"):
            await house.there.archive.export(tmp_path)


async def test_a_file_opened_as_text_is_refused(tmp_path):
    """The error says how to open it."""
    async with House(tmp_path) as house:
        with pytest.raises(BadSetting, match="binary mode"):
            await house.there.archive.export(io.StringIO())
        with pytest.raises(BadSetting, match="binary mode"):
            await house.here.archive.import_(io.StringIO("{}"))


async def test_a_folder_that_is_not_there_is_told(tmp_path):
    """Neither writing to it nor reading from it ends in a traceback."""
    async with House(tmp_path) as house:
        with pytest.raises(StoreUnavailable, match="No such file"):
            await house.there.archive.export(tmp_path / "nowhere" / "x.jsonl")
        with pytest.raises(BadExport, match="No such file"):
            await house.here.archive.import_(tmp_path / "nowhere.jsonl")


async def test_an_unknown_session_is_refused_before_a_file_is_made(tmp_path):
    """Who names a session that is not there gets no half file."""
    async with House(tmp_path) as house:
        with pytest.raises(UnknownSession):
            await house.there.archive.export(house.file, "s-nobody")

        assert not house.file.exists()


# ---- what is wrong with a file


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The lines of a sound file: a session, its fork, and a session that has ended."""

    async def written():
        async with House(tmp_path_factory.mktemp("sound")) as house:
            status = await paused(house.there, key="k")
            house.clock.advance(1)
            await house.there.fork(status.session_id)
            await house.there.answer((await paused(house.there)).queries[0], False)
            await paused(house.there, counting())
            await house.there.archive.export(house.file, values=True)
            return house.file.read_bytes().splitlines(keepends=True)

    return asyncio.run(written())


async def refused(tmp_path, text):
    """Why a file is refused; nothing of it may arrive."""
    async with House(tmp_path) as house:
        with pytest.raises(BadExport) as caught:
            await house.here.archive.import_(io.BytesIO(text))
        assert await house.here.sessions() == []
        return str(caught.value)


async def test_a_file_cut_off_after_any_line_is_refused(tmp_path, sound):
    """Also after a whole session: the close is missing."""
    for end in range(len(sound)):
        assert f"line {end + 1}" in await refused(tmp_path, b"".join(sound[:end]))


async def test_a_file_without_any_one_line_is_refused(tmp_path, sound):
    """Every line is counted or checked."""
    for gone in range(len(sound)):
        await refused(tmp_path, b"".join(sound[:gone] + sound[gone + 1 :]))


@pytest.mark.parametrize("bit", range(8))
async def test_a_changed_bit_of_a_session_is_found(tmp_path, sound, bit):
    """Wherever it is: refused with a line, and nothing arrives."""
    text = b"".join(sound)
    end = text.index(b'{"line":"value"')
    for place in range(len(sound[0]) + bit, end, 151):
        damaged = bytearray(text)
        damaged[place] ^= 1 << bit
        assert "line " in await refused(tmp_path, bytes(damaged))


def edited(sound, number, change):
    """The file with one line changed."""
    line = json.loads(sound[number])
    change(line)
    return b"".join([*sound[:number], json.dumps(line).encode() + b"\n", *sound[number + 1 :]])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "it is not an export of everhold"),
        (b"\n\n", "it is not an export of everhold"),
        (b"hello", "it is not an export of everhold"),
        (b"[1]\n", "it is not an export of everhold"),
        (b'{"everhold":"envelope"}\n', "it is not an export of everhold"),
        (b"\xff\xfe\n", "it is not an export of everhold"),
        (b'{"everhold":"export"}\n', "its format is None"),
        (b'{"everhold":"export","format":"1"}\n', "its format is '1'"),
        (b'{"everhold":"export","format":0}\n', "its format is 0"),
        (b'{"everhold":"export","format":1,"redacted":7}\n', "redacted"),
        (b'{"everhold":"export","format":1}\n{"line":"head"}\n', "line 2"),
        (b'{"everhold":"export","format":1}\n{"line":"other"}\n', "line 2"),
        (
            b'{"everhold":"export","format":1}\n{"line":"effect","q":1,"since":0}\n',
            "not part of a session",
        ),
        (
            b'{"everhold":"export","format":1}\n{"line":"close","sessions":1,"values":0}\n',
            "should have 1 sessions",
        ),
        (
            b'{"everhold":"export","format":1}\n{"line":"close","sessions":0,"values":0}\nx',
            "after the close line",
        ),
        (
            b'{"everhold":"export","format":1}\n{"line":"value","namespace":"a","key":"\xff","value":[1]}',
            "line 2",
        ),
        (
            b'{"everhold":"export","format":1}\n{"line":"value","namespace":"a","key":"b","value":[]}',
            "list of one element",
        ),
        (b'{"everhold":"export","format":1}\n' + b"[" * 100_000, "line 2"),
    ],
)
async def test_what_is_wrong_is_said_with_its_line(tmp_path, text, reason):
    """Whatever the file is, the error is ours, with the line and the reason."""
    assert reason in await refused(tmp_path, text)


async def test_a_newer_format_is_called_newer(tmp_path):
    """The format is met before the shape, so a newer file is not called broken."""
    text = b'{"everhold":"export","format":%d,"new":"things"}\n' % (EXPORT_FORMAT + 1)

    assert (
        f"format {EXPORT_FORMAT + 1}; this everhold reads formats up to {EXPORT_FORMAT}"
        in await refused(tmp_path, text)
    )


async def test_a_session_in_it_twice_is_refused(tmp_path, sound):
    """Also where both are sound."""
    end = next(n for n, line in enumerate(sound) if b'"end"' in line) + 1

    assert "twice" in await refused(tmp_path, b"".join(sound[:end] + sound[1:]))


@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        (1, lambda line: line["birth"].update(seeds=[]), "no seed"),
        (
            1,
            lambda line: line["birth"].update(origin="s-0", origin_n=0),
            "shared deliveries do not agree",
        ),
        (2, lambda line: line.update(n=5), "deliveries"),
        (
            3,
            lambda line: line.update(notes={"outcome": {"type": "returned", "value": 1}}),
            "its journal does not agree",
        ),
        (4, lambda line: line.update(state="completed"), "its journal does not agree"),
        (4, lambda line: line.update(n=7), "deliveries"),
        (4, lambda line: line.update(line="effect", q=9, since=0), "no head"),
        (4, lambda line: line.update(revision=0), "no revision"),
    ],
)
async def test_a_session_that_makes_no_sense_is_refused(tmp_path, sound, number, change, reason):
    """A right checksum does not make a session sound."""
    lines = edited(sound, number, change).splitlines(keepends=True)
    end = json.loads(lines[5])
    end["sha256"] = hashlib.sha256(b"".join(lines[1:5])).hexdigest()
    lines[5] = json.dumps(end).encode() + b"\n"

    assert reason in await refused(tmp_path, b"".join(lines))


async def test_other_line_ends_and_empty_lines_do_no_harm(tmp_path, sound):
    """A file that went through a mail or a checkout is still the same file."""
    async with House(tmp_path) as house:
        moved = await house.here.archive.import_(
            io.BytesIO(b"\r\n\r\n".join(line.rstrip(b"\n") for line in sound))
        )

        assert len(moved.sessions) == 4


# ---- redaction


@given(st.text())
def test_a_placeholder_has_the_length_of_the_text(text):
    """In characters and in bytes; and redacting it again changes nothing."""
    hidden = redact.redact_text(text)

    assert (len(hidden), len(hidden.encode())) == (len(text), len(text.encode()))
    assert redact.redact_text(hidden) == hidden
    assert not set("abcABC234") & set(hidden)


VERDICT = {
    "$ref": "#/$defs/Verdict",
    "$defs": {
        "Verdict": {
            "type": "object",
            "properties": {
                "mood": {"enum": ["good", "bad"]},
                "why": {"type": "string"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "day": {"type": "string", "format": "date"},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}},
            },
        }
    },
}


def test_only_free_text_of_a_schema_is_replaced():
    """What an enum or a format decides by stays, and the answer still fits."""
    value = {
        "mood": "good",
        "why": "Ann said so",
        "note": "see 7",
        "day": "2026-01-31",
        "tags": ["red"],
    }

    assert redact.redact_to_schema(value, VERDICT) == {
        "mood": "good",
        "why": "xxx xxxx xx",
        "note": "xxx 1",
        "day": "2026-01-31",
        "tags": ["xxx"],
    }


@pytest.mark.parametrize(
    ("value", "schema", "hidden"),
    [
        ("Ann", None, "xxx"),
        (["Ann", {"age": 7, "of": "Bob"}], None, ["xxx", {"age": 7, "of": "xxx"}]),
        (True, {"type": "boolean"}, True),
        ("Ann", {}, "xxx"),
        ("Ann", {"type": "string", "pattern": "^A"}, "Ann"),
        ("Ann", {"anyOf": [{"type": "string"}, {"const": "Ann"}]}, "Ann"),
        (
            {"kind": "a", "x": "Ann"},
            {"oneOf": [{"type": "object"}, {"type": "object"}]},
            {"kind": "a", "x": "Ann"},
        ),
        (
            ["a", "Ann"],
            {"type": "array", "prefixItems": [{"const": "a"}, {"type": "string"}]},
            ["a", "Ann"],
        ),
        (
            {"Ann": "x"},
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"Ann": "x"},
        ),
    ],
)
def test_what_a_schema_decides_by_stays(value, schema, hidden):
    """Where it is not sure that a text is free, it is kept."""
    assert redact.redact_to_schema(value, schema) == hidden


async def test_a_redacted_file_says_so_and_cannot_be_imported(tmp_path):
    """Neither prompts, nor answers, nor arguments are in it."""
    async with House(tmp_path) as house:
        await paused(
            house.there,
            refund(order="Bob"),
            title="Order of Ann",
            metadata={"mail": "ann@example.org"},
        )
        done = await house.there.archive.export(house.file, redact=True)
        text = house.file.read_text()

        assert (
            done.redacted
            == loads(text.splitlines()[0])["redacted"]
            == list(redact.REDACTABLE_PARTS)
        )
        assert not [
            word
            for word in ("come back", "broken", "Ann", "Bob", "example", "brief")
            if word in text
        ]
        assert '"order":"xxx"' in text
        with pytest.raises(BadExport, match="redacted"):
            await house.here.archive.import_(house.file)


async def test_arguments_stay_when_the_other_parts_are_named(tmp_path):
    async with House(tmp_path) as house:
        await paused(house.there, refund(order="Bob"))
        await house.there.archive.export(house.file, redact=["prompts", "answers", "notes"])
        assert (
            '"order":"Bob"' in house.file.read_text() and house.file.read_text().count("Bob") == 1
        )


async def test_arguments_are_redacted_when_they_are_named(tmp_path):
    """Each part can be named; another word is refused."""
    async with House(tmp_path) as house:
        await paused(house.there, refund(order="Ann's"))
        await house.there.archive.export(house.file, redact=["arguments"])
        with house.file.open("rb") as file:
            (carried,) = ExportReader(file, "it")

        assert carried.birth.args == {"order": "xxx'x"}
        assert carried.deliveries[1].answers[0].value == "broken"
        with pytest.raises(BadSetting, match="redact"):
            await house.there.archive.export(house.file, redact=["names"])


async def test_letters_values_and_ends_are_redacted_too(tmp_path):
    """Nothing said to a session, or by it, is left."""
    async with House(tmp_path, recover=True) as house:
        status = await house.there.start(waiting())
        await house.there.signal(status.session_id, "go", "Ann")
        ended = await paused(house.there)
        await house.there.cancel(ended.session_id, "Ann said so")
        await house.there.archive.export(house.file, redact=True)

        assert "Ann" not in house.file.read_text()
        assert '"name":"go","value":"xxx"' in house.file.read_text()
