"""Options of a request: accepted values, and rejected values with their location."""

from typing import Any

import pytest

from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.agent.caller_options import NO_CALLER_OPTIONS, CallerOptions, read_caller_options
from tailrace.streaming.schemas.schema_bounds import check_values

SEARCH: dict[str, Any] = {
    "name": "search",
    "description": "Look it up.",
    "parameters": {"type": "object", "properties": {}},
}


def read(**facts: Any) -> CallerOptions:
    return read_caller_options({EXTENSION_URI: facts})


def refused(**facts: Any) -> str:
    with pytest.raises(ValueError, match=": ") as raised:
        read(**facts)
    return str(raised.value)


def test_empty_options_are_none() -> None:
    assert read_caller_options({}) is NO_CALLER_OPTIONS
    assert read(idempotencyKey="a") is NO_CALLER_OPTIONS


def test_request_facts_survive_a_round_trip_through_metadata() -> None:
    facts = read(tools=[SEARCH], toolChoice={"mode": "required"}, instructions="Be brief.", temperature=0)
    assert facts.tools[0].parameters == SEARCH["parameters"]
    assert read_caller_options(facts.to_metadata()) == facts


def test_what_is_not_of_its_type_is_named() -> None:
    assert refused(tools=5).startswith("tools: ")
    assert refused(tools=[{}]).startswith("tools.0.name: ")
    assert refused(temperature="warm").startswith("temperature: ")


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"properties": {"city": {"type": "string", "pattern": "^[A-Z]"}}, "required": ["city"]},
        {"type": ["object", "null"]},
        {"$ref": "#/$defs/place", "$defs": {"place": {"type": "object"}}},
        {"$ref": "#"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
    ],
)
def test_the_schema_of_an_object_is_taken_as_it_is(parameters: dict[str, Any]) -> None:
    assert read(tools=[{**SEARCH, "parameters": parameters}]).tools[0].parameters == parameters


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({"type": "nonsense"}, ".type: invalid JSON schema"),
        ({"type": 17}, ".type: invalid JSON schema"),
        ({"properties": {"city": {"type": "text"}}}, ".properties.city.type: invalid JSON schema"),
        ({"properties": {"city": {"pattern": "("}}}, ".properties.city.pattern: invalid JSON schema"),
        ({"$ref": "#/$defs/none"}, ": invalid JSON schema: Pointer '/$defs/none' does not exist"),
        ({"$ref": "http://127.0.0.1:1/place"}, ": invalid JSON schema"),
        ({"type": "array"}, ".type: must be 'object'"),
        ({"type": ["array", "null"]}, ".type: must be 'object'"),
    ],
)
def test_a_tool_whose_parameters_are_no_schema_of_an_object_is_refused(
    parameters: dict[str, Any], place: str
) -> None:
    tools = [SEARCH, {"name": "locate", "parameters": parameters}]
    assert refused(tools=tools).startswith(f"tools.1.parameters{place}")


def test_two_tools_of_one_name_are_refused() -> None:
    assert refused(tools=[SEARCH, {"name": "search"}]) == "tools.1.name: two tools have the name 'search'"


def test_a_choice_of_one_tool_names_it() -> None:
    assert refused(tools=[SEARCH], toolChoice={"mode": "tool"}).startswith("toolChoice.name: ")
    # The agent may have tools of its own, which are not known here.
    for name in ("search", "the_agents"):
        choice = read(tools=[SEARCH], toolChoice={"mode": "tool", "name": name}).tool_choice
        assert choice is not None
        assert choice.name == name


def test_the_schemas_of_tools_have_a_limited_number_of_characters() -> None:
    def facts(*texts: str) -> dict[str, Any]:
        tools = [
            {"name": f"f{at}", "parameters": {"type": "object", "description": text}}
            for at, text in enumerate(texts)
        ]
        return {EXTENSION_URI: {"tools": tools}}

    read_caller_options(facts("x" * 400_000, "x" * 500_000))
    with pytest.raises(ValueError, match="characters; the maximum is 1000000"):
        read_caller_options(facts("x" * 600_000, "x" * 500_000))
    with pytest.raises(ValueError, match="characters; the maximum is 1000000"):
        check_values({"enum": ["x" * 1_000_001]})
