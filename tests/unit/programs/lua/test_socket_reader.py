"""What a worker hears: all of it, in order, whether it came at once or late; and it sleeps where
nothing comes.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from everhold.programs.lua import protocol
from everhold.programs.lua.protocol import SocketReader, SpinWait


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, its = socket.socketpair()
    with ours, its:
        yield ours, its


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blink is long: the machine may be busy."""
    monkeypatch.setattr(protocol, "BLINK", 30.0)


def sleeps(end: socket.socket) -> bool:
    return not fcntl.fcntl(end.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK


def later(end: socket.socket, data: bytes) -> threading.Timer:
    timer = threading.Timer(0.05, end.send, [data])
    timer.start()
    return timer


def test_what_comes_while_it_looks_is_heard(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, its = ends
    timer = later(ours, b"order")
    assert SocketReader(its.fileno()).read() == b"order"
    timer.join()


def test_what_comes_after_the_blink_is_heard(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "BLINK", 1e-9)
    ours, its = ends
    timer = later(ours, b"order")
    assert SocketReader(its.fileno()).read() == b"order"
    timer.join()


def test_the_end_is_heard_while_it_looks(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, its = ends
    found = SocketReader(its.fileno())
    ours.close()
    assert found.read() == b""


@pytest.mark.parametrize("blink", [1e-9, 30.0])
def test_whoever_writes_meanwhile_may_sleep(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, blink: float
) -> None:
    """Else a long reply would fail where its reader is slow."""
    monkeypatch.setattr(protocol, "BLINK", blink)
    ours, its = ends
    ours.send(b"order")
    SocketReader(its.fileno()).read()
    assert sleeps(its)


def test_where_there_is_one_processor_nobody_blinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BLINK", 0.0)
    assert SpinWait().begin() == 0.0


def naps(blink: SpinWait, *, in_vain: bool) -> int:
    """How often one sleeps at once after a blink that ended so."""
    assert blink.begin() > 0.0
    blink.ended(in_vain=in_vain)
    times = 0
    while not blink.begin():
        times += 1
    return times


def test_a_blink_in_vain_is_followed_by_sleep_and_each_further_one_by_more() -> None:
    blink = SpinWait()
    assert [naps(blink, in_vain=True) for _ in range(5)] == [4, 16, 64, 256, 256]


def test_after_a_blink_that_helped_one_blinks_again() -> None:
    blink = SpinWait()
    assert [naps(blink, in_vain=is_vain) for is_vain in (True, True, False, True)] == [4, 16, 0, 4]
