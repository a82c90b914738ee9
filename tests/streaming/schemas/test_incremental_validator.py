"""JSON text is rejected with the first delta that cannot lead to a value of the schema; valid text never is."""

import json
import os
import random
from typing import Any, cast

import jsonschema_rs
import pytest

from support.random_seeds import EVERY_TIME_OTHERS
from tailrace.streaming.schemas.incremental_validator import IncrementalValidator
from tailrace.streaming.schemas.schema_shapes import SchemaShapes

CASES = int(os.environ.get("TAILRACE_TEST_FILTER_CASES", "1000"))
"""Random texts; the torture run takes more."""

STATUS = {"enum": ["open", "opaque", 7, None]}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "status": STATUS},
    "required": ["name"],
    "additionalProperties": False,
}
SHAPES: dict[str, Any] = {
    "$defs": {
        "circle": {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
            "additionalProperties": False,
        },
        "group": {
            "type": "object",
            "properties": {
                "kind": {"const": "group"},
                "items": {"type": "array", "items": {"$ref": "#/$defs/shape"}},
            },
            "required": ["kind", "items"],
            "additionalProperties": False,
        },
        "shape": {"anyOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/group"}]},
    },
    "type": "object",
    "properties": {"shape": {"$ref": "#/$defs/shape"}, "size": {"type": ["integer", "null"]}},
}
TUPLE: dict[str, Any] = {
    "type": "array",
    "prefixItems": [{"type": "string"}, {"type": "boolean"}],
    "items": {"allOf": [{"type": ["number", "string"]}, {"enum": [1, 2.5, "1", "\u00e9\U0001f30a"]}]},
}
OTHERS: list[dict[str, Any]] = [
    {},
    {"type": "object", "patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "number"}},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "array", "prefixItems": [{"type": "null"}]}]},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "null"}], "additionalItems": False},
    {"if": {"type": "object"}, "then": {"required": ["a"]}, "not": {"const": "no"}},
    {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/properties/c"}, "c": {"const": True}}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/definitions/n", "type": "string"}},
     "definitions": {"n": {"type": "number"}}},
]  # fmt: skip


def rejected_at(schema: dict[str, Any], pieces: list[str]) -> tuple[int, str]:
    """The position of the piece with which a text is rejected, and the reason; the number of pieces for the end."""
    validator = IncrementalValidator(schema)
    for position, piece in enumerate(pieces):
        try:
            validator.feed(piece)
        except ValueError as error:
            return position, str(error)
    try:
        validator.close()
    except ValueError as error:
        return len(pieces), str(error)
    return -1, ""


@pytest.mark.parametrize(
    ("schema", "valid", "rest", "reason"),
    [
        ({}, "", "H", "the text is not valid JSON"),
        ({}, '{"a":', "}", "the text is not valid JSON at /*"),
        ({}, "[1", ",]", "the text is not valid JSON at /1"),
        ({}, "[0", "1", "the text is not valid JSON at /0"),
        ({}, "tr", "y", "the text is not valid JSON"),
        ({}, '"a\\', "x", "the text is not valid JSON"),
        ({}, '"a', "\n", "the text is not valid JSON"),
        ({}, "1 ", "2", "the text is not valid JSON"),
        ({}, "[[1]", "}", "the text is not valid JSON"),
        ({}, "[" * 500, "[", "the JSON value is nested more than 500 levels deep"),
        (PERSON, " ", "[", "a value has a type that the schema does not allow"),
        (PERSON, '{"name": ', "1", "a value has a type that the schema does not allow at /name"),
        (PERSON, '{"na', "n", "a member is not in the schema"),
        (PERSON, '{"name', "s", "a member is not in the schema"),
        (PERSON, '{"nam', '"', "a member is not in the schema"),
        (PERSON, '{"n\\u0061me": ', "2", "a value has a type that the schema does not allow at /name"),
        (PERSON, '{"age": 1', "}", "a required member is missing"),
        (PERSON, '{"status": "op', "t", "a value is not one of the schema at /status"),
        (PERSON, '{"status": "ope', '"', "a value is not one of the schema at /status"),
        (PERSON, '{"status": ', "t", "a value has a type that the schema does not allow at /status"),
        (PERSON, '{"status": 8', " ", "a value is not one of the schema at /status"),
        (SHAPES, '{"shape": {"kind": "circle", "', "i", "a member is not in the schema at /shape"),
        (SHAPES, '{"shape": {"items": [', "1", "a value has a type that the schema does not allow at /shape/items/0"),
        (SHAPES, '{"shape": {"items": [], "kind": "', "c", "a value is not one of the schema at /shape/kind"),
        (SHAPES, '{"size": ', '"', "a value has a type that the schema does not allow at /size"),
        (TUPLE, '["a", ', "1", "a value has a type that the schema does not allow at /1"),
        (TUPLE, '["a", true, 1, "\\u00e9\\ud83c', "x", "a value is not one of the schema at /3"),
        (OTHERS[2], '{"secret": ', '"', "a value has a type that the schema does not allow at /*"),
    ],
)  # fmt: skip
def test_a_text_is_rejected_with_the_first_delta_that_cannot_match(
    schema: dict[str, Any], valid: str, rest: str, reason: str
) -> None:
    assert rejected_at(schema, [*valid, rest]) == (len(valid), reason)
    assert rejected_at(schema, [valid, rest]) == (1, reason)
    assert rejected_at(schema, [valid + rest])[0] == 0


@pytest.mark.parametrize("text", ["", "[1", '{"a"', '"', "tru", "-", "1e", "1."])
def test_an_incomplete_text_is_rejected_at_its_end(text: str) -> None:
    position, reason = rejected_at({}, [text])
    assert position == 1
    assert reason in ("the JSON value is incomplete", "the text is not valid JSON")


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"allOf": [{"anyOf": [{"const": i}, {"const": -i}]}]} for i in range(200)]},
        {"$id": "https://example.com/a", "items": {"$id": "b", "$ref": "#/$defs/x"}, "$defs": {"x": False}},
        {"items": {"$ref": "https://example.com/other"}},
    ],
)
def test_what_cannot_be_expanded_is_not_checked(schema: dict[str, Any]) -> None:
    assert rejected_at(schema, ["[1]" if "items" in schema else "3"]) == (-1, "")


def random_value(chance: random.Random, level: int = 0) -> Any:
    names = [
        "name",
        "age",
        "status",
        "kind",
        "items",
        "radius",
        "shape",
        "size",
        "a",
        "b",
        "c",
        "ab",
        "\u00e9",
    ]
    scalars: list[Any] = [
        "open",
        "circle",
        "group",
        "1",
        "no",
        "\u00e9\U0001f30a",
        "\\ \n",
        1,
        2.5,
        7,
        -1e3,
        True,
        False,
        None,
    ]
    if level > 3 or chance.random() < 0.4:
        return chance.choice(scalars)
    if chance.random() < 0.4:
        return [random_value(chance, level + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(names): random_value(chance, level + 1) for _ in range(chance.randrange(4))}  # fmt: skip


def matching(chance: random.Random, schema: Any, root: dict[str, Any]) -> Any:
    """A value that is likely to match a schema."""
    if not isinstance(schema, dict) or not schema or chance.random() < 0.05:
        return random_value(chance, 3)
    fields = cast("dict[str, Any]", schema)
    if "$ref" in fields:
        found: Any = root
        for step in fields["$ref"].split("/")[1:]:
            found = found[step]
        return matching(chance, found, root)
    for keyword in ("anyOf", "oneOf"):
        if keyword in fields:
            return matching(chance, chance.choice(fields[keyword]), root)
    if "const" in fields or "enum" in fields:
        return chance.choice(fields.get("enum") or [fields["const"]])
    if "properties" in fields:
        chosen = [each for each in fields["properties"] if chance.random() < 0.6]
        return {name: matching(chance, fields["properties"][name], root) for name in chosen}
    if fields.get("type") == "array":
        items = fields.get("items")
        prefix = fields.get("prefixItems", [])
        rest = [items] * chance.randrange(3)
        return [matching(chance, each, root) for each in [*prefix, *rest]]
    return random_value(chance, 2)


@pytest.mark.timeout(3000)
def test_no_valid_text_is_rejected_and_the_verdict_does_not_depend_on_the_deltas() -> None:
    chance = random.Random(None if EVERY_TIME_OTHERS else 1)
    schemas = [PERSON, SHAPES, TUPLE, *OTHERS]
    validators = [jsonschema_rs.validator_for(schema) for schema in schemas]
    shapes = [SchemaShapes(schema) for schema in schemas]
    number_valid = 0
    for _ in range(CASES):
        index = chance.randrange(len(schemas))
        value = matching(chance, schemas[index], schemas[index])
        text = json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1]))
        if chance.random() < 0.2:  # no JSON any more, or another value
            position = chance.randrange(len(text))
            text = text[:position] + chance.choice(['"', "}", "1", ",", "\\", ""]) + text[position + 1 :]
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(8)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        verdicts: set[bool] = set()
        for division in ([text], pieces, list(text)):
            validator = IncrementalValidator(shapes[index])
            try:
                for piece in division:
                    validator.feed(piece)
                validator.close()
                verdicts.add(True)
            except ValueError:
                verdicts.add(False)
        assert len(verdicts) == 1, (schemas[index], text, pieces)
        try:
            found = json.loads(text)
        except ValueError:
            assert verdicts == {False}, (schemas[index], text)
            continue
        if any("\ud800" <= each <= "\udfff" for each in json.dumps(found, ensure_ascii=False)):
            continue  # half of a surrogate pair, which the library does not accept
        is_valid = validators[index].is_valid(found)
        number_valid += is_valid
        assert verdicts == {True} or not is_valid, (schemas[index], text)
    assert number_valid > CASES // 10
