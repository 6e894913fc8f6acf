"""Many answers that are handed over at once on replay come to the same as one after the other."""

from typing import Any

import pytest

from everhold.core.journal import Delivery
from everhold.core.query import QueryAnswer
from everhold.core.session import Seed
from everhold.core.status import Raised
from everhold.programs.lua import vm
from tests.unit.programs.lua.life import Life

STEPS = 40

PROGRAMS = {
    "chain": (
        'local told = "" for n = 1, 99 do told = alc.llm(n .. " after " .. told .. " at "'
        " .. alc.time()) end"
    ),
    "dice": 'for n = 1, 99 do alc.llm("throw " .. math.random(1000)) end',
    "output": (
        'for n = 1, 99 do alc.llm("n " .. n) if n % 5 == 0 then alc.log("info", "at " .. n) end end'
    ),
    "options": (
        'for n = 1, 99 do alc.llm("n " .. n, n % 4 == 0 and { system = "s" } or n % 3 =='
        " 0 and {} or nil) end"
    ),
    "parts": (
        'for n = 1, 99 do alc.llm("n " .. n) if n == 7 then local t = { 3, 1 }'
        " table.sort(t) end end"
    ),
    "batches": (
        'for n = 1, 99 do alc.llm("n " .. n) if n % 9 == 0 then alc.llm_batch({ "a", "b" }) end end'
    ),
    "caught": (
        'for n = 1, 99 do local ok, told = pcall(alc.llm, "n " .. n) alc.llm(tostring(ok)'
        " .. tostring(told)) end"
    ),
    "spoilt": (
        'select, table, next, type = nil, nil, nil, nil for n = 1, 99 do alc.llm("n " .. n) end'
    ),
    "unicode": 'for n = 1, 99 do alc.llm("ü" .. n .. "\\0") end',
}


def told(life: Life) -> list[Delivery]:
    """The journal of a life."""
    steps = zip(life.given, life.replies, strict=True)
    return [Delivery(n, at, answers, reply.asked) for (n, at, answers, *_), reply in steps]


def played(life: Life, steps: int = STEPS) -> list[Delivery]:
    """Answer all that is open, a step at a time; the thirteenth answer is an error. Returns the
    journal.
    """
    life.step()
    for n in range(steps):
        error = {"code": "no", "message": "said no"} if n == 12 and len(life.open) == 1 else None
        answers = [
            QueryAnswer(q, None if error else {"n": n} if n == 20 else f"told {n}", error)
            for q in life.open
        ]
        life.step(*answers)
        if life.outcome is not None:
            break
    return told(life)


def followed(life: Life, journal: list[Delivery]) -> tuple[list[int], list[Any]]:
    """Replay a journal: the places at which handing over ended, and what was asked there."""
    execution, place = life.execution, -1
    execution.replaying = True
    places, asked = [], []
    while place < len(journal) - 1:
        place, reply = execution.follow(journal, place + 1, len(journal) - 1)
        places.append(place)
        asked.append(reply.asked)
        if reply.outcome is not None or reply.asked != journal[place].asked:
            break
    execution.replaying = False
    return places, asked


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_leads_where_the_life_before_had_come(name: str) -> None:
    """Whatever is asked in between, and whatever is asked next, is the same."""
    life, again = Life(PROGRAMS[name]), Life(PROGRAMS[name])
    journal = played(life)
    places, asked = followed(again, journal)
    assert places[-1] == len(journal) - 1
    assert asked == [journal[place].asked for place in places]
    assert again.execution.asked_count == life.execution.asked_count
    if life.outcome is None:
        more = [QueryAnswer(q, "more") for q in life.open]
        again.n = life.n
        assert again.step(*more).asked == life.step(*more).asked


def test_most_answers_are_handed_over_at_once() -> None:
    """A replay of forty answers goes into Lua a few times."""
    program = 'for n = 1, 99 do alc.llm("n " .. n) end'
    life = Life(program)
    life.step()
    for n in range(STEPS):
        life.step(QueryAnswer(n, "told"))
    journal = told(life)
    assert followed(Life(program), journal)[0] == [0, 32, STEPS]


@pytest.mark.parametrize("at", [1, 2, 17, 31, 32, 33, STEPS])
@pytest.mark.parametrize(
    "other",
    [
        'alc.llm("other")',
        'alc.llm("n " .. n, { system = "s" })',
        'alc.llm_batch({ "a" })',
        'error("no")',
    ],
)
def test_a_changed_program_is_stopped_at_the_step_that_differs(at: int, other: str) -> None:
    """What came before is as recorded; what comes is told, not what was recorded."""
    program = 'for n = 0, 99 do if n == ctx.at then %s else alc.llm("n " .. n) end end'
    life = Life(program % other, {"at": -1})
    life.step()
    for n in range(STEPS):
        life.step(QueryAnswer(n, "told"))
    journal = told(life)
    places, asked = followed(Life(program % other, {"at": at}), journal)
    assert places[-1] == at
    assert asked[-1] != journal[at].asked


def test_dice_of_a_fork_fall_from_its_fork_point_on() -> None:
    """Not sooner and not later, wherever that is in what is handed over at once."""
    seeds = [Seed(0, "00ff"), Seed(10, "0abc")]
    life, again = Life(PROGRAMS["dice"], seeds=seeds), Life(PROGRAMS["dice"], seeds=seeds)
    life.step()
    for n in range(STEPS):
        life.step(QueryAnswer(n, "told"))
    journal = told(life)
    assert followed(again, journal)[0] == [0, 9, 10, STEPS]


def test_a_full_state_takes_one_answer_after_the_other() -> None:
    """What waits to be handed over takes no room from the program."""
    kept = 'local kept = {} for n = 1, 70 do kept[n] = string.rep("x", 10000) .. n end '
    program = kept + 'for n = 1, 99 do alc.llm("n " .. n) end return #kept'
    life, again = Life(program, memory=2**20), Life(program, memory=2**20)
    life.step()
    for n in range(STEPS):
        life.step(QueryAnswer(n, "y" * 10_000))
    journal = told(life)
    places, asked = followed(again, journal)
    assert (places[:5], places[-1]) == ([0, 1, 2, 3, 4], STEPS)
    assert asked == [journal[place].asked for place in places]


@pytest.mark.parametrize("piece", [20_000, 3000])
def test_a_state_that_fills_up_is_replayed_as_it_was(piece: int) -> None:
    """What it dropped is no reason to fail, and the room that it had above the limit it has
    again.
    """
    program = f"""local kept = {{}} for n = 1, 2100 do kept[n] = string.rep("x", 1000) .. n end
      for n = 1, 990000 // {piece} do kept[#kept + 1] = string.rep("y", {piece}) .. n alc.llm("n " .. n) end"""  # noqa: E501
    life, again = Life(program, memory=3 * 2**20), Life(program, memory=3 * 2**20)
    life.step()
    for n in range(990_000 // piece - 1):
        life.step(QueryAnswer(n, "told"))
    journal = told(life)
    places, asked = followed(again, journal)
    assert places[-1] == len(journal) - 1
    assert asked[-1] == journal[-1].asked != []


def test_the_limit_is_the_same_afterwards() -> None:
    """A program that wants too much after a replay is refused as before."""
    program = 'for n = 1, 20 do alc.llm("n " .. n) end return #string.rep("x", 3000000)'
    life, again = Life(program, memory=2 * 2**20), Life(program, memory=2 * 2**20)
    life.step()
    for n in range(19):
        life.step(QueryAnswer(n, "told"))
    assert followed(again, told(life))[0] == [0, 19]
    again.n = life.n
    ends = [one.step(QueryAnswer(19, "told")).outcome for one in (life, again)]
    assert ends[0] == ends[1]
    assert isinstance(ends[0], Raised)
    assert ends[0].error.endswith("not enough memory")


def test_all_of_it_needs_room() -> None:
    """Where there is none, nothing is handed over."""
    assert vm.LuaVm(memory=2**20).go_along(1.0, [0.0, b"x" * 2**21, b""]) == (0, ())


BUSY = "for n = 1, 3 do local x = 0 for i = 1, 1e6 do x = x + i % 7 end alc.llm('n ' .. n) end"


def test_a_step_that_did_pause_may_take_longer_on_replay() -> None:
    """What a worker had the time for, or a faster machine, is not lost elsewhere. What is new has
    the usual time.
    """
    life = Life(BUSY, cpu=20.0)
    life.step()
    life.step(QueryAnswer(0, "told"))
    journal = told(life)
    again = Life(BUSY, cpu=1e-4, again=20.0)
    places, asked = followed(again, journal)
    assert (places[-1], asked[-1]) == (1, journal[1].asked)
    again.n = life.n
    again.step(QueryAnswer(1, "told"))
    assert again.outcome.kind == "spinning"
