"""Where a conversation stands when a hook or a tool is called."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from everhold.core.codec import JSON, to_plain
from everhold.core.graph import Frame
from everhold.core.ledger import Ledger
from everhold.ports.tool_services import StateWrite, ToolSessions, ToolValues


class Moment:
    """Where a conversation stands when a hook is called. It is for reading, but for `state` and
    `sessions`.
    """

    def __init__(
        self,
        *,
        session_id: str,
        root: bool,
        turn: int,
        round: int,
        now: float,
        started: float,
        began: float,
        frame: Frame,
        options: dict[str, JSON],
        usage: Ledger,
        turn_usage: Ledger,
        messages: Callable[[], list[JSON]],
        context: int = 0,
        completing: bool = False,
        in_program: bool = False,
        instructions: str = "",
        said: tuple[JSON, ...] = (),
        decides: bool = False,
    ) -> None:
        #: root: no other session began this one
        self.session_id = session_id
        self.root = root
        #: both are counted from 1; 0 is before the first
        self.turn = turn
        self.round = round
        #: seconds: now, and when turn and session began
        self.now = now
        self.started = started
        self.began = began
        self.frame = frame
        self.options = options
        #: what was spent, in all and in this turn
        self.usage = usage
        self.turn_usage = turn_usage
        #: tokens that the model last had before its eyes, if they were counted
        self.context = context
        #: the model has nothing more to do; else it will be asked again
        self.completing = completing
        #: the tool is called by a program that the model wrote, not by the model
        self.in_program = in_program
        self.instructions = instructions  #: for a compaction, of whoever asked for it
        self.said = said  #: answers to `Ask`
        self.writes: list[StateWrite] | None = [] if decides else None
        #: durable values: read now, written with what a `before_*` decides
        self.state = ToolValues(self.writes)
        self.sessions = ToolSessions()  #: other sessions, which a `before_*` begins
        self._messages = messages

    def apart(
        self,
        written: Sequence[StateWrite],
        said: tuple[JSON, ...] = (),
        options: dict[str, JSON] | None = None,
    ) -> Moment:
        """The same moment for one plugin: it writes after what others have written, and has answers
        of its own.
        """
        found = copy.copy(self)
        found.said, found.options = (
            said,
            to_plain(self.options if options is None else options, "options"),
        )
        if self.writes is not None:
            found.writes = list(written)
            found.state = ToolValues(found.writes)
        return found

    @property
    def messages(self) -> list[JSON]:
        """What was said in the current frame, oldest first."""
        return self._messages()
