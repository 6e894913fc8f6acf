"""At the end, every journal that the scenarios wrote is replayed in a fresh process with another
hash seed.

A run that leaves out tests which start processes, as `make quick` does, leaves this out, too.
"""

import os
import subprocess
import sys

import pytest

from tests.scenario.harness import TAPES


@pytest.fixture(scope="session", autouse=True)
def replay_elsewhere(tmp_path_factory, pytestconfig):
    yield
    if not TAPES or "not process" in pytestconfig.option.markexpr:
        return
    tapes = tmp_path_factory.mktemp("tapes") / "tapes.jsonl"
    tapes.write_bytes(b"\n".join(TAPES))
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenario.replay", str(tapes)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
