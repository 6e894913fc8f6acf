"""Run the tests that need no Lua with what Windows lacks taken away.

`tests/portable/sitecustomize.py` removes the modules, functions, flags and signals that only POSIX
systems have, in pytest and in each Python that a test starts. With --as-it-is nothing is removed:
that is for Windows itself. Other arguments are options of pytest.

A test is left out if it is about Lua, or about something that only POSIX has (signals, rights of
files, PostgreSQL's own server). LEFT_OUT and DESELECTED name them, with
the reasons: modes of files mean nothing there, and folders cannot be opened and synced.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Holds the `sitecustomize.py` that takes things away.
REDUCED = ROOT / "tests" / "portable"
TESTS = ("tests/unit", "tests/scenario", "tests/conformance/test_stores.py")
LEFT_OUT = {
    "tests/unit/programs/lua": "Lua programs run in worker processes, which need POSIX",
    "tests/unit/mcp/algocline": "programs of this profile are written in Lua",
}
#: Single tests, below tests/unit, with the reason.
DESELECTED = {
    "packages/lua/test_trust.py::test_marks_that_others_may_write_count_for_nothing": "modes",
    "mcp/test_token.py::test_a_file_that_others_can_read_is_refused_and_stays": "modes",
    "mcp/test_multi_round.py::test_a_key_that_others_could_read_is_replaced": "modes",
    "stores/test_envelope.py::test_the_file_is_on_the_disk_before_it_is_renamed": "folders",
}


def main(arguments: Sequence[str]) -> int:
    real = "--as-it-is" in arguments
    options = [each for each in arguments if each != "--as-it-is"]
    env = dict(os.environ)
    if not real:
        env["PYTHONPATH"] = str(REDUCED)
    ignored = [f"--ignore={place}" for place in LEFT_OUT]
    ignored += [f"--deselect=tests/unit/{test}" for test in DESELECTED]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not soak and not full", *ignored, *options, *TESTS]
    return subprocess.run(command, cwd=ROOT, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
