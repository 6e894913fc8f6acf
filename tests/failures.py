"""A claim about every row of a table is one test: all rows are tried, and the failure lists those
that do not hold.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Row = Callable[..., AbstractContextManager[None]]


@contextmanager
def collect_failures() -> Iterator[Row]:
    """Yield `row`: a failure inside `with row(name):` is kept, and all are raised at the end."""
    failed: list[str] = []

    @contextmanager
    def row(*name: object) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            failed.append(f"{' '.join(map(str, name))}: {type(error).__name__}: {error}")

    yield row
    if failed:
        pytest.fail(f"{len(failed)} rows do not hold:\n" + "\n".join(failed), pytrace=False)
