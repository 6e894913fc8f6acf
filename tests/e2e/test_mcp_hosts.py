"""Hosts are told of the MCP server in their own files, and everything else in these files stays."""

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from everhold.cli.app import main
from everhold.errors import BadHostFile
from everhold.mcp import hosts, instructions
from everhold.mcp.hosts import BACKUP_SUFFIX, HOSTS, HostEnvironment

SCRIPT = str(Path(sys.executable).with_name("everhold"))
#: For each host: where its servers are in a file, and a file as people have it.
FILES = {
    "claude-code": (
        "mcpServers",
        '{\n  "numStartups": 7,\n  "mcpServers": {\n    "other": {"command": "x"}\n  }\n}',
    ),
    "claude-desktop": (
        "mcpServers",
        '{"globalShortcut": "", "mcpServers": {"other": {"command": "x"}}}',
    ),
    "cursor": (
        "mcpServers",
        '{\n\t// mine\n\t"mcpServers": {\n\t\t"other": {"url": "x"},\n\t},\n}\n',
    ),
    "vscode": (
        "servers",
        '{\r\n  "inputs": [],\r\n  "servers": {\r\n    "other": {"type": "http"} // x\r\n '
        " }\r\n}\r\n",
    ),
    "codex": (
        "mcp_servers",
        'model = "m" # best\n\n[mcp_servers.other]\ncommand = "x"\n\n[tui]\ntheme = "dark"\n',
    ),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a home and a project of her own."""
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "EVERHOLD_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)
    return home


def place(host: str, scope: Any = "user") -> Path:
    return HOSTS[host].place(HostEnvironment(), scope).file


def read(host: str, file: Path) -> dict[str, Any]:
    """The servers as the host's own parser would see them; ours has no part in it."""
    text = file.read_bytes().decode()
    if host == "codex":
        return tomllib.loads(text)[FILES[host][0]]
    plain = re.sub(r",(\s*[}\]])", r"\1", re.sub(r"(?<=\s)//[^\n]*", "", text))
    return json.loads(plain)[FILES[host][0]]


def written(host: str) -> tuple[Path, str]:
    """A host's file as people have it."""
    file = place(host)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(FILES[host][1].encode())
    file.chmod(0o640)
    return file, FILES[host][1]


# ---- install and uninstall, for every host


@pytest.mark.parametrize("host", HOSTS)
def test_install_adds_one_server_and_leaves_the_others(host: str, home: Path) -> None:
    file, _ = written(host)
    assert main(["mcp", "install", host]) == 0
    servers = read(host, file)
    assert set(servers) == {"other", "everhold"}
    assert servers["everhold"]["command"] == SCRIPT
    assert servers["everhold"]["args"] == ["mcp"]


@pytest.mark.parametrize("host", HOSTS)
def test_uninstall_gives_the_file_back_to_the_byte(host: str, home: Path) -> None:
    file, text = written(host)
    assert main(["mcp", "install", host]) == 0
    assert main(["mcp", "uninstall", host]) == 0
    assert file.read_bytes().decode() == text


@pytest.mark.parametrize("host", HOSTS)
def test_a_second_install_and_a_second_uninstall_touch_nothing(
    host: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = written(host)
    for verb in ("install", "uninstall"):
        main(["mcp", verb, host])
        kept = file.with_name(file.name + BACKUP_SUFFIX)
        seen = file.stat().st_ino, file.read_bytes(), kept.read_bytes()
        capsys.readouterr()
        assert main(["mcp", verb, host]) == 0
        assert "nothing to do" in capsys.readouterr().out
        assert (file.stat().st_ino, file.read_bytes(), kept.read_bytes()) == seen


@pytest.mark.parametrize("host", HOSTS)
def test_a_changed_file_keeps_its_rights_and_what_it_was_before(host: str, home: Path) -> None:
    file, text = written(host)
    main(["mcp", "install", host])
    kept = file.with_name(file.name + BACKUP_SUFFIX)
    assert kept.read_bytes().decode() == text
    assert [stat.S_IMODE(one.stat().st_mode) for one in (file, kept)] == [0o640, 0o640]
    assert sorted(one.name for one in file.parent.iterdir() if "everhold" in one.name) == [
        kept.name
    ]


@pytest.mark.parametrize("host", HOSTS)
def test_a_file_that_was_not_there_is_made_for_its_owner_only_and_goes_again(
    host: str, home: Path
) -> None:
    assert main(["mcp", "install", host]) == 0
    file = place(host)
    assert list(read(host, file)) == ["everhold"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["mcp", "uninstall", host]) == 0
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("host", ["vscode", "codex"])
def test_the_command_that_is_written_starts_a_server_from_anywhere(host: str, home: Path) -> None:
    """The very words of the file, from another folder and with an empty PATH: the server says who
    it is.
    """
    main(["mcp", "install", host, "--database", "mine.db"])
    entry = read(host, place(host))["everhold"]
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    with subprocess.Popen(
        [entry["command"], *entry["args"]],
        cwd="/",
        env={"HOME": str(home), "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin and server.stdout
        server.stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
        )
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "everhold"
        server.stdin.close()
    assert entry["args"] == ["mcp", "--database", f"sqlite:///{Path('mine.db').resolve()}"]


@pytest.mark.parametrize("host", HOSTS)
def test_print_shows_what_install_would_write_and_changes_nothing(
    host: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", "install", host, "--print"]) == 0
    shown = capsys.readouterr()
    snippet = tomllib.loads(shown.out) if host == "codex" else json.loads(shown.out)
    assert str(place(host)) in shown.err
    assert list(home.rglob("*")) == []
    main(["mcp", "install", host])
    assert snippet[FILES[host][0]] == read(host, place(host))


# ---- a server that runs


WEB = [name for name in HOSTS if name != "claude-desktop"]
TOLD = {"claude-code": "Bearer ${EVERHOLD_MCP_TOKEN}"}


@pytest.mark.parametrize("host", WEB)
def test_install_for_http_names_the_variable_and_never_the_token(
    host: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And uninstall gives the file back to the byte."""
    monkeypatch.setenv("EVERHOLD_MCP_TOKEN", "s3cret")
    file, text = written(host)
    assert main(["mcp", "install", host, "--http", "https://example.com/mcp"]) == 0
    entry = read(host, file)["everhold"]
    assert "s3cret" not in file.read_text()
    if host == "codex":
        assert entry == {
            "url": "https://example.com/mcp",
            "bearer_token_env_var": "EVERHOLD_MCP_TOKEN",
        }
    else:
        bearer = TOLD.get(host, "Bearer ${env:EVERHOLD_MCP_TOKEN}")
        kind = {} if host == "cursor" else {"type": "http"}
        assert entry == {
            **kind,
            "url": "https://example.com/mcp",
            "headers": {"Authorization": bearer},
        }
    assert main(["mcp", "uninstall", host]) == 0
    assert file.read_bytes().decode() == text


@pytest.mark.parametrize("host", WEB)
def test_a_server_that_is_started_and_one_that_runs_replace_each_other(
    host: str, home: Path
) -> None:
    """Hosts refuse an entry that has a command and a URL."""
    file, _ = written(host)
    main(["mcp", "install", host])
    started = read(host, file)["everhold"]
    assert main(["mcp", "install", host, "--http"]) == 0
    assert read(host, file)["everhold"]["url"] == "http://127.0.0.1:8711/mcp"
    assert "command" not in read(host, file)["everhold"]
    assert main(["mcp", "install", host]) == 0
    assert read(host, file)["everhold"] == started
    assert set(read(host, file)) == {"other", "everhold"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["claude-desktop", "--http"], "supports only servers that it starts itself"),
        (["cursor", "--http", "-d", "x.db"], "where the server is started"),
        (["cursor", "--http", "ftp://x/mcp"], "not HOST:PORT or the URL"),
        (["cursor", "--http", "http://u@x/mcp"], "not HOST:PORT or the URL"),
        (["cursor", "--http", "a b"], "not HOST:PORT"),
    ],
)
def test_what_cannot_be_reached_is_refused_and_nothing_is_written(
    words: list[str], why: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", "install", *words]) == 2
    assert why in capsys.readouterr().err
    assert list(home.rglob("*")) == []


# ---- what is refused, and then nothing changes

BAD = {
    "cut off": "{",
    "a list": "[]",
    "levels without end": "[" * 5000,
    "servers are a list": '{"mcpServers": []}',
    "not UTF-8": b"\xff\xfe{}",
    "another server of this name": (
        '{"mcpServers": {"everhold": {"url": "https://example.com/mcp"}}}'
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
@pytest.mark.parametrize("host", ["cursor", "claude-desktop"])
def test_a_file_that_cannot_be_edited_is_left_alone(
    host: str, verb: str, bad: str | bytes, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place(host)
    file.parent.mkdir(parents=True)
    file.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
    before = file.read_bytes()
    assert main(["mcp", verb, host, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "bad_host_file"
    assert file.read_bytes() == before
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_bad_toml_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place("codex")
    file.parent.mkdir()
    file.write_text("model = \n")
    assert main(["mcp", "install", "codex"]) == 2
    told = capsys.readouterr().err
    assert "[bad_host_file]" in told and "--print" in told
    assert file.read_text() == "model = \n"


@pytest.mark.parametrize("host", ["claude-code", "claude-desktop"])
def test_comments_are_refused_where_the_host_takes_none(
    host: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host would not read the file at all, so it is better to say so."""
    file, _ = written(host)
    file.write_text('{\n  // no\n  "mcpServers": {}\n}')
    assert main(["mcp", "install", host]) == 2
    assert "line 2" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".cursor").write_text("a file where a folder should be")
    assert main(["mcp", "install", "cursor"]) == 2
    assert "[bad_host_file]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["install", "claude-desktop", "--scope", "project"],
            "Claude Desktop has no scope 'project'",
        ),
        (["install", "cursor", "--scope", "local"], "Cursor has no scope 'local'"),
        (["install", "cursor", "--name", "a b"], "--name"),
        (["install", "cursor", "--name", ""], "--name"),
        (["install", "emacs"], "'emacs'"),
        (["install", "cursor", "-d", "nonsense"], "not an address"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str], says: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *words]) == 2
    assert says in capsys.readouterr().err
    assert list(home.rglob("*")) == []


def test_a_file_that_another_program_keeps_writing_is_given_up(home: Path) -> None:
    """Each time ours is ready, theirs is newer: theirs stays."""
    file = home / "busy.json"
    file.write_text("{}")
    count = iter(range(100))

    def edit(text: str) -> str:
        file.write_text(json.dumps({"theirs": next(count)}))
        return text + " "

    with pytest.raises(BadHostFile, match="another program keeps writing it"):
        hosts.rewrite_host_file(file, edit, makes=True)
    assert "theirs" in json.loads(file.read_text())
    assert [one.name for one in home.iterdir()] == ["busy.json"]


def test_a_file_that_changed_once_meanwhile_is_edited_anew(home: Path) -> None:
    file = home / "busy.json"
    file.write_text("{}")

    def edit(text: str) -> str:
        if text == "{}":
            file.write_text('{"theirs": 1}')
        return text.replace("}", ', "ours": 2}')

    assert hosts.rewrite_host_file(file, edit, makes=True)
    assert json.loads(file.read_text()) == {"theirs": 1, "ours": 2}


# ---- whose entry it is


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        ({"command": "/a/everhold", "args": ["mcp"]}, True),
        ({"command": "C:\\x\\Scripts\\everhold.exe", "args": ["mcp", "-d", "y"]}, True),
        ({"command": "/usr/bin/python3", "args": ["-m", "everhold", "mcp"]}, True),
        ({"command": "uvx", "args": ["everhold", "mcp"]}, True),
        ({"command": "/a/everhold", "args": ["serve"]}, False),
        ({"command": "npx", "args": ["mcp"]}, False),
        ({"command": ["everhold", "mcp"]}, False),
        ({"url": "http://everhold/mcp"}, False),
        (
            {"url": "http://x/mcp", "headers": {"Authorization": "Bearer ${EVERHOLD_MCP_TOKEN}"}},
            True,
        ),
        ({"url": "http://x/mcp", "bearer_token_env_var": "EVERHOLD_MCP_TOKEN"}, True),
        ({"url": "http://x/mcp", "headers": {"Authorization": "Bearer ${OTHER}"}}, False),
        ({"url": "http://x/mcp", "headers": "EVERHOLD_MCP_TOKEN"}, False),
        ("everhold mcp", False),
        (None, False),
    ],
)
def test_only_what_starts_everhold_is_ours(entry: Any, ours: bool) -> None:
    assert hosts.is_everhold_entry(entry) is ours


def test_what_a_person_added_to_our_entry_stays(home: Path) -> None:
    file = place("cursor")
    file.parent.mkdir()
    old = {"env": {"A": "1"}, "command": "/old/everhold", "args": ["mcp"], "disabled": True}
    file.write_text(json.dumps({"mcpServers": {"everhold": old}}, indent=2))
    main(["mcp", "install", "cursor"])
    assert read("cursor", file)["everhold"] == {**old, "command": SCRIPT}


def test_two_names_are_two_servers(home: Path) -> None:
    main(["mcp", "install", "codex", "--name", "work", "-d", "work.db"])
    main(["mcp", "install", "codex"])
    main(["mcp", "uninstall", "codex"])
    assert list(read("codex", place("codex"))) == ["work"]


def test_a_linked_file_is_changed_where_it_really_is(home: Path) -> None:
    """Dotfiles are often links into a folder under version control."""
    real = home / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_text('{"a": 1}')
    place("cursor").parent.mkdir()
    place("cursor").symlink_to(real)
    main(["mcp", "install", "cursor"])
    assert place("cursor").is_symlink()
    assert "everhold" in json.loads(real.read_text())["mcpServers"]


# ---- where the files are


@pytest.mark.parametrize(
    ("host", "system", "file"),
    [
        ("claude-code", "linux", "/h/.claude.json"),
        (
            "claude-desktop",
            "darwin",
            "/h/Library/Application Support/Claude/claude_desktop_config.json",
        ),
        ("claude-desktop", "win32", "/h/AppData/Roaming/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", "/h/.config/Claude/claude_desktop_config.json"),
        ("cursor", "darwin", "/h/.cursor/mcp.json"),
        ("vscode", "darwin", "/h/Library/Application Support/Code/User/mcp.json"),
        ("vscode", "win32", "/h/AppData/Roaming/Code/User/mcp.json"),
        ("vscode", "linux", "/h/.config/Code/User/mcp.json"),
        ("codex", "win32", "/h/.codex/config.toml"),
    ],
)
def test_where_a_host_keeps_its_servers(host: str, system: str, file: str) -> None:
    world = HostEnvironment(home=Path("/h"), folder=Path("/p"), system=system, env={})
    assert HOSTS[host].place(world, "user").file.as_posix() == file


@pytest.mark.parametrize(
    ("host", "variable", "file"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "/e/.claude.json"),
        ("codex", "CODEX_HOME", "/e/config.toml"),
        ("vscode", "XDG_CONFIG_HOME", "/e/Code/User/mcp.json"),
    ],
)
def test_variables_of_the_hosts_are_obeyed(host: str, variable: str, file: str) -> None:
    world = HostEnvironment(
        home=Path("/h"), folder=Path("/p"), system="linux", env={variable: "/e"}
    )
    assert HOSTS[host].place(world, "user").file.as_posix() == file


def test_a_project_has_files_of_its_own(home: Path) -> None:
    for host in ("claude-code", "cursor", "vscode", "codex"):
        assert main(["mcp", "install", host, "--scope", "project"]) == 0
    made = sorted(
        one.relative_to(Path.cwd()).as_posix() for one in Path.cwd().rglob("*") if one.is_file()
    )
    assert made == [".codex/config.toml", ".cursor/mcp.json", ".mcp.json", ".vscode/mcp.json"]
    assert list(home.rglob("*")) == []


def test_local_is_one_project_in_the_users_own_file(home: Path) -> None:
    assert main(["mcp", "install", "claude-code", "--scope", "local"]) == 0
    found = json.loads((home / ".claude.json").read_text())["projects"]
    assert found[str(Path.cwd())]["mcpServers"]["everhold"]["type"] == "stdio"


def test_a_project_that_the_users_file_did_not_name_is_not_named_after(home: Path) -> None:
    (home / ".claude.json").write_text('{\n  "numStartups": 7\n}\n')
    assert main(["mcp", "install", "claude-code", "--scope", "local"]) == 0
    assert main(["mcp", "uninstall", "claude-code", "--scope", "local"]) == 0
    assert (home / ".claude.json").read_text() == '{\n  "numStartups": 7\n}\n'


def test_another_file_can_be_named(home: Path) -> None:
    assert main(["mcp", "install", "vscode", "--file", "profile/mcp.json"]) == 0
    assert "everhold" in json.loads(Path("profile/mcp.json").read_text())["servers"]


def test_json_tells_a_program_what_was_done(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["mcp", "install", "cursor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "host": "cursor",
        "file": str(place("cursor")),
        "name": "everhold",
        "changed": True,
        "command": [SCRIPT, "mcp"],
    }


# ---- the sub-agent


def test_the_sub_agent_is_written_replaced_and_taken_away(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(".claude/agents/everhold.md").absolute()
    assert main(["mcp", "agent", "claude-code"]) == 0
    first = file.read_text()
    file.write_text(first.replace("model: inherit", "model: opus"))
    assert main(["mcp", "agent", "claude-code"]) == 0
    assert file.read_text() == first
    capsys.readouterr()
    assert main(["mcp", "agent", "claude-code"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["mcp", "agent", "claude-code", "--remove"]) == 0
    assert not file.exists()
    # it may have been edited
    assert file.with_name("everhold.md.before-everhold").read_text() == first


def test_somebody_elses_agent_of_that_name_is_left_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / ".claude" / "agents" / "everhold.md"
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    for more in ([], ["--remove"]):
        assert main(["mcp", "agent", "claude-code", "--scope", "user", *more]) == 2
        assert "everhold did not write it" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_the_sub_agent_names_tools_that_the_server_has(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from everhold.mcp.tools import TOOLS

    assert main(["mcp", "agent", "claude-code", "--name", "eh", "--print"]) == 0
    text = capsys.readouterr().out
    assert text == instructions.render_subagent("eh")
    front, body = text.split("---\n")[1:]
    named = (
        next(line for line in front.splitlines() if line.startswith("tools: "))
        .removeprefix("tools: ")
        .split(", ")
    )
    assert {word for word in named if "__" in word} <= {f"mcp__eh__{tool.name}" for tool in TOOLS}
    # it looks, and changes nothing
    assert {word for word in named if "__" not in word} == {"Read", "Grep", "Glob"}
    assert {"mcp__eh__run", "mcp__eh__answer", "mcp__eh__status"} <= set(named)
    assert "SERVER" not in text and body.lstrip().startswith("<!--")


def test_installing_needs_no_terminal_and_leaves_standard_input_alone(home: Path) -> None:
    """A real process, as a script would start it."""
    done = subprocess.run(
        [sys.executable, "-m", "everhold", "mcp", "install", "cursor"],
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"wrote everhold in {place('cursor')}"


WITHOUT = (
    "import sys; sys.modules['mcp'] = None; from everhold.cli.app import main;"
    " sys.exit(main(sys.argv[1:]))"
)


def test_a_server_that_could_not_start_is_not_installed_but_can_be_taken_out(home: Path) -> None:
    """Without the extra, hosts would only see an error; whoever removes everhold's extra removes
    the server after.
    """
    assert main(["mcp", "install", "cursor"]) == 0
    told = {}
    for verb in ("install", "uninstall"):
        words = [sys.executable, "-c", WITHOUT, "mcp", verb, "cursor"]
        done = subprocess.run(
            words,
            env={**os.environ, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=250,
        )
        told[verb] = (done.returncode, done.stderr)
    assert told["install"] == (
        2,
        "error: everhold mcp needs the extra 'mcp' [missing_extra]\nhint: pip install"
        " 'everhold[mcp]'\n",
    )
    assert told["uninstall"] == (0, "")
    assert not place("cursor").exists()
