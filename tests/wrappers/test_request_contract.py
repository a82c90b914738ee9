"""The request options of all providers: the members of a request for each option."""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest

from support.options import NOW, ODD, PLAIN, SCHEMA, WEATHER, ask
from support.provider_cases import CASES
from support.provider_rounds import CALLS
from support.upstream import ScriptedUpstream
from tailrace.wrappers import OutputFormat, RequestOptions, ToolChoice
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, ToolNames
from tailrace.wrappers.providers import FORMATS

OPTIONS: Mapping[str, RequestOptions] = {
    "nothing": RequestOptions(),
    "tools": RequestOptions(tools=(WEATHER, NOW)),
    "auto": RequestOptions(tool_choice=ToolChoice()),
    "no call": RequestOptions(tool_choice=ToolChoice(mode="none")),
    "a call": RequestOptions(tool_choice=ToolChoice(mode="required")),
    "one tool": RequestOptions(tool_choice=ToolChoice(mode="tool", name="now")),
    "one at a time": RequestOptions(parallel_tool_calls=False),
    "JSON": RequestOptions(output=OutputFormat()),
    "schema": RequestOptions(output=OutputFormat(schema_=SCHEMA)),
    "described schema": RequestOptions(
        output=OutputFormat(schema_={}, name="a place", description="Where.", strict=False)
    ),
    "sampling": RequestOptions(
        max_output_tokens=5,
        temperature=0.0,
        top_p=0.5,
        stop=("END",),
        seed=0,
        presence_penalty=0.1,
        frequency_penalty=0.0,
    ),
    "effort none": RequestOptions(reasoning_effort="none"),
    "effort minimal": RequestOptions(reasoning_effort="minimal"),
    "effort medium": RequestOptions(reasoning_effort="medium"),
    "effort max": RequestOptions(reasoning_effort="max"),
}

REFUSED = "needs a schema"
"""In place of members: the option is rejected, since the provider has no form for it."""

PLACE = LETTERS_DIGITS_DASHES.valid_name("a place")

# fmt: off
FUNCTION = {"name": ODD, "description": "The weather of a city.", "parameters": SCHEMA}
NOW_FUNCTION = {"type": "function", "function": {"name": "now", "parameters": PLAIN}}
FORM = {"name": "output", "schema": SCHEMA}
DESCRIBED: dict[str, Any] = {"name": PLACE, "schema": {}, "description": "Where.", "strict": False}
PENALTIES = {"presence_penalty": 0.1, "frequency_penalty": 0.0}

CHAT: dict[str, Any] = {
    "tools": {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}, NOW_FUNCTION]},
    "auto": {"tool_choice": "auto"},
    "no call": {"tool_choice": "none"},
    "a call": {"tool_choice": "required"},
    "one tool": {"tool_choice": {"type": "function", "function": {"name": "now"}}},
    "one at a time": {"parallel_tool_calls": False},
    "JSON": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": FORM}},
    "described schema": {"response_format": {"type": "json_schema", "json_schema": DESCRIBED}},
}

MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "openai": {
        **CHAT,
        "sampling": {"max_tokens": 5, "temperature": 0.0, "top_p": 0.5, "stop": ["END"], "seed": 0, **PENALTIES},
        **{f"effort {effort}": {"reasoning_effort": effort} for effort in ("none", "minimal", "medium", "max")},
    },
    "mistral": {
        **CHAT,
        "sampling": {
            "max_tokens": 5, "temperature": 0.0, "top_p": 0.5, "stop": ["END"], "random_seed": 0, **PENALTIES,
        },
        "effort none": {"reasoning_effort": "none"},
        **{f"effort {effort}": {"reasoning_effort": "high"} for effort in ("minimal", "medium", "max")},
    },
    "openai-responses": {
        "tools": {
            "tools": [
                {"type": "function", **FUNCTION, "strict": True},
                {"type": "function", "name": "now", "parameters": PLAIN, "strict": False},
            ]
        },
        "auto": {"tool_choice": "auto"},
        "no call": {"tool_choice": "none"},
        "a call": {"tool_choice": "required"},
        "one tool": {"tool_choice": {"type": "function", "name": "now"}},
        "one at a time": {"parallel_tool_calls": False},
        "JSON": {"text": {"format": {"type": "json_object"}}},
        "schema": {"text": {"format": {"type": "json_schema", **FORM}}},
        "described schema": {"text": {"format": {"type": "json_schema", **DESCRIBED}}},
        "sampling": {"max_output_tokens": 5, "temperature": 0.0, "top_p": 0.5},
        **{f"effort {effort}": {"reasoning": {"effort": effort}} for effort in ("none", "minimal", "medium", "max")},
    },
    "anthropic": {
        "tools": {
            "tools": [
                {"name": ODD, "description": "The weather of a city.", "input_schema": SCHEMA, "strict": True},
                {"name": "now", "input_schema": PLAIN},
            ]
        },
        "auto": {"tool_choice": {"type": "auto"}},
        "no call": {"tool_choice": {"type": "none"}},
        "a call": {"tool_choice": {"type": "any"}},
        "one tool": {"tool_choice": {"type": "tool", "name": "now"}},
        "one at a time": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "JSON": REFUSED,
        "schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "described schema": {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        "sampling": {"max_tokens": 5, "temperature": 0.0, "top_p": 0.5, "stop_sequences": ["END"]},
        "effort none": {"thinking": {"type": "disabled"}},
        "effort minimal": {"output_config": {"effort": "low"}},
        "effort medium": {"output_config": {"effort": "medium"}},
        "effort max": {"output_config": {"effort": "max"}},
    },
    "gemini": {
        "tools": {
            "tools": [
                {
                    "functionDeclarations": [
                        {"name": ODD, "description": "The weather of a city.", "parametersJsonSchema": SCHEMA},
                        {"name": "now", "description": "", "parametersJsonSchema": PLAIN},
                    ]
                }
            ]
        },
        "auto": {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
        "no call": {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
        "a call": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        "one tool": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["now"]}}},
        "JSON": {"generationConfig": {"responseMimeType": "application/json"}},
        "schema": {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}},
        "described schema": {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": {}}},
        "sampling": {
            "generationConfig": {
                "maxOutputTokens": 5, "temperature": 0.0, "topP": 0.5, "stopSequences": ["END"], "seed": 0,
                "presencePenalty": 0.1, "frequencyPenalty": 0.0,
            }
        },
        "effort none": {"generationConfig": {"thinkingConfig": {"thinkingLevel": "minimal"}}},
        **{
            f"effort {effort}": {"generationConfig": {"thinkingConfig": {"thinkingLevel": effort}}}
            for effort in ("minimal", "medium", "max")
        },
    },
    "ollama": {
        "tools": {"tools": [{"type": "function", "function": FUNCTION}, NOW_FUNCTION]},
        "no call": {"tools": None},
        "JSON": {"format": "json"},
        "schema": {"format": SCHEMA},
        "described schema": {"format": {}},
        "sampling": {
            "options": {
                "num_predict": 5, "temperature": 0.0, "top_p": 0.5, "stop": ["END"], "seed": 0, **PENALTIES,
            }
        },
        "effort none": {"think": False},
        "effort minimal": {"think": "low"},
        "effort medium": {"think": "medium"},
        "effort max": {"think": "high"},
    },
    "cohere": {
        "tools": {"tools": [{"type": "function", "function": FUNCTION}, NOW_FUNCTION], "strict_tools": True},
        "auto": {"tool_choice": None},
        "no call": {"tool_choice": "NONE"},
        "a call": {"tool_choice": "REQUIRED"},
        "one tool": {"tool_choice": "REQUIRED"},
        "JSON": {"response_format": {"type": "json_object"}},
        "schema": {"response_format": {"type": "json_object", "json_schema": SCHEMA}},
        "described schema": {"response_format": {"type": "json_object"}},
        "sampling": {
            "max_tokens": 5, "temperature": 0.0, "p": 0.5, "stop_sequences": ["END"], "seed": 0, **PENALTIES,
        },
        "effort none": {"thinking": {"type": "disabled"}},
        **{f"effort {effort}": {"thinking": {"type": "enabled"}} for effort in ("minimal", "medium", "max")},
    },
    "bedrock": {
        "tools": {
            "toolConfig": {
                "tools": [
                    {
                        "toolSpec": {
                            "name": ODD, "description": "The weather of a city.", "inputSchema": {"json": SCHEMA},
                            "strict": True,
                        }
                    },
                    {"toolSpec": {"name": "now", "inputSchema": {"json": PLAIN}}},
                ]
            }
        },
        "auto": {"toolConfig": {"toolChoice": {"auto": {}}}},
        "no call": {"toolConfig": None},
        "a call": {"toolConfig": {"toolChoice": {"any": {}}}},
        "one tool": {"toolConfig": {"toolChoice": {"tool": {"name": "now"}}}},
        "JSON": REFUSED,
        "schema": {
            "outputConfig": {
                "textFormat": {
                    "type": "json_schema",
                    "structure": {"jsonSchema": {"schema": json.dumps(SCHEMA), "name": "output"}},
                }
            }
        },
        "described schema": {
            "outputConfig": {
                "textFormat": {
                    "type": "json_schema",
                    "structure": {"jsonSchema": {"schema": "{}", "name": PLACE, "description": "Where."}},
                }
            }
        },
        "sampling": {
            "inferenceConfig": {"maxTokens": 5, "temperature": 0.0, "topP": 0.5, "stopSequences": ["END"]}
        },
    },
}
"""By format and option. An option without an entry has no equivalent in the provider's API and is not sent."""
# fmt: on


def test_every_format_has_a_table() -> None:
    assert MEMBERS.keys() == FORMATS.keys()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_an_option_stands_where_the_api_has_it(name: str, option: str) -> None:
    request = import_module(f"{FORMATS[name].module}.request")
    expected = MEMBERS[name].get(option, {})
    if expected is REFUSED:
        with pytest.raises(ValueError, match=REFUSED):
            request.request_members(OPTIONS[option])
    else:
        assert request.request_members(OPTIONS[option]) == expected


@pytest.mark.parametrize("name", FORMATS)
async def test_a_tool_is_sent_under_another_name_and_called_under_its_own(name: str) -> None:
    case = CASES[name]
    sent = ToolNames(case.converter.name_rule).request_name(ODD)
    options = RequestOptions(
        tools=(WEATHER,),
        tool_choice=ToolChoice(mode="tool", name=ODD),
        output=OutputFormat(schema_=SCHEMA),
    )
    async with ScriptedUpstream(CALLS[name]("call00001", sent, '{"city": "Bern"}')) as upstream:
        answer = await ask(case.model_at(upstream), options)
        request = (await upstream.received()).json
    expected = case.sent_options(sent)
    assert {member: request.get(member) for member in expected} == expected
    (called,) = answer.message().tool_calls
    assert (called.name, called.arguments) == (ODD, {"city": "Bern"})
