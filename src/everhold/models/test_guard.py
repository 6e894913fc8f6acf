"""Whether real models may be asked in this process. While a test has the fixture `everhold`, they
may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everhold.errors import BadSetting


class _Guard:
    wanted = 0


@contextmanager
def refuse_real_models() -> Iterator[None]:
    """Refuse real models meanwhile, whoever asks for one and however it is named."""
    _Guard.wanted += 1
    try:
        yield
    finally:
        _Guard.wanted -= 1


def refuse_in_tests(model: str) -> None:
    """Raise `BadSetting` where a test runs that asks no real models."""
    if _Guard.wanted:
        raise BadSetting(
            "llm",
            f"{model} is a real model, and a test with the fixture everhold asks none; give it"
            " answers instead",
        )
