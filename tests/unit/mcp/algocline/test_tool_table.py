"""The tools of the profile beside those of algocline 0.29.1."""

from everhold.mcp.algocline.alc_wire import describe_alc_tool
from everhold.mcp.algocline.resource import list_resource_templates, list_resources
from everhold.mcp.algocline.server import INSTRUCTIONS, TOOLS
from tests.failures import collect_failures

#: Written by hand from upstream's documentation: tool, its hints, its parameters. A required
#: parameter has a star. `s` is text, `i` an integer, `b` a boolean, `o` an object, `a` an array,
#: `*` any value. RO reads only, D destroys, nd does not destroy, I may be repeated, OW has an open
#: world.
UPSTREAM = """
alc_run                |       | code:s code_file:s ctx:* project_root:s
alc_advice             |       | strategy*:s task:s opts:o project_root:s
alc_continue           |       | session_id*:s response:s query_id:s usage:o responses:a
alc_status             | RO    | session_id:s pending_filter:* include_history:b
alc_eval               |       | strategy*:s scenario:s scenario_file:s scenario_name:s strategy_opts:o auto_card:b
alc_eval_history       | RO    | strategy:s limit:i
alc_eval_detail        | RO    | eval_id*:s
alc_eval_compare       |       | eval_id_a*:s eval_id_b*:s
alc_scenario_list      | RO    |
alc_scenario_show      | RO    | name*:s
alc_scenario_install   |       | url*:s
alc_pkg_link           | nd I  | path*:s name:s force:b scope:s project_root:s
alc_pkg_unlink         | D     | name*:s
alc_pkg_list           | RO    | project_root:s limit:i sort:s filter:o fields:a verbose:s
alc_pkg_install        | D OW  | url*:s name:s
alc_pkg_remove         | D     | name*:s project_root:s version:s scope:s
alc_pkg_repair         | D OW  | name:s project_root:s
alc_pkg_doctor         | RO I  | name:s project_root:s
alc_pkg_scaffold       | nd    | name*:s target_dir:s category:s description:s
alc_note               |       | session_id*:s content*:s title:s
alc_log_view           | RO    | session_id:s limit:i max_chars:i
alc_stats              | RO    | strategy:s days:i
alc_info               | RO    |
alc_init               | nd I  | project_root:s
alc_update             |       | project_root:s
alc_migrate            |       | project_root:s
alc_card_list          | RO    | pkg:s
alc_card_get           | RO    | card_id*:s
alc_card_find          | RO    | pkg:s where:o order_by:sa limit:i offset:i
alc_card_alias_list    | RO    | pkg:s
alc_card_get_by_alias  | RO    | name*:s
alc_card_alias_set     | nd I  | name*:s card_id*:s pkg:s note:s
alc_card_append        | nd    | card_id*:s fields*:o
alc_card_samples       | RO    | card_id*:s offset:i limit:i where:o
alc_card_lineage       | RO    | card_id*:s direction:s depth:i include_stats:b relation_filter:a
alc_card_sink_backfill | nd I  | sink*:s dry_run:b
alc_card_install       | nd    | url*:s
alc_hub_search         | RO OW | query:s category:s installed_only:b limit:i sort:s filter:o fields:a verbose:s
alc_hub_info           | RO OW | pkg*:s
alc_hub_reindex        | nd    | output_path:s source_dir:s
alc_hub_gendoc         | nd    | source_dir*:s out_dir:s projections:a config_path:s lint_strict:b
alc_hub_dist           | nd    | source_dir*:s output_path:s out_dir:s preset:s project_root:s projections:a config_path:s lint_strict:b
"""  # noqa: E501
HINTS = {
    "RO": ("readOnlyHint", True),
    "D": ("destructiveHint", True),
    "nd": ("destructiveHint", False),
    "I": ("idempotentHint", True),
    "OW": ("openWorldHint", True),
}
KINDS = {"s": "string", "i": "integer", "b": "boolean", "o": "object", "a": "array"}


def read_rows():
    for line in UPSTREAM.strip().splitlines():
        name, hints, parameters = (part.strip() for part in line.split("|"))
        annotations = {"openWorldHint": False, **dict(HINTS[word] for word in hints.split())}
        yield name, annotations, dict(word.rsplit(":", 1) for word in parameters.split())


def test_the_profile_has_the_42_tools():
    assert sorted(tool.name for tool in TOOLS) == sorted(name for name, *_ in read_rows())
    assert len(TOOLS) == 42


def test_each_tool_has_the_hints_and_parameters_of_algocline():
    tools = {tool.name: describe_alc_tool(tool) for tool in TOOLS}
    with collect_failures() as row:
        for name, annotations, parameters in read_rows():
            with row(name):
                schema = tools[name]["inputSchema"]
                assert tools[name]["annotations"] == annotations
                assert {one.removesuffix("*") for one in parameters} == schema["properties"].keys()
                required = [one[:-1] for one in parameters if one.endswith("*")]
                assert sorted(required) == sorted(schema.get("required", []))
                for one, letters in parameters.items():
                    found = schema["properties"][one.removesuffix("*")].get("type", "*")
                    kinds = [found] if isinstance(found, str) else found
                    assert kinds == [KINDS.get(letter, letter) for letter in letters], one


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
