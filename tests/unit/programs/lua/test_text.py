"""What programs do with the words of a model: text.lua, function by function."""

import json
import time
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.programs.lua.library_harness import Library
from tests.unit.programs.lua.life import run

CHUNKS = [
    ('"a\\nb\\nc", {size=2}', ["a\nb", "c"]),
    ('"a\\nb\\nc\\nd", {size=2}', ["a\nb", "c\nd"]),  # a chunk that reaches the end is the last
    ('"a\\nb\\nc\\nd", {size=3, overlap=1}', ["a\nb\nc", "c\nd"]),
    ('"a\\nb\\nc", {size=2, overlap=1}', ["a\nb", "b\nc"]),
    # an overlap of the whole size still moves on
    ('"a\\nb\\nc", {size=2, overlap=2}', ["a\nb", "b\nc"]),
    ('"a\\nb\\nc", {size=1, overlap=9}', ["a", "b", "c"]),
    ('"a\\nb\\nc", alc.json_decode([[{"size": 2, "overlap": null, "mode": null}]])', ["a\nb", "c"]),
    ('"a\\nb", alc.json_decode([[{"size": null}]])', ["a\nb"]),
    ('"a\\nb\\n", {size=5}', ["a\nb"]),  # no empty line at the end
    ('"a\\r\\nb\\r\\n", {size=1}', ["a", "b"]),
    ('"a\\n\\nb", {size=1}', ["a", "", "b"]),
    ('"\\n", {size=1}', [""]),
    ('"x\\ry", {size=1}', ["x\ry"]),
    ('"a\\nb", {mode="words", size=1}', ["a", "b"]),  # an unknown mode cuts lines
    ('"a\\nb"', ["a\nb"]),
    ('"", {size=2}', []),
    ('"abc", {size=0}', []),
    ('"abcdef", {mode="chars", size=4}', ["abcd", "ef"]),
    ('"abcdef", {mode="chars", size=4, overlap=2}', ["abcd", "cdef"]),
    ('"abcdef", {mode="chars", size=4, overlap=3}', ["abcd", "bcde", "cdef"]),
    ('"äöü€𝄞", {mode="chars", size=2}', ["äö", "ü€", "𝄞"]),
    ('"äöü€𝄞", {mode="chars", size=3, overlap=1}', ["äöü", "ü€𝄞"]),
    ('"ä", {mode="chars", size=50}', ["ä"]),
    ("12345, {mode='chars', size=3}", ["123", "45"]),
]


@pytest.mark.parametrize(("given", "expected"), CHUNKS)
def test_chunk(given, expected):
    assert Library().run(f"return alc.chunk({given})") == expected


def test_lines_by_default():
    """Fifty lines to a chunk, without overlap."""
    found = Library().run('return alc.chunk(("x\\n"):rep(120))')
    assert [chunk.count("x") for chunk in found] == [50, 50, 20]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nil", "alc.chunk: text must be a string, got nil"),
        ('"a", {size=1.5}', "alc.chunk: size must be a whole number from 0"),
        ('"a", {size=-1}', "alc.chunk: size must be a whole number from 0"),
        ('"a", {overlap="x"}', "alc.chunk: overlap must be a whole number from 0"),
        ('"a\\xff", {mode="chars"}', "alc.chunk: text is not valid UTF-8"),
    ],
)
def test_chunk_refuses(given, words):
    assert Library().error(f"alc.chunk({given})") == words


MATCHES = [
    ('"I pick Blue.", {"red", "blue"}', "blue"),
    ('"RED", {"red"}', "red"),
    ('"bananna", {"banana"}, alc.json_decode([[{"threshold": null}]])', "banana"),
    ('"red, no: blue", {"red", "blue"}', "blue"),  # the last word counts
    ('"blue, no: red", {"red", "blue"}', "red"),
    ('"red blue red", {"red", "blue"}', "red"),
    ('"redder", {"red", "redder"}', "red"),  # both begin at once: the earlier candidate
    ('"redder", {"redder", "red"}', "redder"),
    ('"aaa", {"a", "aa"}', "a"),
    ('"approve", {"approved", "rejected"}', "approved"),  # alike
    ('"**aproved!**", {"approved", "rejected"}', "approved"),
    ('"banana", {"approved", "rejected"}', None),
    ('"rejeted aproved", {"approved", "rejected"}', "rejected"),  # 0.971 and 0.967
    ('"x", {}', None),
    ('"", {"a"}', None),
    ('"abc", {""}', None),
    ('"any", {"a-b", "x"}', None),
    ('"50% off", {"50%"}', "50%"),
    ('"naïve", {"naive"}', "naive"),  # 0.907
]


@pytest.mark.parametrize(("given", "expected"), MATCHES)
def test_match_enum(given, expected):
    assert Library().run(f"return alc.match_enum({given})") == expected


def test_a_word_that_is_said_often_is_compared_once():
    """What a model says over and over takes no longer than the words in it: two megabytes, in a
    second of computing.
    """
    code = (
        'return alc.match_enum(("lorem ipsum dolor aprovd "):rep(8e4), {"approved",'
        ' "rejected", "unclear"})'
    )
    assert run(code) == "approved"


# From Winkler's papers, to three digits.
@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        ("marhta", "martha", 0.961),
        ("duane", "dwayne", 0.840),
        ("dicksonx", "dixon", 0.813),
        ("jon", "john", 0.933),
    ],
)
def test_how_much_alike(one, two, alike):
    """Just below the known likeness it is found, just above it is not."""
    ask = 'return alc.match_enum("{}", {{"{}"}}, {{threshold={}}})'
    assert Library().run(ask.format(one, two, alike - 0.001)) == two
    assert Library().run(ask.format(one, two, alike + 0.001)) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}, {}", "alc.match_enum: text must be a string, got table"),
        ('"a", "b"', "alc.match_enum: candidates must be an array of strings"),
        ('"a", {"x", 2}', "alc.match_enum: candidate 2 must be a string, got number"),
        ('"a", {"x"}, {threshold="high"}', "alc.match_enum: threshold must be a number"),
    ],
)
def test_match_enum_refuses(given, words):
    assert Library().error(f"alc.match_enum({given})") == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes.", True),
        ("no", False),
        ("LGTM", True),
        ("yes ... but then: REJECTED", False),
        ("no, wait, yes", True),
        ("note", None),
        ("disagree", False),
        ("I agree", True),
        ("not_ok", True),  # an underscore is no letter
        ("okay", None),
        ("passed", None),
        ("ok1", None),
        ("éok", True),  # nor is what ASCII does not have
        ("", None),
        *(
            (word, True)
            for word in [
                "approved",
                "yes",
                "ok",
                "accept",
                "pass",
                "confirm",
                "agree",
                "true",
                "lgtm",
            ]
        ),
        *(
            (word, False)
            for word in ["rejected", "no", "deny", "block", "fail", "refuse", "disagree", "false"]
        ),
    ],
)
def test_match_bool(text, expected):
    assert Library().run(f"return alc.match_bool({text!r})") is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('"8/10"', 8),
        ('"score: 10"', 10),
        ('"0.7"', 1),
        ('"7.5"', 7),
        ('"42"', 10),
        ('"99999999999999999999999"', 10),
        ('"none"', 5),
        ('"none", 3', 3),
        ('"none", false', False),
        ("nil", 5),
        ("9", 9),
    ],
)
def test_parse_score(given, expected):
    found = Library().run(f"return alc.parse_score({given})")
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('"it is -3.5 or so"', -3.5),
        ('"7 of 9"', 7),
        ('"3."', 3.0),
        ('"a=1 b=2", "b=(%d+)"', 2),
        ('"a=1 b=2", "b=%a+"', None),
        ('"abc", "a"', None),
        ('"none"', None),
        ("12", None),
        ("nil", None),
    ],
)
def test_parse_number(given, expected):
    assert Library().run(f"return alc.parse_number({given})") == expected


def djb2(text: str) -> str:
    total = 5381
    for value in text.encode():
        total = (total * 33 + value) % 2**32
    return f"{total:08x}"


@pytest.mark.parametrize(
    ("given", "same_as"),
    [
        ('"hello"', "hello"),
        ('"  Fix \\t the\\n Bug "', "fix the bug"),
        ('""', ""),
        ('"   "', ""),
        ("42", "42"),
        ('"é"', "é"),
        ('"a\\0b"', "a\0b"),
    ],
)
def test_fingerprint(given, same_as):
    assert Library().run(f"return alc.fingerprint({given})") == djb2(same_as)


def test_known_fingerprint():
    """A value worked out by hand: 5381 · 33 + 97."""
    assert Library().run('return alc.fingerprint("A")') == "0002b606"


EXTRACTED = [
    ('{"a": 1}', {"a": 1}),
    ("[1, 2]", [1, 2]),
    ('Sure:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
    ('```\n{"a": 1}\n```', {"a": 1}),
    ('```JSON{"a": 1}```', {"a": 1}),
    ('```python\nx = {}\n```\n```json\n{"a": 1}\n```', {"a": 1}),
    ('It is {"a": 1} as shown.', {"a": 1}),
    ('text {not json} then {"a": 1} end', {"a": 1}),
    ('{outer {"a": 1} }', {"a": 1}),  # what is inside of what is not JSON
    ('{ never closed {"a": 1}', {"a": 1}),
    ("see [broken then [1, 2] done", [1, 2]),
    ('say {"a": "}"} ok', {"a": "}"}),  # a bracket in a string is no bracket
    ('say {"a": "\\"}{"} ok', {"a": '"}{'}),
    ('one " quote {"a": 1}', {"a": 1}),
    ('a {x"} and {"b": 2} "', {"b": 2}),  # a lone quote hides nothing
    ('list: [{"a": 1}, {"a": 2}]', {"a": 1}),  # objects before arrays
    ("two {} empty", {}),
    ("[] of nothing", []),
    ("nothing", None),
    ("", None),
    ("42", None),
    ('"text"', None),
    ("null", None),
]


@pytest.mark.parametrize(("text", "expected"), EXTRACTED)
def test_json_extract(text, expected):
    library = Library()
    library.lua.globals().text = text
    assert library.run("return alc.json_extract(text)") == expected


WORDS = st.text(st.sampled_from('{}[]"\\ab:,é\n'), max_size=8)
ONE = cache(Library)


@settings(max_examples=100)
@given(
    st.dictionaries(
        WORDS, WORDS | st.integers(-9, 9) | st.lists(WORDS, max_size=3), min_size=1, max_size=4
    )
)
def test_json_extract_finds_what_was_written(value):
    """An object between words is found whole, whatever brackets and quotes its strings hold."""
    library = ONE()
    library.lua.globals().text = f"Here it is: {json.dumps(value, ensure_ascii=False)} Enough?"
    assert library.run("return alc.json_extract(text)") == value


@pytest.mark.parametrize("given", ["nil", "42", "true", "{}"])
def test_json_extract_of_no_text(given):
    assert Library().run(f"return alc.json_extract({given})") is None


@pytest.mark.parametrize(
    "bomb",
    [
        '("{"):rep(2e5)',
        "('{\"'):rep(1e5)",
        '("{"):rep(2e4) .. ("}"):rep(2e4)',
        '("["):rep(2e4)',
        '"```" .. ("a"):rep(2e5)',
        '("```x"):rep(5e4) .. ("a"):rep(2e5)',
    ],
)
def test_json_extract_of_hostile_text(bomb):
    """Brackets without end are looked at a bounded number of times, and so is a fence that is never
    closed.
    """
    began = time.process_time()
    assert Library().run(f"return alc.json_extract({bomb})") is None
    assert time.process_time() - began < 20


def test_a_replaced_decoder_is_heard():
    """A program that brings its own decoder has it used."""
    assert Library().run(
        'alc.json_decode = function() return {mine=1} end return alc.json_extract("x")'
    ) == {"mine": 1}


LETTERS = [*range(0xC0, 0x180), *range(0x391, 0x3AC), *range(0x400, 0x430)]


def test_capitals_of_other_scripts():
    """Latin, Greek and Cyrillic capitals are the small letters that Python says they are."""
    library, found = Library(), {}
    capitals = [chr(code) for code in LETTERS if chr(code).isupper() and code != 0x130]
    for letter in capitals:
        library.lua.globals().letter, library.lua.globals().small = letter, letter.lower()
        found[letter] = library.run("return alc.match_enum(letter, {small}, {threshold=1.1})")
    assert found == {letter: letter.lower() for letter in capitals}
    assert len(found) > 150
