"""Parameters of requests for tasks, as models of the `mcp` library, which loads with them."""

from __future__ import annotations

from typing import Any

from mcp_types import RequestParams


class TaskParams(RequestParams):
    """The task of a request."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """Answers to questions of a task. Each is read by the kind of its question."""

    input_responses: dict[str, Any]
