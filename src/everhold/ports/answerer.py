"""Answerers: objects that answer queries in this process, such as models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import Kind, Query, Usage
from everhold.errors import BadSetting

#: What happens to a model question that no model of this process can answer: it waits for another
#: process or a person, or it fails, and the program gets the error.
WAIT: Final = "wait"
FAIL: Final = "fail"


def check_on_unavailable(given: str | None, setting: str = "on_unavailable") -> str | None:
    """The value of `on_unavailable`; raises `BadSetting` for an unknown one."""
    if given not in (None, WAIT, FAIL):
        raise BadSetting(setting, f"{given!r} is not one of {WAIT!r} and {FAIL!r}")
    return given


class Answerer(ABC):
    """Answers queries in this process. Only `answer` is required.

    A plain async function of a query is an answerer too: `everhold.models.FunctionModel` wraps it.
    """

    #: The kinds of query that it answers.
    kinds: frozenset[Kind] = frozenset({Kind.LLM})
    #: What to do with questions that it cannot answer: "wait", "fail", or None for the runtime's
    #: setting.
    on_unavailable: str | None = None

    @abstractmethod
    async def answer(self, query: Query, session_id: str) -> Any:
        """Return the answer's value, or an `everhold.Answer` with usage.

        An exception is an answer too: the program sees an error. `NotAllowed`, `BadSetting`,
        `MissingExtra`, `ProviderMismatch`, `ProviderUnavailable` and `ProviderUnconfigured` say
        that it cannot answer: the query stays open with the reason, or fails (`on_unavailable`).
        """

    def takes(self, query: Query) -> bool:
        """Whether it answers this query, which has one of its kinds. Otherwise the query stays
        open.
        """
        return True

    def check_model(self, name: str) -> None:  # noqa: B027  every name is taken, by default
        """Raise if it would refuse every query that names this model, such as one of an agent."""

    def check(self) -> None:  # noqa: B027  nothing to check, by default
        """Raise if it cannot work in this process. A runtime calls it before it opens."""

    async def close(self) -> None:  # noqa: B027  nothing to close, by default
        """Close what it opened on the running event loop. A runtime calls it when it closes;
        `answer` may be called again later.
        """


class Answer(msgspec.Struct, frozen=True, gc=False):
    """An answer's value, and its usage if it is known."""

    value: JSON
    usage: Usage | None = None
