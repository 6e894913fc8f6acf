"""`everhold completion`: scripts for bash, zsh and fish that complete commands, options and names.

A script calls `everhold` with the variable `_EVERHOLD_COMPLETE`, which click answers instead of
running a command. For bash the script is ours: click's passes bash's own split of the line, which
breaks words at `:`, `=` and `@`, and so cuts `shop.py:refund`, `team=red` and `@last` apart.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from typing import Any, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from everhold.cli.options import json_option
from everhold.cli.output import print_json

#: The variable with which a script asks for completions.
COMPLETE_VARIABLE: Final = "_EVERHOLD_COMPLETE"

_BASH: Final = """\
%(complete_func)s() {
    local line type value
    COMPREPLY=()
    while IFS= read -r line; do
        type=${line%%%%,*}
        value=${line#*,}
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashCompletion(BashComplete):
    """Completes the word of the line, and returns the part of it that bash replaces."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        value = str(item.value)
        if item.type == "plain":
            _, incomplete = self.get_completion_args()
            breaks = os.environ.get("COMP_WORDBREAKS", "")
            # Bash replaces only what follows the last of its word breaks.
            cut = max((incomplete.rfind(one) for one in breaks), default=-1) + 1
            if value.startswith(incomplete[:cut]):
                value = value[cut:]
            # The value as a word of bash; `@`, `:` and `=` need no quotes.
            plain = value.replace("@", "").replace(":", "").replace("=", "")
            value = value if shlex.quote(plain) == plain or not plain else shlex.quote(value)
        return f"{item.type},{value}"


add_completion_class(BashCompletion)


def print_completions(command: click.Command) -> int:
    """Answers a completion script. An error prints nothing: the shell then completes nothing."""
    with suppress(Exception):
        shell_complete(command, {}, "everhold", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])
    return 0


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion_(shell: str, as_json: bool) -> None:
    """Print a script for shell completion: bash, zsh or fish.

    \b
    bash:  everhold completion bash > ~/.local/share/bash-completion/completions/everhold
    zsh:   everhold completion zsh > ~/.zfunc/_everhold    (a folder of $fpath)
    fish:  everhold completion fish > ~/.config/fish/completions/everhold.fish

    It completes commands and options, and sessions, labels and programs from the database that the
    command would use.
    """
    command = click.get_current_context().find_root().command
    kind: type[ShellComplete] | None = get_completion_class(shell)
    assert kind is not None
    script = kind(command, {}, "everhold", COMPLETE_VARIABLE).source()
    if as_json:
        return print_json({"shell": shell, "script": script})
    click.echo(script)
