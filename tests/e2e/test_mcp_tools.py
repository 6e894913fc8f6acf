"""The MCP tools as a host meets them, in one process: both protocols, every verb, every refusal."""

import json
import re

import pytest

import everhold
from everhold.mcp import instructions
from everhold.mcp.tools import TOOLS
from everhold.packages.strategies import NAMES
from tests.e2e.mcp_harness import answers, asked, build, last_json, opened, prompt_of
from tests.failures import collect_failures

MODES = ["auto", "legacy"]


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path))
    return tmp_path


# What a model is told


async def test_there_are_at_most_twelve_tools_and_each_explains_itself():
    """Description, schema without references, hints and an output schema: nothing has to be
    guessed.
    """
    async with opened() as host:
        tools = (await host.client.list_tools()).tools
    assert len(tools) <= 12
    for tool in tools:
        assert 100 < len(tool.description) < 1100, tool.name
        assert tool.input_schema["type"] == "object"
        assert "$ref" not in json.dumps(tool.input_schema)
        for name, part in tool.input_schema["properties"].items():
            assert part["description"], (tool.name, name)
            assert part["type"], (tool.name, name)
        assert tool.output_schema["type"] == "object"
        assert tool.annotations.title


async def test_hints_say_what_a_tool_may_do():
    async with opened() as host:
        hints = {tool.name: tool.annotations for tool in (await host.client.list_tools()).tools}
    assert {name for name, hint in hints.items() if hint.read_only_hint} == {
        "status", "sessions", "strategies", "explain"
    }  # fmt: skip
    assert {name for name, hint in hints.items() if hint.destructive_hint} == {"cancel"}
    assert not hints["run"].idempotent_hint
    assert hints["answer"].idempotent_hint


@pytest.mark.parametrize("mode", MODES)
async def test_the_instructions_are_short_and_begin_with_the_loop(mode):
    async with opened(mode=mode) as host:
        told = host.client.session.instructions
    assert told == instructions.INSTRUCTIONS
    assert len(told) <= 900
    assert told.startswith("How to use everhold: `run`")


async def test_descriptions_name_only_tools_that_exist():
    names = {tool.name for tool in TOOLS}
    for tool in TOOLS:
        for word in ("answer", "status", "retry", "fork", "strategies", "run"):
            assert f"tool `{word}`" not in tool.description or word in names


# The loop


@pytest.mark.parametrize("mode", MODES)
async def test_a_program_runs_from_question_to_result(mode):
    async with opened(mode=mode) as host:
        assert host.client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        told = await host.call("run", program="greet", args={"name": "Ada"})
        assert told | {"next": "", "session_id": ""} == {
            "status": "needs_response",
            "session_id": "",
            "questions": [
                {"id": "q-0", "prompt": "Greet Ada.", "system": "Be brief.", "max_tokens": 1024}
            ],
            "title": "greet",
            "next": "",
        }
        told = await host.call(
            "answer",
            session_id=told["session_id"],
            answers=[{"id": "q-0", "response": "Hello, Ada.", "usage": {"prompt_tokens": 5}}],
        )
        assert told["status"] == "completed"
        assert told["result"] == "Hello, Ada."
        assert told["stats"]["auto"]["llm_calls"] == 1


async def test_the_key_of_a_deleted_session_is_refused_unless_a_new_one_is_meant():
    """The host is told what to say, and nothing is begun until it says it."""
    async with opened() as host:
        wanted = {"program": "greet", "args": {"name": "Ada"}, "key": "k"}
        told = await host.call("run", **wanted)
        await host.call("cancel", session_id=told["session_id"])
        async with everhold.open() as runtime:
            await runtime.delete(told["session_id"])
        refused = await host.call("run", **wanted)
        assert refused["code"] == "key_deleted" and "again" in refused["hint"]
        anew = await host.call("run", again=True, **wanted)
        assert anew["status"] == "needs_response" and anew["session_id"] != told["session_id"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_host_that_sees_only_the_last_result_finishes_three_rounds(mode):
    """The sentence under `next` names tool, session and questions; nothing else is remembered."""
    async with opened(mode=mode) as host:
        await host.call("run", program="panel", args={"task": "Why?"})
        rounds = 0
        while host.last["status"] == "needs_response":
            rounds += 1
            said = last_json(host.last["next"])
            assert [one["id"] for one in said["answers"]] == list(asked(host.last))
            assert "`answer`" in host.last["next"]
            assert host.last["next"] in host.text
            await host.call("answer", **said)
        assert rounds == 3
        assert host.last["result"] == {"answer": ["…"] * 9}


@pytest.mark.parametrize("mode", MODES)
async def test_next_leads_to_the_questions_of_children_and_back(mode):
    """A session that waits for a child names the one that asks, at once; a child that has ended
    names its parent.
    """
    async with opened(mode=mode) as host:
        told = await host.call("run", program="family", wait=300)
        first, asked_by = told["session_id"], []
        while told["status"] != "completed" or told["session_id"] != first:
            if "`answer`" in told["next"]:
                said = last_json(told["next"])
                asked_by.append(said["session_id"])
                told = await host.call(
                    "answer", session_id=said["session_id"], answers=answers(told), wait=300
                )
            else:
                named = re.search(r"`status` with session_id '(s-[0-9a-f-]+)'", told["next"])
                told = await host.call("status", session_id=named[1], wait=300)
        assert told["result"] == ["yes to q-0 and yes to q-1", "yes to q-0"]
        assert len(asked_by) == len(set(asked_by)) == 3
        assert first not in asked_by


async def test_a_child_that_waits_for_a_person_is_named_too():
    async with opened() as host:
        told = await host.call("run", program="manager", args={"order": "7"}, wait=300)
        named = re.search(r"`status` with session_id '(s-[0-9a-f-]+)'", told["next"])[1]
        assert named != told["session_id"]
        for tool in ("status", "ask_person"):
            assert named in (await host.call(tool, session_id=told["session_id"]))["next"]
        child = re.search(
            r"s-[0-9a-f-]+", (await host.call("explain", session_id=told["session_id"]))["moves"][0]
        )[0]
        assert named in (await host.call("explain", session_id=child))["moves"][0]
        told = await host.call("status", session_id=named)
        assert told["for_people"][0]["prompt"] == "Refund 7?"


async def test_a_host_that_reads_only_text_sees_every_prompt_and_id():
    async with opened() as host:
        told = await host.call("run", program="panel", args={"task": "Why?"})
        for query_id, query in asked(told).items():
            assert f"Question {query_id}" in host.text
            assert query["prompt"] in host.text
        assert told["session_id"] in host.text


async def test_some_answers_of_a_batch_are_accepted_and_the_rest_asked_for():
    async with opened() as host:
        told = await host.call("run", program="panel", args={"task": "Why?"})
        some = await host.call("answer", session_id=told["session_id"], answers=answers(told)[:2])
        assert (some["status"], some["remaining"]) == ("accepted", 1)
        assert f"`status` with session_id '{told['session_id']}'" in some["next"]
        left = await host.call("status", session_id=told["session_id"])
        assert list(asked(left)) == ["q-2"]


async def test_a_strategy_comes_with_an_estimate_and_a_title():
    async with opened() as host:
        told = await host.call(
            "run", program="self_consistency", args={"task": "How many legs has a spider?"}
        )
        assert told["estimate"]["answers"]
        assert told["estimate"]["rounds"]
        assert told["title"] == "self_consistency: How many legs has a spider?"
        listed = await host.call("sessions")
        assert listed["sessions"][0]["title"] == told["title"]


async def test_a_title_and_a_key_of_ones_own_are_kept():
    async with opened() as host:
        told = await host.call("run", program="greet", key="mine", title="Say hello")
        again = await host.call("run", program="greet", key="mine")
        assert again["session_id"] == told["session_id"]
        assert again["title"] == told["title"] == "Say hello"


async def test_a_typed_question_shows_its_schema_and_takes_json_or_its_text():
    async with opened() as host:
        for response in ({"right": True, "why": "so"}, '{"right": true, "why": "so"}'):
            told = await host.call("run", program="judge")
            assert "why" in json.dumps(told["questions"][0]["schema"])
            assert "schema" in host.text
            told = await host.call(
                "answer", session_id=told["session_id"], answers=[{"response": response}]
            )
            assert told["result"] == {"right": True, "why": "so"}


async def test_an_error_is_an_answer_too():
    async with opened() as host:
        session = await host.paused("greet")
        told = await host.call("answer", session_id=session, answers=[{"error": "I may not greet"}])
        assert told["status"] == "error"
        assert "I may not greet" in told["error"]


async def test_an_answer_that_was_an_error_is_given_after_all_as_next_says():
    """A retry would only hear the same error again; `explain` names a fork, `status` the step."""
    async with opened() as host:
        session = await host.paused("greet")
        told = await host.call("answer", session_id=session, answers=[{"error": "I may not greet"}])
        assert f"the everhold tool `explain` with session_id {session!r}" in told["next"]
        moves = (await host.call("explain", session_id=session))["moves"]
        assert any("fork" in move for move in moves)
        rows = (await host.call("status", session_id=session, steps=True))["journal"]
        step = next(
            row["step"]
            for row in rows
            for one in row["answers"]
            if one["answer"].startswith("error")
        )
        assert (await host.call("fork", session_id=session, at=step, answer="Hello."))[
            "result"
        ] == "Hello."


async def test_a_budget_is_kept_and_raised():
    """A retry with a larger one continues; no question is asked twice."""
    async with opened() as host:
        told = await host.call(
            "run", program="panel", args={"task": "Why?"}, budget={"max_llm_calls": 3}
        )
        told = await host.call("answer", session_id=told["session_id"], answers=answers(told))
        assert told["status"] == "error"
        assert told["code"] == "budget_exceeded"
        assert f"`retry` with session_id {told['session_id']!r}" in told["hint"]
        assert "a larger `budget`" in told["hint"]
        told = await host.call("retry", session_id=told["session_id"], budget={"max_llm_calls": 30})
        assert told["status"] == "needs_response"


async def test_a_timer_is_not_waited_for_when_it_is_far():
    """A host's call comes back at once, and says when to look again."""
    async with opened() as host:
        told = await host.call("run", program="nap")
        assert told["status"] == "waiting"
        assert told["until"]
        assert "`status`" in told["next"]


async def test_a_timer_that_is_near_is_waited_for():
    async with opened() as host:
        told = await host.call("run", program="nap", args={"seconds": 0.05})
        assert (told["status"], told["result"]) == ("completed", "rested")


# Looking and changing


async def test_status_shows_what_was_said_and_what_it_cost():
    async with opened() as host:
        told = await host.call("run", program="panel", args={"task": "Why?"})
        await host.call("answer", session_id=told["session_id"], answers=answers(told))
        told = await host.call("status", session_id=told["session_id"], steps=True)
        assert told["status"] == "needs_response"
        assert told["metrics"]["llm_calls"] == 6
        assert told["metrics"]["progress"]["step"] == 1
        assert [row["asked"] for row in told["journal"]] == [
            ["q-0", "q-1", "q-2"],
            ["q-3", "q-4", "q-5"],
        ]
        assert told["journal"][1]["answers"][0]["answer"] == "yes to q-0"


async def test_status_of_a_finished_session_has_its_result():
    """A client that missed the answer's result has lost nothing."""
    async with opened() as host:
        session = await host.paused("greet")
        done = await host.call("answer", session_id=session, answers=[{"response": "Hello"}])
        told = await host.call("status", session_id=session)
        assert (told["status"], told["result"], told["stats"]) == (
            "completed",
            "Hello",
            done["stats"],
        )


async def test_a_session_is_found_by_the_beginning_of_its_id_by_its_key_and_as_the_last():
    async with opened() as host:
        told = await host.call("run", program="greet", key="mine")
        for name in (told["session_id"][:30], "mine", "@last"):
            assert (await host.call("status", session_id=name))["session_id"] == told["session_id"]


async def test_sessions_are_listed_page_by_page():
    async with opened() as host:
        ids = [await host.paused("greet", name=str(number)) for number in range(3)]
        first = await host.call("sessions", limit=2)
        rest = await host.call("sessions", limit=2, after=first["sessions"][-1]["session_id"])
        listed = [row["session_id"] for row in first["sessions"] + rest["sessions"]]
        assert listed == ids[::-1]
        assert "`sessions` with after 's-" in first["next"]
        assert first["database"].endswith("app.db")
        assert (await host.call("sessions", state="completed"))["sessions"] == []
        assert (
            "with state 'paused' and after 's-"
            in (await host.call("sessions", state="paused", limit=2))["next"]
        )


async def test_a_child_is_listed_with_its_parent():
    async with opened() as host:
        told = await host.call("run", program="asks_a_child")
        child, parent = (await host.call("sessions"))["sessions"]
        assert (child["parent"], parent["session_id"]) == (told["session_id"], told["session_id"])
        assert "parent" not in parent


async def test_a_session_is_cancelled_and_stays_so():
    async with opened() as host:
        session = await host.paused("greet")
        told = await host.call("cancel", session_id=session, reason="enough")
        assert told["status"] == "cancelled"
        assert (await host.call("cancel", session_id=session))["status"] == "cancelled"
        assert await host.refused(
            "answer", session_id=session, answers=[{"id": "q-0", "response": "x"}]
        )


async def test_a_fork_changes_one_answer_and_keeps_the_rest():
    async with opened() as host:
        told = await host.call("run", program="panel", args={"task": "Why?"})
        while told["status"] == "needs_response":
            told = await host.call("answer", session_id=told["session_id"], answers=answers(told))
        other = await host.call("fork", session_id=told["session_id"], at=3, id="q-7", answer="no")
        assert other["session_id"] != told["session_id"]
        # of the step that was changed; earlier ones are shared
        assert list(asked(other)) == ["q-6", "q-8"]
        other = await host.call("answer", session_id=other["session_id"], answers=answers(other))
        assert other["result"]["answer"][6:] == ["yes to q-6", "no", "yes to q-8"]
        assert (await host.call("status", session_id=told["session_id"]))["result"]["answer"][
            7
        ] == "yes to q-7"


async def test_a_failed_session_goes_on_when_it_is_mended(shop):
    async with opened() as host:
        session = await host.paused("breaks")
        told = await host.call("answer", session_id=session, answers=[{"response": "fine"}])
        assert (told["status"], told["code"]) == ("error", "failed")
        assert "`retry`" in told["next"]
        (shop / "mended").touch()
        assert (await host.call("retry", session_id=session))["result"] == "fine"


async def test_explain_says_what_a_session_waits_for():
    async with opened() as host:
        session = await host.paused("greet")
        told = await host.call("explain", session_id=session)
        assert told["state"] == "paused"
        assert any("q-0" in line for line in told["because"])


async def test_strategies_are_listed_with_cost_and_described():
    async with opened() as host:
        listed = {row["name"]: row for row in (await host.call("strategies"))["strategies"]}
        assert {"cot", "reflect", "panel", "ucb", "greet"} <= set(listed)
        assert listed["reflect"]["cost"]
        assert listed["greet"]["summary"] == "Greet somebody."
        told = await host.call("strategies", name="reflect")
        assert told["parameters"][0]["name"] == "task"
        assert told["papers"]
        assert (await host.call("strategies", name="greet"))["parameters"] == ["name: str = 'you'"]


async def test_a_program_that_is_listed_while_the_server_runs_is_found(shop):
    async with opened() as host:
        assert await host.refused("run", program="late") == "unknown_program"
        (shop / "late.py").write_text(
            "import everhold\n@everhold.program\nasync def late(ctx):\n    return await"
            " ctx.llm('Late?')\n"
        )
        (shop / "everhold.toml").write_text(
            'database = "app.db"\nprograms = ["shop.py", "late.py"]\n'
        )
        assert prompt_of(await host.call("run", program="late")) == "Late?"
        assert "late" in {row["name"] for row in (await host.call("strategies"))["strategies"]}


# Refusals


#: What is refused, and with which code.
REFUSED = [
    ("run", {}, "bad_request"),
    ("run", {"program": "greet", "code": "return 1"}, "bad_request"),
    ("run", {"program": "nobody"}, "unknown_program"),
    ("run", {"program": ""}, "bad_request"),
    ("run", {"program": 7}, "bad_request"),
    ("run", {"program": "greet", "args": {"nme": "x"}}, "bad_arguments"),
    ("run", {"program": "greet", "args": {"name": 7}}, "bad_arguments"),
    ("run", {"program": "greet", "args": [1]}, "bad_request"),
    ("run", {"program": "greet", "args": "{"}, "bad_request"),
    ("run", {"program": "greet", "budget": {"max_llm_calls": -1}}, "bad_setting"),
    ("run", {"program": "greet", "budget": {"max_calls": 1}}, "bad_request"),
    ("run", {"program": "greet", "wait": -1}, "bad_request"),
    ("run", {"program": "greet", "wait": 1e9}, "bad_request"),
    ("run", {"program": "greet", "surprise": True}, "bad_request"),
    ("run", {"program": "greet", "title": "x" * 9_000_000}, "bad_request"),
    ("run", {"code_file": "shop.py"}, "bad_request"),
    ("run", {"code_file": "nowhere/x.lua"}, "bad_request"),
    ("run", {"code_file": "x\0.lua"}, "bad_request"),
    ("run", {"code_file": "~nobody-of-this-name/x.lua"}, "bad_request"),
    ("run", {"code_file": "/nowhere/x.lua"}, "not_allowed"),
    ("run", {"code": "x" * 1_000_001}, "bad_request"),
    ("answer", {"session_id": "s-nobody", "answers": [{"response": "x"}]}, "unknown_session"),
    ("answer", {"session_id": "", "answers": [{"response": "x"}]}, "bad_id"),
    ("answer", {"session_id": "@last", "answers": []}, "bad_request"),
    ("answer", {"session_id": "@last", "answers": [{}]}, "bad_request"),
    (
        "answer",
        {"session_id": "@last", "answers": [{"response": "x", "error": "y"}]},
        "bad_request",
    ),
    (
        "answer",
        {"session_id": "@last", "answers": [{"id": "q-9", "response": "x"}]},
        "unknown_query",
    ),
    (
        "answer",
        {"session_id": "@last", "answers": [{"id": "nine", "response": "x"}]},
        "unknown_query",
    ),
    ("answer", {"session_id": "@last", "answers": [{"response": 7}]}, "answer_refused"),
    (
        "answer",
        {"session_id": "@last", "answers": [{"response": "x", "usage": {"tokens": 1}}]},
        "bad_request",
    ),
    ("answer", {"answers": [{"response": "x"}]}, "bad_request"),
    ("status", {"session_id": 5}, "bad_request"),
    ("status", {"session_id": "s-0"}, "unknown_session"),
    ("sessions", {"state": "asleep"}, "bad_setting"),
    ("sessions", {"limit": 0}, "bad_request"),
    ("sessions", {"after": "s-0"}, "unknown_session"),
    ("cancel", {"session_id": "s-0"}, "unknown_session"),
    ("fork", {"session_id": "@last", "at": 99}, "bad_step"),
    ("fork", {"session_id": "@last", "at": -1}, "bad_step"),
    ("fork", {"session_id": "@last", "at": 0, "answer": "x"}, "bad_step"),
    ("fork", {"session_id": "@last", "answer": "x"}, "bad_request"),
    ("fork", {"session_id": "@last", "id": "q-0"}, "bad_request"),
    ("retry", {"session_id": "@last"}, "illegal_move"),
    ("explain", {"session_id": "s-0"}, "unknown_session"),
    ("run", {"program": "greet", "args": {"self": "me"}}, "bad_arguments"),
    ("answer", {"answers": [{"response": "x", "usage": {"prompt_tokens": -1}}]}, "bad_request"),
    ("strategies", {"name": "nobody"}, "unknown_program"),
]


async def test_what_does_not_fit_is_refused_with_a_code_and_changes_nothing():
    async with opened() as host:
        session = await host.paused("greet")
        before = await host.call("status", session_id=session)
        with collect_failures() as row:
            for tool, arguments, code in REFUSED:
                with row(tool, str(arguments)[:100]):
                    assert await host.refused(tool, **arguments) == code
                    assert "Traceback" not in host.text
                    after = await host.call("status", session_id=session)
                    assert {**after, "metrics": 0} == {**before, "metrics": 0}
                    assert len((await host.call("sessions"))["sessions"]) == 1


#: What is refused, and words that say what would fit.
HINTED = [
    (
        "answer",
        {"session_id": "@last", "query_id": "q-0", "response": "x"},
        "answers (each with id, response",
    ),
    (
        "answer",
        {"session_id": "@last", "answers": [{"answer": "x"}]},
        "answers (each with id, response",
    ),
    ("run", {"program": "greet", "budget": {"calls": 1}}, "budget (with max_llm_calls"),
    ("fork", {"session_id": "@last", "at": 99}, "and steps: true to see the steps"),
    ("retry", {"session_id": "@last"}, "Only a failed session can be retried"),
    ("run", {"program": "reflct"}, "Did you mean 'reflect'? Call the tool `strategies`"),
    ("run", {"program": "notes/second_look.lua"}, "use code_file instead of program"),
    (
        "run",
        {"program": "greet", "title": "t" * 1001},
        "hint: Nothing was changed. Correct the call.",
    ),
    (
        "answer",
        {"session_id": "@last", "answers": [{"response": "x"}, {"response": "y"}]},
        "was given two answers in one call\n\ncode: answer_conflict\n\nhint: Nothing was"
        " changed. Give one",
    ),
]


async def test_a_refusal_names_what_would_fit():
    async with opened() as host:
        await host.paused("greet")
        with collect_failures() as row:
            for tool, arguments, words in HINTED:
                with row(tool, str(arguments)[:100]):
                    await host.refused(tool, **arguments)
                    assert words in host.text


@pytest.mark.parametrize(
    "given",
    [
        {"id": "q-0", "response": "x"},
        [{"id": "q-0", "response": "x"}],
        '{"id": "q-0", "response": "x"}',
        '[{"response": "x"}]',
    ],
)
async def test_answers_that_are_plainly_meant_are_taken(given):
    async with opened() as host:
        session = await host.paused("greet")
        assert (await host.call("answer", session_id=session, answers=given))["result"] == "x"


async def test_one_answer_that_does_not_fit_refuses_all():
    async with opened() as host:
        told = await host.call("run", program="panel", args={"task": "Why?"})
        given = [*answers(told)[:2], {"id": "q-2", "response": 5}]
        assert (
            await host.refused("answer", session_id=told["session_id"], answers=given)
            == "answer_refused"
        )
        assert "the answer to q-2 does not fit" in host.last["error"]
        assert len(asked(await host.call("status", session_id=told["session_id"]))) == 3


async def test_the_same_answer_again_is_harmless_and_another_is_a_conflict():
    async with opened() as host:
        told = await host.call("run", program="panel", args={"task": "Why?"})
        session, given = told["session_id"], answers(told)
        second = await host.call("answer", session_id=session, answers=given)
        again = await host.call("answer", session_id=session, answers=given)
        assert asked(again) == asked(second)
        changed = [{**given[0], "response": "other"}]
        assert (
            await host.refused("answer", session_id=session, answers=changed) == "answer_conflict"
        )
        twice = [{"id": "q-3", "response": "a"}, {"id": "q-3", "response": "b"}]
        assert await host.refused("answer", session_id=session, answers=twice) == "answer_conflict"


async def test_objects_sent_as_json_text_are_understood():
    """Some hosts hand every argument on as text."""
    async with opened() as host:
        told = await host.call("run", program="greet", args='{"name": "Ada"}', key=None)
        assert prompt_of(told) == "Greet Ada."
        given = '[{"id": "q-0", "response": "Hi", "error": null}]'
        assert (await host.call("answer", session_id=told["session_id"], answers=given))[
            "result"
        ] == "Hi"


async def test_empty_text_is_nothing_where_nothing_would_do():
    """Some hosts have their model fill in every parameter."""
    empty = {"code": "", "code_file": "", "key": "", "title": ""}
    async with opened() as host:
        told = await host.call("run", program="greet", args={"name": ""}, **empty)
        assert (prompt_of(told), told["title"]) == ("Greet .", "greet")
        given = [{"id": told["questions"][0]["id"], "response": "Hi", "error": ""}]
        assert (await host.call("answer", session_id=told["session_id"], answers=given))[
            "result"
        ] == "Hi"
        assert await host.refused("run", **empty, program="") == "bad_request"
        assert await host.refused("status", session_id="") == "bad_id"
        assert (await host.call("sessions", state="", after=""))["sessions"]
        assert (await host.call("strategies", name=""))["strategies"]
        other = await host.call(
            "fork", session_id=told["session_id"], at=1, answer="", id="", title=""
        )
        assert other["result"] == ""


async def test_an_unknown_tool_prompt_or_resource_is_an_error_of_the_protocol():
    from mcp import MCPError

    async with opened() as host:
        with pytest.raises(MCPError, match="Unknown tool"):
            await host.client.call_tool("approve", {})
        with pytest.raises(MCPError, match="Unknown prompt"):
            await host.client.get_prompt("nobody", {})
        with pytest.raises(MCPError, match="needs 'task'"):
            await host.client.get_prompt("reflect", {})
        with pytest.raises(MCPError, match="not found"):
            await host.client.read_resource("everhold://nowhere")


# Prompts and the guide


async def test_every_strategy_is_a_prompt_and_so_are_resume_and_status():
    async with opened() as host:
        names = [prompt.name for prompt in (await host.client.list_prompts()).prompts]
        assert names == [*NAMES, "resume", "status"]
        told = await host.client.get_prompt("reflect", {"task": "Say why."})
        assert "Say why." in told.messages[0].content.text
        assert "`run`" in told.messages[0].content.text
        for name in ("resume", "status"):
            plain = (await host.client.get_prompt(name, {})).messages[0].content.text
            named = (
                (await host.client.get_prompt(name, {"session_id": "s-1"})).messages[0].content.text
            )
            assert "`sessions`" in plain
            assert "s-1" in named


async def test_the_guide_is_a_resource():
    async with opened() as host:
        (listed,) = (await host.client.list_resources()).resources
        (page,) = (await host.client.read_resource(listed.uri)).contents
        assert page.text == instructions.load_guide()
        assert page.mime_type == "text/markdown"
        assert (await host.client.list_resource_templates()).resource_templates == []
