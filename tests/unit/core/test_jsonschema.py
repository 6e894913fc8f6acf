"""What fits a JSON Schema, what does not, and how that is said."""

import pytest

from everhold.core.jsonschema import (
    accepts_text,
    check_schema,
    describe_schema,
    format_value,
    validate_value,
)
from everhold.core.jsonschema.keywords import OPERANDS
from everhold.core.jsonschema.validate import DEPTH, RULES
from everhold.errors import AnswerRefused, BadSchema, BadValue

TREE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
SHAPES = {
    "anyOf": [{"$ref": "#/$defs/round"}, {"$ref": "#/$defs/long"}, {"type": "null"}],
    "$defs": {
        "round": {
            "type": "object",
            "properties": {"kind": {"const": "round"}, "r": {"type": "number"}},
            "required": ["kind", "r"],
        },
        "long": {
            "type": "object",
            "properties": {"kind": {"enum": ["long"]}, "r": {"type": "string"}},
            "required": ["kind", "r"],
        },
    },
}

FITS = [
    (True, {"any": ["thing"]}),
    ({}, None),
    ({"type": "integer"}, 3),
    ({"type": "number"}, 3),
    ({"type": "number"}, 3.5),
    ({"type": ["string", "null"]}, None),
    ({"type": "boolean"}, True),
    ({"enum": ["yes", 2, None]}, 2),
    ({"const": {"a": 1, "b": 2}}, {"b": 2, "a": 1}),
    ({"minimum": 1, "maximum": 3}, 3),
    ({"minimum": 1}, "not a number"),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, 2),
    ({"multipleOf": 0.1}, 0.3),
    ({"multipleOf": 5}, 1e300),
    ({"minLength": 2, "maxLength": 2}, "üß"),
    ({"pattern": "b"}, "abc"),
    ({"format": "email"}, "not an address"),
    ({"format": "date-time"}, "2026-01-31T10:00:00Z"),
    ({"format": "date"}, "2026-01-31"),
    ({"format": "duration"}, "PT90S"),
    ({"format": "decimal"}, "1.10"),
    ({"format": "uuid"}, "6F1C1F0E-8a53-4f0b-9a3e-5a7d0c1b2e3f"),
    ({"contentEncoding": "base64"}, "QQ=="),
    ({"contentEncoding": "quoted-printable"}, "=41"),
    ({"minItems": 1, "maxItems": 2}, [1, 2]),
    ({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, [1, "a", "b"]),
    ({"prefixItems": [{"type": "integer"}, {"type": "integer"}]}, [1]),
    ({"uniqueItems": True}, [1, 1.0, True, "1"]),
    ({"uniqueItems": False}, [1, 1]),
    ({"contains": {"type": "integer"}}, ["a", 1]),
    ({"contains": {"type": "integer"}, "minContains": 0}, ["a"]),
    ({"minContains": 5}, []),
    ({"required": ["a"]}, {"a": None}),
    ({"minProperties": 1, "maxProperties": 1}, {"a": 1}),
    ({"propertyNames": {"pattern": "^[a-z]$"}}, {"a": 1}),
    ({"patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": False}, {"n1": 1}),
    ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a": "x", "b": 1}),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 2),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, 1),
    ({"not": {"type": "string"}}, 1),
    ({"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"minimum": 1}}, "a"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, 0),
    ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}}, None),
    (TREE, {"next": {"next": {"next": {}}}}),
    (SHAPES, {"kind": "long", "r": "x"}),
    (SHAPES, None),
    ({"anyOf": [{"properties": {"a": True}}, False]}, {"a": 1}),
]

MISFITS = [
    (False, 1, "answer", "absent", "1"),
    ({"type": "integer"}, 3.5, "answer", "an integer", "3.5"),
    ({"type": "integer"}, 3.0, "answer", "an integer", "3.0"),
    ({"type": "integer"}, True, "answer", "an integer", "true"),
    ({"type": "number"}, False, "answer", "a number", "false"),
    ({"type": ["string", "null"]}, [], "answer", "a string or null", "an empty list"),
    ({"type": "integer", "minimum": 1}, "1", "answer", "an integer ≥ 1", "'1'"),
    ({"type": "integer", "minimum": 1}, 0, "answer", "an integer ≥ 1", "0"),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, 3, "answer", "a value > 1 and < 3", "3"),
    ({"maximum": 3}, 4, "answer", "a value ≤ 3", "4"),
    ({"exclusiveMinimum": 1}, 1, "answer", "a value > 1", "1"),
    ({"multipleOf": 0.1}, 0.35, "answer", "a value that is a multiple of 0.1", "0.35"),
    ({"enum": ["yes", "no"]}, "maybe", "answer", "one of 'yes', 'no'", "'maybe'"),
    ({"enum": [1]}, True, "answer", "1", "true"),
    ({"const": 1}, 1.0, "answer", "1", "1.0"),
    ({"type": "string", "minLength": 2}, "a", "answer", "a string of length ≥ 2", "'a'"),
    ({"type": "string", "maxLength": 1}, "ab", "answer", "a string of length ≤ 1", "'ab'"),
    ({"type": "string", "pattern": "^a"}, "b", "answer", "a string matching '^a'", "'b'"),
    (
        {"type": "string", "format": "date"},
        "soon",
        "answer",
        "a string in the format 'date'",
        "'soon'",
    ),
    ({"format": "decimal"}, "1,10", "answer", "a value in the format 'decimal'", "'1,10'"),
    ({"format": "uuid"}, "6f1c", "answer", "a value in the format 'uuid'", "'6f1c'"),
    ({"contentEncoding": "base64"}, "?", "answer", "a value in base64", "'?'"),
    ({"type": "array", "minItems": 2}, [1], "answer", "a list of length ≥ 2", "a list of 1"),
    ({"maxItems": 0}, [1], "answer", "a value of length ≤ 0", "a list of 1"),
    ({"items": {"type": "string"}}, ["a", 1], "answer[1]", "a string", "1"),
    ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], "answer[1]", "absent", "1"),
    ({"prefixItems": [{"type": "string"}]}, [1], "answer[0]", "a string", "1"),
    (
        {"uniqueItems": True},
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        "answer[1]",
        "unlike the items before it",
        None,
    ),
    (
        {"contains": {"type": "null"}},
        [1],
        "answer",
        "a list with at least 1 of null",
        "a list of 1",
    ),
    (
        {"contains": {"type": "null"}, "minContains": 0, "maxContains": 1},
        [None, None],
        "answer",
        "a list with at least 0 and at most 1 of null",
        "a list of 2",
    ),
    ({"required": ["a", "b"]}, {"a": 1}, "answer", "an object with 'b'", "an object with 'a'"),
    ({"minProperties": 1}, {}, "answer", "a value of size ≥ 1", "an empty object"),
    ({"maxProperties": 0}, {"a": 1}, "answer", "a value of size ≤ 0", "an object with 'a'"),
    (
        {"propertyNames": {"maxLength": 1}},
        {"ab": 1},
        "the key 'ab' of answer",
        "a value of length ≤ 1",
        "'ab'",
    ),
    ({"properties": {"a b": {"type": "null"}}}, {"a b": 1}, "answer['a b']", "null", "1"),
    ({"patternProperties": {"^n": {"type": "null"}}}, {"m": 1, "n": 1}, "answer.n", "null", "1"),
    (
        {"properties": {"a": {}}, "patternProperties": {"^n": {}}, "additionalProperties": False},
        {"a": 1, "n": 1, "z": 1},
        "answer.z",
        "absent",
        "1",
    ),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 4, "answer", "a value ≤ 3", "4"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "answer", "a string or null", "1"),
    ({"anyOf": [True, {"type": "null"}], "type": "string"}, 1, "answer", "anything or null", "1"),
    ({"anyOf": [False]}, 1, "answer", "absent", "1"),
    (
        {"oneOf": [{"minimum": 1}, {"maximum": 3}]},
        2,
        "answer",
        "only one of these: a value ≥ 1 or a value ≤ 3",
        "2",
    ),
    ({"oneOf": [{"type": "null"}, {"items": {"type": "null"}}]}, [1], "answer[0]", "null", "1"),
    ({"not": {"type": "string"}}, "a", "answer", "not a string", "'a'"),
    (
        {"if": {"type": "string"}, "then": {"minLength": 1}},
        "",
        "answer",
        "a value of length ≥ 1",
        "''",
    ),
    ({"if": {"type": "string"}, "else": {"minimum": 1}}, 0, "answer", "a value ≥ 1", "0"),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}, 1, "answer", "null", "1"),
    (TREE, {"next": {"next": {"last": 1}}}, "answer.next.next.last", "absent", "1"),
    (SHAPES, {"kind": "round", "r": "x"}, "answer.r", "a number", "'x'"),
    (SHAPES, {"kind": "flat"}, "answer", None, "an object with 'kind'"),
]

UNUSABLE = [
    ({"properties": {"a": {"requires": []}}}, "the schema.properties.a", "'requires'"),
    ({"unevaluatedProperties": False}, "the schema", "'unevaluatedProperties'"),
    ({"allOf": [{}, {"$dynamicRef": "#a"}]}, "the schema.allOf[1]", "'$dynamicRef'"),
    ({"$ref": "https://example.org/x.json"}, "the schema.$ref", "'#/$defs/NAME'"),
    ({"$ref": "#/$defs/missing"}, "the schema.$ref", "of this schema"),
    ({"$ref": "#/$defs/a", "$defs": [{}]}, "the schema.$ref", "of this schema"),
    ({"$ref": 1}, "the schema.$ref", "of this schema"),
    ({"pattern": "("}, "the schema.pattern", "a regular expression"),
    ({"pattern": 1}, "the schema.pattern", "a regular expression"),
    ({"patternProperties": {"(": {}}}, "the schema.patternProperties", "by regular expression"),
    ({"type": "text"}, "the schema.type", "null, boolean, integer"),
    ({"type": []}, "the schema.type", "null, boolean, integer"),
    ({"type": 1}, "the schema.type", "null, boolean, integer"),
    ({"enum": []}, "the schema.enum", "a list of values"),
    ({"required": "a"}, "the schema.required", "a list of strings"),
    ({"minLength": -1}, "the schema.minLength", "a whole number"),
    ({"minLength": True}, "the schema.minLength", "a whole number"),
    ({"minimum": "1"}, "the schema.minimum", "a number"),
    ({"multipleOf": 0}, "the schema.multipleOf", "above 0"),
    ({"uniqueItems": 1}, "the schema.uniqueItems", "true or false"),
    ({"format": 1}, "the schema.format", "a string"),
    ({"anyOf": []}, "the schema.anyOf", "a list of schemas"),
    ({"properties": []}, "the schema.properties", "an object of schemas"),
    ({"items": [{}]}, "the schema.items", "an object, true or false"),
    ({"default": {1, 2}}, "the schema.default", "a set"),
]


@pytest.mark.parametrize(("schema", "value"), FITS)
def test_what_fits_passes(schema, value):
    """A value that a schema allows is let through, and the schema is usable."""
    check_schema(schema)

    assert validate_value(value, schema) is None


@pytest.mark.parametrize(("schema", "value", "path", "expected", "got"), MISFITS)
def test_what_does_not_fit_is_refused_with_the_place(schema, value, path, expected, got):
    """A misfit names its path, what was expected there, and what came instead."""
    check_schema(schema)

    with pytest.raises(AnswerRefused) as refused:
        validate_value(value, schema)

    assert refused.value.path == path
    assert expected in (None, refused.value.expected)
    assert got in (None, refused.value.got)


@pytest.mark.parametrize(("schema", "place", "reason"), UNUSABLE)
def test_what_could_not_be_checked_is_refused_before_it_is_asked(schema, place, reason):
    """A schema that says more than the checker understands is refused, by place and reason."""
    with pytest.raises((BadSchema, BadValue)) as refused:
        check_schema(schema)

    assert refused.value.path == place
    assert reason in refused.value.reason


def test_annotations_change_nothing():
    """Titles, examples, defaults and x- keywords are let through and demand nothing."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:a",
        "$comment": "c",
        "title": "T",
        "description": "d",
        "default": 1,
        "examples": [1],
        "deprecated": True,
        "readOnly": True,
        "writeOnly": True,
        "discriminator": {"propertyName": "kind"},
        "contentMediaType": "text/plain",
        "x-order": 1,
    }
    check_schema(schema)

    assert validate_value("anything at all", schema) is None


def test_every_rule_has_a_word_in_the_vocabulary():
    """What is checked is known, and what is known but not checked is on a short list."""
    neighbours = {"minContains", "maxContains", "then", "else", "$defs", "definitions"}
    tellers = {
        "title",
        "description",
        "default",
        "example",
        "examples",
        "discriminator",
        "deprecated",
    }
    tellers |= {"readOnly", "writeOnly", "contentMediaType", "$schema", "$id", "$comment"}

    assert OPERANDS.keys() - RULES.keys() == neighbours | tellers
    assert RULES.keys() <= OPERANDS.keys()


def test_the_first_misfit_does_not_depend_on_the_order_of_the_schema():
    """The same schema written backwards gives the same message."""
    schema = {"properties": {"a": {"type": "string"}}, "required": ["b"], "type": "object"}
    said = []
    for one in (schema, dict(reversed(schema.items()))):
        with pytest.raises(AnswerRefused) as refused:
            validate_value({"a": 1}, one)
        said.append(str(refused.value))

    assert said[0] == said[1]


@pytest.mark.parametrize("loop", [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}])
def test_a_schema_that_only_refers_to_itself_ends(loop):
    """A loop is cut, once, however many alternatives lead back into it."""
    check_schema(loop)

    with pytest.raises(BadSchema, match=f"deeper than {DEPTH}"):
        validate_value(1, loop)


def test_a_deep_answer_to_a_recursive_schema_fits():
    """Fifty levels of a type that contains itself are no problem."""
    value: dict = {}
    for _ in range(50):
        value = {"next": value}

    assert validate_value(value, TREE) is None


def test_many_items_are_compared_by_content_without_waiting():
    """Ten thousand items are looked at once each, not once for every other."""
    assert validate_value(list(range(10_000)), {"uniqueItems": True}) is None


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, True),
        (False, False),
        ({}, True),
        ({"type": ["null", "string"]}, True),
        ({"type": "object"}, False),
        ({"enum": [1, "a"]}, True),
        ({"const": 1}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}}, False),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, True),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, False),
        ({"allOf": [{}, {"type": "integer"}]}, False),
        ({"$ref": "#"}, True),
    ],
)
def test_whether_text_may_fit_is_known_before_trying(schema, expected):
    """Types, listed values, references and alternatives decide whether a string has a chance."""
    assert accepts_text(schema, schema) is expected


def test_long_things_are_told_short():
    """Long text, long lists and endless schemas are cut in messages."""
    assert format_value("x" * 100) == f"'{'x' * 80}…'"
    assert format_value({str(n): n for n in range(20)}).endswith("'11', …")
    assert (
        describe_schema({"enum": list(range(20))}, True)
        == "one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …"
    )
    assert describe_schema({"$ref": "#"}, {"$ref": "#"}) == "a value"
    assert (
        describe_schema({"allOf": [{"type": "string"}, {"minLength": 1}]}, True)
        == "a string and a value of length ≥ 1"
    )


def test_tags_are_part_of_the_description():
    """An object that is told apart by a constant is described with it."""
    assert describe_schema(SHAPES, SHAPES) == (
        "an object with 'kind' = 'round', 'r' or an object with 'kind' = 'long', 'r' or null"
    )
