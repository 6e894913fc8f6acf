"""The tools of the hub through a real server: a collection is published, found and installed."""

import json

import pytest

from tests.e2e.algocline_harness import House
from tests.failures import collect_failures

PACKAGE = """--- {name}: counts
---
--- Counts to three.

local S = require("alc_shapes")
local T = S.T
local M = {{ meta = {{
  name = "{name}", version = "0.3.0", description = "Counts {name}", category = "counting",
  alc_shapes_compat = ">=0.25.0, <0.26",
}} }}
M.spec = {{ entries = {{ run = {{ input = T.shape({{ task = T.string }}), result = T.number }} }} }}
function M.run(ctx) ctx.result = alc.llm(ctx.task) return ctx end
M.run = S.instrument(M, "run")
return M
"""


@pytest.fixture
def house(tmp_path):
    house = House(tmp_path)
    for name in ("cats", "dogs"):
        (tmp_path / "shop" / name).mkdir(parents=True)
        (tmp_path / "shop" / name / "init.lua").write_text(PACKAGE.format(name=name))
    (house.home / "config.toml").write_text(
        f'[hub]\nbuiltin_sources = false\noffline = true\ncollection_url = "file://{tmp_path}/shop/hub_index.json"\n'
    )
    yield house
    house.close()


def test_a_collection_is_published_found_and_installed(house):
    shop = house.base / "shop"
    wire = house.serve()
    told = wire.json(
        "alc_hub_reindex", source_dir=str(shop), output_path=str(shop / "hub_index.json")
    )
    assert told.keys() == {"output_path", "package_count", "source_dir", "updated_at"}
    assert told["package_count"] == 2
    told = wire.json(
        "alc_hub_search",
        query="Counts ",
        category="counting",
        fields=["name", "installed", "version"],
    )
    assert told["results"] == [
        {"name": "cats", "installed": False, "version": "0.3.0"},
        {"name": "dogs", "installed": False, "version": "0.3.0"},
    ]
    assert (told["total"], told["sources"][0]) == (2, f"file://{shop}/hub_index.json")
    wire.json("alc_pkg_install", url=str(shop))
    assert wire.json("alc_hub_search", category="counting", installed_only=True)["total"] == 2
    told = wire.json("alc_hub_info", pkg="cats")
    assert (told["pkg"]["installed"], told["pkg"]["description"]) == (True, "Counts cats")
    assert told["stats"] == {"best_pass_rate": None, "card_count": 0, "eval_count": 0}
    wire.close()


def test_cards_of_the_database_are_shown_with_their_package(house):
    """Also in searches, in the index of installed packages, and by the command line."""
    wire = house.serve()
    wire.json("alc_pkg_install", url=str(house.base / "shop"))
    wire.json(
        "alc_run",
        code="local id = alc.card.create({pkg={name='cats'}, card_id='c1', scenario={name='s'},"
        " model={id='m'}, stats={pass_rate=0.5}}).card_id"
        " alc.card.alias_set('best', id, {pkg='cats'})",
    )
    best = {"card_id": "c1", "model": "m", "pass_rate": 0.5, "scenario": "s"}
    told = wire.json("alc_hub_info", pkg="cats")
    assert told["stats"] == {"best_pass_rate": 0.5, "card_count": 1, "eval_count": 0}
    assert [card["card_id"] for card in told["cards"]] == ["c1"]
    assert [one["name"] for one in told["aliases"]] == ["best"]
    assert house.everhold("hub", "info", "cats")["stats"]["card_count"] == 1
    found = wire.json("alc_hub_search", query="cats", verbose="full")["results"]
    assert [(row["card_count"], row["best_card"]) for row in found] == [(1, best)]
    index = house.base / "installed.json"
    wire.json("alc_hub_reindex", output_path=str(index))
    listed = {one["name"]: one for one in json.loads(index.read_text())["packages"]}
    assert (listed["cats"]["card_count"], listed["cats"]["best_card"]) == (1, best)
    assert listed["dogs"]["card_count"] == 0
    wire.close()


def test_documents_are_made_in_one_step_or_in_two(house):
    shop = house.base / "shop"
    wire = house.serve()
    told = wire.json(
        "alc_hub_dist",
        source_dir=str(shop),
        output_path=str(shop / "hub_index.json"),
        preset="publish",
    )
    assert told["preset"]["resolved"]["projections"] == ["hub", "lint"]
    assert told["gendoc"]["stdout"].endswith("lint: 0 error(s) / 0 warning(s)\n")
    entry = json.loads((shop / "docs" / "hub" / "cats.json").read_text())
    assert entry["result_shape"] == {"kind": "primitive", "name": "number"}
    told = wire.json("alc_hub_gendoc", source_dir=str(shop), projections='["luacats", "hub"]')
    assert told["written"] == [f"{shop}/types/alc_shapes.d.lua"]
    wire.close()


MIRROR = 'local M = {}\nM.VERSION = "0.25.1"\nreturn M\n'
#: Tool, arguments, and parts of the error that clients look for.
REFUSALS = [
    ("hub_info", {"pkg": "nothing"}, ["Package 'nothing' not found"]),
    ("hub_info", {"pkg": "a/b"}, ["Invalid package name 'a/b'"]),
    ("hub_search", {"verbose": "all"}, ["invalid verbose value"]),
    ("hub_reindex", {"source_dir": "/nope"}, ["/nope is not a directory"]),
    ("hub_gendoc", {"source_dir": "{shop}"}, ["hub_index.json not found"]),
    ("hub_dist", {"source_dir": "{shop}", "preset": "x"}, ["dist: unknown preset 'x'"]),
    ("hub_dist", {"source_dir": "/nope"}, ["dist: reindex failed"]),
    (
        "hub_dist",
        {"source_dir": "{shop}", "projections": ["x"]},
        [
            "dist: gendoc failed",
            "unknown projection 'x'",
            'reindex result (succeeded): {"output_path":null,"package_count":2,',
        ],
    ),
    (
        "hub_dist",
        {"source_dir": "{shop}", "config_path": "x.lua"},
        ["'.lua' is no longer supported"],
    ),
    ("hub_dist", {"source_dir": "{odd}"}, ["0.25.1", "9.9.9", "CHANGELOG"]),
    ("hub_dist", {"source_dir": "{both}"}, ["mutually exclusive"]),
    ("hub_dist", {"source_dir": "{new}"}, ["'new'", ">=0.26.0, <0.27", "0.25.1"]),
]


def test_a_refused_call_says_why_and_writes_nothing(house):
    folders = {name: house.base / name for name in ("shop", "odd", "both", "new")}
    for name in ("odd", "both", "new"):
        (folders[name] / name).mkdir(parents=True)
        text = PACKAGE.format(name=name)
        if name == "new":
            text = text.replace(">=0.25.0, <0.26", ">=0.26.0, <0.27")
        (folders[name] / name / "init.lua").write_text(text)
    (folders["odd"] / "alc_shapes").mkdir()
    (folders["odd"] / "alc_shapes" / "init.lua").write_text(MIRROR.replace("0.25.1", "9.9.9"))
    (folders["both"] / "alc.toml").write_text(
        '[hub.context7]\nrules_file = "r.txt"\nrules_override = ["x"]\n'
    )
    before = sorted(house.base.rglob("*.*"))
    wire = house.serve()
    with collect_failures() as row:
        for tool, given, parts in REFUSALS:
            with row(tool, given):
                words = json.dumps(given)
                for name, folder in folders.items():
                    words = words.replace(f"{{{name}}}", str(folder))
                refused, text = wire.call(f"alc_{tool}", **json.loads(words))
                assert refused
                assert [part for part in parts if part not in text] == [], text
    changed = set(house.base.rglob("*.*")) - set(before)
    assert {path.name for path in changed if ".db" not in path.name} == set()
    wire.close()


def test_a_copy_of_alc_shapes_only_says_its_version(house):
    """Packages get everhold's own, as they get algocline's."""
    shop = house.base / "shop"
    (shop / "alc_shapes").mkdir()
    (shop / "alc_shapes" / "init.lua").write_text(MIRROR)
    wire = house.serve()
    told = wire.json("alc_hub_dist", source_dir=str(shop), projections=["hub"])
    assert told["gendoc"]["stdout"].endswith("2 generated, 0 failed\n")
    assert "Counts to three." in (shop / "docs" / "llms-full.txt").read_text()
    wire.close()


def test_values_are_checked_if_the_variable_says_so(house):
    """By the value with which the session began, also in a server without it."""
    wire = house.serve(ALC_SHAPE_CHECK="1")
    wire.json("alc_pkg_install", url=str(house.base / "shop"))
    told = wire.json("alc_advice", strategy="cats", task="How many?")
    wire.kill()
    wire = house.serve()
    told = wire.json("alc_continue", session_id=told["session_id"], response="three")
    assert told["status"] == "error"
    assert "shape violation at $: it is a string, not a number (in cats.run)" in told["error"]
    told = wire.json("alc_advice", strategy="cats", task="How many?")
    told = wire.json("alc_continue", session_id=told["session_id"], response="three")
    assert told["result"]["result"] == "three"
    assert "ALC_SHAPE_CHECK" not in wire.close()[1]
