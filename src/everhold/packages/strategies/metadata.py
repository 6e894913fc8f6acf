"""The metadata of a strategy: its use, its parameters and its cost.

The cost is a function of the arguments. It counts *answers* (questions that are asked) and *rounds*
(waits for answers, if all questions of one moment are answered together).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter as Named
from typing import Annotated, Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.schema import schema_of
from everhold.ports.program import Program

TaskText = Annotated[
    str, msgspec.Meta(min_length=1, description="What is to be solved or written.")
]


class CostSpan(msgspec.Struct, frozen=True):
    """A number, or its bounds."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}–{self.most}"

    @property
    def plain(self) -> JSON:
        """As fronts show it: the number, or its bounds."""
        return self.most if self.least == self.most else {"min": self.least, "max": self.most}


class Estimate(msgspec.Struct, frozen=True):
    """The cost of a call."""

    answers: CostSpan
    rounds: CostSpan

    @classmethod
    def exactly(cls, answers: int, rounds: int) -> Estimate:
        return cls(CostSpan(answers, answers), CostSpan(rounds, rounds))

    @classmethod
    def between(cls, answers: tuple[int, int], rounds: tuple[int, int]) -> Estimate:
        return cls(CostSpan(*answers), CostSpan(*rounds))

    def __str__(self) -> str:
        return f"{_counted(self.answers, 'answer')} in {_counted(self.rounds, 'round')}"

    @property
    def plain(self) -> dict[str, JSON]:
        return {"answers": self.answers.plain, "rounds": self.rounds.plain}


class Paper(msgspec.Struct, frozen=True):
    """The paper that describes the method."""

    title: str
    authors: str
    year: int

    def __str__(self) -> str:
        return f"{self.authors}, “{self.title}”, {self.year}"


class StrategyParameter(msgspec.Struct, frozen=True):
    """One argument of a strategy."""

    name: str
    description: str
    schema: dict[str, JSON]
    required: bool
    default: JSON = None


class Strategy(msgspec.Struct, frozen=True):
    """A strategy: its program, and the facts for choosing it."""

    program: Program[Any, Any]
    summary: str
    use_when: str
    not_when: str
    papers: tuple[Paper, ...]
    formula: str  # the cost in words, by the names of the parameters
    cost: Callable[..., Estimate]  # takes every argument of the program by name

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.program.name

    @property
    def parameters(self) -> tuple[StrategyParameter, ...]:
        """The parameters of the program."""
        return tuple(self._parameter(named) for named in self.program.signature.parameters.values())

    def estimate(self, args: Mapping[str, JSON] | None = None) -> Estimate:
        """The cost of a call with these arguments; raises `BadArguments` as the call does."""
        given = {"task": "any", **(args or {})}
        bound = self.program.signature.bind(**self.program(**given).args)
        bound.apply_defaults()
        return self.cost(**bound.arguments)

    def _parameter(self, named: Named) -> StrategyParameter:
        schema = dict(schema_of(self.program.types[named.name]))
        schema.pop("default", None)
        description = str(schema.pop("description", ""))
        required = named.default is Named.empty
        return StrategyParameter(
            named.name, description, schema, required, None if required else named.default
        )


_ONE: Final = CostSpan(1, 1)


def _counted(span: CostSpan, noun: str) -> str:
    return f"{span} {noun}" if span == _ONE else f"{span} {noun}s"
