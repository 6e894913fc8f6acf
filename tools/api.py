"""Writes docs/reference/api/, every public name with its signature and docstring, through cog.

It reads the source, and imports only the lists of names, so that every version of Python writes the
same text. Signatures are as they stand in the source: no default is shown as an object at an
address.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from textwrap import dedent, indent
from typing import Final, NamedTuple

from tools.examples import find_example

SOURCE_ROOT = Path(__file__).parent.parent / "src"
#: The public paths. A test compares them with docs/stability.md.
PUBLIC: Final = (
    "everhold",
    "everhold.agents",
    "everhold.hooks",
    "everhold.plugins",
    "everhold.stores",
    "everhold.models",
    "everhold.schedules",
    "everhold.evals",
    "everhold.notify",
    "everhold.strategies",
    "everhold.packages",
    "everhold.errors",
    "everhold.agui",
    "everhold.testing",
    "everhold.testing.conformance",
)
_ERRORS: Final = "everhold.errors"
_CONTRACTS: Final = "everhold.testing.conformance"
#: Ports: where a class has their verbs without a docstring, the port says what they do.
_PORTS: Final = ("EnvelopeAdapter", "Maintenance", "Notifier", "Store")
_IMPLEMENTATIONS: Final = ("everhold.notify", "everhold.stores", "everhold.testing")
_WIDTH: Final = 92
_OTHERS: Final = (
    "What the names above return or hold. These classes have no public path: do not import them."
)
_ENUMS: Final = ("Enum", "IntEnum", "StrEnum")

Function = ast.FunctionDef | ast.AsyncFunctionDef


# ---- the source


class Module:
    """A module of the source: its text, tree and comments."""

    def __init__(self, name: str) -> None:
        self.name = name
        path = SOURCE_ROOT / name.replace(".", "/")
        files = (path.with_suffix(".py"), path / "__init__.py")
        self.text = next(file for file in files if file.exists()).read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.doc = ast.get_docstring(self.tree) or ""
        self.lines = self.text.splitlines()
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        self.comments = {one.start[0]: one.string for one in tokens if one.type == tokenize.COMMENT}

    def statements(self) -> Iterator[ast.stmt]:
        """The statements of the module, with those that only type checkers read."""
        for node in self.tree.body:
            yield from node.body if isinstance(node, ast.If) else [node]

    def literal(self, node: ast.expr) -> str:
        """An expression as it is written, in one line."""
        words = " ".join((ast.get_source_segment(self.text, node) or "").split())
        return re.sub(r",? ([)\]}])", r"\1", re.sub(r"([(\[{]) ", r"\1", words))

    def type_(self, node: ast.expr | None) -> str:
        """An annotation, without the quotes of one that is a string."""
        return "" if node is None else self.literal(node).strip("\"'")

    def remark(self, node: ast.stmt) -> str:
        """The comment of a field or constant: the `#:` lines above it, or the end of its line."""
        above = self.comment_above(node)
        return above or self.comments.get(node.end_lineno or 0, "").lstrip("#: ").strip()

    def comment_above(self, node: ast.stmt) -> str:
        """The `#:` lines above a statement."""
        above: list[str] = []
        line = node.lineno - 2
        while line >= 0 and self.lines[line].lstrip().startswith("#:"):
            above.insert(0, self.lines[line].lstrip().removeprefix("#:").strip())
            line -= 1
        return " ".join(above)


@functools.cache
def _module(name: str) -> Module:
    return Module(name)


class Definition(NamedTuple):
    """Where a name is defined; an overloaded function has several statements."""

    module: Module
    nodes: tuple[ast.stmt, ...]

    @property
    def node(self) -> ast.stmt:
        return self.nodes[-1]


@functools.cache
def _find(module_name: str, name: str) -> Definition | None:
    """The definition of a name that a module has or imports; None if it is not in the source."""
    module = _module(module_name)
    found: list[ast.stmt] = []
    for node in module.statements():
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if (one.asname or one.name) == name and (node.module or "").startswith("everhold"):
                    return _find(str(node.module), one.name)
        elif name in _names(node):
            found.append(node)
    return Definition(module, tuple(found)) if found else None


def _find_public(path: str, name: str) -> Definition:
    found = _find(path, name)
    if found is None:
        raise LookupError(f"{path}.{name} is not defined in the source")
    return found


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | Function):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.id for one in targets if isinstance(one, ast.Name)]


def _assigned(node: ast.ClassDef, name: str) -> ast.expr | None:
    """The value of a class attribute."""
    found = (one for one in node.body if isinstance(one, ast.Assign) and name in _names(one))
    return next((one.value for one in found), None)


# ---- pages


@functools.cache
def _homes() -> dict[str, str]:
    """The page of each public name. An error is on the page of errors, and any other name on the
    first page that has it.
    """
    homes: dict[str, str] = {}
    for path in (_ERRORS, *PUBLIC):
        for name in import_module(path).__all__:
            homes.setdefault(name, path)
    return homes


def _link(name: str, page: str) -> str:
    """A public name as a link; any other as code."""
    home = _homes().get(name)
    if home is None:
        return f"`{name}`"
    file = "" if home == page else f"{home}.md"
    return f"[`{name}`]({file}#{_anchor(name)})"


def _anchor(name: str) -> str:
    """The anchor of a name. A function that is named like a class has one of its own."""
    classes = {other.lower() for other in _homes() if other != other.lower()}
    return f"{name}-function" if name in classes else name.lower()


def _heading(name: str) -> str:
    anchor = _anchor(name)
    return f"## {name}" if anchor == name.lower() else f'<a id="{anchor}"></a>\n\n## {name}'


def index() -> str:
    """The list of pages."""
    lines = ["| import from | has |", "|---|---|"]
    for path in PUBLIC:
        first = " ".join(_module(path).doc.partition("\n\n")[0].split())
        lines.append(f"| [`{path}`](api/{path}.md) | {first} |")
    return "\n".join(lines)


def page(path: str) -> str:
    """The page of one public path."""
    names: list[str] = list(import_module(path).__all__)
    own = [name for name in names if _homes()[name] == path]
    parts = [_prose(_module(path).doc)]
    if len(own) < len(names):
        others = (_link(name, path) for name in names if name not in own)
        parts.append(f"Also here: {', '.join(others)}.")
    if path == _ERRORS:
        return "\n\n".join([*parts, *_errors(own)]) + "\n"
    if len(own) > 1:
        rows = [f"| {_link(name, path)} | {_summary(path, name)} |" for name in own]
        parts.append("\n".join(["| name | what it is |", "|---|---|", *rows]))
    for name in own:
        parts += [_heading(name), *_entry(path, name), _example(path, name)]
    more = [part for found in _other_types()[path] for part in _class(*found, path, "####")]
    parts += ["## Other types", _OTHERS, *more] if more else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(path: str, name: str) -> list[str]:
    found = _find_public(path, name)
    if isinstance(found.node, ast.ClassDef):
        return _class(found.module, found.node, path)
    if isinstance(found.node, Function):
        return _function(found, name, path)
    value = getattr(found.node, "value", None)
    written = "" if value is None else found.module.literal(value)
    shown = _code(f"{name} = {written}") if 0 < len(written) < 3 * _WIDTH else ""
    return [shown, _sentence(found.module.remark(found.node))]


def _example(path: str, name: str) -> str:
    """Code of a page that uses a name, with a link to the page; empty if no page does."""
    found = find_example(path, name)
    if found is None:
        return ""
    return f"**Example**, from [{found.title}](../../{found.page}):\n\n{_code(found.code)}"


def _summary(path: str, name: str) -> str:
    """The first sentence about a name."""
    found = _find_public(path, name)
    if isinstance(found.node, ast.ClassDef | Function):
        words = ast.get_docstring(found.node) or ""
    else:
        words = _sentence(found.module.remark(found.node))
    first = " ".join(words.partition("\n\n")[0].split())
    return _cell(re.split(r"(?<=\.)\s+(?=[A-Z`])", first)[0])


def _errors(names: Sequence[str]) -> list[str]:
    """The errors as a table, after the other names of their module."""
    rows = ["| error | code | is a | when | attributes |", "|---|---|---|---|---|"]
    parts = []
    for name in names:
        found = _find_public(_ERRORS, name)
        if not isinstance(found.node, ast.ClassDef):
            parts += [_heading(name), *_entry(_ERRORS, name), _example(_ERRORS, name)]
            continue
        code = _assigned(found.node, "code")
        cells = (
            f'<a id="{name.lower()}"></a>`{name}`',
            f"`{ast.literal_eval(code)}`" if code is not None else "",
            ", ".join(f"`{found.module.literal(base)}`" for base in found.node.bases),
            _cell(" ".join((ast.get_docstring(found.node) or "").split())),
            ", ".join(f"`{one}`" for one in _error_attributes(found.node)),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return ["\n".join(rows), *parts]


def _error_attributes(node: ast.ClassDef) -> list[str]:
    """The public attributes that the constructor of an error sets, besides the hint."""
    names = dict.fromkeys(name for name, _ in _self_attributes(_constructor(node)))
    return [name for name in names if name != "hint"]


@functools.cache
def _other_types() -> dict[str, list[tuple[Module, ast.ClassDef]]]:
    """The classes that public functions return and that have no public path, by page."""
    seen: set[str] = set()
    pages: dict[str, list[tuple[Module, ast.ClassDef]]] = {path: [] for path in PUBLIC}
    for path in PUBLIC:
        left: list[tuple[Module, ast.ClassDef]] = []
        for name in import_module(path).__all__:
            if _homes()[name] == path:
                found = _find_public(path, name)
                for node in found.nodes:
                    left += _mentioned(found.module, node)
        while left:
            module, node = left.pop(0)
            if node.name not in seen:
                seen.add(node.name)
                pages[path].append((module, node))
                left += _mentioned(module, node)
    return pages


def _mentioned(module: Module, node: ast.stmt) -> Iterator[tuple[Module, ast.ClassDef]]:
    """The classes without a public path that a function returns, or a class has."""
    types: list[tuple[Module, str]] = []
    if isinstance(node, Function):
        types.append((module, module.type_(node.returns)))
    elif isinstance(node, ast.ClassDef):
        for one in _members(module, node):
            types += [(one.module, one.module.type_(part.returns)) for part in one.nodes]
        rows = [*_fields(module, node), *_described_attributes(module, _constructor(node))]
        types += [(module, type_.partition(" = ")[0]) for _, type_, _ in rows]
    for home, type_ in types:
        for name in re.findall(r"\b[A-Z]\w+", type_):
            found = None if name in _homes() else _find(home.name, name)
            if found is not None and isinstance(found.node, ast.ClassDef):
                yield found.module, found.node


# ---- functions


def _function(found: Definition, title: str, path: str) -> list[str]:
    node = found.node
    assert isinstance(node, Function)
    overloads = [one for one in found.nodes[:-1] if isinstance(one, Function)]
    return [
        _code(_signature(found.module, node, title, overloads)),
        _prose(ast.get_docstring(node) or ""),
        _keywords(found.module, node, path),
    ]


def _keywords(module: Module, node: Function, path: str) -> str:
    """Where the names of `**` are listed, if they are those of a TypedDict."""
    kwarg = node.args.kwarg
    named = re.fullmatch(r"Unpack\[(\w+)\]", module.type_(kwarg.annotation) if kwarg else "")
    if kwarg is None or named is None:
        return ""
    return f"`**{kwarg.arg}` are the keys of {_link(named[1], path)}."


def _signature(
    module: Module,
    node: Function,
    title: str,
    overloads: Sequence[Function] = (),
    *,
    bound: bool = False,
) -> str:
    """A signature as it is written; `bound` leaves out `self`. What overloads return is joined."""
    parts = _parameters(module, node.args)
    if bound:
        parts = parts[1:] if parts[1:2] != ["/"] else parts[2:]
    returned = [module.type_(one.returns) for one in overloads] or [module.type_(node.returns)]
    returns = list(dict.fromkeys(part for one in returned for part in one.split(" | ") if part))
    precise = [one for one in returns if one not in ("Any", "list[Any]")] or returns
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    end = f" -> {' | '.join(precise)}" if precise else ""
    line = f"{prefix} {title}({', '.join(parts)}){end}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{prefix} {title}(", *(f"    {part}," for part in parts), f"){end}"])


def _parameters(module: Module, args: ast.arguments) -> list[str]:
    def one(arg: ast.arg, default: ast.expr | None, mark: str = "") -> str:
        type_ = module.type_(arg.annotation)
        shown = mark + arg.arg + (f": {type_}" if type_ else "")
        if default is None:
            return shown
        return f"{shown}{' = ' if type_ else '='}{_default(module, default)}"

    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + [*args.defaults]
    parts = [one(arg, default) for arg, default in zip(plain, defaults, strict=True)]
    if args.posonlyargs:
        parts.insert(len(args.posonlyargs), "/")
    if args.vararg:
        parts.append(one(args.vararg, None, "*"))
    elif args.kwonlyargs:
        parts.append("*")
    by_name = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    parts += [one(arg, default) for arg, default in by_name]
    if args.kwarg:
        parts.append(one(args.kwarg, None, "**"))
    return parts


def _default(module: Module, node: ast.expr) -> str:
    """A default as it is written. A constant of ours is replaced by its value, if that is plain."""
    shown = module.literal(node)
    if isinstance(node, ast.Name):
        found = _find(module.name, node.id)
        value = getattr(found.node, "value", None) if found is not None else None
        if found is not None and isinstance(value, ast.Attribute | ast.Name):
            return _default(found.module, value)
        if found is None:
            return "..." if shown == "UNSET" else shown
        if isinstance(value, ast.Constant | ast.BinOp):
            return found.module.literal(value)
        return "..."
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = _find(module.name, node.value.id)
        if found is not None and isinstance(found.node, ast.ClassDef):
            member = _assigned(found.node, node.attr)
            return shown if member is None else found.module.literal(member)
    return "..." if shown == "msgspec.UNSET" else shown


# ---- classes


class Member(NamedTuple):
    """A method or property of a class, where it is written."""

    module: Module
    nodes: tuple[Function, ...]

    @property
    def node(self) -> Function:
        return self.nodes[-1]

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def decorators(self) -> list[str]:
        return [self.module.literal(one) for one in self.node.decorator_list]

    @property
    def is_property(self) -> bool:
        return any(one.endswith("property") for one in self.decorators)


def _class(module: Module, node: ast.ClassDef, path: str, level: str = "###") -> list[str]:
    bases = [module.literal(base).partition("[")[0] for base in node.bases]
    shown = [_link(base, path) for base in bases if base in _homes()]
    is_public = node.name in _homes()
    parts = [] if is_public else [f"### {node.name}"]
    parts += [_code(_header(module, node)), f"A {', '.join(shown)}." if shown else ""]
    parts.append(_prose(ast.get_docstring(node) or ""))
    init = _constructor(node)
    if init is not None and is_public and not _is_made_elsewhere(node):
        parts += [_prose(ast.get_docstring(init) or ""), _keywords(module, init, path)]
    members = list(_members(module, node))
    rows = [*_fields(module, node), *_described_attributes(module, init)]
    for one in members:
        if one.is_property:
            type_ = one.module.type_(one.node.returns)
            rows.append((one.node.name, type_, " ".join(one.doc.split())))
    if rows:
        table = [f"| `{name}` | {_ticked(type_)} | {_cell(text)} |" for name, type_, text in rows]
        parts.append("\n".join(["| attribute | type | |", "|---|---|---|", *table]))
    if path == _CONTRACTS and node.name.endswith("Contract"):
        return parts  # its members are tests
    for one in members:
        if not one.is_property and (is_public or one.doc):
            parts += _method(one, node.name, path, level)
    return parts


def _header(module: Module, node: ast.ClassDef) -> str:
    """The constructor, if users call it; else only the name."""
    init = _constructor(node)
    if init is None or node.name not in _homes() or _is_made_elsewhere(node):
        return f"class {node.name}"
    line = _signature(module, init, node.name, bound=True)
    return "class " + line.removeprefix("def ").removesuffix(" -> None")


def _constructor(node: ast.ClassDef) -> Function | None:
    named = (one for one in node.body if isinstance(one, Function) and one.name == "__init__")
    return next(named, None)


def _is_made_elsewhere(node: ast.ClassDef) -> bool:
    """Whether users get the object from a function, which the docstring names."""
    return re.search(r"[Mm]ade by|makes (it|one)", ast.get_docstring(node) or "") is not None


def _method(member: Member, owner: str, path: str, level: str) -> list[str]:
    node = member.node
    marks = [f"@{one}\n" for one in member.decorators if one in ("classmethod", "staticmethod")]
    bound = "@staticmethod\n" not in marks
    signature = _signature(member.module, node, node.name, member.nodes[:-1], bound=bound)
    title = f"{owner}()" if node.name == "__call__" else f"{owner}.{node.name}"
    return [
        f"{level} {title}",
        _code("".join(marks) + signature),
        _prose(member.doc),
        _keywords(member.module, node, path),
    ]


def _members(module: Module, node: ast.ClassDef) -> Iterator[Member]:
    """The public methods and properties, also those of bases that are not public."""
    groups: dict[str, list[Function]] = {}
    for one in node.body:
        if isinstance(one, Function) and (one.name == "__call__" or not one.name.startswith("_")):
            groups.setdefault(one.name, []).append(one)
    described = {
        one.node.name for home, base in _bases(module, node) for one in _members(home, base)
    }
    if node.name not in _PORTS and module.name.startswith(_IMPLEMENTATIONS):
        described |= _port_verbs()
    for name, nodes in groups.items():
        found = Member(module, tuple(one for one in nodes if not _is_setter(module, one)))
        if found.doc or name not in described:
            yield found
    for home, base in _bases(module, node, public=False):
        yield from (one for one in _members(home, base) if one.node.name not in groups)


def _is_setter(module: Module, node: Function) -> bool:
    return any(module.literal(one).endswith(".setter") for one in node.decorator_list)


@functools.cache
def _port_verbs() -> frozenset[str]:
    ports = [_find_public(_homes()[port], port) for port in _PORTS]
    return frozenset(
        one.node.name
        for port in ports
        if isinstance(port.node, ast.ClassDef)
        for one in _members(port.module, port.node)
    )


def _bases(
    module: Module, node: ast.ClassDef, *, public: bool = True
) -> Iterator[tuple[Module, ast.ClassDef]]:
    """The bases in everhold; with `public=False`, only those that have no public path."""
    for base in node.bases:
        name = module.literal(base).partition("[")[0]
        found = None if name in _homes() and not public else _find(module.name, name)
        if found is not None and isinstance(found.node, ast.ClassDef):
            yield found.module, found.node


def _fields(module: Module, node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """The fields of a record and the members of an enum: name, type or value, and text."""
    for home, base in _bases(module, node, public=False):
        yield from _fields(home, base)
    is_enum = any(module.literal(base) in _ENUMS for base in node.bases)
    for one, below in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(one, ast.Assign | ast.AnnAssign) or one.value is None is is_enum:
            continue
        name = next(iter(_names(one)), "_")
        if name.startswith("_"):
            continue
        text = module.remark(one)
        if not text and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = " ".join(str(below.value.value).split())
        if isinstance(one, ast.AnnAssign) and "ClassVar" not in module.type_(one.annotation):
            default = "" if one.value is None else f" = {_default(module, one.value)}"
            yield name, module.type_(one.annotation) + default, text
        elif is_enum and one.value is not None:
            yield name, module.literal(one.value), text


def _described_attributes(module: Module, init: Function | None) -> Iterator[tuple[str, str, str]]:
    """The attributes that a constructor sets and a `#:` comment describes."""
    for name, node in _self_attributes(init):
        text = module.comment_above(node)
        if text:
            value = getattr(node, "value", None)
            yield name, module.literal(value.func) if isinstance(value, ast.Call) else "", text


def _self_attributes(init: Function | None) -> Iterator[tuple[str, ast.stmt]]:
    """The public attributes that a constructor assigns."""
    for node in [] if init is None else ast.walk(init):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for one in targets:
                is_own = isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"
                if isinstance(one, ast.Attribute) and is_own and not one.attr.startswith("_"):
                    yield one.attr, node


# ---- text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _ticked(type_: str) -> str:
    return f"`{_unmarked(_cell(type_))}`" if type_ else ""


def _code(text: str) -> str:
    return f"```py\n{_unmarked(text)}\n```"


def _unmarked(text: str) -> str:
    """Without three closing brackets in a row, which are a mark of cog."""
    return text.replace("]" * 3, "]] ]")


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", ":")) else f"{text}."


def _prose(doc: str) -> str:
    """A docstring as Markdown: its indented blocks, after an empty line, are code."""
    parts: list[str] = []
    paragraphs = re.split(r"\n\n+", doc)
    for is_block, group in groupby(paragraphs, lambda one: one.startswith("    ")):
        text = "\n\n".join(group)
        parts.append(_block(dedent(text)) if is_block else text)
    return "\n\n".join(parts)


def _block(text: str) -> str:
    try:
        ast.parse("async def f():\n" + indent(text, "    "))
    except SyntaxError:
        return f"```text\n{text}\n```"
    return _code(text)
