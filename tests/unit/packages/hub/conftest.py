"""A home of its own, and a collection of two packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.packages.lua.paths import AlcHome
from tests.unit.packages.lua.conftest import home as home
from tests.unit.packages.lua.conftest import nowhere as nowhere

VOTES = """--- votes: asks several times
---
--- Takes the answer
--- of the majority.
---
--- ## Usage
---
--- ```lua
--- ## no heading
--- ```
---
--- ### Costs
--- One call per vote.
---
--- ## Usage
local T = require("alc_shapes").T
local M = {}
M.meta = {
  name = "votes",
  version = "0.2.0",
  description = "Asks several " .. "times",
  category = "aggregation",
  alc_shapes_compat = "^0.25",
}
M.spec = { entries = { run = {
  input = T.shape({
    task = T.string:describe("What to | ask"),
    times = T.number:is_optional(),
  }, { open = false }),
  result = "voted",
} } }
function M.run(ctx) return ctx end
return M
"""
PLAIN = """local M = { meta = { name = "plain", version = "1.0.0", description = "Asks once", category = "basic" } }
M.spec = { entries = { run = { result = require("alc_shapes").T.array_of(require("alc_shapes").T.string) } } }
function M.run(ctx) return ctx end
return M
"""  # noqa: E501


def put(folder: Path, name: str, text: str) -> Path:
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "init.lua").write_text(text)
    return place


@pytest.fixture(autouse=True)
def no_network(home: AlcHome) -> None:
    """No test goes beyond this machine."""
    home.root.mkdir(exist_ok=True)
    (home.root / "config.toml").write_text("[hub]\nbuiltin_sources = false\n")


@pytest.fixture
def collection(tmp_path: Path, nowhere: Path) -> Path:
    folder = tmp_path / "collection"
    put(folder, "votes", VOTES)
    put(folder, "plain", PLAIN)
    return folder
