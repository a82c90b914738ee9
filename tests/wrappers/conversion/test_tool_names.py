"""Tool names that a provider rejects are replaced in the request and restored in the response."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import strategies
from support.chat import decode, sse
from support.upstream import Cut, ScriptedUpstream, openai_stream
from support.upstream import sse as upstream_sse
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ChunkWrapper,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    History,
    Message,
    Role,
    UpstreamError,
)
from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, NAMELESS, NameRule, ToolNames
from tailrace.wrappers.openai import ChatCompletionsDecoder
from tailrace.wrappers.openai.model import ChatCompletionsModel
from tailrace.wrappers.providers import FORMATS

RULES: dict[str, NameRule | None] = {name: FORMATS[name].create_converter().name_rule for name in FORMATS}
ODD = "weather.get/now"
VALID = LETTERS_DIGITS_DASHES.valid_name(ODD)


def tool_call(name: str, call_id: str = "a", kind: str = "function") -> ContentPartToolCall:
    return ContentPartToolCall(id=call_id, name=name, kind=kind)


def answered(name: str, call_id: str = "a") -> ContentPartToolResult:
    return ContentPartToolResult(id=call_id, name=name, output="1")


def conversation(*parts: Any) -> History:
    question = Message(role=Role.USER, content=(ContentPartText(text="?"),))
    return History(conversation=(question, Message(role=Role.MODEL, content=parts)))


def fragment(
    name: str | None, index: int | None = 0, call_id: str | None = None, arguments: str | None = None
) -> Any:
    call: dict[str, Any] = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


def names_for(*names: str) -> ToolNames:
    tools = ToolNames(LETTERS_DIGITS_DASHES)
    for name in names:
        tools.request_name(name)
    return tools


def restored(tools: ToolNames, *chunks: Any) -> list[tuple[str, str]]:
    """Names and arguments of the calls in a response, with the original tool names."""
    wrappers: list[ChunkWrapper[Any]] = []
    decoder = ChatCompletionsDecoder()
    for chunk in chunks:
        wrappers += tools.restore_names(decoder.feed(sse(chunk)))
    wrappers += tools.restore_names(decoder.close())
    wrappers += tools.close()
    return [
        (call.name, call.arguments_text or str(call.arguments))
        for call in assemble_message(wrappers).tool_calls
    ]


# --- the rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FORMATS if RULES[name] is not None])
@given(tool=strategies.texts | st.text(min_size=50, max_size=200))
def test_a_repaired_name_fits_and_is_stable(name: str, tool: str) -> None:
    rule = RULES[name]
    assert rule is not None
    repaired = rule.valid_name(tool)
    assert rule.fits(repaired)
    assert rule.valid_name(repaired) == repaired
    assert (repaired == tool) == rule.fits(tool)


@given(st.lists(st.text(min_size=1, max_size=90), max_size=8, unique=True))
def test_different_tools_stay_different_and_come_back(names: list[str]) -> None:
    tools = ToolNames(LETTERS_DIGITS_DASHES)
    sent = [tools.request_name(name) for name in names]
    assert len(set(sent)) == len(names)
    chunks = [fragment(each, index, f"c{index}", "{}") for index, each in enumerate(sent)]
    assert restored(tools, *chunks) == [(name, "{}") for name in names]


@pytest.mark.parametrize(
    ("provider", "name", "fits"),
    [
        ("openai", "get_weather-2", True),
        ("openai", "weather.get", False),
        ("openai", "x" * 64, True),
        ("openai", "x" * 65, False),
        ("openai-responses", "weather get", False),
        ("anthropic", "weather.get", False),
        ("anthropic", "2nd", True),
        ("gemini", "weather.get", True),
        ("gemini", "2nd", False),
        ("gemini", "wetter:heute", False),
        ("bedrock", "weather.get", False),
        ("mistral", "naïve", False),
        ("cohere", "get-weather", False),
        ("cohere", "_2nd", True),
    ],
)
def test_what_each_provider_takes(provider: str, name: str, fits: bool) -> None:
    rule = RULES[provider]
    assert rule is not None
    assert rule.fits(name) == fits


def test_ollama_takes_any_name() -> None:
    assert RULES["ollama"] is None
    history = conversation(tool_call(ODD))
    assert ToolNames(None).replace_in_history(history) is history
    assert ToolNames(None).replace_in_parameters({"tools": [{"name": ODD}]}) == {"tools": [{"name": ODD}]}


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_without_a_name_gets_one(name: str) -> None:
    tools = ToolNames(RULES[name])
    assert tools.request_name("") == NAMELESS
    history = conversation(tool_call("")).with_message(Message(role=Role.TOOL, content=(answered("", "a"),)))
    assert tools.replace_in_history(history).conversation[1].tool_calls[0].name == NAMELESS
    assert tools.replace_in_parameters({"tools": [{"name": ""}]}) == {"tools": [{"name": NAMELESS}]}


# --- requests ---------------------------------------------------------------------------------------------------


def test_a_history_gets_the_same_names_everywhere() -> None:
    history = conversation(ContentPartReasoning(text="hm"), tool_call(ODD), tool_call("fine", "b"))
    results = Message(role=Role.TOOL, content=(answered(ODD), answered("fine", "b"), answered("", "c")))
    repaired = names_for().replace_in_history(history.with_message(results))
    assert [call.name for call in repaired.conversation[1].tool_calls] == [VALID, "fine"]
    assert [result.name for result in repaired.conversation[2].tool_results] == [VALID, "fine", ""]
    assert repaired.conversation[0] is history.conversation[0]


def test_a_history_that_fits_is_left_alone() -> None:
    history = conversation(tool_call("fine"), tool_call("fine_too", "b"))
    assert names_for().replace_in_history(history) is history


def test_tools_that_a_provider_ran_keep_their_names() -> None:
    history = conversation(tool_call("code execution", kind="server"), answered("code execution"))
    assert names_for().replace_in_history(history) is history


# The parameters of a request in each format, before and after replacement.
PARAMETERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chat": (
        {
            "tools": [
                {"type": "function", "function": {"name": ODD, "parameters": {"properties": {"name": {}}}}}
            ]
        },
        {
            "tools": [
                {"type": "function", "function": {"name": VALID, "parameters": {"properties": {"name": {}}}}}
            ]
        },
    ),
    "responses": (
        {
            "tools": [{"type": "function", "name": ODD}, {"type": "web_search"}],
            "tool_choice": {"type": "function", "name": ODD},
        },
        {
            "tools": [{"type": "function", "name": VALID}, {"type": "web_search"}],
            "tool_choice": {"type": "function", "name": VALID},
        },
    ),
    "anthropic": (
        {
            "tools": [{"name": ODD, "input_schema": {"name": "a b"}}],
            "tool_choice": {"type": "tool", "name": ODD},
        },
        {
            "tools": [{"name": VALID, "input_schema": {"name": "a b"}}],
            "tool_choice": {"type": "tool", "name": VALID},
        },
    ),
    "gemini": (
        {
            "tools": [{"functionDeclarations": [{"name": ODD}]}, {"googleSearch": {}}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [ODD, "fine"]}},
        },
        {
            "tools": [{"functionDeclarations": [{"name": VALID}]}, {"googleSearch": {}}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [VALID, "fine"]}},
        },
    ),
    "bedrock": (
        {"toolConfig": {"tools": [{"toolSpec": {"name": ODD}}], "toolChoice": {"tool": {"name": ODD}}}},
        {"toolConfig": {"tools": [{"toolSpec": {"name": VALID}}], "toolChoice": {"tool": {"name": VALID}}}},
    ),
    "no tools": (
        {"tool_choice": "auto", "name": ODD, "temperature": 1},
        {"tool_choice": "auto", "name": ODD, "temperature": 1},
    ),
}


@pytest.mark.parametrize("form", PARAMETERS)
def test_tools_are_sent_under_their_repaired_names(form: str) -> None:
    parameters, expected = PARAMETERS[form]
    before = str(parameters)
    assert names_for().replace_in_parameters(parameters) == expected
    assert str(parameters) == before


# --- responses --------------------------------------------------------------------------------------------------


def test_a_call_comes_back_under_the_tools_own_name() -> None:
    tools = names_for(ODD)
    chunks = [fragment(VALID, 0, "a", ""), fragment(None, 0, None, '{"a"'), fragment(None, 0, None, ": 1}")]
    assert restored(tools, *chunks) == [(ODD, "{'a': 1}")]
    assert restored(tools, *(fragment(VALID, 0, "a", each) for each in ('{"a"', ": 1}"))) == [
        (ODD, "{'a': 1}")
    ]


@given(st.lists(st.integers(1, len(VALID) - 1), max_size=4), st.booleans())
def test_a_name_may_come_in_pieces(cuts: list[int], growing: bool) -> None:
    ends = [*sorted(set(cuts)), len(VALID)]
    starts = [0] * len(ends) if growing else [0, *ends]
    pieces = [VALID[start:end] for start, end in zip(starts, ends, strict=False)]
    chunks = [fragment(piece, 0, "a" if not at else None) for at, piece in enumerate(pieces)]
    chunks.append(fragment(None, 0, None, "{}"))
    assert restored(names_for(ODD), *chunks) == [(ODD, "{}")]


def test_names_that_begin_alike_are_not_held_for_ever() -> None:
    chunks = [
        fragment("weather", 0, "a"),
        fragment(None, 0, None, "{}"),
        fragment("weather_gone", 1, "b", "{}"),
    ]
    assert restored(names_for(ODD), *chunks) == [("weather", "{}"), ("weather_gone", "{}")]


def test_calls_without_an_index_and_of_several_tools() -> None:
    other = "weather.get/later"
    chunks = [
        fragment(VALID, None, "a", "{}"),
        fragment(LETTERS_DIGITS_DASHES.valid_name(other), None, "b", "{}"),
    ]
    assert restored(names_for(ODD, other), *chunks) == [(ODD, "{}"), (other, "{}")]


def test_other_fields_of_a_chunk_are_unchanged() -> None:
    chunk = fragment(VALID, 0, "a", "{}")
    chunk["choices"][0]["delta"] |= {"content": "hi", "reasoning": "hm", "fresh": 1}
    chunk["choices"][0]["finish_reason"] = "tool_calls"
    chunk["usage"] = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    (before,) = decode(sse(chunk))
    (after,) = names_for(ODD).restore_names([before])
    assert after.get_tool_calls()[0].name == ODD
    assert (after.get_text(), after.get_reasoning()) == ("hi", "hm")
    assert (after.raw, after.choice, after.details) == (before.raw, before.choice, before.details)
    assert after.get_finish_message() == before.get_finish_message()
    assert after.get_usage() == before.get_usage()
    assert after.reasoning_origin == {"openai": {"field": "reasoning"}}


def test_an_answer_to_names_that_fit_is_the_very_same() -> None:
    wrappers = decode(sse(fragment("fine", 0, "a", "{}")))
    assert names_for("fine").restore_names(wrappers) is wrappers


async def test_requests_and_responses_use_names_that_the_model_accepts() -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": ODD, "parameters": {}}}]
    script = [upstream_sse(fragment(VALID, 0, "c", "{}")), *openai_stream([], finish="tool_calls")]
    async with ScriptedUpstream(script, script) as upstream:
        model = ChatCompletionsModel(
            "m", base_url=upstream.base_url, api_key="k", parameters={"tools": tools}
        )
        history = conversation(tool_call("files/read"))
        results = Message(role=Role.TOOL, content=(answered("files/read"),))
        for _ in range(2):
            answer = Accumulator()
            async with model.stream(history.with_message(results)) as batches:
                async for batch in batches:
                    for chunk in batch:
                        answer.add(chunk)
            answer.close()
            request = (await upstream.received()).json
            assert request["tools"][0]["function"]["name"] == VALID
            (call,) = request["messages"][1]["tool_calls"]
            assert call["function"]["name"] == LETTERS_DIGITS_DASHES.valid_name("files/read")
            assert [each.name for each in answer.message().tool_calls] == [ODD]
            assert answer.choices[0].finish_reason is FinishReason.TOOL_CALLS
        await model.aclose()


# --- incomplete names -------------------------------------------------------------------------------------------

FINISH: Any = {
    "id": "x",
    "choices": [{"index": 0, "delta": dict[str, Any](), "finish_reason": "tool_calls"}],
}


@pytest.mark.parametrize("arguments", ["", None])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("index", [0, None])
def test_a_name_that_may_go_on_is_given_in_the_end(
    arguments: str | None, ends: bool, index: int | None
) -> None:
    chunks = [fragment("weather", index, "a", arguments), *([FINISH] if ends else [])]
    assert restored(names_for(ODD, "weather"), *chunks) == [("weather", "{}")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (fragment("weather", 0, "a", ""), fragment("weather", 1, "b", "")),
        (fragment("weather", 0, "a", ""), fragment("weather", 0, "b", "")),
        (fragment("weather", None, "a", ""), fragment("weather", None, "b", "")),
        (fragment("weather", None, None, ""), fragment("weather", None, None, "")),
        (fragment("weather", None, "a", ""), fragment("weather", 0, "b", "")),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_two_calls_keep_both_names(first: Any, second: Any, apart: bool) -> None:
    if not apart:
        calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in (first, second)]
        first = {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": calls}}]}
    chunks = [first, *([second] if apart else []), FINISH]
    assert restored(names_for(ODD, "weather"), *chunks) == [("weather", "{}")] * 2


def test_a_name_is_given_with_the_finish_of_its_own_chunk() -> None:
    chunk = fragment("weather", 0, "a", "")
    chunk["choices"][0]["finish_reason"] = "tool_calls"
    (given,) = names_for(ODD).restore_names(decode(sse(chunk)))
    assert [call.name for call in given.get_tool_calls()] == ["weather"]


def test_a_call_that_waits_for_its_name_stays_before_what_follows() -> None:
    tools = names_for(ODD)
    text_chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "so"}}]}
    chunks = tools.restore_names(decode(sse(fragment("weather", 0, "a", ""), text_chunk)))
    message = assemble_message([*chunks, *tools.close()])
    assert [part.type for part in message.content] == ["tool_call", "text"]
    assert message.tool_calls[0].name == "weather"


def test_each_choice_holds_its_own_name() -> None:
    tools = names_for(ODD)
    begun = [fragment("weather", 0, f"c{number}", "") for number in range(2)]
    begun[1]["choices"][0]["index"] = 1
    chunks = [*tools.restore_names(decode(sse(*begun))), *tools.close()]
    for number in range(2):
        (call,) = assemble_message(chunks, choice=number).tool_calls
        assert (call.id, call.name) == (f"c{number}", "weather")
    assert tools.close() == []


def test_an_error_gives_what_is_held_first() -> None:
    tools = names_for(ODD)
    chunks = tools.restore_names(decode(sse(fragment("weather", 0, "a", ""), {"error": {"message": "no"}})))
    assert [call.name for chunk in chunks for call in chunk.get_tool_calls()] == ["weather"]
    assert chunks[-1].details is not None
    assert chunks[-1].details.error is not None
    assert tools.close() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "wea", "weather", "ther", VALID, "fine"]),
            st.sampled_from([None, 0, 1]),
            st.sampled_from([None, "a", "b"]),
            st.sampled_from(["", "{}"]),
        ),
        max_size=8,
    )
)
def test_nothing_is_lost_whatever_the_fragments_are(pieces: list[tuple[str, Any, Any, str]]) -> None:
    chunks = [fragment(name, index, call_id, arguments) for name, index, call_id, arguments in pieces]
    plain = assemble_message(decode(sse(*chunks))).tool_calls
    tools = names_for(ODD)
    given = assemble_message([*tools.restore_names(decode(sse(*chunks))), *tools.close()]).tool_calls
    assert [(call.id, call.arguments, call.arguments_text) for call in given] == [
        (call.id, call.arguments, call.arguments_text) for call in plain
    ]
    assert [bool(call.name) for call in given] == [bool(call.name) for call in plain]


async def test_a_stream_that_breaks_off_gives_the_name_that_it_held() -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": ODD, "parameters": {}}}]
    script = [upstream_sse(fragment("weather", 0, "c", "")), Cut()]
    async with ScriptedUpstream(script) as upstream:
        model = ChatCompletionsModel(
            "m", base_url=upstream.base_url, api_key="k", parameters={"tools": tools}
        )
        answer = Accumulator()

        async def listen() -> None:
            async with model.stream(conversation()) as batches:
                async for batch in batches:
                    for chunk in batch:
                        answer.add(chunk)

        with pytest.raises(UpstreamError):
            await listen()
        await model.aclose()
    assert [call.name for call in answer.message().tool_calls] == ["weather"]


def test_a_long_name_is_changed_in_the_time_of_a_short_one() -> None:
    began = time.thread_time()
    names = {LETTERS_DIGITS_DASHES.valid_name(each * 2_000_000) for each in ("a.", "b.", "a/", "aä")}
    assert len(names) == 4
    assert all(len(name) <= 64 for name in names)
    assert time.thread_time() - began < 0.3  # 0.2 s for each one without incremental restoring
