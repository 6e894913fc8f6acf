"""What every mover promises, as tests: one suite for all of them.

    from everhold.testing.conformance.mover import MoverContract
    from everhold.testing.conformance.mover_fleet import WorkerFleet

    class TestMyMover(MoverContract):
        @pytest.fixture
        def open_fleet(self, tmp_path):
            return lambda: WorkerFleet(lambda: SQLiteStore(tmp_path / "db"))

`open_fleet` is a fixture that returns a function without arguments; it makes a `Fleet`, which says
what a mover is.
"""

from __future__ import annotations

from everhold.testing.conformance.mover_absence import PlaceRoom
from everhold.testing.conformance.mover_accept import AcceptRoom
from everhold.testing.conformance.mover_family import FamilyRoom
from everhold.testing.conformance.mover_fault import EngineRoom, FaultRoom
from everhold.testing.conformance.mover_harness import OpenFleet
from everhold.testing.conformance.mover_stop import StopRoom
from everhold.testing.conformance.mover_time import TimeRoom

__all__ = ["MoverContract", "OpenFleet"]


class MoverContract(AcceptRoom, TimeRoom, FamilyRoom, StopRoom, PlaceRoom, FaultRoom, EngineRoom):
    """What every mover promises."""
