"""Models that are simulated, with an accuracy that is known, and a host that answers everything
that is open at once.

A simulated model reads the question as a real one would: it knows the task, the form that is asked
for and the material between tags, and nothing else. What it says is right with the probabilities
that it was made with, from a seed.
"""

import asyncio
import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from everhold.core.status import Finished, Paused
from everhold.stores.memory import MemoryStore
from everhold.testing.answers import StandIns
from everhold.testing.runtime import RuntimeForTests, StillClock

ENDLESS = 500  # rounds after which a strategy counts as endless


@dataclass(frozen=True)
class Played:
    """One session: how it ended, and what it cost."""

    result: Any
    answers: int
    rounds: int
    widths: list[int]  # how many questions were open in each round
    prompts: list[str]


def play(calls: Iterable[Any], model: Callable[[str], str]) -> list[Played]:
    """Run sessions one after another, in memory, on dice that fall the same in every run."""
    return asyncio.run(_play(list(calls), model))


async def _play(calls: list[Any], model: Callable[[str], str]) -> list[Played]:
    async with RuntimeForTests(MemoryStore(), StillClock(), StandIns()) as house:
        return [await _played(house, call, model) for call in calls]


async def _played(house: RuntimeForTests, call: Any, model: Callable[[str], str]) -> Played:
    status = await house.start(call)
    widths: list[int] = []
    prompts: list[str] = []
    while isinstance(status, Paused) and len(widths) < ENDLESS:
        widths.append(len(status.queries))
        prompts += [query.prompt for query in status.queries]
        status = await house.answer_many(
            status.session_id, {query.id: model(query.prompt) for query in status.queries}
        )
    assert isinstance(status, Finished), status
    assert status.outcome.__class__.__name__ == "Returned", status
    return Played(status.result, len(prompts), len(widths), widths, prompts)


def parts(prompt: str, tag: str) -> list[str]:
    """What stands between these tags."""
    return [
        found.strip()
        for found in re.findall(rf"<{tag}(?: n=\"\d+\")?>\n(.*?)\n</{tag}>", prompt, re.DOTALL)
    ]


def task_of(prompt: str) -> str:
    return parts(prompt, "task")[-1]


def better(right: int, than: int, trials: int, sigmas: float = 3.0) -> bool:
    """Whether one count of right answers is above another by more than chance explains."""
    one, other = right / trials, than / trials
    pooled = (one + other) / 2
    return one - other > sigmas * math.sqrt(2 * pooled * (1 - pooled) / trials)


def truth(task: str) -> int:
    """The right answer to the tasks that `tasks` makes."""
    number = int(re.findall(r"\d+", task)[0])
    return (number * 37 + 11) % 1000


def tasks(trials: int) -> list[str]:
    return [f"What is the value of item {number}?" for number in range(trials)]


class Model:
    """Answers a task with right probability `right`, and tells right from wrong with probability
    `judge`.
    """

    def __init__(self, *, right: float, judge: float = 0.5, seed: int = 1) -> None:
        self.right, self.judge = right, judge
        self.dice = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    def attempt(self, task: str, right: float | None = None) -> int:
        """An attempt; wrong ones differ from each other."""
        if self.chance(self.right if right is None else right):
            return truth(task)
        return 1000 + self.dice.randrange(100_000)

    def sees(self, fact: bool) -> bool:
        """A judgement of something that is so or not."""
        return fact if self.chance(self.judge) else not fact

    def single(self, trials: int) -> int:
        """How many of so many tasks it gets right at the first go."""
        return sum(self.attempt(task) == truth(task) for task in tasks(trials))


def count(played: list[Played], trials: int) -> int:
    """How many sessions ended with the right answer."""
    return sum(
        str(truth(task)) == one.result["answer"]
        for task, one in zip(tasks(trials), played, strict=True)
    )
