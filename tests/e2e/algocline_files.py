"""More calls of the algocline profile: logs, packages, and addresses that can be read."""

from tests.e2e.algocline_table import (
    AUTO,
    COUNT,
    PARAMS,
    Forbidden,
    Json,
    Pretty,
    Refused,
    Row,
    asks,
)

LOGS = [
    Row(
        "alc_note",
        {"session_id": "{one}", "content": "Twice A.", "title": "hm"},
        Json({"session_id": "{one}", "notes_count": 1}),
    ),
    Row(
        "alc_note",
        {"session_id": "{one}", "content": "Still."},
        Json({"session_id": "{one}", "notes_count": 2}),
    ),
    Row(
        "alc_note",
        {"session_id": "{cot}", "content": "x"},
        Refused("Log of session '{cot}' not found"),
    ),
    Row(
        "alc_note",
        {"session_id": "../app", "content": "x"},
        Refused("Log of session '../app' not found"),
    ),
    Row("alc_log_view", {"session_id": "s-0"}, Refused("Log of session 's-0' not found")),
    Row(
        "alc_log_view",
        {"session_id": "{one}"},
        Pretty(
            {
                "session_id": "{one}",
                "strategy": None,
                "task_hint": "First?",
                "stats": AUTO,
                "transcript": [
                    {"query_id": "q-0", "prompt": "First?", "system": None, "response": "A"},
                    {
                        "query_id": "q-0",
                        "prompt": "Then, after A?",
                        "system": None,
                        "response": "A",
                    },
                ],
                "notes": [
                    {"timestamp": ..., "title": "hm", "content": "Twice A."},
                    {"timestamp": ..., "title": None, "content": "Still."},
                ],
            }
        ),
    ),
    Row(
        "alc_log_view",
        {"session_id": "{one}", "max_chars": 925},
        Pretty(
            {
                "session_id": "{one}",
                "strategy": None,
                "task_hint": "First?",
                "stats": AUTO,
                "transcript": [
                    {"query_id": "q-0", "prompt": "Then, after A?", "system": None, "response": "A"}
                ],
                "notes": ...,
                "truncated": True,
                "original_rounds": 2,
                "returned_rounds": 1,
            }
        ),
    ),
    Row(
        "alc_log_view",
        {"session_id": "{fork}", "max_chars": 0},
        Pretty(
            {
                "session_id": "{fork}",
                "strategy": None,
                "task_hint": "Draft: t",
                "stats": AUTO,
                "transcript": [
                    {"query_id": name, "prompt": ..., "system": ..., "response": ...}
                    for name in ("f-0-0", "f-1-0", "f-1-1", "f-1-2", "f-0-1")
                ],
            }
        ),
    ),
    Row(
        "alc_log_view",
        {"limit": 1},
        Json(
            {
                "sessions": [
                    {
                        "session_id": "{one}",
                        "strategy": None,
                        "task_hint": "First?",
                        "notes_count": 2,
                        "elapsed_ms": ...,
                        "rounds": 2,
                        "llm_calls": 2,
                        "total_prompt_chars": 20,
                        "total_response_chars": 2,
                        "prompt_tokens": COUNT,
                        "response_tokens": COUNT,
                        "total_tokens": COUNT,
                    }
                ]
            }
        ),
    ),
    Row("alc_log_view", {"limit": -1}, Forbidden(PARAMS, "expected `int` >= 0")),
    Row(
        "alc_log_view",
        {"session_id": "s-185f00aa11bb22cc-0123456789abcdef", "max_chars": 970},
        Pretty(
            {
                "session_id": ...,
                "strategy": "twice",
                "task_hint": ...,
                "stats": AUTO,
                "notes": ...,
                "transcript": [
                    {
                        "query_id": "q-0",
                        "prompt": "Improve: Because of scattering.",
                        "response": "Air scatters blue light most.",
                        "system": "Be brief.",
                    }
                ],
                "truncated": True,
                "original_rounds": 2,
                "returned_rounds": 1,
            }
        ),
    ),
    # one that failed has a log, too; so has one of algocline without its summary
    Row(
        "alc_log_view",
        {"session_id": "{poor}"},
        Pretty(
            {
                "session_id": "{poor}",
                "strategy": None,
                "task_hint": "First?",
                "stats": {**AUTO, "budget": {"max_llm_calls": 1}},
                "transcript": [
                    {"query_id": "q-0", "prompt": "First?", "system": None, "response": "A"}
                ],
            }
        ),
    ),
    Row(
        "alc_note",
        {"session_id": "s-1840000000000000-00000000000000aa", "content": "old"},
        Json({"session_id": "s-1840000000000000-00000000000000aa", "notes_count": 1}),
    ),
    Row(
        "alc_stats",
        {"strategy": "twice"},
        Json(
            {
                "total_sessions": 2,
                "card_sinks": [],
                "strategies": {
                    "twice": {
                        "count": 2,
                        "avg_elapsed_ms": ...,
                        "avg_llm_calls": 2,
                        "avg_rounds": 2,
                        "total_prompt_chars": ...,
                        "total_response_chars": 131,
                        "total_prompt_tokens": ...,
                        "total_response_tokens": ...,
                        "total_tokens": ...,
                    }
                },
            }
        ),
    ),
    Row(
        "alc_stats",
        {"strategy": "twice", "days": 0},
        Json({"total_sessions": 0, "card_sinks": [], "strategies": {}}),
    ),
    Row(
        "alc_stats",
        {"strategy": "none"},
        Json({"total_sessions": 0, "card_sinks": [], "strategies": {}}),
    ),
    Row(
        "alc_info",
        {},
        Pretty(
            {
                "version": ...,
                "preset_catalog_version": ...,
                "log_dir": {"resolved": "{home}/logs", "source": "~/.algocline/logs"},
                "log_enabled": True,
                "tracing": "stderr only",
                "packages_dir": "{home}/packages",
                "search_paths": [
                    {"path": "{home}/packages", "source": "default"},
                    {"path": "{user}/data/everhold/packages", "source": "everhold"},
                ],
            }
        ),
    ),
]

PACKAGES = [
    Row(
        "alc_migrate",
        {"project_root": "{project}"},
        Json({"status": "nothing to migrate", "reason": "there is no alc.lock"}),
    ),
    Row(
        "alc_migrate",
        {"project_root": "{base}/old"},
        Json(
            {
                "migrated": True,
                "alc_toml": "{base}/old/alc.toml",
                "backup": "{base}/old/alc.lock.bak",
                "note": "alc_update writes the new alc.lock",
            }
        ),
    ),
    Row(
        "alc_update",
        {"project_root": "{project}"},
        Refused("No alc.toml found; alc_init creates one"),
    ),
    Row(
        "alc_init",
        {"project_root": "{project}"},
        Json(
            {
                "created": "{project}/alc.toml",
                "gitignore_path": "{project}/.gitignore",
                "gitignore_updated": True,
                "types_path": "{home}/types/alc.d.lua",
                "alc_shapes_types_path": "{home}/types/alc_shapes.d.lua",
            }
        ),
    ),
    Row(
        "alc_init",
        {"project_root": "{project}"},
        Refused("{project}/alc.toml already exists"),
    ),
    Row(
        "alc_update",
        {},
        Json(
            {
                "resolved": 0,
                "errors": [],
                "alc_lock": "{project}/alc.lock",
                "types_path": ...,
                "alc_shapes_types_path": ...,
            }
        ),
    ),
    Row("alc_pkg_scaffold", {"name": "Bad-Name"}, Refused("invalid package name 'Bad-Name'")),
    Row(
        "alc_pkg_scaffold",
        {"name": "fresh", "target_dir": "{project}/own", "description": "New."},
        Json(
            {
                "status": "ok",
                "path": "{project}/own/fresh/init.lua",
                "bytes_written": ...,
                "test_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_scaffold",
        {"name": "fresh", "target_dir": "{project}/own"},
        Refused("{project}/own/fresh/init.lua already exists"),
    ),
    # a folder that is worked on, for this project
    Row(
        "alc_pkg_link",
        {"path": "{project}/none"},
        Refused("{project}/none is not a directory"),
    ),
    Row(
        "alc_pkg_link",
        {"path": "{project}/own", "scope": "planet"},
        Refused("invalid scope 'planet': it is global or variant"),
    ),
    Row(
        "alc_pkg_link",
        {"path": "{project}/own/fresh", "name": "mine", "scope": "variant"},
        Json(
            {
                "linked": ["mine"],
                "mode": "single",
                "scope": "variant",
                "targets": {"mine": "{project}/own/fresh"},
                "alc_local_toml": "{project}/alc.local.toml",
            }
        ),
    ),
    Row("alc_advice", {"strategy": "mine", "task": "t"}, asks(...), keep="mine"),
    Row(
        "alc_pkg_link",
        {"path": "{project}/own/fresh", "scope": "variant", "force": True},
        Refused("scope 'variant' takes no force"),
    ),
    # for this user
    Row(
        "alc_pkg_link",
        {"path": "{project}/own"},
        Json(
            {
                "linked": ["fresh"],
                "mode": "collection",
                "scope": "global",
                "targets": {"fresh": "{project}/own/fresh"},
            }
        ),
    ),
    Row(
        "alc_pkg_list",
        {"filter": {"name": "fresh"}, "fields": ["name", "linked", "link_target", "description"]},
        Json(
            {
                "packages": [
                    {
                        "name": "fresh",
                        "linked": True,
                        "link_target": "{project}/own/fresh",
                        "description": "New.",
                    }
                ],
                "search_paths": ...,
                "project_root": "{project}",
                "lockfile_path": "{project}/alc.lock",
            }
        ),
    ),
    Row(
        "alc_pkg_link",
        {"path": "{project}/own/fresh", "name": "twice"},
        Refused("{home}/packages/twice is a real directory; only force=true replaces it by a link"),
    ),
    Row(
        "alc_pkg_unlink",
        {"name": "twice"},
        Refused("Package 'twice' is not a symlink; pkg_remove removes installed ones"),
    ),
    Row(
        "alc_pkg_unlink",
        {"name": "none"},
        Refused("'none' is not installed, so there is no link to remove"),
    ),
    Row("alc_pkg_unlink", {"name": "fresh"}, Json({"unlinked": "fresh"})),
    # install
    Row(
        "alc_pkg_install",
        {"url": "{project}/none"},
        Refused("folder {project}/none does not exist"),
    ),
    Row(
        "alc_pkg_install",
        {"url": "{project}/own/fresh"},
        Json(
            {
                "installed": ["fresh"],
                "mode": "local_single",
                "types_path": ...,
                "alc_shapes_types_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_install",
        {"url": "{project}/own"},
        Json(
            {
                "installed": [],
                "updated": ["fresh"],
                "cards_installed": [],
                "mode": "local_collection",
                "types_path": ...,
                "alc_shapes_types_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_install",
        {"url": "{project}/own", "name": "other"},
        Refused("'name' renames one package, and this is a collection"),
    ),
    Row(
        "alc_pkg_install",
        {"url": "{base}/old"},
        Refused("No packages found: neither old nor a folder in it has an init.lua"),
    ),
    # list
    Row(
        "alc_pkg_list",
        {"verbose": "full", "filter": {"name": "twice"}},
        Json(
            {
                "packages": [
                    {
                        "name": "twice",
                        "scope": "global",
                        "version": "1.2.0",
                        "active": True,
                        "resolved_source_path": "{home}/packages/twice",
                        "resolved_source_kind": "bundled",
                        "install_source": ...,
                        "installed_at": ...,
                        "updated_at": ...,
                        "source": "{home}/packages",
                        "source_type": "bundled",
                        "meta": ...,
                        "description": "Drafts an answer and improves it once.",
                        "category": ...,
                    }
                ],
                "search_paths": ...,
                "project_root": ...,
                "lockfile_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_list",
        {
            "sort": "nothing,name",
            "limit": -1,
            "filter": "ignored",
            "fields": ["name", "scope", "active"],
        },
        Json(
            {
                "packages": [
                    {"name": "careful", "scope": "global", "active": True},
                    {"name": "fresh", "scope": "project", "active": True},
                    {"name": "fresh", "scope": "global", "active": False},
                    {"name": "mine", "scope": "variant", "active": True},
                    {"name": "twice", "scope": "global", "active": True},
                ],
                "search_paths": ...,
                "project_root": ...,
                "lockfile_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_list",
        {"sort": "name", "limit": 1, "filter": {"scope": "global"}},
        Json(
            {
                "packages": [
                    {
                        "name": "careful",
                        "scope": "global",
                        "version": "0.3.1",
                        "active": True,
                        "resolved_source_path": "{home}/packages/careful",
                        "resolved_source_kind": "installed",
                    }
                ],
                "search_paths": ...,
                "project_root": ...,
                "lockfile_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_list",
        {
            "sort": "-name",
            "limit": 0,
            "filter": {"scope": "global"},
            "fields": ["name"],
            "verbose": "full",
        },
        Json(
            {
                "packages": [{"name": "twice"}, {"name": "fresh"}, {"name": "careful"}],
                "search_paths": ...,
                "project_root": ...,
                "lockfile_path": ...,
            }
        ),
    ),
    Row(
        "alc_pkg_list",
        {"verbose": "loud"},
        Refused('invalid verbose value "loud": it is "summary" or "full"'),
    ),
    Row("alc_pkg_list", {"sort": "name,-"}, Refused('invalid sort "name,-": a key is missing')),
    Row(
        "alc_pkg_list",
        {"filter": {"nothing": 1}},
        Json({"packages": [], "search_paths": ..., "project_root": ..., "lockfile_path": ...}),
    ),
    # how they are
    Row(
        "alc_pkg_doctor",
        {"name": "twice"},
        Json(
            {
                "healthy": [{"name": "twice"}],
                "incomplete_pkg": [],
                "installed_missing": [],
                "symlink_dangling": [],
                "path_missing": [],
            }
        ),
    ),
    Row(
        "alc_pkg_doctor",
        {"name": "gone"},
        Json(
            {
                "healthy": [],
                "incomplete_pkg": [],
                "symlink_dangling": [],
                "path_missing": [],
                "installed_missing": [
                    {"name": "gone", "kind": "installed_missing", "reason": ..., "suggestion": ...}
                ],
            }
        ),
    ),
    Row(
        "alc_pkg_doctor",
        {"name": "none"},
        Refused(
            "Package 'none' not found in installed.json, among the folders in {home}/packages, or"
            " in the files of a project"
        ),
    ),
    Row(
        "alc_pkg_repair",
        {"name": "twice"},
        Json(
            {
                "repaired": [],
                "skipped": [{"name": "twice", "reason": ...}],
                "unrepairable": [],
                "failed": [],
            }
        ),
    ),
    Row(
        "alc_pkg_repair",
        {"name": "gone"},
        Json(
            {
                "repaired": [],
                "skipped": [],
                "unrepairable": [],
                "failed": [{"name": "gone", "kind": "installed_missing", "reason": ...}],
            }
        ),
    ),
    # remove
    Row(
        "alc_pkg_remove",
        {"name": "fresh", "scope": "some"},
        Refused("invalid scope 'some': it is project, global or all"),
    ),
    Row(
        "alc_pkg_remove",
        {"name": "none", "scope": "global"},
        Refused("Package 'none' not found in {home}/installed.json"),
    ),
    Row(
        "alc_pkg_remove",
        {"name": "none"},
        Refused("Package 'none' not found in {project}/alc.lock"),
    ),
    Row(
        "alc_pkg_remove",
        {"name": "fresh"},
        Json(
            {
                "removed": "fresh",
                "scope": "project",
                "alc_toml": "{project}/alc.toml",
                "alc_lock": "{project}/alc.lock",
            }
        ),
    ),
    Row(
        "alc_pkg_remove",
        {"name": "fresh", "scope": "all"},
        Json(
            {
                "removed": "fresh",
                "scope": "all",
                "project_removed": False,
                "global_removed": True,
                "project_note": ...,
                "global_note": None,
            }
        ),
    ),
    Row(
        "alc_pkg_remove",
        {"name": "gone", "scope": "global"},
        Json(
            {
                "removed": "gone",
                "scope": "global",
                "installed_json": "{home}/installed.json",
            }
        ),
    ),
    Row(
        "alc_pkg_remove",
        {"name": "none", "scope": "all"},
        Refused(
            "Package 'none' not found in a project or among the installed ones:"
            " Package 'none' not found in {project}/alc.lock;"
            " Package 'none' not found in {home}/installed.json"
        ),
    ),
    Row(
        "alc_update",
        {"project_root": 5},
        Forbidden(PARAMS, "invalid type: `project_root` is an integer, expected a string"),
    ),
    Row("alc_card_get", {"card_id": "x"}, Refused("card 'x' not found")),
]

#: Address, and the type and the text (or a part of it), or the error that comes.
LUA, PLAIN = "text/x-lua", "application/json"
RESOURCES = [
    ("alc://types/alc.d.lua", LUA, "---@"),
    ("alc://types/alc_shapes.d.lua", LUA, "---@meta"),
    ("alc://types/other.lua", -32002, "resource not found: alc://types/other.lua"),
    (
        "alc://types/alc.d.lua?x=1",
        PARAMS,
        "alc://types/alc.d.lua?x=1 takes no query params",
    ),
    ("alc://packages/twice/init.lua", LUA, "--- Asks twice"),
    (
        "alc://packages/careful/meta",
        PLAIN,
        '{"active":true,"category":"vote","description":"Three voices, one verdict.",',
    ),
    ("alc://packages/none/meta", -32002, "resource not found: alc://packages/none/meta"),
    (
        "alc://packages/a%20b/meta",
        PARAMS,
        "package name 'a%20b' has the reserved character '%'",
    ),
    ("alc://packages/twice/other", -32002, "resource not found"),
    ("alc://cards/twice_sonnet_20260402T101500_0a1b2c", PLAIN, '"pass_rate":0.75'),
    ("alc://cards/none", -32002, "card 'none' not found"),
    (
        "alc://cards/twice_sonnet_20260402T101500_0a1b2c/samples?offset=1&limit=1",
        PLAIN,
        '[{"case":"b","score":0.5}]',
    ),
    (
        "alc://cards/x/samples?limit=10001",
        PARAMS,
        "the query param 'limit' of alc://cards/x/samples?limit=10001 may be 10000 at most",
    ),
    (
        "alc://cards/x/samples?where=1",
        PARAMS,
        "alc://cards/x/samples?where=1 does not have the query param 'where'",
    ),
    ("alc://logs/{one}", PLAIN, '"task_hint": "First?"'),
    ("alc://logs/{one}?max_chars=700", PLAIN, '"truncated": true'),
    ("alc://logs/none", -32002, "Log of session 'none' not found"),
    ("alc://logs/x?limit=ten", PARAMS, "invalid query param 'limit=ten' of alc://logs/x?limit=ten"),
    ("alc://logs/x?=1", PARAMS, "a parameter of alc://logs/x?=1 has no name"),
    ("alc://scenarios/riddles", LUA, "return { cases = {"),
    ("alc://scenarios/none", -32002, "Scenario 'none' not found"),
    ("alc://scenarios/riddles?x=1", PARAMS, "takes no query params"),
    ("alc://eval/twice_1775124900", PLAIN, '"name":"twice:riddles"'),
    ("alc://eval/none", -32002, "Eval result not found: none"),
    ("alc://eval/a=b", PARAMS, "eval result_id 'a=b' has the reserved character '='"),
    ("alc://logs/../x", PARAMS, "path traversal: '..'"),
    ("alc://hub/index", PARAMS, "unknown service: hub"),
    ("alc://logs", PARAMS, "incomplete address: alc://logs"),
    ("http://logs/x", PARAMS, "invalid scheme: http://logs/x"),
]
