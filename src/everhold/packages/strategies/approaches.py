"""Ways of going about a task. A model that is asked the same thing five times in one conversation
says the same thing five times; asked to go about it in five ways, it makes five attempts."""

from __future__ import annotations

from typing import Final

APPROACHES: Final = (
    "Work forwards from what is given, one small step at a time.",
    "Work backwards from what is asked to what is given.",
    "Try a small or extreme case first, then carry over what you learned.",
    "Split the task into independent parts, solve each, and put them together.",
    "State your assumptions first, and drop those that the task does not support.",
    "Estimate the result roughly, then work it out and compare.",
    "Write it down formally (symbols, a table, pseudocode), then calculate.",
    "Find the most tempting wrong answer and why it is wrong, then answer.",
)


def get_approach(number: int) -> str:
    """The approach of this number; they begin again when they are used up."""
    return APPROACHES[number % len(APPROACHES)]
