"""A session as a test: what was asked and answered in a JSON file, and the program replayed against it."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import msgspec

from everhold.core.codec import same
from everhold.core.errors import Diverged, EverholdError
from everhold.core.journal import Delivery, ended
from everhold.core.metrics import Metrics
from everhold.core.query import Query
from everhold.core.session import Birth, Head, State
from everhold.core.status import Outcome, Raised, Returned
from everhold.drive.replay import Played, replay
from everhold.ports.program import Host
from everhold.ports.store import Record


class Tape(msgspec.Struct):
    """One session: its birth and its deliveries."""

    birth: Birth
    deliveries: list[Delivery]

    @classmethod
    def of(cls, record: Record) -> Tape:
        return cls(record.birth, record.deliveries)

    @classmethod
    def read(cls, file: Path) -> Tape:
        tape = msgspec.json.decode(file.read_bytes(), type=cls)
        return cls(msgspec.structs.replace(tape.birth, program=_seen_from(tape.birth.program, file)), tape.deliveries)

    def write(self, file: Path) -> None:
        """Write it for people too: indented, and with the program's path from where the file is."""
        birth = msgspec.structs.replace(self.birth, program=_relative(self.birth.program, file))
        text = msgspec.json.format(msgspec.json.encode(Tape(birth, self.deliveries)), indent=1)
        file.write_bytes(text + b"\n")

    def record(self) -> Record:
        last = self.deliveries[-1]
        head = Head(0, 0, State.PAUSED, last.n, 0, None, last.at, Metrics())
        return Record(self.birth, head, self.deliveries, [], [])

    def check(self, host: Host) -> None:
        """Raise `AssertionError`, with what differs, if the program asks or returns something else now."""
        difference = compared(self.record(), host)
        assert not difference, f"{difference}\nIf that is meant, accept it: pytest --everhold-update"

    def updated(self, host: Host) -> Tape:
        """The same answers with the questions as they are worded now; raises `Diverged` for another shape."""
        deliveries = []
        for played in replay(self.record(), host):
            told, notes = played.recorded, played.recorded.notes
            if notes is not None and played.reply.outcome is not None:
                notes = msgspec.structs.replace(notes, outcome=played.reply.outcome)
            deliveries.append(msgspec.structs.replace(told, asked=played.reply.asked, notes=notes))
        return Tape(self.birth, deliveries)


def compared(record: Record, host: Host) -> str:
    """The first thing that is otherwise when a session is replayed, in words; empty if nothing is."""
    try:
        for played in replay(record, host):
            if played.reworded:
                return _worded(played)
            found = _ended(played.recorded, played.reply.outcome)
            if found:
                return f"step {played.given.n}: {found}"
    except Diverged as error:
        return str(error)
    except EverholdError as error:
        return f"it cannot be replayed: {error}"
    return ""


def _worded(played: Played) -> str:
    old, new = played.reworded[0]
    lines = difflib.ndiff(_words(old).splitlines(), _words(new).splitlines())
    return f"step {played.given.n}: {old.id} is worded otherwise\n" + "\n".join(line.rstrip("\n") for line in lines)


def _words(query: Query) -> str:
    told: dict[str, Any] = msgspec.to_builtins(query)
    parts = [query.prompt] if query.prompt else []
    parts += [f"{name}: {value}" for name, value in told.items() if name not in ("q", "key", "prompt", "kind")]
    return "\n".join(parts)


def _ended(recorded: Delivery, outcome: Outcome | None) -> str:
    was = recorded.notes.outcome if recorded.notes is not None else None
    if isinstance(was, Returned) and isinstance(outcome, Returned) and not same(was.value, outcome.value):
        return f"it returned {was.value!r}, and now returns {outcome.value!r}"
    if isinstance(was, Raised) and isinstance(outcome, Raised) and was.error != outcome.error:
        return f"it failed with {was.error!r}, and now with {outcome.error!r}"
    if type(was) is not type(outcome):
        return f"{ended(was)} became {ended(outcome)}"
    return ""


def _relative(ref: str, file: Path) -> str:
    place, colon, name = ref.rpartition(":")
    return f"{os.path.relpath(place, file.resolve().parent)}{colon}{name}" if place.endswith(".py") else ref


def _seen_from(ref: str, file: Path) -> str:
    place, colon, name = ref.rpartition(":")
    return f"{(file.resolve().parent / place).resolve()}{colon}{name}" if place.endswith(".py") else ref
