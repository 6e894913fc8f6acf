"""TOML that people wrote is edited by one table, and every other line stays."""

import tomllib

import pytest

from everhold.mcp.json_edit import MalformedText
from everhold.mcp.toml_edit import drop_toml_server, format_toml_server, put_toml_server

PATH = ("mcp_servers", "everhold")
ENTRY = {"command": "C:\\tools\\everhold.exe", "args": ["mcp", "--database", "sqlite:///ü.db"]}

FILES = {
    "nothing": "",
    "one key": "a = 1\n",
    "other servers": '# mine\nmodel = "m"  # best\n\n[mcp_servers.b]\ncommand = "c"\n# the end\n',
    "a header within a string": 'x = """\n[mcp_servers.everhold]\n"""\n',
    "a header within an array": "x = [\n  [1],\n  [2],\n]\n\n[t]\ny = 1\n",
    "arrays of tables": '[[profiles]]\nname = "a"\n\n[[profiles]]\nname = "b"\n',
    "Windows line ends": "a = 1\r\n[b]\r\nc = 2\r\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_what_was_put_in_can_be_taken_out_to_the_byte(text: str) -> None:
    assert drop_toml_server(put_toml_server(text, PATH, ENTRY), PATH) == text


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_the_rest_means_what_it_meant(text: str) -> None:
    before, after = tomllib.loads(text), tomllib.loads(put_toml_server(text, PATH, ENTRY))
    assert after["mcp_servers"].pop("everhold") == ENTRY
    assert {name: table for name, table in after.items() if table} == before


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_putting_it_in_twice_is_putting_it_in_once(text: str) -> None:
    once = put_toml_server(text, PATH, ENTRY)
    assert put_toml_server(once, PATH, ENTRY) == once


def test_a_last_line_without_an_end_gets_one() -> None:
    assert put_toml_server("a = 1", PATH, ENTRY).startswith("a = 1\n\n[mcp_servers.everhold]\n")


OLD = """\
[mcp_servers.everhold] # ours
command = "/old" # was here
args = [
  "mcp", # the server
]
startup_timeout_sec = 5

[mcp_servers.everhold.env]
A = "1"

# what follows
[z]
q = 1
"""


def test_what_a_person_added_to_our_table_stays() -> None:
    after = put_toml_server(OLD, PATH, {"command": "/new", "args": ["mcp", "-x"]})
    assert after == OLD.replace('"/old" # was here', '"/new"').replace(
        'args = [\n  "mcp", # the server\n]', 'args = ["mcp", "-x"]'
    )


def test_a_key_that_was_missing_from_our_table_is_put_in() -> None:
    after = put_toml_server(
        '[mcp_servers.everhold]\ncommand = "/x"\n[b]\n', PATH, {"command": "/x", "args": ["mcp"]}
    )
    assert after == '[mcp_servers.everhold]\nargs = ["mcp"]\ncommand = "/x"\n[b]\n'


def test_our_table_goes_with_those_within_it_and_the_comment_of_the_next_stays() -> None:
    assert drop_toml_server(OLD, PATH) == "\n# what follows\n[z]\nq = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = { b = { command = "c" } }\n',
        'mcp_servers.everhold.command = "everhold"\nmcp_servers.everhold.args = ["mcp", "old"]\n',
        '[mcp_servers]\neverhold = { command = "everhold", args = ["mcp", "old"] }\n',
        "mcp_servers = 7\n",
        "[mcp_servers]\neverhold = 7\n",
    ],
)
def test_other_forms_are_left_alone(text: str) -> None:
    with pytest.raises(MalformedText):
        put_toml_server(text, PATH, ENTRY)


def test_an_inline_server_is_not_taken_out() -> None:
    with pytest.raises(MalformedText, match="does not edit"):
        drop_toml_server('[mcp_servers]\neverhold = { command = "everhold" }\n', PATH)


@pytest.mark.parametrize("text", ["a = \n", "[a\n", "a = 1\na = 2\n", "x = " + "[" * 5000])
def test_what_is_not_toml_is_refused(text: str) -> None:
    with pytest.raises(MalformedText):
        put_toml_server(text, PATH, ENTRY)


def test_a_snippet_is_the_table_alone() -> None:
    assert tomllib.loads(format_toml_server(("mcp_servers", "my server"), ENTRY)) == {
        "mcp_servers": {"my server": ENTRY}
    }
