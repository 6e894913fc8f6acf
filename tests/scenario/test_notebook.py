"""A notebook, executed: everhold.run works although Jupyter's loop is running."""

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    """
import everhold

@everhold.program
async def refund(ctx, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    return reason if await ctx.approval(f"Refund {order}?") else "declined"
""",
    """
try:
    everhold.run(refund(order="7"), key="refund-7", llm=lambda query: "broken", database="sqlite:///nb.db")
except everhold.Waiting as waiting:
    print([query.prompt for query in waiting.queries])
""",
    """
with everhold.open_blocking("sqlite:///nb.db") as runtime:
    runtime.answer(runtime.inbox()[0], True)
print(everhold.run(refund(order="7"), key="refund-7", database="sqlite:///nb.db"))
""",
    """
async with everhold.open("sqlite:///nb.db") as runtime:
    print(await runtime.run(refund(order="7"), key="refund-7"))
""",
]


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_notebook(tmp_path):
    """Run, wait, answer and go on, blocking and with await, cell by cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = ["".join(out["text"] for out in cell.outputs) for cell in notebook.cells]
    assert printed == ["", "['Refund 7?']\n", "broken\n", "broken\n"]
