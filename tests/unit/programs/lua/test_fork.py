"""alc.fork: children in states of their own, in the same session."""

from pathlib import Path

import pytest

from everhold.core.budget import Budget
from everhold.core.query import QueryAnswer
from everhold.core.status import Raised
from tests.unit.programs.lua.life import Life, package

ASKS = """local M = {}
function M.run(ctx)
  ctx.result = alc.llm(%r .. ' ' .. ctx.task)
  ctx.result = ctx.result .. alc.llm(%r .. ' again')
  return ctx
end
return M"""
DEEP = "return {run = function() local v = 'x' for i = 1, %d do v = {v} end return v end}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("one", "two", "the-third"):
        package(tmp_path, name, ASKS % (name, name))
    package(
        tmp_path, "fails", "return {run = function(ctx) alc.llm('doomed') error('it broke', 0) end}"
    )
    package(tmp_path, "quick", "return {run = function(ctx) return ctx.task .. '!' end}")
    package(
        tmp_path,
        "nested",
        "return {run = function(ctx) return alc.fork({'one', 'quick'}, ctx) end}",
    )
    return tmp_path


def test_the_questions_of_all_children_are_asked_together(root: Path) -> None:
    life = Life("return alc.fork({'one', 'two', 'the-third'}, {task = 'x'})", roots=[root])
    asked = life.step().asked
    assert [(query.prompt, query.key) for query in asked] == [
        ("one x", "0.0:0"),
        ("two x", "0.1:0"),
        ("the-third x", "0.2:0"),
    ]


def test_who_has_his_answer_goes_on_whatever_the_others_wait_for(root: Path) -> None:
    life = Life("return alc.fork({'one', 'two'}, {task = 'x'})", roots=[root])
    life.step()
    assert [query.prompt for query in life.answer("two x", "2").asked] == ["two again"]
    assert life.answer("two again", "2").asked == []
    life.answer("one x", "1")
    life.answer("one again", "1")
    assert life.outcome.value == [
        {"strategy": "one", "ok": True, "result": {"task": "x", "result": "11"}},
        {"strategy": "two", "ok": True, "result": {"task": "x", "result": "22"}},
    ]


def test_a_failure_is_a_result(root: Path) -> None:
    life = Life("return alc.fork({'fails', 'quick', 'missing'}, {task = 'x'})", roots=[root])
    failed, quick, missing = life.finish()
    assert failed == {"strategy": "fails", "ok": False, "error": "it broke"}
    assert quick == {"strategy": "quick", "ok": True, "result": "x!"}
    assert missing["error"].startswith("module 'missing' not found")


@pytest.mark.parametrize("word", ["abort", "fail"])
def test_a_failure_may_end_the_others(root: Path, word: str) -> None:
    code = (
        f"local ok, e = pcall(alc.fork, {{'one', 'fails'}}, {{task = 'x'}}, {{on_error ="
        f" '{word}'}}) alc.llm(e)"
    )
    life = Life(code, roots=[root])
    life.step()
    reply = life.answer("doomed", "")
    assert reply.withdrawn == [0]
    assert life.prompts() == ["alc.fork: 'fails' failed: it broke"]


def test_forks_in_forks(root: Path) -> None:
    life = Life("return alc.fork({'nested', 'one'}, {task = 'x'})", roots=[root])
    assert {query.key for query in life.step().asked} == {"0.0.0:0", "0.1:0"}
    life.answer("one x", "a")
    while life.outcome is None:
        life.step(QueryAnswer(next(iter(life.open)), "b"))
    inner = life.outcome.value[0]["result"]
    assert [entry["strategy"] for entry in inner] == ["one", "quick"]


def test_a_second_fork_has_other_paths(root: Path) -> None:
    life = Life(
        "alc.fork({'quick'}, {task = 'x'}) return alc.fork({'one'}, {task = 'x'})", roots=[root]
    )
    assert [query.key for query in life.step().asked] == ["0.1:0"]


def test_children_share_nothing_but_what_they_are_given(root: Path) -> None:
    package(
        root,
        "spoils",
        "shared = 'mine' return {run = function(ctx) ctx.task = shared return ctx.task end}",
    )
    code = (
        "local c = {task = 'x'} local r = alc.fork({'spoils', 'spoils'}, c) return {c.task,"
        " shared == nil, r[2].result}"
    )
    assert Life(code, roots=[root]).finish() == ["x", True, "mine"]


def test_each_child_has_durable_values_of_its_own_in_each_session(root: Path) -> None:
    package(root, "keeps", "return {run = function(ctx) return alc.state.get('k') end}")
    spaces = set()
    for session_id in ("s-1", "s-2"):
        life = Life("return alc.fork({'keeps', 'keeps'}, {})", roots=[root], session_id=session_id)
        spaces |= {query.args["in"] for query in life.step().asked}
    assert spaces == {"fork-s-1-0.0", "fork-s-1-0.1", "fork-s-2-0.0", "fork-s-2-0.1"}


def test_children_spend_their_parents_budget(root: Path) -> None:
    code = "local r = alc.fork({'one', 'two'}, {task = 'x'}) return {r[1].ok, r[2].ok, r[2].error}"
    life = Life(code, roots=[root], budget=Budget(max_llm_calls=1))
    reply = life.step()
    assert [query.prompt for query in reply.asked] == ["one x"]
    life.execution.meter.llm_calls = 1  # as the drive counts
    life.answer("one x", "1")
    assert life.outcome.value == [
        False,
        False,
        "budget_exceeded: max_llm_calls (1) reached: 1 used",
    ]


def test_what_children_say_and_record_is_not_lost(root: Path) -> None:
    package(
        root,
        "tells",
        "return {run = function(ctx) print('here') alc.stats.record('n', 3) alc.progress(1, 2,"
        " 'p') end}",
    )
    life = Life("return alc.fork({'tells', 'quick', 'tells'}, {task = 'x'})", roots=[root])
    first, quick, third = life.finish()
    assert (first["stats"], third["stats"]) == ({"n": 3}, {"n": 3})
    assert "stats" not in quick
    assert life.record == {"tells#1/n": 3, "tells#3/n": 3}
    assert life.log == [
        ("info", "alc.lua.print tells#1", "here"),
        ("info", "alc.lua.print tells#3", "here"),
    ]


def test_too_many_children_are_refused(root: Path) -> None:
    code = (
        "local t = {} for i = 1, 64 do t[i] = 'one' end return {pcall(alc.fork, t, {task = 'x'})}"
    )
    assert Life(code, roots=[root]).finish() == [False, "alc.fork: more than 64 programs at once"]


def test_a_fork_bomb_ends(tmp_path: Path) -> None:
    package(
        tmp_path, "bomb", "return {run = function(ctx) return alc.fork({'bomb', 'bomb'}, ctx) end}"
    )
    life = Life("return alc.fork({'bomb'}, {})", roots=[tmp_path])
    life.step()
    assert life.outcome is not None


def test_children_together_have_the_time_of_one_advance(tmp_path: Path) -> None:
    package(tmp_path, "spins", "return {run = function() while true do end end}")
    life = Life("return alc.fork({'spins', 'spins'}, {})", roots=[tmp_path], cpu=0.2)
    life.step()
    assert isinstance(life.outcome, Raised)
    assert life.outcome.kind == "spinning"


def test_forks_one_after_the_other_have_the_time_of_one_advance(root: Path) -> None:
    """Each of them is short, and there is no end of them."""
    life = Life("while true do pcall(alc.fork, {'quick'}, {task = 'x'}) end", roots=[root], cpu=0.1)
    life.step()
    assert isinstance(life.outcome, Raised)
    assert life.outcome.kind == "spinning"


FORGED = """local reads = 0
return setmetatable({}, {
  __len = function() return 1 end,
  __index = function(_, i)
    reads = reads + 1
    return reads == 1 and 'quick' or reads > 2 and {decode = function() return 'quick' end} or nil
  end,
})"""


@pytest.mark.parametrize(
    "names",
    [
        "{'quick', nil, {}}",
        "{'quick', nil, print}",
        "{'quick', nil, 'quick'}",
        "{'quick', 1}",
        "{{}}",
    ],
)
def test_what_is_no_name_never_leaves_the_state(root: Path, names: str) -> None:
    """Behind a hole neither."""
    life = Life(f"return {{pcall(alc.fork, {names}, {{task = 'x'}})}}", roots=[root])
    ok, words = life.finish()
    assert not ok
    assert words.startswith("alc.fork: invalid strategy name '")


def test_a_list_that_says_something_else_each_time_is_read_once(root: Path) -> None:
    code = f"local names = (function() {FORGED} end)() return alc.fork(names, {{task = 'x'}})"
    assert Life(code, roots=[root]).finish() == [{"ok": True, "result": "x!", "strategy": "quick"}]


def test_a_cancel_reaches_every_strand(root: Path) -> None:
    package(
        root,
        "cleans",
        "return {run = function() local ok, e = pcall(alc.llm, 'a') print(e) print(select(2,"
        " pcall(alc.llm, 'b'))) end}",
    )
    life = Life("alc.fork({'cleans', 'cleans'}, {}) print('parent')", roots=[root])
    life.step()
    life.step(cancel="enough")
    assert [line[2] for line in life.log] == [
        "cancelled: enough",
        "alc.llm after the session was cancelled",
        "cancelled: enough",
        "alc.llm after the session was cancelled",
        "parent",
    ]
    assert life.outcome.reason == "enough"


def test_a_fork_comes_back_by_replay(root: Path) -> None:
    life = Life("return alc.fork({'one', 'nested', 'two'}, {task = 'x'})", roots=[root])
    life.step()
    while life.outcome is None:
        life.step(QueryAnswer(max(life.open), f"a{life.n}"))
    again = Life("return alc.fork({'one', 'nested', 'two'}, {task = 'x'})", roots=[root])
    again.execution.replaying = True
    replies = [again.execution.advance(*given) for given in life.given]
    assert [reply.asked for reply in replies] == [reply.asked for reply in life.replies]
    assert replies[-1].outcome == life.outcome


@pytest.mark.parametrize("levels", [126, 127, 128])
def test_a_child_may_return_what_any_program_may_return(root: Path, levels: int) -> None:
    """As deep as JSON goes here; what a fork puts around it does not count."""
    package(root, "deep", DEEP % levels)
    life = Life("return alc.fork({'deep'}, {})[1].result", roots=[root])
    value, found = life.finish(), 0
    while isinstance(value, list):
        (value,), found = value, found + 1
    assert (found, value) == (levels, "x")


def test_a_child_that_returns_what_is_too_deep_fails_and_not_its_parent(root: Path) -> None:
    package(root, "deep", DEEP % 129)
    (result,) = Life("return alc.fork({'deep'}, {})", roots=[root]).finish()
    assert result["ok"] is False and "is nested deeper than 128 levels" in result["error"]


def test_what_a_child_records_may_be_as_deep(root: Path) -> None:
    package(
        root,
        "deep",
        "return {run = function() local v = 'x' for i = 1, 128 do v = {v} end"
        " alc.stats.record('v', v) end}",
    )
    (result,) = Life("return {(next(alc.fork({'deep'}, {})[1].stats))}", roots=[root]).finish()
    assert result == "v"
