"""One scripted run that does everything a session can do, told so that a new process can go on with
it anywhere.

`play` opens the database and tells the whole story from its beginning: what has happened already is
left alone. A process that dies anywhere in it is followed by another that calls `play` again.
"""

import asyncio
import contextlib
import json
import os
import re
import sqlite3
from pathlib import Path

import everhold
from everhold.core.query import Kind
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from everhold.testing.faults import CrashingStore, die

DAWN = 1_700_000_000.0


def done(place: str, what: str) -> str:
    """An effect outside: a line in a file, which no crash takes back."""
    with open(place, "a") as file:
        file.write(f"{what}\n")
    return f"did {what}"


async def done_async(place: str, what: str) -> str:
    return done(place, what)


@everhold.program
async def letter(ctx: everhold.Context, topic: str) -> str:
    """A child: two questions and a durable count."""
    draft = await ctx.llm(f"draft of {topic}")
    await ctx.state.incr("letters")
    return f"{draft}, {await ctx.llm(f'polish of {topic}')}"


@everhold.program
async def plan(ctx: everhold.Context, place: str) -> dict:
    """Gather, a race, a timeout that fires, each rerun policy, durable values, a child, people, a
    nap.
    """
    found = {"gather": await asyncio.gather(*(ctx.llm(f"part {i}") for i in range(4)))}
    ctx.log("gathered")
    found["race"] = await race(ctx)
    try:
        async with asyncio.timeout(30):
            found["patience"] = await ctx.llm("nobody answers this")
    except TimeoutError:
        found["patience"] = "lost"
    ctx.progress(1, 2)
    found["count"] = [await ctx.state.incr("steps", 2), await ctx.state.incr("steps")]
    found["safe"] = await ctx.call(done, place, "safe")
    found["async"] = await ctx.call(done_async, place, "async")
    found["ask"] = await ctx.call(done, place, "ask", rerun="ask")
    try:
        found["never"] = await ctx.call(done, place, "never", rerun="never")
    except everhold.OutcomeUnknown:
        found["never"] = "unknown"
    await ctx.llm("after the calls")  # its answer is the same whatever became of them
    ctx.record("score", 7)
    found["child"] = await ctx.spawn(letter(topic="rain"))
    found["approved"] = await ctx.approval("send it?")
    await asyncio.sleep(60)
    found["signal"] = await ctx.receive("go")
    found["batch"] = await ctx.llm_batch([f"line {i}" for i in range(6)])
    await ctx.state("other").set("seen", {"by": "plan"})
    found["end"] = await ctx.llm("the end")
    return found


async def race(ctx: everhold.Context) -> str:
    runners = [asyncio.create_task(ctx.llm(f"runner {name}")) for name in "ab"]
    finished, others = await asyncio.wait(runners, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    winner = finished.pop().result()
    return await ctx.llm(f"{winner} has won; say so")


@everhold.program
async def doomed(ctx: everhold.Context) -> str:
    """It is cancelled while its child waits."""
    child = ctx.spawn(letter(topic="fog"))
    try:
        return await child
    finally:
        ctx.log("cancelled")


@everhold.program
async def tally(ctx: everhold.Context, rounds: int) -> list:
    """Counts in the same place as `plan`."""
    return [[await ctx.llm(f"round {i}"), await ctx.state.incr("steps")] for i in range(rounds)]


@everhold.program
async def clumsy(ctx: everhold.Context, place: str) -> str:
    """It fails until it is mended, and is retried."""
    words = await ctx.llm("clumsy")
    if not Path(f"{place}.mended").exists():
        raise ValueError("not mended yet")
    return f"{words}, {await ctx.llm('mended')}"


class Teller:
    """Tells the story on one runtime, and leaves alone what has happened already."""

    def __init__(self, runtime: Runtime, clock: ManualClock, path: str, *, strict: bool) -> None:
        self.runtime, self.clock = runtime, clock
        self.reader = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.strict = strict  # nothing may have happened already

    async def quiet(self) -> None:
        """Wait until nothing moves by itself; whoever is asked whether to run a call again says
        yes.
        """
        for turn in range(20_000):
            await asyncio.sleep(0 if turn < 20 else 0.001)
            if not self._moving():
                asked = [query for query in await self.runtime.inbox() if query.kind is Kind.CALL]
                if not asked:
                    return
                for query in asked:
                    await self.runtime.answer(query, {"rerun": True})
        raise AssertionError("the sessions never come to rest")

    def _moving(self) -> bool:
        statement = (
            "SELECT EXISTS (SELECT 1 FROM effect) OR EXISTS (SELECT 1 FROM letter WHERE kind <>"
            " 'signal')"
            " OR EXISTS (SELECT 1 FROM head_2 WHERE due_at < ?)"
        )
        return bool(self.reader.execute(statement, (self.clock.now(),)).fetchone()[0])

    async def start(self, call: everhold.Call, key: str) -> str:
        status = await self.runtime.start(call, key=key)
        await self.quiet()
        return status.session_id

    async def tell(self, session_id: str, prompt: str, value: object) -> None:
        """Answer the question with these words, if it is open."""
        status = await self.runtime.status(session_id)
        for query in getattr(status, "queries", ()):
            if query.prompt == prompt:
                await self.runtime.answer(query, value)
                await self.quiet()
                return
        assert not self.strict, f"{prompt!r} is not open: {status}"

    async def until(self, moment: float) -> None:
        """Let time pass."""
        if moment > self.clock.now():
            self.clock.advance(moment - self.clock.now())
        await self.quiet()

    async def child(self, key: str) -> str:
        parent = await self.runtime.store.find(key)
        [found] = await self.runtime.sessions(parent=parent)
        return found.session_id


async def play(path: str, at: int = 0, when: str = "before", strict: bool = False) -> None:
    """Tell the story; the process dies at commit `at`. Prints each commit: whose it is, and what it
    marks as begun.
    """

    def seen(number: int, change: object) -> None:
        marks = [effect.q for effect in change.effects]
        os.write(
            1, json.dumps([number, marks, change.closed, len(change.deliveries)]).encode() + b"\n"
        )

    store = CrashingStore(SQLiteStore(path), at=at, when=when, seen=seen)
    clock = ManualClock(_latest(path))
    async with Runtime(store, clock=clock) as runtime:
        teller = Teller(runtime, clock, path, strict=strict)
        await teller.quiet()
        await tell_all(teller, f"{path}.done")
        teller.reader.close()


async def tell_all(teller: Teller, place: str) -> None:
    runtime, tell = teller.runtime, teller.tell
    tallies = [await teller.start(tally(rounds=11), f"tally-{i}") for i in range(2)]
    main = await teller.start(plan(place=place), "plan")
    for i in (2, 0, 3, 1):
        await tell(main, f"part {i}", f"answer {i}")
    await tell(tallies[0], "round 0", "a")
    await tell(main, "runner b", "b")
    await tell(main, "b has won; say so", "hooray")
    await teller.until(DAWN + 100)
    await tell(tallies[1], "round 0", "b")
    await tell(main, "after the calls", "well")
    child = await teller.child("plan")
    await tell(child, "draft of rain", "drops")
    await tell(child, "polish of rain", "pearls")
    await tell(main, "send it?", True)
    await teller.until(DAWN + 200)
    status = await runtime.status(main)
    if getattr(status, "signals", ()):
        await runtime.signal(main, "go", {"n": 1})
        await teller.quiet()
    for i in (5, 1, 3, 0, 4, 2):
        await tell(main, f"line {i}", f"verse {i}")
    await fork(teller, main)
    await tell(main, "the end", "fin")
    victim = await teller.start(doomed(), "doomed")
    await tell(await teller.child("doomed"), "draft of fog", "mist")
    if not await ended(runtime, victim):
        await runtime.cancel(victim, "enough")
    await teller.quiet()
    await retried(teller, place)
    for i in range(1, 11):
        for n, one in enumerate(tallies):
            await tell(one, f"round {i}", f"{i}{n}")


async def fork(teller: Teller, main: str) -> None:
    """Fork where the race was won, and let the other runner win in the branch."""
    runtime = teller.runtime
    found = await runtime.store.find("branch")
    if found is None:
        found = (
            await runtime.fork(main, at=5, answer="c", query_id="q-5", key="branch")
        ).session_id
        await teller.quiet()
    elif not await ended(runtime, found):
        await teller.tell(found, "runner b", "c")  # a crash between the branch and its answer
    await teller.tell(found, "c has won; say so", "hooray for c")


async def retried(teller: Teller, place: str) -> None:
    failed = await teller.start(clumsy(place=place), "clumsy")
    await teller.tell(failed, "clumsy", "oops")
    Path(f"{place}.mended").touch()
    if (await teller.runtime.status(failed)).state == "failed":
        await teller.runtime.retry(failed)
    await teller.tell(failed, "mended", "fine")


async def ended(runtime: Runtime, session_id: str) -> bool:
    return (await runtime.status(session_id)).state in ("completed", "failed", "cancelled")


def _latest(path: str) -> float:
    if not Path(path).exists():
        return DAWN
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
        try:
            return connection.execute("SELECT max(updated_at) FROM head_2").fetchone()[0] or DAWN
        except sqlite3.OperationalError:
            return DAWN


# ---- what is left in the end

TABLES = ("notice", "effect", "letter", "value")
_ID = re.compile(r"s-[0-9a-f]{16}-[0-9a-f]{24}")


def records(path: Path) -> dict[str, list]:
    """Everything in the database but ids, times, revisions and the dead: by session, and durable
    values.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        run = connection.execute
        names = _names(run("SELECT id, key, parent FROM session").fetchall())
        found: dict[str, list] = {}
        for ref, session_id, program in run("SELECT ref, id, program FROM session").fetchall():
            head = run(
                "SELECT state, n, open_from, due_at, metrics, mail FROM head_2 WHERE ref = ?",
                (ref,),
            ).fetchone()
            journal = run(
                "SELECT n, answers, asked, notes FROM journal WHERE session = ? ORDER BY n", (ref,)
            )
            rows = [
                [n, *(_plain(text and text.replace(str(path), "PLACE"), names) for text in texts)]
                for n, *texts in journal
            ]
            found[names[session_id]] = [program, list(head), rows]
        for table in ("notice", "effect", "letter"):
            found[table] = run(f"SELECT * FROM {table}").fetchall()
        found["value"] = run(
            "SELECT namespace, key, value, version FROM value ORDER BY 1, 2"
        ).fetchall()
    return found


def _names(rows: list) -> dict[str, str]:
    names = {session_id: key for session_id, key, _ in rows if key}
    return names | {
        session_id: f"child of {names[parent]}" for session_id, _, parent in rows if parent
    }


def _plain(text: str | None, names: dict[str, str]) -> object:
    if text is None:
        return None
    return _timeless(json.loads(_ID.sub(lambda found: names[found[0]], text)))


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: _timeless(item) for key, item in value.items() if key not in ("expires_at", "ts")
        }
    return [_timeless(item) for item in value] if isinstance(value, list) else value


# ---- poison


@everhold.program
async def poison(ctx: everhold.Context) -> None:
    await ctx.call(die)


async def take_poison(path: str) -> None:
    """Run a program whose call ends the process; prints how it stands if this one lives."""
    async with Runtime(SQLiteStore(path)) as runtime:
        session_id = (await runtime.start(poison(), key="poison", wait=0)).session_id
        status = await runtime.wait(session_id, 60)
        print(status.state, status.error)
