"""The registry of tools: sources, members, orphans and generations."""

import pytest

from everhold.core.tool_registry import (
    MAX_GENERATION,
    RegisteredTool,
    ToolManifest,
    ToolRegistry,
    ToolRegistryState,
)
from everhold.errors import BadArguments, StaleTools, ToolClash

A, B, C = (ToolManifest(f"id-{name}", name) for name in "abc")


def named(registry):
    return [one.name for one in registry.members]


def registry(**sources):
    found = ToolRegistry()
    found.refresh(sources)
    return found


def test_a_generation_is_one_effective_change():
    """Row 2: +1 for each change; hearing the same again changes nothing."""
    found = registry(one=[A])
    assert found.generation == 1
    assert not found.refresh({"one": [A]})
    assert found.refresh({"one": [A, B]})
    assert found.refresh({"two": [C]})
    assert found.generation == 3
    assert not found.remove("three")
    assert found.remove("two")
    assert found.generation == 4


def test_an_orphan_returns_with_its_source():
    """Row 2: it is kept and not offered, and is what it was when its source has it again."""
    found = registry(one=[A, B])
    found.apply({"id-b": False}, found.generation)
    found.remove("one")
    assert (found.orphans, named(found)) == (["id-a", "id-b"], [])
    assert found.source_of("id-a") is None
    found.refresh({"two": [A, B]})
    assert (found.orphans, named(found)) == ([], ["a"])
    assert (found.source_of("id-a"), found.source_of("id-x")) == ("two", None)


def test_what_a_source_says_now_stands():
    """Row 2: the id is the identity; name and description are the source's."""
    found = registry(one=[A, B])
    found.apply({"id-a": False}, 1)
    found.refresh({"one": [ToolManifest("id-a", "renamed", "anew"), B]})
    assert named(found) == ["b"]
    found.apply({"id-a": True}, found.generation)
    assert [(one.name, one.description) for one in found.members] == [
        ("renamed", "anew"),
        ("b", ""),
    ]


@pytest.mark.parametrize(
    "other", [ToolManifest("id-a", "x"), ToolManifest("id-x", "a")], ids=["id", "name"]
)
def test_two_sources_with_one_tool_are_refused_and_nothing_changes(other):
    """Row 2: a failed refresh keeps the old registry."""
    found = registry(one=[A])
    before = found.state()
    for sources in ({"two": [other]}, {"one": [A, other]}):
        with pytest.raises(ToolClash):
            found.refresh(sources)
    assert found.state() == before
    assert not found.refresh({"one": [A]})


def test_membership_is_changed_by_who_saw_the_present_generation():
    """Row 2: an old generation is refused, and an unknown tool, and then nothing changes."""
    found = registry(one=[A, B])
    with pytest.raises(StaleTools):
        found.apply({"id-a": False}, 0)
    with pytest.raises(BadArguments):
        found.apply({"id-a": False, "id-x": False}, 1)
    assert (named(found), found.generation) == (["a", "b"], 1)
    found.apply({"id-a": False}, 1)
    assert (named(found), found.generation) == (["b"], 2)


def test_a_kept_registry_is_restored():
    """Row 2: at any generation; one more only if the sources have changed since."""
    found = registry(one=[A, B])
    found.apply({"id-a": False}, 1)
    found.apply({"id-b": True}, 2)
    kept = found.state()
    assert kept.generation == 3

    same = registry(one=[A, B])
    same.restore(kept)
    assert (same.state(), named(same)) == (kept, ["b"])

    other = registry(one=[B, C])
    other.restore(kept)
    assert (other.generation, other.orphans, named(other)) == (4, ["id-a"], ["b", "c"])
    other.refresh({"one": [A, B, C]})
    assert named(other) == ["b", "c"]


def test_a_kept_registry_that_names_a_tool_twice_is_refused():
    with pytest.raises(BadArguments):
        ToolRegistry().restore(ToolRegistryState(1, (RegisteredTool(A), RegisteredTool(A))))


def test_generations_do_not_overflow():
    found = registry(one=[A])
    found.generation = MAX_GENERATION
    with pytest.raises(BadArguments):
        found.refresh({"one": [B]})


def test_a_fork_goes_its_own_way():
    found = registry(one=[A])
    other = found.fork()
    other.refresh({"two": [B]})
    assert (named(found), named(other)) == (["a"], ["a", "b"])


def test_what_is_laid_over_takes_the_place_of_what_is_below():
    """Row 22: by id and by name; the registry below stays as it was."""
    found = registry(one=[A, B, C])
    laid = found.over(
        [ToolManifest("id-a", "a", "other"), ToolManifest("id-x", "b", "other")], "context"
    )
    assert {one.name: one.description for one in laid.members} == {
        "a": "other",
        "b": "other",
        "c": "",
    }
    assert [one.description for one in found.members] == ["", "", ""]
