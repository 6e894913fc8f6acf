"""Where a session stands, and how a status call shows it."""

import msgspec
import pytest

from everhold.core.budget import Budget
from everhold.core.codec import to_plain
from everhold.core.metrics import Metrics
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import Kind, Query, QueryAnswer, Usage
from everhold.core.session import SessionState
from everhold.core.status import (
    Accepted,
    Finished,
    OpenQuery,
    Outcome,
    Paused,
    PendingFilter,
    Raised,
    Returned,
    Running,
    SessionFacts,
    Stopped,
    describe_signals,
    hint_after_failure,
    is_idle_expired,
    require_sole_query,
    snapshot_session,
    snapshot_sessions,
)
from everhold.errors import BadSetting, Cancelled, Failed, ManyOpenQueries, NoOpenQuery, Stuck
from everhold.exception_info import ExceptionInfo, FrameInfo


def asked(number, prompt="hello", **fields):
    return OpenQuery("s-1", Query(number, f"0:{number}", prompt, **fields), 5.0)


def facts(**given):
    base = {"session_id": "s-1", "state": "paused", "started_at": 1.0, "last_activity_at": 2.5}
    return SessionFacts(**{**base, "elapsed_ms": 70, "metrics": Metrics(), **given})


FORWARDED = [name for name in Query.__struct_fields__ if name not in ("q", "rerun")]


@pytest.mark.parametrize("name", ["id", *FORWARDED])
def test_an_open_query_shows_what_was_asked(name):
    """Every field of a query can be read on the open query itself."""
    query = Query(
        3, "0:3", "p", Kind.TOOL, [], "s", 9, True, True, {}, "n", {}, "safe", "me", {}, 7.5, "d"
    )

    assert getattr(OpenQuery("s-1", query, 0.0), name) == getattr(query, name)


def test_an_answer_that_leaves_others_open_leaves_the_session_paused():
    """`Accepted` is paused while something remains, and ready to run when nothing does."""
    assert Accepted("s-1", 2).state == "paused"
    assert Accepted("s-1", 0).state == "running"


def test_running_and_paused_know_their_state():
    """A status says its state in the word that the store uses."""
    assert (Running("s-1").state, Paused("s-1").state) == ("running", "paused")


def test_a_finished_session_gives_its_result():
    """What the program returned is the result, also when that is None."""
    done = Finished("s-1", Returned(None), {})

    assert (done.state, done.result, done.error) == ("completed", None, None)


def test_the_result_of_a_failed_session_raises():
    """A failed session has an error and no result."""
    done = Finished("s-1", Raised("boom", kind="ValueError", step=3), {})

    assert (done.state, done.error) == ("failed", "boom")
    with pytest.raises(Failed, match="boom"):
        _ = done.result


def test_the_result_of_a_cancelled_session_raises():
    """A cancelled session has neither error nor result."""
    done = Finished("s-1", Stopped("enough"), {})

    assert (done.state, done.error) == ("cancelled", None)
    with pytest.raises(Cancelled, match="enough"):
        _ = done.result


@pytest.mark.parametrize(
    ("outcome", "stored"),
    [
        (Returned({"a": [1]}), b'{"type":"returned","value":{"a":[1]}}'),
        (Returned(None), b'{"type":"returned","value":null}'),
        (Raised("boom"), b'{"type":"raised","error":"boom"}'),
        (Stopped(), b'{"type":"stopped"}'),
    ],
)
def test_an_outcome_is_stored_with_its_name(outcome, stored):
    """The stored form says which outcome it is and reads back as the same."""
    assert msgspec.json.encode(outcome) == stored
    assert msgspec.json.decode(stored, type=Outcome) == outcome


def test_sole_of_none_open():
    """Without an open question the error names the state."""
    with pytest.raises(NoOpenQuery, match="completed"):
        require_sole_query("s-1", "completed", [])


def test_sole_of_one_open():
    """The only open question need not be named."""
    query = asked(7)

    assert require_sole_query("s-1", "paused", [query]) is query


def test_sole_of_many_open():
    """With several open the error counts and names them."""
    with pytest.raises(ManyOpenQueries, match=r"3 open questions \(q-0, q-1, q-2\)"):
        require_sole_query("s-1", "paused", [asked(0), asked(1), asked(2)])


@pytest.mark.parametrize("kind", [Kind.APPROVAL, Kind.LLM, Kind.CALL])
def test_a_signal_that_is_waited_for_makes_no_question_ambiguous(kind):
    """It is sent by its name, and never answered."""
    signal, question = asked(0, kind=Kind.SIGNAL), asked(1, kind=kind)

    assert require_sole_query("s-1", "paused", [signal, question]) is question
    with pytest.raises(NoOpenQuery):
        require_sole_query("s-1", "paused", [signal])
    with pytest.raises(ManyOpenQueries, match=r"\(q-1, q-2\)"):
        require_sole_query("s-1", "paused", [signal, question, asked(2)])


def test_sole_looks_only_at_what_can_be_answered():
    """A timer that runs beside the one question does not make it ambiguous, and alone it is no
    question.
    """
    timer, question = asked(0, kind=Kind.TIMER), asked(1)

    assert require_sole_query("s-1", "paused", [timer, question]) is question
    with pytest.raises(NoOpenQuery):
        require_sole_query("s-1", "paused", [timer])


@pytest.mark.parametrize(
    ("idle", "expired"),
    [(10799.9, False), (10800.0, True), (10800.1, True)],
    ids=["before", "at", "after"],
)
def test_idle_sessions_expire_at_their_ttl(idle, expired):
    """Idle for the ttl or longer expires; a moment less does not."""
    assert is_idle_expired(0.0, idle, 10800.0) is expired


def test_a_ttl_of_zero_expires_at_once():
    """No time at all is enough for ttl 0."""
    assert is_idle_expired(100.0, 100.0, 0.0) is True


@pytest.mark.parametrize("ttl", [10.0, 0.0, -1.0])
def test_a_clock_going_backwards_expires_nothing(ttl):
    """A session last active in the future is not idle, whatever the ttl."""
    assert is_idle_expired(100.0, 99.9, ttl) is False


def test_a_snapshot_of_nothing_special():
    """A snapshot without extras has exactly these keys."""
    assert snapshot_session(facts(state="running")) == {
        "session_id": "s-1",
        "state": "running",
        "phase": "running",
        "started_at": 1000,
        "last_activity_at": 2500,
        "metrics": {
            "elapsed_ms": 70,
            "llm_calls": 0,
            "rounds": 0,
            "tokens": {"prompt_total": 0, "response_total": 0, "total": 0, "current_query": None},
            "recent_logs": [],
        },
        "pending_queries": 0,
    }


def test_a_snapshot_shows_what_there_is():
    """Strategy, logs, progress and what remains of a budget are shown when they exist."""
    shown = snapshot_session(
        facts(
            strategy="panel",
            logs=[LogEntry(1, "info", "ctx.log", "hi")],
            progress=Progress(1, 2),
            budget=Budget(max_llm_calls=5, max_elapsed_ms=50),
            metrics=Metrics(llm_calls=2),
        )
    )

    assert shown["strategy"] == "panel"
    assert shown["metrics"]["recent_logs"] == [
        {"ts": 1, "level": "info", "source": "ctx.log", "message": "hi"}
    ]
    assert shown["metrics"]["progress"] == {"step": 1, "total": 2, "message": None}
    assert shown["metrics"]["budget_remaining"] == {"llm_calls": 3, "elapsed_ms": 0, "tokens": None}


def test_a_snapshot_counts_tokens():
    """Prompt and response totals are plain numbers, open prompts included."""
    first, second = asked(0), asked(1, "world!")
    metrics = Metrics()
    metrics.paused((first.query, second.query))
    metrics.answered(first.query, QueryAnswer(0, "x", usage=Usage(10, 4)))

    tokens = snapshot_session(facts(metrics=metrics, open=[second]))["metrics"]["tokens"]

    assert (tokens["prompt_total"], tokens["response_total"], tokens["total"]) == (12, 4, 16)


def test_the_current_query_of_a_partly_answered_batch():
    """It is the oldest llm query still open, also when the batch's last one is answered."""
    tokens = snapshot_session(facts(open=[asked(0, kind=Kind.TOOL), asked(2, "hello"), asked(3)]))[
        "metrics"
    ]["tokens"]

    assert tokens["current_query"] == {
        "query_id": "q-2",
        "prompt_tokens": 2,
        "started_waiting_at": 5000,
    }


def test_history_only_when_asked_for():
    """The newest ten exchanges are shown, oldest first, and only if they were given."""
    history = [{"query_id": f"q-{number}"} for number in range(12)]

    shown = snapshot_session(facts(history=history))["metrics"]["conversation_history"]

    assert [one["query_id"] for one in shown] == [f"q-{number}" for number in range(2, 12)]
    assert "conversation_history" not in snapshot_session(facts())["metrics"]


def test_an_ended_session_is_terminal():
    """An ended session's state is `terminal`; its phase says how it ended."""
    shown = snapshot_session(facts(state="failed"))

    assert (shown["state"], shown["phase"]) == ("terminal", "failed")


def test_a_snapshot_is_plain_json():
    """A state given as an enum is shown as text, so that the snapshot can be stored as it is."""
    shown = snapshot_session(
        facts(state=SessionState.PAUSED, open=[asked(0)]), PendingFilter.read("full")
    )

    assert to_plain(shown) == shown


def test_an_empty_list():
    """No sessions at all have exactly this form."""
    assert snapshot_sessions([]) == {"active_sessions": 0, "sessions": []}


def test_a_list_counts_the_live_ones():
    """Running and paused sessions are active; ended ones are listed and not counted."""
    listed = snapshot_sessions(
        [facts(state="running"), facts(state="paused"), facts(state="cancelled")]
    )

    assert listed["active_sessions"] == 2
    assert [one["phase"] for one in listed["sessions"]] == ["running", "paused", "cancelled"]


def test_without_a_filter_queries_are_only_counted():
    """No filter: a number of what somebody can answer, and no list."""
    shown = snapshot_session(facts(open=[asked(0), asked(1, kind=Kind.TIMER)]))

    assert shown["pending_queries"] == 1
    assert "pending" not in shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("meta", {"query_id": "q-0", "max_tokens": 1024}),
        ("preview", {"query_id": "q-0", "max_tokens": 1024, "prompt_preview": "héé"}),
        (
            "full",
            {
                "query_id": "q-0",
                "max_tokens": 1024,
                "system": None,
                "grounded": False,
                "underspecified": False,
                "prompt": "hééllo",
            },
        ),
        ({}, {}),
        (
            {"system": True, "grounded": True, "prompt": {"mode": "off"}},
            {"system": None, "grounded": False},
        ),
        ({"query_id": True, "prompt": {"mode": "full"}}, {"query_id": "q-0", "prompt": "hééllo"}),
        (
            {"underspecified": True, "prompt": {"mode": "preview", "chars": 2}},
            {"underspecified": False, "prompt_preview": "hé"},
        ),
    ],
)
def test_a_filter_says_what_is_shown(given, shown):
    """Presets and objects choose the facts; a preview is cut by characters."""
    pending = PendingFilter.read(given, preview_chars=3)

    assert snapshot_session(facts(open=[asked(0, "hééllo")]), pending)["pending"] == [shown]


def test_a_preview_is_200_characters_unless_told():
    """The preset cuts prompts at 200 characters."""
    pending = PendingFilter.read("preview")

    assert pending.show(asked(0, "x" * 300))["prompt_preview"] == "x" * 200


def test_a_filter_tells_other_kinds_apart():
    """What is not for a model says what it is."""
    assert PendingFilter.read({}).show(asked(0, kind=Kind.APPROVAL)) == {"kind": "approval"}


def test_no_filter_given():
    """Leaving the filter out is no error."""
    assert PendingFilter.read() is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("some", "unknown pending_filter preset 'some'; there are meta, preview and full"),
        (None, "pending_filter must be a preset name or an object, not null"),
        (True, "pending_filter must be a preset name or an object, not bool"),
        (1.5, "pending_filter must be a preset name or an object, not number"),
        ([], "pending_filter must be a preset name or an object, not array"),
    ],
)
def test_a_filter_that_is_none_is_refused_in_exact_words(given, reason):
    """The sentence is the one that hosts know."""
    with pytest.raises(BadSetting) as caught:
        PendingFilter.read(given)

    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "given", [{"query_id": 1}, {"prompt": {"mode": "some"}}, {"prompt": {"mode": "preview"}}]
)
def test_a_filter_object_of_the_wrong_shape_is_refused(given):
    """A wrong object is refused with what was wrong about it."""
    with pytest.raises(BadSetting) as caught:
        PendingFilter.read(given)

    assert caught.value.reason.startswith("invalid pending_filter object: ")


def test_a_failure_by_an_error_for_an_answer_does_not_send_people_to_a_retry():
    """The error is kept as the answer, so a retry would meet it again."""
    with pytest.raises(Failed) as failed:
        _ = Finished("s-1", Raised("not logged in", kind="answer_failed"), {}).result
    assert failed.value.hint.endswith("fork the session before it: everhold explain s-1")


def test_a_paused_session_may_need_something_from_outside():
    """An open question and a signal come from outside; a timer does not."""
    assert Paused("s-1", (asked(0),)).needs_outside
    assert Paused("s-1", signals=("paid",)).needs_outside
    assert not Paused("s-1", until=9.0).needs_outside


def test_signals_in_words():
    """The input of a conversation is no name that people know."""
    assert describe_signals(("input", "paid")) == ("an input", "the signal 'paid'")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (
            "answer_failed",
            "A retry replays the recorded error. To ask again, fork the session before it:"
            " everhold explain 'batch 1'",
        ),
        ("budget_exceeded", "Raise the budget; see how: everhold explain 'batch 1'"),
        ("ValueError", "Fix the program, then: everhold retry 'batch 1'"),
    ],
)
def test_the_hint_after_a_failure_has_a_complete_command(kind, hint):
    """What helps depends on what failed; the command names the session as people do."""
    assert hint_after_failure(kind, "batch 1") == hint


def test_the_hint_of_an_error_of_ours_comes_before_the_retry():
    """What the error itself advises is said first."""
    hint = hint_after_failure("stuck", "batch-1")

    assert hint == f"{Stuck.hint} Then: everhold retry batch-1"


def test_a_failed_session_without_its_exception_has_the_frames_as_a_note():
    """Another process has no exception to chain to: a note has the recorded frames."""
    info = ExceptionInfo("KeyError", "'total'", [FrameInfo("/app/shop.py", 7, "charge")])
    done = Finished("s-1", Raised("'total'", kind="KeyError", exception=info), {}, key="batch-1")

    with pytest.raises(Failed, match="'batch-1'") as raised:
        _ = done.result

    assert '  File "/app/shop.py", line 7, in charge' in raised.value.__notes__[0]
    assert raised.value.__cause__ is None
