"""What a program asks, and what the world answers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.core.query import (
    ANSWERABLE,
    ASKED_OUTSIDE,
    EFFECTS,
    FOR_PEOPLE,
    IN_STORE,
    INNER,
    KINDS,
    LISTED,
    LUA_KINDS,
    METERED,
    MODEL_KINDS,
    NOTICED,
    NOTIFIED,
    SCRIPTED_KINDS,
    SENT_BY_NAME,
    TEXT_KINDS,
    Kind,
    KindFacts,
    Query,
    QueryAnswer,
    Rerun,
    format_answer_error,
    has_new_wording,
    inherit_namespace,
    make_lua_namespace,
    make_own_namespace,
    parse_query_number,
)
from everhold.core.session import mint
from everhold.exception_info import ExceptionInfo, FrameInfo

ASKED = Query(3, "0.1:2", "Which owl?", options={"temperature": 0.5})


def test_ids_are_spelled_from_numbers():
    """The third query is q-3, and so is its answer."""
    assert (ASKED.id, QueryAnswer(3).id) == ("q-3", "q-3")


@given(st.integers(0, 10**18 - 1))
def test_a_number_is_read_from_its_id(q):
    """`parse_query_number` undoes `id`."""
    assert parse_query_number(Query(q, "0:0").id) == q


@pytest.mark.parametrize(
    "text",
    [
        "",
        "q",
        "q-",
        "q-x",
        "q--1",
        "q-+1",
        "q-01",
        "q-00",
        "Q-1",
        " q-1",
        "q-1 ",
        "q-1\n",
        "q-1.0",
        "q-٣",
        "q-²",
        "f-v-1",
        "1",
    ],
)
def test_what_is_not_an_id_has_no_number(text):
    """Only `q-` and a plain ordinal is a query's id."""
    assert parse_query_number(text) is None


def test_an_endless_id_has_no_number():
    """An id longer than any counter is not an id, and not an error."""
    assert parse_query_number("q-" + "9" * 5000) is None


def test_defaults_are_not_written():
    """A query is stored with what it says, and nothing else."""
    assert msgspec.json.encode(Query(0, "0:0", "Hello")) == b'{"q":0,"key":"0:0","prompt":"Hello"}'
    assert msgspec.json.encode(QueryAnswer(0, "Hi")) == b'{"q":0,"value":"Hi"}'


def test_no_default_and_a_default_of_null_differ():
    """A query whose expiry answers null says so."""
    silent, null = Query(0, "0:0"), Query(0, "0:0", default=None)

    assert b"default" not in msgspec.json.encode(silent)
    assert msgspec.json.decode(msgspec.json.encode(null), type=Query) == null != silent


def test_a_query_never_changes():
    """What was asked is a value."""
    with pytest.raises(AttributeError):
        ASKED.prompt = "Which crow?"


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "Which crow?"},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"system": "Be brief."},
        {"max_tokens": 7},
        {"grounded": True},
        {"underspecified": True},
        {"options": {"temperature": 0.7}},
        {"name": "search"},
        {"args": [1]},
    ],
)
def test_other_words(change):
    """A query that says something else to whoever answers is reworded."""
    assert has_new_wording(ASKED, msgspec.structs.replace(ASKED, **change))


@pytest.mark.parametrize(
    "change", [{}, {"to": "ada"}, {"expires_at": 5.0}, {"default": 1}, {"rerun": Rerun.ASK}]
)
def test_the_same_words(change):
    """Who is asked, until when, and what happens otherwise is not wording."""
    assert not has_new_wording(ASKED, msgspec.structs.replace(ASKED, **change))


ONE, FORK = mint(1.5, 7), mint(2.5, 8)


def test_a_namespace_of_one_session_has_its_like_in_a_fork():
    assert inherit_namespace(make_own_namespace(ONE, "0.1"), FORK) == make_own_namespace(
        FORK, "0.1"
    )
    assert inherit_namespace("default", FORK) is None


@pytest.mark.parametrize(
    ("recorded", "asked", "is_reworded"),
    [
        (make_own_namespace(ONE, "0.1"), make_own_namespace(FORK, "0.1"), False),
        (make_own_namespace(ONE, "0.1"), make_own_namespace(FORK, "0.2"), True),
        (make_own_namespace(ONE, "0.1"), "default", True),
        ("default", "mine", True),
        ("default", make_lua_namespace("default"), False),
        ("default", make_lua_namespace("mine"), True),
    ],
)
def test_a_fork_asks_for_values_in_its_own_name(recorded, asked, is_reworded):
    """It asks for the same, in a namespace that is its own; so does Lua, which had none of its own
    before.
    """
    old, new = (
        Query(0, "0:0", kind=Kind.STATE, args={"in": one, "do": "keys"}, to=one)
        for one in (recorded, asked)
    )
    assert has_new_wording(old, new) is is_reworded


def test_lua_has_namespaces_of_its_own_but_for_shared_ones():
    assert [
        make_lua_namespace("a"),
        make_lua_namespace("a", {"b"}),
        make_lua_namespace("a", ["a"]),
    ] == ["lua/a", "lua/a", "a"]


def test_who_may_answer():
    """People's questions and models' questions can be answered from outside; clocks, children and
    values not.
    """
    assert {Kind.APPROVAL, Kind.INPUT} == FOR_PEOPLE
    assert set(Kind) - ANSWERABLE == {Kind.CALL, Kind.TIMER, Kind.SESSION, Kind.STATE}
    assert {Kind.CALL, Kind.TOOL} == EFFECTS


def test_every_kind_has_one_row_in_the_table():
    """In the order of the enumeration, so that the page of the reference has it too."""
    assert list(KINDS) == list(Kind)


SELECTED = {
    "llm": MODEL_KINDS,
    "approval input": FOR_PEOPLE,
    "approval input llm": SCRIPTED_KINDS,
    "approval input llm signal tool": ANSWERABLE,
    "approval call input llm signal tool": LISTED,
    "session state timer": INNER,
    "approval input tool": ASKED_OUTSIDE,
}
FLAGS = {
    "effect": "call tool",
    "in_store": "session signal state",
    "by_name": "signal",
    "metered": "llm",
    "in_lua": "llm state",
    "text": "input llm",
    "verdict": "approval",
    "decision": "approval input signal",
    "rewritten": "input llm tool",
    "noticed": "approval input signal",
    "notified": "approval call input",
}


def test_the_sets_of_kinds_are_these():
    """Who answers a kind decides in which of them it is."""
    assert {" ".join(sorted(kinds)): kinds for kinds in SELECTED.values()} == SELECTED


@pytest.mark.parametrize("flag", FLAGS)
def test_a_fact_is_true_of_these_kinds(flag):
    true_of = sorted(kind for kind, facts in KINDS.items() if getattr(facts, flag))
    assert " ".join(true_of) == FLAGS[flag]


def test_every_flag_of_a_kind_is_tested_above():
    """A fact that is added to the table is added to this list."""
    flags = {field.name for field in msgspec.structs.fields(KindFacts) if field.type is bool}
    assert flags == set(FLAGS)


def test_the_sets_for_hot_paths_are_the_flags():
    """They are computed once, from the table."""
    sets = {
        "effect": EFFECTS,
        "in_store": IN_STORE,
        "by_name": SENT_BY_NAME,
        "metered": METERED,
        "in_lua": LUA_KINDS,
        "text": TEXT_KINDS,
        "noticed": NOTICED,
        "notified": NOTIFIED,
    }
    assert {name: " ".join(sorted(kinds)) for name, kinds in sets.items()} == {
        name: FLAGS[name] for name in sets
    }


def test_people_are_told_what_moves_a_session_that_waits():
    """Whatever can be open for long says why its session waits, and what to do; the moment of a
    timer is the session's own, and a durable value is there at once.
    """
    silent = {kind for kind, facts in KINDS.items() if not (facts.because and facts.move)}
    assert silent == {Kind.TIMER, Kind.STATE}


CHARGE = ExceptionInfo("KeyError", "'total'", [FrameInfo("/app/shop.py", 7, "charge")])


@pytest.mark.parametrize(
    ("error", "exception", "line"),
    [
        (None, None, ""),
        ({"code": "timeout", "message": "too late"}, None, "too late"),
        ({"code": "KeyError", "message": "'total'"}, None, "KeyError: 'total'"),
        ({"code": "KeyError", "message": "KeyError"}, None, "KeyError"),
        (
            {"code": "KeyError", "message": "'total'"},
            CHARGE,
            "KeyError: 'total' (shop.py, line 7, in charge)",
        ),
        (
            {"code": "KeyError", "message": "'total'"},
            ExceptionInfo("KeyError"),
            "KeyError: 'total'",
        ),
    ],
)
def test_the_error_of_an_answer_in_one_line(error, exception, line):
    """An error of code has its class and place, any other its sentence alone."""
    answer = QueryAnswer(3, error=error, exception=exception)

    assert format_answer_error(answer) == line
