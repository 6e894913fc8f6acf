"""The blocking face: the verbs of Runtime for code that is not async."""

import ast
import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import everhold
from everhold import blocking as blocking_module
from everhold.blocking import BlockingRuntime, Bridge


@everhold.program
async def greets(ctx, name: str) -> str:
    word = await ctx.llm(f"A word for {name}?")
    return f"{word} {name}"


@everhold.program
async def approves(ctx) -> bool:
    return await ctx.approval("Sure?")


def hello(query):
    return "hello"


def test_run_in_a_script(tmp_path):
    """everhold.run gives what the program returns."""
    database = tmp_path / "app.db"
    assert everhold.run(greets(name="eve"), llm=hello, database=database) == "hello eve"


def test_run_again_with_a_key(tmp_path):
    """It goes on: raises Waiting while somebody has to answer."""
    database = f"sqlite:///{tmp_path}/app.db"
    with pytest.raises(everhold.Waiting) as waiting:
        everhold.run(approves(), key="k", database=database)
    with everhold.open_blocking(database) as runtime:
        runtime.answer(waiting.value.queries[0], True)
    assert everhold.run(approves(), key="k", database=database) is True


async def test_run_inside_a_running_loop(tmp_path):
    """As in a notebook: the loop is ours, in a thread."""
    assert everhold.run(greets(name="eve"), llm=hello, database="memory://") == "hello eve"
    assert asyncio.get_running_loop().is_running()


def test_every_verb(tmp_path):
    """start, answer, status, wait, inbox, sessions, cancel, retry, fork, signal, delete, verify."""
    with everhold.open_blocking(tmp_path / "app.db") as runtime:
        status = runtime.start(greets(name="eve"), title="t")
        assert [query.id for query in runtime.inbox()] == ["q-0"]
        fork = runtime.fork(status.session_id)
        assert runtime.answer(status.queries[0], "hi").result == "hi eve"
        assert runtime.answer_many(fork.session_id, {"q-0": "ho"}).result == "ho eve"
        assert runtime.wait(fork.session_id).result == "ho eve"
        other = runtime.start(approves())
        assert runtime.signal(other.session_id, "x", 1).state == "paused"
        assert runtime.cancel(other.session_id).state == "cancelled"
        assert runtime.delete(other.session_id) == 0
        assert {info.state for info in runtime.sessions()} == {"completed"}
        assert runtime.archive.verify() == []
        with pytest.raises(everhold.EverholdError):
            runtime.retry(status.session_id)


def public(kind):
    return {
        name: member
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def twins():
    """Each blocking class with its async one."""
    return [(blocking, kind) for kind, blocking in Bridge._twins.items()]


def test_every_part_of_a_runtime_has_a_blocking_twin():
    runtime = everhold.open("memory://")
    blocking = BlockingRuntime(runtime)
    for name in (
        "evals",
        "schedules",
        "triggers",
        "notifications",
        "archive",
        "envelopes",
        "workers",
    ):
        part = getattr(blocking, name)
        assert type(part) is Bridge._twins[type(getattr(runtime, name))]


@pytest.mark.parametrize(("blocking", "kind"), twins(), ids=lambda one: one.__name__)
def test_the_verbs_are_those_of_the_async_class(blocking, kind):
    """The same names, the same parameters with the same defaults, and no coroutine among them."""
    ours, theirs = public(blocking), public(kind)
    extra = {"wait_for", "call"} if blocking is BlockingRuntime else set()
    # what is not async stays with the async class: `worker` makes one for its loop
    sync = {"Workers": {"worker"}, "Archive": {"start"}, "Notifications": {"start"}}
    assert ours.keys() - extra == theirs.keys() - sync.get(kind.__name__, set())
    for name in ours.keys() - extra:
        assert not inspect.iscoroutinefunction(ours[name]), name
        mine, its = inspect.signature(ours[name]), inspect.signature(theirs[name])
        assert mine.parameters == its.parameters, name


def test_the_stub_has_every_verb():
    """What type checkers see, `blocking.pyi`, is what is there."""
    stub = Path(blocking_module.__file__).with_suffix(".pyi").read_text()
    classes = {one.name: one for one in ast.parse(stub).body if isinstance(one, ast.ClassDef)}
    for blocking, _ in twins():
        shown = [classes[one.__name__] for one in blocking.__mro__ if one.__name__ in classes]
        named = {one.name for found in shown for one in found.body if hasattr(one, "name")}
        assert public(blocking).keys() - named == set(), blocking


def test_parts_block_too(tmp_path):
    """Schedules, triggers, notifications, the archive and workers."""
    with everhold.open_blocking(tmp_path / "app.db") as runtime:
        runtime.schedules.add("nightly", "0 3 * * *", approves())
        assert [one.name for one in runtime.schedules.list()] == ["nightly"]
        assert len(runtime.schedules.next_runs("nightly", 2)) == 2
        runtime.triggers.add("paid", approves)
        assert runtime.triggers.emit("paid").handovers[0].state == "started"
        assert runtime.notifications.list() == []
        assert runtime.archive.verify() == []
        assert [worker.id for worker in runtime.workers.list()] == []


def test_async_code_runs_on_the_loop_of_a_runtime():
    async def count(runtime):
        return len(await runtime.sessions())

    with everhold.open_blocking("memory://") as runtime:
        assert runtime.call(count) == 0


def test_open_takes_what_open_takes():
    """open_blocking and open have the same parameters."""
    mine, its = inspect.signature(everhold.open_blocking), inspect.signature(everhold.open)
    assert mine.parameters == its.parameters


def test_errors_come_through():
    """As they are; the runtime can be used afterwards."""
    with everhold.open_blocking("memory://") as runtime:
        with pytest.raises(everhold.EverholdError) as refused:
            runtime.status("s-nobody")
        assert refused.value.code == "unknown_session"
        assert runtime.sessions() == []


def test_closed_and_not_yet_open():
    """Verbs say what to do; closing twice is nothing."""
    runtime = everhold.open_blocking("memory://")
    with pytest.raises(RuntimeError, match="with everhold"):
        runtime.sessions()
    with runtime:
        pass
    runtime.close()


def test_no_thread_stays():
    """The loop's thread ends with the runtime."""
    before = threading.active_count()
    with everhold.open_blocking("memory://", llm=hello) as runtime:
        runtime.run(greets(name="eve"))
    names = [thread.name for thread in threading.enumerate()]
    assert "everhold" not in names and threading.active_count() <= before + 1  # the watchdog stays


def test_several_threads_use_one_runtime():
    """Each verb is handed to the loop and waited for."""
    results = []
    with everhold.open_blocking("memory://", llm=hello) as runtime:

        def work(number):
            results.append(runtime.run(greets(name=str(number))))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == sorted(f"hello {number}" for number in range(20))


@everhold.program
async def interrupts(ctx):
    raise KeyboardInterrupt


async def interrupt():
    raise KeyboardInterrupt


@everhold.program
async def calls(ctx):
    return await ctx.call(interrupt)


@pytest.mark.parametrize("program", [interrupts, calls])
def test_who_interrupts_in_our_thread_fails_and_nobody_waits_for_ever(program):
    """No Ctrl-C comes there."""
    with everhold.open_blocking("memory://") as runtime:
        status = runtime.start(program(), wait=30)
        assert (status.state, status.error[-17:]) == ("failed", "KeyboardInterrupt")


SCRIPT = """
    import everhold

    @everhold.program
    async def asks(ctx):
        return await ctx.approval("Sure?")

    if __name__ == "__main__":
        print(everhold.run(asks(), key="k", database="sqlite:///app.db"))
"""


@pytest.mark.process
def test_a_script_that_waits(tmp_path):
    """It ends with a sentence, not with a traceback; answered from elsewhere, it goes on."""
    script = tmp_path / "app.py"
    script.write_text(textwrap.dedent(SCRIPT))

    def ran():
        return subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
        )

    first = ran()
    assert (
        first.returncode == 1
        and first.stderr.startswith("waiting · ")
        and "Traceback" not in first.stderr
    )
    with everhold.open_blocking(f"sqlite:///{tmp_path}/app.db") as runtime:
        runtime.answer(runtime.inbox()[0], True)
    assert ran().stdout == "True\n"
