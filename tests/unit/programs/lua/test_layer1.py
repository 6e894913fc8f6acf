"""Layer 1: layer1.lua, function by function."""

import pytest

from tests.unit.programs.lua.library_harness import Library
from tests.unit.programs.lua.test_text import djb2


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("alc.map({1, 2, 3}, function(x, i) return x * 10 + i end)", [11, 22, 33]),
        ("alc.map({}, error)", {}),
        ("alc.map({1, nil, 3}, function(x) return x end)", [1]),
        ("alc.filter({5, 3, 8, 1}, function(x) return x > 2 end)", [5, 3, 8]),
        ("alc.filter({'a', 'b', 'c', 'd'}, function(_, i) return i % 2 == 0 end)", ["b", "d"]),
        ("alc.filter({1}, function() return false end)", {}),
        ("alc.reduce({1, 2, 3}, function(a, x, i) return a + x * i end, 0)", 14),
        ("alc.reduce({'a', 'b', 'c'}, function(a, x, i) return a .. x .. i end)", "ab2c3"),
        ("alc.reduce({7}, error)", 7),
        ("alc.reduce({}, error)", None),
        ("alc.reduce({}, error, 9)", 9),
        ("alc.vote({'a', ' b ', 'b', 'a', 'b\\n'})", {"winner": "b", "count": 3, "total": 5}),
        ("alc.vote({'a', 'b', 'b', 'a'})", {"winner": "a", "count": 2, "total": 4}),
        ("alc.vote({'Yes', 'yes', 'yes'})", {"winner": "yes", "count": 2, "total": 3}),
        ("alc.vote({1, 1, 2})", {"winner": "1", "count": 2, "total": 3}),
        ("alc.vote({'  '})", {"winner": "", "count": 1, "total": 1}),
        ("alc.vote({'', ' a b\\n'})", {"winner": "", "count": 1, "total": 2}),
        # in linear time
        ("alc.vote({(' '):rep(2e5), ' a b\\n'})", {"winner": "", "count": 1, "total": 2}),
        ("alc.vote({})", {"count": 0, "total": 0}),
    ],
)
def test_lists(code, expected):
    assert Library().run(f"return {code}") == expected


@pytest.mark.parametrize(("verb", "flag"), [("ground", "grounded"), ("specify", "underspecified")])
def test_ground_and_specify(verb, flag):
    """The flag is added to a copy of the options."""
    library = Library()
    said, opts = library.run(
        f"local o = {{system='s', temperature=0.5}} return alc.{verb}('p', o), o"
    )
    assert (said, opts) == ("re: p", {"system": "s", "temperature": 0.5})
    library.run(f"return alc.{verb}('q')")
    assert library.prompts == [
        ("p", {"system": "s", "temperature": 0.5, flag: True}),
        ("q", {flag: True}),
    ]


# ---- cache


def test_the_cache_asks_once():
    library = Library()
    assert library.run("return alc.cache('p'), alc.cache('p'), alc.cache('q')") == [
        "re: p",
        "re: p",
        "re: q",
    ]
    assert [prompt for prompt, _ in library.prompts] == ["p", "q"]
    assert library.run("return alc.cache_info()") == {
        "entries": 2,
        "hits": 1,
        "misses": 2,
        "max_entries": 256,
    }


@pytest.mark.parametrize(
    ("other", "asks_again"),
    [
        ("'  P  '", False),  # the fingerprint knows neither case nor white space
        ("'p', {cache_key='p'}", True),
        ("'p', {system='s'}", True),
        ("'p', {max_tokens=5}", True),
        ("'p', {temperature=1}", True),  # what is passed through to the model shapes the answer too
        ("'p', {}", False),
        ("'p', {cache_skip=true}", True),
    ],
)
def test_what_is_the_same_question(other, asks_again):
    library = Library()
    library.run(f"alc.cache('p') alc.cache({other})")
    assert len(library.prompts) == 1 + asks_again


def test_an_own_key():
    """Decides alone, and no model ever sees it."""
    library = Library()
    assert library.run(
        "return alc.cache('a', {cache_key='k', system='s'}), alc.cache('b', {cache_key='k'})"
    ) == [
        "re: a",
        "re: a",
    ]
    assert library.prompts == [("a", {"system": "s"})]


def test_skipping_stores_nothing():
    library = Library()
    library.run("alc.cache('p', {cache_skip=true}) alc.cache('p')")
    assert library.prompts == [("p", {}), ("p", {})]
    assert library.run("return alc.cache_info()")["entries"] == 1


def test_the_oldest_goes():
    library = Library()
    library.run("for i = 1, 258 do alc.cache('p' .. i) end")
    assert library.run("return alc.cache_info().entries") == 256
    library.run("alc.cache('p3') alc.cache('p2')")
    assert [prompt for prompt, _ in library.prompts[258:]] == ["p2"]
    library.run("alc.cache('p3')")  # it went when p2 came back
    assert library.prompts[-1][0] == "p3"


def test_clearing_the_cache():
    """Values, counters and entries are gone."""
    library = Library()
    library.run("alc.cache('p') alc.cache('p') alc.cache_clear()")
    assert library.run("return alc.cache_info()") == {
        "entries": 0,
        "hits": 0,
        "misses": 0,
        "max_entries": 256,
    }
    library.run("alc.cache('p')")
    assert len(library.prompts) == 2


def test_an_error_is_not_cached():
    library = Library()
    library.answers = lambda prompt: OSError("down") if len(library.prompts) == 1 else "up"
    assert library.run("return pcall(alc.cache, 'p')") == [False, "down"]
    assert library.run("return alc.cache('p')") == "up"


# ---- asking


def test_llm_safe():
    """An error is logged as a warning and the default comes back."""
    library = Library()
    assert library.run("return alc.llm_safe('p', {max_tokens=9}, 'd')") == "re: p"
    library.answers = lambda prompt: OSError("down")
    assert library.run("return alc.llm_safe('p', nil, 'd'), alc.llm_safe('p')") == ["d", None]
    assert library.prompts[0] == ("p", {"max_tokens": 9})
    assert library.logged == [("warn", "alc.llm_safe: down")] * 2


def test_llm_json_at_once():
    library = Library()
    library.answers = lambda prompt: 'So: {"a": 1}'
    assert library.run("return alc.llm_json('p', {system='s'})") == [{"a": 1}, 'So: {"a": 1}']
    assert library.prompts == [("p", {"system": "s"})]


def test_llm_json_repairs_once():
    """The second request shows the first one and its output, under a system text of its own."""
    library = Library()
    library.answers = lambda prompt: "a is one" if prompt == "what is a?" else '{"a": 1}'
    assert library.run("return alc.llm_json('what is a?', {system='s', max_tokens=7})") == [
        {"a": 1},
        '{"a": 1}',
    ]
    repair, opts = library.prompts[1]
    assert "what is a?" in repair
    assert "a is one" in repair
    assert (opts["max_tokens"], opts["system"] != "s") == (7, True)
    assert [level for level, _ in library.logged] == ["warn"]


def test_llm_json_gives_up():
    library = Library()
    library.answers = lambda prompt: f"no {len(library.prompts)}"
    assert library.run("return alc.llm_json('p')") == [None, "no 2"]
    assert len(library.prompts) == 2
    assert [(level, words[:13]) for level, words in library.logged] == [
        ("warn", "alc.llm_json:")
    ] * 2


def test_parallel():
    """One batch in order; shared options reach the prompts that are strings."""
    library = Library()
    code = """
    local batches = 0
    local batch = alc.llm_batch
    alc.llm_batch = function(items) batches = batches + 1 return batch(items) end
    local function ask(x, i) return i == 2 and {prompt = "own " .. x, model = "m"} or "ask " .. x end
    local out = alc.parallel({"a", "b"}, ask, {system = "s", temperature = 0})
    return out, batches, alc.parallel({"c"}, ask, {post_fn = function(r, x, i) return r .. "|" .. x .. i end})"""  # noqa: E501
    assert library.run(code) == [["re: ask a", "re: own b"], 1, ["re: ask c|c1"]]
    assert library.prompts[0] == ("ask a", {"prompt": "ask a", "system": "s", "temperature": 0})
    assert library.prompts[1] == ("own b", {"prompt": "own b", "model": "m"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}, tostring", "alc.parallel: items is empty or no array"),
        ("nil, tostring", "alc.parallel: items is empty or no array"),
        ("{1}", "alc.parallel: prompt_fn is no function"),
        (
            "{1, 2}, function(_, i) return i == 1 and 'x' or {system='s'} end",
            "alc.parallel: the table that prompt_fn returned at index 2 has no string .prompt",
        ),
        (
            "{1}, function() end",
            "alc.parallel: prompt_fn returned a nil at index 1, not a string or a table",
        ),
    ],
)
def test_parallel_refuses(given, words):
    """With the line of the program; nothing is asked."""
    library = Library()
    found = library.error(f"alc.parallel({given})")
    assert found.endswith(words)
    assert found.startswith("[string ")
    assert library.prompts == []


# ---- state, budget, settings


def test_state_update():
    library = Library()
    code = """
    local function add(n) return n + 1 end
    return alc.state.update("n", add, 0), alc.state.update("n", add, 0), alc.state.get("n"),
      alc.state.update("new", function(v) return v == nil end)"""
    assert library.run(code) == [1, 2, 2, True]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (None, True),
        ({"llm_calls": 1, "elapsed_ms": None, "tokens": None}, True),
        ({"llm_calls": 0, "elapsed_ms": None, "tokens": None}, False),
        ({"llm_calls": None, "elapsed_ms": 0, "tokens": 5}, False),
        ({"llm_calls": 3, "elapsed_ms": 9, "tokens": 0}, False),
        ({"llm_calls": None, "elapsed_ms": None, "tokens": None}, True),
    ],
)
def test_budget_check(left, expected):
    """Calls, time and tokens alike; a limit that is not set never says no."""
    library = Library()
    library.left = left
    assert library.run("return alc.budget_check()") is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{a=1, b=2}, {a=5, c=6}", {"a": 5, "b": 2}),
        ("{a=true}, {a=false}", {"a": False}),
        ("{a='x'}, {a=42}", {"a": 42}),
        (
            "{o={i={x=1, y=2}, keep='k'}}, {o={i={x=10, z=1}}}",
            {"o": {"i": {"x": 10, "y": 2}, "keep": "k"}},
        ),
        ("{gates={{min=3}, {min=5}}}, {gates={{min=7}}}", {"gates": [{"min": 7}]}),
        ("{o={a=1}}, {o={9}}", {"o": [9]}),
        ("{a=1, _schema={a='number'}}, {_schema={}}", {"a": 1}),
        ("{a=1}, nil", {"a": 1}),
        ("{a=1}, {p={a=6}, a=9}, {prefix='p'}", {"a": 6}),
        ("{a=1}, {p={}, a=9}, {prefix='p'}", {"a": 1}),
        ("{a=1}, {a=9}, {prefix='p'}", {"a": 9}),  # no such part: the whole of ctx is read
        ("'text', {}", "text"),
    ],
)
def test_tuning(given, expected):
    library = Library()
    assert library.run(f"return alc.tuning({given})") == expected
    assert library.logged == []


def test_tuning_warns():
    """A part that is no table is not used, and not what surrounds it either."""
    library = Library()
    assert library.run("return alc.tuning({a=1}, {p='x', a=9}, {prefix='p'})") == {"a": 1}
    assert [level for level, _ in library.logged] == ["warn"]


# ---- pipe

PACKAGES = """
package.preload.double = function()
  return {run = function(ctx) ctx.result = ctx.task .. ctx.task return ctx end}
end
package.preload.facts = function()
  return {run = function(ctx) ctx.result = {said = ctx.task} return ctx end}
end
package.preload.breaks = function() return {run = function() error("boom", 0) end} end
package.preload.empty = function() return {run = function() end} end
package.preload.norun = function() return {} end
"""


def test_pipe():
    """What one stage found is the next one's task; tables as JSON; the last leaves the task
    alone.
    """
    code = """
    local ctx = {task = "a", other = 1}
    local out = alc.pipe({"double", "facts", function(ctx) ctx.result = 7 return ctx end}, ctx)
    return out, ctx"""
    out, ctx = Library().run(PACKAGES + code)
    assert out == {
        "task": '{"said":"aa"}',
        "result": 7,
        "other": 1,
        "pipe_history": [
            {"strategy": "double", "result": "aa"},
            {"strategy": "facts", "result": {"said": "aa"}},
            {"strategy": "(inline-3)", "result": 7},
        ],
    }
    assert ctx == {"task": "a", "other": 1}


def test_a_stage_with_a_table_of_its_own():
    """The history goes on in whatever table a stage returns."""
    out = Library().run(
        PACKAGES + 'return alc.pipe({function() return {result = 5} end, "double"}, {task = "a"})'
    )
    assert (out["result"], len(out["pipe_history"])) == ("55", 2)


@pytest.mark.parametrize("mode", ["skip", "continue"])
def test_a_failed_stage_is_passed_over(mode):
    """Its error is recorded and logged, and the next stage sees what it would have seen."""
    library = Library()
    code = f"""
    local seen = {{}}
    local out = alc.pipe({{"double", "breaks", "empty", "double"}}, {{task = "a"}}, {{
      on_error = "{mode}", on_stage = function(i, name, ctx) seen[#seen + 1] = i .. name .. ctx.result end}})
    return out.result, out.pipe_history, seen"""  # noqa: E501
    result, history, seen = library.run(PACKAGES + code)
    assert (result, seen) == ("aaaa", ["1doubleaa", "4doubleaaaa"])
    assert history[1] == {"strategy": "breaks", "error": "boom"}
    assert history[2] == {
        "strategy": "empty",
        "error": "alc.pipe: 'empty' returned a nil instead of its ctx",
    }
    assert [level for level, _ in library.logged] == ["warn", "warn"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}, {}", "alc.pipe: strategies is empty or no array"),
        ("'double', {}", "alc.pipe: strategies is empty or no array"),
        ("{'double'}, 'x'", "alc.pipe: ctx is no table"),
        ("{'double', 5}, {task='a'}", "alc.pipe: stage 2 is neither a package name nor a function"),
        ("{'norun'}, {}", "alc.pipe: 'norun' has no function run(ctx)"),
        ("{'empty'}, {}", "alc.pipe: 'empty' returned a nil instead of its ctx"),
        ("{'breaks'}, {}", "boom"),
        ("{'norun'}, {}, {on_error='skip'}", "alc.pipe: 'norun' has no function run(ctx)"),
        (
            "{'double'}, {}, {on_error='fail'}",
            "alc.pipe: on_error must be 'abort', 'skip' or 'continue', got 'fail'",
        ),
    ],
)
def test_pipe_refuses(given, words):
    assert Library().error(f"{PACKAGES} alc.pipe({given})").endswith(words)


def test_a_package_that_is_not_there():
    """Is an error whatever on_error says."""
    found = Library().error("alc.pipe({'nowhere'}, {}, {on_error='skip'})")
    assert "alc.pipe: 'nowhere' cannot be loaded: module 'nowhere' not found" in found


def test_the_key_of_a_cached_answer():
    """Prompt, system text and tokens with a zero byte between: the fingerprint that others compute
    too.
    """
    library = Library()
    library.run(f"alc.cache('other', {{cache_key='{djb2('p' + chr(0) + 's' + chr(0) + '5')}'}})")
    assert library.run("return alc.cache('P', {system='S', max_tokens=5})") == "re: other"


@pytest.mark.parametrize(
    "call",
    [
        "alc.ground('p', null)",
        "alc.specify('p', null)",
        "alc.cache('p', null)",
        "alc.parallel({1}, tostring, null)[1] == 're: 1' and 're: p'",
        "alc.tuning('re: p', {}, null)",
        "alc.tuning({a='re: p'}, {}, null).a",
        "alc.pipe({function(c) c.result = 're: p' return c end}, {}, null).result",
        "alc.chunk('re: p', null)[1]",
        "alc.match_enum('re: p', {'re: p'}, null)",
    ],
)
def test_options_that_are_null(call):
    """What JSON calls null counts as no options."""
    assert Library().run(f"return {call}") == "re: p"


@pytest.mark.parametrize(
    "call",
    [
        "ground('p', 5)",
        "specify('p', 5)",
        "cache('p', 5)",
        "parallel({1}, tostring, 5)",
        "tuning({}, {}, 5)",
    ],
)
def test_options_that_are_no_table(call):
    """Are refused at the line of the program, before anything is asked."""
    library = Library()
    words = library.error(f"alc.{call}")
    assert words.endswith(f"alc.{call.partition('(')[0]}: opts must be a table, got number")
    assert library.prompts == []
