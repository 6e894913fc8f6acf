"""`everhold init`: a folder with one program, its test, and its settings, that works at once."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Final

import click

from everhold.cli.options import json_option
from everhold.cli.output import print_json
from everhold.errors import BadSetting

_PROGRAM: Final = '''\
"""{name}: a program that asks a model, and a person before it does anything."""

import everhold


def send(text: str) -> str:
    """What the program does to the world. Put your own here."""
    return f"sent {{len(text)}} characters"


@everhold.program
async def {name}(ctx: everhold.Context, topic: str) -> str:
    draft = await ctx.llm(f"Write one sentence about {{topic}}.")
    if not await ctx.approval(f"Send this? {{draft}}"):
        return "kept back"
    return await ctx.call(send, draft, rerun="never")
'''

_TEST: Final = """\
from everhold.testing import Kit

from {name} import {name}

ANSWERS = {{"*about trains*": "Trains run at night."}}


def test_it_sends_what_a_person_approved(everhold: Kit) -> None:
    session = everhold.start({name}(topic="trains"), answers=ANSWERS)
    session.assert_waits_for("Send this? Trains run at night.")
    assert session.approve().result == "sent 20 characters"


def test_it_keeps_back_what_nobody_approved(everhold: Kit) -> None:
    session = everhold.start({name}(topic="trains"), answers=ANSWERS)
    assert session.decline().result == "kept back"
    assert everhold.called == []
"""

_SETTINGS: Final = """\
# Where everhold keeps sessions, and which programs it knows by name.
database = "sqlite:///{name}.db"
programs = ["{name}.py"]
# answer_with = "claude -p"   # any command: the question on its standard input, the answer on its standard output
"""  # noqa: E501

_README: Final = """\
# {name}

A program that may be killed at any moment and goes on where it was. You are asked what it asks:

    everhold run {name} topic=trains
    everhold inbox           # what is open
    everhold answer @last    # go on
    everhold show @last      # everything that was said
    pytest                   # its tests

The sessions are in {name}.db; everhold.toml says so.
"""

#: Modules that a file of the same name would hide.
RESERVED_NAMES: Final = sys.stdlib_module_names | {"everhold", "pytest", "test"}

_IGNORED: Final = "*.db\n*.db-*\n__pycache__/\n.pytest_cache/\n"

FILES: Final = {
    "{name}.py": _PROGRAM,
    "test_{name}.py": _TEST,
    "everhold.toml": _SETTINGS,
    "README.md": _README,
    ".gitignore": _IGNORED,
}


@click.command("init")
@click.argument("name")
@json_option
def init_(name: str, as_json: bool) -> None:
    """Make a folder with a program, its test and its settings."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadSetting("NAME", f"{name!r} should be a Python name in small letters")
    if name in RESERVED_NAMES:
        raise BadSetting("NAME", f"{name!r} is the name of a module that is there already")
    folder = Path(name)
    if folder.exists():
        raise BadSetting("NAME", f"{folder} is there already; nothing was changed")
    try:
        folder.mkdir()
        for file, text in FILES.items():
            (folder / file.format(name=name)).write_text(text.format(name=name), encoding="utf-8")
    except OSError as error:
        raise BadSetting("NAME", f"{folder} cannot be made: {error.strerror}") from None
    made = [file.format(name=name) for file in FILES]
    if as_json:
        return print_json({"folder": str(folder.resolve()), "files": made})
    click.echo(f"made {folder}/: {', '.join(made)}")
    click.echo(f"try: cd {name} && everhold run {name} topic=trains")
