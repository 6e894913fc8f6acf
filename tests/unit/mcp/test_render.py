"""What a model is told: the wire, one sentence that suffices alone, and the same as text."""

import pytest

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
from everhold.errors import (
    BadSetting,
    Diverged,
    StoreDamaged,
    UnknownProgram,
    UnknownSession,
)
from everhold.exception_info import ExceptionInfo, FrameInfo
from everhold.mcp import render
from everhold.wire import status_json


def asked(*queries):
    return Paused("s-1", tuple(OpenQuery("s-1", query, 0) for query in queries))


LLM = Query(0, "0:0", "Why?")
MORE = Query(1, "0:1", "And?", system="Be kind.", grounded=True, underspecified=True)
YES = Query(2, "0:2", "Pay?", kind=Kind.APPROVAL, schema={"type": "boolean"})
GO = Paused("s-1", signals=("go",))

STATUSES = [
    Accepted("s-1", 2),
    Accepted("s-1", 0),
    Running("s-1"),
    Running("s-1", ("call pay",)),
    asked(LLM),
    asked(LLM, MORE),
    asked(LLM, YES),
    asked(YES),
    GO,
    Paused("s-1", until=5.0, waiting_for=("a timer",)),
    Finished("s-1", Returned({"a": 1}), {}),
    Finished("s-1", Raised("broken"), {}),
    Finished("s-1", Stopped("enough"), {}),
]


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: type(status).__name__)
def test_the_next_sentence_is_one_and_names_the_session_or_the_end(status):
    told = render.render_status(status)["next"]
    assert told.endswith(".")
    assert "\n" not in told
    assert (
        "'s-1'" in told
        or '"s-1"' in told
        or "everhold answer s-1" in told
        or told.startswith(("The session is completed", "The session is cancelled"))
    )


@pytest.mark.parametrize(
    "status",
    [one for one in STATUSES if not isinstance(one, Paused) or not one.needs_outside],
    ids=str,
)
def test_the_keys_of_the_wire_are_kept(status):
    wire, told = (
        status_json(status),
        render.render_status(status, title="T", extra={"estimate": {}}),
    )
    assert {key: told[key] for key in wire if key != "hint"} == {
        k: v for k, v in wire.items() if k != "hint"
    }
    assert set(told) - set(wire) == {"title", "estimate", "next"}


@pytest.mark.parametrize("queries", [(LLM,), (LLM, MORE)], ids=("one", "two"))
def test_questions_are_a_list_and_each_has_its_id(queries):
    """One question has the same form as several."""
    told = render.render_status(asked(*queries))
    assert set(told) == {"status", "session_id", "questions", "next"}
    assert [(one["id"], one["prompt"]) for one in told["questions"]] == [
        (query.id, query.prompt) for query in queries
    ]


def test_the_metrics_name_the_open_question_by_its_id():
    current = {"query_id": "q-0", "prompt_tokens": 3}
    shown = render.render_metrics({"rounds": 1, "tokens": {"total": 3, "current_query": current}})
    assert shown == {
        "rounds": 1,
        "tokens": {"total": 3, "current_question": {"id": "q-0", "prompt_tokens": 3}},
    }


def test_a_question_for_a_person_is_never_among_those_for_a_model():
    told = render.render_status(asked(LLM, YES), option=" -d app.db")
    assert [one["id"] for one in told["questions"]] == ["q-0"]
    assert [one["id"] for one in told["for_people"]] == ["q-2"]
    assert told["for_people"][0]["command"] == "everhold answer s-1 --query q-2 -d app.db"
    alone = render.render_status(asked(YES))
    assert alone["status"] == "waiting"
    assert "prompt" not in alone
    assert "you cannot" in alone["next"]


def test_a_signal_is_sent_and_not_answered():
    assert render.render_status(GO)["for_people"] == [
        {"kind": "signal", "prompt": "go", "command": "everhold signal s-1 go"}
    ]


def test_the_text_of_a_signal_has_its_command():
    words = render.render_text(render.render_status(GO))
    assert "waits for the signal 'go'. To send it: everhold signal s-1 go" in words


def test_an_input_of_a_conversation_is_sent_as_a_message():
    told = render.render_status(Paused("s-1", signals=("input",)), option=" -d app.db")
    assert told["for_people"][0]["command"] == "everhold send s-1 -d app.db"


def test_what_a_person_types_is_one_command_whatever_a_signal_is_called():
    odd = Paused("s-1", signals=("go; rm -rf ~",))
    assert (
        render.render_status(odd)["for_people"][0]["command"]
        == "everhold signal s-1 'go; rm -rf ~'"
    )


def test_many_questions_are_all_named_and_the_form_is_shown():
    told = render.render_status(asked(*(Query(number, f"0:{number}", "?") for number in range(5))))[
        "next"
    ]
    assert "(q-0, q-1, q-2, q-3, q-4)" in told
    assert '{"id": "q-2", "response": "…"}, …]' in told
    assert told.count('"id"') == 3


def test_the_text_says_all_that_a_question_holds():
    schema = Query(
        4, "0:4", "Right?", schema={"type": "integer"}, messages=[{"role": "user", "content": "Hm"}]
    )
    words = render.render_text(render.render_status(asked(LLM, MORE, schema), title="My title"))
    for part in (
        "My title",
        "Question q-1",
        "only what you have checked",
        "do not guess",
        "[system] Be kind.",
        "And?",
        '"integer"',
        "Hm",
        "Next: ",
    ):
        assert part in words


def test_the_text_of_an_end_has_the_result():
    words = render.render_text(
        render.render_status(Finished("s-1", Returned({"a": 1}), {"auto": {}}))
    )
    assert 'result: {"a":1}' in words
    assert words.startswith("completed · session s-1")


def test_lists_of_rows_are_one_a_line():
    assert render.render_text({"because": ["one", "two"], "rows": [{"a": 1}], "none": []}) == (
        'because: \n- one\n- two\n\nrows: \n- {"a":1}\n\nnone: []'
    )


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        (
            "Answer it: everhold answer 'my key' --query q-0",
            "Answer it: the tool `answer`, session_id 'my key', id q-0",
        ),
        (
            "Fix the program, then: everhold retry s-1",
            "Fix the program, then: the tool `retry`, session_id s-1",
        ),
        (
            "Ask q-0 again: everhold fork s-1 --at 3",
            "Ask q-0 again: the tool `fork`, session_id s-1, at 3",
        ),
        (
            "A person answers: everhold answer s-1 --query q-1",
            "A person answers: everhold answer s-1 --query q-1 -d x",
        ),
        (
            "Answer with its result: everhold answer s-1 VALUE --query q-1",
            "Answer with its result: everhold answer s-1 VALUE --query q-1 -d x",
        ),
    ],
)
def test_what_moves_a_session_is_a_tool_where_a_model_may_do_it(sentence, said):
    assert render.translate_move(sentence, " -d x") == said


def test_refusals_have_a_code_and_a_hint_that_a_model_can_follow():
    assert (
        render.render_error(UnknownSession("s-9"))["hint"]
        == "Call the tool `sessions` to list the existing sessions."
    )
    assert "Roll the code back" in render.render_error(Diverged(3, "a", "b"))["hint"]
    assert render.render_error(BadSetting("x", "y"))["hint"]
    hint = render.render_error(StoreDamaged("app.db", "torn"), " -d app.db")["hint"]
    assert hint.startswith("Run `everhold db verify -d app.db`.")
    told = render.render_unforeseen_error(RuntimeError("x" * 5000))
    assert (told["code"], len(told["error"])) == ("internal", 2000)


def test_a_person_is_told_the_name_that_people_use():
    """The key of the session, in both kinds of commands."""
    answer = render.render_status(asked(YES), name="order 7")["for_people"][0]
    assert answer["command"] == "everhold answer 'order 7' --query q-2"
    signal = render.render_status(GO, name="order 7")["for_people"][0]
    assert signal["command"] == "everhold signal 'order 7' go"


def test_what_to_do_after_a_recorded_error_has_nothing_to_fill_in():
    failed = Finished("s-1", Raised("AnswerFailed: no", kind="answer_failed", step=3), {})
    told = render.render_status(failed)
    assert "the everhold tool `explain` with session_id 's-1'" in told["next"]
    assert "Call the tool `explain` with session_id 's-1'" in told["hint"]


def test_a_long_error_is_cut():
    told = render.render_status(Finished("s-1", Raised("x" * 20_000), {}))
    assert len(told["error"]) == render.MAX_ERROR_CHARS


def test_a_program_that_does_not_load_says_where_and_what_to_fix():
    """Not that programs can be listed: it is in the list."""
    error = UnknownProgram("shop", "invalid syntax", "Fix shop.py.")
    error.exception = ExceptionInfo("SyntaxError", "invalid syntax", [FrameInfo("shop.py", 3)])
    told = render.render_error(error)
    assert told["hint"] == "Fix shop.py."
    assert 'File "shop.py", line 3\nSyntaxError: invalid syntax' in render.render_text(told)
    assert "`strategies`" in render.render_error(UnknownProgram("shop"))["hint"]
