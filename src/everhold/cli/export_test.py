"""A session as a test: one file of JSON, and one of Python that replays it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from everhold.errors import BadSetting

if TYPE_CHECKING:
    from everhold.ports.store import SessionRecord

_TEST: Final = '''\
"""Made by `everhold export {name} --as-test`: {program} asks and ends as it did then.

`pytest --everhold-update` accepts how it is now.
"""

from pathlib import Path
from typing import Any


def test_{word}(everhold: Any) -> None:
    everhold.replays(Path(__file__).with_suffix(".json"))
'''


def write_test(record: SessionRecord, folder: str) -> list[str]:
    """Write both files; overwrites nothing."""
    from everhold.archive.recording import Recording

    birth = record.birth
    name = birth.key or birth.id
    word = re.sub(r"\W+", "_", f"{birth.program.rpartition(':')[2]}_{name}").strip("_").lower()
    test = Path(folder) / f"test_{word}.py"
    data = test.with_suffix(".json")
    for file in (test, data):
        if file.exists():
            raise BadSetting(
                "--as-test",
                f"{file} is there already; `pytest --everhold-update` brings it up to date",
            )
    try:
        test.parent.mkdir(parents=True, exist_ok=True)
        Recording.of(record).write(data)
        facts: dict[str, Any] = {
            "name": name,
            "program": birth.program.replace("\\", "/").rpartition("/")[2],
            "word": word,
        }
        test.write_text(_TEST.format(**facts), encoding="utf-8")
    except OSError as error:
        raise BadSetting("--as-test", f"{folder} cannot be written: {error.strerror}") from None
    return [str(test), str(data)]
