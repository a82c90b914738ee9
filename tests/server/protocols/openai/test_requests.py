"""Requests of both OpenAI APIs: parsed, or refused in OpenAI's error format."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.openai.request import read_chat_request, read_responses_request
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.streaming.conversion.message_conversion import to_a2a_message

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ROLES = st.sampled_from(["user", "assistant", "system", "developer", "tool", "function", "other"])
PART_TYPES = st.sampled_from(
    [
        "text",
        "image_url",
        "input_audio",
        "file",
        "refusal",
        "input_text",
        "output_text",
        "input_image",
        "input_file",
    ]
)
PART = st.fixed_dictionaries(
    {"type": PART_TYPES},
    optional={
        "text": JSON,
        "image_url": JSON,
        "input_audio": JSON,
        "file": JSON,
        "refusal": JSON,
        "file_data": JSON,
    },
)
CALL = st.fixed_dictionaries({}, optional={"id": JSON, "type": JSON, "function": JSON, "custom": JSON})
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES},
    optional={
        "content": JSON | st.lists(PART, max_size=3),
        "name": JSON,
        "tool_calls": JSON | st.lists(CALL, max_size=2),
        "tool_call_id": JSON,
        "refusal": JSON,
    },
)
ITEM = MESSAGE | st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["function_call", "function_call_output", "reasoning", "message", "item_reference"]
        )
    },
    optional={
        "call_id": JSON,
        "name": JSON,
        "arguments": JSON,
        "output": JSON,
        "summary": JSON,
        "content": JSON,
    },
)
OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.text(max_size=3),
    "tools": JSON
    | st.lists(st.dictionaries(st.sampled_from(["type", "function", "name"]), JSON), max_size=2),
    "tool_choice": JSON,
    "metadata": JSON,
    "temperature": JSON,
    "stream": st.booleans(),
    "user": JSON,
}
CHAT = st.fixed_dictionaries(
    {"messages": JSON | st.lists(MESSAGE, max_size=4)},
    optional={**OTHERS, "response_format": JSON, "stop": JSON, "n": JSON, "stream_options": JSON},
)
RESPONSES = st.fixed_dictionaries(
    {"input": JSON | st.lists(ITEM, max_size=4)},
    optional={**OTHERS, "text": JSON, "reasoning": JSON, "conversation": JSON, "previous_response_id": JSON},
)


def check(read: Any, body: dict[str, Any]) -> None:
    """Assert that a request is parsed into a valid message, or refused with a one-line error."""
    request: ChatRequest | None = None
    refusal: OpenAIError | None = None
    try:
        request = read(body, user_is_key=True)
    except OpenAIError as error:
        refusal = error
    if request is None:
        assert refusal is not None
        assert refusal.status == 400
        assert "\n" not in str(refusal)
        assert json.loads(refusal.body())["error"]["type"] == "invalid_request_error"
        return
    for message in (*request.earlier, request.new):
        to_a2a_message(message, message_id="m").to_json()
    json.dumps(request.caller_options.to_metadata())


@given(CHAT)
def test_any_request_for_a_chat_completion_is_read_or_refused(body: dict[str, Any]) -> None:
    check(read_chat_request, body)


@given(RESPONSES)
def test_any_request_for_a_response_is_read_or_refused(body: dict[str, Any]) -> None:
    check(read_responses_request, body)


def test_unset_options_are_no_request_facts() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": None, "tools": [], "stop": None}
    assert not read_chat_request(body).caller_options.model_fields_set


@pytest.mark.parametrize(
    ("metadata", "header", "key"),
    [
        ({"conversation_id": "a", "context_id": "b"}, "c", "c"),
        ({"conversation_id": "a", "context_id": "b"}, "", "a"),
        ({"context_id": "b"}, "", "b"),
        ({}, "", "bob"),
    ],
)
def test_the_first_place_that_names_the_conversation_counts(
    metadata: dict[str, str], header: str, key: str
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "metadata": metadata, "user": "bob"}
    assert read_chat_request(body, header=header, user_is_key=True).key == key


@pytest.mark.parametrize(
    "name", ["metadata.conversation_id", "metadata.context_id", "X-Conversation-Id", "user"]
)
def test_an_invalid_id_of_a_conversation_is_reported_with_its_place(name: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    if name == "user":
        body["user"] = "\ud83d"
    elif "." in name:
        body["metadata"] = {name.partition(".")[2]: "\ud83d"}
    header = "é" if name.startswith("X-") else ""
    with pytest.raises(OpenAIError) as caught:
        read_chat_request(body, header=header, user_is_key=True)
    assert caught.value.fields()["param"] == name


def test_an_invalid_conversation_is_reported_with_its_place() -> None:
    with pytest.raises(OpenAIError) as caught:
        read_responses_request({"input": "hi", "conversation": "\ud83d"})
    assert caught.value.fields()["param"] == "conversation"


def calls(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {
        "role": "assistant",
        "tool_calls": [{"id": each, "type": "function", "function": function} for each in ids],
    }


def call_and_result_ids(*items: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the ids of the calls of earlier answers and of the new results; equal for both APIs."""
    request = read_chat_request({"messages": [{"role": "user", "content": "1?"}, *items]})
    flat: list[dict[str, Any]] = [{"role": "user", "content": "1?"}]
    for item in items:
        if item["role"] == "assistant":
            flat += [
                {"type": "function_call", "call_id": call["id"], **call["function"]}
                for call in item["tool_calls"]
            ]
        elif item["role"] == "tool":
            output = {"call_id": item["tool_call_id"], "output": item["content"]}
            flat.append({"type": "function_call_output", **output})
        else:
            flat.append(item)
    other = read_responses_request({"input": flat})
    ids = [
        (
            [call.id for message in each.earlier for call in message.tool_calls],
            [result.id for result in each.new.tool_results],
        )
        for each in (request, other)
    ]
    assert ids[0] == ids[1]
    return ids[0]


@pytest.mark.parametrize("read", [read_chat_request, read_responses_request])
def test_more_tool_calls_than_a_response_may_have_are_the_callers_fault(
    read: Callable[[dict[str, Any]], object],
) -> None:
    many = calls(*map(str, range(1001)))
    flat = [
        {"type": "function_call", "call_id": each["id"], **each["function"]} for each in many["tool_calls"]
    ]
    hi = {"role": "user", "content": "hi"}
    body: dict[str, Any] = {"messages": [many, hi], "input": [*flat, hi]}
    with pytest.raises(OpenAIError, match="more than the allowed 1000 tool calls") as raised:
        read(body)
    assert raised.value.status == 400


@pytest.mark.parametrize("read", [read_chat_request, read_responses_request])
@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({f"n{at}": "" for at in range(17)}, "17 pairs; the maximum is 16"),
        ({"n" * 65: ""}, "a name has 65 characters; the maximum is 64"),
        ({"n": "v" * 513}, "'n' has 513 characters; the maximum is 512"),
        ({"n": ["v"]}, "'n' must be text"),
    ],
)
def test_metadata_is_bounded_as_in_the_api(
    read: Callable[[dict[str, Any]], object], metadata: dict[str, Any], why: str
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "input": "hi"}
    read({**body, "metadata": {f"{at:064}": "v" * 512 for at in range(16)}})
    with pytest.raises(OpenAIError, match=why) as raised:
        read({**body, "metadata": metadata})
    assert raised.value.status == 400
    assert raised.value.fields()["param"] == "metadata"


def test_repeated_calls_are_counted_once() -> None:
    def answered(call_id: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": "x"}

    again = calls("a", "b", "c"), answered("a"), calls("b", "c"), answered("b"), calls("c"), answered("c")
    assert call_and_result_ids(*again) == (["a", "b", "c"], ["c"])
    # Calls of another round, to which some providers assign the same ids.
    assert call_and_result_ids(calls("a"), answered("a"), calls("a"), answered("a")) == (["a", "a"], ["a"])
    assert call_and_result_ids(calls("a", "b"), answered("a"), calls("c"), answered("c")) == (
        ["a", "b", "c"],
        ["c"],
    )
    stopped = {"role": "user", "content": "Once more!"}
    assert call_and_result_ids(calls("a"), stopped, calls("a"), answered("a")) == (["a", "a"], ["a"])
