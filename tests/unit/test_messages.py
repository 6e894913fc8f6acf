"""Messages and hints: their commands are complete and name what the caller named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import everhold
from everhold import errors
from everhold.core.query import KINDS
from everhold.mcp import render
from everhold.mcp.tools import TOOLS
from tests.failures import collect_failures
from tests.unit.core.test_errors import LEAVES, made

SOURCE = Path(everhold.__file__).parent
#: A command in a text, up to the end of the code or of the sentence.
COMMAND = re.compile(r"everhold [a-z][a-z-]*(?: [^`;\n]*)?")
#: What a person would have to fill in: SESSION, FILE.py:NAME, --at N, name=…
PLACEHOLDER = re.compile(r"…|\b[A-Z][A-Z_]+\b|\b[A-Z]+\.[a-z]+:|(?<=[ =])[A-Z]\b")


def find_placeholder(text: str) -> str | None:
    """The first command in a text that cannot be typed as it stands."""
    for command in COMMAND.findall(text):
        if PLACEHOLDER.search(re.sub(r"'[^']*'", "''", command)):
            return command
    return None


def list_messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of a module with their lines: not docstrings, and not the help of commands."""
    hidden = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr):
                hidden.add(id(first.value))
        if isinstance(node, ast.keyword) and node.arg in ("help", "metavar", "epilog"):
            hidden |= {id(part) for part in ast.walk(node.value)}
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [str(getattr(part, "value", "")) for part in node.values]
            names = [
                part if isinstance(one, ast.Constant) else "x"
                for one, part in zip(node.values, parts, strict=True)
            ]
            yield node.lineno, "".join(names)


def test_a_placeholder_is_found():
    """The check can fail."""
    for text in (
        "everhold retry SESSION",
        "See: everhold fork x --at N",
        "Say `everhold answer k VALUE --query q-0`.",
        "everhold run shop.py:refund order=…",
        "everhold trigger add paid FILE.py:PROGRAM",
    ):
        assert find_placeholder(text), text
    for text in (
        "everhold retry 'BATCH 1'",
        "Run `everhold db verify`; then ask the SESSION.",
        "everhold run refund order=7",
    ):
        assert find_placeholder(text) is None, text


def test_the_texts_of_a_module_are_all_read():
    """Also those that are composed; docstrings and help are not messages."""
    code = "'''Doc.'''\nx = f\"everhold fork {y} --at N\"\nz = g(\"a\", help=\"b\")\n"
    assert [text for _, text in list_messages(ast.parse(code))] == ["everhold fork x --at N", "a"]


def test_no_message_has_a_command_to_fill_in():
    """All texts of the code, but docstrings and the help of commands."""
    with collect_failures() as row:
        for file in sorted(SOURCE.rglob("*.py")):
            for line, text in list_messages(ast.parse(file.read_text())):
                with row(f"{file.relative_to(SOURCE)}:{line}"):
                    assert find_placeholder(text) is None


def test_the_hint_of_no_error_has_a_command_to_fill_in():
    """As it is raised, and of its class; nor has its hint an ellipsis or a word to replace."""
    with collect_failures() as row:
        for leaf in LEAVES:
            for hint in (leaf.hint, made(leaf).hint):
                with row(leaf.__name__):
                    assert find_placeholder(hint) is None
                    assert "…" not in hint and "SESSION" not in hint


def test_no_answer_of_a_kind_has_a_command_to_fill_in():
    """What `explain` tells of each kind of question."""
    words = {"session": "k", "id": "q-0", "signal": "go", "child": "s-1"}
    with collect_failures() as row:
        for kind, facts in KINDS.items():
            with row(kind):
                move = facts.move.format_map(words)
                assert find_placeholder(move) is None
                assert "{" not in re.sub(r"'\{.*\}'", "", move)


#: Commands that a tool of the MCP server does, too.
DONE_BY_TOOLS = ("retry", "explain", "show", "sessions", "answer", "fork", "run")


def test_over_mcp_hints_name_tools_where_tools_do_it():
    """A model has no shell; what only a person can do stays a command."""
    names = {tool.name for tool in TOOLS}
    with collect_failures() as row:
        for leaf in LEAVES:
            with row(leaf.__name__):
                hint = render.render_error(made(leaf), " -d x.db")["hint"]
                commands = re.findall(r"everhold ([a-z]+)", hint)
                assert not set(commands) & set(DONE_BY_TOOLS)
                tools = re.findall(r"tool `(\w+)`", hint)
                assert set(tools) <= names


def test_over_mcp_a_hint_names_the_session():
    """Nothing is left to look up: the tool, and the id of the session."""
    ended = errors.SessionEnded("s-1", "failed", "sent input")
    assert render.render_error(ended, " -d x.db")["hint"] == (
        "Retry it first: the tool `retry`, session_id s-1"
    )
    unknown = errors.UnknownQuery("s-1", "q-9")
    assert "with session_id 's-1'" in render.render_error(unknown)["hint"]


def test_an_error_names_its_session_as_the_caller_did():
    """In the message and in the command of the hint; the fact stays."""
    error = errors.NoOpenQuery("s-1", "completed")
    errors.name_session(error, "order 7")
    assert str(error) == "session 'order 7' is completed and has no open question"
    assert error.hint == "See what was answered: everhold show 'order 7'"
    assert error.session_id == "s-1"


def test_an_error_about_a_key_keeps_the_id_that_the_key_has():
    error = errors.KeyConflict("k", "s-1", "arguments")
    errors.name_session(error, "k")
    assert str(error) == "key 'k' was already used for session 's-1' with other arguments"
