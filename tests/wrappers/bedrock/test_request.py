"""What a request asks of a model behind Converse, on the wire and off it."""

import json
from typing import Any

import pytest

from support.event_frames import converse
from support.options import HISTORY, NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import Head, ScriptedUpstream, Step
from tailrace.wrappers import (
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
    OutputFormat,
    RequestOptions,
    Role,
    ToolChoice,
)
from tailrace.wrappers.bedrock.model import BedrockModel
from tailrace.wrappers.bedrock.request import request_members
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES

MENDED = LETTERS_DIGITS_DASHES.mend(ODD)


@pytest.mark.parametrize(
    ("options", "members"),
    [
        (RequestOptions(), {}),
        (
            RequestOptions(tools=(WEATHER, NOW)),
            {
                "toolConfig": {
                    "tools": [
                        {
                            "toolSpec": {
                                "name": ODD,
                                "description": "The weather of a city.",
                                "inputSchema": {"json": SCHEMA},
                                "strict": True,
                            }
                        },
                        {"toolSpec": {"name": "now", "inputSchema": {"json": PLAIN}}},
                    ]
                }
            },
        ),
        (RequestOptions(tool_choice=ToolChoice()), {"toolConfig": {"toolChoice": {"auto": {}}}}),
        (RequestOptions(tools=(NOW,), tool_choice=ToolChoice(mode="none")), {"toolConfig": None}),
        (
            RequestOptions(tool_choice=ToolChoice(mode="required")),
            {"toolConfig": {"toolChoice": {"any": {}}}},
        ),
        (
            RequestOptions(tool_choice=ToolChoice(mode="tool", name="now")),
            {"toolConfig": {"toolChoice": {"tool": {"name": "now"}}}},
        ),
        (RequestOptions(parallel_tool_calls=False, reasoning_effort="low"), {}),
        (
            RequestOptions(
                output=OutputFormat(
                    schema_={"type": "object"}, name="a place", description="Where.", strict=True
                )
            ),
            {
                "outputConfig": {
                    "textFormat": {
                        "type": "json_schema",
                        "structure": {
                            "jsonSchema": {
                                "schema": '{"type": "object"}',
                                "name": LETTERS_DIGITS_DASHES.mend("a place"),
                                "description": "Where.",
                            }
                        },
                    }
                }
            },
        ),
        (
            RequestOptions(
                max_output_tokens=5,
                temperature=0.0,
                top_p=0.5,
                stop=("END",),
                seed=0,
                presence_penalty=0.1,
                frequency_penalty=0.0,
            ),
            {"inferenceConfig": {"maxTokens": 5, "temperature": 0.0, "topP": 0.5, "stopSequences": ["END"]}},
        ),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


def test_json_without_a_schema_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="needs a schema"):
        request_members(RequestOptions(output=OutputFormat()))


def model_at(upstream: ScriptedUpstream, **parameters: Any) -> BedrockModel:
    root = upstream.base_url.removesuffix("/v1")
    return BedrockModel("claude", base_url=root, api_key="k", region="eu-west-1", parameters=parameters)


def answer_with(name: str) -> list[Step]:
    use = {"toolUse": {"toolUseId": "tooluse_1", "name": name}}
    arguments = {"toolUse": {"input": '{"city": "Bern"}'}}
    events: list[dict[str, Any]] = [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"contentBlockIndex": 0, "start": use}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": arguments}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "tool_use"}},
    ]
    head = Head(headers={"content-type": "application/vnd.amazon.eventstream"})
    return [head, *(converse(event) for event in events)]


OWN = {"toolSpec": {"name": "now", "inputSchema": {"json": PLAIN}}}


async def test_a_tool_is_offered_under_another_name_and_called_under_its_own() -> None:
    async with ScriptedUpstream(answer_with(MENDED)) as upstream:
        model = model_at(upstream, toolConfig={"tools": [OWN], "toolChoice": {"auto": {}}})
        options = RequestOptions(
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="tool", name=ODD),
            output=OutputFormat(schema_=SCHEMA),
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    now, weather = request["toolConfig"]["tools"]
    assert now == OWN
    assert (weather["toolSpec"]["name"], weather["toolSpec"]["inputSchema"]) == (MENDED, {"json": SCHEMA})
    assert request["toolConfig"]["toolChoice"] == {"tool": {"name": MENDED}}
    schema = request["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]
    assert json.loads(schema) == SCHEMA
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})


@pytest.mark.parametrize("mode", ["none", None])
async def test_a_conversation_with_calls_names_their_tools_where_none_is_offered(mode: Any) -> None:
    call, result = (
        ContentPartToolCall(id="1", name=ODD),
        ContentPartToolResult(id="1", name=ODD, output="Sunny"),
    )
    history = HISTORY.with_message(
        Message(role=Role.MODEL, content=(call,)), Message(role=Role.TOOL, content=(result,))
    )
    options = RequestOptions(tools=(NOW,), tool_choice=ToolChoice(mode=mode)) if mode else RequestOptions()
    async with ScriptedUpstream(answer_with(MENDED)) as upstream:
        model = model_at(upstream)
        async with model.stream(history, options) as batches:
            chunks = [chunk async for batch in batches for chunk in batch]
        await model.aclose()
        request = (await upstream.received()).json
    assert request["toolConfig"] == {
        "tools": [{"toolSpec": {"name": MENDED, "inputSchema": {"json": PLAIN}}}]
    }
    assert [each.name for chunk in chunks for each in chunk.get_tool_calls() if each.name] == [ODD]


async def test_no_tool_is_offered_where_none_is_to_be_called() -> None:
    async with ScriptedUpstream(answer_with("now")) as upstream:
        model = model_at(upstream, toolConfig={"tools": [OWN]})
        await ask(model, RequestOptions(tools=(WEATHER,), tool_choice=ToolChoice(mode="none")))
        request = (await upstream.received()).json
    assert "toolConfig" not in request
