"""Answers are read as people and models type them."""

import time

import pytest

from everhold.packages.strategies.parse import (
    extract_answer,
    extract_short_answer,
    find_marked_text,
    is_only,
    is_verdict,
    normalize_answer,
    parse_choice,
    parse_list,
    parse_score,
)
from everhold.packages.strategies.prompt import (
    MAX_SHOWN_CHARS,
    build_prompt,
    shorten_text,
    wrap_in_tags,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ANSWER: 4", "4"),
        ("I think.\nanswer: four\n", "four"),
        ("ANSWER: no, wait.\nANSWER: 5", "5"),
        ("**Final Answer:** 6", "6"),
        ("### Answer: 7", "7"),
        ("> ANSWER = 8", "8"),
        ("ANSWER:\nfirst line\nsecond line", "first line\nsecond line"),
        ("The ANSWER: is inside", None),
        ("ANSWER:   ", None),
        ("ANSWERS: 4", None),
        ("", None),
    ],
)
def test_what_stands_behind_a_mark(text, wanted):
    assert find_marked_text(text, "answer") == wanted


def test_without_a_mark_the_answer_is_all_of_it():
    assert extract_answer("  Paris, of course. ") == "Paris, of course."


def test_a_text_that_has_answers_in_it_is_not_cut():
    """Only the mark that was asked for, in capitals, counts where lines of the text look like
    it.
    """
    page = "Question: Why?\nAnswer: Because.\nQuestion: When?\nAnswer: Now."
    assert extract_answer(page) == page
    assert extract_answer(f"Here it is.\nANSWER:\n{page}") == page
    assert extract_answer("Sure.\nAnswer: one thing") == "one thing"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Thus\nANSWER: 4\nbecause of the sum", "4"),
        (r"So it is \boxed{42}. Hope this helps!", "42"),
        ("Let me think.\n\nParis\n***\n", "Paris"),
        ("", ""),
        ("***", ""),
    ],
)
def test_a_short_answer_is_one_line(text, wanted):
    assert extract_short_answer(text) == wanted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,200", "1200.00"),
        ("$5", "5"),
        ("**Paris**.", "paris"),
        ("The answer is 7", "7"),
        ("So the final ANSWER: 7.", "7"),
        ("New   York", "new york"),
        ("“Yes”", "yes"),
        ("-3", "-3.0"),
    ],
)
def test_answers_that_mean_the_same_are_equal(one, other):
    assert normalize_answer(one) == normalize_answer(other)


@pytest.mark.parametrize(
    ("one", "other"), [("50%", "50"), ("12", "1,2"), ("3", "-3"), ("a b", "ab"), ("1e3", "1000")]
)
def test_answers_that_differ_stay_different(one, other):
    assert normalize_answer(one) != normalize_answer(other)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SCORE: 7", 7),
        ("Good.\n**Score:** 8.5", 8.5),
        ("SCORE: 7/10", 7),
        ("SCORE: 3 out of 5", 6),
        ("SCORE: 80%", 8),
        ("7", 7),
        ("I give it a 6.", 6),
        ("3 points for style, 8 overall", 8),
        ("SCORE: 7 (of 10)", 7),
        ("0", 0),
        ("SCORE: 85", None),
        ("-2", None),
        ("SCORE: 3/0", None),
        ("12/10", None),
        ("excellent", None),
        ("", None),
    ],
)
def test_scores(text, wanted):
    assert parse_score(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("BETTER: 2", 2),
        ("BETTER: candidate 1, though 2 is shorter", 1),
        ("2", 2),
        ("**2**", 2),
        ("The second one, 2, has no 3.5 error", 2),
        ("1 is longer but 2 is right", None),
        ("BETTER: 7", None),
        ("neither", None),
        ("version2", None),
        ("", None),
    ],
)
def test_choices(text, wanted):
    assert parse_choice(text, 2, "better") == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("VERDICT: KEEP", True),
        ("Fine.\n**Verdict: keep** it", True),
        ("Keep.", True),
        ("Keep the title.\nVERDICT: REVISE", False),
        ("Keep the title, change the rest.", False),
        ("VERDICT: keeper", False),
        ("", False),
    ],
)
def test_verdicts(text, wanted):
    assert is_verdict(text, "keep") is wanted


def test_a_word_alone():
    assert is_only(" **Done.**\n", "done") and not is_only("Done with the first part", "done")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1. one\n2) two\n3: three", ["one", "two", "three"]),
        ("- one\n* two\n• three", ["one", "two", "three"]),
        ("Here:\n1. one\n   goes on\n2. two\n\nTell me more!", ["one goes on", "two"]),
        ('```json\n["one", "two"]\n```', ["one", "two"]),
        ("1. same\n2. same", ["same"]),
        ("Just one thing.", ["Just one thing."]),
        ("1. a\n2. b\n3. c\n4. d", ["a", "b", "c"]),
        ("[not json]", ["[not json]"]),
        ("1. ***\n2. real", ["real"]),
        ("", []),
        ("\n \n", []),
    ],
)
def test_lists(text, wanted):
    assert parse_list(text, 3) == wanted


@pytest.mark.parametrize(
    "unit",
    ["1. ", "\n", " ", "ANSWER:", "ANSWER: \n", "-", "9", "/", "[", "1/", "answer is ", "\\boxed{"],
)
def test_reading_takes_time_in_proportion(unit):
    """A text of a million characters that is all beginnings is read in a moment by all of them."""
    text = unit * (1_000_000 // len(unit))
    began = time.process_time()
    for read in (
        extract_answer,
        extract_short_answer,
        normalize_answer,
        parse_score,
        lambda t: parse_choice(t, 3, "choice"),
        lambda t: parse_list(t, 5),
    ):
        read(text)
    assert time.process_time() - began < 20


def test_a_long_text_keeps_its_beginning_and_its_end():
    cut = shorten_text("a" * MAX_SHOWN_CHARS + "z" * MAX_SHOWN_CHARS)
    assert cut.startswith("aaa") and cut.endswith("zzz") and len(cut) < MAX_SHOWN_CHARS + 100
    assert "12000 characters left out" in cut


def test_a_tag_cannot_be_closed_from_inside():
    assert (
        wrap_in_tags("draft", "x</draft>y< / Draft >z<b>")
        == "<draft>\nx‹/draft>y‹ / Draft >z<b>\n</draft>"
    )


def test_a_question_without_material_has_no_rule_about_it():
    assert build_prompt("Do it.", task="Sing.") == "Do it.\n\n<task>\nSing.\n</task>"
    assert "material" in build_prompt("Do it.", wrap_in_tags("draft", "La."), task="Sing.")
    assert '"ANSWER:" on a new line' in build_prompt("Do it.", task="Sing.", whole=True)
