"""What a request asks of a model of Mistral, on the wire and off it."""

from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import ScriptedUpstream, openai_stream, sse
from tailrace.wrappers import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
)
from tailrace.wrappers.mistral.model import MistralModel
from tailrace.wrappers.mistral.request import request_members
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES

MENDED = LETTERS_DIGITS_DASHES.mend(ODD)


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
                            "strict": True,
                        },
                    },
                    {"type": "function", "function": {"name": "now", "parameters": PLAIN}},
                ]
            },
        ),
        (RequestOptions(tool_choice=ToolChoice()), {"tool_choice": "auto"}),
        (RequestOptions(tool_choice=ToolChoice(mode="none")), {"tool_choice": "none"}),
        (RequestOptions(tool_choice=ToolChoice(mode="required")), {"tool_choice": "required"}),
        (
            RequestOptions(tool_choice=ToolChoice(mode="tool", name="now")),
            {"tool_choice": {"type": "function", "function": {"name": "now"}}},
        ),
        (RequestOptions(parallel_tool_calls=False), {"parallel_tool_calls": False}),
        (RequestOptions(output=OutputFormat()), {"response_format": {"type": "json_object"}}),
        (
            RequestOptions(output=OutputFormat(schema_=SCHEMA)),
            {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}},
        ),
        (
            RequestOptions(
                output=OutputFormat(schema_={}, name="a place", description="Where.", strict=False)
            ),
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": LETTERS_DIGITS_DASHES.mend("a place"),
                        "schema": {},
                        "description": "Where.",
                        "strict": False,
                    },
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
            {
                "max_tokens": 5,
                "temperature": 0.0,
                "top_p": 0.5,
                "stop": ["END"],
                "random_seed": 0,
                "presence_penalty": 0.1,
                "frequency_penalty": 0.0,
            },
        ),
        (RequestOptions(reasoning_effort="low"), {"reasoning_effort": "high"}),
        (RequestOptions(reasoning_effort="none"), {"reasoning_effort": "none"}),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


async def test_a_tool_is_offered_under_another_name_and_called_under_its_own() -> None:
    function = {"name": MENDED, "arguments": '{"city": "Bern"}'}
    delta = {"tool_calls": [{"index": 0, "id": "aB3dE6gH9", "function": function}]}
    begin = sse({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    async with ScriptedUpstream([begin, *openai_stream([], finish="tool_calls")]) as upstream:
        model = MistralModel("m", base_url=upstream.base_url, api_key="k", parameters={"safe_prompt": True})
        options = RequestOptions(
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="tool", name=ODD),
            output=OutputFormat(schema_=SCHEMA),
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    (tool,) = request["tools"]
    assert (tool["function"]["name"], tool["function"]["parameters"]) == (MENDED, SCHEMA)
    assert request["tool_choice"] == {"type": "function", "function": {"name": MENDED}}
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA
    assert request["safe_prompt"] is True
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})
