"""gendoc and dist: which files come out, and that nothing is half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages import hub_dist, hub_gendoc, hub_reindex
from tests.unit.packages.hub.conftest import VOTES, put

pytestmark = pytest.mark.process

PAGE = """---
name: votes
version: 0.2.0
category: aggregation
result_shape: voted
description: "Asks several times"
source: votes/init.lua
generated: gen_docs (V0)
---

# votes: asks several times

> Takes the answer of the majority.

## Contents

- [Usage](#usage)
  - [Costs](#costs)
- [Usage](#usage-2)
- [Parameters](#parameters)
- [Result](#result)

## Usage {#usage}

```lua
## no heading
```

### Costs {#costs}

One call per vote.

## Usage {#usage-2}

## Parameters {#parameters}

| key | type | required | description |
|---|---|---|---|
| `ctx.task` | string | **required** | What to \\| ask |
| `ctx.times` | number | optional |  |

## Result {#result}

Returns `voted` shape:

| key | type | optional | description |
|---|---|---|---|
| `answer` | string | optional |"""


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def indexed(collection: Path) -> Path:
    hub_reindex(collection / "hub_index.json", collection)
    return collection


def test_each_package_gets_a_page(indexed: Path) -> None:
    told = hub_gendoc(indexed)
    assert files(indexed / "docs") == [
        "llms-full.txt",
        "llms.txt",
        "narrative/plain.md",
        "narrative/votes.md",
    ]
    assert (indexed / "docs" / "narrative" / "votes.md").read_text().startswith(PAGE)
    assert told["stdout"] == "  [ok]   plain\n  [ok]   votes\n\n2 generated, 0 failed\n"
    assert told["warnings"] == ["package plain: alc_shapes_compat not declared; it gets 0.25.1"]
    assert len(told["written"]) == 4
    assert hub_gendoc(indexed)["written"] == []


def test_the_lists_are_for_models(indexed: Path) -> None:
    hub_gendoc(indexed)
    listed = (indexed / "docs" / "llms.txt").read_text()
    assert listed.startswith("# collection\n\n> ")
    assert "\n## aggregation\n\n- [votes](narrative/votes.md): Asks several times\n" in listed
    whole = (indexed / "docs" / "llms-full.txt").read_text()
    assert "<!-- ── votes.md ── -->\n\n# votes: asks several times\n" in whole
    assert "generated:" not in whole


def test_every_projection_has_its_file(indexed: Path, tmp_path: Path) -> None:
    hub_gendoc(indexed, tmp_path / "out", projections=["hub", "context7", "devin", "luacats"])
    assert files(tmp_path / "out") == [
        *("hub/plain.json", "hub/votes.json", "llms-full.txt", "llms.txt"),
        *("narrative/plain.md", "narrative/votes.md"),
    ]
    entry = json.loads((tmp_path / "out" / "hub" / "votes.json").read_text())
    assert entry["input_shape"] == {
        "open": False,
        "fields": [
            {
                "name": "task",
                "type": {"kind": "primitive", "name": "string"},
                "optional": False,
                "doc": "What to | ask",
            },
            {
                "name": "times",
                "type": {"kind": "primitive", "name": "number"},
                "optional": True,
                "doc": "",
            },
        ],
    }
    assert entry["result_shape"] == {"kind": "label", "name": "voted"}
    assert entry["narrative_md"].startswith(PAGE)
    context7 = json.loads((indexed / "context7.json").read_text())
    assert context7["folders"] == ["docs/narrative"] and context7["rules"]
    assert json.loads((indexed / ".devin" / "wiki.json").read_text())["repo_notes"][0]["content"]
    types = (indexed / "types" / "alc_shapes.d.lua").read_text()
    assert types.startswith("---@meta\n") and "\n---@class AlcResultVoted\n" in types


def test_types_of_every_kind_are_shown(collection: Path) -> None:
    put(
        collection,
        "kinds",
        """local T = require("alc_shapes").T
return { meta = { name = "kinds" }, spec = { entries = { run = { result = T.shape({
  a = T.array_of(T.map_of(T.string, T.any)),
  b = T.one_of({ "x", 2, true }),
  c = T.discriminated("k", { p = T.shape({ k = T.string }) }),
  d = T.shape({ e = T.number:is_optional():describe("deep") }):describe("outer"),
  f = T.shape({}),
}) } } } }""",
    )
    hub_dist(collection, projections=["hub"])
    page = (collection / "docs" / "narrative" / "kinds.md").read_text()
    assert "| `a` | array of map of string to any | — |  |" in page
    assert '| `b` | one_of("x", 2, true) | — |  |' in page
    assert '| `c` | discriminated by "k" | — |  |' in page
    assert "| `d` | shape { e?: number } | — | outer |\n| `f` | shape { } | — |  |" in page
    result = json.loads((collection / "docs" / "hub" / "kinds.json").read_text())["result_shape"]
    types = {field["name"]: field["type"] for field in result["shape"]["fields"]}
    assert types["a"]["of"]["key"] == {"kind": "primitive", "name": "string"}
    assert types["c"]["variants"]["p"]["fields"][0]["name"] == "k"
    assert types["d"]["shape"]["fields"][0]["doc"] == "deep"


def test_rules_are_checked_and_with_strict_nothing_is_written(collection: Path) -> None:
    put(
        collection,
        "odd",
        '--- odd\n--- Usage:\n--- # Big\n--- ## Result\nreturn { meta = { name = "other",'
        ' description = "a\\nb", category = "c" },'
        ' spec = { entries = { run = { result = "voted" } } } }',
    )
    hub_reindex(collection / "hub_index.json", collection)
    told = hub_gendoc(collection, projections=["lint_only"])
    assert files(collection / "docs") == [] == told["written"]
    codes = [line.split(":")[0].strip() for line in told["stderr"].splitlines()]
    assert codes == [
        *("# other", "ERROR E_META_MISSING_VERSION", "ERROR E_NAME_MISMATCH"),
        *("warn  W_DESCRIPTION_MULTILINE", "warn  W_FAKE_LABEL (line 2)"),
        *("ERROR E_H1_IN_DOCSTRING (line 3)", "ERROR E_RESULT_CONFLICT", "# plain"),
        "warn  W_EMPTY_NARRATIVE",
    ]
    assert told["stdout"].endswith("3 generated, 0 failed, lint: 4 error(s) / 3 warning(s)\n")
    with pytest.raises(BadPackage, match="lint found 4 error"):
        hub_gendoc(collection, lint_strict=True)
    assert files(collection / "docs") == []


def test_dist_makes_the_index_and_the_documents(collection: Path) -> None:
    told = hub_dist(collection, collection / "hub_index.json", preset="publish")
    assert told["reindex"]["package_count"] == 2
    assert told["preset_catalog_version"] == "preset-catalog@2026-04-23"
    assert told["preset"]["resolved"] == {
        "projections": ["hub", "lint"],
        "config_path": None,
        "lint_strict": False,
        "project_root": None,
        "overrides_source": ["builtin"],
        "preset_ref": None,
    }
    assert "docs/hub/votes.json" in files(collection) and "hub_index.json" in files(collection)


def test_alc_toml_changes_presets_and_has_its_own(collection: Path) -> None:
    (collection / "alc.toml").write_text(
        '[hub]\nname = "Ours"\n[hub.context7]\nextra_rules = ["Be brief."]\n'
        '[hub.devin]\nrepo_notes_override = ["One note."]\n'
        '[hub.dist.presets.publish]\nprojections = ["context7"]\n'
        '[hub.dist.presets.wiki]\nprojections = ["devin"]\nlint_strict = false\n'
    )
    told = hub_dist(collection, preset="publish")
    assert told["preset"]["resolved"]["overrides_source"] == ["project_root", "alc.toml", "builtin"]
    context7 = json.loads((collection / "context7.json").read_text())
    assert (context7["projectTitle"], context7["rules"][-1]) == ("Ours", "Be brief.")
    hub_dist(collection, preset="wiki")
    assert json.loads((collection / ".devin" / "wiki.json").read_text()) == {
        "repo_notes": [{"content": "One note."}]
    }
    told = hub_dist(collection, preset="wiki", projections=["hub"])
    assert told["preset"]["resolved"]["projections"] == ["hub"]


def test_a_file_of_its_own_says_what_the_readers_get(indexed: Path) -> None:
    config = indexed / "readers.toml"
    config.write_text(
        '[context7]\nprojectTitle = "T"\npreviousVersions = [{ tag = "v1" }]\n'
        '[devin]\npages = [{ title = "A", purpose = "B" }]\n'
    )
    hub_gendoc(indexed, projections=["context7", "devin"], config_path=config)
    assert json.loads((indexed / "context7.json").read_text()) == {
        "$schema": "https://context7.com/schema/context7.json",
        "folders": ["docs/narrative"],
        "projectTitle": "T",
        "previousVersions": [{"tag": "v1"}],
    }
    wiki = json.loads((indexed / ".devin" / "wiki.json").read_text())
    assert wiki == {"pages": [{"title": "A", "purpose": "B"}]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[hub.dist]\npreset_catalog_version = 'v0'", "preset_catalog_version is 'v0'"),
        ("[hub.dist.presets.publish]\nlint_stict = true", "unknown field `lint_stict`"),
        ("[hub.context7]\nrules_file = 'r'\nrules_override = ['a']", "mutually exclusive"),
        ("[hub.devin]\nrepo_notes_file = 'r'", "repo_notes_file r does not exist"),
        ("[hub.devin]\nrepo_notes_override = ['']", "hub.devin.*cannot be read"),
        ("[hub", "it is not TOML"),
        ("hub = 3", "hub.*cannot be read"),
    ],
)
def test_a_wrong_alc_toml_is_told(collection: Path, text: str, words: str) -> None:
    (collection / "alc.toml").write_text(text)
    with pytest.raises(BadPackageFile, match=words):
        hub_dist(collection, collection / "hub_index.json", preset="publish")
    assert "hub_index.json" not in files(collection)


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        ({"preset": "publsh"}, "unknown preset 'publsh'; there are publish", "'publish'?"),
        ({"projections": ["contex7"]}, "unknown projection 'contex7'", "'context7'?"),
        ({"config_path": "x.lua"}, "'.lua' is no longer supported", "TOML"),
        ({"config_path": "x.toml"}, "x.toml does not exist", ""),
    ],
)
def test_a_wrong_option_is_told_and_nothing_is_written(
    collection: Path, options: dict, words: str, hint: str
) -> None:
    with pytest.raises(BadPackage, match=words) as told:
        hub_dist(collection, collection / "hub_index.json", **options)
    assert hint in told.value.hint
    assert files(collection) == ["plain/init.lua", "votes/init.lua"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("return {", "near <eof>"),
        ("return 1 -- meta = {}", "it returns no table"),
        ("error('at once')", "at once"),
        ("alc.llm('hello?') return {}", "it asks a model"),
        ("while true do end", "CPU"),
        ("return { meta = {}, spec = { entries = { run = { input = 3 } } } }", "input must be"),
        (
            'return { meta = {}, spec = { entries = { run = { input = { kind = "x" } } } } }',
            "kind x",
        ),
        ('io.open("/etc/passwd"):read()', "nil value"),
    ],
)
def test_packages_that_cannot_be_loaded_are_all_named(
    collection: Path, text: str, words: str
) -> None:
    for name in ("bad", "worse"):
        put(collection, name, f'-- x\nlocal meta = {{ name = "{name}" }}\n{text}')
    with pytest.raises(BadPackage, match="2 of 4 packages cannot be loaded") as told:
        hub_dist(collection, collection / "hub_index.json")
    assert str(told.value).count(words) == 2, told.value
    assert not (collection / "docs").exists() and not (collection / "hub_index.json").exists()


def test_documents_need_an_index_that_fits(collection: Path) -> None:
    with pytest.raises(BadPackage, match=r"hub_index\.json not found in") as told:
        hub_gendoc(collection)
    assert "everhold hub reindex" in told.value.hint
    hub_reindex(collection / "hub_index.json", collection)
    (collection / "votes" / "init.lua").unlink()
    with pytest.raises(BadPackage, match="lists 'votes', but"):
        hub_gendoc(collection)


def test_an_empty_collection_is_told(nowhere: Path) -> None:
    with pytest.raises(BadPackage, match="is a package"):
        hub_dist(nowhere)


@pytest.mark.parametrize(
    ("range", "words"),
    [(">=0.26", "and everhold has 0.25.1"), ("new", "its alc_shapes_compat cannot be read")],
)
def test_a_range_that_does_not_fit_is_told(collection: Path, range: str, words: str) -> None:
    put(collection, "votes", VOTES.replace("^0.25", range))
    with pytest.raises(BadPackage, match=words):
        hub_dist(collection)


def test_a_copy_of_alc_shapes_must_have_the_known_version(collection: Path) -> None:
    put(collection, "alc_shapes", 'local M = {}\nM.VERSION = "0.99.0"\nreturn M')
    with pytest.raises(BadPackage, match="alc_shapes version mismatch"):
        hub_dist(collection)
    put(collection, "alc_shapes", "return {}")
    with pytest.raises(BadPackage, match=r"does not say M\.VERSION"):
        hub_dist(collection)


def test_a_folder_in_the_way_is_told_before_anything_is_written(collection: Path) -> None:
    (collection / "docs" / "llms.txt").mkdir(parents=True)
    with pytest.raises(BadPackage, match="is a folder"):
        hub_dist(collection, collection / "hub_index.json")
    (collection / "docs" / "llms.txt").rmdir()
    (collection / "docs" / "narrative").write_text("mine")
    with pytest.raises(BadPackage, match="narrative is a file"):
        hub_dist(collection, collection / "hub_index.json")
    assert files(collection) == ["docs/narrative", "plain/init.lua", "votes/init.lua"]


def test_the_page_of_a_package_that_is_gone_is_named(collection: Path) -> None:
    """It is not deleted, and pages that people wrote are not named."""
    hub_dist(collection)
    (collection / "docs" / "narrative" / "intro.md").write_text("# Ours\n")
    (collection / "votes" / "init.lua").unlink()
    (warning,) = [one for one in hub_dist(collection)["gendoc"]["warnings"] if "gone" in one]
    assert "votes.md is the page of a package that is gone" in warning
    assert (collection / "docs" / "narrative" / "votes.md").exists()


@pytest.mark.process
def test_no_name_of_a_package_leads_out_of_the_folder(collection: Path) -> None:
    """Neither one that is written in its meta nor one that is computed when it is loaded."""
    put(collection, "climber", 'return { meta = { name = "../../../escaped" } }')
    put(
        collection,
        "changes",
        'local M = { meta = { name = "changes" } }\nM.meta.name = "../../../escaped"\nreturn M',
    )
    told = hub_dist(collection, collection / "hub_index.json")
    assert told["reindex"]["skipped"] == [
        {"folder": "climber", "reason": "'../../../escaped' cannot name a package"}
    ]
    assert not list(collection.parent.rglob("escaped*"))
    assert (collection / "docs" / "narrative" / "changes.md").is_file()


@pytest.mark.process
def test_a_relative_file_of_options_is_beside_the_packages_or_here(
    collection: Path, nowhere: Path
) -> None:
    """For documents as for both together."""
    (nowhere / "here.toml").write_text('[context7]\nprojectTitle = "Here"\n')
    (collection / "there.toml").write_text('[context7]\nprojectTitle = "There"\n')
    hub_reindex(collection / "hub_index.json", collection)
    for run in (hub_gendoc, hub_dist):
        for name, title in (("here.toml", "Here"), ("there.toml", "There")):
            run(collection, projections=["context7"], config_path=name)
            made = json.loads((collection / "context7.json").read_text())
            assert made["projectTitle"] == title
