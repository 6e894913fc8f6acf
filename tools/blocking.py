"""Writes the verbs of the blocking classes from those of the async ones; run through cog by `make
fix`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

SOURCE_ROOT = Path(__file__).parent.parent / "src" / "everhold"
#: The class, and the parts of it that have files of their own.
SOURCES = (
    (SOURCE_ROOT / "runtime.py", "Runtime"),
    (SOURCE_ROOT / "agents" / "conversations.py", "Conversations"),
    (SOURCE_ROOT / "archive" / "archive.py", "Archive"),
    (SOURCE_ROOT / "notify" / "notifications.py", "Notifications"),
)
#: The part that keeps schedules and triggers, whose blocking face has a file of its own.
TIMETABLE = ((SOURCE_ROOT / "schedules" / "schedules.py", "Timetable"),)
#: The handle of a conversation.
HANDLE = (
    (SOURCE_ROOT / "agents" / "session.py", "AgentSession"),
    (SOURCE_ROOT / "agents" / "frame_options.py", "FrameVerbs"),
    (SOURCE_ROOT / "agents" / "inputs.py", "InputVerbs"),
)
#: What the blocking face writes by hand.
OWN = {
    "Runtime": {"close"},
    "Conversations": {"session"},
    "Archive": set(),
    "Notifications": set(),
    "AgentSession": {"fork", "follow", "stream"},
    "FrameVerbs": set(),
    "InputVerbs": set(),
    "Timetable": set(),
}


def _verbs(file: Path, name: str) -> list[ast.AsyncFunctionDef]:
    tree = ast.parse(file.read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return [
        node
        for node in found.body
        if isinstance(node, ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and node.name not in OWN[name]
    ]


def methods() -> str:
    """The verbs of `BlockingRuntime`."""
    return _written(SOURCES, "self._runtime")


def handle() -> str:
    """The verbs of `BlockingSession`."""
    return _written(HANDLE, "self._session")


def timetable() -> str:
    """The verbs of `BlockingTimetable`."""
    return _written(TIMETABLE, "self._runtime")


def _written(sources: tuple[tuple[Path, str], ...], target: str) -> str:
    """The methods, formatted as the formatter leaves them."""
    body = "\n\n".join(
        _method(node, target) for file, name in sources for node in _verbs(file, name)
    )
    ruff = [sys.executable, "-m", "ruff", "format", "--line-length", "100", "-"]
    done = subprocess.run(
        ruff, input=f"class Verbs:\n{body}\n", capture_output=True, text=True, check=True
    )
    return done.stdout.partition("\n")[2].rstrip() + "\n"


def _signature(node: ast.AsyncFunctionDef) -> str:
    node.args.args[0].annotation = None  # a part of a class may call itself Any
    returns = ast.unparse(node.returns) if node.returns else "None"
    return f"    def {node.name}({ast.unparse(node.args)}) -> {returns}:"


def _method(node: ast.AsyncFunctionDef, target: str) -> str:
    args = [*(arg.arg for arg in node.args.args[1:])]
    args += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
    args += [f"{arg.arg}={arg.arg}" for arg in node.args.kwonlyargs]
    lines = [_signature(node)]
    doc = ast.get_docstring(node)
    if doc:
        first = " ".join(doc.partition("\n\n")[0].split())
        said = textwrap.wrap(f'"""{first}', 89, break_on_hyphens=False)
        lines.extend(f"        {line}" for line in said[:-1])
        lines.append(
            f'        {said[-1]}"""' if len(said) == 1 else f'        {said[-1]}\n        """'
        )
    call = f"{target}.{node.name}({', '.join(args)})"
    lines.append(f"        return self._wait({call})")
    return "\n".join(lines)
