"""Query ids as algocline has them."""

import pytest

from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.core.status import Returned
from everhold.mcp.algocline.alc_wire import AlcRefused
from everhold.mcp.algocline.query_ids import QueryNames
from everhold.mcp.algocline.session_tools import AlcResponse, AlcUsage, is_repeated, match_answers


def step(n, asked=(), said=(), **notes):
    """A delivery: queries as (q, key) or (q, key, kind), answers as (q, value)."""
    queries = [Query(one[0], one[1], kind=one[2] if len(one) > 2 else Kind.LLM) for one in asked]
    return Delivery(
        n,
        0.0,
        [QueryAnswer(q, value) for q, value in said],
        queries,
        DeliveryNotes(**notes) if notes else None,
    )


def names(*steps, lua=True, kept=()):
    return QueryNames(steps, lua=lua, kept=kept)


def test_one_question_is_always_q_0():
    found = names(
        step(0, [(0, "0:0")]), step(1, [(1, "0:1")], [(0, "a")]), step(2, [(2, "0:2")], [(1, "b")])
    )
    assert found.all == {0: "q-0", 1: "q-0", 2: "q-0"}
    assert found.open == {"q-0": 2}


def test_a_batch_is_counted_from_0():
    found = names(step(0, [(0, "0:0")]), step(1, [(1, "0:1"), (2, "0:2")], [(0, "a")]))
    assert found.open == {"q-0": 1, "q-1": 2}
    assert found["q-2"] == "q-1"


def test_a_name_stays_while_its_question_is_open():
    """Of a program that asks on while others wait, the freed name is taken, never one that is in
    use.
    """
    found = names(
        step(0, [(0, "0.0:0"), (1, "0.1:0")]), step(1, [(2, "0.0:1")], [(0, "a")]), lua=False
    )
    assert found.open == {"q-1": 1, "q-0": 2}
    found = names(
        step(0, [(0, "0.0:0"), (1, "0.1:0")]), step(1, [(2, "0.1:1")], [(1, "a")]), lua=False
    )
    assert found.open == {"q-0": 0, "q-1": 2}


def test_children_of_a_fork_have_names_of_their_own():
    """The k-th question of the v-th child; what a child asks the store is not a question to a
    model.
    """
    found = names(
        step(0, [(0, "0.0:0", Kind.STATE), (1, "0.1:0"), (2, "0.1:1")]),
        step(1, [(3, "0.0:1")], [(0, None)]),
        step(2, [(4, "0.1:2")], [(1, "a"), (2, "b")]),
    )
    assert found.all == {1: "f-1-0", 2: "f-1-1", 3: "f-0-0", 4: "f-1-2"}


def test_a_second_fork_counts_its_children_from_0():
    found = names(
        step(0, [(0, "0.0:0"), (1, "0.1:0")]),
        step(1, [(2, "0.2:0"), (3, "0.3:0")], [(0, "a"), (1, "b")]),
    )
    assert found.open == {"f-0-0": 2, "f-1-0": 3}


def test_a_fork_within_a_fork_says_the_whole_way():
    found = names(step(0, [(0, "0.0:0"), (1, "0.1:0")]), step(1, [(2, "0.1.0:0")], [(1, "go")]))
    assert found.open == {"f-0-0": 0, "f-1-0-0": 2}


def test_what_was_withdrawn_or_ended_is_not_open():
    assert names(step(0, [(0, "0:0"), (1, "0:1")]), step(1, withdrawn=[1])).open == {"q-0": 0}
    assert names(step(0, [(0, "0:0")]), step(1, said=[(0, "a")], outcome=Returned(1))).open == {}


def test_an_answer_that_is_kept_for_an_absent_program_is_not_asked_for_again():
    found = names(step(0, [(0, "0:0"), (1, "0:1")]), kept=[QueryAnswer(0, "a")])
    assert found.open == {"q-1": 1}


def test_our_own_id_means_its_question_unless_it_has_been_a_name():
    found = names(step(0, [(0, "0:0")]), step(1, [(1, "0:1")], [(0, "a")]))
    assert found.meant("q-1") == 1
    assert found.meant("q-0") == 1
    assert found.meant("q-2") is None and found.meant("nonsense") is None
    found = names(
        step(0, [(0, "0:0")]),
        step(1, [(1, "0:1"), (2, "0:2")], [(0, "a")]),
        step(2, said=[(2, "b")]),
    )
    # it was the name of the one that is answered, not the id of the open one
    assert found.meant("q-1") is None


# ---- answers


PART = [step(0, [(0, "0:0"), (1, "0:1"), (2, "0:2")]), step(1, said=[(1, "b")])]


def test_answers_go_to_the_open_questions_with_their_usage():
    taken = match_answers(
        names(*PART), [AlcResponse("q-2", "c", AlcUsage(3, None)), AlcResponse("q-0", "a")]
    )
    assert {q: said.value for q, said in taken.items()} == {"q-2": "c", "q-0": "a"}
    assert taken["q-2"].usage.prompt_tokens == 3


def test_the_same_answer_again_is_no_answer():
    assert match_answers(names(*PART), [AlcResponse("q-1", "b")]) == {}
    with pytest.raises(AlcRefused, match="already responded to query_id: q-1"):
        match_answers(names(*PART), [AlcResponse("q-1", "other")])


def test_what_was_answered_long_ago_is_unknown():
    steps = [*PART, step(2, [(3, "0:3")], [(0, "a"), (2, "c")]), step(3, [(4, "0:4")], [(3, "d")])]
    with pytest.raises(AlcRefused, match="unknown query_id: q-1"):
        match_answers(names(*steps), [AlcResponse("q-1", "b")])


def test_a_name_means_what_it_meant_when_it_was_heard():
    steps = [step(0, [(0, "0:0")]), step(1, [(1, "0:1")], [(0, "a")])]
    now, heard = names(*steps), names(steps[0])
    assert match_answers(now, [AlcResponse("q-0", "a")], heard) == {}
    for one in (AlcResponse("q-0", "b"), AlcResponse("", "b")):
        with pytest.raises(AlcRefused, match="already responded to query_id: q-0"):
            match_answers(now, [one], heard)
    assert list(match_answers(now, [AlcResponse("q-0", "b")])) == ["q-1"]


def test_without_a_name_there_must_be_one_question():
    with pytest.raises(AlcRefused, match="2 queries pending, so an answer needs its query_id"):
        match_answers(names(*PART), [AlcResponse("", "a")])
    with pytest.raises(AlcRefused, match="no pending queries"):
        match_answers(names(), [AlcResponse("", "a")])


def test_an_answer_is_repeated_only_if_it_was_the_last_word_for_word():
    steps = [step(0, [(0, "0:0")]), step(1, [(1, "0:1")], [(0, "a")])]
    assert is_repeated(names(*steps), [AlcResponse("", "a")])
    assert is_repeated(names(*steps), [AlcResponse("q-0", "a")])
    assert not is_repeated(names(*steps), [AlcResponse("q-0", "b")])
    assert not is_repeated(names(*steps), [AlcResponse("q-0", "a"), AlcResponse("q-1", "a")])
    assert not is_repeated(names(steps[0]), [AlcResponse("q-0", "a")])
