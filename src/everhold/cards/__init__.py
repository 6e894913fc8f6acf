"""Cards: immutable records of runs and their scores, in the database and in algocline's files.

Cards         `runtime.cards`
CardProblem   a file among the cards that cannot be read
SinkReport    what a backfill copied to a sink
"""

from everhold.cards.cards import CARD_PROGRAM, CARD_SPACE, Cards, CardSource
from everhold.cards.sinks import SinkReport
from everhold.cards.view import CARD_NAMESPACES
from everhold.packages.lua.card_files import CardProblem

__all__ = [
    "CARD_NAMESPACES",
    "CARD_PROGRAM",
    "CARD_SPACE",
    "CardProblem",
    "CardSource",
    "Cards",
    "SinkReport",
]
