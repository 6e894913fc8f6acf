"""Commands of everhold in messages: complete, quoted for a shell, and for the right database.

Hints of errors, `explain`, notifications and all fronts format commands here, so that a person can
copy them as they stand.

Rules
  1. A command has nothing to fill in: it names the session as people call it, not `SESSION`.
  2. In a sentence, a command stands between backticks, or at its end after a colon.
  3. A command that reads a database names it with `-d`, unless commands find it by default.
"""

from __future__ import annotations

import re
from typing import Final

#: Commands without a database.
_WITHOUT: Final = r"(?!mcp |pkg |init|demo)"
#: A command in a sentence: between backticks, or at its end, after a colon.
_QUOTED: Final = re.compile(rf"(?<=`)everhold {_WITHOUT}[^`]*(?=`)")
_LAST: Final = re.compile(rf"(?<=: )everhold {_WITHOUT}")


def format_command(*words: str, database: str = "") -> str:
    """A command of everhold: `everhold retry batch-1 -d sqlite:////data/app.db`.

    `database` is the address that the command needs, without its password; empty if commands find
    the database by default.
    """
    return " ".join(["everhold", *map(quote_word, words)]) + format_database_option(database)


def quote_word(word: str) -> str:
    """A word as a shell takes it."""
    from shlex import quote  # imported here: most processes never need it

    return quote(word)


def format_database_option(database: str) -> str:
    """The option that names a database, with a space before it; empty for the default one."""
    return f" -d {quote_word(database)}" if database else ""


def add_database_option(sentence: str, option: str) -> str:
    """A sentence whose commands have the database option `option`."""
    if option in sentence:
        return sentence
    found = _QUOTED.sub(lambda command: command[0] + option, sentence)
    ends = max(sentence.rfind("`"), sentence.rfind(". "), 0)  # only a command after this is last
    return found + option if _LAST.search(sentence, ends) else found
