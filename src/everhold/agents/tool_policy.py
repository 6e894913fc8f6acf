"""Who decides about a call: functions that are asked before a tool runs, every time it is about to
run.

    def careful(wanted: Wanted) -> Verdict:
        return Allow() if wanted.read_only else Confirm("it changes something")

Rules
  1. A policy is asked inside the effect of the call, so that a replay does not ask again: the
     journal has its verdict.
  2. It fails closed. One that raises, or says what is no verdict, denies.
  3. Several are asked in their order until one denies. Of those that want a confirmation each has
     its own.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from everhold.core.tool import Allow, Confirm, Deny, Verdict, Wanted
from everhold.errors import BadArguments

log = logging.getLogger("everhold")

#: Decides whether a tool call may run.
Policy = Callable[[Wanted], Verdict | Awaitable[Verdict]]


def collect_policies(given: Any) -> tuple[Policy, ...]:
    """One policy, several, or none."""
    found = () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)
    for one in found:
        if not callable(one):
            raise BadArguments("policy", f"{one!r} is not a function")
    return found


def inherit_policies(own: Sequence[Policy], parent: Sequence[Policy]) -> tuple[Policy, ...]:
    """The policies of a subagent: its parent's, and then its own. Nobody escapes by delegating."""
    return (*parent, *(one for one in own if one not in parent))


async def evaluate_policies(policies: Sequence[Policy], wanted: Wanted) -> Deny | list[Confirm]:
    """The first denial, or the confirmations that are wanted; none of them: the call is allowed."""
    found: list[Confirm] = []
    for policy in policies:
        verdict = await _asked(policy, wanted)
        if isinstance(verdict, Deny):
            return verdict
        found += [verdict] if isinstance(verdict, Confirm) else []
    return found


async def _asked(policy: Policy, wanted: Wanted) -> Verdict:
    try:
        said: Any = policy(wanted)
        if inspect.isawaitable(said):
            said = await said
    except Exception as error:
        log.exception("the policy before %s failed; the call is denied", wanted.tool)
        return Deny(f"the policy failed ({type(error).__name__})")
    if isinstance(said, Allow | Deny | Confirm):
        return said
    log.error(
        "the policy before %s said %r, which is no verdict; the call is denied", wanted.tool, said
    )
    return Deny("the policy gave no verdict")
