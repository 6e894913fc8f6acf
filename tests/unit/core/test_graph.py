"""The conversation graph: nodes, leaf, frames, views."""

import pytest

from everhold.core.graph import (
    INITIAL_FRAME,
    Frame,
    Graph,
    ModelView,
    Node,
    NodeKind,
    compact_blocks,
    count_shared_nodes,
    extract_text,
    parse_nodes,
    to_blocks,
)
from everhold.core.message import Role
from everhold.errors import DamagedGraph, UnknownFrame, UnknownNode


def said(id_, parent, words, role=Role.USER):
    return Node(id_, parent, role=role, content=words)


def chain(*ids):
    graph, parent = Graph(), None
    for id_ in ids:
        graph.add(said(id_, parent, f"words of {id_}"))
        parent = id_
    return graph


def words(messages):
    return [extract_text(message) for message in messages]


def test_each_node_becomes_the_tip_and_settling_makes_it_the_leaf():
    graph = chain("1.0", "1.1")
    assert (graph.tip, graph.leaf, len(graph)) == ("1.1", None, 2)
    graph.settle()
    assert graph.leaf == "1.1"
    assert [node.id for node in graph.path("1.1")] == ["1.0", "1.1"]


def test_a_node_that_names_a_query_has_its_answer():
    graph = Graph()
    node = graph.add(Node("1.0", None, role=Role.ASSISTANT, q=4), {4: "Paris."})
    assert node.content == "Paris."
    assert graph.messages() == [
        {"role": "assistant", "content": [{"type": "text", "text": "Paris."}]}
    ]


@pytest.mark.parametrize("role", [Role.USER, Role.ASSISTANT, Role.SYSTEM])
def test_only_results_of_tools_name_queries(role):
    """A model or a user may say a `q`: it is shown nobody's answer for it, and damages nothing."""
    said = [{"type": "text", "text": "x", "q": 3}, {"type": "tool_result", "q": [1]}]
    graph = Graph()
    graph.add(Node("1.0", None, role=role, content=said), {3: "a secret"})

    assert graph.nodes["1.0"].content == said


def test_a_tools_result_that_names_a_query_has_its_answer():
    graph = Graph()
    results = [{"type": "tool_result", "tool_use_id": "a", "q": 7}, {"type": "text", "text": "x"}]
    node = graph.add(Node("1.0", None, role=Role.TOOL, content=results), {7: [1, 2]})
    assert node.content == [
        {"type": "tool_result", "tool_use_id": "a", "content": [1, 2]},
        {"type": "text", "text": "x"},
    ]


@pytest.mark.parametrize(
    "node",
    [
        Node("1.0", None, role=Role.ASSISTANT, q=4),
        Node("1.0", None, role=Role.TOOL, content=[{"type": "tool_result", "q": 4}]),
        Node("1.0", None, role=Role.TOOL, content=[{"type": "tool_result", "q": [4]}]),
        Node("1.0", "0.9", role=Role.USER, content="x"),
    ],
)
def test_what_refers_to_nothing_is_damage(node):
    graph = Graph()
    with pytest.raises(DamagedGraph):
        graph.add(node)
    assert (len(graph), graph.messages()) == (0, [])


def test_two_nodes_of_one_id_are_damage():
    graph = chain("1.0")
    with pytest.raises(DamagedGraph):
        graph.add(said("1.0", "1.0", "again"))


def test_a_leaf_that_is_no_node_is_damage():
    with pytest.raises(DamagedGraph):
        chain("1.0").path("9.9")


def test_moving_the_leaf_hides_siblings_and_deletes_nothing():
    graph = chain("1.0", "1.1", "2.0")
    graph.move("1.1")
    graph.add(said("3.0", "1.1", "another way"))
    graph.settle()
    assert words(graph.messages()) == ["words of 1.0", "words of 1.1", "another way"]
    assert [node.id for node in graph.hidden()] == ["2.0"]
    assert len(graph) == 4


def test_the_leaf_may_move_to_nothing_and_not_to_the_unknown():
    graph = chain("1.0")
    graph.move(None)
    assert (graph.leaf, graph.messages()) == (None, [])
    with pytest.raises(UnknownNode):
        graph.move("7.7")


def test_a_frame_begins_a_new_context_and_the_old_one_stays_readable():
    graph = chain("1.0", "1.1")
    graph.add(Node("2.0", "1.1", NodeKind.FRAME, content={"reason": "compaction"}))
    graph.add(said("2.1", "2.0", "in short"))
    assert graph.frame == Frame("2.0", "compaction", INITIAL_FRAME, "2.0")
    assert words(graph.messages()) == ["in short"]
    assert words(graph.messages(INITIAL_FRAME)) == ["words of 1.0", "words of 1.1"]
    assert words(graph.messages("2.0")) == ["in short"]
    graph.add(Node("3.0", "2.1", NodeKind.FRAME, content={"reason": "continue_as"}))
    assert [frame.id for frame in graph.frames] == [INITIAL_FRAME, "2.0", "3.0"]
    assert graph.frame.previous == "2.0"


def test_before_any_frame_there_is_the_initial_one():
    assert Graph().frame == Frame(INITIAL_FRAME, INITIAL_FRAME, None, INITIAL_FRAME)


def test_a_view_shows_what_was_to_be_seen_at_its_leaf():
    graph = Graph()
    graph.add(
        Node(
            "1.0", None, NodeKind.PROMPT, content={"system": "Be brief.", "tools": [{"name": "a"}]}
        )
    )
    graph.add(said("1.1", "1.0", "one"))
    graph.add(said("1.2", "1.1", "two"))
    view = ModelView("1.2", "1.0")
    system, messages, tools = graph.shown(view)
    assert (system, words(messages), tools) == ("Be brief.", ["one", "two"], [{"name": "a"}])
    graph.add(said("2.0", "1.2", "three"))
    assert graph.shown(view) == (system, messages, tools)
    extra = {"role": "user", "content": [{"type": "text", "text": "now"}]}
    assert words(graph.shown(ModelView("2.0", skip=2, extra=[extra]))[1]) == ["three", "now"]


def test_the_newest_node_of_a_kind():
    graph = chain("1.0")
    assert graph.last(NodeKind.PROMPT) is None
    graph.add(Node("1.1", "1.0", NodeKind.PROMPT, content={}))
    graph.add(said("1.2", "1.1", "x"))
    found = graph.last(NodeKind.PROMPT)
    assert found is not None and found.id == "1.1"


def test_what_two_paths_share():
    one, other = chain("1.0", "1.1", "2.0"), chain("1.0", "1.1", "2.1")
    assert count_shared_nodes(one.path("2.0"), other.path("2.1")) == 2
    assert count_shared_nodes(one.path("2.0"), one.path("1.1")) == 2
    assert count_shared_nodes([], one.path("2.0")) == 0


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ([{"type": "text", "text": "Hi."}], "Hi."),
        (
            [{"type": "text", "text": "Hi.", "cache": True}],
            [{"type": "text", "text": "Hi.", "cache": True}],
        ),
        ([{"type": "text", "text": "a"}] * 2, [{"type": "text", "text": "a"}] * 2),
        ([{"type": "image", "data": "x"}], [{"type": "image", "data": "x"}]),
    ],
)
def test_mere_words_are_kept_as_text(said, kept):
    """And read back as the same blocks."""
    assert compact_blocks(said) == kept and to_blocks(compact_blocks(said)) == said


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a", [{"type": "text", "text": "a"}]),
        ([{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}]),
        ({"id": "i1", "content": "a"}, [{"type": "text", "text": "a"}]),
        (None, []),
        ({"other": 1}, []),
    ],
)
def test_what_is_said_is_blocks(content, expected):
    assert to_blocks(content) == expected


def test_words_among_blocks():
    assert (
        extract_text(
            [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
        )
        == "ab"
    )


def test_a_node_below_an_earlier_one_is_another_way():
    graph = chain("1.0", "1.1")
    graph.add(said("2.0", "1.0", "instead"))
    assert words(graph.messages()) == ["words of 1.0", "instead"]


def test_trimming_keeps_the_way_to_the_tip_and_forgets_the_rest():
    """Row 8: with only the active path resident, only that chain is in memory."""
    graph = chain("1.0", "1.1", "1.2")
    graph.settle()
    graph.trim()
    assert list(graph.nodes) == ["1.0", "1.1", "1.2"]
    graph.move("1.0")
    graph.add(said("2.0", "1.0", "again"))
    graph.trim()
    assert list(graph.nodes) == ["1.0", "2.0"]
    with pytest.raises(UnknownNode):
        graph.move("1.2")


def test_nodes_that_are_handed_in_are_looked_at():
    frame = {"id": "9.0", "kind": "frame", "content": {"reason": "compaction"}}
    message = {"id": "9.1", "role": "user", "content": "words"}
    prompt = {"id": "9.2", "kind": "prompt", "content": {"tools": [{"name": "look"}]}}
    assert [node.id for node in parse_nodes([frame, message, prompt])] == ["9.0", "9.1", "9.2"]


@pytest.mark.parametrize(
    "given",
    [
        None,
        [{"parent": "1.0"}],
        [{"id": "9.0", "content": "who said this?"}],
        [{"id": "9.0", "role": "user"}],
        [{"id": "9.0", "role": "tool", "content": [5]}],
        [{"id": "9.0", "kind": "frame", "content": {}}],
        [{"id": "9.0", "kind": "prompt", "content": "words"}],
        [{"id": "9.0", "kind": "prompt", "content": {"tools": 5}}],
        [{"id": "9.0", "kind": "prompt", "content": {"tools": [{"description": "no name"}]}}],
    ],
)
def test_what_is_no_conversation_is_damage(given):
    with pytest.raises(DamagedGraph):
        parse_nodes(given)


def test_a_block_without_words_says_nothing():
    assert extract_text([{"type": "text"}, {"type": "text", "text": "here"}]) == "here"


def test_nodes_of_tools_and_plugins_are_found_by_their_type():
    """Oldest first; those of another path are not among them."""
    graph = chain("1.0")
    for id_, parent, type_ in (
        ("1.1", "1.0", "note"),
        ("1.2", "1.1", "plan"),
        ("1.3", "1.2", "note"),
    ):
        content = {"type": type_, "body": None}
        graph.add(Node(id_, parent, NodeKind.CUSTOM, content=content))
    found = {type_: [node.id for node in graph.custom(type_)] for type_ in (None, "note", "x")}
    assert found == {None: ["1.1", "1.2", "1.3"], "note": ["1.1", "1.3"], "x": []}
    assert words(graph.messages()) == ["words of 1.0"]

    graph.move("1.1")
    assert [node.id for node in graph.custom()] == ["1.1"]


def framed(*names):
    """A graph of one frame for each name; None: a frame without a name."""
    graph, parent = Graph(), None
    for n, name in enumerate(names, 1):
        content = {"reason": "reset"} if name is None else {"reason": "reset", "name": name}
        graph.add(Node(f"{n}.0", parent, NodeKind.FRAME, content=content))
        parent = f"{n}.0"
    return graph


@pytest.mark.parametrize(
    ("named", "id_"),
    [
        ("1.0", "1.0"),
        ("draft", "3.0"),
        ("2.0", "2.0"),
        ("initial", "initial"),
    ],
    ids=["an id", "the newest of a name", "without a name", "the first"],
)
def test_a_frame_is_found_by_its_id_or_name(named, id_):
    assert framed("draft", None, "draft").find_frame(named).id == id_


def test_an_id_is_found_before_a_name():
    """A later frame that is named like the id of an earlier one does not hide it."""
    assert framed("draft", "1.0").find_frame("1.0").name == "draft"


def test_a_frame_that_is_not_there_is_unknown():
    with pytest.raises(UnknownFrame) as refused:
        framed("draft", None).find_frame("final")
    assert (refused.value.frame, refused.value.names) == ("final", ["initial", "draft", "2.0"])
