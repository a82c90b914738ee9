"""Free-form fields: merged by type, and always valid JSON."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.strategies import json_objects, json_values
from tailrace.wrappers.decoding.extra_fields import MAX_LEVELS, FieldFold, is_settled, json_text, plain_json
from tailrace.wrappers.messages import json_value


def fold(*pieces: dict[str, Any]) -> dict[str, Any]:
    folded = FieldFold()
    for piece in pieces:
        folded.add(piece)
    return folded.to_dict()


def nested(levels: int) -> dict[str, Any]:
    value: Any = "end"
    for _ in range(levels):
        value = {"a": value}
    return value


def test_lists_append() -> None:
    assert fold({"citations": ["a"]}, {"citations": ["b", "c"]}) == {"citations": ["a", "b", "c"]}


def test_objects_merge_and_numbers_and_words_replace() -> None:
    assert fold({"a": {"n": 1, "s": "x"}}, {"a": {"n": 2}, "b": True}) == {"a": {"n": 2, "s": "x"}, "b": True}


def test_running_text_joins() -> None:
    pieces = [{"audio": {"id": "i", "data": part, "transcript": part}} for part in "abc"]
    assert fold(*pieces) == {"audio": {"id": "i", "data": "abc", "transcript": "abc"}}


def test_null_never_erases() -> None:
    assert fold({"a": 1, "b": None}, {"a": None}) == {"a": 1, "b": None}
    assert fold({"a": None}, {"a": [1]}) == {"a": [1]}


def test_a_value_of_another_type_replaces() -> None:
    assert fold({"logprobs": 0.5}, {"logprobs": {"content": []}}) == {"logprobs": {"content": []}}
    assert fold({"logprobs": {"content": []}}, {"logprobs": 0.5}) == {"logprobs": 0.5}
    assert fold({"text": "a"}, {"text": 1}, {"text": "b"}) == {"text": "b"}


def test_indexed_items_of_one_type_are_fragments_of_one_block() -> None:
    details = [
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "index": 0, "summary": "s"}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "x"}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 1, "text": "c"}]},
    ]
    assert fold(*details) == {
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "x"},
            {"type": "reasoning.summary", "index": 0, "summary": "s"},
            {"type": "reasoning.text", "index": 1, "text": "c"},
        ]
    }


def test_indexed_items_with_ids_of_their_own_are_no_fragments() -> None:
    first = {"type": "reasoning.encrypted", "index": 0, "id": "call_a", "data": "QQ=="}
    second = {"type": "reasoning.encrypted", "index": 0, "id": "call_b", "data": "Qg=="}
    assert fold({"reasoning_details": [first]}, {"reasoning_details": [second]}) == {
        "reasoning_details": [first, second]
    }
    rest = {"type": "reasoning.encrypted", "index": 0, "id": None, "data": "!"}
    assert fold({"reasoning_details": [first, second]}, {"reasoning_details": [rest]}) == {
        "reasoning_details": [first, {**second, "data": "Qg==!"}]
    }


def test_items_of_mixed_kinds_stand_beside_each_other() -> None:
    assert fold({"a": [1, {"b": 1}]}, {"a": [{"index": 0, "type": [1]}, {"index": "0"}]}) == {
        "a": [1, {"b": 1}, {"index": 0, "type": [1]}, {"index": "0"}]
    }


def test_images_are_whole_even_when_all_have_the_same_index() -> None:
    images = [{"images": [{"index": 0, "type": "image_url", "image_url": {"url": url}}]} for url in "ab"]
    assert [image["image_url"]["url"] for image in fold(*images)["images"]] == ["a", "b"]


def test_what_was_handed_in_is_never_changed() -> None:
    first: dict[str, Any] = {"logprobs": {"content": [{"token": "a"}]}, "d": [{"index": 0, "text": "a"}]}
    before = json.dumps(first)
    folded = FieldFold()
    folded.add(first)
    folded.add({"logprobs": {"content": [{"token": "b"}]}, "d": [{"index": 0, "text": "b"}]})
    taken = folded.to_dict()
    folded.add({"logprobs": {"content": [{"token": "c"}]}})
    assert json.dumps(first) == before
    assert len(taken["logprobs"]["content"]) == 2


def test_running_text_is_not_joined_before_it_is_read() -> None:
    folded = FieldFold()
    for _ in range(20_000):
        folded.add({"audio": {"data": "ab"}})
    fragments = folded._fields["audio"]["data"].fragments  # pyright: ignore[reportPrivateUsage] — the structure is the point
    assert len(fragments) == 20_000
    assert folded.to_dict() == {"audio": {"data": "ab" * 20_000}}


def test_an_empty_fold_is_false_and_knows_its_names() -> None:
    folded = FieldFold()
    assert not folded
    folded.add({"a": 1})
    assert folded
    assert "a" in folded
    assert "b" not in folded


def test_fields_nested_beyond_all_measure_are_kept_as_text() -> None:
    deep = nested(900)
    found = fold({"x": deep}, {"x": deep})
    json_value(found)
    assert '{"a": "end"}' in json.dumps(found).replace("\\", "")


def test_a_depth_that_no_writer_follows_is_named() -> None:
    value: Any = []
    for _ in range(50_000):
        value = [value]
    assert json_text(value) == "(nested too deeply)"
    json_value(plain_json({"a": value}))


def test_what_json_cannot_carry_becomes_null_or_text() -> None:
    odd = {"a": math.nan, "b": [math.inf, -math.inf], "c\ud800": "\ud83d\ude00", "d": b"x", "e": (1,)}
    assert plain_json(odd) == {"a": None, "b": [None, None], "c\ufffd": "😀", "d": "b'x'", "e": [1]}


def test_the_last_allowed_level_is_kept_as_it_is() -> None:
    assert plain_json(nested(MAX_LEVELS)) == nested(MAX_LEVELS)
    assert plain_json(nested(MAX_LEVELS + 1)) != nested(MAX_LEVELS + 1)
    assert fold(nested(MAX_LEVELS)) == nested(MAX_LEVELS)


@given(value=json_values)
@settings(deadline=None)
def test_plain_json_leaves_json_as_it_is(value: object) -> None:
    assert plain_json(value) == value


@given(pieces=st.lists(json_objects, max_size=4))
@settings(deadline=None)
def test_folding_never_fails_and_always_gives_json(pieces: list[dict[str, Any]]) -> None:
    found = fold(*pieces)
    json_value(found)
    assert set(found) == {name for piece in pieces for name in piece}


@given(piece=json_objects)
@settings(deadline=None)
def test_one_piece_folds_to_itself(piece: dict[str, Any]) -> None:
    assert fold(piece) == piece


@given(fields=st.dictionaries(st.sampled_from(["a", "b", "text"]), json_values))
@settings(deadline=None)
def test_repeated_settled_fields_are_no_change(fields: dict[str, Any]) -> None:
    if is_settled(fields):
        assert fold(fields, fields) == fold(fields)


@pytest.mark.parametrize(
    ("fields", "settled"),
    [
        ({}, True),
        ({"hate": {"filtered": False, "severity": "safe"}, "seed": 5, "a": None}, True),
        ({"a": []}, False),
        ({"a": {"b": {"c": [1]}}}, False),
        ({"text": "a"}, False),
        ({"text": {"text": 1}}, True),
        ({"a": {"data": "QUJD"}}, False),
    ],
)
def test_fields_without_lists_and_running_text_are_settled(fields: dict[str, Any], settled: bool) -> None:
    assert is_settled(fields) is settled
