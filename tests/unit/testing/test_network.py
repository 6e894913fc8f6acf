"""A test with the fixture reaches no other machine."""

import socket

import pytest

from everhold.testing.network import NetworkRefused, refuse_network


@pytest.mark.parametrize(
    "act", [socket.gethostbyname, lambda host: socket.create_connection((host, 80), timeout=1)]
)
def test_another_machine_cannot_be_reached(act) -> None:
    with refuse_network(), pytest.raises(NetworkRefused, match=r"reaches for 'example\.com'"):
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
