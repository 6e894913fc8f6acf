"""Edits of TOML: what was asked for changes, and every other line stays."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.packages.lua.toml_edit import drop_toml_value, parse_toml, put_toml_value

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
        ('packages = { y = "1" }\n', None),
    ],
)
def test_every_way_of_writing_is_edited_or_left_alone(text: str, edited: str | None) -> None:
    if edited is None:
        with pytest.raises(ValueError, match="a form that cannot be edited"):
            put_toml_value(text, ("packages", "x"), "*")
    else:
        assert put_toml_value(text, ("packages", "x"), "*") == edited


def test_dotted_keys_can_go() -> None:
    assert drop_toml_value(
        'packages.y = "1"\npackages.x.path = "2"\npackages.x.version = "3"\n', ("packages", "x")
    ) == ('packages.y = "1"\n')


def test_signs_within_quotes_and_lists_of_tables_mislead_nobody() -> None:
    text = '[[more]]\n"a=b" = 1\n[packages]\n"x=y" = "="  # =\n[[more]]\npackages = 1\n'
    assert drop_toml_value(text, ("packages", "x=y")) == text.replace('"x=y" = "="  # =\n', "")
    assert put_toml_value(text, ("packages", "z"), "*") == text.replace("# =\n", '# =\nz = "*"\n')


def test_an_entry_of_an_inline_table_is_left_alone() -> None:
    with pytest.raises(ValueError, match="a form that cannot be edited"):
        drop_toml_value('packages = { x = "1", y = "2" }\n', ("packages", "x"))


@pytest.mark.parametrize("text", ["[packages", "a = ", "packages = 1\n"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        put_toml_value(text, ("packages", "x"), "*")


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError):
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
