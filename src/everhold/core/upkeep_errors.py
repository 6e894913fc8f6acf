"""What goes wrong where a house is kept: messages of others, and letting go. `core.errors` has the whole tree."""

from __future__ import annotations

from typing import Any

from everhold.core.branches import StoreError, UsageError


class BadSignature(UsageError):
    code = "bad_signature"
    hint = "Drop the message: it is too old, was changed on its way, or comes from somebody else."

    def __init__(self, why: str) -> None:
        super().__init__(f"the message is not believed: {why}")
        self.why = why


class SweepFailed(StoreError):
    code = "sweep_failed"
    hint = "What was deleted until then stays deleted, and nothing else was. Mend the cause and sweep again."

    def __init__(self, cause: str, deleted: int, report: Any = None) -> None:
        super().__init__(f"sweeping stopped after {deleted} deleted: {cause}")
        self.cause, self.deleted, self.report = cause, deleted, report
