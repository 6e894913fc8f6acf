"""What people type wrong, and what they are told: one line with a code, mostly a hint, never a
traceback.

Each row: what they type, the code, the exit code, and words of what they read. The shop has a
session `seven` that waits for an approval, `done` that was declined, and `broken` that failed.
"""

import os
import shlex
import sqlite3
from pathlib import Path

import pytest

from everhold.packages import find

from .conftest import Cli

NEWER = "PRAGMA user_version = 99"

MISTAKES = [
    # commands and options
    ("sesions", "usage", 2, "did you mean 'sessions'?"),
    ("frobnicate", "usage", 2, "no command 'frobnicate'"),
    ("sessions --stat paused", "usage", 2, "--state"),
    ("show", "usage", 2, "Missing argument 'SESSION'"),
    ("-d app.db sessions", "usage", 2, "Options belong after the command: everhold sessions"),
    ("run shop.py:refund --ordre 7", "usage", 2, "Did you mean '--order'?"),
    ("run shop.py:refund 7 --tims 2", "usage", 2, "It takes order: str, times: int = 1."),
    ("run shop.py:refund --order", "bad_arguments", 2, "--order needs a value"),
    ("run shop.py:refund 7 2 3", "bad_setting", 2, "'3' must look like name=value"),
    ("run shop.py:refund 7 -x", "usage", 2, "No such option '-x'"),
    ("run --order 7 shop.py:refund", "usage", 2, "No such option '--order'"),
    ("run -c seven order=8", "usage", 2, "'order=8' has no effect"),
    ("run shop.py:refund --labels x", "usage", 2, "Did you mean '--label'?"),
    ("run -c nobody", "unknown_session", 2, "no session 'nobody'"),
    ("sessions --older-than soon", "usage", 2, "write 90s, 15m, 12h, 30d or 2w"),
    ("sessions --older-than=-1d", "usage", 2, "'-1d' is not a duration"),
    ("run shop.py:refund order=7 --wait=-1", "usage", 2, "'-1' is not a duration; write 90s"),
    ("answer seven yes --wait=nan", "usage", 2, "'nan' is not a duration; write 90s"),
    ("retry seven --wait=-0.1", "usage", 2, "'-0.1' is not a duration; write 90s"),
    ("send seven hello --wait=-1", "usage", 2, "'-1' is not a duration; write 90s"),
    ("emit order.paid --wait=-1", "usage", 2, "'-1' is not a duration; write 90s"),
    ("watch seven --every=-1", "usage", 2, "'-1' is not a duration; write 90s"),
    ("run shop.py:refund order=7 --timeout=-1", "usage", 2, "'-1' is not a duration; write 90s"),
    ("sessions --limit 0", "usage", 2, "0 is not in the range x>=1"),
    ("inbox --limit -1", "usage", 2, "-1 is not in the range x>=1"),
    ("sessions --limit many", "usage", 2, "'many' is not a valid integer"),
    ("mcp install", "usage", 2, "Choose from: claude-code, claude-desktop"),
    ("db frob", "usage", 2, "No such command 'frob'"),
    ("export seven", "usage", 2, "--out FILE, or --as-test FOLDER"),
    ("export --as-test tests", "usage", 2, "--as-test needs exactly one SESSION"),
    ("sessions --state sleeping", "bad_setting", 2, "not one of running, paused"),
    ("sessions --label red", "bad_setting", 2, "must look like name=value"),
    ("inbox --kind letter", "bad_setting", 2, "'letter' is not one of llm"),
    # programs
    ("run", "usage", 2, "PROGRAM is missing"),
    ("run nothere.py:refund", "unknown_program", 2, "there is no file"),
    ("run shop.py", "unknown_program", 2, "Name a program in it: shop.py:refund, "),
    ("run shop", "unknown_program", 2, "shop.py is a file. Name a program in it: shop.py:refund, "),
    ("run jobs/shop.py", "unknown_program", 2, "there is no file"),
    ("run spoken", "unknown_program", 2, "Did you mean spoken.lua?"),
    ("run kept", "unknown_program", 2, "Did you mean ./kept?"),
    ("run nothere.py", "unknown_program", 2, "there is no file"),
    ("run shpo.py", "unknown_program", 2, "Did you mean shop.py?"),
    ("run ./shpo.py:refund order=7", "unknown_program", 2, "Did you mean shop.py:refund?"),
    ("run ./shop.py", "unknown_program", 2, "Name a program in it: ./shop.py:refund, "),
    ("run .//", "unknown_program", 2, "it is a folder without init.lua"),
    ("run refund order=7", "unknown_program", 2, "Did you mean shop.py:refund?"),
    ("programs refund", "unknown_program", 2, "Did you mean shop.py:refund?"),
    ("run broken", "unknown_program", 2, "to see it: everhold run broken.py"),
    ("chat shop.py:refund", "not_an_agent", 2, "everhold programs shop.py:refund"),
    ("send seven hello", "not_an_agent", 2, "See what it waits for: everhold explain seven"),
    ("run shop.py:refnd order=7", "unknown_program", 2, "Did you mean 'refund'?"),
    ("run shop.py:plain", "not_a_program", 2, "without @everhold.program"),
    ("run no.such.module:refund", "unknown_program", 2, "there is no module"),
    ("run invoice order=7", "unknown_program", 2, " In this folder: eager.py:x, shop.py:refund, "),
    ("run broken.py:x", "unknown_program", 2, "broken.py, line 1)"),
    ("run eager.py:x", "runs_on_import", 5, "if __name__ == '__main__'"),
    # arguments
    ("run shop.py:refund", "bad_arguments", 2, "missing a required argument: 'order'"),
    ("run shop.py:refund order=7 colour=red", "bad_arguments", 2, "there is no argument 'colour'"),
    ("run shop.py:refund ordr=7", "bad_arguments", 2, "It takes order: str, times: int = 1, not"
                                                      " 'ordr'."),
    ("run shop.py:refund order=7 times=often", "bad_arguments", 2, "It takes order: str, times:"
                                                                   " int = 1"),
    ("run shop.py:refund order=7 order=8", "bad_setting", 2, "'order' is given twice"),
    ("run shop.py:refund order=7 --key ''", "bad_arguments", 2, "a key must be non-empty text"),
    ("run shop.py:refund --json-args none.json", "bad_setting", 2, "none.json cannot be read"),
    ("run shop.py:refund --json-args shop.py", "bad_setting", 2, "not JSON"),
    ("run shop.py:refund order=8 --key seven", "key_conflict", 2, "with other arguments"),
    # who answers
    ("run shop.py:chat --answer-with no-such-command", "bad_setting", 2, "was not found"),
    ("run shop.py:chat --answers a --answer-with b", "bad_setting", 2, "not both"),
    ("run shop.py:chat --model 'claude -p'", "bad_setting", 2, "use --answer-with 'claude -p'"),
    ("run shop.py:chat --answers none.json", "bad_setting", 2, "none.json cannot be read"),
    ("answer seven", "not_allowed", 2, "there is no terminal"),
    ("answer seven yes", "not_allowed", 2, "everhold answer seven --query q-1 --as "),
    ("answer seven No", "not_allowed", 2, " --no"),
    ("answer seven --as ana maybe", "not_allowed", 2, "only a person answers it"),
    ("answer seven no --as ana", "not_allowed", 2, "--as ana --no"),
    ("answer seven yes --yes", "usage", 2, "give one of VALUE"),
    ("answer seven --yes --as ana -q q-9", "unknown_query", 2, "has no question 'q-9'"),
    ("answer done --yes --as ana", "no_open_query", 2, "is completed and has no open question"),
    ("answer done --no --as ana", "no_open_query", 2, "everhold show done"),
    ("answer done --yes --as ana -q q-1", "answer_conflict", 3, "already has another answer"),
    ("answer broken more -q q-7", "unknown_query", 2, "has no question 'q-7'"),
    # sessions
    ("show nobody", "unknown_session", 2, "everhold sessions"),
    ("show s-", "bad_id", 2, "several sessions begin with it"),
    ("show ''", "bad_id", 2, "it is empty"),
    ("retry done", "illegal_move", 3, "everhold explain done"),
    ("cancel done", "session_ended", 3, "it cannot be cancelled"),
    ("signal done go", "session_ended", 3, "it cannot be sent a signal"),
    ("fork seven --at 99", "bad_step", 2, "it has steps 0 to 1"),
    ("fork seven --at 0 --answer x", "bad_step", 2, "nothing was answered there"),
    ("replay seven --at 99", "bad_step", 2, "it has steps 0 to 1"),
    ("replay seven --pdb", "usage", 2, "--pdb needs a terminal"),
    ("replay seven --watch --pdb", "usage", 2, "--watch cannot be combined with --pdb"),
    ("replay nobody --watch", "unknown_session", 2, "everhold sessions"),
    ("delete done", "not_allowed", 2, "Add --yes"),
    ("delete seven --yes -d nothere.db", "store_unavailable", 4, "there is no such file"),
    # databases
    ("sessions -d mysql://here", "bad_setting", 2, "mysql:// is not known"),
    ("sessions -d here", "bad_setting", 2, "'here' is not an address"),
    ("sessions -d postgresql://here/db?schema=a-b", "bad_setting", 2,
     "'a-b' must be at most 41 letters, digits and _"),
    ("sessions -d newer.db", "store_newer", 4, "Upgrade everhold to"),
    ("sessions -d other.db", "store_unavailable", 4, "a database of another program"),
    ("sessions -d text.db", "store_damaged", 4, "is damaged"),
    ("db copy shop.db", "bad_setting", 2, "already exists"),
    ("db gc", "usage", 2, "--older-than or --keep-last"),
    ("db gc --keep-last -1", "usage", 2, "--keep-last cannot be -1"),
    ("check seven --program refund", "usage", 2, "or choose them by options; not both"),
    ("export seven --state paused -o x.jsonl", "usage", 2, "not both"),
    ("db gc --older-than 1d --state paused", "bad_setting", 2, "'paused' is not an ended state"),
    # files
    ("import none.jsonl", "bad_export", 2, "none.jsonl"),
    ("import shop.py", "bad_export", 2, "cannot be read as exported sessions"),
    ("import export.jsonl", "session_exists", 2, "--skip"),
    ("init shop-2", "bad_setting", 2, "a Python name in lower case"),
    ("init made", "bad_setting", 2, "already exists"),
    ("init class", "bad_setting", 2, "a Python name in lower case"),
    ("init asyncio", "bad_setting", 2, "the name of an existing module"),
]  # fmt: skip


@pytest.fixture
def shop(cli: Cli) -> Cli:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")
    cli("run", "shop.py:refund", "order=1", "--key", "done", "--answer-with", "cat")
    cli("answer", "done", "--as", "ana", "--no")
    cli("run", "shop.py:fails", "--key", "broken", "--answer-with", "cat")
    cli("export", "seven", "-o", "export.jsonl")
    Path("broken.py").write_text("def x(:\n")
    Path("eager.py").write_text(
        "import everhold\n\n@everhold.program\nasync def x(ctx):\n    return"
        " 1\n\neverhold.run(x())\n"
    )
    Path("text.db").write_text(
        "this is not a database, but it is long enough to be taken for one" * 20
    )
    Path("made").mkdir()
    Path("spoken.lua").write_text("return 1\n")
    Path("kept").mkdir()
    Path("kept/init.lua").write_text("return 1\n")
    cli("db", "copy", "newer.db")
    for file, statement in (("newer.db", NEWER), ("other.db", "CREATE TABLE t (x)")):
        connection = sqlite3.connect(file)
        connection.execute(statement)
        connection.close()
    return cli


@pytest.mark.process
def test_every_mistake_is_told_in_a_line_with_a_code_and_changes_nothing(
    shop: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in one shop: whatever goes wrong, the next command finds everything as it was."""
    before = shop("sessions", "--json").json
    wrong = []
    for typed, code, exit_code, words in MISTAKES:
        # a command knows nothing of what another one loaded
        monkeypatch.setattr(find, "REGISTRY", {})
        said = shop(*shlex.split(typed))
        lines = said.err.splitlines()
        if typed == "run broken.py:x":  # a file with a syntax error: the place comes first
            lines = lines[lines.index("SyntaxError: invalid syntax") + 1 :]
        told = bool(lines) and lines[0].startswith("error: ") and lines[0].endswith(f"[{code}]")
        if (
            not told
            or said.code != exit_code
            or words not in said.err
            or "Traceback" in said.err
            or len(lines) > 2
        ):
            wrong.append((typed, said))
    assert not wrong, "\n".join(f"{typed}: {said}" for typed, said in wrong)
    assert shop("sessions", "--json").json == before


def test_the_table_is_long() -> None:
    assert len(MISTAKES) >= 30
    assert len({typed for typed, *_ in MISTAKES}) == len(MISTAKES)


def test_with_json_a_mistake_is_json_on_standard_output(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7")
    said = cli("show", "nobody", "--json")
    assert said.err == ""
    assert said.json["code"] == "unknown_session"
    assert "hint" in said.json


def test_watching_is_for_people(cli: Cli) -> None:
    said = cli("replay", "seven", "--watch", "--json")
    assert (said.code, said.err, said.json["code"]) == (2, "", "usage")
    assert said.json["error"] == "--watch cannot be combined with --json"


def test_a_read_only_folder_is_told_as_such(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    # root writes everywhere: a file is in the way instead
    if os.access(folder / "x", os.W_OK) or os.getuid() == 0:
        folder = tmp_path / "file"
        folder.write_text("")
    said = cli("run", "shop.py:refund", "order=7", "-d", str(folder / "app.db"))
    assert said.code == 4
    assert said.err.startswith("error: ")
    assert "[store_unavailable]" in said.err


def test_settings_that_do_not_fit_name_the_file_and_the_key(cli: Cli) -> None:
    Path("everhold.toml").write_text('databse = "sqlite:///x.db"\n')
    said = cli("sessions")
    assert said.code == 2
    assert "everhold.toml" in said.err
    assert "did you mean 'database'?" in said.err


@pytest.mark.parametrize(
    "words",
    [
        "demo",
        "info",
        "run cot task=x",
        "mcp install claude-code --scope project",
        "mcp install codex",
        "mcp uninstall cursor --scope project",
        "pkg install ./debate",
        "pkg init",
        "pkg doctor",
        "pkg link ./debate",
        "pkg list",
    ],
)
def test_a_current_folder_that_was_deleted_is_told(
    words: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = cli(*words.split())
    assert (said.code, said.err) == (
        2,
        "error: setting current folder: it was deleted; change to another [bad_setting]\n",
    )
