"""Merging the operator's parameters with those of a request."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.strategies import json_objects, json_values
from tailrace.wrappers.conversion.request_parameters import (
    function_tool,
    has_tools,
    merged,
    tool_name,
    without_empty,
)
from tailrace.wrappers.request_options import ToolDefinition

Members = dict[str, Any]

FUNCTION: Members = {"type": "function", "function": {"name": "f"}}
OTHER: Members = {"type": "function", "function": {"name": "g"}}


CASES: list[tuple[Members, Members, Members]] = [
    ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ({"a": 1}, {"a": 2}, {"a": 2}),
    ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    ({}, {"a": None}, {}),
    ({"options": {"a": 1, "b": 1}}, {"options": {"b": 2}}, {"options": {"a": 1, "b": 2}}),
    ({"text": {"verbosity": "low"}}, {"text": {"format": {}}}, {"text": {"verbosity": "low", "format": {}}}),
    ({"stop": ["a"]}, {"stop": ["b"]}, {"stop": ["b"]}),
    # Lists of tools are concatenated; of two tools with one name, the request's is used.
    ({"tools": [FUNCTION]}, {"tools": [OTHER]}, {"tools": [FUNCTION, OTHER]}),
    ({"tools": [OTHER, {"type": "search"}]}, {"tools": [OTHER | {"x": 1}]},
     {"tools": [{"type": "search"}, OTHER | {"x": 1}]}),
    ({"tools": ({"name": "f"},)}, {"tools": [{"name": "f", "x": 1}]}, {"tools": [{"name": "f", "x": 1}]}),
    ({"tools": None}, {"tools": [FUNCTION]}, {"tools": [FUNCTION]}),
    ({"toolConfig": {"tools": [{"toolSpec": {"name": "f"}}, {"cachePoint": {}}], "x": 1}},
     {"toolConfig": {"tools": [{"toolSpec": {"name": "g"}}]}},
     {"toolConfig": {"tools": [{"toolSpec": {"name": "f"}}, {"cachePoint": {}}, {"toolSpec": {"name": "g"}}], "x": 1}}),
    # Google requires all declarations in one entry.
    ({"tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "f"}]}]},
     {"tools": [{"functionDeclarations": [{"name": "g"}]}]},
     {"tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]}),
    ({"tools": [{"googleSearch": {}}]}, {"tools": [{"functionDeclarations": [{"name": "g"}]}]},
     {"tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "g"}]}]}),
    # A tool choice and a schema are one value each.
    ({"tool_choice": {"type": "tool", "name": "f"}}, {"tool_choice": {"type": "any"}},
     {"tool_choice": {"type": "any"}}),
    ({"format": {"a": 1}}, {"format": {"b": 1}}, {"format": {"b": 1}}),
    ({"thinking": {"type": "enabled", "budget_tokens": 1}}, {"thinking": {"type": "disabled"}},
     {"thinking": {"type": "disabled"}}),
    # Members that a provider rejects together.
    ({"max_tokens": 1}, {"max_completion_tokens": 2}, {"max_completion_tokens": 2}),
    ({"generationConfig": {"responseSchema": {}, "x": 1}}, {"generationConfig": {"responseJsonSchema": {}}},
     {"generationConfig": {"x": 1, "responseJsonSchema": {}}}),
    # The operator's spelling.
    ({"generation_config": {"top_p": 1}}, {"generationConfig": {"topP": 0, "seed": 1}},
     {"generation_config": {"top_p": 0, "seed": 1}}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "requested", "both"), CASES)
def test_requested_members_are_merged_into_the_given_ones(
    given: Members, requested: Members, both: Members
) -> None:
    before = copy.deepcopy((given, requested))
    assert merged(given, requested) == both
    assert (given, requested) == before


# Names that differ only in case and underscores are one member in two spellings.
names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
members = st.dictionaries(names, json_values.filter(lambda value: value is not None), max_size=4)


@given(members, members, members)
def test_members_without_a_conflict_are_kept(given: Members, first: Members, second: Members) -> None:
    first = {f"first{name}": value for name, value in first.items()}
    second = {f"second{name}": value for name, value in second.items()}
    both = merged(merged(given, first), second)
    assert both == {**given, **first, **second}
    assert both == merged(merged(given, second), first)


@given(json_objects, json_objects)
def test_anything_can_be_merged_and_is_there_behind_it(given: Members, requested: Members) -> None:
    both = merged(given, requested)
    again = merged(both, requested)
    assert again == both


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ({"name": "f"}, "f"),
        (FUNCTION, "f"),
        ({"toolSpec": {"name": "f"}}, "f"),
        ({"type": "custom", "custom": {"name": "f"}}, "f"),
        ({"type": "web_search"}, None),
        ({"function": 1}, None),
        ("f", None),
    ],
)
def test_a_tool_has_a_name_in_every_form(tool: object, name: str | None) -> None:
    assert tool_name(tool) == name


OFFERS: list[tuple[Members, bool]] = [
    ({}, False),
    ({"tools": []}, False),
    ({"tools": None}, False),
    ({"tools": [FUNCTION]}, True),
    ({"functions": [{"name": "f"}]}, True),
    ({"toolConfig": {"tools": [{}]}}, True),
    ({"toolConfig": {"functionCallingConfig": {}}}, False),
    ({"tool_config": None}, False),
]


@pytest.mark.parametrize(("parameters", "any_tool"), OFFERS)
def test_tools_are_found_wherever_they_are_declared(parameters: Mapping[str, Any], any_tool: bool) -> None:
    assert has_tools(parameters) is any_tool


def test_what_is_left_to_the_provider_is_left_out() -> None:
    assert without_empty(a=None, b=(), c="", d={}, e=0, f=False, g=0.0, h="x") == {
        "e": 0,
        "f": False,
        "g": 0.0,
        "h": "x",
    }


def test_a_tool_in_openais_form() -> None:
    tool = ToolDefinition(name="f", description="Does.", parameters={}, strict=False)
    function = {"name": "f", "description": "Does.", "parameters": dict[str, Any]()}
    assert function_tool(tool) == {"type": "function", "function": {**function, "strict": False}}
    assert function_tool(tool, strict=False) == {"type": "function", "function": function}
