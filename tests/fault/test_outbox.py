"""Whoever dies, and however many tell at once: each asking is told, and doubles have the same
id.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.testing.faults import Nursery, read_all_lines
from tests.postgres import fresh


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.tellers") as found:
        yield found


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return fresh(request.getfixturevalue("postgres"))


def ids(lines: list[str]) -> list[str]:
    return [line.removeprefix("told ") for line in lines]


def test_many_processes_tell_each_asking_once(nursery: Nursery, url: str) -> None:
    """Who claims it sends it; nobody died, so nothing is sent twice."""
    assert nursery.run("ask", url=url, count=40) == (0, [])
    children = [nursery.start("tell", url=url, count=40) for _ in range(3)]
    told = [id for lines in read_all_lines(children) for id in ids(lines)]
    assert [child.wait() for child in children] == [0, 0, 0]
    for child in children:
        child.close()

    assert len(told) == len(set(told)) == 40


def test_who_dies_between_sending_and_saying_so_is_followed_by_another(
    nursery: Nursery, url: str
) -> None:
    """It is sent again, under the same id, after the time in which it should have been sent; the
    rest is sent once.
    """
    assert nursery.run("ask", url=url, count=6) == (0, [])
    code, lines = nursery.run("tell", url=url, count=6, dies=True)
    (first,) = ids(lines)
    assert code == 9

    code, lines = nursery.run("tell", url=url, count=6, ahead=120.0)
    again = ids(lines)
    assert code == 0
    assert first in again
    assert len(again) == len(set(again)) == 6
