"""Every adapter for fluers' envelopes keeps the same promises."""

import pytest

from everhold.stores import JsonFiles, MemoryAdapter, PostgresEnvelopes, SQLiteEnvelopes
from everhold.testing.conformance import EnvelopeAdapterContract


class TestMemory(EnvelopeAdapterContract):
    @pytest.fixture
    def open_adapter(self):
        adapter = MemoryAdapter()
        return lambda: adapter


class TestJsonFiles(EnvelopeAdapterContract):
    @pytest.fixture
    def open_adapter(self, tmp_path):
        return lambda: JsonFiles(tmp_path / "sessions")


class TestSQLite(EnvelopeAdapterContract):
    @pytest.fixture
    def open_adapter(self, tmp_path):
        return lambda: SQLiteEnvelopes(tmp_path / "sub" / "sessions.db")


@pytest.mark.xdist_group("postgres")
class TestPostgres(EnvelopeAdapterContract):
    holds_nul = False

    @pytest.fixture
    def open_adapter(self, postgres):
        postgres.run('DROP SCHEMA IF EXISTS "envelopes" CASCADE')
        return lambda: PostgresEnvelopes(f"{postgres.url}?schema=envelopes")


@pytest.mark.xdist_group("postgres")
class TestPostgresAsFluersMakesIt(EnvelopeAdapterContract):
    """Without a schema in the address: the table is where fluers looks for it."""

    holds_nul = False

    @pytest.fixture
    def open_adapter(self, postgres):
        postgres.run("DROP TABLE IF EXISTS public.fluers_sessions")
        yield lambda: PostgresEnvelopes(postgres.url)
        postgres.run("DROP TABLE IF EXISTS public.fluers_sessions")
