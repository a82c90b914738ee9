"""Arguments of tool calls are sent back byte for byte in every request of a conversation: provider caches depend on it."""

import json
from typing import Any

import pytest

from support.provider_rounds import CALLS, provider_environment, provider_model
from support.upstream import Received, ScriptedUpstream
from tailrace.streaming import Agent, tool
from tailrace.streaming.conversion.message_conversion import to_a2a_message, to_common_message
from tailrace.wrappers import (
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.assembly.tool_calls import arguments_json, arguments_object, parse_arguments
from tailrace.wrappers.decoding.verbatim_json import encode_request
from tailrace.wrappers.providers import FORMATS

__all__ = ["provider_environment"]

# As models write them: without or with redundant white space, a character and its escape, a number with a point, a repeated key.
AS_TEXT = (
    '{"b":1.0,"a":"é ☃ \\u00fc","n":{"z":[1e2,-0.0]},"b":2.50}',
    '{ "a" : "ß",\n  "b":  1.0 ,"b": 1.0}',
)
# Where a provider's stream or client has an object instead of text, order, numbers and characters are compared.
AS_OBJECT = ('{"b":1.0,"a":"é ☃ ü","n":{"z":[100.0,2.5]}}', '{"b":2.0,"a":"ß"}')

TEXTS = ("openai", "openai-responses", "mistral", "cohere")
"""Formats whose requests hold the arguments as text."""
WRITTEN = {
    **dict.fromkeys(TEXTS, AS_TEXT),
    "bedrock": AS_TEXT,
    "anthropic": AS_OBJECT,
    "gemini": AS_OBJECT,
    "ollama": AS_OBJECT,
}


@tool
def look(a: str, b: float, n: dict[str, Any] | None = None) -> str:
    """Look."""
    return f"{a} {b} {n}"


def holds(request: Received, name: str, arguments: str) -> bool:
    """Return whether the bytes of a request contain these arguments."""
    text = json.dumps(arguments, ensure_ascii=False) if name in TEXTS else arguments
    return text.encode() in request.body


@pytest.mark.parametrize("name", CALLS)
async def test_three_rounds_send_the_arguments_back_as_they_were_written(name: str) -> None:
    first, second = WRITTEN[name]
    answers = [CALLS[name](f"call0000{n}", "look", text) for n, text in enumerate((first, second, first))]
    async with ScriptedUpstream(*answers, []) as upstream:
        model = provider_model(name, upstream)
        agent = Agent(model, tools=[look], max_rounds=3)
        with pytest.raises(Exception, match="3"):
            await agent.run("Look twice.")
        await model.aclose()
        requests = upstream.requests
    assert len(requests) == 3
    assert holds(requests[1], name, first)
    assert holds(requests[2], name, first)
    assert holds(requests[2], name, second)


@pytest.mark.parametrize("text", [*AS_TEXT, *AS_OBJECT, '{"a": 1}', "{}"])
def test_the_text_survives_a_message_of_a2a(text: str) -> None:
    calls = (
        ContentPartToolCall(id="c", name="look", **parse_arguments(text)),
        ContentPartToolCall(id="d", name="look", arguments={"a": 1}),
    )
    message = Message(role=Role.MODEL, content=calls)
    stored = to_a2a_message(message, message_id="m").to_dict()
    entry = stored["parts"][0]["data"]["tool_calls"][0]
    assert entry == {"call_id": "c", "name": "look", "arguments": json.loads(text)}
    read = to_common_message(json.loads(json.dumps(stored)))
    assert read == message
    assert [call.arguments_json for call in read.tool_calls] == [call.arguments_json for call in calls]


@pytest.mark.parametrize("name", CALLS)
def test_chunks_become_the_providers_own_messages_in_one_call(name: str) -> None:
    wire, (text, _) = FORMATS[name], WRITTEN[name]
    steps = CALLS[name]("call00001", "look", text)
    decoder, converter = wire.create_decoder(), wire.create_converter()
    chunks = [chunk for step in steps if isinstance(step, bytes) for chunk in decoder.feed(step)]
    messages = converter.to_provider_messages([*chunks, *decoder.close()])
    assert len(messages) == 1
    written = json.dumps(text, ensure_ascii=False) if name in TEXTS else text
    assert written.encode() in encode_request({"messages": messages})
    question = Message(role=Role.USER, content=(ContentPartText(text="Look."),))
    history = converter.to_history([*converter.from_history(History(conversation=(question,))), *messages])
    assert history.conversation[0] == question
    (call,) = history.conversation[1].tool_calls
    assert (call.name, call.arguments) == ("look", json.loads(text))
    result = ContentPartToolResult(id=call.id, name="look", output="nothing")
    assert converter.tool_result_messages([result])


@pytest.mark.parametrize("name", CALLS)
def test_a_response_of_which_nothing_goes_back_becomes_no_message(name: str) -> None:
    assert FORMATS[name].create_converter().to_provider_messages([]) in (
        [],
        [{"role": "assistant", "content": ""}],
    )


def test_arguments_that_were_changed_go_out_as_they_are_now() -> None:
    call = ContentPartToolCall(id="c", name="look", **parse_arguments('{"a":1}'))
    changed = call.model_copy(update={"arguments": {"a": 2}})
    assert (arguments_json(call), arguments_json(changed)) == ('{"a":1}', '{"a": 2}')
    assert encode_request({"messages": [arguments_object(changed)]}) == b'{"messages":[{"a":2}]}'


@pytest.mark.parametrize("text", ['{"a": "\\ud83d"}', "[1]", "not JSON", '{"a":NaN}'])
def test_text_that_is_no_strict_json_object_is_never_sent_as_one(text: str) -> None:
    given = ContentPartToolCall(id="c", name="look", arguments={"a": 1}, arguments_json=text)
    assert arguments_json(given) == '{"a": 1}'
    assert parse_arguments(text).get("arguments_json") is None


def test_how_arguments_were_written_is_no_part_of_a_calls_value() -> None:
    written = ContentPartToolCall(id="c", name="look", **parse_arguments('{"a":1}'))
    assert written == ContentPartToolCall(id="c", name="look", arguments={"a": 1})
    assert written != ContentPartToolCall(id="c", name="look", arguments={"a": 2})
    assert ContentPartToolCall.model_validate_json(written.model_dump_json()).arguments_json == '{"a":1}'
