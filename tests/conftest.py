"""How tests run here, whatever they test.

An `async def` test is run by `asyncio.run`, on a loop of its own. There are no async fixtures: a test that
needs something open says `async with`. Random order comes from pytest-randomly (the seed is in the header;
`--randomly-seed=N` repeats it), warnings as errors from pyproject.toml. Hypothesis measures no
time: a busy machine is not a failure.
"""

import asyncio
import gc
import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from everhold.ports import interrupt
from everhold.programs import purity

# A shell without a terminal starts what is in its background deaf to Ctrl-C, and so would be all that tests start.
for one, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(one) is signal.SIG_IGN:
        signal.signal(one, usual)

#: A file system in memory. What is forced to disk there is there at once, and no test takes the power away.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize > 4 << 30 and not room.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

#: What a run of all tests chooses by: what needs a quiet machine may be left to another run.
MAIN = ("not soak and not alone", "not soak")
PASSED: set[str] = set()
MISSED = pytest.StashKey[list[str]]()


def pytest_collection_finish() -> None:
    """From here on no bytecode is written: tests change files faster than it notices. What is here now stays here."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    purity.configure(limit=100)  # of one advance, by the clock: a program is not to blame for a busy machine
    gc.collect()
    gc.freeze()


@pytest.fixture
def signals_told() -> Iterator[None]:
    """As in a server: no signal raises anything."""
    interrupt.signals_are_told()
    yield
    interrupt.signals_are_told(False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that shows what a table of docs/reference says it shows has to run: one that is skipped has failed."""
    report = yield
    if report.skipped:
        from tools.invariants import bare, named
        from tools.rows import mended, shown

        covers = {test for tests in (*shown().values(), *mended().values()) for test in tests}
        for page, tests in (("coverage.md", covers), ("invariants.md", named())):
            if bare(item.nodeid) in tests:
                report.outcome = "failed"
                report.longrepr = f"{item.nodeid} was skipped, and docs/reference/{page} says that it shows something"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        PASSED.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """After a run of all tests: each that docs/reference/invariants.md names has run and passed, or the run failed."""
    if _is_whole(session) and _missed():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[MISSED] = _missed()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in config.stash.get(MISSED, ()):
        terminalreporter.write_line(f"MISSED {name}: named by docs/reference/invariants.md, and it did not pass here")


def _is_whole(session: pytest.Session) -> bool:
    """Whether this was the run of all tests, as `make test` does it, and went to its end."""
    config = session.config
    option = config.option
    ours = not hasattr(config, "workerinput") and config.args_source is pytest.Config.ArgsSource.TESTPATHS
    chosen = option.keyword or option.deselect or option.collectonly or getattr(option, "lf", False)
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    stopped = session.shouldstop or session.shouldfail
    return ours and option.markexpr in MAIN and ended and not (chosen or stopped)


def _missed() -> list[str]:
    from tools.invariants import missed

    return missed(PASSED)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server of our own, for all the tests of this process; see tools/postgres.py."""
    from tools.postgres import Server  # only here: what is above works in any folder

    with Server() as server:
        yield server
