"""What `everhold mcp` loads before its first session."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"roots": {"listChanged": True}, "elicitation": {}},
    "clientInfo": {"name": "test", "version": "1"},
}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
OPENINGS = {
    "handshake": [
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    ],
    "envelope": [
        {"id": 1, "method": "server/discover", "params": {"_meta": ENVELOPE}},
        {"id": 2, "method": "tools/list", "params": {"_meta": ENVELOPE}},
    ],
}
#: The libraries that a server may load before its first session; msgspec brings the last one.
LIBRARIES = {"click", "msgspec", "platformdirs", "typing_extensions"}
#: Megabytes that it may take.
MEGABYTES = 60


class Server:
    """A server that was just started, as hosts start it, and has listed its tools."""

    def __init__(self, folder, profile, opening, *options):
        words = [sys.executable, *options, "-m", "everhold", "mcp", "--profile", profile]
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for message in OPENINGS[opening]:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()
        while json.loads(self.process.stdout.readline())["id"] != 2:
            pass

    def end(self):
        """End it and return what it wrote to standard error."""
        return self.process.communicate(timeout=60)[1]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "alc"))


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("profile", ["default", "algocline"])
def test_few_libraries_are_loaded_before_the_first_session(tmp_path, profile, opening):
    told = Server(tmp_path, profile, opening, "-X", "importtime").end()
    names = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in told.splitlines()
        if line.startswith("import time:")
    }
    installed = {
        file.name.partition(".")[0]
        for path in sys.path
        if path.endswith("-packages")
        for file in Path(path).iterdir()
    }
    assert {"mcp", "pydantic", "anyio", "lupa"} <= installed
    found = {name for name in names & installed if not name.startswith(("_", "everhold"))}
    assert found <= LIBRARIES


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux has /proc")
@pytest.mark.parametrize("profile", ["default", "algocline"])
def test_a_server_is_small_before_its_first_session(tmp_path, profile):
    server = Server(tmp_path, profile, "handshake")
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    server.end()
    (kilobytes,) = [
        int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")
    ]
    assert kilobytes / 1024 <= MEGABYTES
