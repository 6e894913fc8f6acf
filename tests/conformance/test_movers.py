"""Every mover we ship keeps every promise: one process by itself, and workers."""

import pytest

from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance.contract import MoverContract
from everhold.testing.conformance.mover_fleet import LocalFleet, WorkerFleet
from tests.postgres import fresh


class TestLocalOnMemory(MoverContract):
    @pytest.fixture
    def open_fleet(self):
        store = MemoryStore()
        return lambda: LocalFleet(lambda: store)


class TestLocalOnSQLite(MoverContract):
    @pytest.fixture
    def open_fleet(self, tmp_path):
        return lambda: LocalFleet(lambda: SQLiteStore(tmp_path / "fleet.db"))


class TestWorkersOnSQLite(MoverContract):
    @pytest.fixture
    def open_fleet(self, tmp_path):
        return lambda: WorkerFleet(lambda: SQLiteStore(tmp_path / "fleet.db"))


@pytest.mark.xdist_group("postgres")
class TestWorkersOnPostgres(MoverContract):
    @pytest.fixture
    def open_fleet(self, postgres):
        url = fresh(postgres, "movers")
        return lambda: WorkerFleet(lambda: PostgresStore(url))
