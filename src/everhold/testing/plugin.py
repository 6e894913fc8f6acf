"""The pytest plugin: the fixture `everhold`, `--everhold-update` and `--everhold-fresh`.

pytest loads this module in every run, also in projects without everhold. So nothing is imported
before the fixture is used.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from everhold.testing.fixture import Kit

_ACCEPTED = "_everhold_accepted"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everhold", "everhold: programs under test")
    group.addoption(
        "--everhold-update",
        action="store_true",
        help="Accept changed questions and results: rewrite the recorded sessions of tests.",
    )
    group.addoption(
        "--everhold-fresh",
        action="store_true",
        help="Also replay sessions in a fresh process with another hash seed (slower).",
    )


@pytest.fixture
def everhold(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A runtime for tests: in memory, on a clock that the test moves, without a network or real
    models.

    After the test its sessions are replayed; a program that does not replay fails the test.
    """
    from everhold.testing.fixture import Kit

    config = request.config
    update = config.getoption("--everhold-update")
    fresh = config.getoption("--everhold-fresh")
    with Kit(folder=request.path.parent, update=update, fresh=fresh) as kit:
        yield kit
    accepted: list[Path] = config.__dict__.setdefault(_ACCEPTED, [])
    accepted += kit.accepted


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Replay at the end of the test and not in its teardown, so that the test itself fails.

    An `async def` test that no other plugin handles runs here, on its own loop.
    """
    kit: Any = pyfuncitem.funcargs.get("everhold")
    if not hasattr(kit, "check_replays"):
        return (yield)
    if inspect.iscoroutinefunction(pyfuncitem.obj) and not pyfuncitem.get_closest_marker("anyio"):
        pyfuncitem.obj = _blocking(pyfuncitem.obj)
    try:
        done = yield
    except BaseException:
        kit.checks = False  # it has failed already
        raise
    if kit.checks:
        kit.checks = False
        found = kit.not_replayed()
        if found:
            pytest.fail(found, pytrace=False)
    return done


def _blocking(test: Any) -> Any:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        import asyncio

        asyncio.run(test(**fixtures))

    return run


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for path in config.__dict__.get(_ACCEPTED, ()):
        terminalreporter.write_line(f"everhold: accepted the changes in {path}", yellow=True)
