"""A session is a task to clients that know tasks: what it needs, what came of it, who may answer,
and what survives.
"""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.extension import advertise

import everhold
from everhold.mcp import make_front
from everhold.mcp.tasks import EXTENSION
from tests.e2e.mcp_clients import (
    ANYTHING,
    Knows,
    accepted,
    ask,
    call,
    furnish,
    model,
    person,
    sampled,
    update,
)
from tests.e2e.mcp_harness import Host, build, opened, prompt_of
from tests.e2e.test_mcp_http import serving


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(furnish(build(tmp_path)))
    return tmp_path


@asynccontextmanager
async def knowing(database=None, *, samples=True, **options):
    """A client that knows tasks and, unless it is said otherwise, asks its model."""
    if samples:
        options["sampling_callback"] = model()
    async with opened(database, extensions=[Knows()], **options) as host:
        yield host


async def begun(host, program, **args):
    """The id of a task that a call made."""
    found = await call(host, "run", {"program": program, "args": args})
    assert (found.result_type, found.status) == ("task", "working")
    return found.task_id


async def get(host, task_id):
    return await ask(host, "tasks/get", task_id)


async def until(host, task_id, status):
    """The task once it has this status."""
    async with asyncio.timeout(60):
        while (found := await get(host, task_id))["status"] != status:
            await asyncio.sleep(0.02)
    return found


async def refused(code, asking):
    """Data of an error of the protocol with this code."""
    with pytest.raises(MCPError) as caught:
        await asking
    assert caught.value.error.code == code, caught.value
    return caught.value.error.data


async def answers_of(session_id):
    async with everhold.open() as runtime:
        return {
            answer.id: answer for step in await runtime.steps(session_id) for answer in step.answers
        }


# A task's life


async def test_a_call_makes_a_task_that_is_a_session_and_is_there_at_once():
    async with knowing() as host:
        task = await begun(host, "greet", name="Ann")
        found = await get(host, task)
        assert found == {
            "resultType": "complete",
            "taskId": task,
            "status": "input_required",
            "createdAt": found["createdAt"],
            "lastUpdatedAt": found["lastUpdatedAt"],
            "ttlMs": None,
            "pollIntervalMs": 1000,
            "inputRequests": found["inputRequests"],
        }
        assert found["createdAt"].endswith("Z")
        assert prompt_of(await host.call("status", session_id=task)) == "Greet Ann."


async def test_what_it_needs_is_answered_and_what_came_of_it_is_what_the_tool_returns():
    async with knowing() as host:
        task = await begun(host, "greet", name="Ann")
        request = (await get(host, task))["inputRequests"]["q-0"]
        assert request["method"] == "sampling/createMessage"
        assert request["params"]["systemPrompt"] == "Be brief."
        assert request["params"]["messages"][0]["content"]["text"] == "Greet Ann."
        assert await update(host, task, q_0=sampled("Hi Ann!")) == {"resultType": "complete"}
        found = await until(host, task, "completed")
        told = found["result"]
        assert told["isError"] is False
        assert (told["structuredContent"]["status"], told["structuredContent"]["result"]) == (
            "completed",
            "Hi Ann!",
        )
        assert "Hi Ann!" in told["content"][0]["text"]
        assert "inputRequests" not in found
    kept = (await answers_of(task))["q-0"]
    assert (kept.by["front"], kept.by["through"], kept.usage.model) == ("mcp", "task", "m-1")


async def test_a_client_that_knows_tasks_makes_one_call():
    extension = Knows()
    async with opened(extensions=[extension], sampling_callback=model()) as host:
        # more than a client makes rounds
        told = await host.call("run", program="long", args={"steps": 25})
        assert told["result"] == [f"answer to Step {step}?" for step in range(25)]
    assert extension.polls > 25


async def test_what_a_child_asks_its_parents_task_needs():
    """Under a key that names the child: a client that knows nothing of children answers it like
    anything else.
    """
    async with knowing() as host:
        told = (await host.client.call_tool("run", {"program": "family"})).structured_content
        assert told["result"] == [
            "answer to Greet you. and answer to And you?",
            "answer to Greet Ada.",
        ]


async def test_a_child_is_answered_by_its_own_key_and_no_other():
    async with knowing() as host:
        task = await begun(host, "family")
        found = await until(host, task, "input_required")
        (key,) = found["inputRequests"]
        child, _, query = key.partition("/")
        assert child != task and query == "q-0"
        await update(
            host, task, **{"q-0": sampled("for nobody"), f"{task}/q-0": sampled("for nobody")}
        )
        assert list((await get(host, task))["inputRequests"]) == [key]
        assert await answers_of(child) == {}
        await ask(
            host,
            "tasks/update",
            task,
            inputResponses={key: sampled("hello").model_dump(by_alias=True)},
        )
        assert (await answers_of(child))["q-0"].value == "hello"


async def test_what_ends_at_once_is_no_task():
    async with knowing() as host:
        found = await call(host, "run", {"program": "long", "args": {"steps": 0}})
        assert found.structured_content["result"] == []


async def test_answers_may_come_one_by_one():
    async with knowing() as host:
        task = await begun(host, "panel", task="Why?")
        assert list((await get(host, task))["inputRequests"]) == ["q-0", "q-1", "q-2"]
        await update(host, task, q_1=sampled("one"))
        found = await get(host, task)
        assert (found["status"], list(found["inputRequests"])) == ("input_required", ["q-0", "q-2"])
        await update(host, task, q_0=sampled("zero"), q_2=sampled("two"))
        assert list((await get(host, task))["inputRequests"]) == ["q-3", "q-4", "q-5"]


async def test_a_task_that_waits_for_nobody_here_works_and_says_for_what():
    async with knowing() as host:
        task = await begun(host, "nap")
        found = await get(host, task)
        assert found["status"] == "working"
        assert "timer" in found["statusMessage"]


async def test_a_fork_is_a_task_of_its_own():
    async with knowing() as host:
        task = await begun(host, "refund", order="7")
        await update(host, task, q_0=sampled("broken"))
        forked = await call(host, "fork", {"session_id": task, "at": 0})
        assert forked.task_id != task
        assert list((await get(host, forked.task_id))["inputRequests"]) == ["q-0"]


async def test_a_program_that_fails_completes_its_task_with_an_error():
    async with knowing() as host:
        task = await begun(host, "breaks")
        await update(host, task, q_0=sampled("anything"))
        told = (await until(host, task, "completed"))["result"]
        assert told["isError"] is True
        assert "not mended yet" in told["structuredContent"]["error"]


async def test_a_task_fails_if_our_own_work_broke():
    async with knowing() as host:
        task = await begun(host, "dies")
        found = await until(host, task, "failed")
        assert found["error"]["code"] == -32603
        assert found["error"]["data"]["code"] == "poison"
        assert found["error"]["message"] == found["statusMessage"]
        assert "result" not in found


# Cancelling


async def test_a_task_that_is_cancelled_in_the_middle_stays_cancelled():
    async with knowing() as host:
        task = await begun(host, "panel", task="Why?")
        await update(host, task, q_0=sampled("zero"))
        assert await ask(host, "tasks/cancel", task) == {"resultType": "complete"}
        found = await get(host, task)
        assert found["status"] == "cancelled"
        assert "result" not in found
        assert await ask(host, "tasks/cancel", task) == {"resultType": "complete"}
        assert await update(host, task, q_1=sampled("late")) == {"resultType": "complete"}
        assert (await get(host, task))["status"] == "cancelled"
    assert list(await answers_of(task)) == ["q-0"]


async def test_a_task_that_is_cancelled_while_somebody_here_answers_does_not_complete():
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def here(query):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with knowing(samples=False, llm=here) as host:
        task = await begun(host, "greet")
        async with asyncio.timeout(60):
            await asked.wait()
            assert (await get(host, task))["status"] == "working"
            await ask(host, "tasks/cancel", task)
            await until(host, task, "cancelled")
            await stopped.wait()
    assert await answers_of(task) == {}


async def test_cancelling_what_has_ended_changes_nothing():
    async with knowing() as host:
        task = await begun(host, "greet")
        await update(host, task, q_0=sampled("Hi!"))
        assert await ask(host, "tasks/cancel", task) == {"resultType": "complete"}
        assert (await get(host, task))["status"] == "completed"


# Bad input


async def test_what_was_not_asked_or_is_answered_is_ignored():
    async with knowing() as host:
        task = await begun(host, "refund", order="7")
        odd = {
            "unknown-key": {"ignored": True},
            "q-7": sampled("no such question"),
            "q-1": accepted(approve=True),
        }
        assert await update(host, task, **odd) == {"resultType": "complete"}
        await update(host, task, q_0=sampled("broken"))
        await update(host, task, q_0=sampled("something else"))
    assert (await answers_of(task))["q-0"].value == "broken"


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        ({"action": "accept", "content": {"answer": "4"}}, "bad_request"),
        ({"role": "assistant"}, "bad_request"),
        ({"role": "assistant", "model": "m", "content": []}, "bad_request"),
        (
            {
                "role": "assistant",
                "model": "m",
                "content": {"type": "image", "data": "", "mimeType": "a/b"},
            },
            "bad_request",
        ),
        (sampled("four"), "answer_refused"),
    ],
)
async def test_an_update_with_one_bad_answer_is_refused_and_nothing_of_it_is_taken(odd, code):
    async with knowing() as host:
        task = await begun(host, "count")
        data = await refused(-32602, update(host, task, q_0=sampled("3"), q_1=odd))
        assert data["code"] == code
        assert data["hint"]
        assert list((await get(host, task))["inputRequests"]) == ["q-0", "q-1"]
        await update(host, task, q_0=sampled("3"), q_1=sampled("4"))
        found = await until(host, task, "completed")
        assert found["result"]["structuredContent"]["result"] == [3, 4]


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_task_is_named_by_its_whole_id(method):
    more = {"inputResponses": {}} if method == "tasks/update" else {}
    async with knowing() as host:
        task = await begun(host, "greet")
        for name in ("nobody", task[:-1], "@last", ""):
            data = await refused(-32602, ask(host, method, name, **more))
            assert (data["code"], bool(data["hint"])) == ("unknown_session", True)
        assert (await get(host, task))["status"] == "input_required"


async def test_a_database_that_cannot_be_opened_is_an_error_of_ours(shop):
    (shop / "broken.db").write_bytes(b"not a database, " * 1000)
    async with knowing(shop / "broken.db") as host:
        data = await refused(-32603, get(host, "s-1"))
        assert data["code"].startswith("store_")
        assert data["hint"]


# Who is let in


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_who_has_not_declared_tasks_gets_none(method):
    async with knowing() as host:
        task = await begun(host, "greet")
    more = {"inputResponses": {"q-0": {}}} if method == "tasks/update" else {}
    async with opened(sampling_callback=model()) as host:
        data = await refused(-32021, ask(host, method, task, **more))
        assert data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    async with opened(mode="legacy", extensions=[advertise(EXTENSION)]) as host:
        assert await refused(-32601, ask(host, method, task, **more)) == method
    assert await answers_of(task) == {}


async def test_without_a_model_to_ask_a_call_is_told_as_ever():
    async with knowing(samples=False) as host:
        assert (await host.call("run", program="greet"))["status"] == "needs_response"


async def test_where_somebody_here_answers_a_task_needs_nothing():
    async def here(query):
        await asyncio.sleep(0.01)
        return "from here"

    async with knowing(samples=False, llm=here) as host:
        task = await begun(host, "greet")
        found = await until(host, task, "completed")
        assert found["result"]["structuredContent"]["result"] == "from here"


async def test_what_a_client_has_not_declared_it_is_not_asked():
    async with knowing() as host:
        task = await begun(host, "greet")
    async with knowing(samples=False) as host:
        found = await get(host, task)
        assert found["status"] == "working"
        assert "q-0" in found["statusMessage"]
        assert (await refused(-32602, update(host, task, q_0=sampled("forged"))))[
            "code"
        ] == "not_allowed"
    assert await answers_of(task) == {}


# People


async def test_a_person_decides_in_a_form_and_a_model_does_not(shop):
    async with knowing(elicitation_callback=person()) as host:
        task = await begun(host, "refund", order="7")
        await update(host, task, q_0=sampled("broken"))
        found = await get(host, task)
        request = found["inputRequests"]["q-1"]
        assert request["method"] == "elicitation/create"
        assert "Refund 7? broken" in request["params"]["message"]
        data = await refused(-32602, update(host, task, q_1=sampled("true")))
        assert data["code"] == "bad_request"
        for no_answer in (
            {"action": "decline"},
            {"action": "cancel"},
            accepted(),
            accepted(approve="yes"),
        ):
            await update(host, task, q_1=no_answer)
            assert (await get(host, task))["status"] == "input_required"
        assert not (shop / "paid").exists()
        await update(host, task, q_1=accepted(approve=True))
        assert (await until(host, task, "completed"))["result"]["structuredContent"][
            "result"
        ] == "sent"
    assert (shop / "paid").read_text() == "7\n"


async def test_without_forms_the_task_says_what_a_person_types(shop):
    async with knowing() as host:
        task = await begun(host, "refund", order="7")
        await update(host, task, q_0=sampled("broken"))
        found = await get(host, task)
        assert found["status"] == "working"
        assert f"everhold answer {task} --query q-1" in found["statusMessage"]
        data = await refused(-32602, update(host, task, q_1=accepted(approve=True)))
        assert data["code"] == "not_allowed"
    assert not (shop / "paid").exists()


async def test_what_is_addressed_to_somebody_is_not_shown_to_whoever_is_here():
    async with knowing(elicitation_callback=person()) as host:
        task = await begun(host, "elsewhere")
        assert (await get(host, task))["status"] == "working"
        await update(host, task, q_0=accepted(approve=True))
    assert await answers_of(task) == {}


# Restarts, and two clients


async def test_a_task_outlives_its_server():
    async with knowing() as host:
        task = await begun(host, "panel", task="Why?")
        await update(host, task, q_0=sampled("zero"))
    async with knowing() as host:
        found = await get(host, task)
        assert list(found["inputRequests"]) == ["q-1", "q-2"]
        await update(host, task, q_1=sampled("one"), q_2=sampled("two"))
    async with knowing() as host:
        assert list((await get(host, task))["inputRequests"]) == ["q-3", "q-4", "q-5"]
        await ask(host, "tasks/cancel", task)
    async with knowing() as host:
        assert (await get(host, task))["status"] == "cancelled"


@asynccontextmanager
async def over_http(shop):
    """A client of a server process, which is killed in the end."""
    with serving(shop, "--no-token") as (url, process):
        async with Client(url, sampling_callback=model(), extensions=[Knows()]) as client:
            yield Host(client)
        process.kill()


async def test_a_server_killed_between_any_two_requests_loses_nothing(shop):
    async with over_http(shop) as host:
        task = await begun(host, "panel", task="Why?")
    async with over_http(shop) as host:
        assert list((await get(host, task))["inputRequests"]) == ["q-0", "q-1", "q-2"]
        await update(host, task, q_0=sampled("zero"), q_2=sampled("two"))
    async with over_http(shop) as host:
        assert list((await get(host, task))["inputRequests"]) == ["q-1"]
        await ask(host, "tasks/cancel", task)
    async with over_http(shop) as host:
        assert (await get(host, task))["status"] == "cancelled"


async def test_over_http_the_header_names_the_task(shop):
    """So that whoever passes requests on may go by it."""
    async with over_http(shop) as host:
        task = await begun(host, "greet")
        unnamed = types.Request[dict[str, Any], str](method="tasks/get", params={"taskId": task})
        assert await refused(-32020, host.client.session.send_request(unnamed, ANYTHING)) is None
        assert (await get(host, task))["status"] == "input_required"


async def test_of_two_clients_the_first_is_heard_and_both_see_the_same():
    made = make_front(None, None)
    server = made.server()
    try:
        async with (
            Client(server, sampling_callback=model(), extensions=[Knows()]) as one,
            Client(server, sampling_callback=model(), extensions=[Knows()]) as other,
        ):
            first, second = Host(one), Host(other)
            task = await begun(first, "panel", task="Why?")
            await asyncio.gather(
                update(first, task, q_0=sampled("first"), q_1=sampled("first")),
                update(second, task, q_0=sampled("second"), q_2=sampled("second")),
            )
            assert await get(first, task) == await get(second, task)
    finally:
        await made.close()
    kept = await answers_of(task)
    assert sorted(kept) == ["q-0", "q-1", "q-2"]
    assert (kept["q-1"].value, kept["q-2"].value) == ("first", "second")
    assert kept["q-0"].value in ("first", "second")
