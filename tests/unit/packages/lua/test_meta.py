"""What a Lua package says of itself is read without running it."""

import time

import pytest

from everhold.packages.lua.meta import (
    PackageMeta,
    parse_package_meta,
    read_package_meta,
)
from everhold.programs.lua.declared import MAX_SOURCE_BYTES


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            'local M = {}\nM.meta = {\n  name = "cot",\n  version = "0.1.0",\n  description ='
            ' "Thinks.",\n'
            '  category = "reasoning",\n}\nreturn M',
            PackageMeta("cot", "0.1.0", "Thinks.", "reasoning"),
        ),
        ("local M = { meta = { name = 'x', description = 'In the table.' }"
         " }", PackageMeta("x", "", "In the table.")),
        ('M.meta = { description = "One, " .. "two"\n .. " and three"'
         ' }', PackageMeta("", "", "One, two and three")),
        ("M.meta = { description = [[\n  A long\n  text.\n]]"
         " }", PackageMeta("", "", "A long text.")),
        (r'M.meta = { description = "Say \"hello\"\n{now}."'
         r' }', PackageMeta("", "", 'Say "hello" {now}.')),
        ('M.meta = { tags = { "a", name = "inner" }, name = "outer" }', PackageMeta("outer")),
        ('M.meta = { f = function() return { name = "no" } end, name = "yes"'
         ' }', PackageMeta("yes")),
        ('M.meta = { -- name = "commented"\n  version = "2"; name = "real"'
         ' }', PackageMeta("real", "2")),
        ('M.meta = { --[[ name = "gone" ]] name = "here" }', PackageMeta("here")),
        ('M.meta = { name = NAME, description = "Known: " .. COUNT, version = 3 }', PackageMeta()),
        ('--- Debates.\n--- Twice.\n---\n--- @module x\nM.meta = { name = "d"'
         ' }', PackageMeta("d", "", "Debates. Twice.")),
        ("-- only a comment", PackageMeta("", "", "only a comment")),
        ("return {}", PackageMeta()),
        ("", PackageMeta()),
        ('M.meta = { name = "never closed', PackageMeta()),
        ("M.meta = {", PackageMeta()),
    ],
)  # fmt: skip
def test_fields_that_are_plain_strings_are_read(text, wanted):
    assert parse_package_meta(text) == wanted


def test_a_file_that_cannot_be_read_says_nothing(tmp_path):
    assert read_package_meta(tmp_path / "missing.lua") == PackageMeta()
    assert read_package_meta(tmp_path) == PackageMeta()


def test_bytes_that_are_no_text_are_passed_over(tmp_path):
    (tmp_path / "init.lua").write_bytes(b'\xff\xfe\x00M.meta = { name = "x" }')
    assert read_package_meta(tmp_path / "init.lua").name == "x"


@pytest.mark.parametrize(
    "unit",
    [
        "meta = {",
        "{",
        '"',
        "'",
        "[[",
        "--[[",
        "--",
        "\\",
        "a",
        "..",
        '"a" .. ',
        "meta=",
        "- ",
        "\n",
        '\\"',
        "\\'",
    ],
)
def test_a_hostile_file_is_read_in_a_moment(unit, tmp_path):
    """However it is built, and however long it is."""
    (tmp_path / "init.lua").write_text("M.meta = { " + unit * (2 * MAX_SOURCE_BYTES // len(unit)))
    began = time.process_time()
    read_package_meta(tmp_path / "init.lua")
    assert time.process_time() - began < 10
