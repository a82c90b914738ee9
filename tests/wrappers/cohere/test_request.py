"""What a request asks of a model behind Cohere's Chat API, on the wire and off it."""

import json
from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import ScriptedUpstream
from tailrace.wrappers import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
)
from tailrace.wrappers.cohere.history import CohereConverter
from tailrace.wrappers.cohere.model import CohereModel
from tailrace.wrappers.cohere.request import request_members
from tailrace.wrappers.tool_names import ToolNames

MENDED = ToolNames(CohereConverter.name_rule).sent(ODD)


@pytest.mark.parametrize(
    ("options", "members"),
    [
        (RequestOptions(), {}),
        (
            RequestOptions(tools=(WEATHER, NOW)),
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": ODD,
                            "description": "The weather of a city.",
                            "parameters": SCHEMA,
                        },
                    },
                    {"type": "function", "function": {"name": "now", "parameters": PLAIN}},
                ],
                "strict_tools": True,
            },
        ),
        (
            RequestOptions(tools=(NOW,)),
            {"tools": [{"type": "function", "function": {"name": "now", "parameters": PLAIN}}]},
        ),
        (RequestOptions(tool_choice=ToolChoice()), {"tool_choice": None}),
        (RequestOptions(tool_choice=ToolChoice(mode="none")), {"tool_choice": "NONE"}),
        (RequestOptions(tool_choice=ToolChoice(mode="required")), {"tool_choice": "REQUIRED"}),
        (RequestOptions(parallel_tool_calls=False), {}),
        (RequestOptions(output=OutputFormat()), {"response_format": {"type": "json_object"}}),
        (
            RequestOptions(output=OutputFormat(schema_=SCHEMA, name="place", strict=True)),
            {"response_format": {"type": "json_object", "json_schema": SCHEMA}},
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
            {
                "max_tokens": 5,
                "temperature": 0.0,
                "p": 0.5,
                "stop_sequences": ["END"],
                "seed": 0,
                "presence_penalty": 0.1,
                "frequency_penalty": 0.0,
            },
        ),
        (RequestOptions(reasoning_effort="none"), {"thinking": {"type": "disabled"}}),
        (RequestOptions(reasoning_effort="low"), {"thinking": {"type": "enabled"}}),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def answer_with(name: str) -> list[bytes]:
    function = {"name": name, "arguments": '{"city": "Bern"}'}
    call = {"id": "c1", "type": "function", "function": function}
    return [
        event("message-start", id="r1"),
        event("tool-call-start", index=0, delta={"message": {"tool_calls": call}}),
        event("tool-call-end", index=0),
        event("message-end", delta={"finish_reason": "TOOL_CALL"}),
    ]


OWN = {"tools": [{"type": "function", "function": {"name": "now"}}], "tool_choice": "REQUIRED"}


async def test_a_tool_is_offered_under_another_name_and_called_under_its_own() -> None:
    async with ScriptedUpstream(answer_with(MENDED)) as upstream:
        model = CohereModel("m", base_url=upstream.base_url, api_key="k", parameters=OWN)
        options = RequestOptions(
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="tool", name=ODD),
            output=OutputFormat(schema_=SCHEMA),
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    # The one that must be called is the only one.
    (tool,) = request["tools"]
    assert (tool["function"]["name"], tool["function"]["parameters"]) == (MENDED, SCHEMA)
    assert request["tool_choice"] == "REQUIRED"
    assert request["response_format"] == {"type": "json_object", "json_schema": SCHEMA}
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})


async def test_a_model_that_is_free_to_call_is_told_nothing() -> None:
    async with ScriptedUpstream(answer_with("now")) as upstream:
        model = CohereModel("m", base_url=upstream.base_url, api_key="k", parameters=OWN)
        await ask(model, RequestOptions(tools=(WEATHER,), tool_choice=ToolChoice()))
        request = (await upstream.received()).json
    assert [tool["function"]["name"] for tool in request["tools"]] == ["now", MENDED]
    assert "tool_choice" not in request
