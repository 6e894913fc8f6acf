"""Every store we ship keeps every promise."""

import pytest

from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance import DurableStoreContract, StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def open_store(self):
        return MemoryStore


class TestSQLite(DurableStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        return lambda: SQLiteStore(tmp_path / "everhold.db")


class TestSQLiteAtLevelPower(DurableStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        return lambda: SQLiteStore(tmp_path / "everhold.db", durability="power")
