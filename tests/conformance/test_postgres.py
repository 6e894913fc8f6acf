"""Postgres keeps every promise of the port; through a pooler too, where commits are sent in another
way.
"""

import pytest

from everhold.stores.postgres import PostgresStore
from everhold.testing.conformance import DurableStoreContract, MaintenanceContract
from everhold.testing.conformance.commit import ConcurrentCommitContract
from everhold.testing.conformance.duty import DutyContract
from everhold.testing.conformance.settle import SettleContract
from tests.postgres import fresh
from tools.postgres import Pooler

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture(scope="module")
def pooler(postgres):
    with Pooler(postgres) as pooler:
        yield pooler


class TestPostgres(DurableStoreContract, MaintenanceContract):
    @pytest.fixture
    def open_store(self, postgres):
        url = fresh(postgres)
        return lambda: PostgresStore(url)


class TestCommitsThroughAPooler(ConcurrentCommitContract, SettleContract, DutyContract):
    @pytest.fixture
    def open_store(self, postgres, pooler):
        fresh(postgres)
        return lambda: PostgresStore(pooler.url)
