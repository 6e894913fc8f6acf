"""The protocol of a contender: one JSON line per request on stdin, one per reply on stdout.

    {"verb": "open", "level": "NORMAL", "path": "..."}       -> {"versions": {...}, "synchronous": 1}
    {"verb": "sequence", "sessions": 50, "pauses": 20}       -> {"start": s, "step": s, "cpu": s}  seconds for one
    {"verb": "cold", "sessions": 50, "answers": 20}          -> {"step": s}
    {"verb": "calls", "sessions": 50, "steps": 20}           -> {"step": s}
    {"verb": "length", "pauses": 1000}                       -> {"early": s, "late": s, "mean": s}
    {"verb": "crowd", "sessions": 1000, "pauses": 20}        -> {"start": s, "step": s, "cpu": s}
    {"verb": "close"}                                        -> {}

An error is a reply too, `{"error": "..."}`: a contender that cannot do the work says so and the
bench stops. Only the standard library may be imported here: the peers' environments load this file
too.
"""  # noqa: E501

import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import IO, Any

Reply = dict[str, Any]
Verb = Callable[..., Reply]
AsyncVerb = Callable[..., Awaitable[Reply]]


def serve(verbs: Mapping[str, Verb]) -> None:
    """Answer requests until stdin ends."""
    out = _private_stdout()
    for verb, args in _requests():
        try:
            reply = verbs[verb](**args)
        except Exception:
            reply = {"error": traceback.format_exc()}
        _say(out, reply)


async def serve_async(verbs: Mapping[str, AsyncVerb]) -> None:
    """Answer requests until stdin ends, all from one task; between requests the loop stands
    still.
    """
    out = _private_stdout()
    for verb, args in _requests():
        try:
            reply = await verbs[verb](**args)
        except Exception:
            reply = {"error": traceback.format_exc()}
        _say(out, reply)


def _requests() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in sys.stdin:
        args = json.loads(line)
        yield args.pop("verb"), args


def _say(out: IO[str], reply: Reply) -> None:
    out.write(json.dumps(reply) + "\n")
    out.flush()


def _private_stdout() -> IO[str]:
    """Keep stdout for replies; output of libraries goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out
