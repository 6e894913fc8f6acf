"""Tools: functions that a model can call. `@tool` makes one of a typed function.

    @tool(read_only=True)
    def weather(city: Annotated[str, "its name"]) -> str:
        \"\"\"Tell the weather in a city.\"\"\"

The model does not see a parameter annotated `ToolContext`; it receives the context of the call.

`complete` asks a model once from within a running call (row 30). The question is part of the call:
a replay uses the call's result and asks nothing. The usage is counted under the source of the call
(`tool:<name>` for a tool).

Rules for tool sources (`ToolSource`), such as MCP servers; their tool list may change between turns
  1. A source is asked once per turn, and its offer is recorded. A replay asks no source.
  2. A source that fails keeps its last offer; the model is informed about the failure.
  3. An offer is data: `tool` makes the same tool of it in any process.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import threading
import types
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import is_dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Protocol,
    TypeVar,
    Unpack,
    overload,
    runtime_checkable,
)

import msgspec

from everhold.core.codec import JSON, to_plain
from everhold.core.message import Image, Role, Text
from everhold.core.model_settings import ModelSettings, parse_model_settings
from everhold.core.query import MAX_TOKENS, ON_UNAVAILABLE, Kind, Query, Rerun
from everhold.core.retry import Retry, parse_retry, parse_timeout
from everhold.core.schema import (
    PositiveInt,
    PositiveSeconds,
    decode_value_as,
    describe_misfit,
    encode_value_as,
    schema_of,
)
from everhold.core.tool import Wanted, Window
from everhold.core.unknown_names import checks_keywords, list_keyword_names
from everhold.errors import BadArguments, BadSetting, EverholdError, ForeignCall
from everhold.ports.answerer import check_on_unavailable
from everhold.ports.attachment import Attachment, keep_attachment, load_attachment
from everhold.ports.process_environment import ProcessEnvironment
from everhold.ports.signature import (
    build_parameter_schema,
    get_parameters,
    resolve_hints,
    split_docstring,
)
from everhold.ports.stream import Delta, DeltaKind, publish_delta
from everhold.ports.tool_services import (
    INJECTED_ROLES,
    Moment,
    StateWrite,
    ToolSessions,
    ToolValues,
    ask_emit,
    ask_message,
    ask_node,
)

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from everhold.ports.context import Form, TypeAdapterLike


class Completer(Protocol):
    """Asks a model for the session of the running call."""

    async def complete(self, query: Query) -> JSON:
        """The model's reply; raises `AnswerFailed`."""
        ...


T = TypeVar("T")

COMPLETER: ContextVar[Completer] = ContextVar("everhold_completer")


class ToolQuestionOptions(ModelSettings, total=False):
    """The options of `context.llm` in a tool, besides `returns`."""

    system: str | None
    """the system prompt"""
    max_tokens: int
    """the most tokens of the answer; 1024 by default"""
    model: str | None
    """the model to ask, as `"provider:name"`; by default that of the agent"""
    on_unavailable: Literal["wait", "fail"] | None
    """what happens if no model can be asked: the question waits for one, or it fails"""


async def complete(
    prompt: str,
    *,
    system: str | None = None,
    returns: Any = None,
    max_tokens: int = MAX_TOKENS,
    model: str | None = None,
    on_unavailable: str | None = None,
    **settings: Any,
) -> Any:
    """Ask a model once. `returns` names the type of the answer; without it, the answer is text."""
    completer = COMPLETER.get(None)
    if completer is None:
        raise ForeignCall("complete", "can be used only while a session runs a call")
    options = parse_model_settings("context.llm", settings, also=_COMPLETE_KEYWORDS)
    if model is not None:
        options["model"] = model
    if on_unavailable is not None:
        options[ON_UNAVAILABLE] = check_on_unavailable(on_unavailable)
    query = Query(
        0,
        "",
        prompt,
        Kind.LLM,
        system=system,
        max_tokens=max_tokens,
        options=options or None,
        schema=None if returns is None else schema_of(returns),
    )
    said = await completer.complete(query)
    return said if returns is None else decode_value_as(said, returns)


_COMPLETE_KEYWORDS: Final = list_keyword_names(complete)


#: The result of a tool that returns nothing.
DONE: Final = "Done."
WINDOW: Final = Window()


class ToolContext:
    """The context of a running tool call."""

    def __init__(self, wanted: Wanted, model: str | None, moment: Callable[[], Moment]) -> None:
        self._wanted = wanted
        self._model = model
        self._moment = moment
        self._stopped = threading.Event()
        self.said: list[str] = []
        #: what lands with the result
        self.writes: list[StateWrite] = []
        self._loop = asyncio.get_running_loop()
        #: Durable values: read now, written with the result.
        self.state = ToolValues(self.writes)
        #: Other sessions, which this one begins and signals.
        self.sessions = ToolSessions(self.writes)

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self._wanted.session_id

    @property
    def call_id(self) -> str:
        """The id that the model gave to the call."""
        return self._wanted.call_id

    @property
    def idempotency_key(self) -> str:
        """A key for this call: the same whenever it runs again, and unique. Pass it to the service
        that does the work.
        """
        return self._wanted.key

    @property
    def moment(self) -> Moment:
        """The state of the conversation, as hooks get it: messages, frame, options and usage."""
        return self._moment()

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled. A thread cannot be stopped, so it should check this now
        and then.
        """
        return self._stopped.is_set()

    def stop(self) -> None:
        """Mark the call as cancelled."""
        self._stopped.set()

    @property
    def environment(self) -> ProcessEnvironment:
        """The environment for processes that the tool starts: folder, variables and limits."""
        return self._moment().environment

    def extension(self, kind: type[T]) -> T:
        """The object of this type that a plugin offers (`Plugin.extensions`); raises
        `UnknownExtension`.
        """
        return self._moment().extension(kind)

    def say(self, content: JSON, role: str = Role.USER) -> None:
        """Add a message for the model beside the result, after the results: text or blocks, of a
        user, the system or the assistant.

        Messages of a call that fails are dropped.
        """
        if role == Role.USER and isinstance(content, str) and not self._has_messages():
            self.said.append(to_plain(content, "what is said"))
        else:
            ask_message(self.writes, content, role, INJECTED_ROLES)

    def _has_messages(self) -> bool:
        return any(write[0] == "message" for write in self.writes)

    def append(self, type: str, body: JSON) -> None:
        """Add a node to the conversation with the result: data of a type that you name. The model
        does not see it; `moment.nodes(type)` and `session.nodes(type)` read it.
        """
        ask_node(self.writes, type, body)

    def emit(self, event: str, payload: JSON = None, *, key: str | None = None) -> None:
        """Emit an event for triggers with the result: once, however often the call runs, and not at
        all if it fails.

        The outcome of the turn says what it came to (`SettledTurn.events`). With a `key` of your
        own, the same key and payload are the same event, also from other calls.
        """
        ask_emit(self.writes, event, payload, key)

    def progress(self, message: str, step: int = 0, total: int = 0) -> None:
        """Report progress to listeners. It is not stored."""
        words = f"{message} ({step}/{total})" if total else message
        publish_delta(
            self.session_id,
            "",
            Delta(DeltaKind.PROGRESS, words, step, self.call_id, self._wanted.tool),
        )

    async def attach(self, data: bytes | str, media_type: str = "") -> Attachment:
        """Store an attachment; other sessions cannot read it."""
        return await keep_attachment(data, media_type)

    async def attachment(self, id: str) -> tuple[Attachment, bytes]:
        """Read an attachment of this session; raises `UnknownAttachment`."""
        return await load_attachment(id)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of this context in a tool that is not a coroutine:
        `context.wait(context.state.get("n"))`.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def attach_from_thread(self, data: bytes | str, media_type: str = "") -> Attachment:
        """`attach`, for a tool that is not a coroutine."""
        return asyncio.run_coroutine_threadsafe(
            keep_attachment(data, media_type), self._loop
        ).result()

    @overload
    async def llm(
        self,
        prompt: str,
        *,
        returns: TypeForm[T] | TypeAdapterLike[T],
        **options: Unpack[ToolQuestionOptions],
    ) -> T: ...
    @overload
    async def llm(
        self, prompt: str, *, returns: Form, **options: Unpack[ToolQuestionOptions]
    ) -> Any: ...
    @overload
    async def llm(
        self, prompt: str, *, returns: None = None, **options: Unpack[ToolQuestionOptions]
    ) -> str: ...
    async def llm(
        self, prompt: str, *, returns: Any = None, **options: Unpack[ToolQuestionOptions]
    ) -> Any:
        """Ask a model once: the agent's, unless another is named. The answer is text, or a value of
        the type `returns`. The usage is counted under `tool:<name>`.
        """
        options["model"] = options.get("model") or self._model
        return await complete(prompt, returns=returns, **options)

    @overload
    def llm_from_thread(
        self,
        prompt: str,
        *,
        returns: TypeForm[T] | TypeAdapterLike[T],
        **options: Unpack[ToolQuestionOptions],
    ) -> T: ...
    @overload
    def llm_from_thread(
        self, prompt: str, *, returns: Form, **options: Unpack[ToolQuestionOptions]
    ) -> Any: ...
    @overload
    def llm_from_thread(
        self, prompt: str, *, returns: None = None, **options: Unpack[ToolQuestionOptions]
    ) -> str: ...
    def llm_from_thread(
        self, prompt: str, *, returns: Any = None, **options: Unpack[ToolQuestionOptions]
    ) -> Any:
        """`llm`, for a tool that is not a coroutine."""
        context = contextvars.copy_context()
        asking: Any = functools.partial(self.llm, prompt, returns=returns, **options)
        return asyncio.run_coroutine_threadsafe(_within(context, asking), self._loop).result()


async def _within(
    context: contextvars.Context, asking: Callable[[], Coroutine[Any, Any, Any]]
) -> Any:
    """Await a coroutine in the context of the call."""
    return await asyncio.get_running_loop().create_task(asking(), context=context)


class Tool:
    """A function that a model can call."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        rerun: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        concurrency: int | None = None,
        output: Window | None = WINDOW,
        pinned: bool = False,
    ) -> None:
        if not callable(function):
            raise BadArguments("tool", f"{function!r} is not a function")
        for what, given, type_ in (
            ("concurrency", concurrency, PositiveInt),
            ("total_timeout", total_timeout, PositiveSeconds),
        ):
            if given is not None and (misfit := describe_misfit(given, type_)):
                raise BadArguments("tool", f"{what} {misfit}")
        try:
            self.retry = parse_retry(retry)
            self.timeout = parse_timeout(timeout)
        except BadSetting as error:
            raise BadArguments("tool", f"{error.name}: {error.reason}") from None
        self.function = function
        self.name = name or function.__name__
        self.description = (
            description or split_docstring(inspect.getdoc(function) or "")[0]
        ).strip()
        self.read_only = read_only
        self.rerun = _rerun(rerun, read_only)
        self.total_timeout = total_timeout
        self.concurrency = concurrency
        self.output = output
        self.pinned = pinned  # also offered when the model has to search for tools
        self._hints = resolve_hints(function)
        named = (
            one.name for one in get_parameters(function) if self._hints.get(one.name) is ToolContext
        )
        self._context = next(named, None)
        self.schema = build_parameter_schema(function, self._context)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """A tool that is written as a method is bound like one."""
        if instance is None:
            return self
        bound = copy.copy(self)
        bound.function = types.MethodType(self.function, instance)
        return bound

    def spec(self) -> dict[str, JSON]:
        """The spec that a model gets."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    @functools.cached_property
    def output_schema(self) -> dict[str, JSON] | None:
        """The schema of the result, if the function declares a type that has one."""
        hint = self._hints.get("return")
        if hint is None:
            return None
        try:
            found: dict[str, JSON] = schema_of(hint)
        except EverholdError:
            return None
        return found

    def arguments(self, given: dict[str, JSON], context: ToolContext) -> dict[str, Any]:
        """The model's input as the function's types; raises `AnswerRefused` with the path of a
        misfit.
        """
        made = {
            name: decode_value_as(value, self._hints.get(name), f"input.{name}")
            for name, value in given.items()
        }
        return made if self._context is None else {**made, self._context: context}

    def result(self, value: Any) -> JSON:
        """The return value as the model sees it; raises `BadValue` if it is not JSON."""
        path = f"the result of {self.name}"
        hint = self._hints.get("return")
        if value is None:
            return DONE if hint in (None, type(None)) else None
        if isinstance(value, Text | Image):
            value = [value]
        if (
            isinstance(value, list)
            and value
            and all(isinstance(one, Text | Image) for one in value)
        ):
            return to_plain(msgspec.to_builtins(value), path)
        if hint is None and _is_typed(value):
            hint = type(value)
        return encode_value_as(value, hint, path)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    rerun: str | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
    total_timeout: float | None = None,
    concurrency: int | None = None,
    output: Window | None = ...,
    pinned: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
@checks_keywords("tool")
def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    rerun: str | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
    total_timeout: float | None = None,
    concurrency: int | None = None,
    output: Window | None = WINDOW,
    pinned: bool = False,
) -> Any:
    """Make a tool of a typed function. With `read_only=True` it may run again.

    `retry`, `timeout` and `total_timeout` are those of `ctx.call`.
    """
    made = functools.partial(
        Tool,
        name=name,
        description=description,
        read_only=read_only,
        rerun=rerun,
        retry=retry,
        timeout=timeout,
        total_timeout=total_timeout,
        concurrency=concurrency,
        output=output,
        pinned=pinned,
    )
    return made if function is None else made(function)


def collect_tools(given: Sequence[Any]) -> tuple[Tool, ...]:
    """Tools, from tools, functions, and objects with tools as methods. Raises `BadArguments` for
    two of one name.
    """
    tools = tuple(tool for one in given for tool in _found(one))
    names = [one.name for one in tools]
    for name in names:
        if names.count(name) > 1:
            raise BadArguments("tools", f"two tools have the name {name!r}")
    return tools


def _found(one: Any) -> list[Tool]:
    if isinstance(one, Tool):
        return [one]
    if inspect.isroutine(one):
        return [Tool(one)]
    found = [
        getattr(one, name)
        for name, part in inspect.getmembers_static(one)
        if isinstance(part, Tool)
    ]
    if not found:
        raise BadArguments("tools", f"{one!r} is neither a function nor an object with tools")
    return found


def _rerun(rerun: str | None, read_only: bool) -> Rerun:
    try:
        return Rerun(rerun) if rerun is not None else Rerun.SAFE if read_only else Rerun.ASK
    except ValueError:
        raise BadArguments(
            "tool", f"rerun should be 'safe', 'never' or 'ask', got {rerun!r}"
        ) from None


def _is_typed(value: Any) -> bool:
    """Whether the value's class defines its JSON form."""
    return (
        isinstance(value, msgspec.Struct)
        or is_dataclass(value)
        or hasattr(value, "model_json_schema")
    )


class OfferedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool, as a source offers it."""

    name: str  # its name for models
    origin: str  # its name in the source
    description: str = ""
    schema: dict[str, JSON] = {}
    read_only: bool = False
    idempotent: bool = False


@runtime_checkable
class ToolSource(Protocol):
    """A source of tools."""

    @property
    def name(self) -> str:
        """The name of the source."""
        ...

    async def offered(self) -> list[OfferedTool]:
        """The tools that it offers now; raises `ToolServerFailed`."""
        ...

    def tool(self, offer: OfferedTool) -> Tool:
        """The tool of an offer."""
        ...
