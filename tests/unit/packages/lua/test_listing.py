"""Which packages there are, and how a listing is cut to what is wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.errors import BadPackage
from everhold.packages.lua.fetch import INSTALLED_SOURCE, BundledSource, FolderSource
from everhold.packages.lua.install import install, link
from everhold.packages.lua.listing import list_packages, select_rows
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import LockedPackage, Project
from everhold.packages.lua.resolve import update
from tests.unit.packages.lua.making import committed, package


def rows(**options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list_packages(**options)["packages"]
    return found


def test_what_is_installed_is_listed(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    install(str(package(tmp_path / "src" / "debate", "1.2")))
    assert list_packages() == {
        "packages": [
            {
                "name": "debate",
                "scope": "global",
                "version": "1.2",
                "active": True,
                "resolved_source_path": f"{home.packages}/debate",
                "resolved_source_kind": "installed",
            }
        ],
        "search_paths": [
            {"path": str(home.packages), "source": "default"},
            {"path": str(tmp_path / "data" / "packages"), "source": "everhold"},
        ],
    }


def test_everything_that_is_known_of_one(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate", "1.2", says="much")
    install(str(folder))
    [row] = rows(verbose="full")
    assert row["description"] == "Says much."
    assert row["meta"] == {"name": "debate", "version": "1.2", "description": "Says much."}
    assert (row["install_source"], row["source_type"], row["source"]) == (
        str(folder),
        f"path (from: {folder})",
        str(home.packages),
    )
    assert row["installed_at"] == row["updated_at"] != ""


def test_nothing_is_run_to_list_it(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(home.packages / "evil")
    (folder / "init.lua").write_text(
        f"os.execute('touch {tmp_path}/ran') return {{ meta = {{ version = '1' }} }}"
    )
    assert rows()[0]["version"] == "1"
    assert not (tmp_path / "ran").exists()


def test_the_words_of_a_package_hide_nothing_that_we_know(home: AlcHome, nowhere: Path) -> None:
    folder = package(home.packages / "liar")
    (folder / "init.lua").write_text(
        'return { meta = { name = "cot", scope = "x", active = "x", compat = ">=1" } }'
    )
    [row] = rows(fields=["name", "scope", "active", "compat"])
    assert row == {"name": "liar", "scope": "global", "active": True, "compat": ">=1"}


def test_the_first_of_a_name_is_active(
    project: Project, home: AlcHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALC_PACKAGES_PATH", str(tmp_path / "more"))
    package(home.packages / "debate")
    package(tmp_path / "more" / "debate")
    package(tmp_path / "p1")
    link(package(tmp_path / "p2"), "debate", scope="variant")
    project.toml.write_text('[packages]\ndebate = { path = "../p1" }\n')
    update()
    found = rows(
        sort="name",
        fields=["scope", "active", "resolved_source_kind", "overrides", "override_paths"],
    )
    assert [(row["scope"], row["active"], row["resolved_source_kind"]) for row in found] == [
        ("variant", True, "variant"),
        ("project", False, "local_path"),
        ("global", False, "installed"),
        ("global", False, "installed"),
    ]
    assert found[0]["overrides"] == ["project", str(tmp_path / "more"), str(home.packages)]
    assert found[0]["override_paths"] == [
        str(tmp_path / name) for name in ("p1", "more/debate", "home/packages/debate")
    ]


@pytest.mark.process
def test_what_a_project_needs_is_listed_as_it_is_resolved(
    project: Project, home: AlcHome, tmp_path: Path
) -> None:
    far = package(tmp_path / "far", "3")
    committed(far)
    install(str(package(tmp_path / "src" / "any")))
    package(home.packages / "old")
    project.toml.write_text(
        f'[packages]\nany = "*"\nfar = {{ git = "file://{far}" }}\nold = "*"\nnew = "*"\n'
    )
    update()
    project.write_lock(
        [
            *project.locked()[:2],
            LockedPackage("old", BundledSource()),
            LockedPackage("extra", FolderSource("../far")),
        ]
    )
    found = list_packages(
        fields=["name", "resolved_source_kind", "source_type", "error"], filter={"scope": "project"}
    )
    assert found["packages"] == [
        {"name": "any", "resolved_source_kind": "installed", "source_type": "installed"},
        {"name": "far", "resolved_source_kind": "pinned", "source_type": "git"},
        {"name": "old", "resolved_source_kind": "bundled", "source_type": "bundled"},
        {
            "name": "new",
            "resolved_source_kind": "installed",
            "source_type": "installed",
            "error": f"no init.lua in {home.packages}/new",
        },
        {"name": "extra", "resolved_source_kind": "local_path", "source_type": "path"},
    ]
    assert (found["project_root"], found["lockfile_path"]) == (str(project.root), str(project.lock))


def test_links_say_where_they_lead(
    tmp_path: Path, home: AlcHome, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path / "src" / "debate")
    link(folder)
    (home.packages / "gone").symlink_to("/no/such")
    fields = ["name", "linked", "link_target", "broken", "active", "resolved_source_kind"]
    assert rows(fields=fields, sort="name") == [
        dict(zip(fields, ["debate", True, str(folder), False, True, "linked"], strict=True)),
        dict(zip(fields, ["gone", True, "/no/such", True, False, "linked"], strict=True)),
    ]
    monkeypatch.setenv("ALC_PKG_STRICT", "true")
    assert [row["active"] for row in rows()] == [False, False]


def test_files_that_cannot_be_read_are_warnings(project: Project, home: AlcHome) -> None:
    package(home.packages / "debate")
    for file in (project.toml, project.lock, project.local, home.installed):
        file.write_text("[[")
    found = list_packages()
    assert [row["name"] for row in found["packages"]] == ["debate"]
    assert len(found["warnings"]) == 4


def test_a_package_that_is_named_and_not_locked_says_so(project: Project, home: AlcHome) -> None:
    package(home.packages / "debate")
    project.add(["debate"])
    assert rows(filter={"scope": "project"}, fields=["error"]) == [
        {"error": "alc.lock does not have it; alc_update adds it"}
    ]
    project.write_lock([LockedPackage("debate", INSTALLED_SOURCE)])
    assert rows(filter={"scope": "project"}, fields=["error"]) == [{}]


def test_copies_that_are_pinned_are_not_packages_of_their_own(home: AlcHome, nowhere: Path) -> None:
    package(home.pinned("debate", "1.0"))
    assert rows() == []


def test_nearer_folders_can_be_named(tmp_path: Path, nowhere: Path, home: AlcHome) -> None:
    package(home.packages / "debate")
    package(tmp_path / "near" / "debate")
    found = list_packages(
        more=[(tmp_path / "near", "settings"), (home.packages, "settings")], sort="-active"
    )
    assert [path["source"] for path in found["search_paths"]] == [
        "settings",
        "settings",
        "everhold",
    ]
    assert found["packages"][0]["resolved_source_path"] == str(tmp_path / "near" / "debate")


# What is wanted of a listing

ROWS: list[dict[str, Any]] = [
    {"n": "a", "v": 2, "t": True},
    {"n": "b", "v": None, "t": False},
    {"n": "c", "t": True},
    {"n": "d", "v": "x"},
    {"n": "e", "v": 1.5},
    {"n": "f", "v": False},
    {"n": "g", "v": [1]},
]


def names(**options: Any) -> str:
    options = {"sort": "n"} | options
    return "".join(row["n"] for row in select_rows(ROWS, summary=["n"], full=["n", "v"], **options))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "abcdefg"),
        ({"sort": "-n"}, "gfedcba"),
        ({"sort": "v,n"}, "feadgbc"),
        ({"sort": "-v,n"}, "bcgdaef"),
        ({"sort": "odd"}, "abcdefg"),
        ({"limit": 2}, "ab"),
        ({"limit": 0}, "abcdefg"),
        ({"limit": -1}, "abcdefg"),
        ({"filter": {"t": True}}, "ac"),
        ({"filter": {"t": 1}}, ""),
        ({"filter": {"t": True, "n": "c"}}, "c"),
        ({"filter": {"odd": None}}, ""),
        ({"filter": {"v": None}}, "b"),
        ({"filter": "odd"}, "abcdefg"),
        ({"filter": {}, "sort": "-n", "limit": 1}, "g"),
    ],
)
def test_filter_then_sort_then_limit(options: dict[str, Any], wanted: str) -> None:
    assert names(**options) == wanted


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, ["n"]),
        ({"verbose": "summary"}, ["n"]),
        ({"verbose": "full"}, ["n", "v"]),
        ({"verbose": "full", "fields": ["t", "odd"]}, ["t"]),
        ({"fields": []}, []),
    ],
)
def test_named_fields_come_before_all(options: dict[str, Any], keys: list[str]) -> None:
    assert list(select_rows(ROWS, summary=["n"], full=["n", "v"], sort="n", **options)[0]) == keys


@pytest.mark.parametrize("sort", ["", "-", "a,,b", "a,", "a,-"])
def test_a_sort_without_a_key_is_refused(sort: str) -> None:
    with pytest.raises(BadPackage, match="invalid sort"):
        names(sort=sort)


def test_another_verbosity_is_refused() -> None:
    with pytest.raises(BadPackage, match='invalid verbose value "fat"'):
        names(verbose="fat")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda v: st.lists(v, max_size=2),
)


@given(st.lists(JSON), st.booleans())
def test_values_of_any_type_have_one_order(values: list[Any], is_down: bool) -> None:
    """Sorting what is sorted changes nothing."""
    rows = [{"v": value} for value in values]
    once = select_rows(rows, summary=["v"], full=[], sort="-v" if is_down else "v")
    assert select_rows(once, summary=["v"], full=[], sort="-v" if is_down else "v") == once
    assert sorted(map(json.dumps, once)) == sorted(map(json.dumps, rows))
