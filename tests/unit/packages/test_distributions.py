"""Python packages that bring programs: known by what is written down, never by running them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everhold.errors import BadPackage
from everhold.packages import distributions
from everhold.packages.distributions import (
    check_distributions,
    install_distribution,
    list_distributions,
    remove_distribution,
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, first on the path: `shop` brings a program, `other` brings
    none.
    """
    folder = tmp_path / "site"
    shop, other = folder / "shop-1.0.dist-info", folder / "other-1.0.dist-info"
    for place in (shop, other):
        place.mkdir(parents=True)
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {place.name.partition('-')[0]}\nVersion: 1.0\n"
        )
    (shop / "entry_points.txt").write_text(
        "[everhold.programs]\nbuy = shop:buy\n[console_scripts]\nx = shop:x\n"
    )
    (shop / "RECORD").write_text("shop.py,,\ngone.py,,\n__pycache__/shop.pyc,,\n")
    (folder / "shop.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def ours() -> list[dict[str, object]]:
    return [row for row in list_distributions() if row["name"] == "shop"]


def test_what_brings_programs_is_listed(site: Path) -> None:
    assert ours() == [{"name": "shop", "version": "1.0", "programs": {"buy": "shop:buy"}}]
    assert "other" not in [row["name"] for row in list_distributions()]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            '{"url": "file:///src", "dir_info": {"editable": true}}',
            {"source": "file:///src", "linked": True},
        ),
        ('{"url": "file:///src", "dir_info": {}}', {"source": "file:///src", "linked": False}),
        (
            '{"url": "https://ana:secret@h/a", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            {"source": "https://h/a", "linked": False, "rev": "abc"},
        ),
        ("not JSON", {}),
    ],
)
def test_where_it_came_from_is_listed(site: Path, written: str, told: dict[str, object]) -> None:
    (site / "shop-1.0.dist-info" / "direct_url.json").write_text(written)
    assert {
        key: value for key, value in ours()[0].items() if key in ("source", "linked", "rev")
    } == told


def test_files_that_are_missing_are_named(site: Path) -> None:
    assert [row for row in check_distributions() if row["name"] == "shop"] == [
        {"name": "shop", "kind": "files_missing", "missing": ["gone.py"]}
    ]


@pytest.mark.parametrize("name", ["other", "nobody"])
def test_only_what_brings_programs_is_removed(site: Path, name: str) -> None:
    with pytest.raises(BadPackage, match=f"No Python package '{name}' with programs is installed"):
        remove_distribution(name)


@pytest.mark.parametrize(
    ("source", "rev", "wanted"),
    [
        ("shop", None, "shop"),
        ("shop==1.0", None, "shop==1.0"),
        ("github.com/a/shop", None, "git+https://github.com/a/shop"),
        ("file:///src/shop", "v1", "git+file:///src/shop@v1"),
        ("git@h:a/shop", "main", "git+ssh://git@h/a/shop@main"),
    ],
)
def test_what_pip_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, rev: str | None, wanted: str
) -> None:
    asked: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(distributions, "_pip", lambda *words: asked.extend(words))
    told = install_distribution(source, rev=rev)
    assert asked == ["install", "--upgrade", wanted]
    assert "No new programs" in told["note"]


@pytest.mark.parametrize(
    ("source", "rev"),
    [
        ("-r", None),
        ("--target=/etc", None),
        ("a\nb", None),
        ("shop", "v1"),
        ("ext::sh/x", None),
        ("h/a", "-x"),
        ("h/a", "x@y"),
    ],
)
def test_options_are_no_packages(
    monkeypatch: pytest.MonkeyPatch, source: str, rev: str | None
) -> None:
    monkeypatch.setattr(
        distributions, "_pip", lambda *words: pytest.fail(f"pip was asked: {words}")
    )
    with pytest.raises(BadPackage):
        install_distribution(source, rev=rev)


def test_a_folder_must_be_a_python_package(tmp_path: Path) -> None:
    with pytest.raises(BadPackage, match=r"No pyproject\.toml in"):
        install_distribution(str(tmp_path))
    with pytest.raises(BadPackage, match="is not a directory"):
        install_distribution(str(tmp_path / "gone"), linked=True)


@pytest.mark.process
def test_what_pip_complains_of_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network there is no index to ask: a folder whose builder is not there."""
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "nobody"\nbackend-path = ["."]'
    )
    with pytest.raises(BadPackage, match="pip failed: "):
        install_distribution(str(tmp_path))


@pytest.mark.process
def test_pip_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "LIMIT", 0.01)
    with pytest.raises(BadPackage, match="pip timed out"):
        install_distribution("shop")
