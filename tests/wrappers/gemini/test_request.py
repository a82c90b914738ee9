"""What a request asks of a model behind generateContent, on the wire and off it."""

from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import ScriptedUpstream, sse
from tailrace.wrappers import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
)
from tailrace.wrappers.gemini.history import GeminiConverter
from tailrace.wrappers.gemini.model import GeminiModel
from tailrace.wrappers.gemini.request import request_members
from tailrace.wrappers.tool_names import ToolNames

MENDED = ToolNames(GeminiConverter.name_rule).sent(ODD)


@pytest.mark.parametrize(
    ("options", "members"),
    [
        (RequestOptions(), {}),
        (
            RequestOptions(tools=(WEATHER, NOW)),
            {
                "tools": [
                    {
                        "functionDeclarations": [
                            {
                                "name": ODD,
                                "description": "The weather of a city.",
                                "parametersJsonSchema": SCHEMA,
                            },
                            {"name": "now", "description": "", "parametersJsonSchema": PLAIN},
                        ]
                    }
                ]
            },
        ),
        (
            RequestOptions(tool_choice=ToolChoice()),
            {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
        ),
        (
            RequestOptions(tool_choice=ToolChoice(mode="none")),
            {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
        ),
        (
            RequestOptions(tool_choice=ToolChoice(mode="required")),
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        ),
        (
            RequestOptions(tool_choice=ToolChoice(mode="tool", name="now")),
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["now"]}}},
        ),
        (RequestOptions(parallel_tool_calls=False), {}),
        (
            RequestOptions(output=OutputFormat()),
            {"generationConfig": {"responseMimeType": "application/json"}},
        ),
        (
            RequestOptions(output=OutputFormat(schema_=SCHEMA, name="place", strict=True)),
            {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}},
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
                "generationConfig": {
                    "maxOutputTokens": 5,
                    "temperature": 0.0,
                    "topP": 0.5,
                    "stopSequences": ["END"],
                    "seed": 0,
                    "presencePenalty": 0.1,
                    "frequencyPenalty": 0.0,
                }
            },
        ),
        (
            RequestOptions(reasoning_effort="low"),
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "low"}}},
        ),
        (
            RequestOptions(reasoning_effort="none"),
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "minimal"}}},
        ),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


@pytest.mark.parametrize(
    ("effort", "budget"), [("none", 0), ("medium", 8192), ("high", 24576), ("max", 24576)]
)
async def test_models_that_count_how_much_they_think_are_told_a_number(effort: str, budget: int) -> None:
    config = {"thinkingConfig": {"thinkingLevel": "low", "includeThoughts": True}}
    model = GeminiModel("gemini-2.5-flash", api_key="k", parameters={"generationConfig": config})
    asked = model._asked(RequestOptions(reasoning_effort=effort))  # pyright: ignore[reportPrivateUsage]
    assert asked["generationConfig"] == {
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": budget}
    }


async def test_a_tool_is_offered_under_another_name_and_called_under_its_own() -> None:
    call = {"functionCall": {"name": MENDED, "args": {"city": "Bern"}}}
    script = [sse({"candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}]})]
    async with ScriptedUpstream(script) as upstream:
        parameters: dict[str, Any] = {
            "tools": [{"googleSearch": {}}, {"function_declarations": [{"name": "now"}]}],
            "generation_config": {"temperature": 1, "response_schema": {"type": "STRING"}},
        }
        model = GeminiModel("gemini-x", base_url=upstream.base_url, api_key="k", parameters=parameters)
        options = RequestOptions(
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="tool", name=ODD),
            output=OutputFormat(schema_=SCHEMA),
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    search, tools = request["tools"]
    assert search == {"googleSearch": {}}
    now, weather = tools["function_declarations"]
    assert now == {"name": "now"}
    assert (weather["name"], weather["parametersJsonSchema"]) == (MENDED, SCHEMA)
    choice = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [MENDED]}}
    assert request["toolConfig"] == choice
    # Spelled as the operator spells it, with one schema.
    assert "generationConfig" not in request
    assert request["generation_config"] == {
        "temperature": 1,
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
    }
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})
