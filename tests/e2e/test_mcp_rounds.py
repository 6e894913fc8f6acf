"""A call returns what it needs and is made again with the answers: by whom, how often, and with
which state.
"""

import json
import os
import sys

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client._input_required import DEFAULT_INPUT_REQUIRED_MAX_ROUNDS
from mcp.types import ElicitResult

import everhold
from everhold.mcp import make_front, multi_round
from everhold.mcp.multi_round import MAX_ROUNDS, SESSION_META_KEY
from tests.e2e.mcp_clients import accepted, call, furnish, model, person, sampled, text_of
from tests.e2e.mcp_harness import Host, build, opened
from tests.e2e.test_mcp_http import serving


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(furnish(build(tmp_path)))
    return tmp_path


async def answers_of(session_id):
    """All answers of a session as they are stored, by query id."""
    async with everhold.open() as runtime:
        return {
            answer.id: answer for step in await runtime.steps(session_id) for answer in step.answers
        }


async def first_round(host, program="greet", **args):
    """A call that needs an answer: what it asks for, and the call."""
    arguments = {"program": program, "args": args}
    found = await call(host, "run", arguments)
    assert found.result_type == "input_required"
    return found, arguments


# What is asked


async def test_one_call_runs_a_session_to_its_end_with_the_clients_model():
    seen = []
    async with opened(sampling_callback=model(seen=seen)) as host:
        told = await host.call("run", program="panel", args={"task": "Why?"})
    assert told["status"] == "completed"
    said = told["result"]["answer"]
    assert said == [f"answer to Round {n}, voice {v}: Why?" for n in range(3) for v in range(3)]
    assert len(seen) == 9


async def test_the_answer_says_that_a_clients_model_gave_it():
    async with opened(sampling_callback=model("Hi!")) as host:
        told = await host.call("run", program="greet")
    kept = (await answers_of(told["session_id"]))["q-0"]
    assert (kept.value, kept.by["front"], kept.by["through"], kept.usage.model) == (
        "Hi!",
        "mcp",
        "sampling",
        "m-1",
    )


async def test_a_client_that_does_not_sample_is_told_as_ever():
    async with opened() as host:
        assert (await host.call("run", program="greet"))["status"] == "needs_response"
    async with opened(mode="legacy", sampling_callback=model("never asked")) as host:
        assert (await host.call("run", program="greet"))["status"] == "needs_response"


async def test_a_request_carries_all_that_the_question_says():
    async with opened(sampling_callback=model()) as host:
        found, _ = await first_round(host, "chat")
    asked = found.input_requests["q-0"].params
    assert [(one.role, one.content.text) for one in asked.messages] == [
        ("user", "Hi."),
        ("assistant", "Hello."),
        ("user", "And now?"),
    ]
    assert (asked.system_prompt, asked.max_tokens, asked.temperature) == ("Be brief.", 7, 0.5)
    assert asked.metadata == {"grounded": True}


async def test_messages_that_sampling_cannot_say_are_told_as_text():
    async with opened(sampling_callback=model()) as host:
        found, _ = await first_round(host, "chat", odd=True)
    (only,) = found.input_requests["q-0"].params.messages
    assert "Hello." in only.content.text
    assert only.content.text.endswith("And now?")


async def test_an_answer_that_does_not_fit_is_asked_again_with_the_reason():
    seen = []
    said = ["perhaps", '{"right": true, "why": "it is"}']
    async with opened(sampling_callback=model(*said, seen=seen)) as host:
        told = await host.call("run", program="judge")
    assert told["result"] == {"right": True, "why": "it is"}
    first, second = (text_of(asked) for asked in seen)
    assert "JSON of this schema" in first
    assert "refused" not in first
    assert "An earlier answer was refused" in second


async def test_the_model_is_asked_first_and_then_the_person(shop):
    async with opened(
        sampling_callback=model("broken"), elicitation_callback=person(approve=True)
    ) as host:
        told = await host.call("run", program="refund", args={"order": "7"})
    assert told["result"] == "sent"
    assert (shop / "paid").read_text() == "7\n"
    kept = await answers_of(told["session_id"])
    assert [kept[one].by["through"] for one in ("q-0", "q-1")] == ["sampling", "elicitation"]


async def test_what_a_client_leaves_out_is_told_as_ever_and_not_asked_for_ever():
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host, "panel", task="Why?")
        some = {"q-0": sampled("one")}
        found = await call(
            host, "run", arguments, input_responses=some, request_state=found.request_state
        )
        told = found.structured_content
        assert [query["id"] for query in told["questions"]] == ["q-1", "q-2"]
        assert told["session_id"] in told["next"]


# How often


async def test_clients_give_up_after_as_many_rounds_as_we_do():
    assert MAX_ROUNDS == DEFAULT_INPUT_REQUIRED_MAX_ROUNDS


async def test_after_ten_rounds_the_session_goes_on_by_its_id():
    async with opened(sampling_callback=model()) as host:
        told = await host.call("run", program="long", args={"steps": 25})
        assert (told["status"], told["questions"][0]["id"]) == ("needs_response", "q-10")
        session = told["session_id"]
        told = await host.call("answer", session_id=session, answers=[{"response": "by hand"}])
        assert (told["session_id"], told["questions"][0]["id"]) == (
            session,
            "q-21",
        )  # ten rounds more
        told = await host.call("answer", session_id=session, answers=[{"response": "by hand"}])
        assert told["result"][9:12] == ["answer to Step 9?", "by hand", "answer to Step 11?"]
        assert len(told["result"]) == 25


async def test_every_round_says_which_session_it_is():
    async with opened(sampling_callback=model()) as host:
        found, _ = await first_round(host)
        told = await host.call("status", session_id=found.meta[SESSION_META_KEY])
        assert told["questions"][0]["id"] == "q-0"


# The state


async def test_a_server_that_was_restarted_between_two_rounds_goes_on(shop):
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host, "refund", order="7")
    more = {"input_responses": {"q-0": sampled("broken")}, "request_state": found.request_state}
    async with opened(sampling_callback=model(), elicitation_callback=person()) as host:
        found = await call(host, "run", arguments, **more)
        assert list(found.input_requests) == ["q-1"]
    more = {
        "input_responses": {"q-1": accepted(approve=True)},
        "request_state": found.request_state,
    }
    async with opened(elicitation_callback=person()) as host:
        found = await call(host, "run", arguments, **more)
        assert found.structured_content["result"] == "sent"
    assert (shop / "data" / "everhold" / multi_round.KEY_FILE).stat().st_mode & 0o777 == 0o600


async def test_a_server_that_has_only_pipes_seals_as_any_other(shop):
    """It has loaded neither the web nor anything that seals when the first call comes."""
    words = ["-m", "everhold", "mcp"]
    server = StdioServerParameters(
        command=sys.executable, args=words, cwd=shop, env=dict(os.environ)
    )
    async with Client(server, sampling_callback=model(), elicitation_callback=person()) as client:
        host = Host(client)
        found, arguments = await first_round(host, "refund", order="7")
        await refused(host, arguments, f"{found.request_state[:-8]}AAAAAAAA")
        more = {"input_responses": {"q-0": sampled("broken")}, "request_state": found.request_state}
        found = await call(host, "run", arguments, **more)
    more = {
        "input_responses": {"q-1": accepted(approve=True)},
        "request_state": found.request_state,
    }
    async with opened(elicitation_callback=person()) as host:
        found = await call(host, "run", arguments, **more)
        assert found.structured_content["result"] == "sent"


async def test_a_server_killed_between_any_two_rounds_loses_nothing(shop):
    """Each round is served by another process; the one before was killed with SIGKILL."""
    arguments, more, seen = {"program": "long", "args": {"steps": 4}}, {}, []
    for _ in range(5):
        with serving(shop, "--no-token") as (url, process):
            async with Client(url, sampling_callback=model()) as client:
                found = await call(Host(client), "run", arguments, **more)
            process.kill()
        if found.result_type == "input_required":
            seen += found.input_requests
            said = {query_id: sampled(f"answer to {query_id}") for query_id in found.input_requests}
            more = {"input_responses": said, "request_state": found.request_state}
    assert found.structured_content["result"] == [f"answer to q-{n}" for n in range(4)]
    assert seen == ["q-0", "q-1", "q-2", "q-3"]


def broken(state):
    """A state with each part of it changed in turn."""
    yield state[:-1] + ("A" if state[-1] != "A" else "B")
    yield state[:20] + ("A" if state[20] != "A" else "B") + state[21:]
    yield state[:-8]
    yield "v1." + "A" * 60
    yield "v2" + state[2:]
    yield ""
    yield json.dumps({"session_id": "s-1", "query_ids": ["q-0"], "round": 1})


async def refused(host, arguments, state, tool="run"):
    more = {"input_responses": {"q-0": sampled("forged")}, "request_state": state}
    with pytest.raises(MCPError) as caught:
        await call(host, tool, arguments, **more)
    error = caught.value.error
    assert error.code == -32602
    assert (error.data["reason"], error.data["code"]) == ("invalid_request_state", "not_allowed")
    assert "`sessions`" in error.data["hint"]


async def test_a_state_that_was_changed_is_refused_and_nothing_is_done():
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
        for state in broken(found.request_state):
            await refused(host, arguments, state)
        assert len((await host.call("sessions"))["sessions"]) == 1
    assert await answers_of(found.meta[SESSION_META_KEY]) == {}


async def test_a_state_is_good_for_one_call_only():
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
        await refused(host, {**arguments, "title": "another"}, found.request_state)
        await refused(
            host,
            {"session_id": found.meta[SESSION_META_KEY]},
            found.request_state,
            tool="ask_person",
        )


async def test_the_state_of_another_database_is_refused(shop):
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
    async with opened(shop / "other.db", sampling_callback=model()) as host:
        await refused(host, arguments, found.request_state)


async def test_the_state_of_another_user_is_refused(shop, monkeypatch):
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
    monkeypatch.setenv("XDG_DATA_HOME", str(shop / "elsewhere"))
    async with opened(sampling_callback=model()) as host:
        await refused(host, arguments, found.request_state)


async def test_a_state_that_expired_is_refused_and_the_session_is_not_lost(monkeypatch):
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
        codec = multi_round.StateCodec(lambda: host.front.holder.database)
        claims = json.loads(codec.unseal(found.request_state))
        assert claims["exp"] - claims["iat"] == multi_round.STATE_TTL
        late = codec.seal(json.dumps({**claims, "iat": 1.0, "exp": 2.0}).encode())
        await refused(host, arguments, late)
        told = await host.call(
            "answer", session_id=found.meta[SESSION_META_KEY], answers=[{"response": "still here"}]
        )
        assert told["result"] == "still here"


async def test_a_state_that_comes_twice_changes_nothing():
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
        for words in ("first", "first", "second"):
            more = {
                "input_responses": {"q-0": sampled(words)},
                "request_state": found.request_state,
            }
            again = await call(host, "run", arguments, **more)
            assert again.structured_content["result"] == "first"
        assert len((await host.call("sessions"))["sessions"]) == 1
    assert list(await answers_of(found.meta[SESSION_META_KEY])) == ["q-0"]


# Two clients, and those who claim what they have not said


async def test_of_two_clients_that_are_asked_the_first_is_heard():
    made = make_front(None, None)
    server = made.server()
    try:
        async with (
            Client(server, sampling_callback=model()) as one,
            Client(server, sampling_callback=model()) as other,
        ):
            first, second = Host(one), Host(other)
            found, arguments = await first_round(first)
            more = {"request_state": found.request_state}
            done = await call(
                second, "run", arguments, input_responses={"q-0": sampled("second")}, **more
            )
            assert done.structured_content["result"] == "second"
            late = await call(
                first, "run", arguments, input_responses={"q-0": sampled("first")}, **more
            )
            assert late.structured_content["result"] == "second"
    finally:
        await made.close()


async def test_a_client_that_has_not_declared_sampling_brings_no_models_answer():
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
    more = {"input_responses": {"q-0": sampled("forged")}, "request_state": found.request_state}
    async with opened() as host:
        told = (await call(host, "run", arguments, **more)).structured_content
        assert told["code"] == "not_allowed"
        assert "sampling" in told["error"]
    assert await answers_of(found.meta[SESSION_META_KEY]) == {}


async def test_a_model_does_not_approve_and_a_person_does_not_answer_for_the_model(shop):
    async with opened(sampling_callback=model(), elicitation_callback=person()) as host:
        found, arguments = await first_round(host, "refund", order="7")
        wrong = {"q-0": accepted(answer="broken")}
        told = await call(
            host, "run", arguments, input_responses=wrong, request_state=found.request_state
        )
        assert told.structured_content["questions"][0]["id"] == "q-0"
        right = {"q-0": sampled("broken")}
        found = await call(
            host, "run", arguments, input_responses=right, request_state=found.request_state
        )
        for wrong in (
            sampled("true"),
            sampled('{"approve": true}'),
            ElicitResult(action="decline"),
        ):
            more = {"input_responses": {"q-1": wrong}, "request_state": found.request_state}
            told = (await call(host, "run", arguments, **more)).structured_content
            assert told["for_people"][0]["id"] == "q-1"
    assert not (shop / "paid").exists()


async def test_a_session_that_was_cancelled_between_two_rounds_stays_cancelled():
    async with opened(sampling_callback=model()) as host:
        found, arguments = await first_round(host)
        await host.call("cancel", session_id=found.meta[SESSION_META_KEY])
        more = {
            "input_responses": {"q-0": sampled("too late")},
            "request_state": found.request_state,
        }
        told = (await call(host, "run", arguments, **more)).structured_content
        assert told["status"] == "cancelled"
