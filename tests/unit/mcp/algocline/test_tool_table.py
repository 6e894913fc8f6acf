"""The tools of the profile beside those of algocline 0.29.1."""

from everhold.mcp.algocline.alc_wire import describe_alc_tool
from everhold.mcp.algocline.resource import list_resource_templates, list_resources
from everhold.mcp.algocline.server import INSTRUCTIONS, TOOLS
from tests.failures import collect_failures

#: What `tools/list` of algocline 0.29.1 says. A `?` marks an optional parameter; a `count` is an
#: integer from 0; `any` has no type. Hints: R reads only, W does not, D destroys, K does not,
#: I idempotent, O open world (all others say that they are not).
UPSTREAM = """
alc_run              code?: string, code_file?: string, ctx?: any, project_root?: string
alc_advice           opts?: any, project_root?: string, strategy: string, task?: string
alc_continue         query_id?: string, response?: string, responses?: [RESPONSE], session_id: string, usage?: USAGE
alc_status        R  include_history?: boolean, pending_filter?: any, session_id?: string
alc_eval             auto_card?: boolean, scenario?: string, scenario_file?: string, scenario_name?: string, strategy: string, strategy_opts?: any
alc_eval_history  R  limit?: count, strategy?: string
alc_eval_detail   R  eval_id: string
alc_eval_compare  W  eval_id_a: string, eval_id_b: string
alc_scenario_list R
alc_scenario_show R  name: string
alc_scenario_install url: string
alc_pkg_link      KI force?: boolean, name?: string, path: string, project_root?: string, scope?: global|variant
alc_pkg_unlink    D  name: string
alc_pkg_list      R  fields?: [string], filter?: any, limit?: integer, project_root?: string, sort?: string, verbose?: string
alc_pkg_install   DO name?: string, url: string
alc_pkg_remove    D  name: string, project_root?: string, scope?: project|global|all, version?: string
alc_pkg_repair    DO name?: string, project_root?: string
alc_pkg_doctor    RI name?: string, project_root?: string
alc_pkg_scaffold  K  category?: string, description?: string, name: string, target_dir?: string
alc_note             content: string, session_id: string, title?: string
alc_log_view      R  limit?: count, max_chars?: count, session_id?: string
alc_stats         R  days?: count, strategy?: string
alc_info          R
alc_init          KI project_root?: string
alc_update           project_root?: string
alc_migrate          project_root?: string
alc_card_list     R  pkg?: string
alc_card_get      R  card_id: string
alc_card_find     R  limit?: count, offset?: count, order_by?: any, pkg?: string, where?: any
alc_card_append   K  card_id: string, fields: any
alc_card_samples  R  card_id: string, limit?: count, offset?: count, where?: any
alc_card_lineage  R  card_id: string, depth?: count, direction?: string, include_stats?: boolean, relation_filter?: [string]
alc_card_alias_set KI card_id: string, name: string, note?: string, pkg?: string
alc_card_alias_list R pkg?: string
alc_card_get_by_alias R name: string
alc_card_install  K  url: string
alc_card_sink_backfill KI dry_run?: boolean, sink: string
alc_hub_search    RO category?: string, fields?: [string], filter?: any, installed_only?: boolean, limit?: integer, query?: string, sort?: string, verbose?: string
alc_hub_info      RO pkg: string
alc_hub_reindex   K  output_path?: string, source_dir?: string
alc_hub_gendoc    K  config_path?: string, lint_strict?: boolean, out_dir?: string, projections?: [string], source_dir: string
alc_hub_dist      K  config_path?: string, lint_strict?: boolean, out_dir?: string, output_path?: string, preset?: string, project_root?: string, projections?: [string], source_dir: string
"""  # noqa: E501
USAGE = "{completion_tokens?: count, prompt_tokens?: count}"
RESPONSE = f"{{query_id: string, response: string, usage?: {USAGE}}}"
#: Parameters without a type there. Only these forms ever had an effect, so they are declared here.
TYPED = {
    ("alc_advice", "opts"): "object",
    ("alc_eval", "strategy_opts"): "object",
    ("alc_card_append", "fields"): "object",
    ("alc_card_find", "order_by"): "string|array",
    ("alc_card_find", "where"): "object",
    ("alc_card_samples", "where"): "object",
    ("alc_hub_search", "filter"): "object",
    ("alc_pkg_list", "filter"): "object",
}
HINTS = {
    "R": ("readOnlyHint", True),
    "W": ("readOnlyHint", False),
    "D": ("destructiveHint", True),
    "K": ("destructiveHint", False),
    "I": ("idempotentHint", True),
    "O": ("openWorldHint", True),
}


def read_upstream():
    """By name: the hints, and the type of each parameter."""
    found = {}
    for line in UPSTREAM.strip().splitlines():
        name, *rest = line.split(None, 1)
        letters, _, parameters = (rest[0] if rest else "").partition(" ")
        if not letters.isupper():
            letters, parameters = "", rest[0] if rest else ""
        parameters = parameters.replace("RESPONSE", RESPONSE).replace("USAGE", USAGE)
        hints = {"openWorldHint": False} | dict(HINTS[letter] for letter in letters)
        found[name] = hints, parameters.strip()
    return found


def describe(schema):
    """A schema in the words of the table."""
    if "enum" in schema:
        return "|".join(schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(kind)
    if kind == "array":
        return f"[{describe(schema['items'])}]" if "items" in schema else "array"
    if kind == "object":
        return "{" + describe_properties(schema) + "}" if "properties" in schema else "object"
    return "count" if kind == "integer" and schema.get("minimum") == 0 else kind


def describe_properties(schema, tool=""):
    required = schema.get("required", ())
    return ", ".join(
        f"{name}{'' if name in required else '?'}: "
        + (describe(one) if (tool, name) not in TYPED else check_typed(tool, name, one))
        for name, one in sorted(schema.get("properties", {}).items())
    )


def check_typed(tool, name, schema):
    assert describe(schema) == TYPED[tool, name]
    return "any"


def test_the_tools_are_those_of_algocline():
    """All 42: their names, parameters, which of them are required, their types, and the hints."""
    tools = {tool.name: describe_alc_tool(tool) for tool in TOOLS}
    upstream = read_upstream()
    assert len(upstream) == 42
    assert tools.keys() == upstream.keys()
    with collect_failures() as row:
        for name, (hints, parameters) in upstream.items():
            with row(name):
                assert tools[name]["annotations"] == hints
                assert describe_properties(tools[name]["inputSchema"], name) == parameters


def test_a_host_is_told_of_each_tool():
    """Each tool has a description and is in the instructions; each parameter is described."""
    with collect_failures() as row:
        for tool in TOOLS:
            with row(tool.name):
                described = describe_alc_tool(tool)
                assert described["description"].endswith(".")
                assert tool.name in INSTRUCTIONS
                for name, schema in described["inputSchema"]["properties"].items():
                    assert schema.get("description"), name


def test_resources_are_those_of_algocline():
    assert [one["uri"] for one in list_resources()] == [
        "alc://types/alc.d.lua",
        "alc://types/alc_shapes.d.lua",
    ]
    assert {one["uriTemplate"]: one["mimeType"] for one in list_resource_templates()} == {
        "alc://packages/{name}/init.lua": "text/x-lua",
        "alc://packages/{name}/meta": "application/json",
        "alc://cards/{card_id}": "application/json",
        "alc://cards/{card_id}/samples": "application/json",
        "alc://scenarios/{name}": "text/x-lua",
        "alc://eval/{result_id}": "application/json",
        "alc://logs/{session_id}": "application/json",
    }
