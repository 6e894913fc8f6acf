"""The algocline profile as its hosts meet it: a table of calls over stdio, an old home, kills
between any two calls.
"""

import asyncio
import json
import sqlite3
import time

import pytest
from mcp import Client

import everhold
from everhold.mcp import make_front
from everhold.mcp.algocline.alc_wire import describe_alc_tool
from everhold.mcp.algocline.server import TOOLS
from everhold.programs.lua.program import LuaProgram
from tests.e2e import algocline_files as files
from tests.e2e import algocline_table as table
from tests.e2e.algocline_harness import House, ProtocolError
from tests.e2e.algocline_table import Forbidden, Json, Pretty, Refused, Row, Text
from tests.unit.packages.lua.making import committed, package

ROWS = [*table.SESSIONS, *files.LOGS, *files.PACKAGES]


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.close()


class Book:
    """What rows have kept, and how names in braces are filled in."""

    def __init__(self, house):
        self.kept = {
            name: str(getattr(house, name)) for name in ("home", "project", "user", "base")
        }

    def filled(self, value):
        match value:
            case str():
                for name, word in self.kept.items():
                    value = value.replace(f"{{{name}}}", word)
                return value
            case dict():
                return {self.filled(key): self.filled(one) for key, one in value.items()}
            case list():
                return [self.filled(one) for one in value]
        return value


def differs(expected, found, path="$"):
    """Where two values differ; nothing if they do not. `...` fits everything."""
    if expected is ...:
        return ""
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.keys() != found.keys():
            return f"{path} has the keys {sorted(found)}, not {sorted(expected)}"
        return next(
            filter(None, (differs(expected[key], found[key], f"{path}.{key}") for key in expected)),
            "",
        )
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return next(
            filter(None, (differs(one, two, f"{path}[{n}]") for n, (one, two) in pairs)), ""
        )
    return (
        ""
        if expected == found and type(expected) is type(found)
        else f"{path} is {found!r}, not {expected!r}"
    )


def check(wire, book, row):
    """Make one call and compare what comes back."""
    expected = row.expected
    try:
        refused, text = wire.call(row.tool, **book.filled(row.arguments))
    except ProtocolError as error:
        assert isinstance(expected, Forbidden), f"{row}: {error}"
        assert error.code == expected.code and expected.words in error.message, (
            f"{row}: {error.code} {error}"
        )
        return
    assert not isinstance(expected, Forbidden), f"{row}: {text}"
    assert refused == isinstance(expected, Refused), f"{row}: {text}"
    if isinstance(expected, Text | Refused):
        assert expected.text is ... or text == book.filled(expected.text), row
        return
    value = json.loads(text)
    shape = {"indent": 2} if isinstance(expected, Pretty) else {"separators": (",", ":")}
    # the files of others have their own shape
    if row.tool != "alc_log_view" or book.kept.get("one", "") in text:
        assert text == json.dumps(value, sort_keys=True, ensure_ascii=False, **shape), row
    difference = differs(book.filled(expected.value), value)
    assert not difference, f"{row.tool} {row.arguments}: {difference}"
    if row.keep:
        book.kept[row.keep] = value["session_id"]


@pytest.mark.timeout(600)
def test_the_table(house):
    """Every call gives what the table says, on one server that writes nothing but the protocol."""
    assert len(ROWS) + len(files.RESOURCES) >= 80
    assert {row.tool for row in ROWS} >= {f"alc_{name}" for name in ALL}
    house.everhold("import", "--algocline", str(house.home))
    wire, book = house.serve(), Book(house)
    for row in ROWS:
        check(wire, book, row)
    for uri, kind, words in files.RESOURCES:
        told = wire.ask("resources/read", {"uri": book.filled(uri)})
        if isinstance(kind, int):
            assert told["error"]["code"] == kind and words in told["error"]["message"], (uri, told)
        else:
            (page,) = told["result"]["contents"]
            assert page["mimeType"] == kind and words in page["text"], (uri, page)
    out, err = wire.close()
    assert out == b""
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in wire.lines)
    assert "Traceback" not in err


ALL = (
    *(
        "run",
        "continue",
        "advice",
        "status",
        "note",
        "log_view",
        "stats",
        "info",
        "init",
        "update",
        "migrate",
    ),
    *(
        f"pkg_{name}"
        for name in ("link", "unlink", "list", "install", "remove", "repair", "doctor", "scaffold")
    ),
)


def test_the_server_says_what_it_has(house):
    """The tools as they are declared, two resources, seven templates, and a list of no prompts."""
    wire = house.serve()
    told = wire.ask("tools/list")["result"]["tools"]
    assert told == [describe_alc_tool(tool) for tool in TOOLS] and len(told) == 42
    assert wire.hello["capabilities"].keys() >= {"tools", "resources"}
    assert wire.ask("prompts/list")["result"]["prompts"] == []
    assert len(wire.ask("resources/list")["result"]["resources"]) == 2
    assert len(wire.ask("resources/templates/list")["result"]["resourceTemplates"]) == 7
    wire.close()


def test_optional_parameters_may_be_null(house):
    """Algocline declares them as nullable; null counts as absent."""
    wire = house.serve()
    asked = wire.json("alc_run", code="return alc.llm('q')", code_file=None, ctx=None)
    told = wire.json(
        "alc_continue",
        session_id=asked["session_id"],
        response="a",
        query_id=None,
        responses=None,
        usage=None,
    )
    assert told["result"] == "a"
    assert wire.json("alc_status", session_id=None, pending_filter=None)["active_sessions"] == 0
    wire.close()


def test_what_a_person_cancelled_is_told_to_who_answers_it(house):
    """alc_continue returns the status "cancelled", as often as it is called; it is not an error."""
    wire = house.serve()
    session = wire.json("alc_run", code="return alc.llm('x')")["session_id"]
    house.everhold("cancel", session, "--reason", "enough")
    told = wire.json("alc_continue", session_id=session, response="4")
    assert (told.keys(), told["status"]) == ({"status", "stats"}, "cancelled")
    several = [{"query_id": "q-0", "response": "4"}]
    assert wire.json("alc_continue", session_id=session, responses=several) == told
    wire.close()


def test_removing_by_a_tool_deletes_no_file(house):
    """Neither of the user's packages nor of the project's: only records go."""
    wire = house.serve()
    wire.json("alc_init")
    made = wire.json("alc_pkg_scaffold", name="mine", target_dir=str(house.base / "src"))
    folder = str(house.base / "src" / "mine")
    assert made["path"] == f"{folder}/init.lua"
    for _ in range(2):  # the second time it is there, and listed in the same way
        assert wire.json("alc_pkg_install", url=folder)["installed"] == ["mine"]
    kept = house.home / "packages" / "mine"
    told = wire.json("alc_pkg_remove", name="mine", scope="all")
    assert (told["project_removed"], told["global_removed"]) == (True, True)
    assert (kept / "init.lua").is_file()
    assert "mine" not in json.loads((house.home / "installed.json").read_text())["packages"]
    wire.json("alc_pkg_install", url=folder)
    assert wire.json("alc_pkg_remove", name="mine", scope="global")["kept"] == str(kept)
    assert (kept / "init.lua").is_file()
    wire.close()


# ---- nothing is lost

FLOW = [
    Row("alc_run", {"code": table.ASK}, table.asks("First?"), keep="one"),
    Row("alc_status", {"session_id": "{one}"}, Pretty(table.snapshot())),
    Row("alc_continue", {"session_id": "{one}", "response": "A"}, table.asks("Then, after A?")),
    Row(
        "alc_continue",
        {"session_id": "{one}", "response": "B", "query_id": "q-0"},
        table.done(["A", "B"]),
    ),
    Row(
        "alc_continue",
        {"session_id": "{one}", "response": "B", "query_id": "q-0"},
        table.done(["A", "B"]),
    ),
    Row(
        "alc_run",
        {"code": table.BATCH},
        Json({"status": "needs_response", "session_id": ..., "queries": ...}),
        keep="m",
    ),
    Row(
        "alc_continue",
        {"session_id": "{m}", "query_id": "q-1", "response": "Y"},
        Text('{"remaining":2,"status":"accepted"}'),
    ),
    Row(
        "alc_continue",
        {"session_id": "{m}", "query_id": "q-1", "response": "?"},
        Refused("Continue failed: already responded to query_id: q-1"),
    ),
    Row("alc_continue", table.answer("m", ("q-2", "Z"), ("q-0", "X")), table.done(["X", "Y", "Z"])),
    Row(
        "alc_run",
        {
            "code": "return alc.fork({ 'twice', 'careful' }, ctx)[1].result.result",
            "ctx": {"task": "t"},
        },
        Json({"status": "needs_response", "session_id": ..., "queries": ...}),
        keep="f",
    ),
    Row(
        "alc_continue",
        {"session_id": "{f}", "query_id": "f-0-0", "response": "d"},
        Json(
            {
                "status": "needs_response",
                "session_id": ...,
                "queries": [
                    {"id": name, "prompt": ..., "system": ..., "max_tokens": ...}
                    for name in ("f-1-0", "f-1-1", "f-1-2", "f-0-1")
                ],
            }
        ),
    ),
    Row(
        "alc_continue",
        table.answer("f", ("f-0-1", "D"), ("f-1-0", "a"), ("f-1-1", "a"), ("f-1-2", "a")),
        table.done("D"),
    ),
    Row(
        "alc_note",
        {"session_id": "{f}", "content": "kept"},
        Json({"session_id": "{f}", "notes_count": 1}),
    ),
    Row("alc_stats", {}, Json({"total_sessions": 5, "strategies": ..., "card_sinks": []})),
    Row(
        "alc_init",
        {},
        Json(
            {
                "created": "{project}/alc.toml",
                "gitignore_path": ...,
                "gitignore_updated": True,
                "types_path": ...,
                "alc_shapes_types_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_scaffold",
        {"name": "fresh", "target_dir": "{project}/own"},
        Json({"status": "ok", "path": ..., "bytes_written": ..., "test_path": ...}),
    ),
    Row(
        "alc_pkg_link",
        {"path": "{project}/own", "scope": "variant"},
        Json(
            {
                "linked": ["fresh"],
                "mode": "collection",
                "scope": "variant",
                "targets": ...,
                "alc_local_toml": ...,
            }
        ),
    ),
    Row("alc_advice", {"strategy": "fresh", "task": "t"}, table.asks(...), keep="fresh"),
    Row(
        "alc_continue",
        {"session_id": "{fresh}", "response": "d"},
        table.asks("Improve this answer.\n\nd"),
    ),
    Row(
        "alc_continue",
        {"session_id": "{fresh}", "response": "D"},
        table.done({"task": "t", "result": "D"}),
    ),
]


#: Places in the flow after which something else is half done: a question, a fork, a package.
HALF_DONE = (2, 10, 17)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "places", [HALF_DONE, pytest.param(range(len(FLOW)), marks=pytest.mark.soak)], ids=len
)
def test_a_server_that_is_killed_between_any_two_calls_is_not_missed(house, places):
    """Each call of a flow after one of these places goes to a new server; the one before was
    killed.
    """
    book, wire = Book(house), house.serve()
    for place, row in enumerate(FLOW):
        check(wire, book, row)
        if place in places:
            wire.kill()
            wire = house.serve()
    wire.kill()


def test_an_answer_whose_result_was_lost_can_be_sent_again(house):
    """After a kill the same answer returns where the session stands; where it was heard of, it is
    the next answer.
    """
    wire = house.serve()
    session = wire.json("alc_run", code=table.ASK)["session_id"]
    wire.begin(
        "tools/call",
        {"name": "alc_continue", "arguments": {"session_id": session, "response": "yes"}},
    )
    database = sqlite3.connect(house.base / "app.db")
    while database.execute("select count(*) from answers_v").fetchone() == (0,):
        time.sleep(0.02)
    database.close()
    wire.kill()
    wire = house.serve()
    assert (
        wire.json("alc_continue", session_id=session, response="yes")["prompt"]
        == "Then, after yes?"
    )
    assert wire.json("alc_continue", session_id=session, response="yes")["result"] == ["yes", "yes"]
    wire.close()


async def test_a_log_that_nobody_wrote_is_written_later_and_a_deleted_one_is_not(house):
    """A session that ends without its server: killed before it could write, or answered at another
    front.
    """
    wire = house.serve()
    session = wire.json("alc_run", code="return alc.llm('q')")["session_id"]
    async with everhold.open(house.base / "app.db") as runtime:
        assert (await runtime.answer(session, "a")).state == "completed"
    file = house.home / "logs" / f"{session}.json"
    assert not file.exists()
    listed = wire.json("alc_log_view")["sessions"]
    assert [one["session_id"] for one in listed][:1] == [session] and len(listed) == 3
    file.unlink()
    file.with_suffix(".meta.json").unlink()
    assert len(wire.json("alc_log_view")["sessions"]) == 2
    wire.close()


def test_what_was_begun_without_logs_never_gets_one(house):
    wire = house.serve(ALC_LOG_LEVEL="off")
    session = wire.json("alc_run", code="return alc.llm('q')")["session_id"]
    wire.kill()
    wire = house.serve()
    assert wire.json("alc_continue", session_id=session, response="a")["result"] == "a"
    assert len(wire.json("alc_log_view")["sessions"]) == 2
    wire.close()


class FourHoursAgo:
    def now(self):
        return time.time() - 4 * 3600

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


async def test_what_is_idle_is_kept(house):
    """After four hours, at which algocline would have dropped it, a session goes on."""
    async with everhold.open(house.base / "app.db", clock=FourHoursAgo()) as runtime:
        session = (await runtime.start(LuaProgram.text(table.ASK))).session_id
    wire = house.serve()
    (shown,) = wire.json("alc_status")["sessions"]
    assert shown["metrics"]["elapsed_ms"] >= 4 * 3600 * 1000
    assert wire.json("alc_continue", session_id=session, response="A")["prompt"] == "Then, after A?"
    wire.close()


# ---- many at once


def test_increments_of_many_sessions_at_once_are_all_counted(house):
    code = "local said = alc.llm('go?') alc.state.incr('n', 2) alc.state.incr('n') return said"
    wire = house.serve()
    numbers = wire.begin("tools/call", *[{"name": "alc_run", "arguments": {"code": code}}] * 20)
    started = [json.loads(told["result"]["content"][0]["text"]) for told in wire.heard(*numbers)]
    said = [{"session_id": one["session_id"], "response": "r"} for one in started]
    numbers = wire.begin(
        "tools/call", *({"name": "alc_continue", "arguments": one} for one in said)
    )
    ended = [json.loads(told["result"]["content"][0]["text"]) for told in wire.heard(*numbers)]
    assert [one["status"] for one in ended] == ["completed"] * 20
    assert wire.json("alc_run", code="return alc.state.get('n')")["result"] == 60.0
    wire.close()


def test_of_two_answers_at_once_one_is_taken(house):
    """Both were for the same question: the other is told so, and does not land on the next one."""
    wire = house.serve()
    for _ in range(5):
        session = wire.json("alc_run", code=table.ASK)["session_id"]
        numbers = wire.begin(
            "tools/call",
            *(
                {"name": "alc_continue", "arguments": {"session_id": session, "response": word}}
                for word in ("one", "two")
            ),
        )
        first, second = (told["result"]["content"][0]["text"] for told in wire.heard(*numbers))
        assert json.loads(first)["prompt"] == "Then, after one?"
        assert second == "Continue failed: already responded to query_id: q-0"
    wire.close()


async def test_an_answer_to_a_question_that_somebody_else_answered_does_not_land_on_the_next(house):
    wire = house.serve()
    session = wire.json("alc_run", code=table.ASK)["session_id"]
    async with everhold.open(house.base / "app.db") as runtime:
        await runtime.answer(session, "somebody's")
    refused, text = wire.call("alc_continue", session_id=session, response="mine")
    assert (refused, text) == (True, "Continue failed: already responded to query_id: q-0")
    assert wire.json("alc_status", pending_filter="full")["sessions"][0]["pending"][0][
        "prompt"
    ] == ("Then, after somebody's?")
    assert wire.json("alc_continue", session_id=session, response="mine")["result"] == [
        "somebody's",
        "mine",
    ]
    wire.close()


def test_printing_never_reaches_the_wire(house):
    """Also in the children of a fork and at the top of a package: it is in the session's log."""
    loud = house.home / "packages" / "loud"
    loud.mkdir()
    (loud / "init.lua").write_text(
        "print('at the top')\nreturn { run = function(ctx) print('in a child') return { result ="
        " alc.llm('q') } end }\n"
    )
    wire = house.serve()
    code = (
        "print('one', 2, '\\n') alc.log('warn', 'careful') return alc.fork({ 'loud' },"
        " {})[1].result.result"
    )
    told = wire.json("alc_run", code=code)
    shown = wire.json("alc_status", session_id=told["session_id"])
    logs = [
        (one["level"], one["source"], one["message"]) for one in shown["metrics"]["recent_logs"]
    ]
    assert ("info", "alc.lua.print", "one\t2\t") in logs
    assert ("warn", "alc.log", "careful") in logs
    assert {message for _, _, message in logs} >= {"at the top", "in a child"}
    assert wire.json("alc_continue", session_id=told["session_id"], response="r")["result"] == "r"
    assert "loud" in [one["name"] for one in wire.json("alc_pkg_list")["packages"]]
    out, _ = wire.close()
    assert out == b"" and all(line.startswith(b'{"') for line in wire.lines)


# ---- projects and settings


def test_a_variable_that_does_nothing_here_is_named(house):
    """On standard error, when the server starts; the wire is not disturbed."""
    house.env["ALC_CARD_SINKS"] = "here"
    wire = house.serve()
    assert wire.json("alc_run", code="return 1")["result"] == 1
    out, errors = wire.close()
    assert out == b"" and errors.count("ALC_CARD_SINKS: 'here' is not a sink") == 1


def test_a_session_finds_the_packages_of_its_project_wherever_it_goes_on(house):
    """A project that only the call names: its packages are required after the server was killed,
    too.
    """
    other = house.base / "other"
    (other / "own").mkdir(parents=True)
    (other / "own" / "init.lua").write_text(
        "return { name = function() return 'of the project' end }\n"
    )
    (other / "alc.toml").write_text("[packages]\n")
    (other / "alc.local.toml").write_text('[packages.own]\npath = "own"\n')
    wire = house.serve()
    code = "local a = alc.llm('q') return { a, require('own').name() }"
    session = wire.json("alc_run", code=code, project_root=str(other))["session_id"]
    elsewhere = wire.json("alc_run", code="return (pcall(require, 'own'))")
    assert elsewhere["result"] is False
    wire.kill()
    wire = house.serve()
    assert wire.json("alc_continue", session_id=session, response="r")["result"] == [
        "r",
        "of the project",
    ]
    (other / "alc.local.toml").write_text('[packages.own]\npath = "nowhere"\n')
    told = wire.json("alc_run", code="return 1", project_root=str(other))
    assert told["lib_path_warnings"] == [f"{other / 'nowhere'} does not exist"]
    wire.close()


def test_advice_finds_what_a_project_needs_under_its_own_name(house):
    """A path, a version and a revision, each of several files; and what is installed is nearer than
    what we bring.
    """
    parts = {"part": "return { says = function() return 'whole' end }\n"}
    run = "function M.run(ctx) return M.meta.version .. ' ' .. require('{name}.part').says() end"
    for name, version in (("near", "1.0"), ("fixed", "1.0"), ("far", "1.0"), ("cot", "9.9")):
        folder = package(house.base / "src" / f"{name}-source", version, **parts)
        code = (
            (folder / "init.lua")
            .read_text()
            .replace("function M.run", run.format(name=name) + "\nfunction M.other")
        )
        (folder / "init.lua").write_text(code)
    source = house.base / "src"
    committed(source / "far-source")
    wire = house.serve()
    for name in ("fixed", "cot"):
        assert wire.json("alc_pkg_install", url=str(source / f"{name}-source"), name=name)[
            "installed"
        ] == [name]
    (house.project / "alc.toml").write_text(
        '# what we need\n[packages]\nnear = { path = "../src/near-source" }  # beside us\nfixed'
        ' = "1.0"\n'
        f'far = {{ git = "file://{source / "far-source"}" }}\n'
    )
    assert wire.json("alc_update")["resolved"] == 3
    for name in ("fixed", "far"):
        main = source / f"{name}-source" / "init.lua"
        main.write_text(main.read_text().replace('version = "1.0"', 'version = "2.0"'))
    committed(source / "far-source")
    told = wire.json("alc_pkg_install", url=str(source / "fixed-source"), name="fixed")
    assert (told["installed"], told["replaced"]) == (["fixed"], ["fixed"])
    for name, version in (("near", "1.0"), ("fixed", "1.0"), ("far", "1.0"), ("cot", "9.9")):
        assert wire.json("alc_advice", strategy=name, task="t")["result"] == f"{version} whole"
    wire.close()


def test_what_is_installed_first_is_found_without_a_restart(house):
    """A home that is not there when the server starts."""
    home = house.base / "new-home"
    wire = house.serve(ALC_HOME=str(home))
    assert "packages_dir" not in wire.json("alc_info")
    refused, text = wire.call("alc_advice", strategy="debate")
    assert (refused, text) == (
        True,
        "Package 'debate' not found; alc_pkg_install installs packages",
    )
    repository = package(house.base / "debate", says="found")
    commit = committed(repository)
    told = wire.json("alc_pkg_install", url=f"file://{repository}")
    assert (told["installed"], told["mode"], told["rev"]) == (["debate"], "single", commit)
    assert wire.json("alc_advice", strategy="debate")["result"] == "found"
    assert wire.json("alc_info")["packages_dir"] == str(home / "packages")
    wire.close()


def test_variables_are_heeded(house):
    """Each variable of algocline; and our own folder of packages."""
    more, logs = house.base / "more", house.base / "elsewhere"
    (house.project / "packages" / "near").mkdir(parents=True)
    (house.project / "packages" / "near" / "init.lua").write_text(
        "return { run = function() return 'near' end }\n"
    )
    (more / "tiny").mkdir(parents=True)
    (more / "tiny" / "init.lua").write_text(
        "return { run = function(ctx) return alc.llm('abcdefgh') end }\n"
    )
    wire = house.serve(
        ALC_PACKAGES_PATH=str(more), ALC_LOG_DIR=str(logs), ALC_PROMPT_PREVIEW_CHARS="3"
    )
    session = wire.json("alc_advice", strategy="tiny")["session_id"]
    shown = wire.json("alc_status", session_id=session, pending_filter="preview")
    assert shown["pending"][0]["prompt_preview"] == "abc"
    assert wire.json("alc_continue", session_id=session, response="r")["result"] == "r"
    assert sorted(file.name for file in logs.glob("s-*")) == [
        f"{session}.json",
        f"{session}.meta.json",
    ]
    assert wire.json("alc_advice", strategy="near")["result"] == "near"
    info = wire.json("alc_info")
    assert info["log_dir"] == {"resolved": str(logs), "source": "ALC_LOG_DIR"}
    assert info["search_paths"] == [
        {"path": str(house.project / "packages"), "source": "settings"},
        {"path": str(more), "source": "ALC_PACKAGES_PATH"},
        {"path": str(house.home / "packages"), "source": "default"},
        {"path": str(house.user / "data" / "everhold" / "packages"), "source": "everhold"},
    ]
    listed = {one["name"]: one["active"] for one in wire.json("alc_pkg_list")["packages"]}
    assert listed == {"near": True, "tiny": True, "careful": True, "twice": True}
    wire.close()
    (house.base / "shop" / "own").mkdir(parents=True)
    (house.base / "shop" / "own" / "init.lua").write_text(
        "return { run = function() return 'own' end }\n"
    )
    (house.base / "shop" / "alc.local.toml").write_text('[packages.own]\npath = "own"\n')
    (house.home / "packages" / "tiny").symlink_to(more / "tiny")
    wire = house.serve(
        ALC_LOG_LEVEL="off", ALC_PROJECT_ROOT=str(house.base / "shop"), ALC_PKG_STRICT="1"
    )
    assert wire.json("alc_info")["log_enabled"] is False
    assert wire.json("alc_advice", strategy="own")["result"] == "own"
    assert wire.call("alc_advice", strategy="tiny")[0]  # a link that leads out of the folder
    wire.close()


def test_a_log_that_cannot_be_written_is_a_warning(house):
    """The result comes all the same."""
    wire = house.serve()
    session = wire.json("alc_run", code="return alc.llm('q')")["session_id"]
    (house.home / "logs" / f"{session}.meta.json").mkdir()
    told = wire.json("alc_continue", session_id=session, response="r")
    assert told["result"] == "r"
    assert f"{session}.meta.json" in told["transcript_warning"]
    wire.close()


# ---- people

REFUND = """
import everhold

@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    return "paid" if await ctx.approval(f"Refund {order}? {reason}") else "declined"
"""


def test_a_tool_never_answers_for_a_person(house):
    """A program that asks a person waits for the person; the result says what to type, and is there
    afterwards.
    """
    (house.project / "shop.py").write_text(REFUND)
    (house.project / "everhold.toml").write_text('programs = ["shop.py"]\n')
    wire = house.serve()
    told = wire.json("alc_advice", strategy="refund", opts={"order": "7"})
    session = told["session_id"]
    told = wire.json("alc_continue", session_id=session, response="broken")
    assert told["status"] == "waiting"
    (asked,) = told["for_people"]
    assert (
        asked["kind"] == "approval"
        and session in asked["command"]
        and asked["command"] in told["next"]
    )
    for name in (asked["id"], "q-0", "q-1"):
        refused, text = wire.call(
            "alc_continue", session_id=session, response="true", query_id=name
        )
        assert refused and text.startswith("Continue failed: unknown query_id"), text
    refused, text = wire.call("alc_continue", session_id=session, response="true")
    assert (refused, text) == (True, "Continue failed: no pending queries")
    shown = wire.json("alc_status", session_id=session, pending_filter="meta")
    assert shown["phase"] == "paused" and shown["pending"] == [
        {"kind": "approval", "query_id": "q-1", "max_tokens": 1024}
    ]
    house.everhold("answer", session, "--as", "me", "--yes", folder=house.project)
    assert wire.json("alc_status", session_id=session)["result"] == "paid"
    wire.close()


# ---- what was left


def test_what_algocline_left_is_taken_over_once(house):
    """A dry run changes nothing; then all of it is taken; then nothing is left to take, and what
    changed here stays.
    """
    home = str(house.home)
    dry = house.everhold("import", "--algocline", home, "--dry-run")
    assert (len(dry["values"]["taken"]), len(dry["cards"]["taken"]), dry["aliases"]["taken"]) == (
        4,
        2,
        ["best"],
    )
    assert dry["session_id"] is None and not (house.base / "app.db").exists()
    done = house.everhold("import", "--algocline", home)
    assert done["values"] == dry["values"] and done["cards"] == dry["cards"] and done["logs"] == 2
    wire = house.serve()
    wire.json("alc_run", code="alc.state.set('runs', 1)")
    (house.home / "state" / "late.json").write_text('{"x": 1}')
    (house.home / "state" / "broken.json").write_text("{")
    again = house.everhold("import", "--algocline", home)
    assert again["values"] == {"taken": ["late/x"], "skipped": 4}
    assert again["cards"] == {"taken": [], "skipped": 2}
    (problem,) = again["problems"]
    assert "broken.json" in problem
    assert wire.json("alc_run", code="return alc.state.get('runs')")["result"] == 1
    found = wire.json(
        "alc_run",
        code="return alc.card.find({ where = { stats = { pass_rate = { gte = 0.5 } } } })",
    )
    assert [card["pkg"] for card in found["result"]] == ["careful", "twice"]
    lineage = wire.json(
        "alc_run",
        code="return alc.card.lineage({ card_id = alc.card.get_by_alias('best').card_id })",
    )
    assert [node["pkg"] for node in lineage["result"]["nodes"]] == ["careful", "twice"]
    wire.close()


# ---- other ways in


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_of_any_protocol_gets_the_same(house, monkeypatch, mode):
    """In this process, with the official library: the newest protocol, and that of the
    handshake.
    """
    for name in ("ALC_HOME", "HOME", "XDG_DATA_HOME", "EVERHOLD_DATABASE_URL"):
        monkeypatch.setenv(name, house.env[name])
    monkeypatch.chdir(house.project)
    made = make_front(None, None, "algocline")
    try:
        async with Client(made.server(), mode=mode) as client:
            assert len((await client.list_tools()).tools) == 42
            told = await client.call_tool("alc_run", {"code": "return alc.llm('q')"})
            session = json.loads(told.content[0].text)["session_id"]
            told = await client.call_tool("alc_continue", {"session_id": session, "response": "a"})
            assert (
                told.structured_content is None
                and json.loads(told.content[0].text)["result"] == "a"
            )
            refused = await client.call_tool("alc_continue", {"session_id": "s-0", "response": "a"})
            assert refused.is_error
            assert refused.meta["everhold/code"] == "unknown_session"
            assert (
                refused.meta["everhold/hint"]
                == "alc_status lists the sessions that have not ended."
            )
    finally:
        await made.close()
