"""A query kind is added in one table, two contexts and the docs; everything else reads the table.

A copy of the tree gets a kind that everhold does not have, `webhook`: what another system posts.
Then a program asks such a question, and each front treats it as its row says.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from everhold.wire import ExitCode

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src/everhold", "docs", "tools", "CHANGELOG.md")
TOUCHED = [
    "CHANGELOG.md",
    "docs/reference/kinds.md",
    "src/everhold/core/query.py",
    "src/everhold/ports/context.py",
    "src/everhold/programs/python/context.py",
]

ROW = """\
    Kind.WEBHOOK: KindFacts(
        answer="what another system posts",
        answered_by=AnsweredBy.OUTSIDE,
        rewritten=True,
        noticed=True,
        notified=True,
        because="{id} waits for a post to the webhook {name}, for {span} so far.",
        move="Post it: everhold answer {session} VALUE --query {id}",
    ),
}


def _select("""
SIGNATURE = """\
    async def webhook(
        self, name: str, *, returns: Any = None, timeout: float | None = None
    ) -> Any:
"""
PORT = f'''{SIGNATURE}\
        """Wait for what another system posts."""
        ...

'''
VERB = f"""{SIGNATURE}\
        schema = None if returns is None else _schema(returns)
        named = check_ctx_string(name, "name")
        query = self._query(Kind.WEBHOOK, name=named, schema=schema, timeout=timeout)
        return await self._execution.ask(query, returns)

"""
SLEEP = "    async def sleep(self, seconds: float) -> None:\n"

SHOP = """\
import everhold


@everhold.program
async def shop(ctx: everhold.Context) -> str:
    paid = await ctx.webhook("payment", returns=dict)
    return f"paid {paid['amount']}"
"""
#: A host's model answers with the tool `answer`, and a model of this process answers by itself.
MODELS = """\
import asyncio, json, sys

from mcp import Client

import everhold
from everhold.errors import NotAllowed
from everhold.mcp import make_front

async def main(session_id):
    made = make_front(None, None, "default")
    async with Client(made.server()) as client:
        given = {"session_id": session_id, "answers": [{"id": "q-0", "response": "1"}]}
        told = (await client.call_tool("answer", given)).structured_content
    await made.close()
    async with everhold.open() as runtime:
        [query] = (await runtime.status(session_id)).queries
        try:
            await everhold.ScriptModel(["1"], people=True).answer(query.query, session_id)
        except NotAllowed as error:
            model = error.code
    print(json.dumps({"tool": told["code"], "model": model}))

asyncio.run(main(sys.argv[1]))
"""


class Copy:
    """The tree with one kind more, and a project beside it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.project = folder / "project"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, self.root / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(source, self.root / name)
        self.project.mkdir()
        (self.project / "shop.py").write_text(SHOP)
        (self.project / "everhold.toml").write_text('database = "app.db"\nprograms = ["shop.py"]\n')

    def add_kind(self) -> None:
        """What an author types, and what `make fix` writes then."""
        query = "src/everhold/core/query.py"
        self._insert(query, "\n\nclass QueryState(", '    WEBHOOK = "webhook"\n')
        self._replace(query, "}\n\n\ndef _select(", ROW)
        self._insert("src/everhold/ports/context.py", SLEEP, PORT)
        self._insert("src/everhold/programs/python/context.py", SLEEP, VERB)
        self._insert("CHANGELOG.md", "- `everhold mcp` serves", "- `ctx.webhook` waits.\n")
        self.python("-m", "cogapp", "-P", "-I", ".", "-r", "docs/reference/kinds.md", at=self.root)

    def _insert(self, name: str, before: str, text: str) -> None:
        self._replace(name, before, text + before)

    def _replace(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new))

    def changed(self) -> list[str]:
        """The files that differ from those of this tree, or that only the copy has."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        names = sorted(path.relative_to(self.root).as_posix() for path in files)
        return [
            name
            for name in names
            if "__pycache__" not in name
            and not (
                (ROOT / name).exists()
                and (ROOT / name).read_bytes() == (self.root / name).read_bytes()
            )
        ]

    def python(self, *words: str, at: Path | None = None, code: int = 0) -> str:
        """What a process says that imports everhold from the copy."""
        path = os.pathsep.join([str(self.root / "src"), str(self.root)])
        done = subprocess.run(
            [sys.executable, *words],
            cwd=at or self.project,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def everhold(self, *words: str, code: int = 0) -> str:
        return self.python("-m", "everhold", *words, code=code)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = Copy(tmp_path_factory.mktemp("kinds"))
    made.add_kind()
    return made


@pytest.fixture
def session_id(copy: Copy) -> str:
    """A session that waits for a webhook."""
    where = copy.python("-c", "import everhold; print(everhold.__file__)")
    assert Path(where.strip()).is_relative_to(copy.root)
    told = copy.everhold("run", "shop", "--json", code=ExitCode.WAITING)
    return str(json.loads(told)["session_id"])


def test_a_kind_is_added_in_at_most_six_files(copy: Copy) -> None:
    """The table, the two contexts, the changelog and a page that is generated."""
    assert copy.changed() == TOUCHED
    assert len(TOUCHED) <= 6
    assert "| `webhook` | what another system posts |" in (copy.root / TOUCHED[1]).read_text()


def test_the_checklist_names_the_files() -> None:
    """CONTRIBUTING says which files a new kind touches."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    listed = page.partition("### A query kind\n")[2].partition("\n### ")[0]
    assert [name for name in TOUCHED if name.removeprefix("src/everhold/") not in listed] == []


def test_what_it_asks_is_in_the_inbox_with_its_words(copy: Copy, session_id: str) -> None:
    """The command line lists it, all kinds or that one, as it is stored."""
    assert re.search(r"q-0 +webhook .*payment", copy.everhold("inbox"))
    rows = json.loads(copy.everhold("inbox", "--kind", "webhook", "--json"))["queries"]
    [row] = [row for row in rows if row["session_id"] == session_id]
    assert (row["kind"], row["name"]) == ("webhook", "payment")


def test_explain_says_what_it_waits_for(copy: Copy, session_id: str) -> None:
    """In the sentences of its row."""
    told = copy.everhold("explain", session_id)
    assert re.search(r"q-0 waits for a post to the webhook payment, for \d+ s so far\.", told)
    assert re.search(r"Post it: everhold answer \S+ VALUE --query q-0", told)


def test_a_front_answers_it_only_if_it_may(copy: Copy, session_id: str) -> None:
    """A model's tool call and a model are refused; the command line is not, and a replay agrees."""
    told = json.loads(copy.python("-c", MODELS, session_id))
    assert told == {"tool": "not_allowed", "model": "not_allowed"}
    done = json.loads(copy.everhold("answer", session_id, '{"amount": 7}', "--json"))
    assert (done["status"], done["result"]) == ("completed", "paid 7")
    assert "replays as recorded: 2 steps" in copy.everhold("replay", session_id)


def test_no_other_module_lists_kinds() -> None:
    """Two kinds side by side are a fact about kinds, which belongs into the table. The contract for
    stores chooses kinds to try, as tests do.
    """
    found = []
    for path in sorted((ROOT / "src" / "everhold").rglob("*.py")):
        name = path.relative_to(ROOT / "src" / "everhold").as_posix()
        if name == "core/query.py" or name.startswith("testing/conformance/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.MatchOr):
                kinds = [part for part in ast.iter_child_nodes(node) if _is_kind(part)]
                found += [f"{name}:{node.lineno}"] if len(kinds) > 1 else []
    assert found == []


def _is_kind(node: ast.AST) -> bool:
    named = node.value if isinstance(node, ast.MatchValue) else node
    return (
        isinstance(named, ast.Attribute)
        and isinstance(named.value, ast.Name)
        and named.value.id == "Kind"
    )
