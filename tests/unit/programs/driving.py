"""Programs driven by hand: no store, no clock, no runtime. What is handed over and what comes back
is kept.
"""

from collections.abc import Callable
from typing import Any

from everhold.core.journal import Delivery, DeliveryNotes, ProgramReply
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.core.session import Birth, Seed, SessionId
from everhold.core.status import Raised, Returned
from everhold.ports.program import Program
from everhold.programs.python.execution import PythonExecution

SEED = "5eed0f1a57ab1e00"


def birth(args: dict[str, Any] | None = None, *seeds: Seed) -> Birth:
    return Birth(
        id=SessionId("s-1"),
        program="tests:program",
        args=args or {},
        created_at=1000.0,
        seeds=list(seeds) or [Seed(0, SEED)],
    )


class Life:
    """One life of a program, and its journal."""

    def __init__(self, body: Any, born: Birth | None = None, **args: Any) -> None:
        self.program = (
            body
            if isinstance(body, Program)
            else Program(body, name=body.__name__, version=1, strict=False)
        )
        self.birth = born or birth(args)
        self.execution = PythonExecution(self.program, self.birth, Metrics())
        self.journal: list[Delivery] = []
        self.open: dict[int, Query] = {}
        self.at = 1000.0
        self.due: float | None = None
        self.last = ProgramReply([], [], None, None, None)

    def go(
        self, *answers: QueryAnswer, fired: bool = False, cancel: str | None = None
    ) -> ProgramReply:
        """Hand over one delivery; keeps it, and returns what the program said."""
        n = len(self.journal)
        with self.execution.entered():
            reply = self.execution.advance(n, self.at, list(answers), fired, cancel)
        for q in [answer.q for answer in answers] + reply.withdrawn:
            self.open.pop(q, None)
        self.open.update({query.q: query for query in reply.asked})
        self.due = reply.due
        notes = reply.notes or DeliveryNotes()
        notes.fired, notes.cancel, notes.withdrawn, notes.outcome = (
            fired,
            cancel,
            reply.withdrawn,
            reply.outcome,
        )
        self.journal.append(Delivery(n, self.at, list(answers), reply.asked, notes))
        self.last = reply
        return reply

    def answer(self, prompt: str, value: Any = None) -> ProgramReply:
        """Answer the open query with these words."""
        return self.go(
            QueryAnswer(self.named(prompt), value if value is not None else prompt.upper())
        )

    def named(self, prompt: str) -> int:
        return next(q for q, query in self.open.items() if prompt in (query.prompt, query.name))

    def fire(self) -> ProgramReply:
        """Let the earliest timer be due."""
        assert self.due is not None
        self.at = max(self.at, self.due)
        return self.go(fired=True)

    def finish(self, pick: Callable[[list[int]], int] = min) -> Any:
        """Answer one question to a model at a time, in capitals; fire timers when none is open; to
        the end.
        """
        reply = self.last if self.journal else self.go()
        while reply.outcome is None:
            if models := [q for q, query in self.open.items() if query.kind is Kind.LLM]:
                q = pick(models)
                self.at += 1
                reply = self.go(QueryAnswer(q, self.open[q].prompt.upper()))
            else:
                reply = self.fire()
        return result(reply)

    @property
    def asked(self) -> list[str]:
        """Keys and words of everything asked, in the order asked."""
        return [
            f"{query.key} {query.prompt or query.name}".strip()
            for step in self.journal
            for query in step.asked
        ]

    @property
    def keys(self) -> list[str]:
        return [query.key for step in self.journal for query in step.asked]

    def again(self) -> "Life":
        """The same journal handed to a new life of the program."""
        other = Life(self.program, self.birth)
        other.execution.replaying = True
        for step in self.journal:
            other.at = step.at
            other.execution.recorded_versions = step.notes.versions if step.notes else {}
            notes = step.notes or DeliveryNotes()
            other.go(*step.answers, fired=notes.fired, cancel=notes.cancel)
        other.execution.replaying = False
        return other

    def drop(self) -> None:
        self.execution.drop()


def result(reply: ProgramReply) -> Any:
    """What the program returned; fails the test if it raised."""
    assert isinstance(reply.outcome, Returned), reply.outcome
    return reply.outcome.value


def failure(reply: ProgramReply) -> Raised:
    assert isinstance(reply.outcome, Raised), reply.outcome
    return reply.outcome


def said(life: Life) -> list[tuple[list[Query], list[int], Any]]:
    """What must be the same on replay: what was asked and withdrawn, and the end."""
    return [
        (step.asked, step.notes.withdrawn, step.notes.outcome)
        for step in life.journal
        if step.notes is not None
    ]
