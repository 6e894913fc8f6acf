"""Packages as people write them, through the tools of a host: many files, hyphens, every part of
`alc` at once.
"""

import pytest

from tests.e2e.mcp_harness import asked, opened, prompt_of

DRAFT = """--- Drafts an answer and has it judged by two forks.
local M = {}
M.meta = { name = "draft-then-judge", version = "0.1.0", description = "Drafts, then judges", category = "demo" }
local text = require("draft-then-judge.lib.text")

function M.run(ctx)
  local opts = { temperature = 0.2, model = "small" }
  local draft = alc.cache(text.ask(ctx.task), opts)
  assert(alc.cache(text.ask(ctx.task), opts) == draft and alc.cache_info().hits == 1)
  local total = 0
  for _, one in ipairs(alc.fork({ "judges", "judges" }, { task = draft }, { on_error = "continue" })) do
    total = total + (one.ok and one.result.result or 0)
  end
  print("judged", draft)
  local card = alc.card.create({ pkg = { name = "draft-then-judge" }, stats = { pass_rate = total / 20 } })
  ctx.result = { total = total, card = card.card_id, runs = alc.state.incr("runs") }
  return ctx
end

return M
"""  # noqa: E501
TEXT = 'return { ask = function(task) return ("Draft (100%% yours): %s"):format(task) end }\n'
JUDGES = """local M = { meta = { name = "judges", version = "1.0.0", description = "A score", category = "demo" } }

function M.run(ctx)
  assert(alc.state.set_nx("mine", true), "another child was here")
  local first = alc.llm("Judge: " .. ctx.task)
  ctx.result = alc.parse_score(alc.llm("Sure? You said " .. first))
  alc.stats.record("score", ctx.result)
  return ctx
end

return M
"""  # noqa: E501
WHOLE = """local M = { meta = { name = "whole_run", version = "0.1.0", description = "All of it", category = "demo" } }
local parts = require("whole_run.parts")

function M.run(ctx)
  local how = alc.tuning({ rounds = 1, deep = { a = 1, b = 2 } }, ctx, { prefix = "whole" })
  local out = alc.pipe({ "draft-then-judge", parts.finish }, ctx, {
    on_stage = function(i, name) alc.progress(i, 2, name) end,
  })
  local names = alc.map(out.pipe_history, function(stage) return stage.strategy end)
  return { said = out.result, names = names, how = how, cards = #alc.card.list({ pkg = "draft-then-judge" }) }
end

return M
"""  # noqa: E501
PARTS = (
    'return { finish = function(ctx) ctx.result = alc.llm("Finish: " .. ctx.task) return ctx'
    " end }\n"
)
FILES = {
    "draft-then-judge/init.lua": DRAFT,
    "draft-then-judge/lib/text.lua": TEXT,
    "judges/init.lua": JUDGES,
    "whole_run/init.lua": WHOLE,
    "whole_run/parts/init.lua": PARTS,
}


def put(folder, files):
    for name, source in files.items():
        path = folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "everhold.toml").write_text('database = "app.db"\n')
    put(tmp_path, FILES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_packages_of_many_files_go_on_in_a_new_server_at_every_answer():
    """The answers of a fork come one by one, the last question first; nothing is asked twice."""
    seen = []
    async with opened() as host:
        told = await host.call(
            "run", program="whole_run", args={"task": "T", "whole": {"deep": {"b": 9}}}, key="w"
        )
    assert told["questions"][0]["options"] == {"model": "small", "temperature": 0.2}
    while told["status"] != "completed":
        async with opened() as host:
            told = await host.call("status", session_id="w")
            name, query = list(asked(told).items())[-1]
            seen.append(query["prompt"])
            told = await host.call(
                "answer", session_id="w", answers=[{"id": name, "response": f"{len(seen)}"}]
            )
    assert seen[0] == "Draft (100% yours): T"
    assert seen[1:-1] == ["Judge: 1", "Sure? You said 2", "Judge: 1", "Sure? You said 4"]
    assert seen[-1].startswith('Finish: {"card":"draft-then-judge_model_') and seen[-1].endswith(
        '"runs":1.0,"total":8}'
    )
    assert told["result"] == {
        "said": "6",
        "names": ["draft-then-judge", "(inline-2)"],
        "how": {"rounds": 1, "deep": {"a": 1, "b": 9}},
        "cards": 1,
    }
    auto, custom = told["stats"]["auto"], told["stats"]["custom"]
    assert (auto["llm_calls"], auto["rounds"]) == (6, 5)  # the two judges are one round
    assert sorted(custom.items()) == [("judges#1/score", 5), ("judges#2/score", 3)]


async def test_a_child_that_gets_no_answer_fails_alone():
    async with opened() as host:
        told = await host.call("run", code='return alc.fork({"judges", "judges"}, {task = "x"})')
        one, other = asked(told)
        told = await host.call(
            "answer", session_id="@last", answers=[{"id": one, "error": "I cannot"}]
        )
        assert (told["status"], told["remaining"]) == ("accepted", 1)
        told = await host.call(
            "answer", session_id="@last", answers=[{"id": other, "response": "4"}]
        )
        told = await host.call("answer", session_id="@last", answers=[{"response": "7"}])
    failed, judged = told["result"]
    assert failed == {"strategy": "judges", "ok": False, "error": "I cannot"}
    assert (judged["ok"], judged["result"]["result"]) == (True, 7)


async def test_children_of_code_share_its_budget():
    async with opened() as host:
        code = 'return alc.fork({"judges", "judges"}, {task = "x"})'
        told = await host.call("run", code=code, budget={"max_llm_calls": 3})
        told = await host.call(
            "answer",
            session_id="@last",
            answers=[{"id": q, "response": "4"} for q in asked(told)],
        )
        told = await host.call("answer", session_id="@last", answers=[{"response": "8"}])
    first, second = told["result"]
    assert (first["ok"], second["ok"]) == (True, False)
    assert "budget_exceeded: max_llm_calls (3) reached: 3 used" in second["error"]


async def test_a_package_that_comes_while_the_server_runs_is_found(project):
    code = 'return alc.fork({"late-one"}, {})[1]'
    async with opened() as host:
        assert await host.refused("run", program="late-one") == "unknown_program"
        told = await host.call("run", code=code)
        assert (told["result"]["ok"], "module 'late-one' not found" in told["result"]["error"]) == (
            False,
            True,
        )
        put(
            project,
            {
                "late-one/init.lua": 'local help = require("late-one.help") return { run = help }',
                "late-one/help.lua": 'return function() return alc.llm("Late?") end',
            },
        )
        assert prompt_of(await host.call("run", program="late-one")) == "Late?"
        assert prompt_of(await host.call("run", code=code)) == "Late?"


async def test_the_file_of_a_package_can_be_tried_as_code(project):
    async with opened() as host:
        told = await host.call("run", code_file="packages/judges/init.lua", args={"task": "it"})
        assert prompt_of(told) == "Judge: it"


async def test_a_list_stays_short_whatever_a_package_says_of_itself(project):
    """A list of all is read whole by a model; one package alone is described in full."""
    words = "It says a lot. " * 5000
    put(project, {"talker/init.lua": f"-- {words}\nreturn {{run = function() return 1 end}}\n"})
    async with opened() as host:
        rows = {row["name"]: row for row in (await host.call("strategies"))["strategies"]}
        assert len(rows["talker"]["summary"]) <= 201
        assert len(host.text) < 20_000
        assert (await host.call("strategies", name="talker"))["summary"] == words.strip()
