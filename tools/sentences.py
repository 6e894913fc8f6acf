"""Finds sentences of another program among the texts of this one, without having them here.

    python -m tools.sentences FOLDER... > tests/data/algocline-sentences.txt

writes a fingerprint of each clause of three words and more in the string literals of these folders
(Python, Lua and Rust; not of their tests). tests/docs/test_algocline.py looks for the same
fingerprints in our own sources.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Words of a clause that is compared only as a whole; longer ones are also found inside others.
SHORT = 4
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'', re.DOTALL)
_RUST_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_JOINED = re.compile(r'"\s*\.\.\s*"')
_PLACEHOLDER = re.compile(r"\{[^{}]*\}|%[-\d.]*[sdqif]|\0")
_CLAUSE_END = re.compile(r"[.;:]\s|\n|\\n|—")
_ADDRESS = re.compile(r"\S*://\S*")
_WORD = re.compile(r"[a-z][a-z0-9_./-]+")


def read_clauses(text: str) -> Iterator[tuple[str, ...]]:
    """The clauses of a text, each as its words, without placeholders and addresses."""
    for clause in _CLAUSE_END.split(_PLACEHOLDER.sub(" ", _ADDRESS.sub(" ", text))):
        words = tuple(word.rstrip("./-") for word in _WORD.findall(clause.lower()))
        if len(words) > 2 and sum(len(word) > 2 for word in words) > 1:
            yield words


def fingerprint(words: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


def find_literals(file: Path) -> Iterator[tuple[str, int]]:
    """The string literals of a source, each with its line. Those of f-strings have NULs in them."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    one.value if isinstance(one, ast.Constant) else "\0" for one in node.values
                )
                yield "".join(str(one) for one in parts), node.lineno
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value, node.lineno
        return
    if file.suffix == ".lua":
        text = _JOINED.sub("", re.sub(r"--.*$", "", text, flags=re.MULTILINE))
    else:
        text = re.sub(r"\\\n\s*", "", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    for found in (_LITERAL if file.suffix == ".lua" else _RUST_LITERAL).finditer(text):
        said = next(one for one in found.groups() if one is not None)
        yield said.replace('\\"', '"'), text.count("\n", 0, found.start()) + 1


def find_known(text: str, known: set[str]) -> Iterator[tuple[str, ...]]:
    """The clauses in a text whose fingerprints are known: short ones as a whole, others inside."""
    for words in read_clauses(text):
        if fingerprint(words) in known:
            yield words
            continue
        for start in range(len(words)):
            for end in range(start + SHORT + 1, len(words) + 1):
                if fingerprint(words[start:end]) in known:
                    yield words[start:end]


def main(folders: list[str]) -> None:
    found = {
        fingerprint(words)
        for folder in folders
        for file in Path(folder).rglob("*")
        if file.suffix in (".lua", ".rs") and "tests" not in file.parts and file.name != "tests.rs"
        for literal, _ in find_literals(file)
        for words in read_clauses(literal)
    }
    print(*sorted(found), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
