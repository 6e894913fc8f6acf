"""Clocks and dice are seen however they are called; what belongs to the program's own tools is
not.
"""

import datetime
import logging
import random
import secrets
import socket
import time
import uuid
from collections.abc import Callable
from time import time as imported

import pytest

from everhold.testing.guards import (
    ForbiddenCall,
    NetworkRefused,
    record_forbidden_calls,
    refuse_network,
)


def seen(act: Callable[[], object], *allowed: str) -> list[ForbiddenCall]:
    found: list[ForbiddenCall] = []
    with record_forbidden_calls(found, allowed):
        act()
    return found


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (lambda: time.time(), "time.time"),
        (lambda: imported(), "time.time"),
        (lambda: time.monotonic(), "time.monotonic"),
        (lambda: datetime.datetime.now(), "datetime.now"),
        (lambda: datetime.date.today(), "date.today"),
        (lambda: random.random(), "random.random"),
        (lambda: random.choice([1, 2]), "random.getrandbits"),
        (lambda: uuid.uuid4(), "os.urandom"),
        (lambda: secrets.token_hex(), "os.urandom"),
    ],
)
def test_a_clock_or_dice_is_seen(act: Callable[[], object], name: str) -> None:
    """With the name that people know it by, and the line of the program."""
    [spotted] = seen(act)
    assert (spotted.name, spotted.file) == (name, __file__)


@pytest.mark.parametrize(
    "act",
    [
        lambda: random.Random(7).random(),
        lambda: datetime.datetime.fromtimestamp(7, datetime.UTC),
        lambda: logging.getLogger("a program").warning("hello"),
        lambda: time.sleep(0),
        lambda: sorted([3, 1, 2]),
    ],
)
def test_what_is_the_same_on_replay_is_not_told(act: Callable[[], object]) -> None:
    assert seen(act) == []


def test_a_clock_that_is_allowed_is_not_told() -> None:
    assert seen(lambda: time.perf_counter(), "time.perf_counter") == []


def test_a_clock_that_hypothesis_reads_is_not_told() -> None:
    """It times the garbage collector, which comes whenever it likes, also while a program runs."""
    timing: dict[str, object] = {"__name__": "hypothesis.internal.timing", "time": time}
    exec("def timed():\n    time.perf_counter()", timing)
    assert seen(timing["timed"]) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "act", [socket.gethostbyname, lambda host: socket.create_connection((host, 80), timeout=1)]
)
def test_another_machine_cannot_be_reached(act) -> None:
    with refuse_network(), pytest.raises(NetworkRefused, match=r"connects to 'example\.com'"):
        act("example.com")


def test_an_address_cannot_be_reached_either() -> None:
    with refuse_network(), socket.socket() as line, pytest.raises(NetworkRefused, match="192"):
        line.connect(("192.0.2.1", 80))


def test_this_machine_can_be_reached() -> None:
    with refuse_network(), socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_two_that_refuse_do_not_disturb_each_other() -> None:
    with refuse_network():
        with refuse_network():
            pass
        with pytest.raises(NetworkRefused):
            socket.gethostbyname("example.com")
