"""Arguments streamed by path: each kind of path and value gives the intended document."""

import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.wrappers.gemini.partial_arguments import PartialArguments


def built(*partials: dict[str, Any], **whole: Any) -> Any:
    arguments = PartialArguments()
    arguments.update(whole)
    for partial in partials:
        arguments.add(partial)
    return json.loads(arguments.text(complete=True))


def at(path: str, value: Any = 1) -> Any:
    return built({"jsonPath": path, "numberValue": value})


def test_without_any_value_there_are_no_arguments() -> None:
    assert built() == {}


def test_pieces_of_a_text_are_joined() -> None:
    assert built(
        {"jsonPath": "$.city", "stringValue": "New ", "willContinue": True},
        {"jsonPath": "$.other", "stringValue": "x", "willContinue": True},
        {"jsonPath": "$.city", "stringValue": "York", "willContinue": True},
        {"jsonPath": "$.city", "stringValue": ""},
    ) == {"city": "New York", "other": "x"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"numberValue": 0.5}, 0.5),
        ({"numberValue": 3}, 3),
        ({"numberValue": "NaN"}, "NaN"),
        ({"boolValue": False}, False),
        ({"nullValue": "NULL_VALUE"}, None),
        ({"stringValue": ""}, ""),
    ],
)
def test_values_of_every_kind(value: dict[str, Any], expected: object) -> None:
    assert built({"jsonPath": "$.a", **value}) == {"a": expected}


def test_a_number_without_a_fraction_is_a_whole_one() -> None:
    assert json.dumps(at("$.a", 5.0)) == '{"a": 5}'
    assert json.dumps(at("$.a", 1e300)) == '{"a": 1e+300}'


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.a.b", {"a": {"b": 1}}),
        ("$.a[0].b[1]", {"a": [{"b": [None, 1]}]}),
        ("$['a b'].c", {"a b": {"c": 1}}),
        ('$["a.b"]["c"]', {"a.b": {"c": 1}}),
        (r"""$['it\'s "\u00e9']""", {"it's \"é": 1}),
        (r"$['\q']", {r"\q": 1}),
        ("$.日本", {"日本": 1}),
        ("$[0]", {"0": 1}),
        ("$", {"$": 1}),
        ("", {"": 1}),
        ("city", {"city": 1}),
        ("$..a", {"$..a": 1}),
        ("$.a[*]", {"$.a[*]": 1}),
        ("$.a[-1]", {"$.a[-1]": 1}),
        ("$" + ".a" * 65, {"$" + ".a" * 65: 1}),
    ],
)
def test_paths_of_every_kind(path: str, expected: object) -> None:
    assert at(path) == expected


def test_items_of_a_list_may_come_in_any_order_and_leave_small_gaps() -> None:
    partials = [{"jsonPath": f"$.a[{position}]", "numberValue": position} for position in (3, 0, 1)]
    assert built(*partials) == {"a": [0, 1, None, 3]}


def test_a_far_gap_is_closed_so_that_a_number_cannot_fill_the_memory() -> None:
    assert at("$.a[999999999]") == {"a": [1]}


def test_a_list_with_a_name_among_its_positions_is_an_object() -> None:
    assert built(
        {"jsonPath": "$.a[0]", "numberValue": 1},
        {"jsonPath": "$.a.b", "numberValue": 2},
    ) == {"a": {"0": 1, "b": 2}}


def test_arguments_that_came_whole_can_grow() -> None:
    assert built(
        {"jsonPath": "$.a.c", "numberValue": 2},
        {"jsonPath": "$.l[1]", "numberValue": 2},
        {"jsonPath": "$.t.x", "numberValue": 3},
        a={"b": 1},
        l=[1],
        t="text",
        n=None,
    ) == {"a": {"b": 1, "c": 2}, "l": [1, 2], "t": {"x": 3}, "n": None}


def test_a_later_value_replaces_one_that_is_no_text() -> None:
    assert built({"jsonPath": "$.a", "numberValue": 1}, {"jsonPath": "$.a", "stringValue": "x"}) == {"a": "x"}
    assert built({"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": "$.a", "boolValue": True}) == {
        "a": True
    }


def test_a_path_without_a_value_adds_nothing() -> None:
    assert built({"jsonPath": "$.a", "willContinue": True}) == {}


def test_what_was_cut_off_is_no_json() -> None:
    arguments = PartialArguments()
    assert arguments.text(complete=False) == "{"
    arguments.add({"jsonPath": "$.a", "stringValue": "New "})
    assert arguments.text(complete=False) == '{"a": "New "'


names = st.text(alphabet=st.characters(exclude_characters="'\\", exclude_categories=["Cs"]), max_size=5)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(names, inner, min_size=1, max_size=3),
    max_leaves=8,
)  # fmt: skip


def partials_of(value: Any, path: str) -> list[dict[str, Any]]:
    """The fragments in which Vertex AI streams a document: texts in pieces, each value with its path."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return [each for name, inner in fields.items() for each in partials_of(inner, f"{path}['{name}']")]
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            each for number, inner in enumerate(items) for each in partials_of(inner, f"{path}[{number}]")
        ]
    if isinstance(value, str):
        pieces = [{"jsonPath": path, "stringValue": char, "willContinue": True} for char in value]
        return [*pieces, {"jsonPath": path, "stringValue": ""}]
    if isinstance(value, bool):
        return [{"jsonPath": path, "boolValue": value}]
    if value is None:
        return [{"jsonPath": path, "nullValue": "NULL_VALUE"}]
    return [{"jsonPath": path, "numberValue": float(value)}]


@settings(deadline=None)
@given(st.dictionaries(names, documents, max_size=4))
def test_a_document_that_is_streamed_comes_out_as_it_was(document: dict[str, Any]) -> None:
    assert built(*partials_of(document, "$")) == document
