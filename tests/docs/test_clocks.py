"""No test compares the wall clock with a limit, unless it guards against a hang or says why it
may.
"""

import textwrap

import pytest

from tools import clocks

FOUND = {
    "elapsed": """
        import time
        def test():
            begun = time.monotonic()
            work()
            assert time.monotonic() - begun < 0.5
        """,
    "a name": """
        from time import perf_counter as now
        def test():
            before = now()
            took = now() - before
            assert took <= 9
        """,
    "a list": """
        import time
        def test():
            took = []
            took.append(time.perf_counter() - begun)
            assert max(took) < LIMIT
        """,
    "a helper": """
        import time
        def measured(act):
            before = time.time()
            act()
            return time.time() - before
        def test():
            assert measured(work) < 1
        """,
    "a clock handed in": """
        import time
        async def test():
            took = await measured(time.perf_counter)
            assert took < 1
        """,
    "an attribute": """
        import time
        class Guard:
            def begin(self):
                self.end = time.monotonic() + 5
            def look(self):
                assert now < self.end
        """,
    "a loop's clock": """
        async def test():
            end = asyncio.get_running_loop().time() + 1
            while loop.time() < end:
                pass
        """,
    "a date": """
        def test():
            assert datetime.datetime.now() < moment
        """,
    "timeout": "async def test():\n    async with asyncio.timeout(0.5):\n        await work()\n",
    "wait_for": "import asyncio\nasync def test():\n    await asyncio.wait_for(work(), 5)\n",
    "wait": "async def test():\n    await asyncio.wait(tasks, timeout=1)\n",
    "an event": "def test():\n    assert done.wait(5)\n",
    "a process": "def test():\n    subprocess.run(command, timeout=3)\n",
    "a constant": "PATIENCE = 3\ndef test():\n    thread.join(PATIENCE)\n",
    "a default": "def until(what, patience=4):\n    what.wait(timeout=patience)\n",
    "not known": (
        "async def test(seconds):\n    async with asyncio.timeout(seconds):\n        await work()\n"
    ),
    "a script": (
        'CODE = """\nimport time\nend = time.monotonic() + 1\nwhile time.monotonic() <'
        ' end:\n    pass\n"""\n'
    ),
}
PASSED = {
    "a guard": """
        import time
        def until(what, seconds=60):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
        """,
    "a guard of elapsed time": """
        import time
        def test():
            begun = time.monotonic()
            assert time.monotonic() - begun < 300
        """,
    "a long wait": (
        "PATIENCE = 60\nasync def test():\n    await asyncio.wait_for(work(),"
        " PATIENCE)\n    done.wait()\n"
    ),
    "a look": (
        "async def test():\n    await asyncio.wait(tasks, timeout=0)\n    queue.get(timeout=None)\n"
    ),
    "CPU time": """
        import time
        def test():
            begun = time.process_time()
            assert time.process_time() - begun < 1
        """,
    "a manual clock": "def test():\n    assert clock.now() < 5\n    clock.advance(1)\n",
    "joined text": "def test():\n    assert ', '.join(words) < other\n    os.path.join(a, b)\n",
    "a reason": "def test():\n    assert done.wait(5)  # clock: it is set already\n",
    "a reason above": """
        def test():
            # clock: it is set already,
            # since the first line.
            assert done.wait(5)
        """,
}


@pytest.mark.parametrize("name", FOUND)
def test_a_comparison_with_the_wall_clock_is_found(name: str) -> None:
    (one,), stale = clocks.found(textwrap.dedent(FOUND[name]))
    assert (one.reason, stale) == ("", [])


@pytest.mark.parametrize("name", PASSED)
def test_what_a_busy_machine_does_not_fail_passes(name: str) -> None:
    found, stale = clocks.found(textwrap.dedent(PASSED[name]))
    assert ([one for one in found if not one.reason], stale) == ([], [])
    assert [bool(one.reason) for one in found] == [True] * name.startswith("a reason")


def test_the_line_of_a_script_is_that_of_the_file() -> None:
    (one,), _ = clocks.found(FOUND["a script"])
    assert one.line == 4


def test_a_reason_that_nothing_needs_is_told() -> None:
    found, stale = clocks.found("def test():\n    done.wait(60)  # clock: old\n", "x.py")
    assert (found, stale) == ([], ["x.py:2: no comparison needs this reason: old"])
