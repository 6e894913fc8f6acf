"""`everhold demo`: runs a program, kills its process with SIGKILL in the middle, resumes it in
another process, and checks the result.

Every claim is checked afterwards against three records: the file that the model writes, the
database, and how the first process ended. The model is a function with a short delay; before it
answers, it writes the question into that file.

    python -m everhold.cli.demo FOLDER      runs the program until it ends, pauses, or is killed
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from everhold.cli.context import load_settings
from everhold.cli.options import json_option
from everhold.cli.output import print_json
from everhold.core.codec import dumps, loads
from everhold.core.journal import Delivery
from everhold.core.query import FOR_PEOPLE, Query
from everhold.core.status import Finished, Paused, Status
from everhold.portability import KILLED
from everhold.ports.answerer import Answerer
from everhold.ports.context import Context
from everhold.ports.program import program

#: Questions before the kill, and seconds that one process may take.
KILL_AFTER: Final = 5
PROCESS_TIMEOUT: Final = 15.0

KEY: Final = "demo"
TOPIC: Final = "Should the night train to the coast come back?"
MODEL_SECONDS: Final = 0.35

MODEL_ANSWERS: Final = {
    "traveller": "Yes: I would sleep on the way and wake at the sea.",
    "engineer": "Yes, if two old sleeping cars can be repaired for less than a new one costs.",
    "accountant": "Only on Fridays, or it runs half empty.",
    "weakest": "The engineer's: nobody has looked at the brakes.",
    "engineer, again": "The brakes can be replaced for the price of one seat a day.",
    "accountant, again": "Then Fridays and Sundays pay for themselves.",
    "verdict": "Bring it back on Fridays and Sundays, with the two old cars.",
}

Asked = dict[str, Any]


class DemoClaim(msgspec.Struct, frozen=True):
    """A claim of the demo, and whether it holds."""

    held: bool
    claim: str


class DemoReport(msgspec.Struct, frozen=True):
    """The result of the demo."""

    folder: str
    processes: tuple[int, int]
    seconds: float
    claims: list[DemoClaim]

    @property
    def held(self) -> bool:
        return all(one.held for one in self.claims)


def run_demo(folder: Path | None = None) -> DemoReport:
    """Runs the demo in a folder, by default a new one, prints it, and checks every claim."""
    began = time.monotonic()
    folder = folder or Path(tempfile.mkdtemp(prefix="everhold-demo-"))
    click.secho(f"A panel of experts: {TOPIC}", bold=True)
    click.echo(f"In {folder}: demo.db (the session), asked.jsonl (questions to the model)\n")
    first, killed_with = _run_and_kill(folder)
    kept = [delivery for delivery in _journal(folder) if delivery.answers]
    answers = sum(len(delivery.answers) for delivery in kept)
    click.secho(f"kill -9 {first}", fg="red", bold=True)
    click.echo(f"  {len(_asked(folder))} questions asked, {answers} answers recorded\n")
    second = _run(folder)
    finished = _approve(folder)
    claims = _check(folder, killed_with, kept, finished)
    shown = DemoReport(str(folder), (first, second), round(time.monotonic() - began, 1), claims)
    click.echo(
        f"\nProcesses {first} and {second}, one file, {shown.seconds:.1f} seconds. To see the"
        " session:"
    )
    click.echo(f"  {_command()} show demo --database {get_database_file(folder)}")
    return shown


def _command() -> str:
    """How to call everhold: by its name if the shell finds it, which it does not in a clone."""
    return "everhold" if shutil.which("everhold") else f"{shlex.quote(sys.executable)} -m everhold"


# ---- the two processes


def _run_and_kill(folder: Path) -> tuple[int, int]:
    """Starts the program and kills it during a question; returns the process id and exit status."""
    with _worker(folder) as process:
        click.secho(f"process {process.pid} starts", fg="cyan")
        for line in _follow_questions(folder, process, since=0):
            _print_question(line)
            if len(_asked(folder)) >= KILL_AFTER:
                time.sleep(MODEL_SECONDS / 3)
                break
        process.kill()
    return process.pid, process.returncode


def _run(folder: Path) -> int:
    """Starts the program again and lets it run until it pauses or ends."""
    with _worker(folder) as process:
        click.secho(f"process {process.pid} resumes from the same file", fg="cyan")
        for line in _follow_questions(folder, process, since=len(_asked(folder))):
            _print_question(line)
    return process.pid


def _worker(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "everhold.cli.demo", str(folder)])


def _follow_questions(
    folder: Path, process: subprocess.Popen[bytes], since: int
) -> Iterator[Asked]:
    """The questions to the model, as they come, while the process lives."""
    deadline = time.monotonic() + PROCESS_TIMEOUT
    while True:
        alive = process.poll() is None and time.monotonic() < deadline
        lines = _asked(folder)[since:]
        yield from lines
        since += len(lines)
        if not alive:
            process.kill()
            return
        time.sleep(0.02)


def _asked(folder: Path) -> list[Asked]:
    file = get_asked_file(folder)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [loads(line) for line in text.splitlines()]


# ---- the database


def _read_session(folder: Path, act: Callable[[Any, str], Any]) -> Any:
    """Calls `act` with a runtime of this process and the id of the demo's session."""
    from everhold.runtime import open as open_runtime

    async def read() -> Any:
        # no model: this only reads and answers
        async with open_runtime(get_database_file(folder), llm=[], recover=False) as runtime:
            return await act(runtime, str(await runtime.store.find(KEY)))

    return asyncio.run(read())


def _journal(folder: Path) -> list[Delivery]:
    async def read(runtime: Any, session_id: str) -> list[Delivery]:
        deliveries: list[Delivery] = (await runtime.store.load(session_id)).deliveries
        return deliveries

    journal: list[Delivery] = _read_session(folder, read)
    return journal


def _approve(folder: Path) -> Status:
    """Answers the approval, as a person would."""

    async def sign(runtime: Any, session_id: str) -> Status:
        status: Status = await runtime.status(session_id)
        if not isinstance(status, Paused):
            return status
        click.secho(f"\nwaiting for a person: {status.queries[0].prompt}", fg="yellow")
        click.echo("  answered: yes")
        answered: Status = await runtime.answer(
            status.queries[0], True, by={"front": "cli", "user": "demo"}
        )
        return answered

    signed: Status = _read_session(folder, sign)
    return signed


# ---- the claims


def _check(
    folder: Path, killed_with: int, kept: list[Delivery], finished: Status
) -> list[DemoClaim]:
    """Checks every claim and prints it."""
    journal = _journal(folder)
    before = {answer.id for delivery in kept for answer in delivery.answers}
    asked = Counter(line["id"] for line in _asked(folder))
    again = [query_id for query_id, times in asked.items() if times > 1]
    questions = Counter(query.id for delivery in journal for query in delivery.asked)
    answers = Counter(answer.id for delivery in journal for answer in delivery.answers)
    result = finished.result if isinstance(finished, Finished) and not finished.error else None
    lost = f"; the kill came before the answer to {again[0]}" if again else ""
    click.echo("\nchecked:")
    claims = [
        (
            killed_with == KILLED,
            "the first process was killed in the middle of a question",
        ),
        (
            bool(before) and before.isdisjoint(again),
            f"{len(before)} answers were recorded before the kill, and none of their questions was"
            " asked twice",
        ),
        (
            len(again) <= 1 and asked.keys() == questions.keys() - _for_people(journal),
            f"{len(asked)} questions, {asked.total()} calls of the model{lost}",
        ),
        (bool(answers) and answers == questions, "every question has exactly one answer"),
        (result == MODEL_ANSWERS["verdict"], f"completed: {result!r}"),
        (not _problems(folder), "the database is sound"),
    ]
    return [_print_claim(DemoClaim(held, words)) for held, words in claims]


def _for_people(journal: list[Delivery]) -> set[str]:
    return {
        query.id for delivery in journal for query in delivery.asked if query.kind in FOR_PEOPLE
    }


def _problems(folder: Path) -> list[Any]:
    async def verify(runtime: Any, session_id: str) -> list[Any]:
        problems: list[Any] = await runtime.archive.verify()
        return problems

    problems: list[Any] = _read_session(folder, verify)
    return problems


# ---- output


def _print_question(line: Asked) -> None:
    prompt = line["prompt"]
    click.echo(f"  {line['id']}  {prompt[:66]}{'…' if len(prompt) > 66 else ''}")


def _print_claim(one: DemoClaim) -> DemoClaim:
    click.secho(
        f"  {'✓' if one.held else '✗ NOT TRUE:'} {one.claim}", fg="green" if one.held else "red"
    )
    return one


# ---- the program and its process


@program
async def panel(ctx: Context, topic: str) -> str:
    """Three experts, a critic, a second round, a verdict, and a person who signs it."""
    experts = ("traveller", "engineer", "accountant")
    views = await ctx.llm_batch([f"As the {expert}: {topic}" for expert in experts])
    doubt = await ctx.llm(f"Which of these is the weakest? {views}")
    second = [await ctx.llm(f"As the {expert}, again: {doubt}") for expert in experts[1:]]
    verdict = await ctx.llm(f"Give a verdict: {views + second}")
    return verdict if await ctx.approval(f"Publish it? {verdict}") else "kept back"


def get_asked_file(folder: Path) -> Path:
    """The file into which the model writes its questions."""
    return folder / "asked.jsonl"


def get_database_file(folder: Path) -> Path:
    return folder / "demo.db"


class DemoModel(Answerer):
    """Answers after a moment, and records its questions across processes."""

    def __init__(self, folder: Path) -> None:
        self._file = get_asked_file(folder)

    async def answer(self, query: Query, session_id: str) -> str:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(dumps({"id": query.id, "pid": os.getpid(), "prompt": query.prompt}) + "\n")
        await asyncio.sleep(MODEL_SECONDS)
        names = [
            name
            for name in MODEL_ANSWERS
            if f"{name}:" in query.prompt or f"{name}?" in query.prompt
        ]
        return MODEL_ANSWERS[names[-1] if names else "verdict"]


@click.command("demo")
@json_option
def demo_(as_json: bool) -> int:
    """Kill a program in the middle and see it resume; needs no API key.

    It takes a few seconds, uses no network, and exits with 0 only if no recorded question was asked
    again.
    """
    from everhold.wire import ExitCode

    load_settings(None)  # a mistake in the settings is reported before the demo starts
    shown = run_demo()
    if as_json:
        print_json({**msgspec.to_builtins(shown), "held": shown.held})
    return ExitCode.OK if shown.held else ExitCode.FAILED


def main(folder: Path) -> None:
    from everhold.blocking import open_blocking
    from everhold.errors import Waiting

    with open_blocking(get_database_file(folder), llm=DemoModel(folder)) as runtime:
        try:
            runtime.run(panel(topic=TOPIC), key=KEY, title=TOPIC)
        except Waiting:
            pass  # the program waits for the approval


if __name__ == "__main__":
    main(Path(sys.argv[1]))
