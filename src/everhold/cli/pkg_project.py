"""Commands of `pkg` that look after packages and projects: doctor, repair, scaffold, init, update,
migrate.
"""

from __future__ import annotations

from typing import Any, Final

import click

from everhold.cli.context import json_option
from everhold.cli.output import clean, json_out

project_option = click.option(
    "--project", metavar="DIR", help="The project; without it, the nearest with an alc.toml."
)

#: What to do about each finding, as one says it here.
_ADVICE: Final = {
    "installed_missing": (
        "everhold pkg repair {name}, or remove it: everhold pkg remove {name} --global"
    ),
    "incomplete_pkg": "everhold pkg repair {name}",
    "symlink_dangling": "everhold pkg unlink {name}, then link the new place",
    "path_missing": "put it back, or edit alc.toml (alc.local.toml)",
    "pin_missing": "everhold pkg repair {name}, or everhold pkg update",
    "files_missing": "install it again: everhold pkg install --python",
}


@click.command("doctor")
@click.argument("name", required=False)
@project_option
@json_option
def doctor_(name: str | None, project: str | None, as_json: bool) -> int:
    """Say what is wrong with packages, and what to do about it."""
    from everhold.packages import distributions
    from everhold.packages.lua.api import doctor
    from everhold.wire import Exit

    told = doctor(name, project)
    if name is None:
        told["python"] = distributions.checked()
    wrong = [one for key, found in told.items() if key != "healthy" for one in found]
    if as_json:
        json_out(told)
    else:
        for one in told["healthy"]:
            click.echo(f"✓ {one['name']}")
        for one in wrong:
            _tell(one)
        if not wrong:
            click.echo("Nothing is wrong.")
    return Exit.FAILED if wrong else Exit.OK


def _tell(one: dict[str, Any]) -> None:
    missing = ", ".join(one.get("missing_subs") or one.get("missing") or [])
    click.secho(clean(f"✗ {one['name']}: {one.get('reason') or f'missing: {missing}'}"), fg="red")
    click.echo(f"  hint: {_ADVICE[one['kind']].format(name=one['name'])}")


@click.command("repair")
@click.argument("name", required=False)
@project_option
@json_option
def repair_(name: str | None, project: str | None, as_json: bool) -> int:
    """Get again what is gone or incomplete, from where it came."""
    from everhold.packages.lua.api import repair
    from everhold.wire import Exit

    told = repair(name, project)
    left = [*told["unrepairable"], *told["failed"]]
    if as_json:
        json_out(told)
    else:
        for one in told["repaired"]:
            click.echo(clean(f"✓ {one['name']}, from {one['source']}"))
        for one in left:
            _tell(one)
        if not told["repaired"] and not left:
            click.echo("Nothing is wrong.")
    return Exit.FAILED if left else Exit.OK


@click.command("scaffold")
@click.argument("name")
@click.option("--in", "folder", default=".", metavar="DIR", help="The folder in which it is made.")
@click.option("--category", help="What kind of program it is.")
@click.option("--description", help="What it is for, in one sentence.")
@json_option
def scaffold_(
    name: str, folder: str, category: str | None, description: str | None, as_json: bool
) -> None:
    """Make a Lua package that runs, and a test for it that passes."""
    from everhold.packages.lua.api import scaffold

    told = scaffold(name, folder, category=category, description=description)
    if as_json:
        return json_out(told)
    click.echo(f"made {told['path']}\nmade {told['test_path']}")


@click.command("init")
@project_option
@json_option
def init_(project: str | None, as_json: bool) -> None:
    """Begin a list of the packages that a project needs: alc.toml."""
    from everhold.packages.lua.api import init

    told = init(project)
    if as_json:
        return json_out(told)
    click.echo(f"made {told['created']}")
    click.secho(f"types for editors of Lua: {told['types_path']}", dim=True)


@click.command("update")
@project_option
@json_option
def update_(project: str | None, as_json: bool) -> int:
    """Resolve what alc.toml needs, and write alc.lock."""
    from everhold.packages.lua.api import update
    from everhold.wire import Exit

    told = update(project)
    if as_json:
        json_out(told)
    else:
        click.echo(f"{told['resolved']} resolved in {told['alc_lock']}")
        for error in told["errors"]:
            click.secho(clean(f"✗ {error}"), fg="red")
    return Exit.FAILED if told["errors"] else Exit.OK


@click.command("migrate")
@project_option
@json_option
def migrate_(project: str | None, as_json: bool) -> None:
    """Make an alc.toml of an old alc.lock."""
    from everhold.packages.lua.api import migrate

    told = migrate(project)
    if as_json:
        return json_out(told)
    if "reason" in told:
        click.echo(f"Nothing to do: {told['reason']}.")
    else:
        click.echo(
            f"made {told['alc_toml']}; the old lock is {told['backup']}\nNow: everhold pkg update"
        )
