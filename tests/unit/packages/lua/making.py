"""Packages and repositories, made for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def package(folder: Path, version: str = "1.0", *, says: str = "", **more: str) -> Path:
    """A package in a folder; `more` are its other files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "init.lua").write_text(
        f'local M = {{}}\nM.meta = {{ name = "{folder.name}", version = "{version}", description'
        f' = "Says {says}." }}\n'
        f'function M.run(ctx) return "{says or version}" end\nreturn M\n'
    )
    for name, text in more.items():
        (folder / f"{name}.lua").write_text(text)
    return folder


def git(folder: Path, *words: str) -> str:
    told = subprocess.run(
        [
            "git",
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "init.defaultBranch=main",
            *words,
        ],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip()


def committed(folder: Path, tag: str = "") -> str:
    """Everything in the folder as a commit of its repository, which is made if there is none;
    returns its id.
    """
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", tag or "change")
    if tag:
        git(folder, "tag", tag)
    return git(folder, "rev-parse", "HEAD")
