"""A coding agent with six tools, one of them dangerous. Kill it or cancel it at any moment: run it
again, and it ends as it would have ended.

It fixes a bug, lets a subagent review the change, adds up the lines of code with a program of its
own, asks a person before it deploys, and writes release notes in a frame of their own. Meanwhile
the host steers it, changes its options and gives it another tool.

python examples/coding_agent.py FOLDER
"""

import asyncio
import sys
from pathlib import Path

import everhold
from everhold.agents import Lua, ToolContext
from everhold.hooks import Contribute
from everhold.plugins import Approval

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "shop")
FILES = {"price.py": "def price(cents):\n    return cents / 10\n", "notes.md": "# Shop\n"}


def read(name: str) -> str:
    return (FOLDER / Path(name).name).read_text()


@everhold.tool(read_only=True)
def list_files() -> list[str]:
    """List the files of the project."""
    return sorted(path.name for path in FOLDER.iterdir())


@everhold.tool(read_only=True)
def read_file(name: str) -> str:
    """Read a file of the project."""
    return read(name)


@everhold.tool(read_only=True)
def search(words: str) -> list[str]:
    """Find the files that contain some words."""
    return sorted(path.name for path in FOLDER.iterdir() if words in path.read_text())


@everhold.tool(rerun="safe")
def write_file(name: str, text: str) -> str:
    """Write a file of the project. Writing the same again changes nothing."""
    (FOLDER / Path(name).name).write_text(text)
    return f"{name} has {len(text.splitlines())} lines"


@everhold.tool(read_only=True)
def run_tests() -> str:
    """Run the tests of the project."""
    return "passed" if "/ 100" in read("price.py") else "failed: price(1000) is 100.0, not 10"


@everhold.tool(rerun="safe")
def deploy(context: ToolContext, version: str) -> str:
    """Put the project into production."""
    log = FOLDER / "deployed.log"
    known = log.read_text().splitlines() if log.exists() else []
    line = f"{version} {context.idempotency_key}"
    if line not in known:  # the key is the same on every try of this call
        log.write_text("\n".join([*known, line]) + "\n")
    return f"version {version} is deployed"


@everhold.tool(read_only=True)
def lint() -> str:
    """Look for lines that are too long."""
    long = [
        line
        for name in ("price.py", "notes.md")
        for line in read(name).splitlines()
        if len(line) > 99
    ]
    return f"{len(long)} lines are too long"


class ToolCounter(everhold.Plugin):
    """Counts the tool calls of a conversation and tells the model the number."""

    name = "tool_counter"

    def restore(self, state):
        self.calls = 0 if state is None else state["calls"]

    def snapshot(self):
        return {"calls": self.calls}

    def before_turn(self, moment):
        return Contribute("context", f"You have called {self.calls} tools so far.")

    def before_tool_call(self, moment, call):
        self.calls += 1
        self.revision += 1


reviewer = everhold.Agent(instructions="You review changes.", tools=[read_file], name="reviewer")
coder = everhold.Agent(
    instructions="You maintain the shop.",
    name="coder",
    tools=[list_files, read_file, search, write_file, run_tests, deploy],
    plugins=[Approval("deploy", reason="customers see it"), ToolCounter()],
    subagents=[everhold.subagent(reviewer, name="reviewer", description="Reviews a change.")],
    code=Lua(accept_finish=False),
)

FIXED = "def price(cents):\n    return cents / 100\n"
COUNT = (
    'local n = 0 for _, f in ipairs(tool("list_files", {})) do '
    'n = n + #tool("read_file", {name = f}) end return n'
)
SCRIPT = {  # stands for a model: what it calls in each round after an input
    "Prices are ten times too high.": [
        [("search", {"words": "price"}), ("list_files", {})],
        [("read_file", {"name": "price.py"}), ("run_tests", {})],
        [("write_file", {"name": "price.py", "text": FIXED})],
        [("run_tests", {}), ("task", {"agent": "reviewer", "prompt": "Review price.py."})],
        [("lua", {"code": COUNT})],
    ],
    "Release it as 1.1.": [[("deploy", {"version": "1.1"})], [("run_tests", {})]],
    "Write the release notes.": [
        [("lint", {})],
        [("write_file", {"name": "notes.md", "text": "# 1.1\n"})],
    ],
    "Review price.py.": [[("read_file", {"name": "price.py"})]],
}


def scripted(query: everhold.Query) -> object:
    """The next round of the script, by what stands in the messages since the last known input."""
    rounds, task = 0, ""
    for message in query.messages or []:
        words = message["content"][0].get("text", "") if message["content"] else ""
        if message["role"] == "user" and words in SCRIPT:
            rounds, task = 0, words
        rounds += message["role"] == "assistant"
    if rounds < len(SCRIPT.get(task, [])):
        calls = [{"name": name, "input": given} for name, given in SCRIPT[task][rounds]]
        return {"tool_calls": calls}
    return f"Done: {task}"


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in FILES.items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_text(text)
    async with everhold.open(f"sqlite:///{FOLDER}.db", llm=scripted) as runtime:
        session = await runtime.session(coder, "shop")
        print((await session.send("Prices are ten times too high.", id="bug")).text)
        await session.configure({"temperature": 0.2}, id="careful")

        turn = await session.send("Release it as 1.1.", id="release", wait=0)
        await session.enqueue("Tell the team.", key="team", at="after_work")
        while turn.waiting:
            turn = await session.turn("release", wait=5)
            for question in await runtime.inbox(kind="approval"):
                await runtime.answer(question, True, by={"user": "maria"})
        print(turn.text)

        await session.continue_as("notes", "The release is out.", id="notes")
        await session.change_tools(add=[lint], remove=["deploy"], id="tools")
        print((await session.send("Write the release notes.", id="write")).text)
        names = [frame.name for frame in await session.frames()]
        print(names, await session.options(), (await session.tools()).names)


if __name__ == "__main__":
    asyncio.run(main())
