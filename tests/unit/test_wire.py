"""What the outside is told."""

import pytest

from everhold import errors, wire
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query
from everhold.core.status import (
    Accepted,
    Finished,
    OpenQuery,
    Paused,
    Raised,
    Returned,
    Running,
    Stopped,
)

STATS = Metrics().stats(5, {"score": 1})


def asked(number, prompt="hello", **fields):
    return OpenQuery("s-1", Query(number, f"0:{number}", prompt, **fields), 5.0)


def paused(*queries, **more):
    return wire.status_json(Paused("s-1", queries, **more))


def test_accepted():
    """A partial answer says how many questions remain."""
    assert wire.status_json(Accepted("s-1", 2)) == {
        "status": "accepted",
        "session_id": "s-1",
        "remaining": 2,
    }


def test_needs_response_for_one():
    """Exactly one query takes the single form; `system` is null and false flags are absent."""
    assert paused(asked(4)) == {
        "status": "needs_response",
        "session_id": "s-1",
        "query_id": "q-4",
        "prompt": "hello",
        "system": None,
        "max_tokens": 1024,
    }


def test_needs_response_shows_flags_that_are_true():
    """`grounded` and `underspecified` are there when true."""
    told = paused(asked(0, system="be brief", max_tokens=9, grounded=True, underspecified=True))

    assert (told["system"], told["max_tokens"]) == ("be brief", 9)
    assert told["grounded"] is True
    assert told["underspecified"] is True


@pytest.mark.parametrize("flag", ["grounded", "underspecified"])
def test_a_flag_that_is_false_is_absent(flag):
    """A false flag has no key, in the single form and in the batch form."""
    assert flag not in paused(asked(0))
    assert flag not in paused(asked(0), asked(1))["queries"][0]


def test_needs_response_for_several():
    """Two or more take the batch form, in the order asked, with `id`."""
    assert paused(asked(1, "one"), asked(2, "two", grounded=True)) == {
        "status": "needs_response",
        "session_id": "s-1",
        "queries": [
            {"id": "q-1", "prompt": "one", "system": None, "max_tokens": 1024},
            {"id": "q-2", "prompt": "two", "system": None, "max_tokens": 1024, "grounded": True},
        ],
    }


def test_only_what_can_be_answered_is_listed():
    """A timer or a call beside one question leaves the single form."""
    told = paused(asked(0, kind=Kind.TIMER), asked(1, "yes?"), asked(2, kind=Kind.CALL))

    assert told["query_id"] == "q-1"
    assert "queries" not in told


def test_a_query_that_is_more_than_a_prompt_says_so():
    """Kind, name, arguments, schema, addressee, options and expiry are added where they are set."""
    told = paused(
        asked(
            0,
            kind=Kind.TOOL,
            name="search",
            args={"q": "x"},
            schema={"type": "string"},
            to="ann",
            options={"model": "m"},
            expires_at=9.5,
        )
    )

    added = {key: told[key] for key in told if key not in paused(asked(0))}
    assert added == {
        "kind": "tool",
        "name": "search",
        "args": {"q": "x"},
        "schema": {"type": "string"},
        "to": "ann",
        "options": {"model": "m"},
        "expires_at": 9500,
    }


def test_messages_are_shown():
    """A query asked with messages shows them beside the empty prompt."""
    told = paused(asked(0, "", messages=[{"role": "user", "content": "hi"}]))

    assert (told["prompt"], told["messages"]) == ("", [{"role": "user", "content": "hi"}])


def test_completed():
    """The end shows the result, whatever JSON it is, and the stats."""
    told = wire.status_json(Finished("s-1", Returned({"a": None}), STATS))

    assert told == {
        "status": "completed",
        "session_id": "s-1",
        "result": {"a": None},
        "stats": STATS,
    }


def test_error():
    """A failure shows its error, a code and a hint, and what it cost all the same."""
    told = wire.status_json(Finished("s-1", Raised("boom", kind="ValueError"), STATS))

    assert told == {
        "status": "error",
        "session_id": "s-1",
        "error": "boom",
        "code": "failed",
        "hint": "Fix the program, then: everhold retry s-1",
        "stats": STATS,
    }


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("budget_exceeded", "Raise the budget"),
        ("child_failed", "A retry replays the recorded error."),
    ],
)
def test_an_error_of_ours_keeps_its_code(kind, hint):
    """A session that one of our errors ended says which; without a hint of its own it has the
    general one.
    """
    told = wire.status_json(Finished("s-1", Raised("…", kind=kind), STATS))

    assert told["code"] == kind
    assert told["hint"].startswith(hint)


def test_cancelled():
    """A cancelled session shows its stats."""
    told = wire.status_json(Finished("s-1", Stopped("enough"), STATS))

    assert told == {"status": "cancelled", "session_id": "s-1", "stats": STATS}


def test_running():
    """A session that is being moved says only that."""
    assert wire.status_json(Running("s-1")) == {"status": "running", "session_id": "s-1"}


def test_running_with_something_long_is_waiting():
    """A session that is busy with a long tool says what it waits for."""
    told = wire.status_json(Running("s-1", ("the tool search",)))

    assert told == {"status": "waiting", "session_id": "s-1", "waiting_for": ["the tool search"]}


def test_paused_without_a_question_is_waiting():
    """A session that waits for a timer or a child says for what, and until when."""
    told = paused(asked(0, kind=Kind.TIMER), until=60.25, waiting_for=("a timer",))

    assert told == {
        "status": "waiting",
        "session_id": "s-1",
        "waiting_for": ["a timer"],
        "until": 60250,
    }
    assert "until" not in paused(waiting_for=("child s-2",))


def test_text_is_compact_and_its_keys_ascend():
    """Keys are in byte order at every depth, separators compact, and nothing is escaped without
    need.
    """
    text = wire.dump_wire_json({"b": [{"z": 1, "a": "né"}], "B": None, "é": True, "a": 1.5})

    assert text == '{"B":null,"a":1.5,"b":[{"a":"né","z":1}],"é":true}'


def test_a_status_as_text():
    """The single form in the very bytes that a host reads."""
    assert wire.dump_wire_json(paused(asked(0, "né"))) == (
        '{"max_tokens":1024,"prompt":"né","query_id":"q-0","session_id":"s-1","status":"needs_response","system":null}'
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Finished("s-1", Returned(1), {}), 0),
        (Accepted("s-1", 1), 0),
        (Finished("s-1", Raised("boom"), {}), 1),
        (Finished("s-1", Stopped(), {}), 1),
        (Paused("s-1"), 10),
        (Running("s-1"), 10),
    ],
)
def test_the_exit_code_of_a_status(status, code):
    """Done is 0, failed or cancelled 1, waiting 10."""
    assert wire.status_exit_code(status) == code


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BadId("x", "too short"), 400, 2),
        (errors.UnknownSession("s-9"), 404, 2),
        (errors.AnswerRefused("answer", "a number", "text"), 422, 2),
        (errors.AnswerConflict("s-1", "q-0"), 409, 3),
        (errors.Waiting("s-1", ()), 202, 10),
        (errors.Failed("s-1", "boom"), 409, 1),
        (errors.StoreBusy("app.db", 2.0), 503, 4),
        (errors.StoreFull("app.db"), 507, 4),
        (errors.ForeignWake(), 500, 5),
        (KeyboardInterrupt(), 500, 130),
        (ValueError("what"), 500, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_an_error_has_an_http_status_and_an_exit_code(error, status, code):
    """A leaf has the row of its branch, or its own."""
    assert (wire.http_status(error), wire.exit_code(error)) == (status, code)


def test_exit_codes_never_change():
    """Scripts rely on these numbers."""
    assert {exit.name: int(exit) for exit in wire.ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "STATE": 3,
        "STORE": 4,
        "PROGRAM": 5,
        "WAITING": 10,
        "LEFT": 11,
        "CANNOT": 12,
        "INTERRUPTED": 130,
    }


def test_an_error_as_json():
    """An error shows its sentence, its code and its hint."""
    assert wire.error_json(errors.StoreFull("app.db")) == {
        "error": "no space left to write app.db",
        "code": "store_full",
        "hint": "Nothing of this call was written. Free disk space, then repeat the call.",
    }


def test_an_error_without_a_hint_has_no_key_for_it():
    """An empty hint is not shown."""
    assert wire.error_json(errors.Expired("q-0")) == {
        "error": "question 'q-0' was not answered in time",
        "code": "expired",
    }


def test_a_call_of_unknown_outcome_is_among_what_a_session_waits_for():
    """Beside an agent's input: `answer` takes it, and nothing else says that it is open."""
    told = paused(asked(3, kind=Kind.CALL, name="pay"), signals=("input",))
    assert told["waiting_for"] == ["the outcome of pay (q-3)", "an input"]


def test_the_hint_of_a_failed_session_names_the_database():
    failed = Finished("s-1", Raised("…", kind="KeyError"), STATS, "k")
    told = wire.status_json(failed, " -d app.db")
    assert told["hint"] == "Fix the program, then: everhold retry k -d app.db"
