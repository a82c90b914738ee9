"""What a request asks of a model of Ollama, on the wire and off it."""

import json
from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import Head, ScriptedUpstream, Step
from tailrace.wrappers import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
)
from tailrace.wrappers.ollama.model import OllamaModel
from tailrace.wrappers.ollama.request import request_members


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
                ]
            },
        ),
        (RequestOptions(tool_choice=ToolChoice(mode="required"), parallel_tool_calls=False), {}),
        (RequestOptions(tools=(NOW,), tool_choice=ToolChoice(mode="none")), {"tools": None}),
        (RequestOptions(output=OutputFormat()), {"format": "json"}),
        (RequestOptions(output=OutputFormat(schema_=SCHEMA, name="place", strict=True)), {"format": SCHEMA}),
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
                "options": {
                    "num_predict": 5,
                    "temperature": 0.0,
                    "top_p": 0.5,
                    "stop": ["END"],
                    "seed": 0,
                    "presence_penalty": 0.1,
                    "frequency_penalty": 0.0,
                }
            },
        ),
        (RequestOptions(reasoning_effort="none"), {"think": False}),
        (RequestOptions(reasoning_effort="minimal"), {"think": "low"}),
        (RequestOptions(reasoning_effort="medium"), {"think": "medium"}),
        (RequestOptions(reasoning_effort="max"), {"think": "high"}),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


def answer_with(name: str) -> list[Step]:
    calls = [{"function": {"name": name, "arguments": {"city": "Bern"}}}]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    line = json.dumps({"model": "m", "message": message, "done": True, "done_reason": "stop"})
    return [Head(headers={"content-type": "application/x-ndjson"}), line.encode() + b"\n"]


async def test_a_tool_is_offered_and_called_by_its_name() -> None:
    async with ScriptedUpstream(answer_with(ODD)) as upstream:
        parameters = {"options": {"num_ctx": 99, "seed": 1}}
        model = OllamaModel("m", base_url=upstream.base_url, parameters=parameters)
        options = RequestOptions(
            tools=(WEATHER,), tool_choice=ToolChoice(), output=OutputFormat(schema_=SCHEMA), seed=2
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    (tool,) = request["tools"]
    assert (tool["function"]["name"], tool["function"]["parameters"]) == (ODD, SCHEMA)
    assert request["format"] == SCHEMA
    assert request["options"] == {"num_ctx": 99, "seed": 2}
    assert "tool_choice" not in request
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})


async def test_no_tool_is_offered_where_none_is_to_be_called() -> None:
    async with ScriptedUpstream(answer_with("")) as upstream:
        parameters = {"tools": [{"type": "function", "function": {"name": "now"}}]}
        model = OllamaModel("m", base_url=upstream.base_url, parameters=parameters)
        await ask(model, RequestOptions(tools=(WEATHER,), tool_choice=ToolChoice(mode="none")))
        request = (await upstream.received()).json
    assert "tools" not in request
