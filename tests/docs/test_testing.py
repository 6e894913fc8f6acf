"""The reference of the test kit names everything that is public in it."""

from pathlib import Path

from everhold import testing
from everhold.testing import Kit, Session

PAGE = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text()


def test_every_verb_is_documented() -> None:
    verbs = [name for owner in (Kit, Session) for name in vars(owner) if not name.startswith("_")]
    assert [name for name in verbs if f"`{name}" not in PAGE] == []


def test_every_name_is_documented_and_there() -> None:
    assert [name for name in testing.__all__ if name not in PAGE and name != "NetworkRefused"] == []
    assert all(getattr(testing, name) for name in testing.__all__)
