"""hub_index.json: what is in it, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages import hub_reindex, install, scaffold
from everhold.packages.hub.index import parse_index
from everhold.packages.lua.paths import AlcHome
from tests.unit.packages.hub.conftest import put


def indexed(collection: Path) -> dict[str, dict]:
    hub_reindex(collection / "hub_index.json", collection)
    index = json.loads((collection / "hub_index.json").read_text())
    assert index["schema_version"] == "hub_index/v0"
    return {one["name"]: one for one in index["packages"]}


def test_an_index_has_what_the_packages_say(collection: Path) -> None:
    found = indexed(collection)
    assert found["votes"]["description"] == "Asks several times"
    assert found["votes"]["docstring"].startswith("votes: asks several times\n\nTakes the answer\n")
    assert found["plain"] == {
        "name": "plain",
        "version": "1.0.0",
        "description": "Asks once",
        "category": "basic",
        "docstring": None,
        "source": {"type": "unknown"},
        "card_count": 0,
        "best_card": None,
    }


def test_a_new_package_is_in_the_index(nowhere: Path) -> None:
    scaffold("debate", nowhere, description="Two sides talk.")
    assert indexed(nowhere)["debate"]["description"] == "Two sides talk."


@pytest.mark.parametrize(
    "text",
    [
        '-- M.meta = { name = "no" }\nlocal M = { meta = { name = "yes" } }',
        '--[[ meta = { name = "no" } ]] M.meta = { name = "yes" }',
        'local s = "meta = { name = 1 }"\nM.meta = { tags = { "a" }, name = "yes" }',
        'local meta = { level = "x" }\nreturn { meta = { name = "yes" } }',
    ],
)
def test_only_code_counts(nowhere: Path, text: str) -> None:
    put(nowhere, "yes", text)
    assert list(indexed(nowhere)) == ["yes"]


def test_a_library_is_skipped_and_the_report_says_so(collection: Path) -> None:
    put(collection, "lib", "return {}")
    put(collection, ".hidden", "return {}")
    put(collection, "zwei", 'return { meta = { name = "votes" } }')
    told = hub_reindex(None, collection)
    assert (told["package_count"], told["output_path"]) == (2, None)
    assert [(one["folder"], one["reason"][:23]) for one in told["skipped"]] == [
        ("lib", "its init.lua has no met"),
        ("zwei", "the folder votes has a "),
    ]
    assert not (collection / "hub_index.json").exists()


def test_the_index_of_installed_packages_has_sources_and_cards(
    collection: Path, home: AlcHome
) -> None:
    install(str(collection))
    (home.cards / "votes").mkdir(parents=True)
    for name, rate in {"a": "0.5", "b": "0.75", "c": '"x"'}.items():
        (home.cards / "votes" / f"{name}.toml").write_text(
            f'card_id = "{name}"\n[model]\nid = "m"\n[stats]\npass_rate = {rate}\n'
        )
    (home.cards / "votes" / "broken.toml").write_text("= 1")
    told = hub_reindex(home.root / "out.json")
    assert told["package_count"] == 2
    votes = json.loads((home.root / "out.json").read_text())["packages"][1]
    assert votes["source"] == {"type": "path", "path": str(collection)}
    assert votes["card_count"] == 3  # the broken file is not counted
    assert votes["best_card"] == {"card_id": "b", "model": "m", "pass_rate": 0.75, "scenario": ""}


def test_an_index_of_the_same_packages_is_the_same_file(collection: Path) -> None:
    """Its time is that of the last change."""
    target = collection / "hub_index.json"
    hub_reindex(target, collection)
    text = target.read_text()
    old = text.replace(json.loads(text)["updated_at"], "2020-01-01T00:00:00Z")
    target.write_text(old)
    assert hub_reindex(target, collection)["updated_at"] == "2020-01-01T00:00:00Z"
    assert target.read_text() == old
    put(collection, "third", 'return { meta = { name = "third" } }')
    assert hub_reindex(target, collection)["updated_at"] > "2026"


def test_a_pipe_is_not_an_index(collection: Path) -> None:
    """It is neither read, which would not end, nor replaced."""
    os.mkfifo(collection / "pipe")
    with pytest.raises(BadPackage, match="is not a regular file"):
        hub_reindex(collection / "pipe", collection)
    assert (collection / "pipe").is_fifo()


def test_a_file_that_is_no_index_is_not_replaced(collection: Path) -> None:
    target = collection / "package.json"
    target.write_text('{"name": "mine"}')
    with pytest.raises(BadPackage, match="already exists and is not an index"):
        hub_reindex(target, collection)
    assert target.read_text() == '{"name": "mine"}'


@pytest.mark.parametrize(
    ("source", "words"), [("nowhere-at-all", "is not a directory"), ("votes", "is a package, not")]
)
def test_a_wrong_source_dir_is_told(collection: Path, source: str, words: str) -> None:
    with pytest.raises(BadPackage, match=words):
        hub_reindex(collection / "x.json", collection / source)
    assert not (collection / "x.json").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not an index of packages"),
        ('{"packages": []}', "schema_version"),
        ('{"schema_version": "hub_index/v9"}', "its schema_version is 'hub_index/v9'"),
        ('{"schema_version": "hub_index/v0", "packages": [{"name": ""}]}', "has no name"),
        ('{"schema_version": "hub_index/v0", "packages": [{"name": 1}]}', "Expected `str`"),
    ],
)
def test_a_malformed_index_is_told(text: str, words: str) -> None:
    with pytest.raises(BadPackageFile, match=words):
        parse_index(text, "x.json")


def test_sources_of_older_indexes_are_strings() -> None:
    text = '{"schema_version": "hub_index/v0", "packages": [{"name": "a", "source": "git.x/y"}]}'
    assert parse_index(text, "x").packages[0].source == {
        "type": "git",
        "url": "git.x/y",
        "rev": None,
    }
