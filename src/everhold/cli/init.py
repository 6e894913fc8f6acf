"""`everhold init`: a folder with a program, its test and its settings."""

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
"""{name}: a program that asks a model, and then a person before it acts."""

import everhold


def send(text: str) -> str:
    """What the program does in the end. Replace it by your own function."""
    return f"sent {{len(text)}} characters"


@everhold.program
async def {name}(ctx: everhold.Context, topic: str) -> str:
    draft = await ctx.llm(f"Write one sentence about {{topic}}.")
    if not await ctx.approval(f"Send this? {{draft}}"):
        return "not sent"
    return await ctx.call(send, draft, rerun="never")
'''

_TEST: Final = """\
from everhold.testing import Kit

from {name} import {name}

ANSWERS = {{"*about trains*": "Trains run at night."}}


def test_an_approved_text_is_sent(everhold: Kit) -> None:
    session = everhold.start({name}(topic="trains"), answers=ANSWERS)
    session.assert_waits_for("Send this? Trains run at night.")
    assert session.approve().result == "sent 20 characters"


def test_a_declined_text_is_not_sent(everhold: Kit) -> None:
    session = everhold.start({name}(topic="trains"), answers=ANSWERS)
    assert session.decline().result == "not sent"
    assert everhold.called == []
"""

_SETTINGS: Final = """\
# Where everhold keeps sessions, and the programs that it finds by name.
database = "sqlite:///{name}.db"
programs = ["{name}.py"]
# answer_with = "claude -p"   # any command that reads a question on standard input and writes the answer
"""  # noqa: E501

_README: Final = """\
# {name}

A durable program: after a crash it resumes at the same question. You answer its questions:

    everhold run {name} topic=trains
    everhold inbox           # its open questions
    everhold answer @last    # answer one
    everhold show @last      # all questions and answers
    pytest                   # its tests

The sessions are stored in {name}.db, as set in everhold.toml.
"""

#: Names of modules that a file of this name would hide.
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
    """Create a folder with a program, its test and its settings.

    NAME is a Python name, such as triage.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadSetting("NAME", f"{name!r} must be a Python name in lower case")
    if name in RESERVED_NAMES:
        raise BadSetting("NAME", f"{name!r} is the name of an existing module")
    folder = Path(name)
    if folder.exists():
        raise BadSetting("NAME", f"{folder} already exists; nothing was changed")
    try:
        folder.mkdir()
        for file, text in FILES.items():
            (folder / file.format(name=name)).write_text(text.format(name=name), encoding="utf-8")
    except OSError as error:
        raise BadSetting("NAME", f"{folder} cannot be created: {error.strerror}") from None
    made = [file.format(name=name) for file in FILES]
    if as_json:
        return print_json({"folder": str(folder.resolve()), "files": made})
    click.echo(f"created {folder}/: {', '.join(made)}")
    click.echo(f"to try it: cd {name} && everhold run {name} topic=trains")
