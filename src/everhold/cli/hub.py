"""`everhold hub`: finds packages that others publish, and publishes one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.candidates import complete_files, complete_folders
from everhold.cli.context import load_settings, open_command_runtime
from everhold.cli.options import add_common_options, json_option, parse_pairs
from everhold.cli.output import (
    format_count,
    format_line,
    print_json,
    print_table,
    show_progress,
    strip_controls,
)
from everhold.shell_command import format_command

if TYPE_CHECKING:
    from everhold.packages.lua.card_index import PackageCards

INDEX_FILE: Final = "hub_index.json"

#: Evals of a package that are counted at most.
MAX_EVALS: Final = 10_000
#: Collections with fewer entries need no progress bar.
FEW: Final = 20

offline_option = click.option(
    "--offline",
    is_flag=True,
    help="Fetch nothing: use installed packages and indexes that were fetched before.",
)
source_argument = click.argument("folder", shell_complete=complete_folders)
out_option = click.option(
    "--out",
    "out_dir",
    metavar="FOLDER",
    shell_complete=complete_folders,
    help="Where to write the documents. Default: docs/ in FOLDER.",
)
projection_option = click.option(
    "--projection",
    "projections",
    multiple=True,
    metavar="NAME",
    help="Also make this: hub, context7, devin, luacats, lint or lint_only. May be repeated.",
)
config_option = click.option(
    "--config",
    metavar="FILE",
    shell_complete=complete_files,
    help="A TOML file with [context7] and [devin]. Default: alc.toml of the project.",
)


@click.group("hub", cls=SubcommandGroup)
def hub_() -> None:
    """Search for packages, and publish your own.

    A search fetches indexes of packages from the network; the other commands never do.
    """


@hub_.command("search")
@click.argument("query", required=False)
@click.option("--category", metavar="TEXT", help="Only packages of this category.")
@click.option("--installed", is_flag=True, help="Only installed packages.")
@click.option("--limit", default=50, show_default=True, metavar="N", help="How many; 0: all.")
@click.option(
    "--sort",
    default="-installed,name",
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
@offline_option
@add_common_options
def search_hub(
    query: str | None,
    category: str | None,
    installed: bool,
    limit: int,
    sort: str,
    filters: tuple[str, ...],
    fields: tuple[str, ...],
    full: bool,
    offline: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Search packages by name, description, category and docstring."""
    from everhold.packages.hub.search import hub_search

    cards, _ = _load_records(database, None)
    with show_progress("fetching indexes", quiet=as_json or offline) as progress:
        told = hub_search(
            query,
            category=category,
            installed_only=installed,
            limit=limit,
            sort=sort,
            filter={
                key: {"true": True, "false": False}.get(text, text)
                for key, text in parse_pairs(filters, "--filter").items()
            },
            fields=list(fields) or None,
            verbose="full" if full or not as_json else "summary",
            offline=offline,
            cards=cards,
            progress=progress,
        )
    if as_json:
        return print_json(told)
    _print_found(told, query)


def _print_found(told: dict[str, Any], query: str | None) -> None:
    rows = [
        (
            row["name"],
            row["version"] or "",
            row["category"] or "",
            "yes" if row["installed"] else "",
            row["description"] or "",
        )
        for row in told["results"]
    ]
    _print_warnings(told)
    if rows:
        columns = ("name", "version", "category", "installed", "description")
        print_table(columns, rows, wide=("description",))
    elif query:
        click.echo(f"no package matches {query!r}")
    else:
        click.echo("no packages")
    if told["total"] > len(rows):
        click.secho(f"{len(rows)} of {told['total']}; all: --limit 0", dim=True)
    others = [row["name"] for row in told["results"] if not row["installed"]]
    if others:
        command = format_command("hub", "info", others[0])
        click.secho(f"to see where one is from: {command}", dim=True)
    click.secho(f"indexes: {', '.join(told['sources']) or 'none'}", dim=True)


def _print_warnings(told: dict[str, Any]) -> None:
    for warning in told.get("warnings", []):
        click.secho(format_line(f"warning: {warning}"), fg="red", err=True)


@hub_.command("info")
@click.argument("name")
@offline_option
@add_common_options
def show_hub_package(name: str, offline: bool, database: str | None, as_json: bool) -> None:
    """Show a package, installed or not, with its cards and how to install it."""
    from everhold.packages.hub.search import hub_info

    cards, evals = _load_records(database, name)
    with show_progress("fetching indexes", quiet=as_json or offline) as progress:
        told = hub_info(name, offline=offline, cards=cards, evals=evals, progress=progress)
    if as_json:
        return print_json(told)
    _print_warnings(told)
    about = told["pkg"]
    source = about["source"]
    address = source.get("url") or source.get("path") or ""
    stats = told["stats"]
    click.echo(format_line(f"{name} {about['version']}"))
    for label, value in {
        "description": about["description"],
        "category": about["category"],
        "installed": "yes" if about["installed"] else "no",
        "source": address or source["type"],
        "cards": str(stats["card_count"]),
        "evaluations": str(stats["eval_count"]),
        "best": "" if stats["best_pass_rate"] is None else f"{stats['best_pass_rate']:.0%} passed",
        "aliases": ", ".join(str(one.get("name", "")) for one in told["aliases"]),
    }.items():
        if value:
            click.echo(f"  {label + ':':<13}{format_line(value)}")
    if not about["installed"]:
        # an index of others says the address, and people paste the command
        install = format_command("pkg", "install", format_line(address))
        where = f"to install it: {install}" if address else "its index does not say where it is"
        click.secho(where, dim=True)


@hub_.command("reindex")
@click.argument("folder", required=False, shell_complete=complete_folders)
@click.option(
    "--output",
    metavar="FILE",
    shell_complete=complete_files,
    help=f"The file to write. Default: {INDEX_FILE} in FOLDER.",
)
@add_common_options
def reindex_hub(
    folder: str | None, output: str | None, database: str | None, as_json: bool
) -> None:
    """Make the index of a folder of packages; nothing is run.

    Without FOLDER, the index of the installed packages; it is written only with --output.
    """
    from everhold.packages.hub.index import hub_reindex

    if output is None and folder is not None:
        output = str(Path(folder) / INDEX_FILE)
    cards = _load_records(database, None)[0] if folder is None else None
    with show_progress("reading packages", quiet=as_json) as progress:
        told = hub_reindex(output, folder, cards=cards, progress=progress)
    if as_json:
        return print_json(told)
    _print_index(told)


def _load_records(
    database: str | None, package: str | None
) -> tuple[PackageCards | None, int | None]:
    """All cards, and how many evals of a package there are; None without a database."""
    from everhold.packages.lua.card_index import PackageCards

    found = load_settings(database)
    if database is None and found.path is not None and not found.path.exists():
        return None, None
    with open_command_runtime(database) as opened:
        cards = opened.runtime.cards
        problems = [str(one) for one in cards.problems()]
        records = PackageCards(cards.list(), cards.aliases(), problems)
        if package is None:
            return records, 0
        return records, len(opened.runtime.evals.list(program=package, limit=MAX_EVALS))


def _is_small(folder: str) -> bool:
    try:
        return sum(1 for _ in Path(folder).iterdir()) < FEW
    except OSError:
        return True


def _print_index(told: dict[str, Any]) -> None:
    count = format_count(told["package_count"], "package")
    where = told["output_path"]
    click.echo(f"{count} in {where}" if where else f"{count}; to write an index: --output FILE")
    for one in told.get("skipped", []):
        click.secho(format_line(f"skipped: {one['folder']}: {one['reason']}"), dim=True)


@hub_.command("gendoc")
@source_argument
@out_option
@projection_option
@config_option
@click.option("--strict", is_flag=True, help="Write nothing if a package violates a rule.")
@json_option
def gendoc_hub(
    folder: str,
    out_dir: str | None,
    projections: tuple[str, ...],
    config: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Write the documents of a folder of packages that has an index."""
    from everhold.packages.hub.publish import hub_gendoc

    with show_progress("loading packages", quiet=as_json or _is_small(folder)) as progress:
        told = hub_gendoc(
            folder,
            out_dir,
            projections=projections or None,
            config_path=config,
            lint_strict=strict,
            progress=progress,
        )
    if as_json:
        return print_json(told)
    _print_documents(told)


def _print_documents(told: dict[str, Any]) -> None:
    for line in [*told["stderr"].splitlines(), *told["stdout"].strip("\n").splitlines()[-1:]]:
        click.echo(strip_controls(line))
    for warning in told["warnings"]:
        click.secho(format_line(f"warning: {warning}"), fg="red", err=True)
    # the line above has named the index
    written = [file for file in told["written"] if Path(file).name != INDEX_FILE]
    click.echo(
        f"{format_count(len(written), 'file')} written to {told['out_dir']}"
        if written
        else "no file has changed"
    )


@hub_.command("dist")
@source_argument
@click.option(
    "--output",
    metavar="FILE",
    shell_complete=complete_files,
    help=f"The index. Default: {INDEX_FILE} in FOLDER.",
)
@out_option
@click.option("--preset", metavar="NAME", help="publish, or one of [hub.dist.presets] in alc.toml.")
@projection_option
@config_option
@click.option(
    "--strict/--no-strict", default=None, help="Write nothing if a package violates a rule."
)
@click.option(
    "--project",
    metavar="FOLDER",
    shell_complete=complete_folders,
    help="The project. Default: the nearest folder with an alc.toml.",
)
@json_option
def dist_hub(
    folder: str,
    output: str | None,
    out_dir: str | None,
    preset: str | None,
    projections: tuple[str, ...],
    config: str | None,
    strict: bool | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Write the index and the documents of a folder of packages, all or nothing.

    \b
    everhold hub dist . --preset publish
    """
    from everhold.packages.hub.publish import hub_dist

    with show_progress("loading packages", quiet=as_json or _is_small(folder)) as progress:
        told = hub_dist(
            folder,
            output or str(Path(folder) / INDEX_FILE),
            out_dir,
            preset=preset,
            project=project,
            projections=projections or None,
            config_path=config,
            lint_strict=strict,
            progress=progress,
        )
    if as_json:
        return print_json(told)
    _print_index(told["reindex"])
    _print_documents(told["gendoc"])
