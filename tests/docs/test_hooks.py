"""Every hook has a sentence, a row in the reference, and a test that bears its name; ours are found
by theirs.
"""

import re
from pathlib import Path

from everhold.hooks import HOOKS, Plugin, collect_plugins
from everhold.ports.entry_points import PLUGINS, list_entry_point_names

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "hooks.md").read_text()
TESTS = (ROOT / "tests" / "scenario" / "test_plugins.py").read_text()


def test_every_hook_says_when_it_is_called() -> None:
    said = {hook: getattr(Plugin, hook).__doc__ or "" for hook in HOOKS}
    assert [hook for hook in HOOKS if not said[hook].rstrip().endswith(".")] == []


def test_every_hook_is_in_the_reference() -> None:
    listed = set(re.findall(r"^\| `(\w+)\(", REFERENCE, re.MULTILINE))
    assert [hook for hook in HOOKS if hook not in listed] == []


def test_every_hook_has_a_test_of_its_name() -> None:
    tests = set(re.findall(r"^async def test_(\w+)\(", TESTS, re.MULTILINE))
    assert [hook for hook in HOOKS if hook not in tests] == []


def test_our_plugins_are_found_by_their_names() -> None:
    ours = ["approval", "budget", "compaction", "output_limit", "redaction"]
    assert set(ours) <= set(list_entry_point_names(PLUGINS))
    assert [plugin.name for plugin in collect_plugins(ours)] == ours
    assert all(f"| `{name}` |" in REFERENCE for name in ours)
