"""The four SQL views say what is true, on a real file, forks included; and the docs list their
columns.
"""

import asyncio
import re
import sqlite3
from pathlib import Path

import everhold
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "views.md").read_text()
VIEWS = ("sessions_v", "queries_v", "answers_v", "usage_v")
DAWN = 1_700_000_000.0


@everhold.program(version=3)
async def refund(ctx: everhold.Context, order: str) -> dict[str, str]:
    reason = await ctx.llm(f"Why {order}?", system="Be brief.")
    if not await ctx.approval("Refund?", to="ann", timeout=60, default=False):
        raise ValueError("not refunded")
    return {"reason": reason}


@everhold.program
async def race(ctx: everhold.Context) -> bool:
    quick, slow = asyncio.create_task(ctx.llm("quick")), asyncio.create_task(ctx.llm("slow"))
    await asyncio.wait([quick, slow], return_when=asyncio.FIRST_COMPLETED)
    slow.cancel()
    return bool(await ctx.approval("Enough?"))


BROKEN: list[int] = []


@everhold.program
async def mended(ctx: everhold.Context) -> str:
    both = asyncio.gather(ctx.llm("one"), ctx.llm("two"))
    if await ctx.llm("three") and BROKEN:
        raise ValueError("broken")
    return " ".join(await both)


class File:
    """A database, and what SQL says of it."""

    def __init__(self, folder):
        self.path = folder / "app.db"
        self.clock = ManualClock(DAWN)
        self.runtime = Runtime(SQLiteStore(self.path), clock=self.clock, recover=False)

    async def __aenter__(self):
        await self.runtime.__aenter__()
        return self

    async def __aexit__(self, *gone):
        await self.runtime.close()

    def rows(self, statement, *values):
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def queries(self, session_id, columns="query_id, step, state"):
        return self.rows(
            f"SELECT {columns} FROM queries_v WHERE session_id = ? ORDER BY query_id", session_id
        )

    async def started(self, call, *answers, **options):
        status = await self.runtime.start(call, **options)
        for answer in answers:
            self.clock.advance(1)
            status = await self.runtime.answer(status.session_id, answer)
        return status.session_id


async def test_the_docs_list_the_columns_in_order(tmp_path):
    """Each column has a row, and there is no row without a column."""
    sections = {view: PAGE.partition(f"## {view}\n")[2].partition("\n## ")[0] for view in VIEWS}
    listed = {
        view: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        for view, section in sections.items()
    }
    async with File(tmp_path) as file:
        columns = {
            view: [row[1] for row in file.rows(f"PRAGMA table_info({view})")] for view in VIEWS
        }

    assert listed == columns


async def test_a_session_has_a_row_with_what_it_is(tmp_path):
    """Its birth and its head, with defaults where nothing was said."""
    async with File(tmp_path) as file:
        session_id = await file.started(
            refund(order="7"), "broken", key="k", title="T", labels={"a": "b"}
        )
        names = (
            "key, program, version, title, labels, metadata, state, steps, created_at,"
            " updated_at, due_at, args"
        )
        (row,) = file.rows(f"SELECT {names} FROM sessions_v WHERE session_id = ?", session_id)

        ref = f"{__name__}:refund"
        assert row[:8] == ("k", ref, 3, "T", '{"a":"b"}', "{}", "paused", 1)
        assert row[8:] == (DAWN, DAWN + 1, DAWN + 61, '{"order":"7"}')


async def test_the_version_of_a_program_that_has_none_is_1(tmp_path):
    """As everywhere else."""
    async with File(tmp_path) as file:
        await file.started(race())

        assert file.rows("SELECT version, title, labels FROM sessions_v") == [(1, "", "{}")]


async def test_an_end_is_told_with_its_result_or_its_error(tmp_path):
    """A result is an SQL value, and its JSON type is beside it."""
    async with File(tmp_path) as file:
        done = await file.started(refund(order="7"), "broken", True)
        failed = await file.started(refund(order="8"), "broken", False)
        stopped = await file.started(refund(order="9"))
        await file.runtime.cancel(stopped, "enough")
        found = {
            row[0]: row[1:]
            for row in file.rows(
                "SELECT session_id, state, result, result_type, error FROM sessions_v"
            )
        }

        assert found[done] == ("completed", '{"reason":"broken"}', "object", None)
        assert found[failed] == ("failed", None, None, "ValueError: not refunded")
        assert found[stopped] == ("cancelled", None, None, "enough")


async def test_relations_are_told(tmp_path):
    """Whose child it is, and what it was forked from, at which step."""
    async with File(tmp_path) as file:
        origin = await file.started(refund(order="7"), "broken")
        fork = (await file.runtime.fork(origin)).session_id

        rows = file.rows(
            "SELECT session_id, parent_id, origin_id, origin_step FROM sessions_v ORDER BY"
            " origin_id"
        )
        assert rows == [(origin, None, None, None), (fork, None, origin, 1)]


async def test_a_query_has_a_row_with_what_was_asked(tmp_path):
    """Fields that a kind does not use are NULL or empty."""
    async with File(tmp_path) as file:
        session_id = await file.started(refund(order="7"), "broken")
        names = (
            "query_id, step, asked_at, kind, key, prompt, system, name, addressee,"
            " expires_at, state"
        )

        assert file.queries(session_id, names) == [
            ("q-0", 0, DAWN, "llm", "0:0", "Why 7?", "Be brief.", "", None, None, "answered"),
            ("q-1", 1, DAWN + 1, "approval", "0:1", "Refund?", None, "", "ann", DAWN + 61, "open"),
        ]


async def test_an_expired_query_is_expired(tmp_path):
    """And its answer says that nobody gave it."""
    async with File(tmp_path) as file:
        session_id = await file.started(refund(order="7"), "broken")
        file.clock.advance(100)
        await file.runtime.engine.moves.move(session_id)

        assert file.queries(session_id, "state") == [("answered",), ("expired",)]
        rows = file.rows("SELECT query_id, value, value_type, expired FROM answers_v ORDER BY step")
        assert rows == [("q-0", "broken", "text", 0), ("q-1", 0, "false", 1)]


async def test_the_loser_of_a_race_is_withdrawn(tmp_path):
    """It left the inbox with the step that made it a loser; what is open when all is cancelled is
    cancelled.
    """
    async with File(tmp_path) as file:
        session_id = await file.started(race())
        await file.runtime.answer(session_id, "first", query_id="q-0")
        assert file.queries(session_id, "state") == [("answered",), ("withdrawn",), ("open",)]

        await file.runtime.cancel(session_id)
        assert file.queries(session_id, "state") == [("answered",), ("withdrawn",), ("cancelled",)]


async def test_a_query_that_a_retry_asks_again_has_one_row(tmp_path):
    """With the step at which it was first asked; while the session is failed, it is withdrawn."""
    async with File(tmp_path) as file:
        BROKEN.append(1)
        session_id = await file.started(mended())
        await file.runtime.answer(session_id, "x", query_id="q-0")
        assert [row[2] for row in file.queries(session_id)] == [
            "answered",
            "withdrawn",
            "withdrawn",
        ]

        BROKEN.clear()
        await file.runtime.retry(session_id)
        assert file.queries(session_id) == [
            ("q-0", 0, "answered"),
            ("q-1", 0, "open"),
            ("q-2", 0, "open"),
        ]


async def test_an_answer_has_a_row_with_who_gave_it_and_what_it_cost(tmp_path):
    """As it was handed to the program."""
    async with File(tmp_path) as file:
        session_id = await file.started(refund(order="7"))
        usage = {"prompt_tokens": 9, "completion_tokens": 4}
        await file.runtime.answer(session_id, "broken", usage=usage, by={"user": "ann"})
        await file.runtime.answer(session_id, error="not today")
        names = (
            "query_id, step, value, value_type, error, error_code, prompt_tokens,"
            " completion_tokens, answered_by"
        )

        assert file.rows(f"SELECT {names} FROM answers_v ORDER BY step") == [
            ("q-0", 1, "broken", "text", None, None, 9, 4, '{"user":"ann"}'),
            ("q-1", 2, None, None, "not today", "error", None, None, None),
        ]


async def test_a_fork_has_what_it_shares_and_its_own(tmp_path):
    """Also a fork of a fork, cut before the place at which the first one was."""
    async with File(tmp_path) as file:
        origin = await file.started(refund(order="7"), "broken", True)
        fork = (await file.runtime.fork(origin, at=1, answer="late")).session_id
        await file.runtime.answer(fork, True)
        again = (await file.runtime.fork(fork, at=0)).session_id

        assert file.queries(fork) == [("q-0", 0, "answered"), ("q-1", 1, "answered")]
        assert file.rows(
            "SELECT value FROM answers_v WHERE session_id = ? ORDER BY step", fork
        ) == [("late",), (1,)]
        assert file.queries(again) == [("q-0", 0, "open")]
        assert file.rows("SELECT count(*) FROM queries_v") == [(5,)]


async def test_a_query_answered_after_the_fork_is_open_in_it(tmp_path):
    """What the origin was told later is not told to the fork."""
    async with File(tmp_path) as file:
        origin = await file.started(race())
        fork = (await file.runtime.fork(origin)).session_id
        await file.runtime.answer(origin, "first", query_id="q-0")

        assert file.queries(fork, "query_id, state") == [("q-0", "open"), ("q-1", "open")]
        assert file.queries(origin, "state") == [("answered",), ("withdrawn",), ("open",)]


async def test_deleted_sessions_are_in_no_view_and_their_forks_are_whole(tmp_path):
    """The fork still has the steps that it shares."""
    async with File(tmp_path) as file:
        origin = await file.started(refund(order="7"), "broken", True)
        fork = (await file.runtime.fork(origin, at=1)).session_id
        await file.runtime.delete(origin)

        for view in VIEWS:
            assert {row[0] for row in file.rows(f"SELECT session_id FROM {view}")} == {fork}
        assert file.queries(fork, "state") == [("answered",), ("open",)]


async def test_usage_is_what_the_status_says(tmp_path):
    """The view and the runtime count alike, with open prompts and without."""
    async with File(tmp_path) as file:
        session_id = await file.started(refund(order="7"))
        (row,) = file.rows(
            "SELECT llm_calls, prompt_tokens, prompt_source, response_tokens, total_tokens FROM"
            " usage_v"
        )
        assert row == (1, 5, "estimated", 0, 5)

        await file.runtime.answer(
            session_id, "broken", usage={"prompt_tokens": 9, "completion_tokens": 4}
        )
        status = await file.runtime.answer(session_id, True)
        auto = status.metrics["auto"]
        names = (
            "llm_calls, rounds, prompt_tokens, prompt_source, response_tokens,"
            " response_source, total_tokens"
        )
        (row,) = file.rows(f"SELECT {names} FROM usage_v")
        told = [auto["prompt_tokens"], auto["response_tokens"]]
        assert row[:2] == (auto["llm_calls"], auto["rounds"])
        assert row[2:6] == tuple(value for one in told for value in (one["tokens"], one["source"]))
        assert row[6] == auto["total_tokens"]["tokens"]


async def test_one_session_is_read_without_the_others(tmp_path):
    """A question about one session searches for it; it does not scan sessions or journals."""
    async with File(tmp_path) as file:
        await file.started(refund(order="7"), "broken")
        plan = [
            (view, row[3])
            for view in ("queries_v", "answers_v", "sessions_v", "usage_v")
            for row in file.rows(f"EXPLAIN QUERY PLAN SELECT * FROM {view} WHERE session_id = 'x'")
        ]

    assert [
        (view, line)
        for view, line in plan
        if re.match(r"SCAN (s|j|x|h|session|journal|head_2)\b", line)
    ] == []
