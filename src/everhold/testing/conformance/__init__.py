"""The contracts of stores and movers, as tests that anyone can run.

    from everhold.testing.conformance import DurableStoreContract

    class TestMyStore(DurableStoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "db")

`open_store` is a fixture that returns a function without arguments. Each call makes a store that is
not open yet. For a durable store, all calls in one test open the same data, as two processes would.

`StoreContract` tests the port `Store`. `DurableStoreContract` adds what holds when the process may
die. `MaintenanceContract` tests the port `Maintenance`, for a store that has it: `class
TestMyStore(DurableStoreContract, MaintenanceContract)`. `MoverContract` tests a mover; its fixture
`open_fleet` makes a `Fleet`. `EnvelopeAdapterContract` tests an adapter for fluers' envelopes; its
fixture is `open_adapter`. There are no flags: the base classes of a test class are its claim.

The suite needs pytest and no plugin. `factories` makes sessions without a runtime. `machine`, which
needs Hypothesis, compares two stores.
"""

import pytest

_MODULES = (
    "attachment",
    "claim",
    "commit",
    "contract",
    "duty",
    "envelope",
    "factories",
    "fork",
    "harness",
    "intake",
    "lease",
    "machine",
    "maintenance",
    "mover_accept",
    "mover_family",
    "mover_fault",
    "mover_fleet",
    "mover_programs",
    "mover_time",
    "reading",
    "settle",
    "unmoved",
    "value",
)
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))

from everhold.testing.conformance.contract import (  # noqa: E402
    DurableStoreContract,
    MoverContract,
    OpenFleet,
    OpenStore,
    StoreContract,
)
from everhold.testing.conformance.envelope import (  # noqa: E402
    EnvelopeAdapterContract,
    OpenAdapter,
)
from everhold.testing.conformance.maintenance import MaintenanceContract  # noqa: E402
from everhold.testing.conformance.mover_fleet import Fleet, WorkerFleet  # noqa: E402

__all__ = [
    "DurableStoreContract",
    "EnvelopeAdapterContract",
    "Fleet",
    "MaintenanceContract",
    "MoverContract",
    "OpenAdapter",
    "OpenFleet",
    "OpenStore",
    "StoreContract",
    "WorkerFleet",
]
