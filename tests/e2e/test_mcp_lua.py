"""Lua that a model wrote: run from text in the sandbox, and learnt from one page."""

import json
import os
import re
from pathlib import Path

import pytest

from everhold.mcp import instructions
from everhold.packages.settings import get_data_folder
from tests.e2e.mcp_harness import asked, build, opened, prompt_of

BLOCKS = re.findall(r"```lua\n(.*?)```", instructions.load_guide(), re.DOTALL)
#: What the model says to prompts of the guide, where it matters.
SAID = {
    "JSON": '{"risks": ["a", "b"]}',
    "yes or no": "yes",
    "large, medium": "medium",
    "Rate": "7 of 10",
    "Review": "DONE.",
}


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path))
    return tmp_path


async def finished(host, told, say):
    """Answer until it ends; how many rounds it took, and the last result."""
    rounds = 0
    while told["status"] == "needs_response":
        rounds += 1
        assert rounds < 20
        given = [
            {"id": name, "response": say(query["prompt"])} for name, query in asked(told).items()
        ]
        told = await host.call("answer", session_id=told["session_id"], answers=given)
    return rounds, told


def said(prompt):
    return next((words for part, words in SAID.items() if part in prompt), "well")


@pytest.mark.parametrize("number", range(len(BLOCKS)))
async def test_every_example_of_the_guide_runs(number):
    async with opened() as host:
        told = await host.call("run", code=BLOCKS[number], args={"task": "move house"})
        _, told = await finished(host, told, said)
        assert told["status"] == "completed", told
        assert told["result"] not in (None, [], {}, "")


async def test_the_guide_tells_what_its_examples_do():
    """The values that the page promises are those that come out."""
    async with opened() as host:
        results = []
        for block in BLOCKS:
            told = await host.call("run", code=block, args={"task": "move house"})
            results.append((await finished(host, told, said))[1]["result"])
    assert results[0] == "well"
    assert {"score": 7, "risky": True, "kind": "medium", "risks": ["a", "b"]} in results
    assert {"answer": "well", "votes": 3, "of": 3} in results
    assert any(isinstance(one, dict) and one.get("last") == "move house" for one in results)


@pytest.mark.parametrize(
    ("review", "drafts"), [("DONE.", 0), ("**DONE**", 0), ("It looks odd. Not done.", 3)]
)
async def test_the_guides_loop_ends_when_the_review_says_so_and_only_then(review, drafts):
    (loop,) = (block for block in BLOCKS if "Improve the text" in block)
    prompts = []

    def say(prompt):
        prompts.append(prompt)
        return review if prompt.startswith("Review") else "a text"

    async with opened() as host:
        await finished(host, await host.call("run", code=loop, args={"task": "a poem"}), say)
    assert sum(prompt.startswith("Improve") for prompt in prompts) == drafts


async def test_packages_are_used_from_code_as_the_guide_says(shop):
    (shop / "packages").mkdir()
    (shop / "packages" / "one.lua").write_text("return { run = function(ctx) return ctx.task end }")
    code = 'return { require("one").run(ctx), alc.fork({"one", "two"}, ctx) }'
    async with opened() as host:
        ran, (good, bad) = (await host.call("run", code=code, args={"task": "t"}))["result"]
    assert (ran, good) == ("t", {"strategy": "one", "ok": True, "result": "t"})
    assert (bad["strategy"], bad["ok"]) == ("two", False) and "not found" in bad["error"]


async def test_only_lua_packages_are_used_from_code(shop):
    """As the guide says; what is listed as `lua` is found, a strategy is not."""
    folder = shop / "packages" / "hello"
    folder.mkdir(parents=True)
    (folder / "init.lua").write_text("return { run = function(ctx) return ctx.task end }")
    code = (
        "local said = {} for i, one in ipairs(alc.fork(ctx.names, ctx)) do said[i] = one.ok"
        " end return said"
    )
    async with opened() as host:
        kinds = {row["name"]: row["kind"] for row in (await host.call("strategies"))["strategies"]}
        told = await host.call(
            "run", code=code, args={"task": "x", "names": ["hello", "reflect", "greet"]}
        )
    assert [kinds[name] for name in ("hello", "reflect", "greet")] == ["lua", "strategy", "python"]
    assert told["result"] == [True, False, False]


async def test_what_the_guide_says_in_passing_is_so():
    code = """
      alc.log("info", "words")
      alc.stats.record("seen", 3)
      local read = alc.json_decode('{"none": null}')
      return {
        null = read.none == alc.null and read.none and true,
        budget = alc.budget_remaining().llm_calls,
        chunks = alc.chunk("a\\nb\\nc", { mode = "lines", size = 2 }),
        median = alc.math.median({ 3, 1, 2 }),
      }
    """
    async with opened() as host:
        told = await host.call("run", code=code, budget={"max_llm_calls": 4})
        assert told["result"] == {"null": True, "budget": 4, "chunks": ["a\nb", "c"], "median": 2}
        assert told["stats"]["custom"] == {"seen": 3}
        assert (await host.call("run", code="local x = 1"))["result"] is None


async def test_the_guide_fits_on_a_page():
    assert len(BLOCKS) >= 7
    assert len(instructions.load_guide()) < 8000


async def test_code_and_a_file_with_the_same_code_do_the_same(shop):
    code = 'return alc.llm("Greet " .. ctx.name)'
    (shop / "hello.lua").write_text(code)
    async with opened() as host:
        for given in (
            {"code": code},
            {"code_file": "hello.lua"},
            {"code_file": str(shop / "hello.lua")},
        ):
            told = await host.call("run", args={"name": "Ada"}, **given)
            assert prompt_of(told) == "Greet Ada"
            (rounds, told) = await finished(host, told, lambda prompt: "Hi")
            assert (rounds, told["result"]) == (1, "Hi")


async def test_a_batch_of_code_is_one_round():
    code = """
      local said = alc.llm_batch({ { prompt = "a" }, { prompt = "b" }, { prompt = "c" } })
      return table.concat(said, "+")
    """
    async with opened() as host:
        told = await host.call("run", code=code)
        assert len(told["questions"]) == 3
        rounds, told = await finished(host, told, str.upper)
        assert (rounds, told["result"]) == (1, "A+B+C")


async def test_a_session_of_code_goes_on_in_another_server():
    async with opened() as host:
        told = await host.call("run", code='return alc.llm("one") .. alc.llm("two")', key="twice")
        told = await host.call("answer", session_id=told["session_id"], answers=[{"response": "1"}])
    async with opened() as host:
        assert prompt_of(await host.call("status", session_id="twice")) == "two"
        told = await host.call("answer", session_id="twice", answers=[{"response": "2"}])
        assert told["result"] == "12"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("return 1 +", "unexpected symbol"),
        ("error('my own')", "my own"),
        ("return io.open('/etc/passwd'):read('a')", ""),
        ("return os.execute('touch touched')", ""),
        ("return nothing.at_all", "nothing"),
    ],
)
async def test_code_that_fails_says_where_and_harms_nothing(shop, code, words):
    async with opened() as host:
        told = await host.call("run", code=code)
        assert told["status"] == "error"
        assert words in told["error"]
        assert told["stats"]["auto"]["llm_calls"] == 0
        assert "`run` it as a new session" in told["next"]
        assert (await host.call("run", program="greet"))["status"] == "needs_response"
    assert not (shop / "touched").exists()


async def test_code_that_never_ends_is_stopped_and_others_go_on():
    async with opened() as host:
        told = await host.call("run", code="while true do end")
        assert told["status"] == "error"
        assert (await host.call("run", program="greet"))["status"] == "needs_response"


async def test_a_link_to_another_file_is_not_read_as_code(shop):
    (shop / "x.lua").symlink_to(Path("/etc/passwd"))
    async with opened() as host:
        assert await host.refused("run", code_file="x.lua") == "not_allowed"


@pytest.mark.parametrize("profile", ["default", "algocline"])
async def test_only_lua_files_of_the_project_and_of_packages_are_run(
    shop, tmp_path_factory, monkeypatch, profile
):
    """Links, `..` and absolute paths count by the file they lead to; a file that is not there is
    refused alike.
    """
    outside = tmp_path_factory.mktemp("outside")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
    installed = get_data_folder() / "packages" / "mine"
    installed.mkdir(parents=True)
    for file in (outside / "notes.lua", shop / "own.lua", installed / "init.lua"):
        file.write_text("return 'ran'")
    (shop / "linked.lua").symlink_to(outside / "notes.lua")
    (shop / "folder").symlink_to(outside)
    (shop / "inside.lua").symlink_to(shop / "own.lua")
    (outside / "back.lua").symlink_to(shop / "own.lua")
    os.mkfifo(shop / "pipe.lua")
    tool = "run" if profile == "default" else "alc_run"
    async with opened(profile=profile) as host:

        async def said(name):
            result = await host.client.call_tool(tool, {"code_file": str(name)})
            return result.is_error, f"{result.content[0].text} {json.dumps(result.meta or {})}"

        for name in ("own.lua", "inside.lua", outside / "back.lua", installed / "init.lua"):
            failed, words = await said(name)
            assert not failed, words
            assert "ran" in words
        up = os.path.relpath(outside / "notes.lua", shop)
        for name in (
            outside / "notes.lua",
            up,
            "linked.lua",
            "folder/notes.lua",
            "folder/../own.lua",
            outside / "none.lua",
        ):
            failed, words = await said(name)
            assert failed, name
            assert "outside the project" in words
            assert "not_allowed" in words
            assert "pass its text as `code`" in words
        failed, words = await said("pipe.lua")
        assert failed
        assert "not a regular file" in words


async def test_the_root_of_the_disk_is_not_a_project(shop, monkeypatch):
    """Some hosts start servers there: else every Lua file of the machine would be inside."""
    (shop / "own.lua").write_text("return 'ran'")
    monkeypatch.chdir("/")
    async with opened("memory://") as host:
        assert await host.refused("run", code_file=str(shop / "own.lua")) == "not_allowed"


@pytest.mark.parametrize(
    "code, words",
    [
        ("local a\n\n\n\n\n\nerror('oops')", ["code:7: oops", "call the tool `run` with it"]),
        (
            "local a\n\nlocal x = alc.chunk(nil)\nreturn x",
            ["text must be a string, got nil", 'File "code", line 3, in main chunk'],
        ),
        ("local x = = 1", ["code:1:", "call the tool `run` with it"]),
        ("print('hello')", ["result: null", "returned nothing", "`return`"]),
    ],
)
async def test_code_that_comes_to_nothing_says_what_to_do_with_the_code(code, words):
    """Also when somebody looks at it later."""
    async with opened() as host:
        told = await host.call("run", code=code)
        for text in (
            host.text,
            (await host.call("status", session_id=told["session_id"])) and host.text,
        ):
            assert all(word in text for word in words), text


async def test_code_that_fails_after_an_answer_says_what_to_do_with_the_code():
    async with opened() as host:
        told = await host.call("run", code="alc.llm('?') error('oops')")
        told = await host.call("answer", session_id=told["session_id"], answers=[{"response": "x"}])
        assert "call the tool `run` with it" in told["hint"]
        told = await host.call("retry", session_id=told["session_id"])
        assert "call the tool `run` with it" in told["hint"]
