"""The strategies survive what every program survives: restarts, crashes at every commit, answers in
any order.
"""

import random

import pytest

from everhold.core.status import Finished, Paused
from everhold.packages.strategies import NAMES, strategies, strategy
from everhold.testing import crash_everywhere
from tests.scenario.harness import opened

SAID = {
    "numbered list": "1. First way\n2. Second way\n3. Third way",
    "line VERDICT:": "The sum is off.\nVERDICT: REVISE",
    "line SCORE:": "Plausible.\nSCORE: 7",
    "line BETTER:": "It is right.\nBETTER: 1",
    "line CHOICE:": "CHOICE: 2",
}


def model(query):
    """Says what is asked for; which answer it gives depends only on the question."""
    for form, said in SAID.items():
        if form in query.prompt:
            return said
    return f"Because.\nANSWER: {len(query.prompt) % 7}"


@pytest.mark.parametrize("name", NAMES)
def test_a_crash_anywhere_changes_nothing(name):
    report = crash_everywhere(strategy(name).program(task="How many?"), answers=model)
    assert report.commits > 1 and report.result["answer"]


def test_every_strategy_replays(everhold):
    """The kit replays each of them when the test is over; here they also forget everything on the
    way.
    """
    for one in strategies():
        session = everhold.start(one.program(task="How many?"))
        while session.queries:
            everhold.restart()
            everhold.runtime.answer(session.queries[-1], model(session.queries[-1]))
        assert session.result["answer"]


@pytest.mark.parametrize("name", NAMES)
async def test_answers_may_come_in_any_order(name):
    """One answer at a time, the newest question first or any: the end is the same, dice
    included.
    """
    results = []
    for order in (0, 1, 2):
        dice = random.Random(order)
        async with opened() as runtime:
            status = await runtime.start(strategy(name).program(task="How many?"))
            while isinstance(status, Paused):
                query = dice.choice(status.queries)
                status = await runtime.answer(query, model(query))
                status = (
                    status
                    if isinstance(status, Finished)
                    else await runtime.status(status.session_id)
                )
            results.append(status.result["answer"])
    if name != "rank":  # whose pairs are drawn by each session's own dice
        assert len(set(results)) == 1
    assert all(results)


async def test_a_strategy_is_a_program_like_any_other(tmp_path):
    """It can be run inside another program, in a session of its own or in that one."""
    from everhold import program

    @program
    async def both(ctx, task: str) -> list[str]:
        inside = await ctx.run(strategy("cot").program(task=task, steps=1))
        apart = await ctx.spawn(strategy("reflect").program(task=task))
        return [inside.answer, apart.answer]

    async with opened(llm=model, replay=False) as runtime:
        result = await runtime.run(both(task="How many?"), wait=20)
    assert all(result) and len(result) == 2
