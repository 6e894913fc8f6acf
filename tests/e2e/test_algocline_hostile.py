"""Odd values in every parameter of every tool of the algocline profile, in this process."""

import json
import os
from pathlib import Path

import pytest
from mcp import Client, MCPError

from everhold.errors import leaves
from everhold.mcp import make_front
from everhold.mcp.protocol import INVALID_PARAMS
from tests.e2e.algocline_harness import House
from tests.failures import collect_failures
from tests.unit.packages.lua.making import package

#: Wrong types, numbers out of range, and text that is no name, path, address or JSON.
ODD = [
    *(7, -1, 10**30, 1.5, True),
    *([], [None], {}, {"a": {"b": [1]}}),
    *("", "\0", ".", "../..", "/dev/full/x", "~no-such-user/x", "a/b", "é\u202e"),
    *("x" * 5000, "[" * 5000, '{"a":1}', "file:///", "git@x:y"),
]
#: Codes of errors; `internal` is not one of them.
CODES = {leaf.code for leaf in leaves()}


@pytest.fixture
def house(tmp_path, monkeypatch):
    made = House(tmp_path / "deep" / "base")  # ../.. of the project is still of this test
    for name in ("ALC_HOME", "HOME", "XDG_DATA_HOME", "EVERHOLD_DATABASE_URL"):
        monkeypatch.setenv(name, made.env[name])
    monkeypatch.setenv("ALC_CARD_SINKS", f"file://{made.base / 'sink'}")
    (made.home / "config.toml").write_text("[hub]\noffline = true\n")
    package(made.base / "shop" / "votes")
    # of another version, so that what is right is refused last, before packages are loaded
    old = package(made.base / "old" / "alc_shapes") / "init.lua"
    old.write_text(old.read_text().replace("return M", 'M.VERSION = "9.9.9"\nreturn M'))
    monkeypatch.chdir(made.project)
    yield made
    made.close()


def look(house):
    """What is in the folders: the size and the time of every file. Locks, and the mark up to which
    logs are written, may change at any time.
    """
    return {
        str(file): (file.stat().st_size, file.stat().st_mtime_ns)
        for folder in (
            house.home,
            house.project,
            house.user,
            house.base / "shop",
            house.base / "old",
        )
        for file in folder.rglob("*")
        if file.is_file() and file.suffix != ".lock" and file.name != ".everhold-logged"
    }


def check_refusal(result):
    """A refusal is one short sentence with a code of the error tree."""
    text = result.content[0].text
    assert result.meta["everhold/code"] in CODES, text[:300]
    assert 0 < len(text) < 4100
    assert "Traceback" not in text


async def test_no_value_of_a_parameter_breaks_a_tool(house):
    """A call is done, or refused with a typed error that leaves every file as it was."""
    usual = {
        "card_id": "twice_sonnet_20260402T101500_0a1b2c",
        "code": "return 1",
        "content": "words",
        "fields": {"k": 1},
        "name": "fresh",
        "path": str(house.base / "shop"),
        "pkg": "twice",
        "response": "a",
        "sink": f"file://{house.base / 'sink'}",
        "source_dir": str(house.base / "old"),
        "strategy": "twice",
        "url": str(house.base / "shop"),
    }
    made = make_front(None, None, "algocline")
    refusals = 0
    try:
        async with Client(made.server(), mode="legacy") as client:
            tools = (await client.list_tools()).tools
            paused = await client.call_tool("alc_run", {"code": "return alc.llm('q')"})
            usual["session_id"] = json.loads(paused.content[0].text)["session_id"]
            with collect_failures() as row:
                for tool in tools:
                    given = tool.input_schema["properties"]
                    needed = {
                        name: usual.get(name, "none")
                        for name in tool.input_schema.get("required", ())
                    }
                    for name in given:
                        for value in ODD:
                            with row(f"{tool.name} {name}={value!r:.60}"):
                                before = look(house)
                                try:
                                    told = await client.call_tool(
                                        tool.name, {**needed, name: value}
                                    )
                                except MCPError as error:
                                    assert error.error.code == INVALID_PARAMS
                                    assert 0 < len(str(error)) < 1000
                                else:
                                    if not told.is_error:
                                        continue
                                    check_refusal(told)
                                refusals += 1
                                assert look(house) == before
    finally:
        await made.close()
    assert refusals > 1000


async def test_hostile_addresses_of_resources_are_refused(house):
    """By an error of the protocol, of bounded length."""
    made = make_front(None, None, "algocline")
    odd = ["", "\0", ".", "..", "../x", "x" * 5000, "é\u202e", "%2e%2e", "a b", "?limit=99999", "/"]
    try:
        async with Client(made.server(), mode="legacy") as client:
            with collect_failures() as row:
                for template in (await client.list_resource_templates()).resource_templates:
                    start = template.uri_template.partition("{")[0]
                    rest = template.uri_template.partition("}")[2].partition("?")[0]
                    for name in odd:
                        with row(f"{template.name} {name!r:.60}"):
                            with pytest.raises(MCPError) as refused:
                                await client.read_resource(f"{start}{name}{rest}")
                            assert 0 < len(str(refused.value)) < 3000
    finally:
        await made.close()


TWICE = "twice_sonnet_20260402T101500_0a1b2c"


def replace_by_garbage(file: Path):
    file.write_bytes(b"\xff\xfe\0{[garbage")


def replace_by_deep_nesting(file: Path):
    file.write_text(("a = " if file.suffix == ".toml" else "") + "[" * 50_000)


def replace_by_a_folder(file: Path):
    file.unlink()
    file.mkdir()


def replace_by_a_pipe(file: Path):
    file.unlink()
    os.mkfifo(file)


def replace_by_a_link_to_itself(file: Path):
    file.unlink()
    file.symlink_to(file.name)


#: A tool that reads the home, its arguments, and whether it names what cannot be read.
READING = [
    ("card_list", {}, True),
    ("card_find", {}, True),
    ("card_alias_list", {}, True),
    ("card_get", {"card_id": TWICE}, True),
    ("card_samples", {"card_id": TWICE}, True),
    ("card_append", {"card_id": TWICE, "fields": {"k": 1}}, True),
    ("card_alias_set", {"name": "n", "card_id": TWICE}, True),
    ("card_lineage", {"card_id": TWICE}, True),
    ("eval_history", {}, True),
    ("eval_detail", {"eval_id": "twice_1775124900"}, True),
    ("eval_compare", {"eval_id_a": "twice_1775124900", "eval_id_b": "x"}, True),
    ("pkg_list", {}, True),
    ("pkg_doctor", {}, True),
    ("pkg_install", {"url": "{base}/shop"}, True),
    ("pkg_remove", {"name": "gone", "scope": "global"}, True),
    ("hub_reindex", {}, True),
    ("scenario_list", {}, False),
    ("scenario_show", {"name": "riddles"}, False),
    ("eval", {"strategy": "twice", "scenario_name": "riddles"}, False),
    ("log_view", {}, False),
    ("stats", {}, False),
    ("info", {}, False),
]
REASONS = (
    "it is not UTF-8 text",
    "it is nested too deeply",
    "it is not a regular file",
    "it cannot be read: Too many levels of symbolic links",
    "it cannot be written: Too many levels of symbolic links",
)


@pytest.mark.parametrize(
    "replace",
    [
        replace_by_garbage,
        replace_by_deep_nesting,
        replace_by_a_folder,
        replace_by_a_pipe,
        replace_by_a_link_to_itself,
    ],
)
async def test_what_cannot_be_read_in_a_home_is_named(house, replace):
    """Each tool answers, and names the file and the reason, whatever lies there. No file is
    changed.
    """
    for file in [one for one in house.home.rglob("*") if one.is_file()]:
        if "packages" not in file.parts and file.suffix != ".lock":
            replace(file)
    before = look(house)
    made = make_front(None, None, "algocline")
    try:
        async with Client(made.server(), mode="legacy") as client:
            with collect_failures() as row:
                for name, given, told in READING:
                    with row(name):
                        words = json.dumps(given).replace("{base}", str(house.base))
                        said = await client.call_tool(f"alc_{name}", json.loads(words))
                        text = said.content[0].text + json.dumps(said.meta)
                        assert not told or any(reason in text for reason in REASONS), text
                        assert "internal" not in text
    finally:
        await made.close()
    assert look(house) == before
