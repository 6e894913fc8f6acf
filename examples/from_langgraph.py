"""The graph of docs/how-to/port-from-langgraph.md as a program. Each answer of the editor comes
to another process, as `Command(resume=…)` would; no line before it runs twice.

python examples/from_langgraph.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import everhold


def upload(text: str) -> str:
    return f"online: {text}"


@everhold.program
async def post(ctx: everhold.Context, topic: str) -> str:
    wish = ""
    while True:
        text = await ctx.llm(f"Write about {topic}. {wish}")
        wish = await ctx.input(f"Publish? {text} (yes, or what to change)")
        if wish == "yes":
            return await ctx.call(upload, text, rerun="never")


def model(query: everhold.Query) -> str:
    """Stands for a model; llm="anthropic:claude-sonnet-4-6" is a real one."""
    print(f"  the model is asked: {query.prompt}")
    return "Bees dance." if "Shorter" in query.prompt else "Bees dance for hours."


def invoke(database: str, thread: str, resume: str = "") -> None:
    """What `app.invoke` does: start a thread, or resume it with an answer."""
    with everhold.open_blocking(database, llm=model) as runtime:
        if resume:
            status = runtime.answer(thread, resume, by={"user": "editor"})
        else:
            status = runtime.start(post(topic="bees"), key=thread)
        print(status.result if status.state == "completed" else status.queries[0].prompt)


if __name__ == "__main__":
    if sys.argv[1:]:
        invoke(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            database = f"sqlite:///{Path(folder, 'post.db')}"
            for answer in ([], ["Shorter."], ["yes"]):
                print("a process", *(f"gets the answer: {one}" for one in answer), flush=True)
                command = [sys.executable, __file__, database, "bees", *answer]
                subprocess.run(command, check=True)
