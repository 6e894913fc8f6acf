"""`python -m tests.conformance.mcp ARGUMENTS`: the command `everhold ARGUMENTS`, whose server also
has the fixtures.
"""

import sys
from typing import Any

from mcp.server.lowlevel import Server

from everhold.__main__ import main
from everhold.mcp import server
from tests.conformance.mcp import fixture, task


class Fixtured(server.McpFront):
    def server(self, *, web: bool = True) -> Server[Any]:
        made = super().server(web=web)
        task.mount(made, self)
        fixture.mount(made)
        return made


if __name__ == "__main__":
    server.McpFront = Fixtured
    sys.exit(main())
