"""A database with a bit of everything in it, and a full reading of one.

The programs here are those of the databases frozen in tests/data: their shape may never change.
"""

import asyncio
import random
from hashlib import sha256
from pathlib import Path

import msgspec

import everhold
from everhold.core.intake import Intake, IntakeItem, ItemKind
from everhold.core.journal import find_open_queries
from everhold.core.lease import LeaseOwner
from everhold.engine.live_session import rebuild_session
from everhold.errors import EverholdError
from everhold.packages.find import find_program
from everhold.ports.attachment import Attachment
from everhold.ports.store import Change, Duty, Effect, SessionFilter
from everhold.programs.python.execution import PythonHost
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.harness import list_due

DAWN = 1_700_000_000.0
DUTY = Duty("weather", "wind", {"force": 3}, DAWN + 1e9, 1)


def double(number: int) -> int:
    return number * 2


@everhold.program
async def leaf(ctx: everhold.Context, name: str) -> str:
    return await ctx.llm(f"what is {name}?")


@everhold.program
async def tree(ctx: everhold.Context, name: str) -> dict:
    """Asks, races, counts, calls, logs, spawns, waits for people and for a message."""
    first, second = await asyncio.gather(ctx.llm(f"{name} one"), ctx.llm(f"{name} two"))
    ctx.log(f"{name} has two")
    ctx.progress(1, 3, "on the way")
    ctx.record("size", len(first) + len(second))
    count = await ctx.state.incr("trees")
    await ctx.state("words").set(name, {"first": first})
    twice = await ctx.call(double, 21)
    child = ctx.spawn(leaf(name=name))
    approved = await ctx.approval(f"go on with {name}?", to="anna")
    leaves = await child
    signal = await ctx.receive("wind")
    return {
        "said": [first, second, leaves],
        "n": [count, twice],
        "approved": approved,
        "signal": signal,
    }


@everhold.program
async def brittle(ctx: everhold.Context) -> None:
    """It fails as stuck, which, unlike a traceback, tells no place on a disk."""
    await ctx.llm("break?")
    await asyncio.Event().wait()


@everhold.program
async def sleeper(ctx: everhold.Context) -> str:
    try:
        async with asyncio.timeout(3600):
            return await ctx.input("a word, within the hour", timeout=7200)
    except TimeoutError:
        return "too late"


#: Whether climbing fails.
slippery: list[bool] = []


def climb() -> str:
    if slippery:
        raise ConnectionError("the trunk is wet")
    return "up"


@everhold.program
async def climber(ctx: everhold.Context) -> str:
    return await ctx.call(climb, rerun="never", retry=everhold.Retry(3, 30, jitter=0))


async def furnish(path: Path) -> None:
    """Make a database with sessions in every state, a fork, children, kept letters, values, logs
    and a failed attempt.
    """
    clock = ManualClock(DAWN)
    async with Runtime(SQLiteStore(path), clock=clock) as runtime:
        for n in range(6):
            clock.advance(10)
            await _grow(runtime, n)
        kept = Attachment(sha256(b"a leaf").hexdigest(), 6, "text/plain")
        await runtime.store.attach(await runtime.store.find("tree-5"), kept, b"a leaf", DAWN)
        broken = await runtime.start(brittle(), key="brittle")
        await runtime.answer(broken.session_id, "broken")
        await runtime.start(sleeper(), key="sleeper")
        slippery.append(True)
        await runtime.start(climber(), key="climber", wait=0)
        while not runtime.engine.effects.waits:
            await asyncio.sleep(0.01)  # until the first attempt has failed
        slippery.clear()
        cancelled = await runtime.start(tree(name="stump"), key="stump")
        await runtime.cancel(cancelled.session_id, "felled")
    async with Runtime(SQLiteStore(path), clock=clock, recover=False) as absent:
        # accepted where the program is not: kept as letters
        absent.engine.sessions.host = PythonHost(_nothing_here)
        for key in ("tree-0", "tree-1"):
            session_id = await absent.store.find(key)
            await absent.answer(session_id, f"kept for {key}", query_id="q-1")
        await absent.signal(await absent.store.find("tree-1"), "wind", "early")
    await _queue(path)


async def _queue(path: Path) -> None:
    """Leave something in an intake: what waits, what is claimed, what has ended; and a duty."""
    store = SQLiteStore(path)
    store.use_clock(lambda: DAWN + 50)
    await store.open()
    session_id = await store.find("tree-2")
    items = [
        IntakeItem("i-1", ItemKind.INPUT, {"content": "shade"}, "rain-1"),
        IntakeItem("i-2", ItemKind.COMMAND, {"name": "prune"}, "rain-2"),
        IntakeItem("i-3", ItemKind.INPUT, {"content": "never mind"}, "rain-3"),
    ]
    for item in items:
        await store.intake(
            session_id, lambda intake, item=item: intake.enqueue(item), named=[item.key]
        )
    taken = await store.intake(
        session_id, lambda intake: intake.take(LeaseOwner("w-1", "1"), "t-1", 10.0)
    )
    await store.intake(session_id, lambda intake: intake.claim_next(taken.lease.fence, "c-1", 1))
    await store.intake(session_id, lambda intake: intake.cancel(["rain-3"], "on second thought"))
    await store.undertake([msgspec.structs.replace(DUTY, version=0)])
    await store.close()


async def _grow(runtime: Runtime, n: int) -> None:
    status = await runtime.start(
        tree(name=f"oak {n}"),
        key=f"tree-{n}",
        title=f"tree {n}",
        labels={"row": str(n % 2)},
        budget={"max_llm_calls": 9},
    )
    session_id = status.session_id
    if n == 0:
        return
    await runtime.answer(
        session_id, f"bark {n}", query_id="q-0", usage={"prompt_tokens": 3, "completion_tokens": 2}
    )
    if n == 1:
        return
    await runtime.answer(session_id, f"root {n}", query_id="q-1")
    await _settled(runtime, session_id)
    if n == 2:
        return
    for query in await runtime.inbox():
        if query.session_id == session_id:
            await runtime.answer(query, True, by={"front": "test", "user": "anna"})
    if n == 3:
        return
    [child] = await runtime.sessions(parent=session_id)
    await runtime.answer(child.session_id, f"green {n}")
    await _settled(runtime, session_id)
    if n == 4:
        fork = await runtime.fork(session_id, at=1, answer="other bark", key="fork")
        await runtime.answer(fork.session_id, "other root")
        await _settled(runtime, fork.session_id)
        return
    await runtime.signal(session_id, "wind", {"force": n})


async def _settled(runtime: Runtime, session_id: str) -> None:
    """Wait until nothing moves by itself."""
    for _ in range(20_000):
        await asyncio.sleep(0.001)
        record = await runtime.store.load(session_id, since=-1)
        children = await runtime.sessions(parent=session_id)
        if (
            not record.effects
            and not record.head.mail
            and all(child.steps >= 0 for child in children)
        ):
            return
    raise AssertionError("it never comes to rest")


def _nothing_here(ref: str, version: int) -> object:
    raise everhold.errors.UnknownProgram(ref)


async def contents(path: Path) -> dict:
    """Everything that can be read, every live session replayed. Raises what opening or reading
    raises.
    """
    store = SQLiteStore(path)
    await store.open()
    try:
        host = PythonHost(find_program)
        found: dict = {"inbox": await store.inbox(kind=None, to=None, limit=1000)}
        for each in await store.list(SessionFilter(limit=1000)):
            record = await store.load(each.birth.id)
            found[each.birth.id] = (each.birth, each.head, record)
            found[each.birth.id, "intake"] = await store.intake(each.birth.id, _waiting, whole=True)
            if not record.head.ended:
                found[each.birth.id, "live"] = sorted(
                    (await rebuild_session(await store.load(each.birth.id), host)).opened
                )
        for namespace in ("default", "words"):
            for key in await store.keys(namespace):
                found[namespace, key] = await store.value(namespace, key)
        found["duties"] = await store.duties("weather")
        found["due"] = await list_due(store, DAWN * 2, 1000), await store.next_due()
        found["keys"] = [await store.find(f"tree-{n}") for n in range(7)]
        return found
    finally:
        await store.close()


def _waiting(intake: Intake) -> list:
    fence = None if intake.lease is None else intake.lease.fence
    return [fence, intake.seq, *intake.items.values()]


async def verdict(path: Path) -> str:
    """What `verify` finds first, but for warnings: "" if all is well, else a code. Errors of ours
    are codes too.
    """
    store = SQLiteStore(path)
    try:
        await store.open()
        try:
            problems = [one for one in await store.maintenance.verify() if not one.warning]
            return problems[0].code if problems else ""
        finally:
            await store.close()
    except EverholdError as error:
        return error.code


async def mark(path: Path) -> None:
    """Say that somebody works on a question that is open."""
    store = SQLiteStore(path)
    await store.open()
    record = await store.load(await store.find("tree-2"))
    head, [q, *_] = record.head, find_open_queries(record.deliveries)
    head.revision += 1
    await store.commit(
        Change(record.birth.id, head, effects=[Effect(q, "w-1", DAWN)]), head.revision - 1
    )
    await store.close()


async def judged(path: Path, before: dict) -> str:
    """`found`, `harmless`, or what went wrong."""
    found = await verdict(path)
    if found:
        return f"found {found}"
    after = await contents(path)
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return f"nonsense in {changed}" if changed else "harmless"


async def flip(path: str, folder: str, flips: int, seed: int, aimed: bool) -> None:
    """Flip bits in copies of a database, one at a time, and print what came of each."""
    before, whole = await contents(Path(path)), Path(path).read_bytes()
    dice, target = random.Random(seed), Path(folder) / "flipped.db"
    places = [at for at, byte in enumerate(whole) if byte] if aimed else range(len(whole))
    for _ in range(flips):
        at, bit = dice.choice(places), dice.randrange(8)
        broken = bytearray(whole)
        broken[at] ^= 1 << bit
        target.write_bytes(broken)
        try:
            said = await judged(target, before)
        except Exception as error:
            said = f"untyped {error!r}".replace("\n", " ")
        print(f"{said} (byte {at}, bit {bit})")


async def cut(path: str, folder: str) -> None:
    """Cut copies of a database off at different lengths, and print what came of each."""
    whole, target = Path(path).read_bytes(), Path(folder) / "cut.db"
    for length in [0, 15, 16, 99, 100, 101, *range(2048, len(whole), 2048), len(whole) - 1]:
        target.write_bytes(whole[:length])
        found = await verdict(target)
        print(f"found {found}" if found else f"{length} harmless")
        for rest in target.parent.glob("cut.db*"):
            rest.unlink()
