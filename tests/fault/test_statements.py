"""What a turn of a conversation through a Postgres worker costs, in SQL statements."""

from statistics import median

import pytest

from bench.measures.statements import turns
from tests.postgres import fresh

pytestmark = pytest.mark.xdist_group("postgres")

MOST = 20


async def test_a_turn_through_a_worker_takes_few_statements(postgres):
    """Counted at the front and at the worker, BEGIN and COMMIT included; reconciliation is counted
    apart.
    """
    taken, _ = await turns(fresh(postgres), 10)
    assert 5 < median(taken) <= MOST
