"""Writes `blocking.pyi`, what type checkers see of the blocking façade, from the async classes; run
through cog by `make fix`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

SOURCE_ROOT = Path(__file__).parent.parent / "src" / "everhold"
#: Each blocking class, and the file and name of the async class that it is the twin of.
TWINS = {
    "BlockingConversation": ("agents/conversation_handle.py", "ConversationHandle"),
    "BlockingSession": ("agents/session.py", "AgentSession"),
    "BlockingPlugin": ("agents/plugin_operations.py", "PluginHandle"),
    "BlockingSchedules": ("schedules/schedule.py", "Schedules"),
    "BlockingTriggers": ("schedules/trigger.py", "Triggers"),
    "BlockingEvals": ("evals/evals.py", "Evals"),
    "BlockingNotifications": ("notify/notifications.py", "Notifications"),
    "BlockingArchive": ("archive/archive.py", "Archive"),
    "BlockingEnvelopes": ("agents/envelopes.py", "Envelopes"),
    "BlockingCards": ("cards/cards.py", "Cards"),
    "BlockingWorkers": ("movers/workers.py", "Workers"),
    "BlockingRuntime": ("runtime.py", "Runtime"),
}
#: Async classes whose blocking twins are returned instead of them.
NAMES = {
    "AgentSession": "BlockingSession",
    "ConversationHandle": "BlockingConversation",
    "AsyncGenerator": "Iterator",
}
BLOCKING = "blocking.py"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def stub() -> str:
    """The body of `blocking.pyi`, formatted as the formatter leaves it."""
    trees = {
        file: ast.parse((SOURCE_ROOT / file).read_text())
        for file in [BLOCKING, *(file for file, _ in TWINS.values())]
    }
    own = {node.name: node for node in trees[BLOCKING].body if isinstance(node, ast.ClassDef)}
    homes: dict[str, str] = {}
    parts = []
    for name, (file, twin) in TWINS.items():
        homes |= _homes(trees[file], file)
        there = _class(trees[file], twin)
        members = [_member(node) for node in own[name].body if _is_public(node)]
        members += _owned(own[name])
        taken = {getattr(node, "name", "") for node in own[name].body}
        members += [
            _member(node)
            for node in there.body
            if _is_verb(node) and getattr(node, "name", "") not in taken
        ]
        bases = [base for base in map(ast.unparse, own[name].bases) if base in TWINS]
        header = f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
        parts.append(f"{header}\n{_doc(own[name])}\n" + "\n".join(members))
    homes |= _homes(trees[BLOCKING], BLOCKING)
    parts += [_member(node, 0) for node in trees[BLOCKING].body if _is_public(node)]
    body = "\n\n".join(parts)
    imports = _imports(ast.parse(body), homes)
    return _formatted(f"{imports}\n\nR = TypeVar('R')\nT = TypeVar('T')\n\n{body}\n")


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _is_public(node: ast.stmt) -> bool:
    """Whether something that the façade has of its own belongs into the stub."""
    if not isinstance(node, ast.FunctionDef):
        return False
    return not node.name.startswith("_") or node.name in ("__init__", "__enter__", "__exit__")


def _is_verb(node: ast.stmt) -> bool:
    """Whether the bridge offers a member of an async class."""
    if not isinstance(node, Function) or node.name.startswith("_"):
        return False
    is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
    gives_events = node.returns is not None and ast.unparse(node.returns).startswith("AsyncGen")
    return isinstance(node, ast.AsyncFunctionDef) or is_property or gives_events


def _owned(node: ast.ClassDef) -> list[str]:
    """The parts that a class owns, which are other classes of the façade."""
    init = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
    return [
        f"    {ast.unparse(one.targets[0]).removeprefix('self.')}: {ast.unparse(one.value.func)}"
        for one in (init.body if isinstance(init, ast.FunctionDef) else [])
        if isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Call)
        and ast.unparse(one.value.func) in TWINS
    ]


def _member(node: ast.stmt, indent: int = 4) -> str:
    assert isinstance(node, Function)
    args = node.args
    args.defaults = [_default(one) for one in args.defaults]
    args.kw_defaults = [None if one is None else _default(one) for one in args.kw_defaults]
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    for name, blocking in NAMES.items():
        returns = returns.replace(name, blocking)
    if returns.startswith("Iterator["):
        returns = returns.replace(", None]", "]")
    decorated = [one for one in map(ast.unparse, node.decorator_list) if one == "property"]
    lines = [*(f"@{one}" for one in decorated)]
    lines.append(f"def {node.name}({ast.unparse(args)}) -> {returns}:")
    doc = _doc(node)
    lines.append(doc or "    ...")
    return textwrap.indent("\n".join(lines), " " * indent)


def _default(node: ast.expr) -> ast.expr:
    """A default as a stub has it: what is not plain is left out."""
    return node if isinstance(node, ast.Constant) else ast.Constant(...)


def _doc(node: ast.ClassDef | Function) -> str:
    """The first paragraph of a docstring."""
    doc = ast.get_docstring(node)
    if not doc:
        return ""
    first = " ".join(doc.partition("\n\n")[0].split())
    lines = textwrap.wrap(f'"""{first}', 89, break_on_hyphens=False)
    lines[-1] += '"""' if len(lines) == 1 else '\n"""'
    return textwrap.indent("\n".join(lines), "    ")


def _homes(tree: ast.Module, file: str) -> dict[str, str]:
    """Where the names of a module come from: the statement that imports each."""
    module = "everhold." + file.removesuffix(".py").replace("/", ".")
    found: dict[str, str] = {}
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            found |= {one.name: f"from {node.module} import {one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.name: f"import {one.name}" for one in node.names}
        elif file != BLOCKING:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            names += [node.name] if isinstance(node, ast.ClassDef) else []
            found |= {name: f"from {module} import {name}" for name in names}
    return found


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """The statements of a module, with those that only type checkers read."""
    found: list[ast.stmt] = []
    for node in tree.body:
        typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        found += node.body if isinstance(node, ast.If) and typed else [node]
    return found


def _imports(tree: ast.Module, homes: dict[str, str]) -> str:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"R", "T"}
    homes = {**homes, "Iterator": "from collections.abc import Iterator"}
    wanted = {homes[name] for name in used if name in homes and name not in TWINS}
    return "\n".join(sorted({*wanted, "from typing import TypeVar"}))


def _formatted(text: str) -> str:
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ruff", *command, "--line-length", "100"),
                *("--stdin-filename", str(SOURCE_ROOT / "blocking.pyi"), "-"),
            ],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text.rstrip() + "\n"
