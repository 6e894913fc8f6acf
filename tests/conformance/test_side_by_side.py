"""Memory, SQLite and Postgres say the same, whatever is done to them."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from everhold.core.query import Kind
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance.machine import side_by_side
from tests.postgres import fresh

#: Shrinking takes minutes; a difference is reported as it was found. Take it out to look into one.
QUICK = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]


class TemporarySQLite(SQLiteStore):
    """A file that goes with its store."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        super().__init__(Path(self.folder.name) / "everhold.db", durability="process")

    async def close(self):
        await super().close()
        self.folder.cleanup()


class TestMemoryBesideItself(side_by_side(MemoryStore, MemoryStore).TestCase):
    settings = settings(max_examples=10, stateful_step_count=20)


class TestMemoryBesideSQLite(side_by_side(MemoryStore, TemporarySQLite).TestCase):
    settings = settings(max_examples=15, stateful_step_count=30, phases=QUICK)


@pytest.mark.soak
class TestMemoryBesideSQLiteForMinutes(side_by_side(MemoryStore, TemporarySQLite).TestCase):
    settings = settings(max_examples=400, stateful_step_count=50, phases=QUICK)


class TestMemoryBesidePostgres:
    """Memory, SQLite and Postgres at once, with the same acts."""

    @pytest.mark.xdist_group("postgres")
    def test_the_three_agree(self, postgres):
        case = side_by_side(
            MemoryStore, TemporarySQLite, lambda: PostgresStore(fresh(postgres, "beside"))
        ).TestCase
        case.settings = settings(max_examples=6, stateful_step_count=20, phases=QUICK)

        case("runTest").runTest()


class Deaf(MemoryStore):
    """A store that does not hear what people are asked."""

    async def inbox(self, **wanted):
        found = await super().inbox(**wanted)
        return [row for row in found if row[1].kind is not Kind.INPUT]


def test_a_difference_is_found():
    """A store that leaves something out does not agree with one that does not."""
    case = side_by_side(MemoryStore, Deaf).TestCase
    case.settings = settings(max_examples=100, database=None, derandomize=True, phases=QUICK)

    with pytest.raises(AssertionError):
        case("runTest").runTest()
