"""The command `budget`: shows what a session may spend, and changes it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from everhold.cli.context import describe_user, open_command_runtime
from everhold.cli.options import (
    AnswerOptions,
    BudgetOptions,
    add_answer_options,
    add_budget_options,
    add_common_options,
    as_option,
    open_moving_runtime,
    session_argument,
    wait_option,
)
from everhold.cli.output import print_footer, print_json, print_table
from everhold.cli.terminal import drive_until_blocked

if TYPE_CHECKING:
    from everhold.core.budget import Budget
    from everhold.ports.store import SessionRecord


@click.command("budget")
@session_argument
@add_budget_options
@as_option
@wait_option("How long to wait for timers and other processes. Default: until they are done.")
@add_answer_options
@add_common_options
def budget_(
    session: str,
    limits: BudgetOptions,
    name: str | None,
    wait: float | None,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Show what a session may spend, or change it.

    A changed budget holds at once, and the session resumes from where it was. One that has failed
    is retried. Limits that are not named stay.

    \b
    everhold budget refund-7
    everhold budget refund-7 --max-llm-calls 40
    """
    if not limits.change:
        with open_command_runtime(database) as opened:
            _show(opened.record(opened.session(session)), as_json=as_json)
            if not as_json:
                print_footer(opened.database)
        return 0
    with open_moving_runtime(database, answerer, shows=not as_json) as opened:
        session_id = opened.session(session)
        status = opened.runtime.set_budget(
            session_id, limits.change, by=describe_user(name), wait=wait
        )
        return drive_until_blocked(opened, status, wait=wait, as_json=as_json)


def _show(record: SessionRecord, *, as_json: bool) -> None:
    birth, head = record.birth, record.head
    until = head.updated_at if head.ended else time.time()
    used = {
        "max_llm_calls": head.metrics.llm_calls,
        "max_elapsed_ms": max(0, int((until - birth.created_at) * 1000)),
        "max_tokens": head.metrics.tokens,
    }
    budget = _find_budget(record)
    if as_json:
        return print_json(
            {"session_id": birth.id, "key": birth.key, "budget": budget.json(), "used": used}
        )
    limits = budget.json()
    rows = [
        (
            name,
            str(limits.get(name, "no limit")),
            str(amount),
            _format_rest(limits.get(name), amount),
        )
        for name, amount in used.items()
    ]
    print_table(("limit", "budget", "used", "left"), rows, wide=("limit",))


def _find_budget(record: SessionRecord) -> Budget:
    """The limits that hold now; those of a Lua program's ctx count if the session has none."""
    from everhold.core.budget import Budget
    from everhold.core.session import get_budget
    from everhold.packages.program_hosts import is_lua_ref
    from everhold.programs.lua.program import LuaProgram

    birth = record.birth
    budget = get_budget(birth, record.head.metrics)
    if budget is None and is_lua_ref(birth.program):
        budget = Budget.read(LuaProgram(birth.program).ctx(birth.args).get("budget"))
    return budget or Budget()


def _format_rest(limit: int | None, used: int) -> str:
    return "" if limit is None else str(max(limit - used, 0))
