"""The page of the architecture is true: its files exist, and the first sentence of each answers the
question.
"""

import ast
import re
from pathlib import Path

from tools.architecture import PURPOSES, layers

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "everhold"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
ROWS = re.findall(r"^\| (.+\?) \| \[`(.+?)`\]\(\S+\) \| (.+) \|$", PAGE, re.MULTILINE)
#: What a question is made of, beside its subject.
PLAIN = re.compile(
    "where|what|when|which|with|from|does|that|made|done|comes|shown|several|kept|nobody"
)


def first_sentence(path: Path) -> str:
    text = (
        (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    )
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0]


def subjects(question: str) -> set[str]:
    """The words that the question is about, without their endings."""
    words = re.findall(r"[a-z]+", question.lower())
    return {word[:6].rstrip("s") for word in words if len(word) > 3 and not PLAIN.fullmatch(word)}


def test_each_file_says_first_what_it_was_asked() -> None:
    """The page quotes it, and it speaks of the subject of the question."""
    assert len(ROWS) >= 20
    quoted = {file: said for _, file, said in ROWS}
    assert quoted == {file: first_sentence(SOURCE / file) for file in quoted}
    assert [
        row for row in ROWS if not any(word in row[2].lower() for word in subjects(row[0]))
    ] == []


def test_each_file_of_the_page_exists() -> None:
    """Also those that the numbered walks name."""
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", PAGE)) | {
        "programs",
        "models",
        "cli",
        "mcp",
    }
    assert [name for name in sorted(named) if not (SOURCE / name).exists()] == []


def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def test_a_public_class_name_is_used_once() -> None:
    """What a name means is found by searching for it."""
    homes: dict[str, list[str]] = {}
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_no_part_of_the_engine_assigns_an_attribute_of_another() -> None:
    """What an object needs comes through its constructor; `self.part.attribute = …` is absent."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, tree in modules().items()
        if path.relative_to(SOURCE).parts[0] in ("engine", "movers", "runtime.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == "self"
    ]
    assert found == []


def test_every_package_of_the_picture_has_a_purpose() -> None:
    """The picture is drawn from the import contracts, and says what each package is for."""
    drawn = {name for layer in layers() for name in layer}
    assert drawn == set(PURPOSES)
    present = {path.stem for path in SOURCE.glob("*.py")} | {
        path.parent.name for path in SOURCE.glob("*/__init__.py")
    }
    assert drawn == present - {"__init__"}
