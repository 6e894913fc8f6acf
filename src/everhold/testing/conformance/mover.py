"""What every mover promises, as tests: one suite for all of them.

    from everhold.testing.conformance import MoverContract, WorkerFleet

    class TestMyMover(MoverContract):
        @pytest.fixture
        def open_fleet(self, tmp_path):
            return lambda: WorkerFleet(lambda: SQLiteStore(tmp_path / "db"))

`open_fleet` is a fixture that returns a function without arguments; it makes a `Fleet`, which says
what a mover is.
"""

from __future__ import annotations

from everhold.testing.conformance.mover_absence import MissingCodeContract
from everhold.testing.conformance.mover_accept import MoverAcceptContract
from everhold.testing.conformance.mover_family import MoverFamilyContract
from everhold.testing.conformance.mover_fault import ExternalEngineContract, MoverFaultContract
from everhold.testing.conformance.mover_harness import OpenFleet
from everhold.testing.conformance.mover_stop import MoverStopContract
from everhold.testing.conformance.mover_time import MoverTimeContract

__all__ = ["MoverContract", "OpenFleet"]


class MoverContract(
    MoverAcceptContract,
    MoverTimeContract,
    MoverFamilyContract,
    MoverStopContract,
    MissingCodeContract,
    MoverFaultContract,
    ExternalEngineContract,
):
    """What every mover promises."""
