"""JSON that people wrote is edited by one member, and every other byte stays."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everhold.mcp.json_edit import MalformedText, drop_json_server, parse_host_json, put_json_server

PATH = ("servers", "everhold")
ENTRY = {"command": "/opt/everhold", "args": ["mcp"]}

FILES = {
    "one line": '{"servers":{"x":{"command":"y"}},"n":1e5}',
    "one line, no servers": '{"a": 1}',
    "tabs": '{\n\t"servers": {\n\t\t"x": {"command": "y"}\n\t}\n}',
    "Windows line ends": (
        '{\r\n  "q": "ü\\u00e9",\r\n  "servers": {\r\n    "x": {}\r\n  },\r\n  "z": null\r\n}\r\n'
    ),
    "a byte order mark": '\ufeff{\n  "a": 1\n}',
    "comments": '{\n  // mine\n  "servers": {\n    "x": {} // last\n    /* after */\n  }\n}\n',
    "trailing commas": '{\n    "a": 1, // hi\n    "b": [1, 2,],\n}\n',
    "braces and slashes in strings": '{\n  "a": "}{ // no \\" /* no",\n  "servers": {"x": {}}\n}',
    "an empty object": "{}\n",
}

WORDS = st.text(max_size=8)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
OTHERS = st.dictionaries(WORDS.filter(lambda key: key != "servers"), PLAIN, max_size=4)
SERVERS = st.dictionaries(
    WORDS.filter(lambda key: key != "everhold"), PLAIN, min_size=1, max_size=3
)


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_what_was_put_in_can_be_taken_out_to_the_byte(text: str) -> None:
    assert drop_json_server(put_json_server(text, PATH, ENTRY), PATH) == text


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_putting_it_in_twice_is_putting_it_in_once(text: str) -> None:
    once = put_json_server(text, PATH, ENTRY)
    assert put_json_server(once, PATH, ENTRY) == once


@settings(max_examples=40)
@given(others=OTHERS, servers=st.none() | SERVERS, indent=st.sampled_from([None, 2, 4, "\t"]))
def test_the_rest_means_what_it_meant(
    others: dict, servers: dict | None, indent: int | str | None
) -> None:
    """Whatever else is in the file, and however it is laid out: the standard library reads the
    same, and ours.
    """
    before = others | ({} if servers is None else {"servers": servers})
    text = json.dumps(before, indent=indent)

    after = put_json_server(text, PATH, ENTRY)

    assert json.loads(after) == before | {"servers": (servers or {}) | {"everhold": ENTRY}}
    assert drop_json_server(after, PATH) == text


def test_an_empty_file_becomes_one() -> None:
    text = put_json_server("", PATH, ENTRY)
    assert json.loads(text) == {"servers": {"everhold": ENTRY}}
    assert text.endswith("}\n")


def test_what_a_person_added_to_our_member_stays() -> None:
    text = (
        '{\n  "servers": {\n    "everhold": {"env": {"A": "1"}, /* old */ "command": "/old",'
        ' "args": []}\n  }\n}'
    )
    after = put_json_server(text, PATH, ENTRY)
    assert after == text.replace('"/old"', '"/opt/everhold"').replace(
        '"args": []', f'"args": {_as_indented(["mcp"])}'
    )


def _as_indented(value: list[str]) -> str:
    return json.dumps(value, indent=2).replace("\n", "\n" + "  " * 3)


def test_an_object_that_holds_a_comment_stays() -> None:
    text = '{\n  "servers": {\n    // none of mine yet\n  }\n}\n'
    assert drop_json_server(put_json_server(text, PATH, ENTRY), PATH) == text


@pytest.mark.parametrize("after", ['}, "z": 1}', "}}"])
def test_what_follows_on_the_line_does_not_end_up_in_the_remark_above(after: str) -> None:
    text = '{"a": 1, // mine\n  "servers": {"everhold": {}' + after
    assert "// mine\n" in drop_json_server(text, PATH)
    assert parse_host_json(drop_json_server(text, PATH)).value == {"a": "1"} | (
        {"z": "1"} if "z" in after else {}
    )


def test_a_member_that_was_hidden_by_ours_is_not_lost_with_it() -> None:
    with pytest.raises(MalformedText):
        drop_json_server(
            '{"servers": {"everhold": {"command": "a"}, "everhold": {"command": "b"}}}', PATH
        )


def test_of_two_members_with_one_name_the_last_counts_as_it_does_for_readers() -> None:
    text = '{"servers": {"everhold": {"command": "a"}, "everhold": {"command": "b"}}}'
    assert json.loads(put_json_server(text, PATH, ENTRY)) == {"servers": {"everhold": ENTRY}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1: expected a name in double quotes, or }, found the end"),
        ('{\n  "a": 1\n  "b": 2\n}', "line 3: expected a comma or }, found '\"'"),
        ('{"a" 1}', "line 1: expected a colon, found '1'"),
        ('{"a": yes}', "line 1: expected a value, found 'y'"),
        (
            '{"a": "b\nc"}',
            "line 1: expected a string that ends on its line, with known escapes, found '\"'",
        ),
        (
            '{"a": "\\q"}',
            "line 1: expected a string that ends on its line, with known escapes, found '\"'",
        ),
        ('{"a": [1 2]}', "line 1: expected a comma or ], found '2'"),
        ("{} {}", "line 1: expected nothing more, found '{'"),
        ("[" * 300, "line 1: expected at most 200 levels, found '['"),
    ],
)
def test_what_is_not_json_is_refused_with_the_line(text: str, says: str) -> None:
    with pytest.raises(MalformedText) as refused:
        parse_host_json(text)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    "text",
    ["[]", '"x"', "7", '{"servers": []}', '{"servers": null}', '{"servers": {"everhold": 1}}'],
)
def test_what_holds_no_objects_is_refused(text: str) -> None:
    with pytest.raises(MalformedText, match="should be an object"):
        put_json_server(text, PATH, ENTRY)


@pytest.mark.parametrize("end", ["", "\n}", '\\"\n}'])
def test_a_string_that_never_ends_is_found_malformed_at_once(end: str) -> None:
    with pytest.raises(MalformedText):
        parse_host_json('{"command": "' + "everhold mcp " * 1000 + end)
