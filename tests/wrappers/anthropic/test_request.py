"""What a request asks of a model behind the Messages API, on the wire and off it."""

from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.upstream import ScriptedUpstream, sse
from tailrace.wrappers import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
)
from tailrace.wrappers.anthropic.model import AnthropicModel
from tailrace.wrappers.anthropic.request import request_members
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
                        "name": ODD,
                        "description": "The weather of a city.",
                        "input_schema": SCHEMA,
                        "strict": True,
                    },
                    {"name": "now", "input_schema": PLAIN},
                ]
            },
        ),
        (RequestOptions(tool_choice=ToolChoice()), {"tool_choice": {"type": "auto"}}),
        (
            RequestOptions(tool_choice=ToolChoice(mode="none"), parallel_tool_calls=False),
            {"tool_choice": {"type": "none"}},
        ),
        (
            RequestOptions(tool_choice=ToolChoice(mode="required"), parallel_tool_calls=True),
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": False}},
        ),
        (
            RequestOptions(tool_choice=ToolChoice(mode="tool", name="now"), parallel_tool_calls=False),
            {"tool_choice": {"type": "tool", "name": "now", "disable_parallel_tool_use": True}},
        ),
        (
            RequestOptions(parallel_tool_calls=False),
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        (
            RequestOptions(output=OutputFormat(schema_=SCHEMA, name="place", strict=True)),
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
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
            {"max_tokens": 5, "temperature": 0.0, "top_p": 0.5, "stop_sequences": ["END"]},
        ),
        (RequestOptions(reasoning_effort="minimal"), {"output_config": {"effort": "low"}}),
        (RequestOptions(reasoning_effort="max"), {"output_config": {"effort": "max"}}),
        (RequestOptions(reasoning_effort="none"), {"thinking": {"type": "disabled"}}),
    ],
)
def test_what_is_asked_stands_where_the_api_has_it(options: RequestOptions, members: dict[str, Any]) -> None:
    assert request_members(options) == members


def test_json_without_a_schema_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="needs a schema"):
        request_members(RequestOptions(output=OutputFormat()))


def answer_with(name: str) -> list[bytes]:
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": dict[str, Any]()}
    arguments = {"type": "input_json_delta", "partial_json": '{"city": "Bern"}'}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": list[Any]()}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": arguments},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    return [sse(*events)]


async def test_a_tool_is_offered_under_another_name_and_called_under_its_own() -> None:
    async with ScriptedUpstream(answer_with(MENDED)) as upstream:
        parameters = {
            "tools": [{"type": "web_search_20250305", "name": "web_search"}],
            "output_config": {"effort": "low"},
        }
        model = AnthropicModel("claude", base_url=upstream.base_url, api_key="k", parameters=parameters)
        options = RequestOptions(
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="tool", name=ODD),
            output=OutputFormat(schema_=SCHEMA),
        )
        answer = await ask(model, options)
        request = (await upstream.received()).json
    assert [tool["name"] for tool in request["tools"]] == ["web_search", MENDED]
    assert request["tools"][1]["input_schema"] == SCHEMA
    assert request["tool_choice"] == {"type": "tool", "name": MENDED}
    assert request["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}
    assert request["max_tokens"] == 8192
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": {"type": "any"}}, {"type": "any", "disable_parallel_tool_use": True}),
        ({"tool_choice": {"type": "none"}}, {"type": "none"}),
    ],
)
async def test_what_the_operator_chose_stays_when_only_one_at_a_time_is_asked_for(
    given: dict[str, Any], sent: dict[str, Any]
) -> None:
    async with ScriptedUpstream(answer_with("now")) as upstream:
        parameters = {**given, "max_tokens": 9}
        model = AnthropicModel("claude", base_url=upstream.base_url, api_key="k", parameters=parameters)
        await ask(model, RequestOptions(tools=(NOW,), parallel_tool_calls=False, max_output_tokens=7))
        request = (await upstream.received()).json
    assert request["tool_choice"] == sent
    assert request["max_tokens"] == 7
