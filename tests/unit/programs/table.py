"""What of asyncio works in a program: one small program a row, what it returns and the keys it asks
under.

The keys are written out by hand, so that every Python has to ask under the same.
docs/reference/asyncio.md is made from this table.
"""

import asyncio
import contextvars
import decimal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple


class Row(NamedTuple):
    part: str
    name: str
    note: str
    body: Any
    returns: Any
    asks: list[str]
    pick: Callable[[list[int]], int]


ROWS: list[Row] = []


def row(
    part: str, name: str, note: str, *, returns: Any, asks: str = "", pick: Any = min
) -> Callable[[Any], Any]:
    def keep(body: Any) -> Any:
        body.__qualname__ = body.__name__
        ROWS.append(Row(part, name, note, body, returns, asks.split(), pick))
        return body

    return keep


# Together


@row(
    "together",
    "`asyncio.gather`",
    "results in the order given",
    returns=["A", "B"],
    asks="0.1:0 0.2:0",
    pick=max,
)
async def gather(ctx: Any) -> Any:
    return await asyncio.gather(ctx.llm("a"), ctx.llm("b"))


@row(
    "together",
    "`gather(return_exceptions=True)`",
    "errors are results",
    returns=["A", "ValueError"],
    asks="0.1:0 0.2:0",
)
async def gather_errors(ctx: Any) -> Any:
    async def bad() -> None:
        await ctx.llm("b")
        raise ValueError

    one, two = await asyncio.gather(ctx.llm("a"), bad(), return_exceptions=True)
    return [one, type(two).__name__]


@row(
    "together",
    "`asyncio.TaskGroup`",
    "waits for all of its tasks",
    returns="AB",
    asks="0.1:0 0.2:0",
)
async def task_group(ctx: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        a, b = group.create_task(ctx.llm("a")), group.create_task(ctx.llm("b"))
    return a.result() + b.result()


@row(
    "together",
    "an error in a `TaskGroup`",
    "the others are cancelled in a fixed order, and `except*` sees the error",
    returns=["boom", "1", "2", "3", "4", "5"],
    asks="0.1:0 0.2:0 0.3:0 0.4:0 0.5:0 0.6:0",
    pick=max,
)
async def task_group_error(ctx: Any) -> Any:
    ended = []

    async def one(name: str) -> None:
        try:
            await ctx.llm(name)
        except asyncio.CancelledError:
            ended.append(name)
            raise
        raise ValueError("boom")

    errors = []
    try:
        async with asyncio.TaskGroup() as group:
            for name in "123456":
                group.create_task(one(name))
    except* ValueError as found:
        errors += [str(error) for error in found.exceptions]
    return errors + sorted(ended)


@row(
    "together",
    "`asyncio.wait`",
    "`FIRST_COMPLETED`, `FIRST_EXCEPTION`, `timeout`",
    returns=["B", 1],
    asks="0.1:0 0.2:0",
    pick=max,
)
async def wait(ctx: Any) -> Any:
    tasks = [asyncio.create_task(ctx.llm(name)) for name in "ab"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return [done.pop().result(), len(pending)]


@row(
    "together",
    "order of the sets that `wait` returns",
    "the same in every process",
    returns=6,
    asks="0.1:0 0.2:0 0.3:0 0.4:0 0.5:0 0.6:0 0:0",
)
async def wait_sets(ctx: Any) -> Any:
    done, _ = await asyncio.wait([asyncio.create_task(ctx.llm(name)) for name in "abcdef"])
    await ctx.llm(" ".join(task.result() for task in done))
    return len(done)


@row("together", "`asyncio.wait(timeout=0)`", "checks once, no pause", returns=[0, 1], asks="")
async def wait_now(ctx: Any) -> Any:
    done, pending = await asyncio.wait([asyncio.create_task(asyncio.sleep(5))], timeout=0)
    return [len(done), len(pending)]


@row(
    "together",
    "`asyncio.as_completed` with `for`",
    "in the order answered",
    returns=["B", "A"],
    asks="0.1:0 0.2:0",
    pick=max,
)
async def as_completed(ctx: Any) -> Any:
    return [await each for each in asyncio.as_completed([ctx.llm("a"), ctx.llm("b")])]


@row(
    "together",
    "`asyncio.as_completed` with `async for`",
    "on every Python, not only from 3.13 on",
    returns=["B", "A"],
    asks="0.1:0 0.2:0",
    pick=max,
)
async def as_completed_async(ctx: Any) -> Any:
    return [each.result() async for each in asyncio.as_completed([ctx.llm("a"), ctx.llm("b")])]


@row(
    "together",
    "`as_completed(timeout=)`",
    "raises `TimeoutError` when the time is over",
    returns=["A", "late"],
    asks="0.1:0",
)
async def as_completed_late(ctx: Any) -> Any:
    found = []
    for each in asyncio.as_completed([ctx.llm("a"), asyncio.sleep(60)], timeout=10):
        try:
            found.append(await each)
        except TimeoutError:
            found.append("late")
    return found


# Time


@row("time", "`asyncio.sleep`", "durable: a second or a month, across restarts", returns=3600.0)
async def sleep(ctx: Any) -> Any:
    before = ctx.now()
    await asyncio.sleep(3600)
    return (ctx.now() - before).total_seconds()


@row(
    "time",
    "`asyncio.sleep(0)`",
    "lets other tasks run, without a pause",
    returns=[1, 2, 1, 2],
)
async def sleep_zero(ctx: Any) -> Any:
    turns: list[int] = []

    async def one(name: int) -> None:
        for _ in range(2):
            turns.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(one(1), one(2))
    return turns


@row(
    "time",
    "`asyncio.timeout`",
    "a durable timer; the question is withdrawn",
    returns="late",
    asks="0:0 0.1:0",
)
async def timeout(ctx: Any) -> Any:
    async def quick() -> None:
        await ctx.llm("quick")
        await asyncio.sleep(1)

    task = asyncio.create_task(quick())
    try:
        async with asyncio.timeout(10):
            await ctx.receive("never")
    except TimeoutError:
        await task
        return "late"


@row(
    "time",
    "`asyncio.timeout_at`, `reschedule`",
    "by the program's clock, which is `loop.time()`",
    returns=20.0,
)
async def timeout_at(ctx: Any) -> Any:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout_at(begun + 10) as limit:
            limit.reschedule(begun + 20)
            await asyncio.sleep(60)
    except TimeoutError:
        return loop.time() - begun


@row(
    "time",
    "`asyncio.wait_for`",
    "asks under the same key on every Python: no task is made",
    returns="A",
    asks="0:0",
)
async def wait_for(ctx: Any) -> Any:
    return await asyncio.wait_for(ctx.llm("a"), 10)


@row(
    "time",
    "`wait_for(timeout=0)`",
    "returns a result that is already there; a coroutine is not started",
    returns=["late", "A", "late"],
    asks="0.1:0",
)
async def wait_for_zero(ctx: Any) -> Any:
    found = []
    done = asyncio.create_task(ctx.llm("a"))
    await done
    for each in (ctx.llm("never asked"), done, asyncio.create_task(asyncio.sleep(1))):
        try:
            found.append(await asyncio.wait_for(each, 0))
        except TimeoutError:
            found.append("late")
    return found


@row(
    "time",
    "`loop.call_later`, `call_at`, `call_soon`",
    "as usual",
    returns=["soon", "now", "later"],
)
async def call_later(ctx: Any) -> Any:
    loop, heard = asyncio.get_running_loop(), []
    loop.call_later(5, heard.append, "later")
    loop.call_soon(heard.append, "soon")
    loop.call_later(0, heard.append, "now")
    loop.call_later(1, heard.append, "never").cancel()
    await asyncio.sleep(6)
    return heard


# Tasks


@row(
    "tasks",
    "`asyncio.create_task`, `ensure_future`",
    "the k-th task of task `t` asks as `t.k`",
    returns="ABC",
    asks="0.1:0 0.2:0 0.2.1:0",
)
async def create_task(ctx: Any) -> Any:
    async def deeper() -> str:
        return await ctx.llm("b") + await asyncio.create_task(ctx.llm("c"))

    a, b = asyncio.create_task(ctx.llm("a")), asyncio.ensure_future(deeper())
    return await a + await b


@row(
    "tasks",
    "`create_task(name=)`",
    "the name is kept; keys do not depend on it",
    returns=["mine", "A"],
    asks="0.1:0",
)
async def named_task(ctx: Any) -> Any:
    task = asyncio.create_task(ctx.llm("a"), name="mine")
    return [task.get_name(), await task]


@row("tasks", "`create_task(context=)`", "the task runs in that context", returns=[1, 2])
async def task_context(ctx: Any) -> Any:
    variable = contextvars.ContextVar("variable", default=1)
    own = contextvars.copy_context()
    own.run(variable.set, 2)

    async def look() -> int:
        return variable.get()

    return [await asyncio.create_task(look()), await asyncio.create_task(look(), context=own)]


@row("tasks", "`asyncio.current_task`", "the task, named by its path", returns=["0", "0.1"])
async def current_task(ctx: Any) -> Any:
    async def name() -> str:
        return asyncio.current_task().get_name()

    return [await name(), await asyncio.create_task(name())]


@row(
    "tasks",
    "`asyncio.all_tasks`",
    "this program's tasks only, in an order that is the same everywhere",
    returns=8,
    asks="0:0",
)
async def all_tasks(ctx: Any) -> Any:
    tasks = [asyncio.create_task(asyncio.sleep(9)) for _ in range(7)]
    found = asyncio.all_tasks()
    await ctx.llm(" ".join(task.get_name() for task in found))
    return len(found) if found > set(tasks) else 0


@row(
    "tasks",
    "tasks made by callbacks",
    "asked as `1`, `2`, … beside the program's `0`",
    returns=["B", "C"],
    asks="0:0 1:0 2:0",
)
async def tasks_of_callbacks(ctx: Any) -> Any:
    made = []
    loop = asyncio.get_running_loop()
    for name in "bc":
        loop.call_soon(
            lambda name=name: made.append(asyncio.ensure_future(ctx.llm(name), loop=loop))
        )
    await ctx.llm("a")
    return [await task for task in made]


@row(
    "tasks",
    "`task.cancel`, `uncancel`, `cancelling`",
    "the question of a cancelled task is withdrawn",
    returns=["stop", 1, 0],
)
async def cancel(ctx: Any) -> Any:
    async def wait() -> None:
        await ctx.receive("never")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel("stop")
    heard = ""
    try:
        await task
    except asyncio.CancelledError as error:
        heard = str(error)
    own = asyncio.current_task()
    own.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return [heard, own.cancelling(), own.uncancel()]


@row(
    "tasks",
    "`asyncio.shield`",
    "the shielded task continues",
    returns=["late", "A"],
    asks="0.1:0",
    pick=min,
)
async def shield(ctx: Any) -> Any:
    async def slow() -> str:
        await asyncio.sleep(20)
        return await ctx.llm("a")

    task = asyncio.create_task(slow())
    try:
        await asyncio.wait_for(asyncio.shield(task), 10)
    except TimeoutError:
        return ["late", await task]


@row("tasks", "exception groups, `add_note`", "as usual", returns=["ValueError", "KeyError"])
async def groups(ctx: Any) -> Any:
    async def bad(error: Exception) -> None:
        raise error

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(bad(ValueError()))
            group.create_task(bad(KeyError()))
    except ExceptionGroup as found:
        return [type(error).__name__ for error in found.exceptions]


@row(
    "tasks",
    "eager tasks",
    "`eager_start` is ignored: a task never starts eagerly",
    returns=["program", "task"],
)
async def eager(ctx: Any) -> Any:
    heard: list[str] = []

    async def one() -> None:
        heard.append("task")

    task = asyncio.get_running_loop().create_task(one(), eager_start=True)
    heard.append("program")
    await task
    return heard


@row(
    "tasks", "futures", "`loop.create_future`, `add_done_callback`, `await`", returns=["heard 1", 1]
)
async def futures(ctx: Any) -> Any:
    heard: list[str] = []
    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: heard.append(f"heard {done.result()}"))
    asyncio.get_running_loop().call_soon(future.set_result, 1)
    value = await future
    return [*heard, value]


# Waiting for each other


@row("waiting for each other", "`asyncio.Event`", "as usual", returns="A", asks="0:0")
async def event(ctx: Any) -> Any:
    ready, heard = asyncio.Event(), []

    async def listen() -> None:
        await ready.wait()
        heard.append(answer)

    task = asyncio.create_task(listen())
    answer = await ctx.llm("a")
    ready.set()
    await task
    return heard[0]


@row(
    "waiting for each other",
    "`asyncio.Lock`",
    "first come, first served",
    returns=["A", "B"],
    asks="0.1:0 0.2:0",
    pick=max,
)
async def lock(ctx: Any) -> Any:
    guard, heard = asyncio.Lock(), []

    async def one(name: str) -> None:
        async with guard:
            heard.append(await ctx.llm(name))

    await asyncio.gather(one("a"), one("b"))
    return heard


@row("waiting for each other", "`asyncio.Condition`", "as usual", returns="A", asks="0:0")
async def condition(ctx: Any) -> Any:
    changed, box = asyncio.Condition(), []

    async def take() -> str:
        async with changed:
            await changed.wait_for(lambda: box)
            return box.pop()

    task = asyncio.create_task(take())
    answer = await ctx.llm("a")
    async with changed:
        box.append(answer)
        changed.notify_all()
    return await task


@row(
    "waiting for each other",
    "`asyncio.Barrier`",
    "as usual",
    returns=[0, 1, 2],
    asks="0.1:0 0.2:0 0.3:0",
)
async def barrier(ctx: Any) -> Any:
    gate = asyncio.Barrier(3)

    async def one(name: str) -> int:
        await ctx.llm(name)
        return await gate.wait()

    return sorted(await asyncio.gather(*(one(name) for name in "abc")))


@row(
    "waiting for each other",
    "`asyncio.Semaphore`",
    "the limit holds for questions",
    returns=2,
    asks="0.1:0 0.2:0 0.3:0 0.4:0",
)
async def semaphore(ctx: Any) -> Any:
    limit, inside, most = asyncio.Semaphore(2), 0, 0

    async def one(name: str) -> None:
        nonlocal inside, most
        async with limit:
            inside += 1
            most = max(most, inside)
            await ctx.llm(name)
            inside -= 1

    await asyncio.gather(*(one(name) for name in "abcd"))
    return most


@row("waiting for each other", "`asyncio.BoundedSemaphore`", "as usual", returns="too often")
async def bounded_semaphore(ctx: Any) -> Any:
    limit = asyncio.BoundedSemaphore(1)
    async with limit:
        pass
    try:
        limit.release()
    except ValueError:
        return "too often"


@row(
    "waiting for each other",
    "`asyncio.Queue`",
    "`put`, `get`, `task_done`, `join`, `maxsize`",
    returns=["A", "B", "C"],
    asks="0.1:0 0.1:1 0.1:2",
)
async def queue(ctx: Any) -> Any:
    work: asyncio.Queue[str] = asyncio.Queue(maxsize=1)
    heard = []

    async def worker() -> None:
        while True:
            heard.append(await ctx.llm(await work.get()))
            work.task_done()

    task = asyncio.create_task(worker())
    for name in "abc":
        await work.put(name)
    await work.join()
    task.cancel()
    return heard


@row(
    "waiting for each other",
    "`PriorityQueue`, `LifoQueue`",
    "as usual",
    returns=[[1, 2, 3], [3, 1, 2]],
)
async def queues(ctx: Any) -> Any:
    found = []
    for kind in (asyncio.PriorityQueue, asyncio.LifoQueue):
        queue = kind()
        for number in (2, 1, 3):
            queue.put_nowait(number)
        found.append([await queue.get() for _ in range(3)])
    return found


# The language


@row(
    "the language",
    "async generators",
    "also with questions inside",
    returns=["A", "B"],
    asks="0:0 0:1",
)
async def generators(ctx: Any) -> Any:
    async def answers() -> AsyncIterator[str]:
        for name in "ab":
            yield await ctx.llm(name)

    return [answer async for answer in answers()]


@row(
    "the language",
    "async generators with `break`",
    "closed at once, in a task `~k` of their own",
    returns=["A", "left", "B"],
    asks="0:0 0:1 ~1:0",
    pick=max,
)
async def left_generator(ctx: Any) -> Any:
    heard = []

    async def answers() -> AsyncIterator[str]:
        try:
            while True:
                yield await ctx.llm("a")
        finally:
            heard.append("left")
            heard.append(await ctx.llm("b"))

    async for answer in answers():
        heard.append(answer)
        break
    await ctx.llm("c")
    return heard


@row(
    "the language", "`async with`, `contextlib`", "as usual", returns=["in", "A", "out"], asks="0:0"
)
async def contexts(ctx: Any) -> Any:
    heard = []

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        heard.append("in")
        yield
        heard.append("out")

    async with around():
        heard.append(await ctx.llm("a"))
    return heard


@row(
    "the language",
    "`try`, `except`, `finally`",
    "also around a question",
    returns=["caught", "finally", "B"],
    asks="0:0 0:1",
)
async def try_finally(ctx: Any) -> Any:
    heard = []
    try:
        await ctx.llm("a")
        raise KeyError
    except KeyError:
        heard.append("caught")
    finally:
        heard.append("finally")
        heard.append(await ctx.llm("b"))
    return heard


@row(
    "the language",
    "context variables",
    "each task has its own copy; the caller's are not visible",
    returns=[28, 3, 28, "unset"],
)
async def variables(ctx: Any) -> Any:
    async def precise() -> int:
        decimal.setcontext(decimal.Context(prec=3))
        return decimal.getcontext().prec

    first = decimal.getcontext().prec
    inner = await asyncio.create_task(precise())
    return [first, inner, decimal.getcontext().prec, OUTSIDE.get("unset")]


OUTSIDE: contextvars.ContextVar[str] = contextvars.ContextVar("outside")


@row(
    "the language",
    "`asyncio.get_running_loop`, `get_event_loop`",
    "the program's own loop",
    returns=[True, True],
)
async def running_loop(ctx: Any) -> Any:
    loop = asyncio.get_running_loop()
    return [loop is asyncio.get_event_loop(), loop.is_running()]


@row(
    "the language",
    "libraries that ask which loop runs (sniffio)",
    "they see asyncio",
    returns="asyncio",
)
async def sniffing(ctx: Any) -> Any:
    try:
        from sniffio import current_async_library
    except ImportError:  # its rule
        return "asyncio" if asyncio.current_task() is not None else "nothing"
    return current_async_library()


# Races


@row(
    "races",
    "the first of two wins",
    "the winner is the same on replay",
    returns="b",
    asks="0.1:0 0.2:0 0:0",
    pick=max,
)
async def race(ctx: Any) -> Any:
    async def one(name: str) -> str:
        await ctx.llm(name)
        return name

    tasks = [asyncio.create_task(one(name)) for name in "ab"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    winner = done.pop().result()
    await ctx.llm(f"winner={winner}")
    return winner
