"""Models: what answers the `llm` questions of programs and agents, given as `llm=`.

    Model, Patience             a model of a provider, and how its errors are retried
    CommandModel, ScriptModel   a command, prepared answers
    Answerer, Answer            the port, for an answerer of your own
    subscribe, Delta            streaming: what a model says, while it says it

`AnswerFailed`, or what a function raised, is an answer that the program sees. `NotAllowed`,
`BadSetting`, `MissingExtra`, `ProviderMismatch` and `ProviderUnconfigured` are not answers: the
query was not for this answerer, or the answerer cannot work here. Without an answerer a query stays
open.
"""

from everhold.models.command import CommandModel
from everhold.models.provider import Model
from everhold.models.registry import AnswererSpec, FunctionModel, create_model
from everhold.models.retry import Patience
from everhold.models.script import ScriptModel
from everhold.ports.answerer import Answer, Answerer
from everhold.ports.stream import Delta, DeltaKind, StreamListener, subscribe

__all__ = [
    "Answer",
    "Answerer",
    "AnswererSpec",
    "CommandModel",
    "Delta",
    "DeltaKind",
    "FunctionModel",
    "Model",
    "Patience",
    "ScriptModel",
    "StreamListener",
    "create_model",
    "subscribe",
]
