"""Models: the answerers of `llm` queries, for `llm=` of programs and agents.

    Model                       a provider's model
    CommandModel, ScriptModel   a command, prepared answers
    Answerer, Answer            the port, for an answerer of your own
    Blocked                     why a question could not be answered
    subscribe, Delta            streaming: pieces of an answer as they arrive

`AnswerFailed`, or an exception that a function raised, is recorded as the answer, and the program
sees it. `NotAllowed`, `BadSetting`, `MissingExtra`, `ProviderMismatch`, `ProviderUnavailable` and
`ProviderUnconfigured` are not answers: the answerer may not answer this query, or cannot work in
this process. The query stays open with the reason, or fails: see `on_unavailable`.
"""

from everhold.core.model_settings import ModelSettings
from everhold.core.query import Blocked
from everhold.models.command import CommandModel
from everhold.models.provider import Model
from everhold.models.registry import AnswererSpec, FunctionModel, create_model
from everhold.models.script import ScriptModel
from everhold.ports.answerer import Answer, Answerer
from everhold.ports.context import QuestionOptions
from everhold.ports.stream import Delta, DeltaKind, StreamListener, subscribe

__all__ = [
    "Answer",
    "Answerer",
    "AnswererSpec",
    "Blocked",
    "CommandModel",
    "Delta",
    "DeltaKind",
    "FunctionModel",
    "Model",
    "ModelSettings",
    "QuestionOptions",
    "ScriptModel",
    "StreamListener",
    "create_model",
    "subscribe",
]
