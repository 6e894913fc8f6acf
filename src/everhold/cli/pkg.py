"""Commands for packages of programs: `pkg` and its verbs. They are those of `packages/lua/api.py`.

Python packages are installed by pip, and only where somebody says `--python`: installing one runs
what it is built with.

Commands of `pkg` that look after packages and projects: doctor, repair, scaffold, init, update,
migrate.

Commands of `pkg` that say which Lua packages the user vouches for: trust, untrust, trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.context import at_terminal, confirm, load_settings
from everhold.cli.options import json_option, make_usage_error, parse_pairs
from everhold.cli.output import format_count, print_json, print_table, strip_controls
from everhold.errors import NotAllowed, UnknownProgram


@click.command("trust")
@click.argument("package")
@json_option
def trust_pkg(package: str, as_json: bool) -> None:
    """Let a Lua package run in everhold's own process, as it is now.

    PACKAGE is the name of a package, its folder, or a .lua file. When one of its files changes it
    is not trusted any more, and runs in a process of its own again, like every other.
    """
    from everhold.packages.lua.trust import trust_package

    mark = trust_package(_package_path(package))
    if as_json:
        return print_json({"trusted": mark.path, "digest": mark.digest})
    click.echo(f"trusted as it is now: {mark.path}")


@click.command("untrust")
@click.argument("package")
@json_option
def untrust_pkg(package: str, as_json: bool) -> None:
    """Trust a Lua package no longer; PACKAGE as for `pkg trust`."""
    from everhold.packages.lua.trust import untrust_package

    place = _package_path(package)
    was = untrust_package(place)
    if as_json:
        return print_json({"untrusted": str(place.resolve()), "was_trusted": was})
    click.echo(f"{'no longer trusted' if was else 'it was not trusted'}: {place.resolve()}")


@click.command("trusted")
@json_option
def list_trusted_pkgs(as_json: bool) -> None:
    """List the packages you trust, and which of them changed since."""
    from everhold.packages.lua.trust import list_trust_marks

    found = list_trust_marks()
    if as_json:
        rows = [{"path": mark.path, "digest": mark.digest, "trusted": fits} for mark, fits in found]
        return print_json({"packages": rows})
    if not found:
        click.echo("No package is trusted; all run in processes of their own.")
        return
    print_table(
        ["package", "now"],
        [[mark.path, "trusted" if fits else "changed: not trusted"] for mark, fits in found],
        wide=["package"],
    )


def _package_path(package: str) -> Path:
    """The folder or file that is meant; a name means what it does for `run`, and a folder of that
    name if nothing.
    """
    from everhold.packages.catalog import find_named_program
    from everhold.packages.find import is_path_ref
    from everhold.programs.lua.program import LuaProgram

    if is_path_ref(package):
        return Path(package).expanduser()
    try:
        program = find_named_program(package, load_settings(None))
    except UnknownProgram:
        if Path(package, "init.lua").is_file():
            return Path(package)
        raise
    if not isinstance(program, LuaProgram) or program.main is None:
        raise NotAllowed(
            f"{package} is Python, and always runs here", "Only Lua packages are trusted or not."
        )
    return program.main.parent if program.is_package else program.main


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
    from everhold.packages.lua.doctor import doctor
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
    from everhold.packages.lua.doctor import repair
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
    from everhold.packages.lua.scaffold import scaffold

    told = scaffold(name, folder, category=category, description=description)
    if as_json:
        return print_json(told)
    click.echo(f"made {told['path']}\nmade {told['test_path']}")


@click.command("init")
@project_option
@json_option
def init_pkg_project(project: str | None, as_json: bool) -> None:
    """Begin a list of the packages that a project needs: alc.toml."""
    from everhold.packages.lua.scaffold import init

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
    from everhold.packages.lua.resolve import update
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
    from everhold.packages.lua.legacy_import import migrate

    told = migrate(project)
    if as_json:
        return print_json(told)
    if "reason" in told:
        click.echo(f"Nothing to do: {told['reason']}.")
    else:
        click.echo(
            f"made {told['alc_toml']}; the old lock is {told['backup']}\nNow: everhold pkg update"
        )


python_option = click.option(
    "--python", "is_python", is_flag=True, help="A Python package, by pip into this environment."
)


@click.group("pkg", cls=SubcommandGroup, invoke_without_command=True)
@click.pass_context
def pkg_(ctx: click.Context) -> None:
    """Install, link, list, mend and trust packages of programs."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_pkg)


@pkg_.command("list")
@click.option("--limit", default=0, metavar="N", help="At most so many; 0 means all.")
@click.option(
    "--sort",
    default="-active,name",
    show_default=True,
    metavar="KEYS",
    help="Keys; - before one turns it round.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only those that say exactly this.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="KEY",
    help="With --json: these keys of each, and no other.",
)
@click.option("--full", is_flag=True, help="With --json: all that is known of each.")
@project_option
@json_option
def list_pkg(
    limit: int = 0,
    sort: str = "-active,name",
    filters: tuple[str, ...] = (),
    fields: tuple[str, ...] = (),
    full: bool = False,
    project: str | None = None,
    as_json: bool = False,
) -> None:
    """List the packages that are here, and which of them a name means."""
    from everhold.packages import distributions
    from everhold.packages.lua.listing import list_packages
    from everhold.packages.settings import PACKAGES_FOLDER

    found = load_settings(None)
    near = [(path, "settings") for path in (*found.packages_path, found.root / PACKAGES_FOLDER)]
    told = list_packages(
        project,
        limit=limit,
        sort=sort,
        filter={key: _value(text) for key, text in parse_pairs(filters, "--filter").items()},
        fields=list(fields) or None,
        verbose="full" if full or not as_json else "summary",
        more=near,
    )
    told["python"] = distributions.list_distributions()
    if as_json:
        return print_json(told)
    _rows(told)


def _value(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


def _rows(told: dict[str, Any]) -> None:
    rows = [
        (
            row["name"],
            row.get("version", ""),
            row["scope"] if row["active"] else f"{row['scope']}, hidden",
            row["resolved_source_kind"],
            row.get("error") or row.get("description", ""),
        )
        for row in told["packages"]
    ]
    rows += [
        (row["name"], row["version"], "Python", _origin(row), ", ".join(row["programs"]))
        for row in told["python"]
    ]
    if rows:
        print_table(("name", "version", "for", "is", "what it does"), rows, wide=("what it does",))
    else:
        click.echo("No packages are installed. `everhold pkg install` takes a folder or a git URL.")
    for warning in told.get("warnings", []):
        click.secho(f"warning: {warning}", fg="red", err=True)
    click.secho(f"looked in {', '.join(path['path'] for path in told['search_paths'])}", dim=True)


def _origin(row: dict[str, Any]) -> str:
    return "linked" if row.get("linked") else "installed"


# ---- putting in


@pkg_.command("install")
@click.argument("source")
@click.option("--name", help="Another name than that of the folder or the repository.")
@click.option("--rev", metavar="REV", help="A tag, a branch or a commit of the repository.")
@click.option(
    "--force", is_flag=True, help="Replace a package of that name that came from elsewhere."
)
@click.option(
    "--max-size", metavar="SIZE", help="Install up to this size without asking, such as 50MB."
)
@click.option(
    "--trust/--no-trust", default=None, help="Whether they may run in everhold's own process."
)
@python_option
@project_option
@json_option
def install_pkg(
    source: str,
    name: str | None,
    rev: str | None,
    force: bool,
    max_size: str | None,
    trust: bool | None,
    is_python: bool,
    project: str | None,
    as_json: bool,
) -> None:
    """Install packages from a folder or a git repository, or update them.

    SOURCE is a folder, or the address of a repository: github.com/ana/debate, git@host:path,
    file:///path. If there is an init.lua at its top it is one package, else each folder with an
    init.lua is one. Nothing of a package is run.
    """
    if is_python:
        if name or force or max_size is not None or trust is not None:
            raise make_usage_error(
                "--name, --force, --max-size and --trust are not for Python packages"
            )
        return _python(source, rev, linked=False, as_json=as_json)
    from everhold.packages.lua.install import install
    from everhold.packages.settings import parse_size

    limit = None if max_size is None else parse_size(max_size, "--max-size")
    accept = None if as_json or not at_terminal() else _accepted
    told = install(
        _place(source), name, rev=rev, force=force, project=project, limit=limit, accept=accept
    )
    here = [*told["installed"], *told.get("updated", [])]
    if not as_json:
        _say_installed(told)
    told["trusted"] = _trusted(here, trust, may_ask=not as_json)
    if as_json:
        return print_json(told)
    if here and not told["trusted"]:
        click.echo(
            "What is not trusted runs in a process of its own; see: everhold pkg trust --help"
        )


def _accepted(size: int, limit: int) -> bool:
    from everhold.packages.settings import format_size

    return click.confirm(
        f"It takes {format_size(size)}, more than {format_size(limit)}. Install it?"
    )


def _place(source: str) -> str:
    """A path from here as an absolute one, also if nothing is there; an address as it is."""
    path = Path(source).expanduser()
    is_path = source.startswith(("./", "../")) or source == ".." or (source and path.exists())
    return str(path.absolute()) if is_path else source


def _say_installed(told: dict[str, Any]) -> None:
    words = {
        "installed": "installed",
        "updated": "updated",
        "skipped": "skipped, because they came from elsewhere",
        "skipped_symlinks": "skipped, because they are links",
        "left_out": "left out, because they lead out of the package",
        "cards_installed": "cards",
        "scenarios_installed": "scenarios",
    }
    for key, word in words.items():
        if told.get(key):
            click.echo(strip_controls(f"{word}: {', '.join(told[key])}"))
    if told.get("rev"):
        click.echo(f"commit: {told['rev']}")
    for warning in told.get("project_files_warnings", []):
        click.secho(strip_controls(f"warning: {warning}"), fg="red", err=True)


def _trusted(names: list[str], wanted: bool | None, *, may_ask: bool) -> list[str]:
    """Trust them if the user says so: by an option, or when asked once."""
    from everhold.packages.lua.paths import get_alc_home
    from everhold.packages.lua.trust import trust_package

    if wanted is None and names and may_ask and at_terminal():
        wanted = click.confirm(
            f"Do you trust {_few(names)}? What is trusted runs in everhold's own process."
        )
    return [trust_package(get_alc_home().packages / name).path for name in names] if wanted else []


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"these {format_count(len(names), 'package')}"


def _python(source: str, rev: str | None, *, linked: bool, as_json: bool) -> None:
    from everhold.packages import distributions

    told = distributions.install_distribution(source, rev=rev, linked=linked)
    if as_json:
        return print_json(told)
    for name, programs in told["programs"].items():
        click.echo(
            strip_controls(
                f"{'installed' if name in told['installed'] else 'updated'}: {name}"
                f" ({', '.join(programs)})"
            )
        )
    if "note" in told:
        click.echo(told["note"])
    click.secho(f"in {told['environment']}", dim=True)


@pkg_.command("link")
@click.argument("folder")
@click.option("--name", help="Another name than that of the folder.")
@click.option("--force", is_flag=True, help="Replace an installed package of that name.")
@click.option(
    "--variant", is_flag=True, help="Only for this project, on this machine: in alc.local.toml."
)
@python_option
@project_option
@json_option
def link_pkg(
    folder: str,
    name: str | None,
    force: bool,
    variant: bool,
    is_python: bool,
    project: str | None,
    as_json: bool,
) -> None:
    """Use a folder as a package where it is; changes in it count at once."""
    if is_python:
        if name or force or variant:
            raise make_usage_error("--name, --force and --variant are not for Python packages")
        return _python(folder, None, linked=True, as_json=as_json)
    from everhold.packages.lua.install import link

    told = link(
        folder, name, force=force, scope="variant" if variant else "global", project=project
    )
    if as_json:
        return print_json(told)
    for linked, target in told["targets"].items():
        click.echo(f"linked: {linked} is {strip_controls(target)}")
    if not told["linked"]:
        click.echo(f"Nothing was changed: {told['alc_local_toml']} names it already.")


# ---- taking away


@pkg_.command("unlink")
@click.argument("name")
@project_option
@json_option
def unlink_pkg(name: str, project: str | None, as_json: bool) -> None:
    """Take a link away; the folder that it leads to stays."""
    from everhold.packages.lua.install import unlink

    told = unlink(name, project=project)
    if as_json:
        return print_json(told)
    click.echo(f"unlinked: {told['unlinked']}")


@pkg_.command("remove")
@click.argument("name")
@click.option("--global", "from_home", is_flag=True, help="Delete what was installed for you.")
@click.option(
    "--all", "from_all", is_flag=True, help="From the project and from what was installed for you."
)
@click.option("--version", metavar="V", help="This version alone.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@python_option
@project_option
@json_option
def remove_pkg(
    name: str,
    from_home: bool,
    from_all: bool,
    version: str | None,
    yes: bool,
    is_python: bool,
    project: str | None,
    as_json: bool,
) -> None:
    """Remove a package from the project's list, or delete what was installed."""
    from everhold.packages import distributions
    from everhold.packages.lua.install import remove

    if from_home and from_all:
        raise make_usage_error("say --global or --all")
    if is_python or from_home or from_all:
        confirm(f"Delete {name}?", yes)
    scope = "all" if from_all else "global" if from_home else "project"
    told = (
        distributions.remove_distribution(name)
        if is_python
        else remove(name, project=project, version=version, scope=scope)
    )
    if as_json:
        return print_json(told)
    click.echo(f"removed: {told['removed']}")
    for key in ("project_note", "global_note"):
        if told.get(key):
            click.secho(strip_controls(told[key]), dim=True)


for _command in (
    repair_pkg,
    diagnose_pkg,
    scaffold_pkg,
    init_pkg_project,
    update_pkg_project,
    migrate_pkg_project,
    trust_pkg,
    untrust_pkg,
    list_trusted_pkgs,
):
    pkg_.add_command(_command)
