"""Calls of the algocline profile and what comes back: tool, arguments, expected.

Names in braces are filled in: {home}, {project}, and what an earlier row kept ({one}: the session
of the row that says keep="one"). `...` stands for anything. A `Json` says all the keys there are.
"""

from typing import Any, NamedTuple


class Json(NamedTuple):
    """A JSON document, compact and with its keys in order."""

    value: Any


class Pretty(NamedTuple):
    """A JSON document with two spaces."""

    value: Any


class Text(NamedTuple):
    """Exactly this text."""

    text: str


class Refused(NamedTuple):
    """An error of the tool: exactly this sentence."""

    text: str


class Forbidden(NamedTuple):
    """An error of the protocol: its code, and words of its message."""

    code: int
    words: str


class Row(NamedTuple):
    tool: str
    arguments: dict
    expected: Any
    keep: str = ""


COUNT = {"source": ..., "tokens": ...}
AUTO = {
    "elapsed_ms": ...,
    "llm_calls": ...,
    "pauses": ...,
    "prompt_tokens": COUNT,
    "response_tokens": COUNT,
    "rounds": ...,
    "total_prompt_chars": ...,
    "total_response_chars": ...,
    "total_tokens": COUNT,
}
STATS = {"auto": AUTO, "custom": {}}


def done(result, *, custom=None, **auto):
    return Json(
        {
            "status": "completed",
            "result": result,
            "stats": {"auto": {**AUTO, **auto}, "custom": custom or {}},
        }
    )


def failed(error, **auto):
    return Json(
        {"status": "error", "error": error, "stats": {"auto": {**AUTO, **auto}, "custom": {}}}
    )


def asks(prompt, *, query_id="q-0", system=None, max_tokens=1024, **flags):
    query = {
        "query_id": query_id,
        "prompt": prompt,
        "system": system,
        "max_tokens": max_tokens,
        **flags,
    }
    return Json({"status": "needs_response", "session_id": ..., **query})


def ask_all(*queries):
    listed = [
        {"id": name, "prompt": prompt, "system": None, "max_tokens": 1024, **more}
        for name, prompt, more in queries
    ]
    return Json({"status": "needs_response", "session_id": ..., "queries": listed})


def snapshot(**more):
    metrics = {
        "elapsed_ms": ...,
        "llm_calls": ...,
        "rounds": ...,
        "recent_logs": ...,
        "tokens": ...,
    }
    shown = {
        "session_id": ...,
        "state": "paused",
        "phase": "paused",
        "started_at": ...,
        "last_activity_at": ...,
        "pending_queries": 1,
        **more,
    }
    shown["metrics"] = {**metrics, **more.get("metrics", {})}
    return shown


def answer(session, *said):
    return {
        "session_id": f"{{{session}}}",
        "responses": [{"query_id": q, "response": text} for q, text in said],
    }


ASK = "local a = alc.llm('First?') local b = alc.llm('Then, after ' .. a .. '?') return { a, b }"
BATCH = (
    "return alc.llm_batch({ { prompt = 'x' }, { prompt = 'y', system = 's', grounded = true"
    " }, { prompt = 'z' } })"
)
PARAMS = -32602

SESSIONS = [
    Row("alc_status", {}, Text('{"active_sessions":0,"sessions":[]}')),
    # alc_run: what it takes
    Row("alc_run", {}, Refused("Nothing to run: give `code` or `code_file`.")),
    Row(
        "alc_run",
        {"code": "return 1", "code_file": "x.lua"},
        Refused("Both `code` and `code_file` are given; only one of them can run."),
    ),
    Row(
        "alc_run",
        {"code_file": "none.lua"},
        Refused("none.lua cannot be read: No such file or directory"),
    ),
    Row(
        "alc_run",
        {"code_file": "words.txt"},
        Refused("words.txt cannot be read: it is not a .lua file"),
    ),
    Row(
        "alc_run",
        {"code": 5},
        Forbidden(PARAMS, "invalid type: `code` is an integer, expected a string"),
    ),
    Row(
        "alc_run",
        {"code": "return 1", "project_root": "{project}/none"},
        Refused("{project}/none is not a directory, so it is no project"),
    ),
    # alc_run: what it gives
    Row("alc_run", {"code": "return 1 + 1"}, done(2, llm_calls=0, pauses=0, rounds=0)),
    Row("alc_run", {"code": "local x = 1"}, done(None)),
    Row("alc_run", {"code_file": "{project}/add.lua", "ctx": {"a": 1}}, done(2)),
    Row("alc_run", {"code": "return ctx[2]", "ctx": ["a", "b"]}, done("b")),
    Row("alc_run", {"code": "return ctx", "ctx": "text"}, done("text")),
    Row("alc_run", {"code": "(function() x = 1 end)() return ctx + x", "ctx": 1}, done(2)),
    Row(
        "alc_run",
        {"code": "return { b = 'é', a = { 1, 2.5 }, c = ctx.nothing }"},
        done({"a": [1, 2.5], "b": "é"}),
    ),
    Row(
        "alc_run",
        {"code": "alc.stats.record('k', 7) return alc.stats.get('k')"},
        done(7, custom={"k": 7}),
    ),
    Row("alc_run", {"code": "\nerror('boom')"}, failed("code:2: boom", llm_calls=0)),
    Row("alc_run", {"code": "return return"}, failed(...)),
    Row(
        "alc_run",
        {"code": "return { io.open('/etc/passwd') }"},
        done([None, "there are no files here"]),
    ),
    # one question after the other, both called q-0
    Row("alc_run", {"code": ASK, "unknown": 1}, asks("First?"), keep="one"),
    Row("alc_status", {"session_id": "{one}"}, Pretty(snapshot())),
    Row(
        "alc_status",
        {"session_id": "{one}", "pending_filter": "meta"},
        Pretty(snapshot(pending=[{"query_id": "q-0", "max_tokens": 1024}])),
    ),
    Row(
        "alc_status",
        {"pending_filter": "preview"},
        Pretty(
            {
                "active_sessions": 1,
                "sessions": [
                    snapshot(
                        pending=[
                            {"query_id": "q-0", "max_tokens": 1024, "prompt_preview": "First?"}
                        ]
                    )
                ],
            }
        ),
    ),
    Row(
        "alc_status",
        {"session_id": "{one}", "pending_filter": "full"},
        Pretty(
            snapshot(
                pending=[
                    {
                        "query_id": "q-0",
                        "max_tokens": 1024,
                        "system": None,
                        "grounded": False,
                        "underspecified": False,
                        "prompt": "First?",
                    }
                ]
            )
        ),
    ),
    Row(
        "alc_status",
        {"session_id": "{one}", "pending_filter": {"prompt": {"mode": "preview", "chars": 2}}},
        Pretty(snapshot(pending=[{"prompt_preview": "Fi"}])),
    ),
    Row(
        "alc_status",
        {
            "session_id": "{one}",
            "pending_filter": {
                "system": True,
                "grounded": True,
                "prompt": {"mode": "full"},
                "max_tokens": False,
            },
        },
        Pretty(snapshot(pending=[{"system": None, "grounded": False, "prompt": "First?"}])),
    ),
    Row(
        "alc_status",
        {"session_id": "{one}", "pending_filter": {"query_id": True, "prompt": {"mode": "off"}}},
        Pretty(snapshot(pending=[{"query_id": "q-0"}])),
    ),
    # as if it were not there
    Row("alc_status", {"session_id": "{one}", "pending_filter": None}, Pretty(snapshot())),
    Row(
        "alc_status", {"session_id": "{one}", "pending_filter": {}}, Pretty(snapshot(pending=[{}]))
    ),
    Row(
        "alc_status",
        {"pending_filter": "all"},
        Refused("unknown pending_filter preset 'all'; there are meta, preview and full"),
    ),
    Row(
        "alc_status",
        {"pending_filter": 3},
        Refused("pending_filter must be a preset name or an object, not number"),
    ),
    Row(
        "alc_status",
        {"pending_filter": True},
        Refused("pending_filter must be a preset name or an object, not bool"),
    ),
    Row(
        "alc_status",
        {"pending_filter": []},
        Refused("pending_filter must be a preset name or an object, not array"),
    ),
    Row(
        "alc_status",
        {"pending_filter": {"query_id": "yes"}},
        Refused("invalid pending_filter object: Expected `bool`, got `str` - at `$.query_id`"),
    ),
    Row(
        "alc_status",
        {"pending_filter": {"prompt": {"mode": "some"}}},
        Refused("invalid pending_filter object: Invalid value 'some' - at `$.prompt.mode`"),
    ),
    Row("alc_status", {"session_id": "s-0"}, Refused("session 's-0' not found")),
    Row(
        "alc_continue",
        {"session_id": "{one}"},
        Refused("No answer is given: use `response`, or `responses` for several"),
    ),
    Row(
        "alc_continue",
        {"session_id": "{one}", "responses": []},
        Refused("`responses` has no answers"),
    ),
    Row(
        "alc_continue",
        {"session_id": "{one}", "responses": [{"query_id": "q-0"}]},
        Forbidden(PARAMS, "missing field `response`"),
    ),
    Row("alc_continue", {"response": "x"}, Forbidden(PARAMS, "missing field `session_id`")),
    Row(
        "alc_continue",
        {"session_id": "s-0", "response": "x"},
        Refused("Continue failed: session 's-0' not found"),
    ),
    Row(
        "alc_continue",
        {"session_id": "{one}", "response": "x", "query_id": "q-1"},
        Refused("Continue failed: unknown query_id: q-1"),
    ),
    Row(
        "alc_continue",
        {"session_id": "{one}", "response": "x", "query_id": "whatever"},
        Refused("Continue failed: unknown query_id: whatever"),
    ),
    Row(
        "alc_continue",
        {"session_id": "{one}", "response": "A", "query_id": "q-0"},
        asks("Then, after A?"),
    ),
    Row(
        "alc_status",
        {"session_id": "{one}", "include_history": True},
        Pretty(
            snapshot(
                metrics={
                    "llm_calls": 2,
                    "rounds": 1,
                    "conversation_history": [
                        {
                            "query_id": "q-0",
                            "prompt": "First?",
                            "response": "A",
                            "prompt_tokens": 2,
                            "response_tokens": 1,
                            "started_at": ...,
                            "completed_at": ...,
                        },
                        {
                            "query_id": "q-0",
                            "prompt": "Then, after A?",
                            "response": None,
                            "prompt_tokens": 4,
                            "response_tokens": 0,
                            "started_at": ...,
                            "completed_at": None,
                        },
                    ],
                }
            )
        ),
    ),
    Row(
        "alc_continue",
        {"session_id": "{one}", "response": "A"},
        done(
            ["A", "A"],
            llm_calls=2,
            pauses=2,
            rounds=2,
            total_prompt_chars=20,
            total_response_chars=2,
        ),
    ),
    # a result can be had again
    Row("alc_continue", {"session_id": "{one}", "response": "A"}, done(["A", "A"])),
    Row(
        "alc_continue",
        {"session_id": "{one}", "response": "B"},
        Refused("Continue failed: session '{one}' not found"),
    ),
    Row(
        "alc_status",
        {"session_id": "{one}"},
        Pretty(
            snapshot(
                state="terminal",
                phase="completed",
                pending_queries=0,
                result=["A", "A"],
                stats=STATS,
            )
        ),
    ),
    Row("alc_status", {}, Text('{"active_sessions":0,"sessions":[]}')),
    # options of a question; those we do not know are passed on
    Row(
        "alc_run",
        {
            "code": (
                "return alc.llm('p', { system = 's', max_tokens = 9, grounded = true,"
                " underspecified = true })"
            )
        },
        asks("p", system="s", max_tokens=9, grounded=True, underspecified=True),
        keep="opts",
    ),
    Row(
        "alc_continue",
        {
            "session_id": "{opts}",
            "response": "r",
            "usage": {"prompt_tokens": 11, "completion_tokens": 5},
        },
        done(
            "r",
            prompt_tokens={"source": "provided", "tokens": 11},
            response_tokens={"source": "provided", "tokens": 5},
            total_tokens={"source": "provided", "tokens": 16},
        ),
    ),
    Row(
        "alc_continue",
        {"session_id": "{opts}", "response": "r", "usage": {"prompt_tokens": -1}},
        Forbidden(PARAMS, "expected `int` >= 0"),
    ),
    Row(
        "alc_run",
        {"code": "alc.progress(1, 2, 'half') return alc.llm('p')"},
        asks("p"),
        keep="half",
    ),
    Row(
        "alc_status",
        {"session_id": "{half}"},
        Pretty(snapshot(metrics={"progress": {"step": 1, "total": 2, "message": "half"}})),
    ),
    Row(
        "alc_continue",
        {"session_id": "{half}", "response": "r", "usage": {"prompt_tokens": 3}},
        done(
            "r",
            prompt_tokens={"source": "provided", "tokens": 3},
            response_tokens={"source": "estimated", "tokens": 1},
            total_tokens={"source": "estimated", "tokens": 4},
        ),
    ),
    # several at once
    Row(
        "alc_run",
        {"code": BATCH},
        ask_all(
            ("q-0", "x", {}), ("q-1", "y", {"system": "s", "grounded": True}), ("q-2", "z", {})
        ),
        keep="many",
    ),
    Row(
        "alc_continue",
        {"session_id": "{many}", "response": "?"},
        Refused("Continue failed: 3 queries pending, so an answer needs its query_id"),
    ),
    Row(
        "alc_continue",
        answer("many", ("q-0", "X"), ("q-9", "?")),
        Refused("Continue failed: unknown query_id: q-9"),
    ),
    Row(
        "alc_continue",
        answer("many", ("q-0", "X"), ("q-0", "?")),
        Refused("Continue failed: already responded to query_id: q-0"),
    ),
    # nothing of it was taken
    Row("alc_status", {"session_id": "{many}"}, Pretty(snapshot(pending_queries=3))),
    Row(
        "alc_continue",
        {"session_id": "{many}", "query_id": "q-2", "response": "Z"},
        Text('{"remaining":2,"status":"accepted"}'),
    ),
    Row(
        "alc_continue",
        {"session_id": "{many}", "query_id": "q-2", "response": "Z"},
        ask_all(("q-0", "x", {}), ("q-1", "y", {"system": "s", "grounded": True})),
    ),
    Row(
        "alc_continue",
        {"session_id": "{many}", "query_id": "q-2", "response": "other"},
        Refused("Continue failed: already responded to query_id: q-2"),
    ),
    Row(
        "alc_status",
        {"session_id": "{many}", "pending_filter": "meta"},
        Pretty(
            snapshot(
                pending_queries=2,
                pending=[
                    {"query_id": "q-0", "max_tokens": 1024},
                    {"query_id": "q-1", "max_tokens": 1024},
                ],
                metrics={
                    "tokens": {
                        "prompt_total": 4,
                        "response_total": 1,
                        "total": 5,
                        "current_query": {
                            "query_id": "q-0",
                            "prompt_tokens": 1,
                            "started_waiting_at": ...,
                        },
                    }
                },
            )
        ),
    ),
    Row(
        "alc_continue",
        answer("many", ("q-1", "Y"), ("q-0", "X")),
        done(["X", "Y", "Z"], llm_calls=3, pauses=1),
    ),
    Row(
        "alc_run",
        {"code": "return alc.llm_batch({ { prompt = 'alone' } })"},
        asks("alone"),
        keep="alone",
    ),
    Row(
        "alc_continue",
        {
            "session_id": "{alone}",
            "response": "r",
            "responses": [{"query_id": "q-0", "response": "wins"}],
        },
        done(["wins"]),
    ),
    Row("alc_run", {"code": "return alc.llm_batch({})"}, failed("alc.llm_batch: items is empty")),
    # budgets
    Row(
        "alc_run",
        {"code": ASK, "ctx": {"budget": {"max_llm_calls": 1}}},
        asks("First?"),
        keep="poor",
    ),
    Row(
        "alc_status",
        {"session_id": "{poor}"},
        Pretty(
            snapshot(
                metrics={"budget_remaining": {"llm_calls": 0, "elapsed_ms": None, "tokens": None}}
            )
        ),
    ),
    Row(
        "alc_continue",
        {"session_id": "{poor}", "response": "A"},
        failed(..., budget={"max_llm_calls": 1}, llm_calls=1),
    ),
    Row(
        "alc_run",
        {
            "code": "local ok, why = pcall(alc.llm, 'x') return why",
            "ctx": {"budget": {"max_llm_calls": 0}},
        },
        done("budget_exceeded: max_llm_calls (0) reached: 0 used", budget={"max_llm_calls": 0}),
    ),
    Row(
        "alc_run",
        {
            "code": "local ok, why = pcall(alc.llm, 'x') return why",
            "ctx": {"budget": {"max_tokens": 0}},
        },
        done("budget_exceeded: max_tokens (0) reached: 0 used", budget={"max_tokens": 0}),
    ),
    Row(
        "alc_run",
        {
            "code": "return (select(2, pcall(alc.llm, 'x'))):gsub('%d+ms have', 'Nms have')",
            "ctx": {"budget": {"max_elapsed_ms": 0}},
        },
        done(
            "budget_exceeded: max_elapsed_ms (0ms) reached: Nms have passed",
            budget={"max_elapsed_ms": 0},
        ),
    ),
    Row(
        "alc_run",
        {"code": "return alc.budget_remaining() == nil", "ctx": {"budget": {"max_tokens": -1}}},
        done(True),
    ),
    # strategies
    Row("alc_advice", {"task": "t"}, Forbidden(PARAMS, "missing field `strategy`")),
    Row(
        "alc_advice",
        {"strategy": "none"},
        Refused("Package 'none' not found; alc_pkg_install installs packages"),
    ),
    Row(
        "alc_advice",
        {"strategy": "../x"},
        Refused("Package '../x' not found; alc_pkg_install installs packages"),
    ),
    Row(
        "alc_advice",
        {"strategy": "twice", "task": "sky?", "opts": "ignored"},
        asks("Draft: sky?"),
        keep="twice",
    ),
    Row("alc_status", {"session_id": "{twice}"}, Pretty(snapshot(strategy="twice"))),
    Row(
        "alc_continue",
        {"session_id": "{twice}", "response": "air"},
        asks("Improve: air", system="Be brief.", max_tokens=256),
    ),
    Row(
        "alc_continue",
        {"session_id": "{twice}", "response": "blue air"},
        done({"task": "sky?", "result": "blue air"}),
    ),
    Row("alc_run", {"code": "return alc.state.get('runs')"}, done(42)),  # 41 were there before
    Row("alc_run", {"code": "return alc.state.get('visits')", "ctx": {"_ns": "team-a"}}, done(7.5)),
    Row(
        "alc_run",
        {"code": "return alc.state.get('x')", "ctx": {"_ns": "../x"}},
        failed("Invalid namespace: '../x'"),
    ),
    Row(
        "alc_run",
        {"code": "alc.state.set('word', 'x') return alc.state.incr('word')"},
        failed("incr of 'word': the value is not a number"),
    ),
    Row(
        "alc_run",
        {"code": "local c = alc.card.get_by_alias('best') return c.metadata.prior_card_id"},
        done("twice_sonnet_20260402T101500_0a1b2c"),
    ),
    Row(
        "alc_advice",
        {"strategy": "careful", "opts": {"task": "in opts", "extra": 1}},
        ask_all(*((f"q-{i}", f"Voice {i + 1}: in opts", {}) for i in range(3))),
        keep="careful",
    ),
    Row(
        "alc_continue",
        answer("careful", ("q-0", "no"), ("q-1", "yes"), ("q-2", "yes")),
        done({"task": "in opts", "extra": 1, "result": "yes (2 of 3)"}),
    ),
    # comes with everhold
    Row("alc_advice", {"strategy": "cot", "task": "t"}, asks(...), keep="cot"),
    Row(
        "alc_advice",
        {"strategy": "cot", "task": "t", "opts": {"budget": {"max_llm_calls": 0}}},
        failed(..., budget=...),
    ),
    Row("alc_advice", {"strategy": "cot", "task": "t", "opts": {"colour": 1}}, Refused(...)),
    # forks
    Row(
        "alc_run",
        {
            "code": (
                "local r = alc.fork({ 'twice', 'careful' }, ctx) return {"
                " r[1].result.result, r[2].result.result }"
            ),
            "ctx": {"task": "t"},
        },
        ask_all(
            ("f-0-0", "Draft: t", {}), *((f"f-1-{i}", f"Voice {i + 1}: t", {}) for i in range(3))
        ),
        keep="fork",
    ),
    Row(
        "alc_continue",
        answer("fork", ("f-1-0", "a"), ("f-1-1", "a"), ("f-1-2", "b")),
        Text('{"remaining":1,"status":"accepted"}'),
    ),
    Row(
        "alc_continue",
        {"session_id": "{fork}", "response": "d", "query_id": "f-0-0"},
        asks("Improve: d", query_id="f-0-1", system="Be brief.", max_tokens=256),
    ),
    Row("alc_continue", {"session_id": "{fork}", "response": "D"}, done(["D", "a (2 of 3)"])),
]
