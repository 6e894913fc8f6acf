"""What goes wrong at the door of a session: leases, claims and inputs. `core.errors` has the whole tree."""

from __future__ import annotations

from everhold.core.branches import StateError, UsageError


class InputConflict(UsageError):
    code = "input_conflict"
    hint = "Use another key, or say the same again; what was taken first stands."

    def __init__(self, key: str, session_id: str, input_id: str) -> None:
        super().__init__(f"key {key!r} of session {session_id!r} belongs to {input_id!r}, which says something else")
        self.key, self.session_id, self.input_id = key, session_id, input_id


class UnknownInput(UsageError):
    code = "unknown_input"
    hint = "List what waits for the session, and what did: everhold intake SESSION --all"

    def __init__(self, session_id: str, name: str) -> None:
        super().__init__(f"nothing of the name {name!r} was ever sent to session {session_id!r}")
        self.session_id, self.name = session_id, name


class InputEnded(StateError):
    code = "input_ended"
    hint = "It never entered the conversation, and never will. Say it again under another key."

    def __init__(self, session_id: str, input_id: str, state: str, reason: str = "") -> None:
        super().__init__(f"input {input_id!r} of session {session_id!r} is {state}" + (f": {reason}" if reason else ""))
        self.session_id, self.input_id, self.state, self.reason = session_id, input_id, state, reason


class SessionBusy(StateError):
    code = "session_busy"
    hint = "Wait until its turn has settled, or say what to do with what you send: queue, steer or fork."

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} is in a turn")
        self.session_id = session_id


class LeaseLost(StateError):
    code = "lease_lost"
    hint = "Another worker has the session now, and goes on with it; nothing was changed."

    def __init__(self, session_id: str, generation: int, holder: str = "") -> None:
        by = f"; {holder!r} has one" if holder else ""
        super().__init__(f"lease {generation} of session {session_id!r} is not held any more{by}")
        self.session_id, self.generation, self.holder = session_id, generation, holder


class ClaimLost(StateError):
    code = "claim_lost"
    hint = "A later holder has claimed it again, or it has ended; nothing was changed."

    def __init__(self, session_id: str, claim: str) -> None:
        super().__init__(f"claim {claim!r} of session {session_id!r} is not held any more")
        self.session_id, self.claim = session_id, claim
