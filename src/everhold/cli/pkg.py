"""`everhold pkg`: packages of programs.

pip installs Python packages, and only with `--python`, because installing one runs its build code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.candidates import complete_folders
from everhold.cli.context import at_terminal, confirm, load_settings, open_command_runtime
from everhold.cli.options import json_option, make_usage_error, parse_pairs
from everhold.cli.output import format_count, print_json, print_table, strip_controls
from everhold.errors import NotAllowed, UnknownProgram
from everhold.programs.lua.requirements import NOT_TRUSTED


@click.command("trust")
@click.argument("package")
@click.option("--needed", is_flag=True, help="Trust also the packages that it requires.")
@json_option
def trust_pkg(package: str, needed: bool, as_json: bool) -> None:
    """Trust a Lua package: it runs in the process of everhold.

    PACKAGE is the name of a package, its folder, or a .lua file. The trust ends when one of its
    files changes; the package then runs in a process of its own again, like all others. It runs
    there also while a package that it requires is not trusted.
    """
    from everhold.packages.lua.trust import trust_package, trust_required_packages

    place = _find_package_path(package)
    mark = trust_package(place)
    roots = tuple(load_settings(None).folders.all)
    more = trust_required_packages(place, roots) if needed else []
    reasons = _explain_place(place)
    if as_json:
        told = {"trusted": mark.path, "digest": mark.digest, "needed": [one.path for one in more]}
        return print_json(told | _describe_place(reasons))
    for one in (mark, *more):
        click.echo(f"trusted until it changes: {one.path}")
    if not reasons:
        click.echo("It runs in the process of everhold.")
        click.secho(
            "There, a step may take 1 s of CPU time; with a higher cpu in"
            f" [lua.packages.{place.stem}] of the settings it runs in a worker.",
            dim=True,
        )
        return
    click.echo("It still runs in a worker process:")
    for reason in reasons:
        click.echo(f"  {strip_controls(reason)}")
    if not needed and any(reason.endswith(NOT_TRUSTED) for reason in reasons):
        click.echo(f"To trust what it requires: everhold pkg trust {package} --needed")


def _explain_place(place: Path) -> list[str]:
    """Why a package runs in a worker; empty if it runs in this process."""
    from everhold.packages.lua.trust import get_trusted_fingerprint
    from everhold.packages.settings import read_lua_options
    from everhold.programs.lua.host import explain_place
    from everhold.programs.lua.program import LuaProgram

    found = load_settings(None)
    make = LuaProgram.package if place.is_dir() else LuaProgram.file
    program = make(place, roots=found.folders.all)
    limits = read_lua_options(found).limits.choose(program)
    return explain_place(program, limits, get_trusted_fingerprint)


def _explain_row(place: Path) -> list[str]:
    """The same, without reading what an untrusted package requires: there may be hundreds."""
    from everhold.packages.lua.trust import get_trusted_fingerprint

    return _explain_place(place) if get_trusted_fingerprint(place) else [NOT_TRUSTED]


def _describe_place(reasons: list[str]) -> dict[str, Any]:
    return {"runs_in": "worker" if reasons else "process", "why_in_worker": reasons}


@click.command("untrust")
@click.argument("package")
@json_option
def untrust_pkg(package: str, as_json: bool) -> None:
    """Stop trusting a Lua package; PACKAGE as for `pkg trust`."""
    from everhold.packages.lua.trust import untrust_package

    place = _find_package_path(package)
    was_trusted = untrust_package(place)
    if as_json:
        return print_json({"untrusted": str(place.resolve()), "was_trusted": was_trusted})
    click.echo(f"{'no longer trusted' if was_trusted else 'it was not trusted'}: {place.resolve()}")


@click.command("trusted")
@json_option
def list_trusted_pkgs(as_json: bool) -> None:
    """List the packages that you trust, and which of them have changed."""
    from everhold.packages.lua.trust import list_trust_marks

    found = list_trust_marks()
    if as_json:
        rows = [{"path": mark.path, "digest": mark.digest, "trusted": fits} for mark, fits in found]
        return print_json({"packages": rows})
    if not found:
        click.echo("No package is trusted; each runs in a process of its own.")
        return
    print_table(
        ["package", "state"],
        [[mark.path, "trusted" if fits else "changed: not trusted"] for mark, fits in found],
        wide=["package"],
    )


def _find_package_path(package: str) -> Path:
    """The folder or file of a package. A name is resolved as by `run`, else as a folder."""
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
            f"{package} is a Python program", "Only Lua packages can be trusted or untrusted."
        )
    return program.main.parent if program.is_package else program.main


project_option = click.option(
    "--project",
    metavar="FOLDER",
    shell_complete=complete_folders,
    help="The project. Default: the nearest folder with an alc.toml.",
)

#: The hint for each kind of problem.
_FIXES: Final = {
    "installed_missing": (
        "everhold pkg repair {name}, or remove it: everhold pkg remove {name} --global"
    ),
    "incomplete_pkg": "everhold pkg repair {name}",
    "symlink_dangling": (
        "everhold pkg unlink {name}, then link its new folder: everhold pkg link --help"
    ),
    "path_missing": "restore the folder, or edit alc.toml (alc.local.toml)",
    "pin_missing": "everhold pkg repair {name}, or everhold pkg update",
    "files_missing": "install it again: everhold pkg install --python",
}


@click.command("doctor")
@click.argument("name", required=False)
@project_option
@json_option
def diagnose_pkg(name: str | None, project: str | None, as_json: bool) -> int:
    """Check packages, and print how to fix each problem."""
    from everhold.packages import distributions
    from everhold.packages.lua.doctor import doctor
    from everhold.wire import ExitCode

    report = doctor(name, project)
    if name is None:
        report["python"] = distributions.check_distributions()
    wrong = [one for key, found in report.items() if key != "healthy" for one in found]
    if as_json:
        print_json(report)
    else:
        for one in report["healthy"]:
            click.echo(f"✓ {one['name']}")
        for one in wrong:
            _print_problem(one)
        if not wrong:
            click.echo("no problems")
    return ExitCode.FAILED if wrong else ExitCode.OK


def _print_problem(one: dict[str, Any]) -> None:
    modules = [f"{one['name']}.{module}" for module in one.get("missing_subs", ())]
    missing = ", ".join(modules or one.get("missing", ()))
    click.secho(
        strip_controls(f"✗ {one['name']}: {one.get('reason') or f'missing: {missing}'}"), fg="red"
    )
    click.echo(f"  hint: {_FIXES[one['kind']].format(name=one['name'])}")


@click.command("repair")
@click.argument("name", required=False)
@project_option
@json_option
def repair_pkg(name: str | None, project: str | None, as_json: bool) -> int:
    """Restore missing or incomplete packages from their sources."""
    from everhold.packages.lua.doctor import repair
    from everhold.wire import ExitCode

    report = repair(name, project)
    left = [*report["unrepairable"], *report["failed"]]
    if as_json:
        print_json(report)
    else:
        for one in report["repaired"]:
            click.echo(strip_controls(f"✓ {one['name']}, from {one['source']}"))
        for one in left:
            _print_problem(one)
        if not report["repaired"] and not left:
            click.echo("no problems")
    return ExitCode.FAILED if left else ExitCode.OK


@click.command("scaffold")
@click.argument("name")
@click.option(
    "--in",
    "folder",
    default=".",
    metavar="FOLDER",
    shell_complete=complete_folders,
    help="Where to create it. Default: the current folder.",
)
@click.option("--category", metavar="TEXT", help="Its category, such as reasoning.")
@click.option("--description", metavar="TEXT", help="What it is for, in one sentence.")
@json_option
def scaffold_pkg(
    name: str, folder: str, category: str | None, description: str | None, as_json: bool
) -> None:
    """Create a Lua package that runs, and a test for it that passes."""
    from everhold.packages.lua.scaffold import scaffold

    told = scaffold(name, folder, category=category, description=description)
    if as_json:
        return print_json(told)
    click.echo(f"created {told['path']}\ncreated {told['test_path']}")


@click.command("init")
@project_option
@json_option
def init_pkg_project(project: str | None, as_json: bool) -> None:
    """Create an alc.toml, the list of the packages that a project needs."""
    from everhold.packages.lua.scaffold import init

    told = init(project)
    if as_json:
        return print_json(told)
    click.echo(f"created {told['created']}")
    click.secho(f"types for Lua editors: {told['types_path']}", dim=True)


@click.command("update")
@project_option
@json_option
def update_pkg_project(project: str | None, as_json: bool) -> int:
    """Resolve the packages of alc.toml, and write alc.lock."""
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
    """Create an alc.toml from an old alc.lock."""
    from everhold.packages.lua.legacy_import import migrate

    told = migrate(project)
    if as_json:
        return print_json(told)
    if "reason" in told:
        click.echo(f"Nothing to do: {told['reason']}.")
    else:
        click.echo(
            f"created {told['alc_toml']}; the old lock is now {told['backup']}\n"
            "Next: everhold pkg update"
        )


python_option = click.option(
    "--python",
    "is_python",
    is_flag=True,
    help="A Python package, which pip installs into this environment.",
)


@click.group("pkg", cls=SubcommandGroup, invoke_without_command=True)
@click.pass_context
def pkg_(ctx: click.Context) -> None:
    """Install, link, list, repair and trust packages of programs."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_pkg)


@pkg_.command("list")
@click.option("--limit", default=0, metavar="N", help="The most packages to list. Default: all.")
@click.option(
    "--sort",
    default="-active,name",
    show_default=True,
    metavar="KEYS",
    help="Sort by these keys; a - before a key reverses it.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only packages with exactly this value. May be repeated.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="KEY",
    help="With --json: only these keys. May be repeated.",
)
@click.option("--full", is_flag=True, help="With --json: all keys.")
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
    """List the installed and linked packages; for a name that several have, the active one."""
    from everhold.packages import distributions
    from everhold.packages.lua.listing import list_packages
    from everhold.packages.settings import PACKAGES_FOLDER

    found = load_settings(None)
    near = [(path, "settings") for path in (*found.packages_path, found.root / PACKAGES_FOLDER)]
    told = list_packages(
        project,
        limit=limit,
        sort=sort,
        filter={
            key: {"true": True, "false": False}.get(text, text)
            for key, text in parse_pairs(filters, "--filter").items()
        },
        fields=list(fields) or None,
        verbose="full" if full or not as_json else "summary",
        more=near,
    )
    told["python"] = distributions.list_distributions()
    for row in told["packages"]:
        if not fields and row.get("resolved_source_path"):
            row |= _describe_place(_explain_row(Path(row["resolved_source_path"])))
    if as_json:
        return print_json(told)
    _print_packages(told)


def _print_packages(told: dict[str, Any]) -> None:
    rows = [
        (
            row["name"],
            row.get("version", ""),
            row["scope"] if row["active"] else f"{row['scope']}, hidden",
            row["resolved_source_kind"],
            row.get("runs_in", ""),
            row.get("error") or row.get("description", ""),
        )
        for row in told["packages"]
    ]
    rows += [
        (
            row["name"],
            row["version"],
            "Python",
            "linked" if row.get("linked") else "installed",
            "process",
            ", ".join(row["programs"]),
        )
        for row in told["python"]
    ]
    if rows:
        print_table(
            ("name", "version", "scope", "source", "runs in", "description"),
            rows,
            wide=("description",),
        )
        _print_places(told["packages"])
    else:
        click.echo("no packages; to install some: everhold pkg install --help")
    for warning in told.get("warnings", []):
        click.secho(f"warning: {warning}", fg="red", err=True)
    click.secho(f"searched: {', '.join(path['path'] for path in told['search_paths'])}", dim=True)


def _print_places(rows: list[dict[str, Any]]) -> None:
    """Say of trusted packages why they run in a worker."""
    from everhold.packages.lua.trust import get_trusted_fingerprint

    for row in rows:
        reasons = row.get("why_in_worker")
        if reasons and get_trusted_fingerprint(row["resolved_source_path"]):
            text = f"{row['name']} is trusted, but runs in a worker: {'; '.join(reasons)}"
            click.echo(strip_controls(text))


# ---- install and link


@pkg_.command("install")
@click.argument("source")
@click.option(
    "--name", metavar="TEXT", help="Its name. Default: the name of the folder or the repository."
)
@click.option("--rev", metavar="REV", help="A tag, a branch or a commit of the repository.")
@click.option(
    "--force", is_flag=True, help="Replace a package of this name that has another source."
)
@click.option(
    "--max-size", metavar="SIZE", help="The largest size to install without asking, such as 50MB."
)
@click.option(
    "--trust/--no-trust",
    default=None,
    help="Trust them, or not, without asking: trusted packages run in the process of everhold.",
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
    file:///path. With an init.lua at its top it is one package, else each folder with an init.lua
    is one. Installing runs no code of a package.

    \b
    everhold pkg install github.com/ana/debate --rev v2
    everhold pkg install ./strategies
    """
    if is_python:
        if name or force or max_size is not None or trust is not None:
            raise make_usage_error("--python does not take --name, --force, --max-size or --trust")
        return _install_python(source, rev, linked=False, as_json=as_json)
    from everhold.packages.lua.install import install
    from everhold.packages.settings import parse_size

    limit = None if max_size is None else parse_size(max_size, "--max-size")
    accept = None if as_json or not at_terminal() else _confirm_size
    told = install(
        _make_source_absolute(source),
        name,
        rev=rev,
        force=force,
        project=project,
        limit=limit,
        accept=accept,
    )
    here = list(dict.fromkeys([*told["installed"], *told.get("updated", [])]))
    _copy_cards(told.get("cards_installed", []))
    if not as_json:
        _print_installed(told)
    told["trusted"] = _trust_installed(here, trust, may_ask=not as_json)
    if as_json:
        return print_json(told)
    if here and not told["trusted"]:
        click.echo(
            "Untrusted packages run in a process of their own; see: everhold pkg trust --help"
        )


def _copy_cards(card_ids: list[str]) -> None:
    """Copy the cards that packages have brought to the sinks of ALC_CARD_SINKS."""
    from everhold.packages.lua.paths import read_card_sinks

    if card_ids and read_card_sinks()[0]:
        with open_command_runtime(None, creates=True) as opened:
            opened.runtime.cards.copy_installed(card_ids)


def _confirm_size(size: int, limit: int) -> bool:
    from everhold.packages.settings import format_size

    return click.confirm(f"It has {format_size(size)}, more than {format_size(limit)}. Install it?")


def _make_source_absolute(source: str) -> str:
    """A path as an absolute one, also if it does not exist; an address is unchanged."""
    path = Path(source).expanduser()
    is_path = source.startswith(("./", "../")) or source == ".." or (source and path.exists())
    return str(path.absolute()) if is_path else source


def _print_installed(told: dict[str, Any]) -> None:
    words = {
        "installed": "installed",
        "updated": "updated",
        "skipped": "skipped, because the installed ones have another source",
        "skipped_symlinks": "skipped, because they are links",
        "left_out": "left out, because they point outside the package",
        "cards_installed": "cards",
        "cards_failures": "cards that cannot be read",
        "scenarios_installed": "scenarios",
    }
    before = told.get("replaced", [])  # a single package is listed as installed in both cases
    told = told | {"installed": [name for name in told["installed"] if name not in before]}
    told["updated"] = [*before, *told.get("updated", [])]
    for key, word in words.items():
        if told.get(key):
            click.echo(strip_controls(f"{word}: {', '.join(told[key])}"))
    if told.get("rev"):
        click.echo(f"commit: {told['rev']}")
    for warning in told.get("project_files_warnings", []):
        click.secho(strip_controls(f"warning: {warning}"), fg="red", err=True)


def _trust_installed(names: list[str], wanted: bool | None, *, may_ask: bool) -> list[str]:
    """Trusts packages if the user agrees, by an option or when asked."""
    from everhold.packages.lua.paths import get_alc_home
    from everhold.packages.lua.trust import trust_package

    if wanted is None and names and may_ask and at_terminal():
        count = format_count(len(names), "package")
        named = ", ".join(names) if len(names) < 4 else f"these {count}"
        wanted = click.confirm(
            f"Do you trust {named}? Trusted packages run in the process of everhold."
        )
    return [trust_package(get_alc_home().packages / name).path for name in names] if wanted else []


def _install_python(source: str, rev: str | None, *, linked: bool, as_json: bool) -> None:
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
@click.argument("folder", shell_complete=complete_folders)
@click.option("--name", metavar="TEXT", help="Its name. Default: the name of the folder.")
@click.option("--force", is_flag=True, help="Replace an installed package of this name.")
@click.option(
    "--variant",
    is_flag=True,
    help="Link it only for this project on this machine, in alc.local.toml.",
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
    """Use a folder as a package where it is; changes in it take effect at once."""
    if is_python:
        if name or force or variant:
            raise make_usage_error("--python does not take --name, --force or --variant")
        return _install_python(folder, None, linked=True, as_json=as_json)
    from everhold.packages.lua.install import link

    told = link(
        folder, name, force=force, scope="variant" if variant else "global", project=project
    )
    if as_json:
        return print_json(told)
    for linked, target in told["targets"].items():
        click.echo(f"linked: {linked} is {strip_controls(target)}")
    if not told["linked"]:
        click.echo(f"nothing to do: {told['alc_local_toml']} has it already")


# ---- unlink and remove


@pkg_.command("unlink")
@click.argument("name")
@project_option
@json_option
def unlink_pkg(name: str, project: str | None, as_json: bool) -> None:
    """Remove a link; its folder stays."""
    from everhold.packages.lua.install import unlink

    told = unlink(name, project=project)
    if as_json:
        return print_json(told)
    click.echo(f"unlinked: {told['unlinked']}")


@pkg_.command("remove")
@click.argument("name")
@click.option(
    "--global", "from_home", is_flag=True, help="Delete the package that is installed for you."
)
@click.option(
    "--all",
    "from_all",
    is_flag=True,
    help="Remove it from the project, and delete the one that is installed for you.",
)
@click.option("--version", metavar="VERSION", help="Remove only this version.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
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
    """Remove a package from the project, or delete an installed one."""
    from everhold.packages import distributions
    from everhold.packages.lua.install import remove

    if from_home and from_all:
        raise make_usage_error("give --global or --all, not both")
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
