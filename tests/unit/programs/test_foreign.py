"""What a program may not do itself is refused: by the name one wrote, with the way out, and nothing
runs.
"""

import asyncio
import concurrent.futures
import gc
import inspect
import sys
import types
import warnings
from typing import Any

import pytest

from tests.failures import collect_failures
from tests.unit.programs.driving import Life, failure, result
from tests.unit.programs.foreign import FOREIGN, RAN, WARM, effect, later


@pytest.fixture(autouse=True)
def nothing_ran() -> Any:
    WARM.submit(int).result()  # its thread is there already: no thread has to be started to use it
    RAN.clear()
    yield
    WARM.submit(int).result()
    assert RAN == []


def refused(call: Any) -> str:
    """The words of the refusal; fails if anything warns, also later, when the garbage is
    collected.
    """

    async def program(ctx: Any) -> None:
        value = call(asyncio.get_running_loop())
        if inspect.isawaitable(value):
            await value

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        end = failure(Life(program).go())
        gc.collect(1)
    assert [str(warning.message) for warning in heard] == []
    assert end.kind == "foreign_call", end
    return end.error


@pytest.mark.process
def test_it_is_refused_by_the_name_one_wrote() -> None:
    """The error names the call and ctx.call; neither the call nor a warning happens."""
    with collect_failures() as row:
        for foreign in FOREIGN:
            with row(foreign.name):
                words = refused(foreign.call)
                assert words.startswith(f"ForeignCall: {foreign.name} ")
                assert "ctx.call" in words
                WARM.submit(int).result()
                assert RAN == []


def test_there_are_more_than_forty() -> None:
    assert len({foreign.name for foreign in FOREIGN}) > 40


def test_every_method_of_a_loop_is_ours_or_refused() -> None:
    """A Python that adds a method to loops adds it to the refused ones."""
    from everhold.programs.python.event_loop import DeterministicLoop

    names = [name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")]
    assert [
        name
        for name in names
        if getattr(DeterministicLoop, name) is getattr(asyncio.AbstractEventLoop, name)
    ] == []


@pytest.mark.parametrize(
    "around",
    [
        lambda coro: asyncio.create_task(coro),
        lambda coro: asyncio.gather(coro),
        lambda coro: asyncio.wait_for(coro, 60),
        lambda coro: asyncio.shield(coro),
    ],
    ids=["create_task", "gather", "wait_for", "shield"],
)
def test_the_name_is_found_through_asyncio(around: Any) -> None:
    """Whatever the call was wrapped in, the error names the call and not the wrapping."""
    assert refused(lambda loop: around(asyncio.to_thread(effect))).startswith(
        "ForeignCall: asyncio.to_thread "
    )


def test_a_library_is_named_with_what_it_called() -> None:
    """Who wrote client.get(…) reads client.get, and what it came to."""
    source = (
        "import asyncio\nasync def get(url):\n    return await asyncio.open_connection(url, 443)\n"
    )
    library = types.ModuleType("client")
    exec(compile(source, "/usr/lib/site-packages/client/__init__.py", "exec"), library.__dict__)
    sys.modules["client"] = library
    try:
        words = refused(lambda loop: library.get("localhost"))
    finally:
        del sys.modules["client"]
    assert words.startswith("ForeignCall: client.get (loop.create_connection) cannot be used")


def test_a_worker_thread_of_a_library_is_refused_before_it_runs() -> None:
    """What anyio.to_thread does: a thread of its own that answers through call_soon_threadsafe."""
    import threading

    async def run_sync(function: Any) -> Any:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        thread = threading.Thread(
            target=lambda: loop.call_soon_threadsafe(done.set_result, function()), daemon=True
        )
        thread.start()
        return await done

    assert "threading.Thread.start" in refused(lambda loop: run_sync(effect))


def test_a_pool_that_was_refused_does_not_run_it_later() -> None:
    """Nothing stays behind in the queue of a pool that others use."""
    refused(lambda loop: WARM.submit(effect))
    assert WARM.submit(lambda: len(RAN)).result() == 0


def test_a_program_may_catch_the_refusal() -> None:
    async def program(ctx: Any) -> str:
        try:
            await asyncio.to_thread(effect)
        except Exception as error:
            return type(error).__name__
        return "ran"

    assert result(Life(program).go()) == "ForeignCall"


def test_outside_a_program_everything_works() -> None:
    """The guards look at the running loop, and let everybody else pass."""
    heard = []

    async def main() -> None:
        heard.append(await asyncio.to_thread(lambda: "thread"))
        heard.append(await asyncio.wait_for(asyncio.sleep(0, "waited"), 60))
        heard.extend([await each for each in asyncio.as_completed([asyncio.sleep(0, "completed")])])
        heard.append(str(len(asyncio.all_tasks())))

    asyncio.run(main())
    with asyncio.Runner() as runner:
        runner.run(asyncio.sleep(0))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        heard.append(pool.submit(lambda: "pool").result())
    assert heard == ["thread", "waited", "completed", "1", "pool"]


async def test_outside_a_program_a_timeout_still_times_out() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.001)  # clock: the event is never set
    assert later.__name__ == "later"
