"""The pages about MCP lead somewhere and name what there is."""

import re
from pathlib import Path

from everhold.mcp import instructions
from everhold.mcp.tools import BY_NAME
from everhold.packages.strategies import NAMES

DOCS = Path(__file__).resolve().parents[2] / "docs"
LLMS = (DOCS / "llms.txt").read_text()


def test_llms_txt_has_a_title_a_summary_and_links_with_words():
    """The form that readers of such files expect."""
    lines = LLMS.splitlines()
    assert lines[0] == "# everhold"
    assert lines[2].startswith("> ")
    assert all(
        re.fullmatch(r"- \[[^]]+\]\([^)]+\): .+", line) for line in lines if line.startswith("- ")
    )


def test_llms_txt_leads_to_pages_that_exist():
    links = re.findall(r"\]\(([^)]+)\)", LLMS)
    assert len(links) > 20
    assert [link for link in links if not (DOCS / link).is_file()] == []


def test_tools_that_are_named_exist():
    texts = [
        LLMS,
        instructions.INSTRUCTIONS,
        instructions.load_guide(),
        *(instructions.render_prompt(name, {}) for name in NAMES),
    ]
    named = [name for text in texts for name in re.findall(r"tools? `(\w+)`", text)]
    assert [name for name in named if name not in BY_NAME] == []


def test_the_reference_lists_every_tool_and_prompt():
    page = (DOCS / "reference" / "mcp.md").read_text()
    assert re.findall(r"^### `(\w+)`", page, re.MULTILINE) == list(BY_NAME)
    assert all(f"| `{name}` |" in page for name in instructions.list_prompts())
