"""Ports are complete: what an implementation may have is named there, and nothing is probed for."""

import ast
from pathlib import Path
from typing import Protocol

import pytest

import everhold
from everhold.models import Answerer
from everhold.ports.program import Execution
from everhold.ports.store import Maintenance, Store
from everhold.programs.lua.execution import LuaExecution
from everhold.programs.lua.remote import RemoteLuaExecution
from everhold.programs.python.execution import PythonExecution
from everhold.stores.memory import MemoryStore
from everhold.stores.memory_maintenance import MemoryMaintenance
from everhold.stores.postgres import PostgresStore
from everhold.stores.postgres.maintenance import PostgresMaintenance
from everhold.stores.sqlite import SQLiteStore
from everhold.stores.sqlite.maintenance import SQLiteMaintenance
from everhold.testing.store_wrapper import MaintenanceWrapper, StoreWrapper


def list_members(port):
    """The public members of a port: verbs, and attributes that are declared."""
    names = {*dir(port), *port.__annotations__} - {*dir(Protocol), *dir(object)}
    return {name for name in names if not name.startswith("_")}


STORES = (MemoryStore(), SQLiteStore("x.db"), PostgresStore("postgresql://h/x"))
STORES = (*STORES, StoreWrapper(MemoryStore()))
MAINTENANCE = (MemoryMaintenance, SQLiteMaintenance, PostgresMaintenance, MaintenanceWrapper)
EXECUTIONS = (PythonExecution, LuaExecution, RemoteLuaExecution)
#: Attributes that each object has from its constructor.
GIVEN = {
    *("meter", "program", "keep", "after", "spent", "budget"),
    *("replaying", "recorded", "recorded_versions"),
}


@pytest.mark.parametrize("store", STORES, ids=lambda store: type(store).__name__)
def test_a_store_has_every_member_of_the_port(store):
    """Also those that are not verbs."""
    assert list_members(Store) - set(dir(store)) == set()


@pytest.mark.parametrize("kind", MAINTENANCE)
def test_maintenance_has_every_member_of_the_port(kind):
    """So do the classes beside our stores."""
    assert list_members(Maintenance) - set(dir(kind)) == set()


@pytest.mark.parametrize("kind", EXECUTIONS)
def test_an_execution_has_every_member_of_the_port(kind):
    """Also one in another language, or another process."""
    assert list_members(Execution) - set(dir(kind)) - GIVEN == set()


def test_no_port_object_is_probed():
    """No `getattr` or `hasattr` in the source asks for a member of a port by its name."""
    members = set.union(*map(list_members, (Store, Maintenance, Execution, Answerer)))
    root = Path(everhold.__file__).parent
    probed = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value in members
    ]
    assert probed == []


def test_a_mere_answer_is_not_an_answerer():
    """An answerer inherits the port, so that it has the rest of it."""

    class Duck:
        async def answer(self, query, session_id):
            return "quack"

    with pytest.raises(everhold.errors.BadSetting, match=r"everhold\.models\.Answerer"):
        everhold.open("memory://", llm=Duck())
