"""Taking over what algocline left: `everhold import --algocline HOME`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.context import CommandRuntime
from everhold.cli.output import format_count, print_footer, print_json
from everhold.errors import BadSetting, Overtaken

if TYPE_CHECKING:
    from everhold.packages.lua.legacy_import import LegacyData, LegacyPart
    from everhold.ports.store import Change, Store
    from everhold.runtime import Runtime


def import_algocline_home(
    house: CommandRuntime, home: str, *, dry_run: bool, as_json: bool, where: str
) -> None:
    """Take values and cards over that are not here yet, all at once or none, and say what was
    done.
    """
    from everhold.packages.lua.legacy_import import read_legacy_data
    from everhold.packages.lua.lua_settings import read_lua_options
    from everhold.packages.lua.paths import AlcHome

    root = Path(home).expanduser().absolute()
    if not root.is_dir():
        raise BadSetting("--algocline", f"there is no folder {root}")
    shares = read_lua_options(house.settings).shares
    found = read_legacy_data(AlcHome(root), shares)
    fresh, session_id = house.ask(lambda runtime: _taken(runtime, root, found.parts, dry_run))
    told = _told(found, fresh)
    if as_json:
        facts = {"database": where, "home": str(root), "dry_run": dry_run, "session_id": session_id}
        return print_json({**facts, **told})
    _say(told, "would take over" if dry_run else "took over")
    print_footer(where)


async def _taken(
    runtime: Runtime, root: Path, parts: list[LegacyPart], dry_run: bool
) -> tuple[list[LegacyPart], str | None]:
    while True:
        fresh = [part for part in parts if (await runtime.store.value(*part.values[0][:2]))[1] == 0]
        if dry_run or not fresh:
            return fresh, None
        change = await _change(runtime.store, root, fresh, runtime.clock.now())
        try:
            await runtime.store.commit(change, 0)
        except Overtaken:  # somebody writes at this moment: look again
            continue
        return fresh, change.id


async def _change(store: Store, root: Path, fresh: list[LegacyPart], now: float) -> Change:
    """A session that has ended, with everything it brought: values come into a database with a
    session only.
    """
    from everhold.archive.archive import get_everhold_version
    from everhold.core.journal import Delivery, DeliveryNotes
    from everhold.core.metrics import Metrics
    from everhold.core.session import Birth, Head, Seed, SessionState, mint
    from everhold.core.status import Returned
    from everhold.ports.store import Change, ValueWrite

    birth = Birth(
        id=mint(now, secrets.randbits(96)),
        program="everhold:import-algocline",
        args={"home": str(root)},
        created_at=now,
        seeds=[Seed(0, secrets.token_hex(12))],
        title=f"taken over from {root}",
        everhold=get_everhold_version(),
    )
    writes = [
        ValueWrite(namespace, key, [value], 0)
        for part in fresh
        for namespace, key, value in part.values
        if (await store.value(namespace, key))[1] == 0
    ]
    notes = DeliveryNotes(outcome=Returned({"values": len(writes)}))
    head = Head(0, 1, SessionState.COMPLETED, 0, 0, None, now, Metrics())
    return Change(
        id=birth.id,
        head=head,
        deliveries=[Delivery(0, now, notes=notes)],
        birth=birth,
        writes=writes,
        durable=True,
    )


def _told(found: LegacyData, fresh: list[LegacyPart]) -> dict[str, Any]:
    """How much of each there was, and how much of it is new."""
    told: dict[str, Any] = {}
    for kind, name in (("value", "values"), ("card", "cards"), ("alias", "aliases")):
        new = [part.name for part in fresh if part.kind == kind]
        told[name] = {
            "taken": new,
            "skipped": sum(part.kind == kind for part in found.parts) - len(new),
        }
    return {**told, "logs": found.logs, "problems": found.problems}


def _say(told: dict[str, Any], did: str) -> None:
    parts = (
        format_count(len(told["values"]["taken"]), "value"),
        format_count(len(told["cards"]["taken"]), "card"),
    )
    aliases = len(told["aliases"]["taken"])
    named = f" and {aliases} alias{'' if aliases == 1 else 'es'} of cards" if aliases else ""
    skipped = sum(told[name]["skipped"] for name in ("values", "cards", "aliases"))
    click.echo(
        f"{did} {', '.join(parts)}{named}" + (f"; here already: {skipped}" if skipped else "")
    )
    if told["logs"]:
        click.echo(
            f"{format_count(told['logs'], 'log')} can be read in place: `everhold mcp --profile"
            " algocline`"
        )
    for problem in told["problems"]:
        click.secho(f"passed over: {problem}", fg="yellow", err=True)
