"""Lazy exports load a public name when it is used, and say which extra it needs."""

import sys

import pytest

import everhold.stores
from everhold.errors import MissingExtra


def test_a_name_whose_extra_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("everhold.stores.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(vars(everhold.stores), "PostgresStore", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra) as caught:
        everhold.stores.PostgresStore  # noqa: B018
    assert str(caught.value) == "everhold.stores.PostgresStore needs the extra 'postgres'"
    assert caught.value.hint == "pip install 'everhold[postgres]'"
