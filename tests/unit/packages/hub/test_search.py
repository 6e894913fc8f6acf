"""Search and info over a local web server: what is found, kept for an hour, and only warned of."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages import hub_info, hub_reindex, hub_search, install
from everhold.packages.hub.sources import (
    get_cache_file,
    get_index_address,
    load_registries,
    register_source,
)
from everhold.packages.lua.paths import AlcHome
from tests.unit.packages.hub.conftest import put
from tests.unit.packages.lua.making import committed


class Web:
    """A web server with these pages; it counts requests."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str]] = {}
        self.seen: list[str] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.seen.append(self.path)
                status, text = web.pages.get(self.path, (404, "no"))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", text)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, path: str, *packages: dict) -> str:
        index = {"schema_version": "hub_index/v0", "packages": list(packages)}
        self.pages[path] = 200, json.dumps(index)
        return self.address + path


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    thread = threading.Thread(target=web.server.serve_forever)
    thread.start()
    yield web
    web.server.shutdown()
    thread.join()
    web.server.server_close()


def configure(home: AlcHome, url: str = "", *more: str) -> None:
    lines = ["[hub]", "builtin_sources = false", f'collection_url = "{url}"', *more]
    (home.root / "config.toml").write_text("\n".join(lines))


def names(told: dict) -> list[str]:
    return [row["name"] for row in told["results"]]


DEBATE = {"name": "debate", "version": "2", "description": "Two sides", "category": "talk"}
TREE = {"name": "tree", "description": "Searches", "docstring": "Like a DEBATE with itself"}


def test_installed_and_published_packages_are_found(
    home: AlcHome, collection: Path, web: Web
) -> None:
    install(str(collection))
    configure(home, web.put("/all.json", DEBATE, TREE, {"name": "votes", "version": "9"}))
    told = hub_search()
    assert names(told) == ["plain", "votes", "debate", "tree"]
    assert (told["total"], told["sources"]) == (4, [f"{web.address}/all.json"])
    assert "warnings" not in told
    votes = told["results"][1]
    assert votes == {
        "name": "votes",
        "version": "9",
        "description": None,
        "category": None,
        "installed": True,
    }


def test_a_query_is_looked_for_everywhere(home: AlcHome, collection: Path, web: Web) -> None:
    """Also in the docstring of an installed package whose entry has none."""
    install(str(collection))
    configure(home, web.put("/all.json", DEBATE, TREE, {"name": "votes"}))
    assert [
        (row["name"], row.get("docstring_matched")) for row in hub_search("Debate")["results"]
    ] == [
        ("debate", None),
        ("tree", True),
    ]
    assert names(hub_search("one CALL per vote")) == ["votes"]
    assert names(hub_search("nothing has this")) == []


def test_the_options_are_those_of_every_listing(home: AlcHome, web: Web) -> None:
    configure(home, web.put("/all.json", DEBATE, TREE))
    assert names(hub_search(category="talk")) == ["debate"]
    assert names(hub_search(installed_only=True)) == []
    assert names(hub_search(filter={"version": "2"})) == ["debate"]
    assert names(hub_search(category="talk", filter={"category": None})) == ["tree"]
    told = hub_search(sort="-name", limit=1, fields=["name", "docstring"])
    assert told["results"] == [{"name": "tree", "docstring": "Like a DEBATE with itself"}]
    assert told["total"] == 2
    assert hub_search(verbose="full", limit=1)["results"][0]["source"] == {"type": "unknown"}


@pytest.mark.parametrize("options", [{"verbose": "x"}, {"sort": "a,,b"}])
def test_wrong_options_are_told_before_anything_is_fetched(
    home: AlcHome, web: Web, options: dict
) -> None:
    configure(home, web.put("/all.json"))
    with pytest.raises(BadPackage, match="invalid"):
        hub_search(**options)
    assert web.seen == []


def test_an_index_is_fetched_once_an_hour(home: AlcHome, web: Web) -> None:
    url = web.put("/all.json", DEBATE)
    configure(home, url)
    hub_search()
    web.put("/all.json", TREE)
    assert (names(hub_search()), len(web.seen)) == (["debate"], 1)
    copy = get_cache_file(home, url)
    os.utime(copy, (0, copy.stat().st_mtime - 3601))
    assert (names(hub_search()), len(web.seen)) == (["tree"], 2)


def test_without_the_network_an_old_copy_is_used(home: AlcHome, web: Web) -> None:
    url = web.put("/all.json", DEBATE)
    configure(home, url)
    hub_search()
    copy = get_cache_file(home, url)
    os.utime(copy, (0, copy.stat().st_mtime - 7200))
    del web.pages["/all.json"]
    told = hub_search()
    assert names(told) == ["debate"]
    assert "could not be fetched" in told["warnings"][0]
    assert "a copy that is 2 h old is used" in told["warnings"][0]


def test_offline_nothing_is_fetched(home: AlcHome, web: Web) -> None:
    """By argument, or by a line of config.toml."""
    configure(home, web.put("/all.json", DEBATE))
    told = hub_search(offline=True)
    assert "offline: " in told["warnings"][-1]
    configure(home, web.put("/all.json", DEBATE), "offline = true")
    assert names(hub_search()) == []
    assert web.seen == []


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ((500, ""), "HTTP status 500"),
        ((200, "<html>"), "not an index of packages"),
        ((200, '{"schema_version": "v7"}'), "its schema_version is"),
        ((302, "file:///etc/passwd"), "not http or https"),
        ((302, "ftp://127.0.0.1/x"), "not http or https"),
    ],
)
def test_a_bad_index_is_a_warning(
    home: AlcHome, collection: Path, web: Web, page: tuple[int, str], words: str
) -> None:
    install(str(collection))
    web.pages["/all.json"] = page
    configure(home, f"{web.address}/all.json")
    told = hub_search()
    assert names(told) == ["plain", "votes"]
    assert told["warnings"][0].startswith("no index could be read")
    assert words in told["warnings"][1]


def test_a_damaged_copy_is_fetched_again(home: AlcHome, web: Web) -> None:
    url = web.put("/all.json", DEBATE)
    configure(home, url)
    hub_search()
    get_cache_file(home, url).write_text("{")
    told = hub_search()
    assert names(told) == ["debate"]
    assert told["warnings"][0].startswith(f"the copy of {url} in hub_cache is damaged")


def test_the_first_index_of_a_name_wins(home: AlcHome, web: Web) -> None:
    """The collection comes before the repositories, and these in alphabetical order."""
    register_source(home, web.put("/b.json", DEBATE | {"version": "b"}), "pkg_install")
    register_source(home, web.put("/a.json", DEBATE | {"version": "a"}), "card_install")
    assert hub_search()["results"][0]["version"] == "a"
    configure(home, web.put("/z.json", DEBATE | {"version": "z"}))
    assert hub_search()["results"][0]["version"] == "z"
    assert len(hub_search()["sources"]) == 3


def test_an_index_may_be_a_file(home: AlcHome, collection: Path) -> None:
    """By path or by file://; it is never kept."""
    hub_reindex(collection / "hub_index.json", collection)
    for url in (f"file://{collection}/hub_index.json", f"{collection}/hub_index.json"):
        configure(home, url)
        assert names(hub_search()) == ["plain", "votes"]
    assert not (home.root / "hub_cache").exists()
    configure(home, f"{collection}/missing.json")
    assert "there is no index" in hub_search()["warnings"][1]


@pytest.mark.process
def test_installing_from_a_repository_remembers_it(home: AlcHome, collection: Path) -> None:
    hub_reindex(collection / "hub_index.json", collection)
    committed(collection)
    for _ in range(2):
        install(f"file://{collection}")
    (known,) = load_registries(home)
    assert (known.source, known.origin) == (f"file://{collection}", "pkg_install")
    put(collection, "third", 'return { meta = { name = "third" } }')
    hub_reindex(collection / "hub_index.json", collection)
    assert names(hub_search(sort="name")) == ["plain", "third", "votes"]


def test_a_token_and_a_folder_are_not_remembered(home: AlcHome) -> None:
    assert register_source(home, "https://me:secret@git.example.org/x/", "pkg_install")
    assert not register_source(home, "https://git.example.org/x", "pkg_install")
    assert not register_source(home, "/home/me/x", "pkg_install")
    assert [one.source for one in load_registries(home)] == ["https://git.example.org/x"]


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("https://github.com/a/b", "https://raw.githubusercontent.com/a/b/main/hub_index.json"),
        (
            "https://github.com/a/b.git/",
            "https://raw.githubusercontent.com/a/b/main/hub_index.json",
        ),
        ("github.com/a/b", "https://raw.githubusercontent.com/a/b/main/hub_index.json"),
        ("https://example.org/x.json", "https://example.org/x.json"),
        ("https://example.org/x", None),
        ("git@github.com:a/b", None),
    ],
)
def test_the_address_of_an_index_follows_from_its_repository(
    source: str, address: str | None
) -> None:
    assert get_index_address(source) == address


def test_a_damaged_config_is_a_warning_and_damaged_registries_an_error(home: AlcHome) -> None:
    """Without the registries a search would miss packages and not say so."""
    (home.root / "config.toml").write_text("[hub")
    (home.root / "hub_registries.json").write_text('{"registries": [{"source": "/x.json"}]}')
    assert "[hub] cannot be read" in hub_search(offline=True)["warnings"][0]
    (home.root / "hub_registries.json").write_text("{")
    with pytest.raises(BadPackageFile, match="it is not a list of registries"):
        hub_search(offline=True)


def test_info_has_all_that_is_known(home: AlcHome, collection: Path, web: Web) -> None:
    install(str(collection))
    configure(
        home, web.put("/all.json", {"name": "votes", "version": "9", "source": "github.com/x/y"})
    )
    (home.cards / "votes").mkdir(parents=True)
    for name, moment, rate in (("a", "2026-02", 1), ("b", "2026-01", 0.5)):
        (home.cards / "votes" / f"{name}.toml").write_text(
            f'created_at = "{moment}"\n[stats]\npass_rate = {rate}\n'
        )
    (home.cards / "_aliases.toml").write_text(
        '[[alias]]\nname = "best"\ncard_id = "a"\npkg = "votes"\n'
        '[[alias]]\nname = "x"\ncard_id = "b"\npkg = "y"\n'
    )
    home.evals.mkdir()
    (home.evals / "votes_1.meta.json").write_text('{"strategy": "votes"}')
    (home.evals / "votes_1.json").write_text('{"strategy": "votes"}')
    (home.evals / "votes_2.json").write_text('{"strategy": "votes"}')
    (home.evals / "compare_a_vs_b.json").write_text('{"strategy": "votes"}')
    (home.evals / "votes_3.json").write_text("{")
    told = hub_info("votes")
    assert told["pkg"] == {
        "name": "votes",
        "version": "9",
        "description": "",
        "category": "",
        "source": {"type": "git", "url": "github.com/x/y", "rev": None},
        "installed": True,
    }
    assert [card["card_id"] for card in told["cards"]] == ["a", "b"]
    assert [alias["name"] for alias in told["aliases"]] == ["best"]
    assert told["stats"] == {"card_count": 2, "eval_count": 2, "best_pass_rate": 1.0}
    assert "votes_3.json cannot be read" in told["warnings"][0]


def test_an_unknown_package_is_told_with_what_was_meant(home: AlcHome, collection: Path) -> None:
    install(str(collection))
    with pytest.raises(BadPackage, match="Package 'vote' not found in any index") as told:
        hub_info("vote")
    assert told.value.hint == "Did you mean 'votes'?"
    with pytest.raises(BadPackage, match="Invalid package name"):
        hub_info("../x")


def test_a_published_name_that_no_package_can_have_is_a_warning(home: AlcHome, web: Web) -> None:
    """It is not looked for among files, and the others are found."""
    url = web.put("/all.json", {"name": "../../cards"}, DEBATE)
    configure(home, url)
    told = hub_search()
    assert names(told) == ["debate"]
    assert told["warnings"] == [f"{url}: '../../cards' is no package"]
