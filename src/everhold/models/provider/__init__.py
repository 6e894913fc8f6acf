"""Models of providers, through pydantic-ai. Nothing of it is imported before a model is asked."""

from everhold.models.provider.model import Model
from everhold.models.provider.model_name import is_model_name
from everhold.models.provider.retry import Patience

__all__ = ["Model", "Patience", "is_model_name"]
