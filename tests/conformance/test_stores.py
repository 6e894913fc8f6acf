"""Every store we ship keeps every promise."""

import pytest

from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance import DurableStoreContract, MaintenanceContract, StoreContract
from everhold.testing.store_wrapper import StoreWrapper


class TestMemory(StoreContract, MaintenanceContract):
    @pytest.fixture
    def open_store(self):
        return MemoryStore


class WithoutMaintenance(StoreWrapper):
    """A store that does no more than it must."""

    maintenance = None


class TestStoreWithoutMaintenance(StoreContract):
    @pytest.fixture
    def open_store(self):
        return lambda: WithoutMaintenance(MemoryStore())


class TestSQLite(DurableStoreContract, MaintenanceContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        return lambda: SQLiteStore(tmp_path / "everhold.db")


class TestSQLiteAtLevelPower(DurableStoreContract, MaintenanceContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        return lambda: SQLiteStore(tmp_path / "everhold.db", durability="power")
