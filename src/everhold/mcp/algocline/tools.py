"""The table of tools, as hosts, agents and prompts made for algocline know them.

Unknown parameters are ignored and null counts as not given, as there; what has another type than it
should is an error of the protocol, raised before anything is done.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError
from msgspec import UNSET, Meta

from everhold.errors import BadRequest
from everhold.mcp import tools

_PROJECT = (
    "The project's folder, with its alc.toml; without it ALC_PROJECT_ROOT, else the"
    " nearest from here upwards."
)

NonNegativeInt = Annotated[int, Meta(ge=0)]
ProjectRoot = Annotated[str | None, Meta(description=_PROJECT)]
SessionName = Annotated[
    str, Meta(description="The session's id, from `session_id` of an earlier result.")
]
PackageName = Annotated[str, Meta(description="The package's name.")]


class AlcRunArgs(msgspec.Struct):
    code: Annotated[
        str | None, Meta(description="Lua code; `return` its result. It sees `ctx` and `alc`.")
    ] = None
    code_file: Annotated[
        str | None, Meta(description="Instead of code: path of a .lua file of the project.")
    ] = None
    ctx: Annotated[
        Any, Meta(description="What the code sees as `ctx`; `ctx.budget` limits what it may spend.")
    ] = None
    project_root: ProjectRoot = None


class AdviceArgs(msgspec.Struct):
    strategy: Annotated[
        str,
        Meta(description="Name of a package or a built-in strategy; alc_pkg_list lists packages."),
    ]
    task: Annotated[str | None, Meta(description="What to think about.")] = None
    opts: Annotated[
        Any,
        Meta(
            description="More of what the strategy sees in its ctx.",
            extra_json_schema={"type": "object"},
        ),
    ] = None
    project_root: ProjectRoot = None


class AlcUsage(msgspec.Struct):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class AlcResponse(msgspec.Struct):
    query_id: Annotated[str, Meta(description="Which question: its query_id or id.")]
    response: Annotated[str, Meta(description="Your answer.")]
    usage: Annotated[AlcUsage | None, Meta(description="Tokens it cost, if you know them.")] = None


class ContinueArgs(msgspec.Struct):
    session_id: SessionName
    response: Annotated[str | None, Meta(description="Your answer to one question.")] = None
    query_id: Annotated[
        str | None, Meta(description="Which question; needed if several are open.")
    ] = None
    usage: Annotated[
        AlcUsage | None, Meta(description="Tokens the answer cost, if you know them.")
    ] = None
    responses: Annotated[
        list[AlcResponse] | None,
        Meta(
            description="Answers to several questions at once; all are parse_alc_arguments or none."
        ),
    ] = None


class AlcStatusArgs(msgspec.Struct):
    session_id: Annotated[
        str | None, Meta(description="Only this session; without it, all that have not ended.")
    ] = None
    pending_filter: Annotated[
        Any,
        Meta(
            description='Show open questions: "meta", "preview", "full", or an object of what to'
            " show"
            ' ({"query_id": true, "prompt": {"mode": "preview", "chars": 80}}).',
        ),
    ] = UNSET
    include_history: Annotated[bool, Meta(description="Also the newest ten exchanges.")] = False


class AddNoteArgs(msgspec.Struct):
    session_id: SessionName
    content: Annotated[str, Meta(description="What to note.")]
    title: Annotated[str | None, Meta(description="A title for it.")] = None


class ViewLogArgs(msgspec.Struct):
    session_id: Annotated[
        str | None, Meta(description="The log of this session; without it, logs are listed.")
    ] = None
    limit: Annotated[NonNegativeInt | None, Meta(description="How many to list; default 50.")] = (
        None
    )
    max_chars: Annotated[
        NonNegativeInt | None,
        Meta(
            description="Longest log; the oldest rounds are left out. Default 100000, 0: no limit."
        ),
    ] = None


class LogStatsArgs(msgspec.Struct):
    strategy: Annotated[str | None, Meta(description="Only sessions of this strategy.")] = None
    days: Annotated[
        NonNegativeInt | None,
        Meta(description="Only sessions that ended in the last so many days."),
    ] = None


class NoArgs(msgspec.Struct):
    pass


class ProjectArgs(msgspec.Struct):
    project_root: ProjectRoot = None


class LinkPackageArgs(msgspec.Struct):
    path: Annotated[
        str,
        Meta(description="Folder of a package (with an init.lua), or of a collection of packages."),
    ]
    name: Annotated[str | None, Meta(description="Another name; of a single package only.")] = None
    force: Annotated[bool, Meta(description="Replace a folder that is in the way.")] = False
    scope: Annotated[
        str | None,
        Meta(
            description="global: a link for this user (default); variant: an entry in the"
            " project's alc.local.toml."
        ),
    ] = None
    project_root: ProjectRoot = None


class PackageArgs(msgspec.Struct):
    name: PackageName


class ListPackagesArgs(msgspec.Struct):
    project_root: ProjectRoot = None
    limit: Annotated[int | None, Meta(description="How many; default 50, 0 or less: all.")] = None
    sort: Annotated[
        str | None,
        Meta(description="Fields to sort by, - before one for descending; -active,-installed_at."),
    ] = None
    filter: Annotated[
        Any,
        Meta(
            description="Fields and the values they must have.",
            extra_json_schema={"type": "object"},
        ),
    ] = None
    fields: Annotated[list[str] | None, Meta(description="Exactly these fields of each.")] = None
    verbose: Annotated[
        str | None, Meta(description='How much of each: "summary" (default) or "full".')
    ] = None


class InstallPackageArgs(msgspec.Struct):
    url: Annotated[
        str, Meta(description="Absolute path of a folder, or address of a git repository.")
    ]
    name: Annotated[str | None, Meta(description="Another name; of a single package only.")] = None


class RemovePackageArgs(msgspec.Struct):
    name: PackageName
    project_root: ProjectRoot = None
    version: Annotated[str | None, Meta(description="Only this version.")] = None
    scope: Annotated[
        str | None,
        Meta(description="project (default), global: what this user installed, or all."),
    ] = None


class OptionalPackageArgs(msgspec.Struct):
    name: Annotated[str | None, Meta(description="Only this package.")] = None
    project_root: ProjectRoot = None


class ScaffoldPackageArgs(msgspec.Struct):
    name: Annotated[str, Meta(description="Name of the new package: a-z, then a-z, 0-9 and _.")]
    target_dir: Annotated[
        str | None, Meta(description="Where to make its folder; default the current one.")
    ] = None
    category: Annotated[str | None, Meta(description="What sort of strategy it is.")] = None
    description: Annotated[str | None, Meta(description="What it does.")] = None


class AlcTool(msgspec.Struct, frozen=True):
    """One tool. A hint that is None is not given."""

    name: str
    description: str
    takes: type[msgspec.Struct]
    reads: bool | None = None
    destroys: bool | None = None
    repeats: bool | None = None
    world: bool = False

    @property
    def verb(self) -> str:
        """What it is called on the desk."""
        return self.name.removeprefix("alc_")


_LOOP = (
    "Returns status needs_response (answer with alc_continue), completed (`result`), or error."
    " Sessions are kept on"
    " disk: they survive restarts, and alc_status shows what is open."
)

TOOLS: Final = (
    AlcTool(
        "alc_run",
        "Run Lua code that may ask you (alc.llm). It runs until it needs you: answer each prompt"
        " yourself with"
        f" alc_continue until status is completed. Give code or code_file. {_LOOP} It runs in a"
        " sandbox without files"
        " or network.",
        AlcRunArgs,
    ),
    AlcTool(
        "alc_advice",
        "Apply an installed package or a built-in strategy (such as reflect, panel, cot) to a"
        " task. Answer each prompt"
        f" it returns yourself with alc_continue until status is completed. {_LOOP}",
        AdviceArgs,
    ),
    AlcTool(
        "alc_continue",
        "Answer open questions of a session, one (`response`, with `query_id` if several are"
        " open) or several"
        f" (`responses`); the program then goes on. {_LOOP} accepted: kept, and others are still"
        " open. Sending the"
        " same answer again is harmless.",
        ContinueArgs,
    ),
    AlcTool(
        "alc_status",
        "Show sessions that have not ended, or one session, also after its end. pending_filter"
        " shows open questions.",
        AlcStatusArgs,
        reads=True,
    ),
    AlcTool("alc_note", "Add a note to the log of a session that has ended.", AddNoteArgs),
    AlcTool(
        "alc_log_view",
        "List logs of sessions that have ended, or show one with its transcript.",
        ViewLogArgs,
        reads=True,
    ),
    AlcTool(
        "alc_stats",
        "What sessions cost, strategy by strategy, from their logs.",
        LogStatsArgs,
        reads=True,
    ),
    AlcTool("alc_info", "Version, folders and search paths.", NoArgs, reads=True),
    AlcTool(
        "alc_init", "Make an alc.toml in a project.", ProjectArgs, destroys=False, repeats=True
    ),
    AlcTool("alc_update", "Resolve what alc.toml names, and write alc.lock.", ProjectArgs),
    AlcTool("alc_migrate", "Turn an alc.lock from before alc.toml into both.", ProjectArgs),
    AlcTool(
        "alc_pkg_link",
        "Use packages where they are: a link for this user, or an entry in the project's"
        " alc.local.toml.",
        LinkPackageArgs,
        destroys=False,
        repeats=True,
    ),
    AlcTool(
        "alc_pkg_unlink",
        "Take away the link to a package; its files stay.",
        PackageArgs,
        destroys=True,
    ),
    AlcTool(
        "alc_pkg_list",
        "List packages, with where each is found and which of a name is active.",
        ListPackagesArgs,
        reads=True,
    ),
    AlcTool(
        "alc_pkg_install",
        "Install a package, or a collection of packages, from a folder or a git repository."
        " Nothing of it is run.",
        InstallPackageArgs,
        destroys=True,
        world=True,
    ),
    AlcTool(
        "alc_pkg_remove",
        "Remove a package from the project, from this user, or from both.",
        RemovePackageArgs,
        destroys=True,
    ),
    AlcTool(
        "alc_pkg_repair",
        "Mend packages that are missing or broken, from where they came.",
        OptionalPackageArgs,
        destroys=True,
        world=True,
    ),
    AlcTool(
        "alc_pkg_doctor",
        "Say which packages are whole and what is wrong with others.",
        OptionalPackageArgs,
        reads=True,
        repeats=True,
    ),
    AlcTool(
        "alc_pkg_scaffold",
        "Make the skeleton of a new package.",
        ScaffoldPackageArgs,
        destroys=False,
    ),
)

BY_NAME: Final = {tool.name: tool for tool in TOOLS}
# what hosts send as JSON text, too
_LENIENT: Final = ("responses", "usage", "opts", "filter", "fields")


def parse_alc_arguments(tool: AlcTool, arguments: dict[str, Any] | None) -> Any:
    """The arguments of a call as the tool's struct; raises the protocol's error for those that do
    not fit.
    """
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    try:
        tools.refuse_huge(tool.name, given)
    except BadRequest as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None
    for name in _LENIENT:
        if isinstance(given.get(name), str):
            given[name] = tools.parse_json_leniently(given[name])
    try:
        return msgspec.convert(given, tool.takes)
    except msgspec.ValidationError as error:
        raise MCPError(
            code=types.INVALID_PARAMS, message=f"failed to deserialize parameters: {error}"
        ) from None


def describe_alc_tool(tool: AlcTool) -> types.Tool:
    hints: dict[str, Any] = {
        "read_only_hint": tool.reads,
        "destructive_hint": tool.destroys,
        "idempotent_hint": tool.repeats,
        "open_world_hint": tool.world,
    }
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tools.build_input_schema(tool.takes),
        annotations=types.ToolAnnotations(
            **{name: hint for name, hint in hints.items() if hint is not None}
        ),
    )
