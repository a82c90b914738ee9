"""Objects that a request contains in their original text."""

import json

import pytest

from tailrace.wrappers.decoding.verbatim_json import VerbatimObject, encode_request

TEXT = '{ "b":1.0,  "a":"\\u00fc","b":2 }'


def written() -> VerbatimObject:
    return VerbatimObject(json.loads(TEXT), TEXT)


@pytest.mark.parametrize(
    ("body", "encoded"),
    [
        ({"messages": [{"content": [{"toolUse": {"input": written()}}]}]}, '{"messages":[{"content":[{"toolUse":{"input":%s}}]}]}'),
        ({"contents": ({"parts": [{"functionCall": {"args": written()}}]},)}, '{"contents":[{"parts":[{"functionCall":{"args":%s}}]}]}'),
        ({"messages": [{"tool_calls": [{"function": {"arguments": written()}}]}]}, '{"messages":[{"tool_calls":[{"function":{"arguments":%s}}]}]}'),
    ],
)  # fmt: skip
def test_an_object_among_the_messages_is_its_own_text(body: dict[str, object], encoded: str) -> None:
    before = json.dumps(body)
    assert encode_request(body) == encoded.replace("%s", TEXT).encode()
    assert json.dumps(body) == before


def test_it_behaves_like_any_other_object() -> None:
    assert written() == {"b": 2, "a": "ü"}
    assert json.loads(json.dumps(written())) == {"b": 2, "a": "ü"}
    assert encode_request({"tools": [written()]}) == '{"tools":[{"b":2,"a":"ü"}]}'.encode()
    assert encode_request([1]) == b"[1]"
