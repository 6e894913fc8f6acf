"""What commands show if the code of a user fails."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli, forget_programs

BROKEN = """import everhold


def parse(answer):
    return answer["choices"]


@everhold.program
async def direct(ctx: everhold.Context) -> str:
    await ctx.llm("Anything?")
    return parse({})


@everhold.program
async def called(ctx: everhold.Context) -> str:
    return await ctx.call(parse, {})
"""
FRAME = '  File "{}", line 5, in parse\n    return answer["choices"]\n'


@pytest.fixture
def broken(cli: Cli) -> Cli:
    Path("broken.py").write_text(BROKEN)
    Path("said.json").write_text('["no"]')
    return cli


def frame() -> str:
    return FRAME.format(Path("broken.py").resolve())


def test_run_shows_the_frames_and_the_next_command(broken: Cli) -> None:
    """As Python does, and then the line with the code and what to do."""
    said = broken("run", "broken.py:direct", "--key", "k 1", "--answers", "said.json")
    assert said.code == 1
    lines = said.err.splitlines()
    assert lines[0] == "failed · k 1 · KeyError: 'choices'"
    assert lines[1] == "Traceback (most recent call last):"
    assert frame() in said.err
    assert lines[-2] == "KeyError: 'choices'"
    assert lines[-1] == "Fix the program, then: everhold retry 'k 1'"


def test_show_and_explain_show_them_later(broken: Cli) -> None:
    """Another command reads what was recorded, also if the file is gone by then."""
    broken("run", "broken.py:called", "--key", "k")
    there = frame()
    Path("broken.py").unlink()
    forget_programs("broken")
    short = broken("show", "k").out
    assert "error: KeyError: 'choices' (broken.py, l" in " ".join(short.split())
    assert there in short
    full = broken("show", "k", "--full").out
    assert full.count(there) == 2  # with the answer, and with the outcome
    assert "  " + there.replace("\n  ", "\n    ") in broken("explain", "k").out


def test_json_has_them_as_data(broken: Cli) -> None:
    """The error keeps its text; beside it stands what Python raised."""
    broken("run", "broken.py:called", "--key", "k")
    for told in (
        broken("show", "k", "--json").json["status"],
        broken("explain", "k", "--json").json,
    ):
        raised = told["exception"]
        assert (raised["type"], raised["cause"]["type"]) == ("AnswerFailed", "KeyError")
        last = raised["cause"]["frames"][-1]
        assert (last["line"], last["function"]) == (5, "parse")
        assert last["code"] == 'return answer["choices"]'
    status = broken("run", "broken.py:called", "--key", "k", "--json").json
    assert status["error"] == "AnswerFailed: KeyError: 'choices'"
    assert status["exception"]["cause"]["message"] == "'choices'"


SYNTAX = "    return f(1))\n               ^\nSyntaxError: unmatched ')'\n"


def spoil() -> None:
    """A syntax error in a program that has a session."""
    Path("broken.py").write_text("import everhold\n\nasync def direct(ctx):\n    return f(1))\n")
    forget_programs("broken")


def assert_shown(place: str, out: str) -> None:
    """The lines of a place, one after another, all with the same indent."""
    lines = out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.endswith(place.splitlines()[0]))
    indent = lines[first][: -len(place.splitlines()[0])]
    assert indent.strip() == ""
    assert lines[first : first + 4] == [indent + line for line in place.splitlines()]


@pytest.mark.process
def test_a_check_shows_a_syntax_error(broken: Cli) -> None:
    broken("run", "broken.py:direct", "--key", "k")
    spoil()
    place = f'  File "{Path("broken.py").resolve()}", line 4\n{SYNTAX}'
    assert_shown(place, broken("check").out)
    (told,) = broken("check", "--json").json["checked"]
    assert told["exception"]["type"] == "SyntaxError"


def test_a_syntax_error_is_shown_as_python_shows_it(broken: Cli) -> None:
    """File, line and mark, wherever the file is loaded; no frame of everhold."""
    broken("run", "broken.py:direct", "--key", "k")
    spoil()
    place = f'  File "{Path("broken.py").resolve()}", line 4\n{SYNTAX}'
    for command in (
        ("run", "broken.py:direct"),
        ("replay", "k"),
        ("worker", "broken.py:direct", "--once"),
    ):
        said = broken(*command)
        assert said.err.startswith(place + "error: "), command
        assert "Traceback" not in said.err
    for command in (("explain", "k"), ("worker", "--once")):
        assert_shown(place, broken(*command).out)


def test_a_module_that_fails_to_load_shows_its_frames(broken: Cli) -> None:
    """From the import to the line that raised; frames of the import system are left out."""
    Path("helper.py").write_text("def load():\n    return {}['rate']\n\n\nRATE = load()\n")
    Path("uses.py").write_text("import everhold\nimport helper\n")
    said = broken("run", "uses.py:p")
    assert said.code == 2
    shown = said.err.splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert [line.rpartition("/")[2] for line in shown if line.startswith("  File")] == [
        'uses.py", line 2, in <module>',
        'helper.py", line 5, in <module>',
        'helper.py", line 2, in load',
    ]
    assert shown[-2].endswith("[unknown_program]")
    told = broken("run", "uses.py:p", "--json").json
    assert told["exception"]["frames"][-1]["function"] == "load"


def test_a_worker_says_it_as_data(broken: Cli) -> None:
    broken("run", "broken.py:direct", "--key", "k")
    spoil()
    lines = broken("worker", "--once", "--json").out.splitlines()
    (cannot,) = [one for one in map(json.loads, lines) if one["event"] == "cannot"]
    assert cannot["exception"]["type"] == "SyntaxError"
    assert cannot["exception"]["frames"][-1]["mark"] == "           ^"


LUA = "local function inner(x)\n  return x.y.z\nend\nalc.llm('hi')\nreturn inner({}) .. ''\n"


@pytest.mark.process
def test_a_lua_program_is_shown_the_same_way(broken: Cli) -> None:
    Path("spoken.lua").write_text(LUA)
    said = broken("run", "spoken.lua", "--key", "k", "--answers", "said.json")
    assert said.err.splitlines()[:5] == [
        "failed · k · spoken.lua:2: attempt to index a nil value (field 'y')",
        "Traceback (most recent call last):",
        '  File "spoken.lua", line 5, in main chunk',
        "  File \"spoken.lua\", line 2, in local 'inner'",
        "LuaError: spoken.lua:2: attempt to index a nil value (field 'y')",
    ]


def test_a_mistake_names_what_was_typed(broken: Cli) -> None:
    """The key, not the id that it stands for; in the message and in the command."""
    broken("run", "broken.py:direct", "--key", "k 1", "--answers", "said.json")
    said = broken("send", "k 1", "hello")
    assert said.err.endswith("See what it waits for: everhold explain 'k 1'\n")
    said = broken("answer", "k 1", "hello", "-d", "shop.db")
    assert "session 'k 1' is failed and has no open question" in said.err
    assert said.err.endswith("everhold explain 'k 1' -d shop.db\n")


def test_json_has_commands_that_name_the_database(broken: Cli) -> None:
    """Also the hint of a status, which the wire does not know the database of."""
    run = broken("run", "broken.py:called", "--key", "k", "-d", "other.db", "--json").json
    assert run["hint"].endswith(": everhold explain k -d other.db")
    shown = broken("show", "k", "-d", "other.db", "--json").json
    assert shown["status"]["hint"] == run["hint"]
    moves = broken("explain", "k", "-d", "other.db", "--json").json["moves"]
    assert [move.rpartition(": ")[2] for move in moves] == [
        "everhold fork k --at 0 -d other.db",
        "everhold retry k -d other.db",
    ]
