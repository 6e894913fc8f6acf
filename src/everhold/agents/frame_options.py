"""What one does with the frame of a conversation, and with the options that hold in it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everhold.agents.frames import normalize_message
from everhold.agents.prompt import parse_prompt_layer
from everhold.agents.subagent_questions import find_all_questions
from everhold.core.codec import JSON, to_plain
from everhold.core.graph import Frame
from everhold.core.options import compute_frame_options, merge_options
from everhold.core.status import OpenQuery
from everhold.core.turn import FrameOpened
from everhold.errors import BadArguments, TurnWaiting

if TYPE_CHECKING:
    from everhold.agents.session import AgentSession, Turn


class FrameVerbs:
    """The part of a conversation's handle that begins anew, and sets options."""

    async def compact(self: Any, instructions: str = "", *, id: str | None = None) -> bool:
        """Let a plugin make the context smaller; returns whether one did. Earlier frames stay
        readable.
        """
        turn = await _done(self, {"do": "compact", "instructions": instructions}, id)
        return isinstance(turn.outcome, FrameOpened) and turn.outcome.frame is not None

    async def reset(self: Any, *, id: str | None = None) -> Turn:
        """Begin anew with nothing said. History, usage and options stay; what plugins know is
        forgotten.
        """
        return await _done(self, {"do": "reset"}, id)

    async def continue_as(
        self: Any, frame: str, messages: Sequence[JSON] = (), *, id: str | None = None
    ) -> Turn:
        """Go on in a new frame of this name that begins with these messages; the current one's is
        left as it is.
        """
        seed = [normalize_message(each) for each in to_plain(list(messages), "messages")]
        return await _done(self, {"do": "continue_as", "frame": frame, "messages": seed}, id)

    async def configure(
        self: Any, options: Mapping[str, JSON], *, everywhere: bool = False, id: str | None = None
    ) -> dict[str, JSON]:
        """Set options of the current frame, or of all frames, name by name (None takes one away);
        returns all.

        `model`, `max_tokens`, `max_turns` and `prompt` are known; all others go to whoever answers
        for the model.
        """
        wanted = check_options(options)
        said: dict[str, JSON] = {"do": "configure", "options": wanted}
        turn = await _done(self, {**said, "everywhere": True} if everywhere else said, id)
        return dict(getattr(turn.outcome, "options", {}))

    async def options(self: Any, frame: str | None = None) -> dict[str, JSON]:
        """The options that hold in the current frame, or in another one, over those of the
        agent.
        """
        conversation = await self._told()
        graph = conversation.graph
        return merge_options(
            dict(self.agent.options),
            compute_frame_options(
                conversation.options, conversation.turns, graph.frames, frame or graph.frame.id
            ),
        )

    async def frames(self: Any) -> list[Frame]:
        """All frames on the way to where the conversation stands, oldest first."""
        return list((await self._told()).graph.frames)

    async def messages(self: Any, frame: str | None = None) -> list[JSON]:
        """What was said in the current frame, or in an earlier one."""
        return list((await self._told()).graph.messages(frame))


def check_options(options: Mapping[str, JSON]) -> dict[str, JSON]:
    """Options as they are kept; raises `BadValue` or `BadArguments` for what cannot be."""
    found: Any = to_plain(dict(options), "options")
    parse_prompt_layer(found.get("prompt"))
    for name in ("max_turns", "max_tokens"):
        most = found.get(name)
        if most is not None and (type(most) is not int or most < 1):
            raise BadArguments("options", f"{name} should be 1 or more, got {most!r}")
    if not isinstance(found.get("model") or "", str):
        raise BadArguments("options", "model should be the name of one")
    return dict(found)


async def _done(session: AgentSession, said: dict[str, JSON], given_id: str | None) -> Turn:
    input_id = given_id or f"i-{secrets.token_hex(8)}"
    _refuse_while_waiting(await find_all_questions(session))
    await session._runtime._say(session.id, {**said, "id": input_id})
    turn = await session.turn(input_id)
    _refuse_while_waiting(turn.queries)
    return turn


def _refuse_while_waiting(queries: Sequence[OpenQuery]) -> None:
    """A command waits for the turn under way; where that waits for somebody outside, it would wait
    for ever.
    """
    if queries:
        raise TurnWaiting(queries[0].session_id, queries[0].id, queries[0].kind)
