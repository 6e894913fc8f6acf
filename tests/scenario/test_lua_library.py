"""The Lua library in its sandbox, through a runtime: the same tables as in bare Lua, live and again
on replay.

Each program works out a whole table of cases, asks one question, and is woken in another runtime:
what it returns was worked out on replay.
"""

import asyncio
from pathlib import Path

import pytest

from everhold.packages.lua.trust import trust_package
from everhold.programs.lua.program import LuaProgram
from tests.scenario.harness import opened
from tests.unit.programs.lua import test_alc_math as numbers
from tests.unit.programs.lua import test_cards as cards
from tests.unit.programs.lua import test_text as text
from tests.unit.programs.lua.library_harness import Library

pytestmark = pytest.mark.process

NUMBERS = [
    "alc.math.mean({1, 2, 4})",
    "alc.math.stddev({1, 2, 4})",
    "alc.math.percentile({9, 1, 5}, 30)",
    "alc.math.softmax({1, 2, 3})",
    "alc.math.normal_cdf(1.5)",
    "alc.math.wilson_ci(8, 10)",
    "alc.math.welch_t_test({1, 2, 3, 4}, {2, 4, 6, 9})",
    "alc.math.shuffle(alc.math.rng_create(7), {1, 2, 3, 4, 5, 6, 7})",
    "alc.math.rng_int(alc.math.rng_create(-9), -1000000, 1000000)",
]
# One of each kind, so that every part of alc.math is loaded in the sandbox.
VALUES = [
    f"alc.math.{text}"
    for text, _ in {text.partition("(")[0]: (text, 0) for text, _ in numbers.VALUES}.values()
]
DRAWS = [
    f"alc.math.{name}(alc.math.rng_create({seed}){given and ', ' + given})"
    for name, given, seed, _ in numbers.DRAWS
]
LAYER1 = [
    "alc.map({1, 2, 3}, function(x, i) return x * 10 + i end)",
    "alc.reduce({'a', 'b', 'c'}, function(a, x, i) return a .. x .. i end)",
    "alc.vote({'a', ' b ', 'b'})",
    "alc.tuning({o={i={x=1, y=2}, keep='k'}}, {o={i={x=10, z=1}}})",
    "alc.pipe({function(c) c.result = {c.task} return c end, function(c) c.result = c.task"
    " return c end}, {task='t'})",
    "alc.state.update('n', function(n) return n + 1 end, 41)",
    "alc.budget_check()",
]

# What each part says: the program before the cases, the cases, and what bare Lua says of them.
TABLES = {
    "chunk": ("", [f"alc.chunk({given})" for given, _ in text.CHUNKS]),
    "match": ("", [f"alc.match_enum({given})" for given, _ in text.MATCHES]),
    "refused": (
        "",
        [f"alc.math.{name}({given})" for name in numbers.LISTS for given, _ in numbers.BAD],
    ),
    "numbers": ("", NUMBERS),
    "values": ("", VALUES),
    "draws": ("", DRAWS),
    "layer1": ("", LAYER1),
    "where": (cards.FEW, [f"alc.card.find({{where={where}}})" for where, _ in cards.WHERE]),
}


def program(setup: str, cases: list[str]) -> str:
    tried = "\n".join(f"try(function() return {case} end)" for case in cases)
    return f"""
    local out = {{}}
    local function try(f)
      local ok, value = pcall(f)
      out[#out + 1] = {{ok = ok, value = value}}
    end
    {setup}
    {tried}
    """


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("trusted", [True, False], ids=["here", "worker"])
async def test_the_library_in_its_sandbox(name, trusted, tmp_path, monkeypatch):
    """Every case of a table says in the sandbox what it says in bare Lua, also after a restart."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    code = program(*TABLES[name])
    call = LuaProgram.text(f"{code} alc.llm('go on?') return out")
    if trusted:
        file = Path(tmp_path, "table.lua")
        file.write_text(f"{code} alc.llm('go on?') return out")
        trust_package(file)
        call = LuaProgram.file(file)()
    async with opened(tmp_path, replay=False) as runtime:
        paused = await runtime.start(call)
        assert [query.prompt for query in paused.queries] == ["go on?"]
    async with opened(tmp_path, replay=False) as runtime:
        ended = await runtime.answer(paused.session_id, "yes")

    expected = Library().run(f"{code} return out")
    assert len(ended.result) == len(TABLES[name][1])
    assert ended.result == expected


SPLIT = """
    local r, out = alc.math.rng_create(99), {}
    for i = 1, 150 do
      out[#out + 1] = i % 3 > 0 and alc.math.rng_float(r) or alc.math.shuffle(r, {1, 2, 3})[1]
      if i % 50 == 7 then alc.llm("go on?") end
    end
    return out"""


async def test_a_generator_goes_on_after_a_pause(tmp_path):
    """Wherever in a block it was, and in whichever process it is woken."""
    async with opened(tmp_path, replay=False) as runtime:
        paused = await runtime.start(LuaProgram.text(SPLIT))
    for _ in range(3):
        async with opened(tmp_path, replay=False) as runtime:
            ended = await runtime.answer(paused.session_id, "yes")
    expected = Library().run(SPLIT.replace('alc.llm("go on?")', ""))
    assert ended.result == expected


async def test_the_cache_of_a_session(tmp_path):
    """What was asked is not asked again, neither live nor after a restart."""
    code = """
    local first = alc.cache("what?", {model = "m"})
    local again = alc.cache("what?", {model = "m"})
    local other = alc.cache("what?", {model = "n"})
    return {first, again, other, alc.cache_info().hits}"""
    async with opened(tmp_path, replay=False) as runtime:
        paused = await runtime.start(LuaProgram.text(code))
        await runtime.answer(paused.session_id, "one")
    async with opened(tmp_path, replay=False) as runtime:
        ended = await runtime.answer(paused.session_id, "two")
    assert ended.result == ["one", "one", "two", 1]


async def test_a_batch_of_prompts():
    """parallel asks everything at once, options and all; the answers come back in the order of the
    items.
    """
    code = """
    return alc.parallel({"a", "b"}, function(x) return "ask " .. x end,
      {temperature = 0.5, post_fn = function(answer, item) return item .. "=" .. answer end})"""
    async with opened(replay=False) as runtime:
        paused = await runtime.start(LuaProgram.text(code))
        assert [(query.prompt, query.options) for query in paused.queries] == [
            ("ask a", {"temperature": 0.5}),
            ("ask b", {"temperature": 0.5}),
        ]
        await runtime.answer(paused.queries[1], "2")
        ended = await runtime.answer(paused.queries[0], "1")
    assert ended.result == ["a=1", "b=2"]


async def test_a_pipe_of_packages(tmp_path):
    """Packages are found where the program's own are, and each stage may ask."""
    for name, word in (("first", "one"), ("second", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "init.lua").write_text(
            f"return {{run = function(ctx) ctx.result = alc.llm('{word} ' .. ctx.task) return"
            f" ctx end}}"
        )
    code = "return alc.pipe({'first', 'second', 'missing'}, ctx, {on_error = 'skip'})"
    async with opened(replay=False) as runtime:
        paused = await runtime.start(LuaProgram.text(code, {"task": "t"}, roots=[tmp_path]))
        assert paused.queries[0].prompt == "one t"
        paused = await runtime.answer(paused.session_id, "x")
        assert paused.queries[0].prompt == "two x"
        ended = await runtime.answer(paused.session_id, "y")
    assert "'missing' cannot be loaded" in ended.error


async def test_two_sessions_cannot_create_one_card(tmp_path):
    """However they interleave, one creates it and the others are told so; its samples are written
    once.
    """
    code = """
    alc.llm("ready?")
    local ok, problem = pcall(alc.card.create, {card_id = "c", pkg = {name = "p"}, by = ctx.me})
    local wrote = pcall(alc.card.write_samples, "c", {ctx.me})
    return {ok, ok or problem, wrote, alc.card.get("c").by, alc.card.read_samples("c")[1], #alc.card.list()}"""  # noqa: E501
    async with opened(tmp_path, replay=False) as one, opened(tmp_path, replay=False) as two:
        paused = [
            (rt, await rt.start(LuaProgram.text(code, {"me": n})))
            for n, rt in enumerate([one, two] * 4)
        ]
        ended = await asyncio.gather(
            *(runtime.answer(status.session_id, "yes") for runtime, status in paused)
        )
    results = [status.result for status in ended]
    winners = [n for n, result in enumerate(results) if result[0]]
    assert len(winners) == 1
    assert {result[1] for result in results if not result[0]} == {
        "alc.card.create: card 'c' already exists, and cards are immutable"
    }
    assert {(result[3], result[5]) for result in results} == {(winners[0], 1)}
    assert [result[2] for result in results].count(True) == 1


async def test_appending_at_once(tmp_path):
    """Keys that sessions add to one card at the same time are all there in the end."""
    code = """
    alc.llm("ready?")
    alc.card.append("c", {["from" .. ctx.me] = ctx.me})
    return true"""
    async with opened(tmp_path, replay=False) as runtime:
        await runtime.start(
            LuaProgram.text("alc.card.create({card_id = 'c', pkg = {name = 'p'}}) return 1")
        )
        paused = [await runtime.start(LuaProgram.text(code, {"me": n})) for n in range(5)]
        await asyncio.gather(*(runtime.answer(status.session_id, "yes") for status in paused))
        card = (await runtime.start(LuaProgram.text("return alc.card.get('c')"))).result
    assert [card[f"from{n}"] for n in range(5)] == list(range(5))


async def test_programs_cannot_reach_the_cards_by_state():
    """A namespace of that name is refused, also from Lua."""
    async with opened(replay=False) as runtime:
        ended = await runtime.start(
            LuaProgram.text("return alc.state.keys()", {"_ns": "card/body"})
        )
    assert "Invalid namespace: 'card/body'" in ended.error
