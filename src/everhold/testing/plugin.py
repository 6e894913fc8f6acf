"""The pytest plugin: a fixture `everhold`, and `--everhold-update`.

Nothing of everhold is imported until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from everhold.testing.kit import Kit


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everhold")
    group.addoption(
        "--everhold-update", action="store_true", help="accept how programs of exported sessions ask and end now"
    )


@pytest.fixture
def everhold(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Programs under test: sessions in memory, a clock of their own, and a replay of each at the end."""
    from everhold.programs import purity
    from everhold.testing.kit import Kit

    before = purity._settings.mode
    purity.configure(mode="refuse")
    kit = Kit(update=bool(request.config.getoption("--everhold-update", default=False)))
    try:
        with kit.runtime:
            yield kit
            kit.check_replays()
    finally:
        purity.configure(mode=before)
