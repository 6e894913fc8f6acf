"""One process asks and ends. Later, another one answers and resumes. They share only a file.

python examples/two_processes.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import everhold


@everhold.program
async def lend(ctx: everhold.Context, book: str) -> str:
    name = await ctx.input(f"Who takes {book}?")
    return f"{name} has {book}"


def ask(database: str) -> None:
    with everhold.open_blocking(database) as runtime:
        runtime.start(lend(book="Moby-Dick"), key="moby")


def answer(database: str) -> None:
    with everhold.open_blocking(database) as runtime:
        for question in runtime.inbox():
            print(question.prompt)
            status = runtime.answer(
                question, "Ishmael", by={"front": "example", "user": "librarian"}
            )
            print(status.result)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        {"ask": ask, "answer": answer}[sys.argv[1]](sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            for verb in ("ask", "answer"):
                subprocess.run(
                    [sys.executable, __file__, verb, str(Path(folder) / "books.db")], check=True
                )
