"""Whether a plain JSON value fits a JSON Schema.

Rules
  1. What a schema says is checked, or `check_schema` refuses the schema before anything is asked
     with it. Nothing is skipped in silence.
  2. `keywords.OPERANDS` holds every keyword we know, `validate.RULES` those that are checked.
     The rest only tells people something, or is read by its neighbour's rule.
  3. Rules run in the order of their table: the first misfit does not depend on how a schema was
     written.
  4. 1.0 is not 1 and true is not 1, here as everywhere in everhold.

Only `check_schema` meets schemas from outside. `validate_value` trusts that its schema has passed
it, and that the value is plain.
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
