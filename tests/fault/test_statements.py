"""What a turn of a conversation through a Postgres worker costs, in SQL statements."""

from statistics import median

import pytest

from bench.measures.statements import turns
from tests.postgres import fresh

pytestmark = pytest.mark.xdist_group("postgres")

MOST = 15
#: A turn that takes longer than the pause between two notifications sends one more, of three
#: statements or fewer. So does one after which a connection is opened.
SLOW = 4


async def test_a_turn_through_a_worker_takes_few_statements(postgres):
    """Counted at the front and at the worker, BEGIN and COMMIT included; reconciliation is counted
    apart.
    """
    taken, _, _ = await turns(fresh(postgres), 10)
    assert 5 < min(taken) <= MOST
    assert median(taken) <= MOST + SLOW
