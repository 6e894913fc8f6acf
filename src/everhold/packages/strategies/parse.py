"""Parses the answers that strategies get from models and people, however they are written.

Every function accepts any text, also an empty or a very long one, and returns what it found or
None. No function raises. Each takes time in proportion to the length of the text.
"""

from __future__ import annotations

import re
from typing import Final

from everhold.core.codec import loads
from everhold.errors import BadValue
from everhold.packages.strategies.prompt import shorten_text

_EDGE: Final = " \t\r\n*_`\"'“”‘’.,;:!#>()[]$"
_NUMBER: Final = r"(?<![\w.])-?\d{1,15}(?:\.\d{1,15})?"
_FRACTION: Final = re.compile(rf"({_NUMBER})\s{{0,3}}(?:/|out of)\s{{0,3}}({_NUMBER})")
_PERCENT: Final = re.compile(rf"({_NUMBER})\s?(?:%|percent)")
_BULLET: Final = re.compile(r"[ \t]{0,8}(?:[-*•]|\(?\d{1,3}[.):])[ \t]+(?=\S)")
_BOXED: Final = re.compile(r"\\boxed\{([^{}]{1,500})\}")
_AMOUNT: Final = re.compile(r"[$€£]?\s?(-?\d{1,3}(?:,\d{3})+|-?\d{1,15})(\.\d{1,15})?\s?(%?)")
_LEAD: Final = re.compile(
    r"(?:so|thus|therefore|hence)?,? ?(?:the )?(?:final )?answer ?(?:is|=|:):? ?", re.IGNORECASE
)


def find_marked_text(text: str, word: str) -> str | None:
    """The text after the last `WORD:` that begins a line; a mark in capitals is preferred."""
    ends = _ends(text, word.upper(), re.NOFLAG) or _ends(text, word, re.IGNORECASE)
    return (text[ends[-1] :].strip() or None) if ends else None


def extract_answer(text: str) -> str:
    """The answer after `ANSWER:`, or the whole text without it.

    Several lines such as `Answer: …`, none of them in capitals, are part of the text itself. Then
    the whole text is returned.
    """
    if not _ends(text, "ANSWER", re.NOFLAG) and len(_ends(text, "answer", re.IGNORECASE)) > 1:
        return text.strip()
    return find_marked_text(text, "answer") or text.strip()


def _ends(text: str, word: str, flags: re.RegexFlag) -> list[int]:
    """The end of each mark of this word."""
    pattern = rf"^[ \t>*_#`-]{{0,8}}(?:(?i:final) )?{word}[ \t*_`]{{0,4}}[:=][ \t*_`]{{0,4}}"
    return [found.end() for found in re.finditer(pattern, text, flags | re.MULTILINE)]


def extract_short_answer(text: str) -> str:
    """The answer in one line, for a vote; empty if there is none."""
    behind = find_marked_text(text, "answer")
    if behind:
        return behind.splitlines()[0].strip()
    if boxed := _BOXED.findall(text):
        return str(boxed[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip(_EDGE)]
    return lines[-1] if lines else ""


def normalize_answer(answer: str) -> str:
    """A form for comparing answers: without quotes and punctuation, case and digit grouping."""
    bare = " ".join(_LEAD.sub("", shorten_text(answer, 2000), count=1).split()).strip(_EDGE)
    amount = _AMOUNT.fullmatch(bare)
    if amount is None:
        return bare.casefold()
    value = float(amount[1].replace(",", "") + (amount[2] or ""))
    return f"{value:.12g}{amount[3]}"


def parse_score(text: str, most: float = 10) -> float | None:
    """A score from 0 to `most`: `SCORE: 7`, `7/10`, `70 %`, or the last number; else None."""
    marked = find_marked_text(text, "score")
    place = marked.splitlines()[0] if marked else text[-2000:]
    if fraction := _FRACTION.search(place):
        part = float(fraction[1])
        whole = float(fraction[2])
        value = part / whole * most if whole > 0 else -1.0
    elif percent := _PERCENT.search(place):
        value = float(percent[1]) / 100 * most
    elif numbers := re.findall(_NUMBER, place):
        value = float(numbers[0] if marked else numbers[-1])
    else:
        return None
    return value if 0 <= value <= most else None


def parse_choice(text: str, most: int, word: str) -> int | None:
    """A number from 1 to `most`: after `WORD:`, or the only such number in the text."""
    marked = find_marked_text(text, word)
    numbers = re.findall(
        r"(?<![\w.])\d{1,3}(?!\w|\.\d)", marked.splitlines()[0] if marked else text[-20_000:]
    )
    chosen = list(dict.fromkeys(int(number) for number in numbers if 1 <= int(number) <= most))
    return chosen[0] if chosen and (marked or len(chosen) == 1) else None


def is_verdict(text: str, word: str) -> bool:
    """Whether this word comes first after VERDICT:, or is the whole text."""
    marked = find_marked_text(text, "verdict")
    if marked is None:
        return is_only(text, word)
    return re.match(rf"{word}\b", marked.strip(_EDGE), re.IGNORECASE) is not None


def is_only(text: str, word: str) -> bool:
    """Whether the text is only this word, apart from punctuation."""
    return text.strip(_EDGE).casefold() == word.casefold()


def parse_list(text: str, most: int) -> list[str]:
    """The items of a list of any style, at most `most`, each once. Other text is one item."""
    found = _json_list(text) or _bullets(text)
    items = (shorten_text(" ".join(item.split())) for item in found or [text])
    return list(dict.fromkeys(item for item in items if item.strip(_EDGE)))[:most]


def _json_list(text: str) -> list[str]:
    begin = text.find("[")
    end = text.rfind("]")
    if not 0 <= begin < end:
        return []
    try:
        value = loads(text[begin : end + 1])
    except BadValue:
        return []
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _bullets(text: str) -> list[str]:
    items: list[list[str]] = []
    within = False  # text after an empty line is not part of the item
    for line in text.splitlines():
        if found := _BULLET.match(line):
            items.append([line[found.end() :]])
        elif within and line.strip():
            items[-1].append(line)
        within = bool(items) and bool(line.strip()) and (within or found is not None)
    return ["\n".join(lines) for lines in items]
