"""Postgres keeps every promise of the port, with the server's own lines and through a pooler."""

import pytest

from everhold.stores.postgres import PostgresStore
from everhold.testing.conformance import DurableStoreContract
from tests.postgres import fresh

pytestmark = pytest.mark.xdist_group("postgres")


class TestPostgres(DurableStoreContract):
    @pytest.fixture
    def open_store(self, postgres):
        url = fresh(postgres)
        return lambda: PostgresStore(url)
