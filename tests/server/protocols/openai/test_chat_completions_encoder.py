"""Chat Completions, called with OpenAI's own client."""

import json
from typing import Any

import anyio
import openai
import pytest
from openai.lib.streaming.chat import ContentDeltaEvent, FunctionToolCallArgumentsDoneEvent
from pydantic import BaseModel

from support.openai_api import MODEL, STRICT_WEATHER, WEATHER, assistant, content_of, facade_over, tool, user
from support.rounds import USAGE, answer, sent
from support.rpc import Rpc
from support.upstream import ScriptedUpstream, Wait

HELLO = user("Hello?")


async def test_a_whole_answer() -> None:
    async with (
        ScriptedUpstream(answer("Hel", "lo!", reasoning="hmm")) as upstream,
        facade_over(upstream) as facade,
    ):
        completion, conversation, task_id = await facade.chat_named(
            {"role": "system", "content": "Be kind."}, HELLO
        )
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello!", "stop")
    assert choice.message.model_extra == {"reasoning_content": "hmm"}
    assert completion.usage is not None
    assert completion.usage.model_dump(exclude_none=True) == USAGE
    assert (completion.id, completion.model) == (f"chatcmpl-{task_id}-1", MODEL)
    assert conversation
    assert sent(upstream.requests[0]) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello?"},
    ]


async def test_an_answer_in_pieces() -> None:
    async with (
        ScriptedUpstream(answer("Hel", "lo!", reasoning="hmm")) as upstream,
        facade_over(upstream) as facade,
    ):
        chunks = await facade.chunks(HELLO, stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    assert content_of(chunks) == ["Hel", "lo!"]
    extras = [chunk.choices[0].delta.model_extra for chunk in chunks if chunk.choices]
    assert [extra["reasoning_content"] for extra in extras if extra] == ["hmm"]
    *_, last, usage = chunks
    assert last.choices[0].finish_reason == "stop"
    assert not usage.choices
    assert usage.usage is not None
    assert usage.usage.model_dump(exclude_none=True) == USAGE


async def test_usage_is_sent_only_if_it_is_requested() -> None:
    async with ScriptedUpstream(answer("Hi")) as upstream, facade_over(upstream) as facade:
        chunks = await facade.chunks(HELLO)
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_all_requested_options_reach_the_model() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    options: dict[str, Any] = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "it", "schema": schema, "strict": True},
        },
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "reasoning_effort": "low",
    }
    async with ScriptedUpstream(answer('{"a": 1}')) as upstream, facade_over(upstream) as facade:
        await facade.chat(HELLO, max_tokens=9, logit_bias={"1": 2}, extra_body={"unknown": 1}, **options)
        request = upstream.requests[0].json
    assert {name: request[name] for name in options} == options
    assert request["max_tokens"] == 9


async def test_instructions_alone_become_a_user_message() -> None:
    async with ScriptedUpstream(answer("Hi")) as upstream, facade_over(upstream) as facade:
        await facade.chat({"role": "system", "content": "Say hi."})
    assert sent(upstream.requests[0]) == [{"role": "user", "content": "Say hi."}]


# --- tools ------------------------------------------------------------------------------------------------------


PARIS = ("c1", "get_weather", {"city": "Paris"})
ROME = ("c2", "get_weather", {"city": "Rome"})
OSLO = ("c3", "get_weather", {"city": "Oslo"})


async def test_three_rounds_of_the_clients_tools_are_one_task() -> None:
    script = answer("Let me see.", calls=[PARIS, ROME]), answer(calls=[OSLO]), answer("Sunny.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        messages: list[Any] = [user("Weather?")]
        tasks: set[str] = set()
        for _ in range(2):
            completion, _, task_id = await facade.chat_named(*messages, tools=[WEATHER])
            [choice] = completion.choices
            assert choice.finish_reason == "tool_calls"
            messages.append(assistant(completion))
            messages += [tool(call.id, "sunny") for call in choice.message.tool_calls or ()]
            tasks.add(task_id)
        completion, _, task_id = await facade.chat_named(*messages, tools=[WEATHER])
        async with Rpc(facade.url) as rpc:
            task = await rpc.result("GetTask", {"id": task_id})
    assert completion.choices[0].message.content == "Sunny."
    assert tasks == {task_id}
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert [message["role"] for message in sent(upstream.requests[-1])] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'


async def test_three_rounds_through_the_clients_stream_helper() -> None:
    script = answer(calls=[PARIS, ROME]), answer("One more.", calls=[OSLO]), answer("Sun", "ny.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        messages: list[Any] = [user("Weather?")]
        done: list[tuple[str, str]] = []
        text: list[str] = []
        for _ in range(3):
            async with facade.client.chat.completions.stream(
                model=MODEL, messages=messages, tools=[STRICT_WEATHER]
            ) as stream:
                async for event in stream:
                    if isinstance(event, FunctionToolCallArgumentsDoneEvent):
                        done.append((event.name, event.arguments))
                    elif isinstance(event, ContentDeltaEvent):
                        text.append(event.delta)
                completion = await stream.get_final_completion()
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed": True}))
            messages += [tool(call.id, "sunny") for call in message.tool_calls or ()]
    assert [name for name, _ in done] == ["get_weather"] * 3
    assert [json.loads(arguments)["city"] for _, arguments in done] == ["Paris", "Rome", "Oslo"]
    assert list(filter(None, text)) == ["One more.", "Sun", "ny."]


async def test_arguments_come_as_the_model_writes_them() -> None:
    hold = anyio.Event()
    steps = answer(calls=[PARIS])
    script = [*steps[:3], Wait(hold), *steps[3:]]
    arguments: list[str] = []

    def seen(chunks: Any) -> None:
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        arguments[:] = [call.function.arguments for call in calls]
        if "".join(arguments) == '{"city":':
            hold.set()

    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        chunks = await facade.chunks(user("Weather?"), seen=seen, tools=[WEATHER])
    assert "".join(arguments) == '{"city": "Paris"}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def get_time(zone: str) -> str:
    """The time in a zone."""
    return f"noon in {zone}"


TIME = ("s1", "get_time", {"zone": "UTC"})


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_of_the_server_are_none_of_the_clients_business(streamed: bool) -> None:
    script = answer("Looking.", calls=[TIME]), answer("It is ", "noon.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream, tools=[get_time]) as facade:
        if streamed:
            chunks = await facade.chunks(user("Time?"), tools=[WEATHER])
            assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
            text, finish = "".join(content_of(chunks)), chunks[-1].choices[0].finish_reason
        else:
            completion = await facade.chat(user("Time?"), tools=[WEATHER])
            [choice] = completion.choices
            assert not choice.message.tool_calls
            assert completion.usage is not None
            assert completion.usage.total_tokens == 30
            text, finish = choice.message.content, choice.finish_reason
    assert (text, finish) == ("Looking.\nIt is noon.", "stop")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_round_with_tools_of_both_sides(streamed: bool) -> None:
    script = answer("Both.", calls=[TIME, PARIS]), answer("Done.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream, tools=[get_time]) as facade:
        messages: list[Any] = [user("Time and weather?")]
        if streamed:
            async with facade.client.chat.completions.stream(
                model=MODEL, messages=messages, tools=[STRICT_WEATHER]
            ) as stream:
                completion: Any = await stream.get_final_completion()
        else:
            completion = await facade.chat(*messages, tools=[WEATHER])
        message = completion.choices[0].message
        assert [call.id for call in message.tool_calls or ()] == ["c1"]
        messages += [
            {
                "role": "assistant",
                "content": message.content,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                    for call in message.tool_calls or ()
                ],
            },
            tool("c1", "sunny"),
        ]
        final = await facade.chat(*messages, tools=[WEATHER])
    assert final.choices[0].message.content == "Done."
    roles = [message["role"] for message in sent(upstream.requests[1])]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert [message.get("tool_call_id") for message in sent(upstream.requests[1])[2:]] == ["s1", "c1"]


async def test_facts_of_an_earlier_request_do_not_linger() -> None:
    script = answer(calls=[PARIS]), answer("Sunny.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        first = await facade.chat(user("Weather?"), tools=[WEATHER], temperature=0.5)
        await facade.chat(user("Weather?"), assistant(first), tool("c1", "sunny"))
    assert {"tools", "temperature"} & upstream.requests[1].json.keys() == set()


# --- structured output ------------------------------------------------------------------------------------------


class River(BaseModel):
    name: str
    length: int


async def test_structured_output_is_parsed() -> None:
    async with (
        ScriptedUpstream(answer('{"name": "Rhine",', ' "length": 1233}')) as upstream,
        facade_over(upstream) as facade,
    ):
        parsed = await facade.client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "A river?"}], response_format=River
        )
        async with facade.client.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": "A river?"}], response_format=River
        ) as stream:
            streamed = await stream.get_final_completion()
    river = River(name="Rhine", length=1233)
    assert parsed.choices[0].message.parsed == river
    assert streamed.choices[0].message.parsed == river


RHINE = answer('{"name": "Rhine",', ' "length": 1233}')


@pytest.mark.parametrize("naming", [{}, {"extra_headers": {"X-Conversation-Id": "chat-1"}}])
async def test_structured_output_is_the_text_of_the_last_round(naming: dict[str, Any]) -> None:
    rounds = answer("Let me look. ", calls=[TIME], reasoning="Hm."), answer("And again.", calls=[TIME]), RHINE
    async with (
        ScriptedUpstream(*rounds, *rounds) as upstream,
        facade_over(upstream, tools=[get_time]) as facade,
    ):
        messages: list[Any] = [user("A river?")]
        parsed = await facade.client.chat.completions.parse(
            model=MODEL, messages=messages, response_format=River, **naming
        )
        reply = {"role": "assistant", "content": parsed.choices[0].message.content}
        messages += [reply, user("Another?")]
        async with facade.client.chat.completions.stream(
            model=MODEL, messages=messages, response_format=River, **naming
        ) as stream:
            streamed = await stream.get_final_completion()
            context = stream._response.headers["x-conversation-id"]  # pyright: ignore[reportPrivateUsage]
    for completion in (parsed, streamed):
        message = completion.choices[0].message
        assert message.parsed == River(name="Rhine", length=1233)
        assert message.content == '{"name": "Rhine", "length": 1233}'
        assert message.model_extra
        assert message.model_extra["reasoning_content"] == "Hm.\n\nLet me look. \n\nAnd again."
    # The same conversation, though part of it was not in the response.
    assert not naming or context == "chat-1"


@pytest.mark.parametrize("streamed", [False, True])
async def test_text_beside_calls_of_the_client_is_no_structured_output(streamed: bool) -> None:
    async with (
        ScriptedUpstream(answer("Wait.", calls=[PARIS]), RHINE) as upstream,
        facade_over(upstream) as facade,
    ):
        ask: Any = {"model": MODEL, "tools": [STRICT_WEATHER], "response_format": River}
        ask["extra_headers"] = {"X-Conversation-Id": "chat-1"}
        messages: list[Any] = [user("A river?")]
        completions: list[Any] = []
        context = ""
        for _ in range(2):
            if streamed:
                async with facade.client.chat.completions.stream(messages=messages, **ask) as stream:
                    completions.append(await stream.get_final_completion())
                    context = stream._response.headers["x-conversation-id"]  # pyright: ignore[reportPrivateUsage]
            else:
                raw: Any = await facade.client.chat.completions.with_raw_response.parse(
                    messages=messages, **ask
                )
                completions.append(raw.parse())
                context = raw.headers["x-conversation-id"]
            reply = (
                completions[-1]
                .choices[0]
                .message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
            )
            messages += [reply, tool("c1", "sunny")]
    first, last = (completion.choices[0] for completion in completions)
    assert (first.finish_reason, first.message.content or "") == ("tool_calls", "")
    assert first.message.reasoning_content == "Wait."
    assert last.message.parsed == River(name="Rhine", length=1233)
    assert context == "chat-1"


async def test_structured_output_is_streamed_from_its_beginning() -> None:
    script = answer("Let me ", "look.", calls=[TIME]), answer(" ", '{"a": ', "1", "}")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream, tools=[get_time]) as facade:
        chunks = await facade.chunks(user("A?"), response_format={"type": "json_object"})
    assert content_of(chunks) == [' {"a": ', "1", "}"]


async def test_structured_output_that_was_not_the_last_cannot_be_taken_back() -> None:
    script = answer('{"a": 1}', calls=[TIME]), answer('{"a": 2}')
    async with (
        ScriptedUpstream(*script, *script) as upstream,
        facade_over(upstream, tools=[get_time]) as facade,
    ):
        form: dict[str, Any] = {"response_format": {"type": "json_object"}}
        whole = await facade.chat(user("A?"), **form)
        with pytest.raises(openai.APIError) as raised:
            await facade.chunks(user("A?"), **form)
    assert whole.choices[0].message.content == '{"a": 2}'
    assert raised.value.code == "answer_replaced"


async def test_an_answer_that_does_not_fit_the_requested_format_is_an_error() -> None:
    async with ScriptedUpstream(answer("no JSON at all")) as upstream, facade_over(upstream) as facade:
        with pytest.raises(openai.InternalServerError) as raised:
            await facade.chat(HELLO, response_format={"type": "json_object"})
    assert raised.value.code == "task_failed"
