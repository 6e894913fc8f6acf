"""What a worker hears: all of it, in order, whether it came at once or late; and it sleeps where nothing comes."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from everhold.programs.lua import inlet
from everhold.programs.lua.inlet import Inlet


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, its = socket.socketpair()
    with ours, its:
        yield ours, its


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is quick, and a blink is long: the machine may be busy."""
    monkeypatch.setattr(inlet, "BLINK", 30.0)
    monkeypatch.setattr(inlet, "_SOON", 30.0)


def quick(end: socket.socket, other: socket.socket) -> Inlet:
    """An inlet whose first piece came soon."""
    found = Inlet(end.fileno())
    other.send(b"first")
    assert found.read() == b"first"
    return found


def sleeps(end: socket.socket) -> bool:
    return not fcntl.fcntl(end.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK


def test_what_comes_while_it_looks_is_heard(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, its = ends
    found = quick(its, ours)
    later = threading.Timer(0.05, ours.send, [b"second"])
    later.start()
    assert found.read() == b"second"
    later.join()


def test_what_comes_after_the_blink_is_heard(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inlet, "BLINK", 1e-9)
    ours, its = ends
    found = quick(its, ours)
    later = threading.Timer(0.05, ours.send, [b"second"])
    later.start()
    assert found.read() == b"second"
    later.join()


def test_the_end_is_heard_while_it_looks(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, its = ends
    found = quick(its, ours)
    ours.close()
    assert found.read() == b""


def test_whoever_writes_meanwhile_may_sleep(ends: tuple[socket.socket, socket.socket]) -> None:
    """Else a long reply would fail where its reader is slow."""
    ours, its = ends
    found = quick(its, ours)
    ours.send(b"second")
    found.read()
    assert sleeps(its)


@pytest.mark.parametrize(("blink", "soon"), [(0.0, 30.0), (30.0, 0.0)])
def test_it_does_not_look_where_there_is_one_processor_or_nobody_is_quick(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, blink: float, soon: float
) -> None:
    monkeypatch.setattr(inlet, "BLINK", blink)
    monkeypatch.setattr(inlet, "_SOON", soon)
    looked: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: looked.append(None))
    ours, its = ends
    found = quick(its, ours)
    later = threading.Timer(0.05, ours.send, [b"second"])
    later.start()
    assert (found.read(), looked) == (b"second", [])
    later.join()
