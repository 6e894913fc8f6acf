"""How tests run here, whatever they test.

An `async def` test is run by `asyncio.run`, on a loop of its own. There are no async fixtures: a
test that needs something open says `async with`. Random order comes from pytest-randomly (the seed
is in the header; `--randomly-seed=N` repeats it), warnings as errors from pyproject.toml.
Hypothesis measures no time: a busy machine is not a failure.
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

from everhold.ports.program import set_signals_handled

# A shell without a terminal starts what is in its background deaf to Ctrl-C, and so would be all
# that tests start.
for one, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(one) is signal.SIG_IGN:
        signal.signal(one, usual)

#: A file system in memory. What is forced to disk there is there at once, and no test takes the
#: power away.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize > 4 << 30 and not room.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

#: What a run of all tests chooses by.
MAIN = ("not soak and not full",)
PASSED: set[str] = set()
MISSED = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on no bytecode is written: tests change files faster than it notices. What is here
    now stays here.
    """
    if getattr(session.config.option, "loadgroup", False):
        _name_groups(session.items)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    gc.collect()
    gc.freeze()


def _name_groups(items: list[pytest.Item]) -> None:
    """Append the group of a test to its id, where `--dist loadgroup` looks for it.

    pytest-xdist 3.8 sets an attribute that pytest 9.2 does not read any more, and then forgets all
    groups without a word (pytest-xdist issue 1386).
    """
    for item in items:
        names = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
        suffix = f"@{'_'.join(sorted(names))}"
        if names and not item.nodeid.endswith(suffix):
            from _pytest.nodeid import NodeId

            item._id = NodeId.parse(item.nodeid + suffix)


@pytest.fixture
def signals_told() -> Iterator[None]:
    """As in a server: no signal raises anything."""
    set_signals_handled()
    yield
    set_signals_handled(False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that shows what a table of docs/reference says it shows has to run: one that is
    skipped has failed.

    So has one that starts a process and does not say so.
    """
    report = yield
    if report.when == "teardown" and (undeclared := _undeclared(item)) and report.passed:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: {undeclared}"
    if report.skipped:
        from tools import coverage
        from tools.invariants import bare, named
        from tools.rows import list_defect_tests, shown

        listed = (*shown().values(), *list_defect_tests().values())
        covers = {test for tests in listed for test in tests}
        covers.update(coverage.tests())
        for page, tests in (("coverage.md", covers), ("invariants.md", named())):
            name = bare(item.nodeid)
            if name in tests or name.rpartition("::")[0] in tests:
                report.outcome = "failed"
                report.longrepr = (
                    f"{item.nodeid} was skipped, and docs/reference/{page} says"
                    " that it shows something"
                )
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        PASSED.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """After a run of all tests: each that docs/reference/invariants.md names has run and passed, or
    the run failed.
    """
    if _is_whole(session) and _missed():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[MISSED] = _missed()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for name in config.stash.get(MISSED, ()):
        terminalreporter.write_line(
            f"MISSED {name}: named by docs/reference/invariants.md, and it did not pass here"
        )


def _is_whole(session: pytest.Session) -> bool:
    """Whether this was the run of all tests, as `make test` does it, and went to its end."""
    config = session.config
    option = config.option
    ours = (
        not hasattr(config, "workerinput")
        and config.args_source is pytest.Config.ArgsSource.TESTPATHS
    )
    chosen = option.keyword or option.deselect or option.collectonly or getattr(option, "lf", False)
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    stopped = session.shouldstop or session.shouldfail
    return ours and option.markexpr in MAIN and ended and not (chosen or stopped)


def _missed() -> list[str]:
    from tools.invariants import missed

    return missed(PASSED)


# Which tests start processes

#: Where a test that starts a process says so: `make quick` runs the others.
STILL = tuple(Path(__file__).parent / name for name in ("unit", "scenario", "conformance"))
#: Audit events of starting a process.
STARTS = frozenset(
    {
        "subprocess.Popen",
        "os.system",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.exec",
    }
)
#: Programs that only a test marked `full` may start.
NODE = frozenset({"node", "npm", "npx", "pyright"})
STARTED: list[tuple[str, list[str]]] = []
OURSELVES = os.getpid()


def _hear(event: str, args: tuple[Any, ...], starts: frozenset[str] = STARTS) -> None:
    """Note what is started. (The default is there when the interpreter ends, and has cleared the
    names of modules.)
    """
    if event in starts and os.getpid() == OURSELVES:
        flat = [
            word
            for each in args[:3]
            for word in (each if isinstance(each, list | tuple) else [each])
        ]
        words = [os.fsdecode(word) for word in flat if isinstance(word, str | bytes | os.PathLike)]
        # The first is what clients of providers ask once in a process; the second comes at the end
        # of all scenarios.
        if words[:1] != ["uname"] and "tests.scenario.replay" not in words:
            STARTED.append((event, words))


sys.addaudithook(_hear)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on PostgreSQL starts its server. One that needs a quiet machine is not for `make
    test`.
    """
    for item in items:
        groups = [mark.args for mark in item.iter_markers("xdist_group")]
        if "postgres" in getattr(item, "fixturenames", ()) or ("postgres",) in groups:
            item.add_marker("process")
        if item.get_closest_marker("alone") and not any(
            map(item.get_closest_marker, ("full", "soak"))
        ):
            raise pytest.UsageError(
                f"{item.nodeid} is marked `alone`: mark it `full` or `soak`, too"
            )


def _undeclared(item: pytest.Item) -> str:
    """What a test has started and does not say by a marker; forgets what was started."""
    found, STARTED[:] = list(STARTED), []
    if not item.get_closest_marker("full"):
        for _, words in found:
            if NODE & {Path(word).name for word in words}:
                return f"it starts {' '.join(words)[:200]} and is not marked `full`"
    if (
        found
        and any(map(item.path.is_relative_to, STILL))
        and not item.get_closest_marker("process")
    ):
        event, words = found[0]
        return f"it starts a process ({event}: {' '.join(words)[:200]}) and is not marked `process`"
    return ""


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server of our own, for all the tests of this process; see tools/postgres.py."""
    from tools.postgres import Server  # only here: what is above works in any folder

    with Server() as server:
        yield server
