"""One session of a test: moved by one call, looked at, and spoken of in claims that say how it is
when they fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everhold.core.journal import describe_query
from everhold.core.query import MODEL_KINDS, Kind, Query
from everhold.core.status import Accepted, Finished, OpenQuery, Paused, Status
from everhold.models.script import compile_prompt_pattern

if TYPE_CHECKING:
    from everhold.testing.fixture import Kit


class Session:
    """One session of a test."""

    def __init__(self, kit: Kit, session_id: str) -> None:
        self._kit = kit
        self.session_id = session_id

    def __repr__(self) -> str:
        return f"<session {self.session_id}: {self.waits_for}>"

    # ---- moving it

    def answer(self, value: Any, to: str | None = None) -> Session:
        """Answer its open question, or the one that fits the pattern `to`; an exception answers
        with an error.
        """
        query = self._open(to)
        if isinstance(value, BaseException):
            return self._after(self._kit.runtime.answer(query, error=str(value)))
        return self._after(self._kit.runtime.answer(query, value))

    def approve(self, to: str | None = None) -> Session:
        """Say yes to its open approval."""
        return self._decide(True, to)

    def decline(self, to: str | None = None) -> Session:
        """Say no to its open approval."""
        return self._decide(False, to)

    def signal(self, name: str, value: Any = None) -> Session:
        """Send it a signal; it is kept until the program receives it."""
        return self._after(self._kit.runtime.signal(self.session_id, name, value))

    def cancel(self, reason: str = "") -> Session:
        return self._after(self._kit.runtime.cancel(self.session_id, reason))

    def retry(self) -> Session:
        return self._after(self._kit.runtime.retry(self.session_id))

    # ---- looking at it

    @property
    def status(self) -> Status:
        return self._kit.runtime.status(self.session_id)

    @property
    def state(self) -> str:
        return self.status.state

    @property
    def result(self) -> Any:
        """What it returned. Raises `Failed` or `Cancelled`, and fails the test if it has not
        ended.
        """
        status = self.status
        assert isinstance(status, Finished), (
            f"session {self.session_id} has not ended: {self.waits_for}"
        )
        return status.result

    @property
    def error(self) -> str | None:
        """What it failed with; None if it did not fail."""
        status = self.status
        return status.error if isinstance(status, Finished) else None

    @property
    def queries(self) -> tuple[OpenQuery, ...]:
        """Its open questions: somebody has to answer them."""
        status = self.status
        return status.queries if isinstance(status, Paused) else ()

    @property
    def questions(self) -> list[Query]:
        """All that it asked, of any kind, in order."""
        found: dict[int, Query] = {}
        for step in self._kit.runtime.steps(self.session_id):
            for query in step.asked:
                found.setdefault(query.q, query)
        return list(found.values())

    @property
    def asked(self) -> list[str]:
        """What it asked models, in words and in order."""
        return [query.prompt for query in self.questions if query.kind in MODEL_KINDS]

    @property
    def waits_for(self) -> str:
        """Where it stands, in words."""
        status = self.status
        if isinstance(status, Finished):
            return status.state if status.error is None else f"failed: {status.error}"
        questions = [f"it waits for {describe_query(query.query)}" for query in self.queries]
        words = () if isinstance(status, Accepted) else status.waiting_for
        return "; ".join([*questions, *(f"it waits for {word}" for word in words)]) or status.state

    # ---- saying what should be so

    def assert_asked(self, pattern: str, times: int | None = None) -> None:
        """It asked this, in words or as a pattern; with `times`, so often."""
        __tracebackhide__ = True
        found = len(self._matching(pattern))
        if found == 0 if times is None else found != times:
            wanted = "did not ask" if times is None else f"asked {found} times, not {times},"
            raise AssertionError(f"it {wanted} {pattern!r}. It asked:\n{self._told()}")

    def assert_not_asked(self, pattern: str) -> None:
        __tracebackhide__ = True
        if found := self._matching(pattern):
            raise AssertionError(f"it asked {pattern!r}: {describe_query(found[0])}")

    def assert_waits_for(self, pattern: str) -> None:
        """A question that fits is open."""
        __tracebackhide__ = True
        matches = _fits(pattern)
        if not any(matches(query.query) for query in self.queries):
            raise AssertionError(f"it does not wait for {pattern!r}: {self.waits_for}")

    def assert_returned(self, value: Any) -> None:
        __tracebackhide__ = True
        status = self.status
        if (
            not isinstance(status, Finished)
            or status.error is not None
            or status.state != "completed"
        ):
            raise AssertionError(f"it has returned nothing: {self.waits_for}")
        assert status.result == value, f"it returned {status.result!r}, not {value!r}"

    def assert_failed(self, pattern: str = "*") -> None:
        """It failed, with an error that fits."""
        __tracebackhide__ = True
        error = self.error
        if error is None or not compile_prompt_pattern(pattern)(error):
            raise AssertionError(f"it did not fail with {pattern!r}: {self.waits_for}")

    def _decide(self, value: bool, to: str | None) -> Session:
        return self._after(self._kit.runtime.answer(self._open(to, Kind.APPROVAL), value))

    def _open(self, to: str | None, kind: Kind | None = None) -> OpenQuery:
        matches = _fits(to)
        found = [
            query for query in self.queries if kind in (None, query.kind) and matches(query.query)
        ]
        if len(found) == 1:
            return found[0]
        what = f"no open {kind or 'question'}" if not found else f"{len(found)} open questions"
        raise AssertionError(
            f"there is {what}{'' if to is None else f' like {to!r}'}: {self.waits_for}"
        )

    def _matching(self, pattern: str) -> list[Query]:
        matches = _fits(pattern)
        return [query for query in self.questions if matches(query)]

    def _told(self) -> str:
        return (
            "\n".join(f"  {query.id} {describe_query(query)}" for query in self.questions)
            or "  nothing"
        )

    def _after(self, status: Status) -> Session:
        self._kit._settle()
        return self


def _fits(pattern: str | None) -> Any:
    """Whether a question's prompt or name fits a pattern, as in `everhold.ScriptModel`."""
    if pattern is None:
        return lambda query: True
    matches = compile_prompt_pattern(pattern)
    return lambda query: bool(matches(query.prompt or query.name))
