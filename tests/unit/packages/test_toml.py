"""Edits of TOML: what was asked for changes, and every other line stays."""

import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.errors import MissingExtra
from everhold.packages.toml import (
    BadToml,
    drop_toml_value,
    format_toml_table,
    parse_toml,
    put_toml_value,
)

WRITTEN = """\
# what we use
[packages]  # by name
cot = "*"          # the usual one
"panel" = { path = "../panel" }   # ours
list = [
  "a = 1",
  # [packages.not]
]

# the last word of the table

[hub]
collection_url = '''
[packages]
cot = "no"
'''

[packages.rank]
git = "https://example.org/rank"  # pinned below
rev = "abc"

# the end
"""


def test_an_entry_comes_last_in_its_table() -> None:
    assert put_toml_value(WRITTEN, ("packages", "tot"), "1.2") == WRITTEN.replace(
        "]\n\n# the last", ']\ntot = "1.2"\n\n# the last'
    )


def test_a_table_comes_last_in_the_text() -> None:
    edited = put_toml_value(WRITTEN, ("packages", "tot"), {"path": "a b"})
    assert edited == WRITTEN + '\n[packages.tot]\npath = "a b"\n'


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("cot", 'cot = "*"          # the usual one\n'),
        ("panel", '"panel" = { path = "../panel" }   # ours\n'),
        ("list", 'list = [\n  "a = 1",\n  # [packages.not]\n]\n'),
        (
            "rank",
            '\n[packages.rank]\ngit = "https://example.org/rank"  # pinned below\nrev = "abc"\n',
        ),
    ],
)
def test_an_entry_goes_with_all_its_lines_and_no_other(name: str, gone: str) -> None:
    assert drop_toml_value(WRITTEN, ("packages", name)) == WRITTEN.replace(gone, "")


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("", '[packages]\nx = "*"\n'),
        ("a = 1", 'a = 1\n\n[packages]\nx = "*"\n'),
        ("[packages]", '[packages]\nx = "*"\n'),
        ("[packages]\r\na = 1\r\n", '[packages]\r\na = 1\r\nx = "*"\r\n'),
        ('[packages.y]\npath = "p"\n', '[packages.y]\npath = "p"\n\n[packages]\nx = "*"\n'),
        ('packages.y = "1"\n', None),
        ('packages = { y = "1" }\n', 'packages = { y = "1", x = "*"}\n'),
    ],
)
def test_every_way_of_writing_is_edited_or_left_alone(text: str, edited: str | None) -> None:
    if edited is None:
        with pytest.raises(BadToml, match="cannot be edited"):
            put_toml_value(text, ("packages", "x"), "*")
    else:
        assert put_toml_value(text, ("packages", "x"), "*") == edited


def test_dotted_keys_can_go() -> None:
    assert drop_toml_value(
        'packages.y = "1"\npackages.x.path = "2"\npackages.x.version = "3"\n', ("packages", "x")
    ) == ('packages.y = "1"\n')


def test_signs_within_quotes_and_lists_of_tables_mislead_nobody() -> None:
    text = '[[more]]\n"a=b" = 1\n[[more]]\npackages = 1\n[packages]\n"x=y" = "="  # =\n[q]\n'
    assert drop_toml_value(text, ("packages", "x=y")) == text.replace('"x=y" = "="  # =\n', "")
    assert put_toml_value(text, ("packages", "z"), "*") == text.replace("# =\n", '# =\nz = "*"\n')


def test_a_text_that_the_library_would_write_in_another_order_is_left_alone() -> None:
    text = '[[more]]\na = 1\n[packages]\nx = "1"\n[[more]]\na = 2\n'
    with pytest.raises(BadToml, match="edit the file by hand"):
        drop_toml_value(text, ("packages", "x"))
    with pytest.raises(BadToml, match="edit the file by hand"):
        put_toml_value(text, ("packages", "y"), "1")


def test_entries_of_an_inline_table_are_edited() -> None:
    text = 'packages = { x = "1", y = "2" } # ours\n'
    assert drop_toml_value(text, ("packages", "y")) == 'packages = { x = "1"  } # ours\n'
    assert put_toml_value(text, ("packages", "y"), "3") == text.replace('"2"', '"3"')


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "with a byte order mark"])
def test_a_byte_order_mark_stays(mark: str) -> None:
    text = f'{mark}[packages]\nx = "1"\n'
    edited = put_toml_value(text, ("packages", "y"), "2")
    assert edited == f'{text}y = "2"\n'
    assert drop_toml_value(edited, ("packages", "y")) == text


def test_editing_without_the_library_names_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    assert parse_toml(WRITTEN)["packages"]["cot"] == "*"
    for edit in (
        lambda: put_toml_value(WRITTEN, ("packages", "x"), "*"),
        lambda: drop_toml_value(WRITTEN, ("packages", "cot")),
        lambda: format_toml_table(("packages",), {"x": "*"}),
    ):
        with pytest.raises(MissingExtra) as caught:
            edit()
        assert caught.value.hint == "pip install 'everhold[lua]'"


@pytest.mark.parametrize("text", ["[packages", "a = ", "packages = 1\n"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(BadToml):
        put_toml_value(text, ("packages", "x"), "*")


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(BadToml):
        parse_toml("a = " + "[" * 100_000)


@given(name=st.text(min_size=1), value=st.text())
def test_any_name_and_any_value_come_back(name: str, value: str) -> None:
    try:
        name.encode(), value.encode()
    except UnicodeEncodeError:
        return
    edited = put_toml_value(WRITTEN, ("packages", f"{name}x"), value)
    assert tomllib.loads(edited)["packages"][f"{name}x"] == value
    assert drop_toml_value(edited, ("packages", f"{name}x")) == WRITTEN


# A table of an MCP server in the file of its host

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
    assert drop_toml_value(put_toml_value(text, PATH, ENTRY), PATH) == text


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_the_rest_means_what_it_meant(text: str) -> None:
    before, after = tomllib.loads(text), tomllib.loads(put_toml_value(text, PATH, ENTRY))
    assert after["mcp_servers"].pop("everhold") == ENTRY
    assert {name: table for name, table in after.items() if table} == before


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_putting_it_in_twice_is_putting_it_in_once(text: str) -> None:
    once = put_toml_value(text, PATH, ENTRY)
    assert put_toml_value(once, PATH, ENTRY) == once


def test_a_last_line_without_an_end_gets_one() -> None:
    assert put_toml_value("a = 1", PATH, ENTRY).startswith("a = 1\n\n[mcp_servers.everhold]\n")


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
    after = put_toml_value(OLD, PATH, {"command": "/new", "args": ["mcp", "-x"]})
    assert after == OLD.replace('"/old"', '"/new"').replace(
        'args = [\n  "mcp", # the server\n]', 'args = ["mcp", "-x"]'
    )


def test_a_key_that_was_missing_from_our_table_is_put_in() -> None:
    after = put_toml_value(
        '[mcp_servers.everhold]\ncommand = "/x"\n[b]\n', PATH, {"command": "/x", "args": ["mcp"]}
    )
    assert after == '[mcp_servers.everhold]\ncommand = "/x"\nargs = ["mcp"]\n[b]\n'


def test_our_table_goes_with_those_within_it_and_the_comment_of_the_next_stays() -> None:
    assert drop_toml_value(OLD, PATH) == "# what follows\n[z]\nq = 1\n"


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (
            'mcp_servers = { b = { command = "c" } } # all\n',
            'mcp_servers = { b = { command = "c" }, everhold = { command = "/new" }} # all\n',
        ),
        (
            'mcp_servers.everhold.command = "everhold" # ours\nmcp_servers.everhold.args = []\n',
            'mcp_servers.everhold.command = "/new" # ours\nmcp_servers.everhold.args = []\n',
        ),
        (
            '[mcp_servers]\neverhold = { command = "everhold", args = ["mcp"] } # ours\n',
            '[mcp_servers]\neverhold = { command = "/new", args = ["mcp"] } # ours\n',
        ),
    ],
)
def test_a_server_is_edited_in_the_form_that_it_has(text: str, edited: str) -> None:
    assert put_toml_value(text, PATH, {"command": "/new"}) == edited


@pytest.mark.parametrize("text", ["mcp_servers = 7\n", "[mcp_servers]\neverhold = 7\n"])
def test_a_value_that_is_no_table_is_left_alone(text: str) -> None:
    with pytest.raises(BadToml, match="should be a table"):
        put_toml_value(text, PATH, ENTRY)


def test_an_inline_server_is_taken_out() -> None:
    text = '[mcp_servers] # all\neverhold = { command = "everhold" } # ours\nb = 1\n'
    assert drop_toml_value(text, PATH) == "[mcp_servers] # all\nb = 1\n"


@pytest.mark.parametrize("text", ["a = \n", "[a\n", "a = 1\na = 2\n", "x = " + "[" * 5000])
def test_what_is_not_toml_is_refused(text: str) -> None:
    with pytest.raises(BadToml):
        put_toml_value(text, PATH, ENTRY)


def test_a_snippet_is_the_table_alone() -> None:
    assert tomllib.loads(format_toml_table(("mcp_servers", "my server"), ENTRY)) == {
        "mcp_servers": {"my server": ENTRY}
    }
