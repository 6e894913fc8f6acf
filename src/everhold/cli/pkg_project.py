"""Commands of `pkg` that look after packages and projects: doctor, repair, scaffold, init, update,
migrate.
"""

from __future__ import annotations

from typing import Any, Final

import click

from everhold.cli.context import json_option
from everhold.cli.output import print_json, strip_controls

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
def diagnose_pkg(name: str | None, project: str | None, as_json: bool) -> int:
    """Say what is wrong with packages, and what to do about it."""
    from everhold.packages import distributions
    from everhold.packages.lua.api import doctor
    from everhold.wire import ExitCode

    told = doctor(name, project)
    if name is None:
        told["python"] = distributions.check_distributions()
    wrong = [one for key, found in told.items() if key != "healthy" for one in found]
    if as_json:
        print_json(told)
    else:
        for one in told["healthy"]:
            click.echo(f"✓ {one['name']}")
        for one in wrong:
            _tell(one)
        if not wrong:
            click.echo("Nothing is wrong.")
    return ExitCode.FAILED if wrong else ExitCode.OK


def _tell(one: dict[str, Any]) -> None:
    missing = ", ".join(one.get("missing_subs") or one.get("missing") or [])
    click.secho(
        strip_controls(f"✗ {one['name']}: {one.get('reason') or f'missing: {missing}'}"), fg="red"
    )
    click.echo(f"  hint: {_ADVICE[one['kind']].format(name=one['name'])}")


@click.command("repair")
@click.argument("name", required=False)
@project_option
@json_option
def repair_pkg(name: str | None, project: str | None, as_json: bool) -> int:
    """Get again what is gone or incomplete, from where it came."""
    from everhold.packages.lua.api import repair
    from everhold.wire import ExitCode

    told = repair(name, project)
    left = [*told["unrepairable"], *told["failed"]]
    if as_json:
        print_json(told)
    else:
        for one in told["repaired"]:
            click.echo(strip_controls(f"✓ {one['name']}, from {one['source']}"))
        for one in left:
            _tell(one)
        if not told["repaired"] and not left:
            click.echo("Nothing is wrong.")
    return ExitCode.FAILED if left else ExitCode.OK


@click.command("scaffold")
@click.argument("name")
@click.option("--in", "folder", default=".", metavar="DIR", help="The folder in which it is made.")
@click.option("--category", help="What kind of program it is.")
@click.option("--description", help="What it is for, in one sentence.")
@json_option
def scaffold_pkg(
    name: str, folder: str, category: str | None, description: str | None, as_json: bool
) -> None:
    """Make a Lua package that runs, and a test for it that passes."""
    from everhold.packages.lua.api import scaffold

    told = scaffold(name, folder, category=category, description=description)
    if as_json:
        return print_json(told)
    click.echo(f"made {told['path']}\nmade {told['test_path']}")


@click.command("init")
@project_option
@json_option
def init_pkg_project(project: str | None, as_json: bool) -> None:
    """Begin a list of the packages that a project needs: alc.toml."""
    from everhold.packages.lua.api import init

    told = init(project)
    if as_json:
        return print_json(told)
    click.echo(f"made {told['created']}")
    click.secho(f"types for editors of Lua: {told['types_path']}", dim=True)


@click.command("update")
@project_option
@json_option
def update_pkg_project(project: str | None, as_json: bool) -> int:
    """Resolve what alc.toml needs, and write alc.lock."""
    from everhold.packages.lua.api import update
    from everhold.wire import ExitCode

    told = update(project)
    if as_json:
        print_json(told)
    else:
        click.echo(f"{told['resolved']} resolved in {told['alc_lock']}")
        for error in told["errors"]:
            click.secho(strip_controls(f"✗ {error}"), fg="red")
    return ExitCode.FAILED if told["errors"] else ExitCode.OK


@click.command("migrate")
@project_option
@json_option
def migrate_pkg_project(project: str | None, as_json: bool) -> None:
    """Make an alc.toml of an old alc.lock."""
    from everhold.packages.lua.api import migrate

    told = migrate(project)
    if as_json:
        return print_json(told)
    if "reason" in told:
        click.echo(f"Nothing to do: {told['reason']}.")
    else:
        click.echo(
            f"made {told['alc_toml']}; the old lock is {told['backup']}\nNow: everhold pkg update"
        )
