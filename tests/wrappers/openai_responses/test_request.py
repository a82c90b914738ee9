"""What a request asks of a model behind the Responses API, on the wire and off it."""

from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import ScriptedUpstream, sse
from tailrace.wrappers import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
)
from tailrace.wrappers.openai_responses.model import ResponsesModel
from tailrace.wrappers.openai_responses.request import request_members
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
                        "name": ODD,
                        "description": "The weather of a city.",
                        "parameters": SCHEMA,
                        "strict": True,
                    },
                    {"type": "function", "name": "now", "parameters": PLAIN, "strict": False},
                ]
            },
        ),
        (RequestOptions(tool_choice=ToolChoice()), {"tool_choice": "auto"}),
        (RequestOptions(tool_choice=ToolChoice(mode="none")), {"tool_choice": "none"}),
        (RequestOptions(tool_choice=ToolChoice(mode="required")), {"tool_choice": "required"}),
        (
            RequestOptions(tool_choice=ToolChoice(mode="tool", name="now")),
            {"tool_choice": {"type": "function", "name": "now"}},
        ),
        (RequestOptions(parallel_tool_calls=False), {"parallel_tool_calls": False}),
        (RequestOptions(output=OutputFormat()), {"text": {"format": {"type": "json_object"}}}),
        (
            RequestOptions(output=OutputFormat(schema_=SCHEMA)),
            {"text": {"format": {"type": "json_schema", "name": "output", "schema": SCHEMA}}},
        ),
        (
            RequestOptions(
                output=OutputFormat(schema_={}, name="a place", description="Where.", strict=False)
            ),
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": LETTERS_DIGITS_DASHES.mend("a place"),
                        "schema": {},
                        "description": "Where.",
                        "strict": False,
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
            {"max_output_tokens": 5, "temperature": 0.0, "top_p": 0.5},
        ),
        (RequestOptions(reasoning_effort="low"), {"reasoning": {"effort": "low"}}),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


async def test_a_tool_is_offered_under_another_name_and_called_under_its_own() -> None:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": MENDED,
        "arguments": '{"city": "Bern"}',
    }
    script = [
        sse({"type": "response.output_item.done", "output_index": 0, "item": item}),
        sse({"type": "response.completed", "response": {"id": "r", "status": "completed"}}),
    ]
    async with ScriptedUpstream(script) as upstream:
        parameters = {
            "text": {"verbosity": "low"},
            "reasoning": {"summary": "auto"},
            "tools": [{"type": "web_search"}],
        }
        model = ResponsesModel("m", base_url=upstream.base_url, api_key="k", parameters=parameters)
        options = RequestOptions(
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="tool", name=ODD),
            output=OutputFormat(schema_=SCHEMA),
            reasoning_effort="low",
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    search, tool = request["tools"]
    assert search == {"type": "web_search"}
    assert (tool["name"], tool["parameters"]) == (MENDED, SCHEMA)
    assert request["tool_choice"] == {"type": "function", "name": MENDED}
    assert request["text"]["format"]["schema"] == SCHEMA
    assert request["text"]["verbosity"] == "low"
    assert request["reasoning"] == {"summary": "auto", "effort": "low"}
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})
