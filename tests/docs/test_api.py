"""The Python API reference has every public name, says what each does, and shows nothing of the
machine that wrote it.
"""

import ast
import re
from importlib import import_module
from pathlib import Path

from tools.api import PUBLIC

from .blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "reference" / "api.md"
FOLDER = ROOT / "docs" / "reference" / "api"


#: What a section has besides its text: code, tables, the class that it derives from, links to the
#: names of keywords, and marks of the generator.
NO_TEXT = r"```.*?```|^\|[^\n]*$|^A \[`[^\n]*$|^`\*\*[^\n]*$|<!--.*?-->|<a [^\n]*$"


def text_of(path: str) -> str:
    return (FOLDER / f"{path}.md").read_text()


def test_each_public_path_has_a_page_and_no_other_has() -> None:
    assert {page.stem for page in FOLDER.iterdir()} == set(PUBLIC)
    linked = re.findall(r"\]\(api/(everhold[\w.]*)\.md\)", INDEX.read_text())
    assert linked == list(PUBLIC)


def test_each_public_name_is_described_or_linked() -> None:
    """On the page of its path."""
    missing = []
    for path in PUBLIC:
        text = text_of(path)
        headings = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
        linked = set(re.findall(r"\[`(\w+)`\]\(", text))
        in_table = set(re.findall(r'<a id="\w+"></a>`(\w+)`', text))
        shown = headings | linked | in_table
        missing += [f"{path}.{name}" for name in import_module(path).__all__ if name not in shown]
    assert missing == []


def test_every_function_and_class_says_what_it_does() -> None:
    """Each signature is followed by text: a docstring is there, and it is not empty."""
    silent = []
    for path in PUBLIC:
        for heading, body in re.findall(
            r"^(#{2,4} [\w.()]+)\n\n(.*?)(?=^#{2,4} |\Z)", text_of(path), re.MULTILINE | re.DOTALL
        ):
            if not re.sub(NO_TEXT, "", body, flags=re.MULTILINE | re.DOTALL).strip():
                silent.append((path, heading))
    assert silent == []


def test_every_signature_is_python() -> None:
    found = 0
    for path in PUBLIC:
        for block in blocks(text_of(path)):
            if block.language == "py":
                found += 1
                code = block.text.strip()
                head = re.sub(r"^class (?=\w+\()", "def ", code)  # a constructor
                assert any(is_python(one) for one in (code, wrapped(code), f"{head}: ...")), code
    assert found > 700


def is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def wrapped(code: str) -> str:
    """An example with `await` is part of a program."""
    return "async def example():\n" + "\n".join(f"    {line}" for line in code.splitlines())


def test_nothing_of_a_machine_or_of_an_object_is_shown() -> None:
    """No addresses of objects, no folders, no representation of a default."""
    for path in PUBLIC:
        for block in blocks(text_of(path)):
            assert not re.search(r"\bat 0x|<(class|function|object)|/home/|/root/", block.text)
            assert "UNSET" not in block.text
