"""Models of providers, through pydantic-ai. Nothing of it is imported before a model is asked."""

from everhold.answerers.model.answerer import Model
from everhold.answerers.model.name import is_name
from everhold.answerers.model.pace import Patience

__all__ = ["Model", "Patience", "is_name"]
