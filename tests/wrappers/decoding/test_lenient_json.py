"""JSON of any shape."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from support.strategies import json_values
from tailrace.wrappers.decoding.lenient_json import (
    as_count,
    as_index,
    as_mapping,
    as_mappings,
    as_text,
    read_json,
)


@given(value=json_values)
@settings(deadline=None)
def test_json_is_read(value: object) -> None:
    assert read_json(msgspec.json.encode(value)) == value


def test_what_json_forbids_but_servers_send_is_read_too() -> None:
    assert read_json(b'"\\ud83d"') == "\ud83d"
    assert read_json(b"[Infinity, 1e999]") == [float("inf")] * 2
    assert read_json(b'"\xff"') == "\ufffd"


@pytest.mark.parametrize("payload", [b"", b"{", b"data", b"{'a': 1}", b'{"a": 1} {"b": 2}'])
def test_anything_else_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 — the text is the standard library's
        read_json(payload)


def test_mappings_are_found_in_values() -> None:
    assert as_mapping({"a": 1}) == {"a": 1}
    assert as_mapping([]) is None
    assert as_mappings([{"a": 1}, None, "c", {"b": 2}]) == [{"a": 1}, {"b": 2}]
    assert as_mappings({"a": 1}) == [{"a": 1}]
    assert as_mappings(None) == []


def test_text_and_indexes_are_distinguished_from_other_values() -> None:
    assert [as_text(value) for value in ("a", None, 3, ["a"])] == ["a", "", "", ""]
    assert [as_index(value) for value in (0, 7, -1, 10**30)] == [0, 7, -1, 10**30]
    assert [as_index(value) for value in ("0", "12", 0.0, 7.0)] == [0, 12, 0, 7]
    others: list[Any] = [
        True,
        None,
        "",
        " 1",
        "1.0",
        "-1",
        "\u0661",
        "9" * 16,
        0.5,
        float("nan"),
        float("inf"),
        [1],
        {},
    ]
    for value in others:
        assert as_index(value) is None


def test_counts_are_numbers_of_a_sensible_size() -> None:
    assert [as_count(value) for value in (0, 7, 7.0, -1, 2**53 - 1)] == [0, 7, 7, -1, 2**53 - 1]
    for value in (None, True, "7", [7], 7.5, float("nan"), float("inf"), 10**400, 2**53):
        assert as_count(value) is None
