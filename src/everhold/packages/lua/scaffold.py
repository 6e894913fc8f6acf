"""Creates new packages and projects, and the types of `alc` for Lua editors.

A new package has an init.lua that runs, with a spec of what it takes and returns, and a test beside
it that passes.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage
from everhold.packages.lua.atomic_file import read_text_file, write_atomically
from everhold.packages.lua.paths import AlcHome, expand_path, find_project_root, get_alc_home
from everhold.packages.lua.project import INSTALL_LOCK_FILE, LOCAL, Project
from everhold.programs.lua.search_path import INIT_FILE

#: The versions of alc_shapes that a new package declares to work with.
SHAPES_COMPAT: Final = ">=0.25.0, <0.26"

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAIN: Final = """--- {title}
---
--- Drafts an answer, then improves it.

local S = require("alc_shapes")
local T = S.T

local M = {{}}

M.meta = {{
  name = {name},
  version = "0.1.0",
  description = {description},
  category = {category},
  alc_shapes_compat = "{compat}",
}}

-- What run takes and returns; checked if ALC_SHAPE_CHECK is 1, and shown by `everhold hub gendoc`.
M.spec = {{
  entries = {{
    run = {{
      input = T.shape({{
        task = T.string:describe("What to answer"),
      }}),
      result = T.string:describe("The improved answer"),
    }},
  }},
}}

---@param ctx table
---@return table ctx
function M.run(ctx)
  local draft = alc.llm("Answer this as well as you can.\\n\\n" .. ctx.task)
  ctx.result = alc.llm("Improve this answer.\\n\\n" .. draft)
  return ctx
end

M.run = S.instrument(M, "run")

return M
"""
_TEST: Final = '''"""The package {name}, with prepared answers in place of a model. Run it with pytest."""

from pathlib import Path

import everhold
from everhold.programs.lua.program import LuaProgram


def test_{name}_improves_its_draft() -> None:
    package = LuaProgram.package(Path(__file__).parent / "{name}")
    answers = ["a draft", "a better answer"]
    ctx = everhold.run(package(task="Why is the sky blue?"), llm=answers, database="memory://")
    assert ctx["result"] == "a better answer"
'''  # noqa: E501


def scaffold(
    name: str,
    target_dir: str | Path = ".",
    *,
    category: str | None = None,
    description: str | None = None,
) -> dict[str, Any]:
    """Create a package and its test in a folder; existing files are refused."""
    if _NAME.fullmatch(name) is None:
        raise BadPackage(
            f"invalid package name '{name}'",
            "Use at most 64 lower-case letters, digits and _, beginning with a letter.",
        )
    target = expand_path(target_dir)
    main = target / name / INIT_FILE
    test = target / f"test_{name}.py"
    for file in (main, test):
        if file.exists():
            raise BadPackage(f"{file} already exists", "Nothing was changed.")
    summary = " ".join((description or f"Describe what {name} is for.").split())
    text = _MAIN.format(
        title=f"{name}: {summary}",
        name=_lua(name),
        description=_lua(summary),
        category=_lua(" ".join((category or "general").split())),
        compat=SHAPES_COMPAT,
    )
    write_atomically(test, _TEST.format(name=name), mode=0o644)
    write_atomically(main, text, mode=0o644)
    return {
        "status": "ok",
        "path": str(main),
        "bytes_written": len(text.encode()),
        "test_path": str(test),
    }


def _lua(text: str) -> str:
    """A Lua string literal, on one line."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\{ord(found[0]):03d}", plain) + '"'


STUBS_FILE: Final = "alc.d.lua"
SHAPES_FILE: Final = "alc_shapes.d.lua"  # of the package alc_shapes, if the user has put it there


@cache
def load_stubs() -> str:
    """The types of `alc`, for editors."""
    return files(__package__).joinpath(STUBS_FILE).read_text("utf-8")


def write_stubs(home: AlcHome) -> dict[str, str]:
    """Write the types unless the file is up to date; returns the paths of type files."""
    file = home.types / STUBS_FILE
    shapes = home.types / SHAPES_FILE
    if read_text_file(file) != load_stubs():
        write_atomically(file, load_stubs(), mode=0o644)
    found = {"types_path": str(file)}
    return found | ({"alc_shapes_types_path": str(shapes)} if shapes.is_file() else {})


# ---- a new project

IGNORED_FILES: Final = (LOCAL, INSTALL_LOCK_FILE)


def init(project: str | Path | None = None) -> dict[str, Any]:
    """Create an empty alc.toml, and list the files of this machine in .gitignore."""
    one = Project(find_project_root(project) or Path.cwd())
    with one.guarded():
        if one.toml.exists():
            raise BadPackage(f"{one.toml} already exists", "Nothing was changed.")
        ignore = one.root / ".gitignore"
        text = read_text_file(ignore) or ""
        missing = [name for name in IGNORED_FILES if name not in text.split()]
        if missing:
            gap = "\n" if text and not text.endswith("\n") else ""
            write_atomically(ignore, text + gap + "\n".join([*missing, ""]), mode=0o644)
        write_atomically(one.toml, "[packages]\n", mode=0o644)
    created = {
        "created": str(one.toml),
        "gitignore_path": str(ignore),
        "gitignore_updated": bool(missing),
    }
    return created | write_stubs(get_alc_home())
