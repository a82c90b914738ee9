"""What a request asks of a model behind Chat Completions, on the wire and off it."""

from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import ScriptedUpstream, openai_stream, sse
from tailrace.wrappers import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
)
from tailrace.wrappers.openai.model import ChatCompletionsModel
from tailrace.wrappers.openai.request import request_members
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
                "seed": 0,
                "presence_penalty": 0.1,
                "frequency_penalty": 0.0,
            },
        ),
        (RequestOptions(reasoning_effort="low"), {"reasoning_effort": "low"}),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


def call(name: str) -> bytes:
    function = {"name": name, "arguments": '{"city": "Bern"}'}
    fragment = {"index": 0, "id": "c1", "type": "function", "function": function}
    return sse({"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [fragment]}}]})


async def test_a_tool_is_offered_under_another_name_and_called_under_its_own() -> None:
    script = [call(MENDED), *openai_stream([], finish="tool_calls")]
    async with ScriptedUpstream(script) as upstream:
        model = ChatCompletionsModel(
            "m",
            base_url=upstream.base_url,
            api_key="k",
            parameters={"tools": [{"type": "function", "function": {"name": "now"}}], "temperature": 1},
        )
        options = RequestOptions(
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="tool", name=ODD),
            output=OutputFormat(schema_=SCHEMA),
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    assert [tool["function"]["name"] for tool in request["tools"]] == ["now", MENDED]
    assert request["tools"][1]["function"]["parameters"] == SCHEMA
    assert request["tool_choice"] == {"type": "function", "function": {"name": MENDED}}
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA
    assert request["temperature"] == 1
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})


@pytest.mark.parametrize(
    ("base_url", "parameters", "member"),
    [
        ("https://api.openai.com/v1", {}, "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", {}, "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1/", {}, "max_completion_tokens"),
        ("https://notapi.openai.com.example.org/v1", {}, "max_tokens"),
        ("http://127.0.0.1:8080/v1", {}, "max_tokens"),
        ("http://127.0.0.1:8080/v1", {"max_completion_tokens": 1}, "max_completion_tokens"),
        ("https://api.openai.com/v1", {"max_tokens": 1}, "max_tokens"),
    ],
)
async def test_the_limit_is_called_what_the_server_calls_it(
    base_url: str, parameters: dict[str, Any], member: str
) -> None:
    model = ChatCompletionsModel("m", base_url=base_url, api_key="k", parameters=parameters)
    asked = model._asked(RequestOptions(max_output_tokens=7))  # pyright: ignore[reportPrivateUsage]
    await model.aclose()
    assert asked == {member: 7}
