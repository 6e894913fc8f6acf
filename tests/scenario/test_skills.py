"""Skills: folders that a model is told of, and reads when it needs them."""

import os

import pytest

from everhold.agents.agent import Agent
from everhold.agents.skills import load_skills
from everhold.errors import BadSkill
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted, told, uses

FRONT = "---\nname: {name}\ndescription: {description}\n---\n"


def skill(
    root, name="refunds", description="How to refund an order.", body="Look up the order first.\n"
):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(FRONT.format(name=name, description=description) + body)
    return folder


async def read(folder, *calls):
    """What a model is told of these calls of the tool."""
    agent = Agent(instructions="You help.", skills=[folder], name="skilled")
    model = Scripted(uses(*(("skill", call) for call in calls)))
    async with opened(llm=model, replay=False) as runtime:
        session = await runtime.session(agent, "s")
        await session.send("Go.")
        return told(await session.history())


async def test_skills_are_listed_and_read_on_demand(tmp_path):
    """The system prompt has a line for each; the text comes when the model asks for it, with the
    names of its files.
    """
    folder = skill(tmp_path)
    (folder / "rates").mkdir()
    (folder / "rates" / "eu.md").write_text("19 %")
    skill(tmp_path, "shipping", "How to ship.")
    told_of = []

    async def model(query):
        told_of.append(query.system)
        return "Done." if len(told_of) > 1 else uses(("skill", {"name": "refunds"}))

    agent = Agent(instructions="You help.", skills=[tmp_path], name="skilled")
    async with opened(llm=model, replay=False) as runtime:
        session = await runtime.session(agent, "s")
        await session.send("Refund it.")
        (result,) = told(await session.history())
    assert told_of[0].startswith("You help.\n\n")
    assert told_of[0].endswith("- refunds: How to refund an order.\n- shipping: How to ship.")
    assert "Look up" not in told_of[0]
    assert result == "Look up the order first.\n\nFiles of this skill: rates/eu.md"


async def test_files_of_a_skill(tmp_path):
    """A file of the folder is read by its path in it."""
    folder = skill(tmp_path)
    (folder / "rates").mkdir()
    (folder / "rates" / "eu.md").write_text("19 %")
    assert await read(folder, {"name": "refunds", "file": "rates/eu.md"}) == ["19 %"]


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("../secret", "the path must lie inside"),
        ("/etc/passwd", "the path must lie inside"),
        ("rates/../../secret", "the path must lie inside"),
        ("", "the path must lie inside"),
        ("link", "cannot be read"),
        ("folder/secret", "cannot be read"),
        ("hard", "the path is not a plain file"),
        ("pipe", "the path is not a plain file"),
        ("rates", "cannot be read"),
        ("nothing.md", "the file does not exist"),
        ("picture", "the file is not text"),
        ("large", "the file has more than 262,144 bytes"),
    ],
)
async def test_nothing_else_can_be_read(tmp_path, file, why):
    """Not what is outside, not through links of any sort, not what is no text, and not what is too
    much.
    """
    folder = skill(tmp_path / "skills")
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    (folder / "rates").mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "folder").symlink_to(tmp_path)
    os.link(secret, folder / "hard")
    os.mkfifo(folder / "pipe")
    (folder / "picture").write_bytes(b"\x89PNG\xff")
    (folder / "large").write_text("x" * (256 * 1024 + 1))
    (result,) = await read(folder, {"name": "refunds", "file": file})
    assert (
        result.startswith(f"Error: file {file!r} of skill 'refunds' cannot be read")
        and why in result
    )


async def test_an_unknown_skill(tmp_path):
    """The model is told which there are."""
    (result,) = await read(skill(tmp_path), {"name": "refund"})
    assert result == "Error: there is no skill 'refund'; the skills are: refunds"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no front matter", "does not begin with a line of ---"),
        ("---\nname: refunds\n", "has no closing line"),
        (FRONT.format(name="Refunds", description="x"), "name should be"),
        (FRONT.format(name="a--b", description="x"), "name should be"),
        (FRONT.format(name="x" * 65, description="x"), "name should be"),
        (
            FRONT.format(name="other", description="x"),
            "its name is 'other', but its folder is called 'refunds'",
        ),
        (
            FRONT.format(name="refunds", description=""),
            "description should have 1 to 1024 characters, has 0",
        ),
        (FRONT.format(name="refunds", description="x" * 1025), "has 1025"),
        ("---\nname: refunds\nnot a key\n---\n", "neither a key nor indented below one"),
        (b"\xff\xfe", "the file is not text"),
    ],
)
def test_what_is_no_skill_is_refused_at_once(tmp_path, text, why):
    """When the agent is made, with the folder and the reason."""
    folder = tmp_path / "refunds"
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadSkill, match="refunds") as caught:
        Agent(skills=[folder])
    assert why in str(caught.value)


def test_folders_without_skills(tmp_path):
    """A folder that is not there, one without any, and two of one name."""
    with pytest.raises(BadSkill, match="the folder does not exist"):
        load_skills([tmp_path / "none"])
    with pytest.raises(BadSkill, match=r"has a SKILL\.md"):
        load_skills([tmp_path])
    with pytest.raises(BadSkill, match="has the same name"):
        load_skills([skill(tmp_path / "a"), skill(tmp_path / "b")])


def test_front_matter_as_people_write_it(tmp_path):
    """Quotes, text over several lines, comments, and keys that are not ours."""
    folder = tmp_path / "refunds"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: 'refunds'\n# ours\ndescription: >-\n  How to refund:\n  step by"
        " step.\nlicense: MIT\n"
        "metadata:\n  version: 1\n---\nBody"
    )
    (found,) = load_skills([str(folder)])
    assert (found.name, found.description) == ("refunds", "How to refund: step by step.")
