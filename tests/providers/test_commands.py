"""Models from the command line, in real processes."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.server import Fail, Reply, Server
from tests.warm import start

MODELS = (
    "everhold.models.model_request",
    *(f"pydantic_ai.models.{name}" for name in ("anthropic", "google", "openai")),
)
PROGRAM = """
import everhold

@everhold.program
async def capital(ctx, country: str) -> str:
    return await ctx.llm(f"The capital of {country}?")
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


def everhold(*words: str, cwd: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "EVERHOLD_DATABASE_URL")
    env = {name: value for name, value in os.environ.items() if name not in keys}
    return subprocess.run(
        [*start.everhold(*MODELS), *words],
        cwd=cwd,
        env=env,
        input=said,
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "capital.py").write_text(PROGRAM)
    return tmp_path


def test_run_asks_the_model_that_is_named(server: Server, folder: Path) -> None:
    server.script(Reply("Paris."))
    done = everhold(
        *(
            "run",
            "capital.py:capital",
            "country=France",
            "-d",
            "a.db",
            "--model",
            server.name("anthropic"),
        ),
        cwd=folder,
    )

    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (0, "Paris."), done.stderr
    assert done.stderr.count("Warning") == 0


def test_run_and_chat_hold_an_agent_with_the_model_that_is_named(
    server: Server, folder: Path
) -> None:
    """`run` does a task, `chat` holds a conversation."""
    (folder / "agents.py").write_text(
        'import everhold\n\nagent = everhold.Agent(instructions="Be brief.")\n'
    )
    server.script(Reply("Done."), Reply("Hello."))
    model = ("-d", "a.db", "--model", server.name("anthropic", "the-named"))
    ran = everhold("run", "agents.py:agent", "task=Do it.", *model, cwd=folder)
    talked = everhold("chat", "agents.py:agent", *model, cwd=folder, said="Hi.\n")

    assert (ran.returncode, ran.stdout.strip().splitlines()[-1:]) == (0, ["Done."]), ran.stderr
    assert (talked.returncode, "Hello." in talked.stdout) == (0, True), talked.stderr
    assert [request.body["model"] for request in server.requests] == ["the-named"] * 2


def test_the_model_that_is_named_goes_before_an_agents_own(server: Server, folder: Path) -> None:
    """Who types a model means it; without the option the agent's own is asked, also before that of
    the settings.
    """
    own, other = server.name("anthropic", "its-own"), server.name("openai-chat", "of-the-settings")
    (folder / "agents.py").write_text(f'import everhold\n\nagent = everhold.Agent("{own}")\n')
    (folder / "everhold.toml").write_text(f'database = "a.db"\nllm = "{other}"\n')
    server.script(Reply("One."), Reply("Two."), Reply("Three."))
    words = ("run", "agents.py:agent", "task=Do it.")
    named = everhold(*words, "--model", server.name("google", "the-named"), cwd=folder)
    talked = everhold(
        "chat",
        "agents.py:agent",
        "--model",
        server.name("openai-chat", "the-named"),
        cwd=folder,
        said="Hi\n",
    )
    alone = everhold(*words, cwd=folder)

    assert [done.returncode for done in (named, talked, alone)] == [0, 0, 0], (
        named.stderr + talked.stderr + alone.stderr
    )
    asked = [request.body.get("model") or request.path for request in server.requests]
    assert "the-named" in asked[0] and asked[1:] == ["the-named", "its-own"]


def test_a_missing_key_is_said_before_anything_is_begun(folder: Path) -> None:
    done = everhold(
        *(
            "run",
            "capital.py:capital",
            "country=France",
            "-d",
            "a.db",
            "--model",
            "anthropic:claude-sonnet-4-6",
        ),
        cwd=folder,
    )

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: anthropic cannot be used: there is no key [provider_unconfigured]",
        "hint: Set the variable ANTHROPIC_API_KEY.",
    ]
    assert not (folder / "a.db").exists()


def test_two_ways_to_answer_are_one_too_many(folder: Path) -> None:
    done = everhold(
        *(
            "run",
            "capital.py:capital",
            "country=France",
            "--model",
            "openai:x",
            "--answer-with",
            "cat",
        ),
        cwd=folder,
    )

    assert done.returncode == 2
    assert "give it without --answers and --answer-with" in done.stderr


def test_the_doctor_looks_at_the_key(folder: Path) -> None:
    (folder / "everhold.toml").write_text('database = "a.db"\nllm = "google:gemini-2.5-flash"\n')
    done = everhold("doctor", cwd=folder)

    assert done.returncode != 0
    assert "GOOGLE_API_KEY" in done.stdout + done.stderr


def test_a_session_goes_on_with_a_model_that_works(server: Server, folder: Path) -> None:
    """What one provider would not answer for the want of a key, another answers."""
    server.script(Fail(401, "no such key"), Reply("Paris."))
    words = ("run", "capital.py:capital", "country=France", "-d", "a.db", "--key", "fr", "--model")
    refused = everhold(*words, server.name("openai-chat"), cwd=folder)
    assert refused.returncode == 10, refused.stdout + refused.stderr
    assert "it refuses the key" in refused.stderr
    done = everhold(*words, server.name("google"), cwd=folder)

    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (0, "Paris."), done.stderr
