"""Lives of Lua programs, driven by hand: no store, no runtime."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from everhold.core.budget import Budget
from everhold.core.journal import ProgramReply
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.core.session import Birth, Seed, SessionId
from everhold.core.status import Raised, Returned
from everhold.ports.program import Call
from everhold.programs.lua.execution import LuaExecution
from everhold.programs.lua.program import LuaProgram

BORN = 1_700_000_000.0


class Life:
    """One life. Each step is one second later; what it asked, said and came to is kept."""

    def __init__(
        self,
        program: str | Call[Any],
        ctx: dict[str, Any] | None = None,
        *,
        roots: Iterable[str | Path] = (),
        seeds: list[Seed] | None = None,
        budget: Budget | None = None,
        session_id: str = "s-1",
        **limits: Any,
    ) -> None:
        call = LuaProgram.text(program, ctx, roots=roots) if isinstance(program, str) else program
        assert isinstance(call.program, LuaProgram)
        birth = Birth(
            id=SessionId(session_id),
            program=call.program.ref,
            args=call.args,
            created_at=BORN,
            seeds=seeds or [Seed(0, "00ff")],
            budget=budget,
        )
        self.execution = LuaExecution(call.program, birth, Metrics(), **limits)
        self.n = -1
        self.open: dict[int, Query] = {}
        self.asked: list[Query] = []
        self.log: list[tuple[str, str, str]] = []
        self.record: dict[str, Any] = {}
        self.replies: list[ProgramReply] = []
        self.given: list[tuple[int, float, list[QueryAnswer], bool, str | None]] = []
        self.outcome: Any = None

    def step(self, *answers: QueryAnswer, cancel: str | None = None) -> ProgramReply:
        self.n += 1
        self.given.append((self.n, BORN + self.n, list(answers), False, cancel))
        with self.execution.entered():
            reply = self.execution.advance(*self.given[-1])
        for q in [*(answer.q for answer in answers), *reply.withdrawn]:
            self.open.pop(q, None)
        self.open |= {query.q: query for query in reply.asked}
        self.asked += reply.asked
        if reply.notes is not None:
            self.log += [(entry.level, entry.source, entry.message) for entry in reply.notes.log]
            self.record |= reply.notes.record
        self.outcome = reply.outcome
        self.replies.append(reply)
        return reply

    def prompts(self) -> list[str]:
        """What is asked of a model now."""
        return [query.prompt for query in self.open.values() if query.kind is Kind.LLM]

    def answer(self, prompt: str, value: Any) -> ProgramReply:
        """Answer the open question with this prompt."""
        return self.step(
            QueryAnswer(next(q for q, query in self.open.items() if query.prompt == prompt), value)
        )

    def finish(
        self, model: Callable[[str], Any] = lambda prompt: f"<{prompt}>", values: Any = None
    ) -> Any:
        """Answer everything, one pause at a time, and return what the program returns."""
        kept = {} if values is None else values
        self.step()
        while self.outcome is None:
            answers = []
            for query in list(self.open.values()):
                if query.kind is Kind.STATE:
                    answers.append(QueryAnswer(query.q, remembered(kept, query)))
                else:
                    answers.append(QueryAnswer(query.q, model(query.prompt)))
            assert answers, "the program waits for nothing"
            self.step(*answers)
        if isinstance(self.outcome, Raised):
            raise AssertionError(f"{self.outcome.error}\n{self.outcome.traceback}")
        assert isinstance(self.outcome, Returned)
        return self.outcome.value


def run(code: str, ctx: dict[str, Any] | None = None, **more: Any) -> Any:
    """What a program returns when everything it asks is answered with the prompt in angle
    brackets.
    """
    return Life(code, ctx, **more).finish()


def failure(code: str, ctx: dict[str, Any] | None = None, **more: Any) -> str:
    """What a program fails with."""
    life = Life(code, ctx, **more)
    life.step()
    while life.outcome is None:
        life.step(*[QueryAnswer(q, f"<{query.prompt}>") for q, query in life.open.items()])
    assert isinstance(life.outcome, Raised), life.outcome
    return life.outcome.error


def remembered(kept: dict[str, Any], query: Query) -> Any:
    """A durable value, as the drive answers."""
    verb, key, value = query.args["do"], query.name, query.args.get("value")
    found = kept.get(key)
    match verb:
        case "get":
            return found
        case "set" | "swap":
            kept[key] = value
            return None
        case "set_nx":
            kept.setdefault(key, value)
            return found is None
        case "delete":
            return kept.pop(key, None) is not None
        case "keys":
            return sorted(kept)
        case _:
            kept[key] = [(value[1] if found is None else found[0]) + value[0]]
            return kept[key][0]


def package(folder: Path, name: str, source: str, file: str = "init.lua") -> Path:
    """Put a package into a folder."""
    path = folder / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return folder / name
