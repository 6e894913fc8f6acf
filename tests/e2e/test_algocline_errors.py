"""The parts of algocline's error texts that clients look for, and that the reference promises."""

import json
import re
from pathlib import Path

import pytest

from tests.e2e.algocline_harness import House
from tests.failures import collect_failures
from tests.unit.packages.lua.making import package

PAGE = (Path(__file__).parents[2] / "docs/reference/algocline.md").read_text()

#: A promised part, a tool and its arguments; a resource's address; or Lua code.
CALLS = [
    ("failed to deserialize parameters", "alc_run", {"code": 5}),
    ("invalid type", "alc_run", {"code": 5}),
    ("expected a string", "alc_run", {"code": 5}),
    ("missing field", "alc_note", {"session_id": "x"}),
    ("tool not found", "alc_none", {}),
    ("Continue failed", "alc_continue", {"session_id": "s-0", "response": "x"}),
    ("session 's-0' not found", "alc_continue", {"session_id": "s-0", "response": "x"}),
    ("session 's-0' not found", "alc_status", {"session_id": "s-0"}),
    (
        "unknown query_id",
        "alc_continue",
        {"session_id": "{open}", "query_id": "z", "response": "x"},
    ),
    ("queries pending", "alc_continue", {"session_id": "{open}", "response": "x"}),
    (
        "already responded to query_id",
        "alc_continue",
        {"session_id": "{open}", "query_id": "q-0", "response": "other"},
    ),
    ("no pending queries", "alc_continue", {"session_id": "{asleep}", "response": "x"}),
    ("unknown pending_filter preset", "alc_status", {"pending_filter": "odd"}),
    ("pending_filter must be a preset name", "alc_status", {"pending_filter": True}),
    ("invalid pending_filter object", "alc_status", {"pending_filter": {"query_id": 1}}),
    ("Package 'none' not found", "alc_advice", {"strategy": "none"}),
    ("Package 'none' not found", "alc_pkg_remove", {"name": "none", "scope": "global"}),
    ("not found in installed.json", "alc_pkg_doctor", {"name": "none"}),
    ("Invalid package name", "alc_pkg_unlink", {"name": "../x"}),
    ("invalid package name", "alc_pkg_scaffold", {"name": "Bad Name"}),
    ("already exists", "alc_pkg_scaffold", {"name": "one", "target_dir": "{base}/src"}),
    ("already exists", "alc_init", {"project_root": "{project}"}),
    ("invalid scope", "alc_pkg_remove", {"name": "one", "scope": "odd"}),
    ("invalid scope", "alc_pkg_link", {"path": "{base}/src", "scope": "odd"}),
    ("is not a symlink", "alc_pkg_unlink", {"name": "twice"}),
    ("is not installed", "alc_pkg_unlink", {"name": "none"}),
    ("is a real directory", "alc_pkg_link", {"path": "{base}/src/one", "name": "twice"}),
    ("is not a directory", "alc_pkg_link", {"path": "{base}/none"}),
    ("does not exist", "alc_pkg_install", {"url": "{base}/none"}),
    ("No packages found", "alc_pkg_install", {"url": "{project}"}),
    ("No init.lua found", "alc_pkg_link", {"path": "{project}"}),
    ("git clone failed", "alc_pkg_install", {"url": "file://{base}/none"}),
    ("invalid verbose value", "alc_pkg_list", {"verbose": "odd"}),
    ("nothing to migrate", "alc_migrate", {"project_root": "{project}"}),
    ("unsupported alc.lock version", "alc_update", {"project_root": "{base}/newer"}),
    ("alc.toml not found", "alc_pkg_remove", {"name": "one", "project_root": "{base}/bare"}),
    ("No alc.toml found", "alc_update", {"project_root": "{base}/bare"}),
    ("Eval result not found: none", "alc_eval_detail", {"eval_id": "none"}),
    ("Scenario 'none' not found", "alc_scenario_show", {"name": "none"}),
    ("resource not found", "alc://packages/none/meta", None),
    ("invalid scheme", "http://x/y", None),
    ("path traversal", "alc://logs/../x", None),
    ("unknown service", "alc://odd/x", None),
    ("query param", "alc://logs/x?odd=1", None),
    ("query param", "alc://logs/x?limit=-1", None),
    ("query param", "alc://logs/x?limit=99999", None),
    ("reserved character", "alc://logs/a=b", None),
    ("card 'none' not found", "alc_card_get", {"card_id": "none"}),
    ("alias 'none' not found", "alc_card_get_by_alias", {"name": "none"}),
    ("unknown sink", "alc_card_sink_backfill", {"sink": "file:///x"}),
    ("hub_index.json not found", "alc_hub_gendoc", {"source_dir": "{base}/src"}),
    ("unknown preset", "alc_hub_dist", {"source_dir": "{base}/src", "preset": "odd"}),
    ("dist: reindex failed", "alc_hub_dist", {"source_dir": "{base}/none"}),
    *(
        (part, "alc_hub_dist", {"source_dir": "{base}/src", "projections": ["odd"]})
        for part in ("unknown projection", "dist: gendoc failed", "reindex result (succeeded)")
    ),
    (
        "'.lua' is no longer supported",
        "alc_hub_dist",
        {"source_dir": "{base}/src", "config_path": "x.lua"},
    ),
    ("mutually exclusive", "alc_hub_dist", {"source_dir": "{base}/both"}),
    ("alc_shapes_compat not declared", "alc_hub_dist", {"source_dir": "{base}/src"}),
    ("alc_shapes version mismatch", "alc_hub_dist", {"source_dir": "{base}/shapes"}),
    ("CHANGELOG", "alc_hub_dist", {"source_dir": "{base}/shapes"}),
    ("Invalid namespace", "return alc.state.get('k')", {"_ns": "../x"}),
    ("could not resolve scenario", "return alc.eval('none', 'twice')", {}),
    (
        "unknown grader",
        "return alc.eval({cases = {{input = 'x'}}, graders = {'odd'}}, 'twice')",
        {},
    ),
    (
        "shape violation at",
        "local S = require('alc_shapes') return S.assert(1, S.T.string)",
        {},
    ),
    ("module 'none' not found", "return require('none')", {}),
    ("invalid strategy name", "return alc.fork({'../x'}, {})", {}),
    ("pkg.name is required", "return alc.card.create({})", {}),
    (
        "immutable",
        "local id = alc.card.create({pkg={name='p'}}).card_id return alc.card.append(id, {pkg={}})",
        {},
    ),
    (
        "write-once",
        "local id = alc.card.create({pkg={name='p'}, a=1}).card_id"
        " alc.card.write_samples(id, {{a=1}}) return alc.card.write_samples(id, {{a=1}})",
        {},
    ),
    *(
        (
            f"budget_exceeded: {limit} ({zero}) reached",
            "return alc.llm('x')",
            {"budget": {limit: 0}},
        )
        for limit, zero in (("max_llm_calls", "0"), ("max_tokens", "0"), ("max_elapsed_ms", "0ms"))
    ),
]

ASKS_A_PERSON = """
import everhold

@everhold.program
async def refund(ctx: everhold.Context) -> bool:
    return await ctx.approval("Refund?")
"""


def _say(wire, what, given):
    """What a call, an address or a program answers with, as text."""
    if given is None:
        return wire.ask("resources/read", {"uri": what})["error"]["message"]
    if not what.startswith("alc_"):
        what, given = "alc_run", {"code": what, "ctx": given}
    told = wire.ask("tools/call", {"name": what, "arguments": given})
    if "error" in told:
        return told["error"]["message"]
    return told["result"]["content"][0]["text"]


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.close()


def test_promised_parts_of_errors_stay(house):
    """Each part of the reference is in the error of at least one call."""
    package(house.base / "src" / "one")
    for name, file, text in (
        ("project", "alc.toml", "[packages]\n"),
        ("newer", "alc.toml", "[packages]\n"),
        ("newer", "alc.lock", "version = 2\n"),
        ("bare", "readme.txt", ""),
        ("both", "alc.toml", '[hub.context7]\nrules_file = "r"\nrules_override = ["x"]\n'),
        ("shapes", "readme.txt", ""),
    ):
        (house.base / name).mkdir(exist_ok=True)
        (house.base / name / file).write_text(text)
    package(house.base / "both" / "one")
    package(house.base / "shapes" / "one")
    package(house.base / "shapes" / "alc_shapes")
    (house.base / "shapes" / "alc_shapes" / "init.lua").write_text('local M = {VERSION = "9.9.9"}')
    (house.project / "shop.py").write_text(ASKS_A_PERSON)
    (house.project / "everhold.toml").write_text('programs = ["shop.py"]\n')
    wire = house.serve()
    batch = "return alc.llm_batch({{prompt='a'}, {prompt='b'}, {prompt='c'}})"
    opened = wire.json("alc_run", code=batch)["session_id"]
    wire.json("alc_continue", session_id=opened, query_id="q-0", response="first")
    places = {
        "open": opened,
        "asleep": wire.json("alc_advice", strategy="refund")["session_id"],
        "base": str(house.base),
        "project": str(house.project),
    }
    with collect_failures() as row:
        for part, what, given in CALLS:
            with row(f"{part}: {what} {given}"):
                words = json.dumps(given)
                for name, value in places.items():
                    words = words.replace(f"{{{name}}}", value)
                assert part in _say(wire, what, json.loads(words))
    wire.close()


def test_the_reference_lists_exactly_the_parts_that_are_tested():
    section = PAGE.split("## Error texts")[1].split("\n## ")[0]
    listed = {
        part for line in section.splitlines() if line.startswith("| ") for part in _parts(line)
    }
    assert listed == {part for part, *_ in CALLS}


def _parts(line):
    return re.findall(r"`([^`]+)`", line)
