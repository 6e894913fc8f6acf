"""What SQLite does for the statements of every step, as its own plans say."""

from contextlib import closing

import pytest

from everhold.stores.sqlite.database import connect_file, prepare_database
from everhold.stores.sqlite.write import DELIVER, FULL, LIGHT


@pytest.mark.parametrize("statement", [LIGHT, FULL, DELIVER])
def test_a_step_builds_no_table_on_the_way(statement, tmp_path):
    """The condition of an index is evaluated at each change of its column: `IN (...)` in one would
    make SQLite fill a table of its values twice a step.
    """
    path = tmp_path / "app.db"
    with closing(connect_file(path)) as connection:
        prepare_database(connection, path)
        plan = connection.execute(f"EXPLAIN {statement}", [1] * statement.count("?")).fetchall()
    codes = [row[1] for row in plan]
    assert "Insert" in codes  # the plan of a write
    assert "OpenEphemeral" not in codes


def test_a_light_step_opens_one_index_of_the_head_at_most(tmp_path):
    """That of ended sessions, which a light step never enters."""
    path = tmp_path / "app.db"
    with closing(connect_file(path)) as connection:
        prepare_database(connection, path)
        plan = connection.execute(f"EXPLAIN {LIGHT}", [1] * LIGHT.count("?")).fetchall()
    opened = [row for row in plan if row[1] == "OpenWrite"]
    assert len(opened) <= 2, opened  # the table, and `head_ended`
