"""What an answerer says when it knows more than the value."""

from __future__ import annotations

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import Usage


class Answer(msgspec.Struct, frozen=True, gc=False):
    """An answer's value, and the tokens it cost as far as the answerer counted them."""

    value: JSON
    usage: Usage | None = None
