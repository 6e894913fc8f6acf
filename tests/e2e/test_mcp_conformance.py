"""The official conformance suite against our server, beside the list of what passes: it may grow
and not shrink.

`tests/data/mcp-conformance.json` says for each server and protocol version, and for the extensions,
which scenarios pass, and why each of the others does not. A scenario passes if at least one of its
checks succeeds and none fails or warns.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.mcp.node import CONFORMANCE, program

ROOT = Path(__file__).parents[2]
LIST = json.loads((ROOT / "tests/data/mcp-conformance.json").read_text(encoding="utf-8"))
NEWEST = "2026-07-28"
#: The server as users start it, and the same with what the suite calls by name.
SERVERS = {"everhold mcp": ["-m", "everhold"], "with fixtures": ["-m", "tests.conformance.mcp"]}

# Some checks of the suite give a server half a second.
pytestmark = [pytest.mark.full, pytest.mark.alone, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Both servers, on ports of their own."""
    started, found = [], {}
    try:
        for name, words in SERVERS.items():
            port = free_port()
            home = tmp_path_factory.mktemp("server")
            serve = ["--http", f"127.0.0.1:{port}", "--no-token"]  # the suite sends none
            command = [sys.executable, *words, "mcp", "-d", f"sqlite:///{home}/e.db", *serve]
            with (home / "stderr").open("wb") as told:
                env = {**os.environ, "XDG_DATA_HOME": str(home)}
                started.append(subprocess.Popen(command, stderr=told, cwd=ROOT, env=env))
            found[name] = f"http://127.0.0.1:{port}/mcp"
            reachable(port, started[-1], home / "stderr")
        yield found
    finally:
        for process in started:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def reachable(port: int, process: subprocess.Popen[bytes], told: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, told.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server did not start within a minute")


def passing(url: str, out: Path, *options: str) -> dict[str, str]:
    """The scenarios that were run: an empty text if one passes, else what was found."""
    done = subprocess.run(
        [*program(*CONFORMANCE), "server", "--url", url, "-o", str(out), *options],
        capture_output=True,
        text=True,
    )
    found = {}
    for folder in out.iterdir():
        scenario = re.fullmatch(r"server-(.+?)-\d{4}-\d\d-\d\dT.*", folder.name)
        assert scenario, folder.name
        checks = json.loads((folder / "checks.json").read_text(encoding="utf-8"))
        wrong = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
        told = [f"{check['id']}: {check.get('errorMessage')}" for check in wrong]
        if not told and all(check["status"] != "SUCCESS" for check in checks):
            told = ["no check succeeded"]
        found[scenario[1]] = "; ".join(told)
    assert found, done.stdout + done.stderr
    return found


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("server", SERVERS)
def test_what_passed_still_passes(
    server: str, version: str, urls: dict[str, str], tmp_path: Path
) -> None:
    known = LIST["servers"][server][version]
    found = passing(urls[server], tmp_path, "--suite", "all", "--spec-version", version)
    lost = {
        name: found.get(name, "it was not run")
        for name in known["passing"]
        if found.get(name, "lost")
    }
    assert lost == {}, "the list shrank"
    new = sorted(
        name for name, wrong in found.items() if not wrong and name not in known["passing"]
    )
    assert new == [], "the list can grow: move these to `passing`"
    assert sorted(found) == sorted([*known["passing"], *known["not_passing"]])


def test_what_the_newest_protocol_requires_passes_and_so_do_the_extensions(
    urls: dict[str, str], tmp_path: Path
) -> None:
    """With the fixtures. The suite lists what a protocol requires, and runs the extensions of tasks
    along with it.
    """
    found = passing(urls["with fixtures"], tmp_path, "--requirements", NEWEST)
    known = LIST["extensions"]
    assert {
        name: wrong for name, wrong in found.items() if wrong and name not in known["not_passing"]
    } == {}
    assert set(known["passing"]) <= set(found)
    new = sorted(name for name in known["not_passing"] if found.get(name) == "")
    assert new == [], "the list can grow: move these to `passing`"


def test_every_scenario_of_the_suite_passes_somewhere_or_has_a_reason() -> None:
    listed = subprocess.run(
        [*program(*CONFORMANCE), "list", "--server"], capture_output=True, text=True, check=True
    )
    scenarios = set(re.findall(r"^  - (\S+) \[", listed.stdout, re.MULTILINE))
    fixtured = LIST["servers"]["with fixtures"].values()
    lists = [LIST["extensions"], *fixtured]
    accounted = [{*known["passing"], *known["not_passing"]} for known in lists]
    assert scenarios == set().union(*accounted)
    assert all(len(reason) > 20 for known in lists for reason in known["not_passing"].values())
