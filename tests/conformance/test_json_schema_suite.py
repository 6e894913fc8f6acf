"""The official JSON Schema test suite (draft 2020-12) against our checker.

Every case agrees, or has a schema that is refused when it is asked with, for one of the reasons
below, or is one of the cases below in which everhold is stricter. Both lists are exact: one that a
case no longer needs fails, too.
"""

import json
import re

import pytest

from everhold.core.jsonschema import check_schema, validate_value
from everhold.errors import AnswerRefused, BadSchema
from tools.schema_suite import suite

DRAFT = "draft2020-12"
#: Keywords whose schemas are refused, and why. docs/adr/0002 has the same list for people.
REFUSED = {
    "unevaluatedProperties": (
        "depends on what every other keyword has looked at; additionalProperties says most of it"
    ),
    "unevaluatedItems": "the same for lists; items after prefixItems says most of it",
    "dependentSchemas": "if and then say it",
    "dependentRequired": "if and then say it",
    "$dynamicRef": "what it means depends on the way by which it was reached",
    "$dynamicAnchor": "is for $dynamicRef",
    "$anchor": "a part is named by $defs",
    "contentSchema": "the standard has it checked by nobody",
    "$ref": (
        "only to parts of this schema, by '#', '#/$defs/NAME' or '#/definitions/NAME':"
        " nothing is fetched"
    ),
    # 2.0 is not a whole number here, as everywhere in everhold
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
        ),
        "a count is written 2, not 2.0",
    ),
    "maxContains": "a count is written 2, not 2.0",
}
NUMBERS = "1.0 is not 1: that is how types read them"
FORMATS = "text in another form would be stored, and then be useless to the program"
#: Cases that the standard takes and everhold does not, and why.
STRICTER = {
    ("const", "const with 0 does not match other zero-like types", "float zero is valid"): NUMBERS,
    ("const", "const with 1 does not match true", "float one is valid"): NUMBERS,
    ("const", "const with -2.0 matches integer and float types", "integer -2 is valid"): NUMBERS,
    (
        "const",
        "float and integers are equal up to 64-bit representation limits",
        "float is valid",
    ): NUMBERS,
    ("enum", "enum with 0 does not match false", "float zero is valid"): NUMBERS,
    ("enum", "enum with [0] does not match [false]", "[0.0] is valid"): NUMBERS,
    ("enum", "enum with 1 does not match true", "float one is valid"): NUMBERS,
    ("enum", "enum with [1] does not match [true]", "[1.0] is valid"): NUMBERS,
    (
        "type",
        "integer type matches integers",
        "a float with zero fractional part is an integer",
    ): NUMBERS,
    (
        "content",
        "validation of binary string-encoding",
        "an invalid base64 string (% is not a valid character); validates true",
    ): FORMATS,
    (
        "content",
        "validation of binary-encoded media type documents",
        "an invalid base64 string that is valid JSON; validates true",
    ): FORMATS,
    **{
        (
            "format",
            f"{name} format",
            f"invalid {name} string is only an annotation by default",
        ): FORMATS
        for name in ("date", "date-time", "uuid", "duration")
    },
    (
        "vocabulary",
        "schema that uses custom metaschema with with no validation vocabulary",
        "no validation: invalid number, but it still validates",
    ): "no $schema switches checking off",
}


@pytest.fixture(scope="module")
def groups():
    """Each schema of the suite with its cases, beside the name of its file."""
    return [
        (file.stem, group)
        for file in sorted((suite() / DRAFT).glob("*.json"))
        for group in json.loads(file.read_text(encoding="utf-8"))
    ]


def fits(value, schema):
    try:
        validate_value(value, schema)
    except AnswerRefused:
        return False
    return True


def refused_for(schema):
    """The keyword for which a schema is refused; None for one that can be asked with."""
    try:
        check_schema(schema)
    except BadSchema as error:
        named = re.search(r"support the keyword '([^']+)'", str(error)) or re.search(
            r"\.([^. ]+) cannot", str(error)
        )
        assert named, error
        assert "docs/adr/0002" in error.hint
        return named[1]
    return None


def test_a_case_agrees_or_its_schema_is_refused_or_it_is_listed_as_stricter(groups):
    agreed, differ = 0, set()
    for file, group in groups:
        if refused_for(group["schema"]) is not None:
            continue
        for case in group["tests"]:
            found = fits(case["data"], group["schema"])
            # never laxer
            assert not (found and not case["valid"]), (file, group["description"], case)
            if found == case["valid"]:
                agreed += 1
            else:
                differ.add((file, group["description"], case["description"]))
    assert differ == set(STRICTER)
    assert agreed >= 852


def test_every_schema_that_is_refused_uses_a_keyword_that_is_listed_with_its_reason(groups):
    refused = {
        keyword for _, group in groups if (keyword := refused_for(group["schema"])) is not None
    }
    assert refused == set(REFUSED)
