"""Docs freshness: every generated part of the docs equals the current output of its generator.

A generated part is a cog block. `--write` brings the files up to date instead of complaining.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "GLOSSARY.md", "docs/**/*.md", "src/everhold/blocking.pyi")
MARK = "[[[" + "cog"


def generated(root: Path = ROOT) -> list[str]:
    """The pages that hold at least one cog block, as paths from the root."""
    pages = sorted({page for pattern in PAGES for page in root.glob(pattern)})
    return [
        page.relative_to(root).as_posix()
        for page in pages
        if MARK in page.read_text(encoding="utf-8")
    ]


def main(arguments: list[str], root: Path = ROOT) -> int:
    pages = generated(root)
    if not pages:
        print("docs: no generated parts")
        return 0
    mode = ["-r"] if "--write" in arguments else ["--check", "--diff"]
    cog = subprocess.run(
        [sys.executable, "-m", "cogapp", "-P", "-I", ".", *mode, *pages],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if cog.returncode == 0:
        print(f"docs: {len(pages)} pages with generated parts are fresh")
    else:
        print(cog.stdout + cog.stderr + "docs: out of date; run `make fix`")
    return cog.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
