"""The rooms of `Store` together: what every store promises."""

from __future__ import annotations

from everhold.testing.conformance.attachment import AttachmentContract
from everhold.testing.conformance.claim import ClaimContract
from everhold.testing.conformance.commit import CommitContract
from everhold.testing.conformance.concurrency import ConcurrentCommitContract
from everhold.testing.conformance.duty import DutyContract
from everhold.testing.conformance.fork import DeleteContract, ForkContract
from everhold.testing.conformance.harness import OpenStore
from everhold.testing.conformance.inbox import InboxContract
from everhold.testing.conformance.intake import LetterContract, UnmovedContract, WorkerRowsContract
from everhold.testing.conformance.intake_lanes import EnqueueContract
from everhold.testing.conformance.lease import LeaseContract
from everhold.testing.conformance.reading import ListContract, LoadContract
from everhold.testing.conformance.settle import SettleContract
from everhold.testing.conformance.value import ValueContract

__all__ = ["OpenStore", "StoreContract"]


class StoreContract(
    CommitContract,
    ConcurrentCommitContract,
    LoadContract,
    ListContract,
    ForkContract,
    DeleteContract,
    InboxContract,
    LetterContract,
    UnmovedContract,
    WorkerRowsContract,
    ValueContract,
    AttachmentContract,
    LeaseContract,
    EnqueueContract,
    ClaimContract,
    SettleContract,
    DutyContract,
):
    """What every store promises."""
