"""The root and the branches of the tree of errors; the tree is drawn in `errors`, where all of them are taken from."""

from __future__ import annotations

from typing import ClassVar


class EverholdError(Exception):
    """Root of the tree. Catch this to catch everything raised on purpose."""

    code: ClassVar[str] = ""
    hint: str = ""

    def __init__(self, message: str) -> None:
        if not self.code:
            raise TypeError(f"{type(self).__name__} is a branch; raise one of its leaves")
        super().__init__(message)


class UsageError(EverholdError):
    """The caller asked for what does not exist or does not fit."""


class StateError(EverholdError):
    """A fair request at the wrong moment."""


class StoreError(EverholdError):
    """The store could not keep its promise."""


class ProgramError(EverholdError):
    """The program broke a rule of being replayable."""
