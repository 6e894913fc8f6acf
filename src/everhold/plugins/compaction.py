"""A plugin that replaces the beginning of a long conversation with a summary, and keeps its end
unchanged.

    Agent(…, plugins=[Compaction(window=200_000)])

Rules
  1. A tool result stays with its call: the cut is never between them.
  2. The summary is an ordinary question to the model, with the source "compaction". If the model
     call fails, an excerpt replaces the summary.
  3. A compaction always makes the frame smaller. A single message that is too large is cut.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from everhold.core.codec import JSON, dumps
from everhold.core.usage import estimate_tokens
from everhold.errors import BadSetting
from everhold.hooks import Ask, Compact, Moment, NewFrame, Plugin

USAGE_SOURCE: Final = "compaction"
SUMMARY_PROMPT: Final = (
    "Summarise the conversation above for a reader who continues it and sees nothing else of it."
    " State the goal, the decisions and their reasons, the facts found (exact names, numbers, paths"
    " and ids), what was done, and what is left to do. Write only the summary."
)
SUMMARY_HEADING: Final = "Summary of the conversation so far:\n\n"
EXCERPT_HEADING: Final = "Last messages, with the middle left out:\n\n"


class Compaction(Plugin):
    """Compacts a frame that has grown to `at` of the window (in tokens), and keeps the last `keep`
    of it unchanged.
    """

    name: ClassVar[str] = "compaction"
    # number of measured messages, the last of them, and their size
    _measured: tuple[int, JSON, int] = (0, None, 0)

    def __init__(
        self,
        window: int = 100_000,
        *,
        at: float = 0.8,
        keep: float = 0.2,
        summary: int = 1024,
        prompt: str = SUMMARY_PROMPT,
    ) -> None:
        if not 0 <= keep < at <= 1 or window < 1 or summary < 1:
            raise BadSetting(
                "compaction",
                "0 <= keep < at <= 1 must hold, and window and summary must be 1 or more",
            )
        self._window = window
        self._prompt = prompt
        self._at, self._keep = int(window * at), int(window * keep)
        # kept end plus summary must stay below `at`
        self._summary = max(min(summary, (self._at - self._keep) // 2), 1)

    def before_turn(self, moment: Moment) -> Compact | None:
        return Compact() if self._is_full(moment) else None

    def before_checkpoint(self, moment: Moment) -> Compact | None:
        return Compact() if not moment.completing and self._is_full(moment) else None

    def before_compact(self, moment: Moment) -> Ask | NewFrame | None:
        messages = moment.messages
        cut = find_cut_point(messages, self._keep)
        if estimate_size(messages[:cut]) <= self._summary:
            return None  # a summary would not be smaller
        if not moment.said:
            return self._ask(messages[:cut], cut, moment.instructions)
        words = moment.said[-1] or format_excerpt(messages[:cut], self._summary)
        seed: list[JSON] = [SUMMARY_HEADING + clip_text(str(words), self._summary)]
        if cut == len(messages):
            seed.append(
                EXCERPT_HEADING
                + format_excerpt(
                    messages[find_last_group(messages) :], max(self._keep, self._summary)
                )
            )
        return NewFrame(seed, len(messages) - cut)

    def _ask(self, messages: list[JSON], cut: int, instructions: str) -> Ask:
        prompt = f"{self._prompt}\n\n{instructions}".strip()
        if estimate_size(messages) <= self._window - self._summary:
            return Ask(prompt, USAGE_SOURCE, max_tokens=self._summary, shown=cut)
        room = max(self._window - 2 * self._summary, self._summary)
        return Ask(
            f"{format_excerpt(messages, room)}\n\n{prompt}", USAGE_SOURCE, max_tokens=self._summary
        )

    def _is_full(self, moment: Moment) -> bool:
        return moment.context >= self._at or self._size(moment.messages) >= self._at

    def _size(self, messages: list[JSON]) -> int:
        """The size of a frame; messages that were measured before are not measured again.

        A conversation only grows, and a moved one is built anew: if the last measured message is
        the same object, so are all before it.
        """
        count, last, known = self._measured
        if not 0 < count <= len(messages) or messages[count - 1] is not last:
            count = 0
            known = 0
        known += estimate_size(messages[count:])
        self._measured = (len(messages), messages[-1] if messages else None, known)
        return known


def find_cut_point(messages: list[JSON], most: int) -> int:
    """The index where the kept end begins: as many last messages as fit into `most` tokens, without
    cutting between a call and its result.
    """
    found = at = len(messages)
    left = most
    while at > 0:
        at -= 1
        left -= estimate_size(messages[at : at + 1])
        if left < 0:
            break
        if messages[at]["role"] != "tool":
            found = at
    return found


def find_last_group(messages: list[JSON]) -> int:
    """The index of the last message, or of the call that it answers."""
    at = len(messages) - 1
    while at > 0 and messages[at]["role"] == "tool":
        at -= 1
    return at


def estimate_size(messages: list[JSON]) -> int:
    """The approximate number of tokens."""
    return sum(estimate_tokens(dumps(message["content"])) for message in messages)


def format_excerpt(messages: list[JSON], most: int) -> str:
    """The messages as text of at most about `most` tokens; the middle is left out."""
    return clip_text(
        "\n".join(f"{message['role']}: {_words(message['content'])}" for message in messages), most
    )


def clip_text(text: str, most: int) -> str:
    """Text of at most about `most` tokens; the middle is left out."""
    if estimate_tokens(text) <= most:
        return text
    half = max(most * 3 // 2, 1)  # a low estimate of three characters per token
    while estimate_tokens(text[:half]) + estimate_tokens(text[-half:]) > most and half > 1:
        half //= 2
    return f"{text[:half]} […] {text[-half:]}"


def _words(content: Any) -> str:
    parts = [block.get("text") or dumps(block) for block in content if isinstance(block, dict)]
    return " ".join(str(part) for part in parts)
