"""`check` as it is used: the code on disk has changed since a session paused; a fresh process
replays it.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import everhold
from everhold.archive.archive import CheckRequest
from everhold.core.session import SessionState
from everhold.errors import BadArguments, BadExport, UnknownSession
from everhold.packages.find import find_program
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from tests.fault import story

BEFORE = """
import everhold

print("loaded")

def send(order):
    with open({effects!r}, "a") as file:
        file.write(order)
    return "sent"

@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {{order}} come back?")
    await ctx.call(send, order)
    if not await ctx.approval(f"Refund? {{reason}}"):
        return "declined"
    return "refunded"
"""

HASHED = """
import everhold

@everhold.program
async def hashed(ctx: everhold.Context) -> str:
    for word in {"apple", "pear", "plum", "fig", "quince", "date", "lime", "melon"}:
        if word[0] < "m":
            await ctx.llm(word)
        else:
            await ctx.approval(word)
    return "done"
"""


class Shop:
    """A folder with a program and a database in which a session of it waits."""

    def __init__(self, folder: Path) -> None:
        self.file, self.effects = folder / "shop.py", folder / "effects"
        self.database = folder / "app.db"
        self.exported = folder / "sessions.jsonl"
        self.write(BEFORE.format(effects=str(self.effects)))

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def change(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.write(text.replace(old, new))

    def open(self) -> Runtime:
        return everhold.open(self.database, recover=False)

    async def paused(self, runtime: Runtime, name: str = "refund", **args: str) -> str:
        program = find_program(f"{self.file}:{name}")
        status = await runtime.start(program(**args))
        for _ in range(20):
            if not (queries := getattr(status, "queries", ())) or queries[0].kind != "llm":
                break
            status = await runtime.answer(queries[0], "broken", wait=60)
        return status.session_id

    def bytes(self) -> list[bytes]:
        """Everything that is stored."""
        import sqlite3

        connection = sqlite3.connect(self.database)
        try:
            return [line.encode() for line in connection.iterdump()]
        finally:
            connection.close()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def test_unchanged_code_is_ok_and_nothing_is_done_or_written(shop: Shop) -> None:
    """No call is made, no row is changed, and what the program prints harms nothing."""
    async with shop.open() as runtime:
        session_id = await shop.paused(runtime, order="7")
        before, done = shop.bytes(), shop.effects.read_text()
        report = await runtime.archive.check()

        assert [(one.session_id, one.verdict) for one in report.checked] == [(session_id, "ok")]
        assert (shop.bytes(), shop.effects.read_text(), done) == (before, "7", "7")


async def test_the_code_on_disk_is_what_counts(shop: Shop) -> None:
    """Not the code that this process loaded."""
    async with shop.open() as runtime:
        await shop.paused(runtime, order="7")
        shop.change("Why did", "Please say why")
        (one,) = (await runtime.archive.check()).checked

        assert (one.verdict, one.reworded[0].query_id, one.reworded[0].changed) == (
            "reworded",
            "q-0",
            ["prompt"],
        )
        assert one.reworded[0].asked == "Please say why 7 come back?"


@pytest.mark.parametrize(
    ("old", "new", "verdict", "code"),
    [
        ('ctx.approval(f"Refund? {reason}")', "ctx.llm(reason)", "diverged", "diverged"),
        ("async def refund(", "async def repay(", "missing", "unknown_program"),
        ("@everhold.program", "@everhold.program(version=2)", "missing", "version_missing"),
        ("order: str", "number: str", "error", "bad_arguments"),
    ],
)
async def test_what_would_stop_a_session_is_found(
    shop: Shop, old: str, new: str, verdict: str, code: str
) -> None:
    """With the code of the error that the session would meet."""
    async with shop.open() as runtime:
        await shop.paused(runtime, order="7")
        shop.change(old, new)
        report = await runtime.archive.check()

        assert [(one.verdict, one.code) for one in report.checked] == [(verdict, code)]
        assert not report.ok


async def test_code_that_cannot_be_loaded_stops_only_its_own_sessions(
    shop: Shop, tmp_path: Path
) -> None:
    """The others are checked."""
    other = Shop(_made(tmp_path / "other"))
    async with shop.open() as runtime:
        lost = await shop.paused(runtime, order="7")
        found = await other.paused(runtime, order="8")
        shop.write("import nothing_of_this_name\n")
        verdicts = {one.session_id: one.verdict for one in (await runtime.archive.check()).checked}

        assert verdicts[found] == "ok"
        assert verdicts[lost] in ("missing", "error")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_a_program_that_depends_on_the_hash_seed_is_found(shop: Shop) -> None:
    """The order of a set of texts is another one in another process."""
    shop.write(HASHED)
    async with shop.open() as runtime:
        await shop.paused(runtime, "hashed")
        for _ in range(8):  # an eighth of all seeds begin with the same word
            (one,) = (await runtime.archive.check()).checked
            if one.verdict != "ok":
                break

        assert one.verdict in ("diverged", "reworded")


async def test_a_session_in_memory_is_checked_too(shop: Shop) -> None:
    """It is written to a file that is gone afterwards."""
    async with Runtime(MemoryStore(), recover=False) as runtime:
        session_id = await shop.paused(runtime, order="7")
        shop.change("Refund?", "Pay back?")
        report = await runtime.archive.check(session_id)

        assert [(one.session_id, one.verdict) for one in report.checked] == [
            (session_id, "reworded")
        ]
        assert report.source == "memory"


@pytest.mark.parametrize("redact", [False, True])
async def test_an_exported_file_is_checked_without_the_database(shop: Shop, redact: bool) -> None:
    """Forks included, which share their steps with others of the file."""
    async with shop.open() as runtime:
        session_id = await shop.paused(runtime, order="7")
        fork = await runtime.fork(session_id)
        await runtime.archive.export(shop.exported, redact=redact)
    shop.database.unlink()
    async with everhold.open("memory://") as elsewhere:
        report = await elsewhere.archive.check(file=shop.exported)
        assert {one.session_id: one.verdict for one in report.checked} == {
            session_id: "ok",
            fork.session_id: "ok",
        }
        assert bool(report.redacted) is redact

        shop.change("ctx.approval(f", "ctx.input(f")
        assert [
            one.verdict for one in (await elsewhere.archive.check(file=shop.exported)).checked
        ] == ["diverged"] * 2


async def test_which_sessions_are_checked_can_be_said(shop: Shop) -> None:
    """Those that wait or run; by label; by id; also those that have ended. Not by id and by
    label.
    """
    async with shop.open() as runtime:
        waiting = await shop.paused(runtime, order="7")
        ended = await shop.paused(runtime, order="8")
        await runtime.answer(ended, False)

        async def checked(*ids: str, **which: object) -> set[str]:
            report = await runtime.archive.check(list(ids) or None, **which)
            assert report.ok
            return {one.session_id for one in report.checked}

        assert await checked() == {waiting}
        assert await checked(ended) == {ended}
        assert await checked(state=None) == {waiting, ended}
        assert await checked(program="other") == set()
        assert await checked(labels={"no": "such"}) == set()
        with pytest.raises(BadArguments):
            await checked(ended, program="refund")


async def test_a_file_that_is_no_export_is_told(shop: Shop) -> None:
    """In one sentence, with the line."""
    shop.exported.write_text("hello")
    async with shop.open() as runtime:
        with pytest.raises(BadExport, match="line 1 cannot be read as exported sessions"):
            await runtime.archive.check(file=shop.exported)


async def test_a_session_that_is_not_there_is_told(shop: Shop) -> None:
    """In the database, and in a file."""
    async with shop.open() as runtime:
        await runtime.archive.export(shop.exported)
        for more in ({}, {"file": shop.exported}):
            with pytest.raises(UnknownSession, match="no session 's-nobody'"):
                await runtime.archive.check("s-nobody", **more)


async def test_what_a_program_raises_now_does_not_end_the_check(shop: Shop) -> None:
    """Not even what Ctrl-C raises."""
    async with shop.open() as runtime:
        await shop.paused(runtime, order="7")
        shop.change('print("loaded")', "raise KeyboardInterrupt")
        assert (await runtime.archive.check()).counts == {"missing": 1}


async def test_a_check_that_is_cancelled_leaves_no_process(shop: Shop) -> None:
    """Who does not want to wait any longer need not."""
    shop.write(BEFORE.format(effects=str(shop.effects)))
    async with shop.open() as runtime:
        await shop.paused(runtime, order="7")
        pid = shop.effects.with_name("pid")
        shop.change(
            'print("loaded")',
            f"import os, time; open({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n');"
            " time.sleep(600)",
        )
        checking = asyncio.create_task(runtime.archive.check())
        async with asyncio.timeout(60):
            while not pid.exists() or not pid.read_text().endswith("\n"):
                await asyncio.sleep(0.01)
        checking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checking
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_the_process_speaks_json_lines(shop: Shop) -> None:
    """One object in; what is known of the source and one line for each session out; complaints
    elsewhere.
    """

    async def made() -> str:
        async with shop.open() as runtime:
            return await shop.paused(runtime, order="7")

    session_id = asyncio.run(made())
    request = msgspec.json.encode(
        CheckRequest(database=str(shop.database), state=[SessionState.PAUSED])
    )
    done = subprocess.run(
        [sys.executable, "-m", "everhold.archive.check_process"],
        input=request,
        capture_output=True,
        env=dict(os.environ),
        timeout=250,
    )
    first, far, only = map(json.loads, done.stdout.splitlines())

    assert far == [0, 1]
    assert (first, only["session_id"], only["verdict"]) == ({"redacted": []}, session_id, "ok")
    assert b"loaded" in done.stderr


def test_the_blocking_runtime_checks_too(shop: Shop) -> None:
    """Its loop is in a thread of its own, and a process can be started from there."""
    with everhold.open_blocking(shop.database) as runtime:
        assert runtime.archive.check().checked == []


async def test_everything_that_a_session_can_do_moves_and_is_checked(tmp_path: Path) -> None:
    """Races, timers, calls, signals, children, forks, cancels, ends: the same text after a move,
    and all of it ok.
    """
    database, moved, again = (
        tmp_path / "there.db",
        tmp_path / "moved.jsonl",
        tmp_path / "again.jsonl",
    )
    await story.play(str(database), strict=True)
    async with (
        everhold.open(database, recover=False) as there,
        everhold.open(tmp_path / "here.db", recover=False) as here,
    ):
        await there.archive.export(moved, values=True)
        await here.archive.import_(moved)
        await here.archive.export(again, values=True)
        report = await here.archive.check(state=None)

        assert again.read_text().splitlines()[1:] == moved.read_text().splitlines()[1:]
        assert await here.archive.verify() == []
        assert [each for each in report.checked if each.verdict != "ok"] == []
        assert (report.ok, len(report.checked)) == (True, len(await here.sessions()))
        assert len(report.checked) > 5
