"""Sessions of algocline as a host meets them: the profile, over the pipes of a process."""

import pytest

from tests.e2e.algocline_harness import House

ONE = "return alc.llm('Name a colour.', {system = 'Be brief.', max_tokens = 7, grounded = true})"
TWO = "return alc.llm_batch({{prompt = 'a'}, {prompt = 'b'}})"
LOUD = "alc.log('info', 'it begins') alc.progress(1, 2, 'half') return alc.llm('x')"


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    made = House(tmp_path_factory.mktemp("algocline"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def wire(house):
    return house.serve()


def test_a_single_question_and_its_result(wire):
    told = wire.json("alc_run", code=ONE)
    assert {name: told[name] for name in told if name != "session_id"} == {
        "status": "needs_response",
        "query_id": "q-0",
        "prompt": "Name a colour.",
        "system": "Be brief.",
        "max_tokens": 7,
        "grounded": True,
    }
    done = wire.json("alc_continue", session_id=told["session_id"], response="blue")
    assert (done["status"], done["result"]) == ("completed", "blue")
    auto = done["stats"]["auto"]
    assert (auto["llm_calls"], auto["pauses"], auto["rounds"]) == (1, 1, 1)
    assert auto["total_tokens"]["source"] == "estimated"


def test_a_batch_is_answered_in_parts_and_in_any_order(wire):
    told = wire.json("alc_run", code=TWO)
    assert [(one["id"], one["prompt"]) for one in told["queries"]] == [("q-0", "a"), ("q-1", "b")]
    name = told["session_id"]
    part = wire.json("alc_continue", session_id=name, query_id="q-1", response="B")
    assert part == {"status": "accepted", "remaining": 1}
    refused, words = wire.call("alc_continue", session_id=name, query_id="q-9", response="?")
    assert refused and "unknown query_id: q-9" in words
    done = wire.json("alc_continue", session_id=name, query_id="q-0", response="A")
    assert done["result"] == ["A", "B"]


def test_a_batch_without_an_id_is_refused(wire):
    name = wire.json("alc_run", code=TWO)["session_id"]
    refused, words = wire.call("alc_continue", session_id=name, response="?")
    assert refused and words.startswith("Continue failed: ") and "2 queries pending" in words
    both = [{"query_id": "q-0", "response": "A"}, {"query_id": "q-1", "response": "B"}]
    assert wire.json("alc_continue", session_id=name, responses=both)["result"] == ["A", "B"]


def test_an_error_of_the_program_is_a_result(wire):
    told = wire.json("alc_run", code="error('too hot')")
    assert told["status"] == "error" and "too hot" in told["error"]


def test_an_unknown_session_is_refused(wire):
    refused, words = wire.call("alc_continue", session_id="s-nobody", response="?")
    assert refused and "session 's-nobody' not found" in words


def test_a_usage_that_the_host_gives_is_counted(wire):
    told = wire.json("alc_run", code=ONE)
    done = wire.json(
        "alc_continue",
        session_id=told["session_id"],
        response="blue",
        usage={"prompt_tokens": 10, "completion_tokens": 2},
    )
    assert done["stats"]["auto"]["total_tokens"]["tokens"] == 12


def test_a_budget_stops_the_program_before_the_next_question(wire):
    code = "alc.llm('a') alc.llm('b') return 1"
    told = wire.json("alc_run", code=code, ctx={"budget": {"max_llm_calls": 1}})
    done = wire.json("alc_continue", session_id=told["session_id"], response="A")
    assert done["status"] == "error" and "max_llm_calls (1) reached: 1 used" in done["error"]


def test_a_status_has_state_progress_logs_and_pending_questions(wire):
    name = wire.json("alc_run", code=LOUD)["session_id"]
    told = wire.json("alc_status", session_id=name, pending_filter="full")
    assert (told["session_id"], told["state"], told["pending_queries"]) == (name, "paused", 1)
    assert told["pending"][0]["prompt"] == "x"
    assert told["metrics"]["progress"] == {"step": 1, "total": 2, "message": "half"}
    assert told["metrics"]["recent_logs"][-1]["message"] == "it begins"
    listed = wire.json("alc_status")
    assert name in [one["session_id"] for one in listed["sessions"]]
    assert listed["active_sessions"] == len(listed["sessions"])
    refused, words = wire.call("alc_status", session_id=name, pending_filter="nonsense")
    assert refused and "unknown pending_filter preset 'nonsense'" in words


def test_a_status_has_the_conversation_only_if_asked(wire):
    told = wire.json("alc_run", code="alc.llm('a') return alc.llm('b')")
    name = told["session_id"]
    wire.json("alc_continue", session_id=name, response="A")
    assert "conversation_history" not in wire.json("alc_status", session_id=name)["metrics"]
    kept = wire.json("alc_status", session_id=name, include_history=True)["metrics"]
    assert kept["conversation_history"][0]["response"] == "A"


def test_a_transcript_is_kept_when_a_session_has_ended(wire):
    told = wire.json("alc_run", code=ONE)
    name = told["session_id"]
    wire.json("alc_continue", session_id=name, response="blue")
    kept = wire.json("alc_log_view", session_id=name)
    (entry,) = kept["transcript"]
    assert (entry["query_id"], entry["response"]) == ("q-0", "blue")


def test_a_session_outlives_its_server(house):
    """Paused sessions are on the disk: another process answers, and nothing is asked again."""
    first = house.serve()
    told = first.json("alc_run", code=ONE)
    first.kill()
    second = house.serve()
    done = second.json("alc_continue", session_id=told["session_id"], response="blue")
    assert done["result"] == "blue"
