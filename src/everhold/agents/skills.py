"""Skills: folders with a `SKILL.md`. The prompt lists one line for each; the model reads a skill
when it needs it.

    ---
    name: refunds
    description: How to refund an order. Read it before any refund.
    ---
    First look up the order. …

Rules
  1. A folder that is not a valid skill is refused when the agent is made, not when a model asks for
     it.
  2. The prompt has names and descriptions. The model reads the rest with the tool `skill`, one file
     per call.
  3. Only plain text files inside the folder can be read: no absolute paths, no `..`, no links.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from everhold.core.tool import Window
from everhold.errors import AnswerFailed, BadSkill
from everhold.portability import open_inside
from everhold.ports.tool import Tool

SKILL_FILE: Final = "SKILL.md"
#: Bytes of a file that may be read, and number of files that are listed.
MAX_FILE_BYTES: Final = 256 * 1024
MAX_LISTED_FILES: Final = 200
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_KEY: Final = re.compile(r"([A-Za-z][\w-]*)\s*:(?:\s+(.*)|\s*)")
_SHOWN: Final = Window(size=64 * 1024, lines=2_000)


class Skill(msgspec.Struct, frozen=True):
    """A skill: what the prompt says of it, and its folder."""

    name: str
    description: str
    folder: Path


def load_skills(given: Sequence[str | Path]) -> tuple[Skill, ...]:
    """The skills in these folders: each folder is a skill, or holds several. Raises `BadSkill`."""
    found: dict[str, Skill] = {}
    for folder in map(Path, given):
        for skill in _found(folder):
            if skill.name in found:
                raise BadSkill(str(skill.folder), f"{found[skill.name].folder} has the same name")
            found[skill.name] = skill
    return tuple(found.values())


def add_skill_list(instructions: str, skills: Sequence[Skill]) -> str:
    """Instructions with a list of the skills."""
    if not skills:
        return instructions
    lines = [f"- {skill.name}: {skill.description}" for skill in skills]
    listed = (
        "Skills. Read one with the tool `skill` before you do what it describes:\n"
        + "\n".join(lines)
    )
    return f"{instructions}\n\n{listed}".strip()


def make_skill_tool(skills: Sequence[Skill]) -> Tool:
    """The tool with which a model reads skills."""
    known = {skill.name: skill for skill in skills}

    def skill(name: str, file: str = SKILL_FILE) -> str:
        """Read a skill, or a file that belongs to it.

        Args:
            name: the name of the skill
            file: a path inside the skill's folder
        """
        if name not in known:
            raise AnswerFailed(
                f"there is no skill {name!r}; the skills are: {', '.join(known)}", "unknown_skill"
            )
        return read_skill_file(known[name], file)

    return Tool(skill, read_only=True, output=_SHOWN)


def read_skill_file(skill: Skill, file: str) -> str:
    """A file of a skill. SKILL.md comes without its front matter and with a list of the other
    files.
    """
    try:
        text = _text(skill.folder, file)
    except (OSError, ValueError) as error:
        raise AnswerFailed(
            f"file {file!r} of skill {skill.name!r} cannot be read: {_why(error)}", "bad_file"
        ) from None
    if PurePosixPath(file) != PurePosixPath(SKILL_FILE):
        return text
    others = _others(skill.folder)
    listed = "\n\nFiles of this skill: " + ", ".join(others) if others else ""
    return _parts(text)[1].strip() + listed


# ---- finding


def _found(folder: Path) -> list[Skill]:
    if (folder / SKILL_FILE).is_file():
        return [_skill(folder)]
    if not folder.is_dir():
        raise BadSkill(str(folder), "the folder does not exist")
    inside = sorted(one for one in folder.iterdir() if (one / SKILL_FILE).is_file())
    if not inside:
        raise BadSkill(str(folder), f"neither it nor a folder in it has a {SKILL_FILE}")
    return [_skill(one) for one in inside]


def _skill(folder: Path) -> Skill:
    home = folder.resolve()
    try:
        front = _parts(_text(home, SKILL_FILE))[0]
    except (OSError, ValueError) as error:
        raise BadSkill(str(folder), _why(error)) from None
    name = front.get("name", "")
    description = " ".join(front.get("description", "").split())
    if not _NAME.fullmatch(name) or len(name) > 64:
        raise BadSkill(
            str(folder), f"name should be 1 to 64 of a-z, 0-9 and single hyphens, got {name!r}"
        )
    if name != home.name:
        raise BadSkill(str(folder), f"its name is {name!r}, but its folder is called {home.name!r}")
    if not 0 < len(description) <= 1024:
        raise BadSkill(
            str(folder), f"description should have 1 to 1024 characters, has {len(description)}"
        )
    return Skill(name, description, home)


def _parts(text: str) -> tuple[dict[str, str], str]:
    """The front matter by key, and the text after it; raises ValueError if there is none."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise ValueError("SKILL.md does not begin with a line of ---")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise ValueError("the front matter has no closing line of ---")
    found: dict[str, list[str]] = {}
    key = ""
    for line in lines[1:end]:
        named = _KEY.fullmatch(line.rstrip())
        if named is not None:
            key = named[1].lower()
            found[key] = (
                []
                if (named[2] or "").strip() in ("|", ">", "|-", ">-", "")
                else [_bare(named[2].strip())]
            )
        elif key and line.startswith((" ", "\t")):
            found[key].append(line.strip())
        elif line.strip() and not line.startswith("#"):
            raise ValueError(
                f"{line.strip()!r} in the front matter is neither a key nor indented below one"
            )
    return {key: "\n".join(rows) for key, rows in found.items()}, "\n".join(lines[end + 1 :])


def _bare(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


# ---- reading, inside the folder only


def _text(folder: Path, file: str) -> str:
    """A text file. Each directory is opened by itself without following links, so that no path
    leads outside.
    """
    parts = PurePosixPath(file).parts
    if not parts or file.startswith("/") or "\\" in file or "\0" in file or ".." in parts:
        raise ValueError("the path must lie inside the skill's folder")
    with os.fdopen(open_inside(folder, parts), "rb") as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            raise ValueError("the path is not a plain file")
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"the file has more than {MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("the file is not text") from None


def _others(folder: Path) -> list[str]:
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        inside = (Path(place, one) for one in sorted(files) if not one.startswith("."))
        found += [one.relative_to(folder).as_posix() for one in inside if not one.is_symlink()]
    found.remove(SKILL_FILE)
    return found[:MAX_LISTED_FILES]


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    return (
        (error.strerror or "the path is not a plain file")
        if isinstance(error, OSError)
        else str(error)
    )
