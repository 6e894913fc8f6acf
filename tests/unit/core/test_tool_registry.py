"""The registry of tools: sources, members, orphans and generations."""

import msgspec
import pytest

from everhold.core.tool_registry import (
    MAX_GENERATION,
    AddedTool,
    RegisteredTool,
    ToolChange,
    ToolManifest,
    ToolRegistry,
    ToolRegistryState,
    encode_tools,
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
    assert not found.refresh({"three": []})
    assert found.refresh({"two": []})
    assert found.generation == 4


def test_an_orphan_returns_with_its_source():
    """Row 2: it is kept and not offered, and is what it was when its source has it again."""
    found = registry(one=[A, B])
    found.change(ToolChange(hide=("b",)), found.generation)
    found.refresh({"one": []})
    assert (found.orphans, named(found)) == (["id-a", "id-b"], [])
    assert found.entry("a").source is None
    found.refresh({"two": [A, B]})
    assert (found.orphans, named(found)) == ([], ["a"])
    assert (found.entry("a").source, found.entry("x")) == ("two", None)


def test_what_a_source_says_now_stands():
    """Row 2: the id is the identity; name and description are the source's."""
    found = registry(one=[A, B])
    found.change(ToolChange(hide=("a",)), 1)
    found.refresh({"one": [ToolManifest("id-a", "renamed", "anew"), B]})
    assert named(found) == ["b"]
    found.change(ToolChange(restore=("renamed",)), found.generation)
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
        found.change(ToolChange(hide=("a",)), 0)
    with pytest.raises(BadArguments):
        found.change(ToolChange(hide=("a", "x")), 1)
    assert (named(found), found.generation) == (["a", "b"], 1)
    assert found.change(ToolChange(hide=("a",)), 1)
    assert (named(found), found.generation) == (["b"], 2)
    assert not found.change(ToolChange(hide=("a",)))
    assert found.generation == 2


def test_a_kept_registry_is_restored():
    """Row 2: at any generation; one more only if the sources have changed since."""
    found = registry(one=[A, B])
    found.change(ToolChange(hide=("a", "b")), 1)
    found.change(ToolChange(restore=("b",)), 2)
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


def added(name, description="by the host", ref="m:x"):
    return AddedTool(ToolManifest(name, name, description), ref)


def described(registry):
    return {one.name: one.description for one in registry.members}


def test_a_host_adds_tools():
    """Row 2: a name that is taken is refused; the host is their source."""
    found = registry(one=[A])
    assert found.change(ToolChange(add=(added("z"),)), 1)
    assert (named(found), found.entry("z").source, found.generation) == (["a", "z"], "host", 2)
    for taken in ("z", "a"):
        with pytest.raises(ToolClash):
            found.change(ToolChange(add=(added(taken),)))
    assert found.generation == 2
    assert found.change(ToolChange(remove=("z",)))
    assert (named(found), found.entry("z"), found.added) == (["a"], None, {})


def test_a_tool_of_the_host_takes_the_place_of_another():
    """Row 2: until it is restored; the source's description does not matter meanwhile."""
    a = ToolManifest("a", "a", "of the source")
    found = registry(one=[a])
    found.change(ToolChange(replace=(added("a"),)))
    found.refresh({"one": [ToolManifest("a", "a", "anew")], "two": [ToolManifest("b", "b")]})
    assert described(found) == {"a": "by the host", "b": ""}
    found.change(ToolChange(restore=("a",)))
    assert (described(found)["a"], found.entry("a").source) == ("anew", "one")
    with pytest.raises(BadArguments):
        found.change(ToolChange(replace=(added("x"),)))


def test_a_removed_tool_stays_removed():
    """Row 2: also if it replaced another, and if its source offers it again."""
    a = ToolManifest("a", "a", "of the source")
    found = registry(one=[a])
    found.change(ToolChange(replace=(added("a"),)))
    found.change(ToolChange(remove=("a",)))
    assert (named(found), found.entry("a").removed, found.added) == ([], True, {})
    found.refresh({"one": []})
    found.refresh({"one": [a]})
    assert named(found) == []
    found.change(ToolChange(restore=("a",)))
    assert described(found) == {"a": "of the source"}


def test_a_tool_without_code_is_an_orphan():
    """Row 2: what it replaces does not return for that."""
    a = ToolManifest("a", "a", "of the source")
    found = registry(one=[a])
    found.change(ToolChange(replace=(added("a"),), add=(added("z"),)))
    assert found.refresh({}, {"a": "gone"})
    assert (named(found), found.orphans, found.state().missing) == (["z"], ["a"], {"a": "gone"})
    assert found.refresh({}, {})
    assert (described(found)["a"], found.orphans) == ("by the host", [])
    found.refresh({}, {"a": "gone"})
    found.change(ToolChange(replace=(added("a", "other code"),)))
    assert (described(found)["a"], found.missing) == ("other code", {})


def test_new_code_of_a_tool_is_a_change():
    found = registry(one=[A])
    found.change(ToolChange(add=(added("z"),)))
    assert found.change(ToolChange(replace=(added("z", ref="m:y"),)))
    assert (found.generation, found.added["z"].ref) == (3, "m:y")


def test_a_change_names_a_tool_once():
    found = registry(one=[A])
    with pytest.raises(BadArguments):
        found.change(ToolChange(hide=("a",), restore=("a",)))


def test_a_registry_with_tools_of_the_host_is_restored():
    found = registry(one=[A])
    found.change(ToolChange(add=(added("z"),)))
    other = registry(one=[A])
    other.restore(found.state())
    assert other.state() == found.state()
    laid = other.over([ToolManifest("z", "z", "laid")], "context")
    assert described(laid)["z"] == "laid"
    assert described(other)["z"] == "by the host"


def test_a_change_is_read_back_from_a_journal():
    """What is not set is not stored."""
    change = ToolChange(add=(added("z"),), hide=("a",))
    stored = encode_tools(change)
    assert stored == {
        "add": [{"manifest": {"id": "z", "name": "z", "description": "by the host"}, "ref": "m:x"}],
        "hide": ["a"],
    }
    assert msgspec.convert(stored, ToolChange) == change


def test_a_replacement_with_another_id_leaves_nothing_of_the_tool():
    """Row 2: neither a second tool of the name nor an orphan."""
    found = registry(one=[A, B])
    found.change(ToolChange(replace=(added("a"),)))
    assert [(one.manifest.id, one.source) for one in found.state().entries] == [
        ("id-b", "one"),
        ("a", "host"),
    ]
    assert found.orphans == []


def test_a_hidden_tool_of_the_host_is_restored():
    """Row 2: with its code, because no source has another of the name."""
    found = registry(one=[A])
    found.change(ToolChange(add=(added("z"),)))
    found.change(ToolChange(hide=("z",)))
    assert named(found) == ["a"]
    found.change(ToolChange(restore=("z",)))
    assert (named(found), found.added["z"].ref) == (["a", "z"], "m:x")
