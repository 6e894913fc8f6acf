"""Commands of `pkg` that say which Lua packages the user vouches for: trust, untrust, trusted."""

from __future__ import annotations

from pathlib import Path

import click

from everhold.cli.context import json_option, load_settings
from everhold.cli.output import print_json, print_table
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

    mark = trust_package(_place(package))
    if as_json:
        return print_json({"trusted": mark.path, "digest": mark.digest})
    click.echo(f"trusted as it is now: {mark.path}")


@click.command("untrust")
@click.argument("package")
@json_option
def untrust_pkg(package: str, as_json: bool) -> None:
    """Trust a Lua package no longer; PACKAGE as for `pkg trust`."""
    from everhold.packages.lua.trust import untrust_package

    place = _place(package)
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


def _place(package: str) -> Path:
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
