"""JSON responses: the schema in the request, and the value of the response."""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, cast

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from support.strategies import json_values
from tailrace.streaming.schemas.schema_bounds import schema_size
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.request_options import OutputFormat


class Town(pydantic.BaseModel):
    """A town of some size."""

    name: str
    founded: date | None = None


@dataclass
class Point:
    x: int
    y: int


class Colour(TypedDict):
    red: int


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    age: int


class Tree(pydantic.BaseModel):
    value: int
    children: "list[Tree]" = []


class Names(pydantic.RootModel[list[str]]):
    pass


FRIBOURG = Town(name="Fribourg", founded=date(1157, 1, 1))
KINDS: list[tuple[Any, object, object]] = [
    (Town, {"name": "Fribourg", "founded": "1157-01-01"}, FRIBOURG),
    (Point, {"x": 1, "y": 2}, Point(1, 2)),
    (Colour, {"red": 1}, {"red": 1}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(value=1, children=[Tree(value=2)])),
    (list[Town], {"result": [{"name": "Fribourg", "founded": "1157-01-01"}]}, [FRIBOURG]),
    (Cat | Dog, {"result": {"kind": "dog", "age": 3}}, Dog(kind="dog", age=3)),
    (Town | None, {"result": None}, None),
    (int, {"result": 42}, 42),
    (tuple[int, str], {"result": [1, "a"]}, (1, "a")),
    (Literal["yes", "no"], {"result": "yes"}, "yes"),
    (Names, {"result": ["a"]}, Names(["a"])),
    (date, {"result": "2026-01-02"}, date(2026, 1, 2)),
]


@pytest.mark.parametrize(("kind", "value", "made"), KINDS, ids=lambda each: str(each)[:40])
def test_any_type_is_requested_as_an_object_and_read(kind: Any, value: object, made: object) -> None:
    reader = OutputReader.of_type(kind)
    schema = reader.format.schema_
    assert schema is not None
    assert schema["type"] == "object"
    assert "$ref" not in schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, schema)
    assert reader.read(json.dumps(value)) == made


@pytest.mark.parametrize(("kind", "value", "made"), KINDS, ids=lambda each: str(each)[:40])
def test_what_the_model_wraps_or_fences_or_not_is_read(kind: Any, value: Any, made: object) -> None:
    bare = value["result"] if list(value) == ["result"] else value
    text = json.dumps(bare)
    reader = OutputReader.of_type(kind)
    for each in (
        text,
        f" {text}\n",
        f"```json\n{text}\n```",
        f"\n```\n{text}\n```\n",
        f"```JSON\n{text}\n```",
    ):
        assert reader.read(each) == made


@pytest.mark.parametrize("kind", [kind for kind, *_ in KINDS], ids=str)
def test_every_object_of_a_type_forbids_further_members(kind: Any) -> None:
    seen: list[Any] = []

    def walk(schema: Any) -> None:
        if isinstance(schema, list):
            for each in cast("list[Any]", schema):
                walk(each)
        elif isinstance(schema, dict):
            found = cast("dict[str, Any]", schema)
            if isinstance(found.get("properties"), dict):
                seen.append(found["additionalProperties"])
            walk(list(found.values()))

    walk(OutputReader.of_type(kind).format.schema_)
    assert set(seen) <= {False}
    assert seen or kind == dict[str, int]


def test_a_type_with_further_members_permits_them() -> None:
    class Open(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        name: str

    schema = OutputReader.of_type(Open).format.schema_
    assert schema is not None
    assert schema["additionalProperties"] is True


def test_a_type_has_its_name_and_description() -> None:
    named = OutputReader.of_type(Town).format
    assert (named.name, named.description) == ("Town", "A town of some size.")
    assert OutputReader.of_type(list[Town]).format.name == "list"
    assert OutputReader.of_type(Cat | Dog).format.name
    made = pydantic.create_model("Öl/Tank " * 20, litres=(int, ...))
    name = OutputReader.of_type(made).format.name
    assert len(name) == 64
    assert name.isascii()
    assert " " not in name


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="output type object"):
        OutputReader.of_type(type("object", (), {}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not valid JSON"),
        ("Fribourg", "is not valid JSON"),
        ('{"name": "Fri', "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "does not match the requested schema"),
        ('{"name": 1, "founded": "x"}', "name: Input should be a valid string; founded: "),
        ("{}", "name: Field required"),
    ],
    ids=["nothing", "words", "half", "deep", "a list", "types", "missing"],
)
def test_a_mismatch_is_reported(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"the response (is not|does not match)") as raised:
        OutputReader.of_type(Town).read(text)
    assert words in str(raised.value)


# --- a schema of the caller -------------------------------------------------------------------------------------


def of_schema(schema: dict[str, Any] | None) -> OutputReader:
    return OutputReader.of_format(OutputFormat(schema_=schema))


NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_an_answer_is_held_against_a_schema() -> None:
    reader = of_schema(NAMED)
    assert reader.read('{"name": "Fribourg"}') == {"name": "Fribourg"}
    with pytest.raises(ValueError, match='requested schema: name: 1 is not of type "string"'):
        reader.read('{"name": 1}')
    with pytest.raises(ValueError, match='"name" is a required property'):
        reader.read("{}")


def test_without_a_schema_it_is_any_object() -> None:
    reader = of_schema(None)
    assert reader.read('{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError, match="it is not a JSON object"):
        reader.read("[1]")


@pytest.mark.parametrize("schema", [{"type": "thing"}, {"properties": 1}, {"pattern": 1}])
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a JSON schema"):
        of_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/missing"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/hostname"},
        {"properties": {"a": {"pattern": "("}}},
    ],
    ids=lambda each: json.dumps(each),
)
def test_a_schema_that_cannot_be_followed_is_an_error_of_its_own_and_nothing_is_fetched(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match="schema"):
        of_schema(schema).read('{"a": "b"}')


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}], ids=lambda each: json.dumps(each)
)
def test_a_schema_that_only_refers_to_itself_has_no_constraints(schema: dict[str, Any]) -> None:
    assert of_schema(schema).read('{"a": "b"}') == {"a": "b"}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("pattern", ["^(a+)+$", r"^(\w+\s?)*$"])
def test_a_pattern_that_would_take_for_ever_does_not(pattern: str) -> None:
    reader = of_schema({"properties": {"a": {"pattern": pattern}}})
    with pytest.raises(ValueError, match="a:"):
        reader.read(json.dumps({"a": "a" * 60 + "!"}))


def _doubling(levels: int) -> dict[str, Any]:
    """A small schema whose number of branches doubles with each level."""
    levels_of = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(levels)}
    return {"$defs": {**levels_of, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def test_a_schema_that_is_made_to_take_for_ever_is_refused() -> None:
    for levels in (14, 18, 60):
        with pytest.raises(ValueError, match="too large"):
            of_schema(_doubling(levels))


@pytest.mark.timeout(10)
def test_many_branches_are_gone_through_quickly() -> None:
    with pytest.raises(ValueError, match="does not fit the schema"):
        of_schema(_doubling(11)).read('{"a": 1}')
    branch = {"properties": {"x": {"$ref": "#/$defs/t"}}, "maxProperties": 1}
    tree = {"$defs": {"t": {"anyOf": [branch, branch]}}, "$ref": "#/$defs/t"}
    value = "leaf"
    for _ in range(20):
        value = {"x": value, "y": 1}  # pyright: ignore[reportAssignmentType]
    with pytest.raises(ValueError, match="does not fit the schema"):
        of_schema(tree).read(json.dumps(value))


def test_what_a_schema_refers_to_counts_as_often_as_it_does() -> None:
    leaf = {"type": "string"}
    schema = {"$defs": {"a": leaf}, "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/a"}}}
    once, twice = schema_size({"properties": {"x": leaf}}), schema_size(schema)
    assert twice[0] > once[0]
    assert schema_size({"properties": {"x": {"$ref": "#"}}})[1]
    assert not twice[1]


def test_other_dialects_are_known_by_their_name() -> None:
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True}
    with pytest.raises(ValueError, match="3 is greater than or equal to the maximum of 3"):
        of_schema(draft4).read("3")


@given(json_values)
def test_any_value_comes_back_as_it_is(value: Any) -> None:
    assert of_schema({}).read(json.dumps(value)) == value


@given(st.text(), json_values)
def test_no_answer_raises_anything_else(text: str, value: Any) -> None:
    for kind, *_ in KINDS:
        reader = OutputReader.of_type(kind)
        for each in (text, json.dumps(value)):
            with suppress(ValueError):
                reader.read(each)
