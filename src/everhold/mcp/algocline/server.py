"""Tools and resources of one server of this profile.

It has no prompts (the list of them is empty), and its results have no structured content.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Final

from everhold.errors import EverholdError
from everhold.mcp.algocline import alc_wire, resource
from everhold.mcp.algocline.alc_wire import (
    AlcRefused,
    AlcTool,
    describe_alc_tool,
    parse_alc_arguments,
)
from everhold.mcp.algocline.card_tools import CARD_TOOLS, is_card_verb, run_card_verb
from everhold.mcp.algocline.eval_tools import EVAL_TOOLS, EVAL_VERBS
from everhold.mcp.algocline.hub_tools import HUB_TOOLS, is_hub_verb, run_hub_verb
from everhold.mcp.algocline.package_tools import PACKAGE_TOOLS, is_package_verb, run_package_verb
from everhold.mcp.algocline.session_tools import SESSION_TOOLS, AlcToolHandlers, ReportedSteps
from everhold.mcp.protocol import (
    INVALID_PARAMS,
    Handler,
    ProtocolError,
    RequestContext,
    make_text_content,
)
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.mcp.server import McpFront
from everhold.mcp.tool_call import ProgressObserver
from everhold.packages.lua.paths import list_unheeded_variables, read_card_sinks

log = logging.getLogger("everhold")

INSTRUCTIONS: Final = (
    "This server runs reasoning strategies that pause when they need a model, and you are that"
    " model. alc_advice applies a strategy to a task, alc_run runs Lua code. Both return status"
    " needs_response with questions. Answer each question honestly and by itself, send the answers"
    " with alc_continue, and repeat until the status is completed. Then report `result`.\n\n"
    "Sessions are stored on disk and survive restarts. alc_status lists the sessions that have not"
    ' ended; with pending_filter "full" it shows their questions again. alc_log_view, alc_note and'
    " alc_stats read the logs of sessions that have ended. alc_pkg_list, alc_pkg_install,"
    " alc_pkg_link, alc_pkg_unlink, alc_pkg_remove, alc_pkg_repair, alc_pkg_doctor and"
    " alc_pkg_scaffold manage packages. alc_card_list, alc_card_find, alc_card_get,"
    " alc_card_get_by_alias, alc_card_samples, alc_card_lineage and alc_card_alias_list read cards,"
    " the immutable records of runs; alc_card_append and alc_card_alias_set annotate them;"
    " alc_card_install and alc_card_sink_backfill copy them. alc_eval measures a package on the"
    " cases of a scenario; alc_eval_history, alc_eval_detail and alc_eval_compare read and compare"
    " the results, and alc_scenario_list, alc_scenario_show and alc_scenario_install manage"
    " scenarios. alc_hub_search and alc_hub_info find"
    " packages of others; alc_hub_reindex, alc_hub_gendoc and alc_hub_dist publish your own."
    " alc_init, alc_update and alc_migrate"
    " manage a project's alc.toml and alc.lock. alc_info shows where everything is."
)

#: Characters of a refusal. It goes into the context of a model.
MAX_REFUSAL_CHARS: Final = 4000

TOOLS: Final = (*SESSION_TOOLS, *EVAL_TOOLS, *PACKAGE_TOOLS, *CARD_TOOLS, *HUB_TOOLS)
BY_NAME: Final = {tool.name: tool for tool in TOOLS}


class AlcFront(McpFront):
    """Handles the requests of the clients of a server with this profile."""

    title: ClassVar[str] = "everhold, as algocline"
    instructions: ClassVar[str] = INSTRUCTIONS
    extensions: ClassVar[tuple[str, ...]] = ()

    def __init__(self, holder: RuntimeHolder, observer: ProgressObserver) -> None:
        super().__init__(holder, observer)
        self._reported = ReportedSteps()
        self._resources = resource.AlcResources(holder)

    async def open(self) -> None:
        for words in list_unheeded_variables():
            log.warning("%s", words)
        await super().open()

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "tools/list": self.tools,
            "tools/call": self.call,
            "resources/list": self.resources,
            "resources/templates/list": self.templates,
            "resources/read": self.resource,
            "prompts/list": self.prompts,
        }

    # ---- tools

    async def tools(self, context: RequestContext, params: Any) -> dict[str, Any]:
        return {"tools": [describe_alc_tool(tool) for tool in TOOLS]}

    async def call(self, context: RequestContext, params: Any) -> dict[str, Any]:
        tool = BY_NAME.get(params.name)
        if tool is None:
            raise ProtocolError(INVALID_PARAMS, f"tool not found: {params.name[:100]!r}")
        given = parse_alc_arguments(tool, params.arguments)
        # read now, because other calls may report later steps meanwhile
        heard = self._reported.of(getattr(given, "session_id", None) or "")
        try:
            if is_card_verb(tool.verb):
                return await self._finish(self._run_card_tool(tool, given), context)
            text, reported = await self._finish(
                self._run_alc_tool(context, tool, given, heard), context
            )
        except AlcRefused as error:
            return _refused(error)
        except EverholdError as error:
            return _refused(AlcRefused.of(error))
        except Exception as error:
            log.exception("the tool %s failed", tool.name)
            return _refused(AlcRefused(f"{type(error).__name__}: {error}", "internal"))
        for session_id, step in reported.items():  # the call was not cancelled: the client gets it
            self._reported.note(session_id, step)
        return {"content": [make_text_content(text)], "isError": False}

    async def _run_alc_tool(
        self, context: RequestContext, tool: AlcTool, given: Any, heard: int
    ) -> tuple[str, dict[str, int]]:
        if is_hub_verb(tool.verb):
            shown = await run_hub_verb(await self.holder.runtime(), tool.verb, given)
            return alc_wire.dump_compact(shown), {}
        if is_package_verb(tool.verb):
            made = await run_package_verb(tool.verb, given)
            if made.get("cards_installed") and read_card_sinks()[0]:
                await (await self.holder.runtime()).cards.copy_installed(made["cards_installed"])
            return alc_wire.dump_compact(made), {}
        if tool.verb in EVAL_VERBS:
            return await EVAL_VERBS[tool.verb](await self.holder.runtime(), given), {}
        tool_call = AlcToolHandlers(
            self.holder, self.observer, await self.holder.runtime(), context, heard
        )
        verb = "continue_" if tool.verb == "continue" else tool.verb
        return await getattr(tool_call, verb)(given), tool_call.reported

    async def _run_card_tool(self, tool: AlcTool, given: Any) -> dict[str, Any]:
        result, meta = await run_card_verb(await self.holder.runtime(), tool.verb, given)
        found = {"content": [make_text_content(alc_wire.dump_compact(result))], "isError": False}
        return {"_meta": meta, **found} if meta else found

    # ---- resources

    async def resources(self, context: RequestContext, params: Any) -> dict[str, Any]:
        return {"resources": resource.list_resources()}

    async def templates(self, context: RequestContext, params: Any) -> dict[str, Any]:
        return {"resourceTemplates": resource.list_resource_templates()}

    async def resource(self, context: RequestContext, params: Any) -> dict[str, Any]:
        uri = str(params.uri)
        text, mime = await self._resources.read(uri)
        return {"contents": [{"mimeType": mime, "text": text, "uri": uri}]}

    # ---- prompts

    async def prompts(self, context: RequestContext, params: Any) -> dict[str, Any]:
        return {"prompts": []}


def _refused(error: AlcRefused) -> dict[str, Any]:
    """A refusal as plain text. Its code and hint are in `_meta`."""
    meta = {"everhold/code": error.code} | ({"everhold/hint": error.hint} if error.hint else {})
    text = str(error)
    if len(text) > MAX_REFUSAL_CHARS:  # it repeats a long argument, or lists many problems
        text = f"{text[:MAX_REFUSAL_CHARS]}… ({len(text)} characters)"
    return {"_meta": meta, "content": [make_text_content(text)], "isError": True}
