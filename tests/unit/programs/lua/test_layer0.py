"""Layer 0 of alc, function by function."""

# ruff: noqa: E501

import asyncio

import pytest

from everhold.core.budget import Budget
from everhold.core.query import Kind, QueryAnswer
from everhold.engine.durable_values import DurableValues
from everhold.errors import BadValue
from everhold.programs.lua.vm import LuaVm, make_vm_opening
from everhold.stores.memory import MemoryStore
from tests.unit.programs.lua.life import BORN, Life, failure, run

# ---- llm


def test_a_prompt_and_its_options_become_a_question() -> None:
    life = Life(
        "return alc.llm('p', {system = 's', max_tokens = 7, grounded = true, underspecified = 1,"
        " model = 'm', stop = {'a'}})"
    )
    query = life.step().asked[0]
    assert (query.prompt, query.system, query.max_tokens) == ("p", "s", 7)
    assert (query.grounded, query.underspecified) == (True, True)
    assert query.options == {"model": "m", "stop": ["a"]}


LENIENT = [
    ("nil", (None, 1024, False)),
    ("{}", (None, 1024, False)),
    ("alc.null", (None, 1024, False)),
    ("{system = {}, max_tokens = 'many', grounded = false}", (None, 1024, False)),
    ("{system = 5, max_tokens = '12'}", ("5", 12, False)),
    ("{system = alc.null, max_tokens = alc.null, grounded = alc.null}", (None, 1024, False)),
    ("{max_tokens = -1}", (None, 1024, False)),
    ("{max_tokens = 1.5}", (None, 1024, False)),
    ("{max_tokens = 100.0}", (None, 100, False)),
    ("{max_tokens = 2^40}", (None, 1024, False)),
]


@pytest.mark.parametrize(("opts", "read"), LENIENT)
def test_an_option_that_is_not_what_it_should_be_counts_as_not_given(
    opts: str, read: tuple[object, ...]
) -> None:
    query = Life(f"alc.llm('p', {opts})").step().asked[0]
    assert (query.system, query.max_tokens, query.grounded) == read
    assert query.options is None


@pytest.mark.parametrize(
    "option",
    [
        "f = print",
        "co = coroutine.create(print)",
        "t = {print}",
        "loop = LOOP",
        "text = '\\xff'",
        "['\\xff'] = 1",
    ],
)
@pytest.mark.parametrize("ask", ["alc.llm('p', %s)", "alc.llm_batch({%s})", "alc.cache('p', %s)"])
def test_an_option_that_json_cannot_hold_is_the_programs_own(ask: str, option: str) -> None:
    """Packages hand over callbacks and the like: what nobody outside can be told is left out, and
    the rest is told.
    """
    opts = "{prompt = 'p', model = 'm', max_tokens = 5, off = false, " + option + "}"
    query = Life("LOOP = {} LOOP.loop = LOOP " + ask % opts).step().asked[0]
    assert (query.prompt, query.max_tokens, query.options) == ("p", 5, {"model": "m", "off": False})


def test_an_option_that_json_cannot_hold_may_be_the_only_one() -> None:
    assert Life("alc.llm('p', {f = print})").step().asked[0].options is None


def test_a_number_is_a_prompt() -> None:
    assert Life("alc.llm(42)").step().asked[0].prompt == "42"


WRONG = [
    ("alc.llm()", "alc.llm: prompt must be a string, got nil"),
    ("alc.llm({})", "alc.llm: prompt must be a string, got table"),
    ("alc.llm(alc.null)", "alc.llm: prompt must be a string, got null"),
    ("alc.llm('\\xff')", "alc.llm: prompt is not valid UTF-8 (byte 1)"),
    ("alc.llm('x', {system = '\\xff'})", "alc.llm: system is not valid UTF-8"),
    ("alc.llm('x', 'y')", "alc.llm: opts must be a table, got string"),
    ("alc.llm_batch({})", "alc.llm_batch: items is empty"),
    (
        "local t = {} for i = 1, 50001 do t[i] = 'q' end alc.llm_batch(t)",
        "alc.llm_batch: 50001 items, and no more than 50000",
    ),
    (
        "alc.llm_batch(setmetatable({'a'}, {__len = function() return 1.5 end}))",
        "alc.llm_batch: items is empty",
    ),
    ("alc.llm_batch()", "alc.llm_batch: items must be an array, got nil"),
    ("alc.llm_batch({{}})", "alc.llm_batch: prompt of item 1 must be a string, got nil"),
    (
        "alc.llm_batch({{prompt = 'a'}, {prompt = {}}})",
        "alc.llm_batch: prompt of item 2 must be a string, got table",
    ),
    ("alc.log('info')", "alc.log: message must be a string, got nil"),
    ("alc.log({}, 'x')", "alc.log: level must be a string, got table"),
    ("alc.progress('x', 1)", "alc.progress: step and total must be whole numbers from 0"),
    ("alc.progress(-1, 1)", "alc.progress: step and total must be whole numbers from 0"),
    ("alc.stats.record({}, 1)", "alc.stats.record: key must be a string, got table"),
    ("alc.stats.record('k', print)", "alc.stats.record: 'k' is a function, which JSON cannot hold"),
    ("alc.state.get()", "alc.state.get: key must be a string, got nil"),
    ("alc.state.get({})", "alc.state.get: key must be a string, got table"),
    ("alc.state.set('k', print)", "state 'k'[1] is a function, which JSON cannot hold"),
    ("alc.state.incr('k', 'x')", "alc.state.incr: delta and default must be numbers"),
    ("alc.fork({}, {})", "alc.fork: name at least one package to run"),
    ("alc.fork('cot', {})", "alc.fork: name at least one package to run"),
    ("alc.fork({'../x'}, {})", "alc.fork: invalid strategy name '../x'"),
    ("alc.fork({'a..b'}, {})", "alc.fork: invalid strategy name 'a..b'"),
    ("alc.fork({1}, {})", "alc.fork: invalid strategy name '1'"),
    ("alc.fork({'x'}, {f = print})", "alc.fork: ctx.f is a function, which JSON cannot hold"),
    ("require()", "require: name must be a string, got nil"),
    ("require('no.such')", "module 'no.such' not found:"),
    ("require('../../etc/passwd')", "not found:"),
    ("alc.eval({}, 'x')", "alc.eval"),
]


@pytest.mark.parametrize(("code", "words"), WRONG)
def test_what_is_wrong_is_said(code: str, words: str) -> None:
    assert words in failure(code)


@pytest.mark.parametrize(("code", "words"), WRONG)
def test_and_can_be_caught(code: str, words: str) -> None:
    assert words in run(f"local ok, e = pcall(function() {code} end) assert(not ok) return e")


def test_a_mistake_names_the_line_of_the_program() -> None:
    assert failure("local x = 1\nlocal y = alc.llm()").startswith("code:2: ")


def test_an_answer_is_always_text() -> None:
    life = Life("local a = alc.llm('a') return {a, type(a)}")
    life.step()
    life.step(QueryAnswer(0, {"x": [1, None]}))
    assert life.outcome.value == ['{"x":[1,null]}', "string"]


# ---- llm_batch


def test_a_batch_is_one_pause_and_keeps_its_order() -> None:
    life = Life(
        "return alc.llm_batch({{prompt = 'a', max_tokens = 3}, 'b', {prompt = 'c', system = 's'}})"
    )
    asked = life.step().asked
    assert [(query.prompt, query.max_tokens, query.system, query.key) for query in asked] == [
        ("a", 3, None, "0:0"),
        ("b", 1024, None, "0:1"),
        ("c", 1024, "s", "0:2"),
    ]
    assert life.answer("c", "3").asked == []
    assert life.answer("a", "1").asked == []
    life.answer("b", "2")
    assert life.outcome.value == ["1", "2", "3"]


def test_an_error_in_a_batch_is_raised_at_once_and_the_rest_is_withdrawn() -> None:
    life = Life("local ok, e = pcall(alc.llm_batch, {'a', 'b', 'c'}) alc.llm(e)")
    life.step()
    reply = life.step(QueryAnswer(1, error={"code": "x", "message": "gone"}))
    assert reply.withdrawn == [0, 2]
    assert life.prompts() == ["gone"]


def test_a_batch_of_a_thousand() -> None:
    assert (
        run("local t = {} for i = 1, 1000 do t[i] = 'p' .. i end return #alc.llm_batch(t)") == 1000
    )


def test_a_batch_of_items_that_say_themselves_how_many_they_are() -> None:
    assert run(
        "return alc.llm_batch(setmetatable({'a', 'b'}, {__len = function() return 1.0 end}))"
    ) == ["<a>"]


# ---- what is said


def test_the_log_is_a_function_as_packages_know_it() -> None:
    code = """local seen = {type(alc.log), type(alc.log.warn), alc.log.none == nil, getmetatable(alc.log)}
      seen[5] = select(2, pcall(function() return print.warn end))
      seen[6] = select(2, pcall(function() alc.log.warn = 1 end))
      return seen"""
    assert run(code) == [
        "function",
        "function",
        True,
        False,
        "code:2: attempt to index a function value",
        "code:3: attempt to index a function value (field 'log')",
    ]


def test_the_log() -> None:
    life = Life(
        "alc.log('info', 'a') alc.log('odd', 'b') alc.log.warn('c') print('d', 1, nil)"
        " io.write('e', 2) io.stderr:write('f\\n') warn('g')"
    )
    life.finish()
    assert life.log == [
        ("info", "alc.log", "a"),
        ("odd", "alc.log", "b"),
        ("warn", "alc.log", "c"),
        ("info", "alc.lua.print", "d\t1\tnil"),
        ("info", "io.write", "e2"),
        ("warn", "io.write", "f"),
        ("warn", "warn", "g"),
    ]


def test_nothing_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    run(
        "print('x') io.write('y') io.stdout:write('z') io.stderr:write('w') warn('@on', 'v')"
        " warn('u')"
    )
    assert capfd.readouterr() == ("", "")


def test_the_newest_thousand_lines_of_a_delivery_are_kept() -> None:
    life = Life("for i = 1, 2500 do print(i) end")
    life.finish()
    assert [line[2] for line in life.log] == [str(i) for i in range(1501, 2501)]


def test_words_that_are_not_utf8_are_shown_all_the_same() -> None:
    """Programs cut answers to so many bytes, in the middle of a letter too: to log that is no
    failure.
    """
    life = Life(
        "print('a\\xffb') alc.log('info', ('né'):sub(1, 2)) alc.log.warn('\\xff')"
        " alc.progress(1, 2, 'é\\xc3')"
    )
    life.finish()
    assert [line[2] for line in life.log] == ["a\\xffb", "n\\xc3", "\\xff"]
    assert life.replies[-1].notes.progress.message == "é\\xc3"


def test_a_name_that_is_recorded_often_is_handed_over_once() -> None:
    """However often a loop records it: what comes out of a state in one go is limited."""
    vm = LuaVm()
    code = (
        b"for i = 1, 1000 do alc.stats.record('k', i) alc.stats.record('l' .. i % 2, i) end"
        b" return 1"
    )
    begun = make_vm_opening(0.0, b"text", b"code", code, b"=code", None)
    assert vm.go(0.0, 10.0, *begun)[1] == b"done"
    assert vm.take() == (False, None, None, None, 3, b"k", b"1000", b"l1", b"999", b"l0", b"1000")


def test_many_records_of_a_full_state_are_heard() -> None:
    """They come out a few at a time: there is room for that."""
    fill = "local t = {} pcall(function() while true do t[#t + 1] = ('x'):rep(100) .. #t end end)"
    life = Life(
        f"for i = 1, 20000 do alc.stats.record('k' .. i, i) end print('said') {fill}"
        " alc.llm('full') t = nil",
        memory=12 * 2**20,
        cpu=60.0,
    )
    assert [query.prompt for query in life.step().asked] == ["full"]
    assert life.record == {f"k{i}": i for i in range(1, 20001)}
    assert [line[2] for line in life.log] == ["said"]


def test_progress_and_stats() -> None:
    life = Life(
        "alc.progress(1, 3) alc.progress(2, 3, 'half') alc.stats.record('k', {1, 2.0})"
        " alc.stats.record('k', 5) return alc.stats.get('k')"
    )
    assert life.finish() == 5
    notes = life.replies[0].notes
    assert notes is not None and notes.progress is not None
    assert (notes.progress.step, notes.progress.total, notes.progress.message) == (2, 3, "half")
    assert life.record == {"k": 5}


def test_what_is_said_is_silent_on_replay() -> None:
    life = Life("print('x') alc.progress(1, 1) alc.stats.record('k', 1) alc.llm('a')")
    life.execution.replaying = True
    assert life.step().notes is None


# ---- state


def test_durable_values() -> None:
    code = """local s = alc.state
      local first = {s.get('a'), s.get('a', 'd')}
      s.set('a', {x = 1.0}) s.set('b', nil)
      return {first[1] == nil and first[2], s.get('a'), s.has('a'), s.has('b'), s.has('c'), s.get('b') == alc.null,
        s.keys(), s.delete('a'), s.delete('a'), s.set_nx('a', 1), s.set_nx('a', 2), s.get('a'),
        s.incr('n'), s.incr('n', 2.5), s.incr('m', 1, 10), s.get(1, 'number keys')}"""
    expected = [
        "d",
        {"x": 1.0},
        True,
        True,
        False,
        True,
        ["a", "b"],
        True,
        False,
        True,
        False,
        1,
        1.0,
        3.5,
        11.0,
    ]
    assert run(code) == [*expected, "number keys"]


def test_a_state_operation_is_a_question_of_its_own_kind() -> None:
    query = Life("alc.state.set('k', {1})").step().asked[0]
    assert (query.kind, query.name, query.key) == (Kind.STATE, "k", "0:0")
    assert query.args == {"in": "lua/default", "do": "set", "value": [[1]]}


def test_the_ctx_names_the_namespace() -> None:
    query = Life("alc.state.get('k')", {"_ns": "mine"}).step().asked[0]
    assert query.args["in"] == "lua/mine"


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..", "a\0"])
def test_a_namespace_may_not_name_others(name: str) -> None:
    assert f"Invalid namespace: '{name}'" in failure("alc.state.get('k')", {"_ns": name})


def test_incr_of_what_is_no_number() -> None:
    life = Life("return {pcall(alc.state.incr, 'k')}")
    life.step()
    words = (
        "incr of 'k': the value cannot be stored as JSON: is not a number"  # as the drive says it
    )
    life.step(QueryAnswer(0, error={"code": "bad_value", "message": words}))
    assert life.outcome.value == [False, "incr of 'k': the value is not a number"]


def test_incr_past_what_fits_says_so_in_a_whole_sentence() -> None:
    life = Life("return {pcall(alc.state.incr, 'k', math.maxinteger, 1)}")
    life.step()
    with pytest.raises(BadValue) as found:
        asyncio.run(DurableValues(MemoryStore()).answer(life.open[0]))
    life.step(QueryAnswer(0, error={"code": "bad_value", "message": str(found.value)}))
    words = "incr of 'k': the value cannot be stored as JSON: an integer outside 64 bits; store it as text"
    assert life.outcome.value == [False, words]


def test_as_many_as_may_be_asked_at_once_are_asked_and_answered() -> None:
    life = Life(
        "local t = {} for i = 1, 50000 do t[i] = 'q' end return #alc.llm_batch(t)", cpu=10.0
    )
    assert len(life.step().asked) == 50_000
    life.step(*[QueryAnswer(q, "a") for q in life.open])
    assert life.outcome.value == 50_000


# ---- time and dice


def test_time_is_that_of_the_delivery() -> None:
    code = (
        "local a = {alc.time(), os.time(), os.clock()} alc.llm('x') return {a, {alc.time(),"
        " os.time(), os.clock()}}"
    )
    first, second = run(code)
    assert first == [BORN, int(BORN), 0.0]
    assert second == [BORN + 1, int(BORN) + 1, 1.0]


def test_dates_are_in_utc() -> None:
    assert run("return {os.date('%Y-%m-%d %H:%M', 0), os.date('*t', 0).hour, os.date('!%d')}") == [
        "1970-01-01 00:00",
        0,
        "14",
    ]


def test_the_dice_fall_from_the_seed_of_the_session() -> None:
    from everhold.core.session import Seed

    code = "math.randomseed() return {math.random(1000000), math.random(1000000)}"
    assert run(code) == run(code)
    assert run(code) != run(code, seeds=[Seed(0, "other")])


def test_a_fork_has_dice_of_its_own_from_its_fork_point_on() -> None:
    from everhold.core.session import Seed

    code = "local a = math.random(1000000) alc.llm('x') return {a, math.random(1000000)}"
    one, other = run(code), run(code, seeds=[Seed(0, "00ff"), Seed(1, "beef")])
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_a_program_that_chose_its_seed_keeps_it() -> None:
    from everhold.core.session import Seed

    code = "math.randomseed(7) alc.llm('x') return math.random(1000000)"
    assert run(code) == run(code, seeds=[Seed(0, "00ff"), Seed(1, "beef")])


# ---- budgets


def test_without_a_budget_nothing_is_left_to_tell() -> None:
    assert run("return alc.budget_remaining()") is None


BUDGETS = [
    ({"max_llm_calls": 1}, "budget_exceeded: max_llm_calls (1) reached: 1 used"),
    (
        {"max_elapsed_ms": 1000},
        "budget_exceeded: max_elapsed_ms (1000ms) reached: 1000ms have passed",
    ),
    ({"max_tokens": 2}, "budget_exceeded: max_tokens (2) reached: 2 used"),
]


@pytest.mark.parametrize(("budget", "words"), BUDGETS)
def test_a_budget_in_the_ctx_is_an_error_that_can_be_caught(
    budget: dict[str, int], words: str
) -> None:
    life = Life(
        "alc.llm('a') local ok, e = pcall(alc.llm, 'b') return {ok, e, alc.budget_remaining()}",
        {"budget": budget},
    )
    ok, said, left = life.finish()
    assert (ok, said) == (False, words)
    assert 0 in left.values()


def test_what_is_not_limited_is_null() -> None:
    code = (
        "local b = alc.budget_remaining() return {b.llm_calls, b.tokens == alc.null,"
        " type(b.elapsed_ms)}"
    )
    assert run(code, {"budget": {"max_llm_calls": 5}}) == [5, True, "userdata"]


def test_the_budget_of_the_session_counts_with_its_meter() -> None:
    life = Life("return {pcall(alc.llm_batch, {'a', 'b'})}", budget=Budget(max_llm_calls=1))
    assert life.finish() == [False, "budget_exceeded: max_llm_calls (1) reached: 0 used, 2 asked"]


def test_a_budget_in_the_ctx_is_the_same_on_replay() -> None:
    code = "alc.llm('a') local ok, e = pcall(alc.llm, 'b') alc.llm_batch = nil return e"
    life = Life(code, {"budget": {"max_llm_calls": 1}})
    value = life.finish()
    again = Life(code, {"budget": {"max_llm_calls": 1}})
    # what a session has cost in all is not what it had cost then
    again.execution.meter.llm_calls = 99
    again.execution.replaying = True
    replies = [again.execution.advance(*given) for given in life.given]
    assert replies[-1].outcome is not None and replies[-1].outcome.value == value  # type: ignore[union-attr]


# ---- the library comes with its first use


def test_a_program_may_replace_what_it_has_not_used_yet() -> None:
    code = (
        "alc.map = function() return 'mine' end return {alc.map(), alc.filter({1, 2},"
        " function(x) return x > 1 end)}"
    )
    assert run(code) == ["mine", [2]]


def test_a_program_may_wrap_what_the_library_uses() -> None:
    code = """local llm = alc.llm
      alc.llm = function(p, o) return '[' .. llm(p, o) .. ']' end
      return alc.ground('x')"""
    assert run(code) == "[<x>]"


def test_spoiled_globals_do_not_spoil_the_library() -> None:
    code = (
        "type, pairs, string, table, error = nil, nil, nil, nil, nil return alc.vote({'a',"
        " 'b', 'b'}).winner"
    )
    assert run(code) == "b"
