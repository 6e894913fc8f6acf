"""The tools that break things break what they say, and nothing else."""

import pytest

from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.faults import CRASHED, CrashingStore, Nursery, read_all_lines
from everhold.testing.faults import die as die
from tests.fault.odd import echo


class Died(BaseException):
    """Stands in for the end of a process."""


def raising() -> None:
    raise Died


@pytest.mark.parametrize(("when", "landed"), [("before", 0), ("after", 1)])
async def test_a_crashing_store_dies_at_its_commit(when: str, landed: int) -> None:
    """It dies before or after the commit it was told, and counts the commits."""
    store = CrashingStore(MemoryStore(), at=2, when=when, die=raising)
    async with Runtime(store, recover=False) as runtime:
        status = await runtime.start(echo())
        with pytest.raises(Died):
            await runtime.answer(status.session_id, "so")
        assert store.commits == 2
        assert (await store.load(status.session_id)).head.n == landed


async def test_a_crashing_store_without_a_crash_is_the_store() -> None:
    """Without a commit to die at it only counts, and tells what it sees."""
    seen = []
    store = CrashingStore(
        MemoryStore(), seen=lambda number, change: seen.append((number, len(change.deliveries)))
    )
    async with Runtime(store, recover=False) as runtime:
        status = await runtime.start(echo())
        assert (await runtime.answer(status.session_id, "so")).result == "so"
    assert seen == [(1, 1), (2, 1)]


def hello(name: str) -> None:
    print(f"hello {name}")


async def hello_later(name: str) -> None:
    hello(name)


def fail() -> None:
    raise ValueError("on purpose")


def hang() -> None:
    import time

    print("hanging", flush=True)
    time.sleep(600)


def test_a_nursery_starts_runs_kills_and_tells(capfd: pytest.CaptureFixture[str]) -> None:
    """Children print, end with their code, fail with 1, die with 86, and are killed with -9."""
    with Nursery("tests.fault.test_tools") as nursery:
        assert nursery.run("hello", name="you") == (0, ["hello you"])
        assert nursery.run("hello_later", name="you") == (0, ["hello you"])
        assert nursery.run("die") == (CRASHED, [])
        assert nursery.run("fail") == (1, [])
        child = nursery.start("hang")
        assert next(child.lines()) == "hanging"
        child.kill()
        assert (child.wait(), child.wait()) == (-9, -9)
        child.close()
        both = [nursery.start("hello", name=name) for name in "ab"]
        assert read_all_lines(both) == [["hello a"], ["hello b"]]
        assert [child.wait() for child in both] == [0, 0]
    assert "on purpose" in capfd.readouterr().err


def test_a_nursery_takes_its_children_along() -> None:
    """A child that still runs when the nursery closes is ended with it."""
    with Nursery("tests.fault.test_tools") as nursery:
        child = nursery.start("hang")
        assert next(child.lines()) == "hanging"
    assert list(child.lines()) == []


def test_a_nursery_whose_module_does_not_load_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    """Asking a nursery that could not be made is an error, and why is on standard error."""
    with Nursery("tests.fault.nowhere") as nursery, pytest.raises(ChildProcessError):
        nursery.run("hello", name="you")
    assert "No module named" in capfd.readouterr().err
