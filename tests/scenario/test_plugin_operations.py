"""Operations of plugins: what a host may ask a plugin of a session to do, or to tell."""

import asyncio

import pytest

import everhold
from everhold.agents import OperationDone
from everhold.errors import BadArguments, TurnStopped, UnknownOperation
from everhold.hooks import Plugin, operation
from everhold.stores import MemoryStore
from everhold.testing import ManualClock
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted

ran = []


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    ran.clear()
    return None if request.param == "memory" else tmp_path


class Notes(Plugin):
    """Remembers notes."""

    name = "notes"

    def restore(self, state):
        self.notes = list(state or [])

    def snapshot(self):
        return self.notes

    @operation
    async def add(self, moment, text: str, times: int = 1) -> int:
        """Add a note."""
        ran.append(text)
        self.notes += [text] * times
        self.revision += 1
        moment.append("note", text)
        moment.say(f"Note: {text}", "system")
        moment.state("notes").incr("count", times)
        moment.emit("noted", {"text": text})
        return len(self.notes)

    @operation(read_only=True)
    async def list(self, moment, limit: int | None = None) -> list[str]:
        """List the notes."""
        count = await moment.state("notes").get("count", 0)
        return [*self.notes[:limit], f"{count} in {moment.turn} turns"]

    @operation
    def fail(self, moment) -> None:
        """Fail."""
        moment.append("note", "never")
        raise ValueError("no notes")


noted = everhold.Agent("local:noted", plugins=[Notes()])


async def test_a_host_runs_the_operations_that_a_plugin_declares(place):
    """Row 7: operations. One that writes is a turn, recorded with its value; what it asked for
    lands with it.
    """
    async with opened(place, llm=Scripted("A.")) as runtime:
        session = await runtime.session(noted, "s")
        notes = session.plugin("notes")
        assert await notes.call("list") == ["0 in 0 turns"]
        assert await notes.call("add", text="milk") == 1
        assert await notes.call("add", text="tea", times=2, id="one") == 3
        assert await notes.call("add", text="tea", times=2, id="one") == 3
        assert await notes.call("list", limit=2) == ["milk", "tea", "3 in 2 turns"]
        first, second = await session.turns()
        assert (
            first.outcome == OperationDone("notes", "add", 1) and first.events[0].event == "noted"
        )
        assert second.input == "one"
        assert [node.content["body"] for node in await session.nodes("note")] == ["milk", "tea"]
        assert "Note: milk" in str(await session.messages())
        await session.send("Hi.")
    assert ran == ["milk", "tea"]


async def test_what_a_plugin_does_not_declare_is_refused(place):
    """Unknown plugins and operations, input that does not fit, and an operation that raises."""
    async with opened(place, llm=Scripted()) as runtime:
        session = await runtime.session(noted, "s")
        with pytest.raises(UnknownOperation, match="'absent'") as error:
            session.plugin("absent")
        assert "notes" in error.value.hint
        notes = session.plugin("notes")
        with pytest.raises(UnknownOperation, match="'restore'"):
            await notes.call("restore")
        with pytest.raises(BadArguments, match="text"):
            await notes.call("add", text=7)
        with pytest.raises(BadArguments):
            await notes.call("add", words="x")
        with pytest.raises(TurnStopped, match="no notes"):
            await notes.call("fail")
        assert (await session.turns())[0].outcome.code == "plugin_failed"
        assert await session.nodes() == []
        assert [(one.name, one.read_only) for one in notes.operations] == [
            ("add", False),
            ("fail", False),
            ("list", True),
        ]
        assert notes.operations[0].input_schema["required"] == ["text"]


async def test_an_operation_that_reads_works_while_a_turn_runs():
    """It sees the last settled turn."""
    reached, finish = asyncio.Event(), asyncio.Event()

    async def model(query):
        reached.set()
        await finish.wait()
        return "Done."

    async with opened(llm=model) as runtime:
        session = await runtime.session(noted, "s")
        await session.plugin("notes").call("add", text="milk")
        going = asyncio.ensure_future(session.send("Hi."))
        await reached.wait()
        assert await session.plugin("notes").call("list") == ["milk", "1 in 1 turns"]
        finish.set()
        await going


async def test_a_plugin_that_is_loaded_elsewhere_knows_what_operations_did():
    """Its state is restored from the turns, also in another process."""
    memory = MemoryStore()
    async with everhold.Runtime(memory, clock=ManualClock(), llm=Scripted()) as runtime:
        session = await runtime.session(noted, "s")
        await session.plugin("notes").call("add", text="milk")
        fork = await session.fork()
    async with everhold.Runtime(memory, clock=ManualClock(), llm=Scripted()) as runtime:
        session = await runtime.session(noted, fork.id)
        assert await session.plugin("notes").call("add", text="tea") == 2
        assert (await session.plugin("notes").call("list"))[:2] == ["milk", "tea"]


def test_operations_for_code_that_is_not_async():
    """The blocking façade has them too."""
    with everhold.open_blocking("memory://", llm=Scripted()) as runtime:
        notes = runtime.session(noted, "s").plugin("notes")
        assert notes.call("add", text="milk") == 1
        assert notes.name == "notes" and len(notes.operations) == 3
