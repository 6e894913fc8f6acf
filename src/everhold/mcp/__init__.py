"""The MCP front: a host's own model runs strategies and programs, and answers their questions.

    server          tools, prompts and resources of one server
    tools           the tools: parameters, description and handler of each
    tool_call       one call: finding its session, waiting for it, reporting progress
    tool_schema     JSON schemas of parameters, and reading arguments
    render          statuses and errors as a model reads them
    instructions    instructions, prompts, the guide, and the costs of strategies
    elicitation     forms for the person at the client
    multi_round     calls that return questions and are repeated with the answers
    tasks           sessions as tasks of the protocol (task_params: their parameters)
    runtime_holder  the runtime behind the tools
    pipe_server     the everyday messages on pipes, without the library (pending_requests)
    stdio, http     the two transports (json_rpc: reading one message; stdout: keeping it clean)
    token           the token for HTTP
    hosts           adding the server to hosts (json_edit, toml_edit: editing their files)
    protocol        what handlers know of requests, results and errors
    sdk             loading only the parts of the `mcp` library that a server uses
    algocline       the profile with algocline's tools

The `mcp` library enters only here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from everhold.mcp.server import McpFront
    from everhold.models import AnswererSpec

#: The profile of a server that names none; the other is `algocline`.
DEFAULT_PROFILE: Final = "default"


def make_front(database: str | None, llm: AnswererSpec, profile: str = DEFAULT_PROFILE) -> McpFront:
    """A front on a database, not opened yet, with the tools of a profile."""
    # imported here because the command line loads this package before the protocol library
    from everhold.mcp.runtime_holder import RuntimeHolder
    from everhold.mcp.server import McpFront
    from everhold.mcp.tool_call import ProgressObserver

    observer = ProgressObserver()
    holder = RuntimeHolder(database, llm=llm, observer=observer)
    if profile == DEFAULT_PROFILE:
        return McpFront(holder, observer)
    from everhold.mcp.algocline.server import AlcFront

    return AlcFront(holder, observer)
