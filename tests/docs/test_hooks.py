"""Every hook has a sentence, a row in the reference, and a test that bears its name; ours are found
by theirs.
"""

import re
from pathlib import Path

import pytest

from everhold.hooks import HOOKS, Plugin, collect_plugins
from everhold.ports.entry_points import PLUGINS, list_entry_point_names

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "hooks.md").read_text()
TESTS = (ROOT / "tests" / "scenario" / "test_plugins.py").read_text()


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_says_when_it_is_called(hook: str) -> None:
    assert (getattr(Plugin, hook).__doc__ or "").rstrip().endswith(".")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_in_the_reference(hook: str) -> None:
    assert re.search(rf"^\| `{hook}\(", REFERENCE, re.MULTILINE)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test_of_its_name(hook: str) -> None:
    assert re.search(rf"^async def test_{hook}\(", TESTS, re.MULTILINE)


def test_our_plugins_are_found_by_their_names() -> None:
    ours = ["approval", "budget", "compaction", "output_limit", "redaction"]
    assert set(ours) <= set(list_entry_point_names(PLUGINS))
    assert [plugin.name for plugin in collect_plugins(ours)] == ours
    assert all(f"| `{name}` |" in REFERENCE for name in ours)
