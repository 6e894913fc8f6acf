"""What tests of programs share."""

import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No warning, no log line, nothing on stderr from Python itself, neither at once nor when
    rubbish is found.
    """
    unraisable: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield
            gc.collect(1)
    finally:
        sys.unraisablehook = before
    assert [str(warning.message) for warning in heard] == []
    assert caplog.messages == []
    assert unraisable == []
