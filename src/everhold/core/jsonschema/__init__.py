"""Validation of plain JSON values against JSON Schemas.

Rules
  1. Every part of a schema is checked, or `check_schema` refuses the schema before a query uses it.
     No keyword is ignored silently.
  2. `keywords.OPERANDS` has every known keyword, `validate.RULES` those with a rule. The others are
     descriptions, or the rule of another keyword reads them.
  3. Rules run in the order of their table, so the first misfit does not depend on the order of
     keywords in a schema.
  4. 1.0 is not 1 and true is not 1, as everywhere in everhold.

Only `check_schema` accepts schemas from outside. `validate_value` requires a schema that passed it,
and a plain value.
"""

from everhold.core.jsonschema.keywords import Schema, check_schema
from everhold.core.jsonschema.messages import describe_schema, format_value, join_path
from everhold.core.jsonschema.validate import accepts_text, validate_value

__all__ = [
    "Schema",
    "accepts_text",
    "check_schema",
    "describe_schema",
    "format_value",
    "join_path",
    "validate_value",
]
