"""One program has one identity, however its file is named and loaded."""

import asyncio
import importlib
import sys

import pytest

import everhold
from everhold.cli.app import main
from everhold.errors import (
    DuplicateProgram,
    KeyConflict,
    LocalProgram,
    NotAProgram,
    UnknownProgram,
)
from everhold.movers.workers import UNANSWERED_SECONDS
from everhold.packages.find import find_program
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import at_top, opened

COUNTER = """
import everhold
loads = 1

@everhold.program
async def count(ctx: everhold.Context, to: int) -> int:
    return to

@everhold.program
async def ask(ctx: everhold.Context) -> str:
    return await ctx.llm("?")
"""


@everhold.program
async def asks_a_named_model(ctx):
    return await ctx.llm("?", model="openai:gpt-5")


@everhold.program
async def asks_a_person(ctx):
    return await ctx.approval("?")


@pytest.fixture
def counter(tmp_path, monkeypatch):
    """A file on `sys.path` whose module has a name of its own in each test."""
    name = f"counter_{abs(hash(tmp_path)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(COUNTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


async def test_a_key_means_one_session_whatever_the_reference(tmp_path, counter):
    """Started by module, then by path: the same session."""
    async with Runtime(SQLiteStore(tmp_path / "a.db")) as runtime:
        first = await runtime.start(f"{counter}:count", args={"to": 3}, key="k")
        again = await runtime.start(f"{tmp_path}/{counter}.py:count", args={"to": 3}, key="k")
        with pytest.raises(KeyConflict):
            await runtime.start(f"{counter}:ask", key="k")
    assert again.session_id == first.session_id


async def test_a_session_keeps_the_whole_path_of_a_file(tmp_path, counter, monkeypatch):
    """Also if it is started by a relative path, and without loading the file: another folder may
    have a file of the same name. A file that is not here keeps the path that was given.
    """
    monkeypatch.chdir(tmp_path)
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False) as runtime:
        await runtime.start(f"./{counter}.py:ask", unchecked=True)
        await runtime.start("far/away.py:ask", unchecked=True)
        stored = {row.program for row in await runtime.sessions()}
        assert stored == {f"{tmp_path}/{counter}.py:ask", "far/away.py:ask"}
        (found,) = await runtime.sessions(program=f"{counter}:ask")
        assert found.program == f"{tmp_path}/{counter}.py:ask"


@pytest.mark.parametrize("file_first", [True, False])
def test_a_file_is_loaded_once(tmp_path, counter, file_first):
    """As a file and as a module, in either order: there is one copy of its globals."""
    if file_first:
        found = find_program(f"{tmp_path}/{counter}.py:count")
    module = importlib.import_module(counter)
    if not file_first:
        found = find_program(f"{tmp_path}/{counter}.py:count")
    assert found is module.count
    assert find_program(f"{counter}:count") is module.count


async def test_a_list_by_program_finds_all_its_references(tmp_path, counter):
    """`program=` in any form finds sessions that were started in any other."""
    async with Runtime(SQLiteStore(tmp_path / "a.db")) as runtime:
        await runtime.start(f"{counter}:ask")
        await runtime.start(f"{tmp_path}/{counter}.py:ask", unchecked=True)
        for wanted in (f"{counter}:ask", f"{tmp_path}/{counter}.py:ask", "ask"):
            assert len(await runtime.sessions(program=wanted)) == 2
        assert await runtime.sessions(program=f"{counter}:count") == []


async def test_a_worker_for_a_file_moves_sessions_of_the_module(tmp_path, counter):
    """And of the file in another folder that is gone."""
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False) as runtime:
        for ref in (f"{counter}:count", f"/gone/{counter}.py:count"):
            await runtime.start(ref, args={"to": 1}, unchecked=True)
        program = find_program(f"{tmp_path}/{counter}.py:count")
        worker = runtime.workers.worker(programs=[program.ref])
        assert await worker.once() == 0
        assert {row.state for row in await runtime.sessions()} == {"completed"}


@pytest.mark.process
@pytest.mark.parametrize("given", [["there/talk.lua"], []])
async def test_a_lua_file_that_was_moved_is_found(tmp_path, monkeypatch, given):
    """By the name of the file, or because the worker was given it where it is now."""
    old, now = tmp_path / "here", tmp_path / ("there" if given else "")
    old.mkdir()
    (old / "talk.lua").write_text("return {run = function(ctx) return ctx.to end}")
    monkeypatch.chdir(tmp_path)
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False) as runtime:
        await runtime.start("here/talk.lua:talk", args={"to": 1}, unchecked=True)
        await runtime.start(f"{old}/talk.lua:talk", args={"to": 2}, unchecked=True)
        old.rename(now) if given else (old / "talk.lua").rename(now / "talk.lua")
        worker = runtime.workers.worker(programs=given)
        assert await worker.once() == 0
        assert [row.state for row in await runtime.sessions()] == ["completed", "completed"]


@pytest.mark.parametrize("name", ["__init__.py", "init.lua"])
def test_a_package_is_not_found_by_the_name_that_all_have(tmp_path, monkeypatch, name):
    """Another package's file has it, too."""
    (tmp_path / name).write_text(COUNTER if name.endswith("py") else "return {}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownProgram, match="there is no file"):
        find_program(f"/gone/shop/{name}:count")


async def test_a_worker_says_once_which_sessions_it_cannot_move(tmp_path, counter):
    """A program that is not found, with the reason; one with the name of a given program."""
    events = []
    (tmp_path / "other.py").write_text(COUNTER)
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False) as runtime:
        for ref in ("nowhere_7:x", f"{counter}:count", f"{counter}:count", f"{counter}:ask"):
            args = {"to": 1} if ref.endswith("count") else {}
            await runtime.start(ref, args=args, unchecked=True)
        program = find_program(f"{tmp_path}/other.py:count")
        worker = runtime.workers.worker(programs=[program.ref], tell=events.append)
        assert await worker.once() == 0
        assert worker.cannot == 2
    cannot = [one.text for one in events if one.event == "cannot"]
    skips = sorted(one.text for one in events if one.event == "skips")
    assert [f"this worker serves {program.ref}" in text for text in cannot] == [True, True]
    others = (f"{counter}:ask", "nowhere_7:x")
    assert skips == [f"sessions of {ref}: not a program of this worker" for ref in others]


def test_a_worker_that_has_not_the_program_exits_with_its_own_code(tmp_path, counter, capsys):
    """Nothing is left for this worker, but something is left: 12. It counts what it did."""
    database = f"sqlite:///{tmp_path}/a.db"
    with everhold.open_blocking(database, recover=False) as runtime:
        runtime.start(f"{counter}:count", args={"to": 1}, unchecked=True)
        runtime.start("nowhere_7:x", unchecked=True)
    assert main(["worker", "--once", "-d", database]) == 12
    shown = capsys.readouterr().out
    assert "cannot" in shown and "there is no module 'nowhere_7'" in shown
    assert "1 session cannot move here" in shown
    assert "stopped   1 move;" in shown


async def test_a_worker_says_once_which_sessions_wait_for_a_model(tmp_path, counter):
    """By their keys; not one whose questions are answered outside, and not one for a person."""
    events = []
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False) as runtime:
        await runtime.start(f"{counter}:ask", key="parked")
        await runtime.start(asks_a_named_model(), key="named")
        await runtime.start(asks_a_person())
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False, llm=None) as runtime:
        await runtime.start(f"{counter}:ask", key="outside")
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False) as runtime:
        worker = runtime.workers.worker(tell=events.append)
        assert await worker.once() == 0
        assert worker.cannot == 2
    cannot = {one.name: one.text for one in events if one.event == "cannot"}
    assert set(cannot) == {"parked", "named"}
    assert "q-0 asks a model, which this worker does not have" in cannot["parked"]
    assert "q-0 asks the model 'openai:gpt-5'" in cannot["named"]


async def test_a_running_worker_leaves_others_some_time_to_answer(tmp_path, counter):
    """A question that another worker answers soon is not reported."""
    events = []
    clock = ManualClock()
    async with Runtime(SQLiteStore(tmp_path / "a.db"), recover=False, clock=clock) as runtime:
        worker = runtime.workers.worker(tell=events.append)
        async with worker:
            clock.advance(UNANSWERED_SECONDS / 2)
            await runtime.start(f"{counter}:ask", key="k")
            clock.advance(UNANSWERED_SECONDS / 2 + 1)
            await asyncio.sleep(0.05)
            told = [one.name for one in events if one.event == "cannot"]
            clock.advance(UNANSWERED_SECONDS)
            async with asyncio.timeout(60):
                while not worker.cannot:
                    await asyncio.sleep(0.01)
    assert told == []
    assert [one.name for one in events if one.event == "cannot"] == ["k"]


async def test_a_worker_reports_a_session_once_that_the_code_does_not_fit(tmp_path, caplog):
    """However often it looks; the log has it only if nothing else hears of it."""

    def edition(first):
        @at_top
        async def changing(ctx):
            await first(ctx)

        return changing

    events = []
    clock = ManualClock()
    async with opened(tmp_path, replay=False, clock=clock) as runtime:
        await runtime.start(edition(lambda ctx: ctx.sleep(1))(), key="changed", wait=0)
    edition(lambda ctx: ctx.approval("?"))
    clock.advance(2)
    for tell in (events.append, None):
        async with opened(tmp_path, replay=False, clock=clock, recover=False) as runtime:
            assert await runtime.workers.worker(tell=tell).once() == 0
        assert len(caplog.records) == (0 if tell else 1)
    (event,) = [one for one in events if one.event == "cannot"]
    assert event.name == "changed"
    assert "the program asks approval '?'" in event.text


DOUBLE = """
import everhold

@everhold.program
async def one(ctx: everhold.Context) -> None: ...

@everhold.program{more}
async def {name}(ctx: everhold.Context) -> None: ...
"""


@pytest.mark.parametrize(("more", "name"), [("", "one"), ("(name='one')", "two")])
def test_two_programs_of_one_name_are_refused(tmp_path, more, name):
    """Where the second is decorated, with both lines; nothing of the file stays."""
    path = tmp_path / "double.py"
    path.write_text(DOUBLE.format(more=more, name=name))
    with pytest.raises(DuplicateProgram, match="line 4 and line 7"):
        find_program(f"{path}:one")
    path.write_text(DOUBLE.format(more="(version=2)", name="one"))
    assert find_program(f"{path}:one").version == 2


AGENTS = """
import everhold

{first} = everhold.Agent(instructions="One.", {named})
desk = everhold.Agent(instructions="Two.", {more})
"""


@pytest.mark.parametrize(
    ("first", "named", "more"),
    [("one", "name='desk'", "name='desk'"), ("one", "name='desk'", ""), ("desk", "", "name='one'")],
)
async def test_two_agents_of_one_name_are_refused(tmp_path, monkeypatch, first, named, more):
    """Where the module is loaded, and where one of them is started by a process that imported it.
    Two names, or an agent that replaces one, are no conflict.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"agents_{abs(hash(tmp_path)) % 10**8}"
    path = tmp_path / f"{name}.py"
    path.write_text(AGENTS.format(first=first, named=named, more=more))
    if first == "desk":
        assert find_program(f"{path}:one").instructions == "Two."
        return
    for ref in (f"{path}:desk", f"{name}:desk"):
        with pytest.raises(DuplicateProgram, match="two programs 'desk': one and desk"):
            find_program(ref)
        assert name not in sys.modules
    module = importlib.import_module(name)
    async with Runtime(MemoryStore()) as runtime:
        for agent in (module.one, module.desk):
            with pytest.raises(DuplicateProgram):
                await runtime.session(agent, "ana")
        assert await runtime.sessions() == []
    path.write_text(AGENTS.format(first="one", named="name='desk'", more="name='desk', version=2"))
    assert importlib.reload(module).one.ref == module.desk.ref


def test_a_file_that_was_loaded_may_be_reloaded_as_a_module(tmp_path, counter):
    """The import finds the copy that exists; a reload runs the code again."""
    path = tmp_path / f"{counter}.py"
    old = find_program(f"{path}:count")
    module = importlib.import_module(counter)
    assert module.count is old
    path.write_text(COUNTER.replace("loads = 1", "loads = 12345"))
    assert importlib.reload(module).loads == 12345
    assert module.count is not old


def test_a_module_may_be_reloaded(tmp_path, counter):
    """Also when lines were added: that is the same program again."""
    module = importlib.import_module(counter)
    old = module.count
    (tmp_path / f"{counter}.py").write_text("\n\n" + COUNTER)
    assert importlib.reload(module).count is not old


@everhold.program
async def outer(ctx):
    return "outer"


async def test_a_program_in_a_function_is_refused_where_it_could_not_be_resumed(tmp_path):
    """A store in memory ends with the process and takes it; so is an agent, which is handed in."""

    @everhold.program
    async def inner(ctx):
        return "inner"

    async with Runtime(MemoryStore()) as runtime:
        assert await runtime.run(inner()) == "inner"
    async with Runtime(SQLiteStore(tmp_path / "a.db")) as runtime:
        with pytest.raises(LocalProgram, match="inner"):
            await runtime.start(inner())
        with pytest.raises(LocalProgram, match="inner"):
            await runtime.schedules.add("nightly", "@daily", inner)
        with pytest.raises(LocalProgram, match="inner"):
            await runtime.triggers.add("paid", inner)
        assert await runtime.sessions() == []
        assert await runtime.run(outer()) == "outer"
        await runtime.session(everhold.Agent(name="<locals>.helper"), "chat")


def test_a_program_without_ctx_is_refused_when_it_is_decorated():
    """Without parameters, or with a first one that is something else."""

    async def bare() -> None: ...

    async def order(order: str) -> None: ...

    for body in (bare, order):
        with pytest.raises(NotAProgram, match="ctx"):
            everhold.program(body)
