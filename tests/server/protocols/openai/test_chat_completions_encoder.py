"""Chat Completions, called with OpenAI's own client."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import openai
import pytest
from openai.lib.streaming.chat import ContentDeltaEvent, FunctionToolCallArgumentsDoneEvent
from pydantic import BaseModel

from support.agents import Scripted
from support.openai_api import (
    MODEL,
    STRICT_WEATHER,
    WEATHER,
    Facade,
    assistant,
    content_of,
    facade_over,
    tool,
    user,
)
from support.processes import served
from support.rounds import USAGE, answer, sent
from support.rpc import Rpc
from support.upstream import Hang, ScriptedUpstream, Wait, json_answer, openai_chunk, openai_stream, sse
from tailrace.server import Turn
from tailrace.server.settings import Bounds
from tailrace.server.store.store import Retention, Store
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import Update

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


# --- finish reasons and errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_truncated_response_is_marked(reason: Any) -> None:
    async with ScriptedUpstream(answer("Hal", finish=reason)) as upstream, facade_over(upstream) as facade:
        completion = await facade.chat(HELLO)
        chunks = await facade.chunks(HELLO)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Hal", reason)
    assert "".join(content_of(chunks)) == "Hal"
    assert chunks[-1].choices[0].finish_reason == reason


async def test_a_refusal() -> None:
    script = [
        sse(openai_chunk({"refusal": "I will "})),
        sse(openai_chunk({"refusal": "not."}, finish="stop")),
        sse("[DONE]"),
    ]
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        completion = await facade.chat(HELLO)
        chunks = await facade.chunks(HELLO)
    assert (completion.choices[0].message.refusal, completion.choices[0].message.content) == (
        "I will not.",
        None,
    )
    assert [chunk.choices[0].delta.refusal for chunk in chunks if chunk.choices[0].delta.refusal] == [
        "I will ",
        "not.",
    ]


FAULTS = [
    (400, openai.BadRequestError, 400),
    (401, openai.InternalServerError, 502),
    (404, openai.InternalServerError, 502),
    (429, openai.RateLimitError, 429),
    (500, openai.InternalServerError, 502),
    (503, openai.InternalServerError, 502),
]


@pytest.mark.parametrize(("status", "kind", "ours"), FAULTS)
async def test_a_refusal_of_the_provider_is_reported_by_its_fault(
    status: int, kind: type[openai.APIStatusError], ours: int
) -> None:
    refused = json_answer(
        {"error": {"message": "no such luck", "code": "bad_luck"}}, status, {"retry-after": "7"}
    )
    async with ScriptedUpstream(refused) as upstream, facade_over(upstream) as facade:
        with pytest.raises(kind) as raised:
            await facade.chat(HELLO)
        with pytest.raises(openai.APIError) as streamed:
            await facade.chunks(HELLO)
    error = raised.value
    body: Any = error.body
    assert (error.status_code, error.code) == (ours, "bad_luck")
    assert body["upstream"]["status"] == status
    # The message of a provider that refuses the server's own credentials is for the operator only.
    assert ("no such luck" in error.message) == (status not in (401, 403))
    assert ("no such luck" in streamed.value.message) == (status not in (401, 403))
    assert streamed.value.code == "bad_luck"
    assert (error.response.headers.get("retry-after") == "7") == (ours == 429)


async def test_a_stream_that_breaks_off_is_an_error_behind_what_came() -> None:
    async with (
        ScriptedUpstream(openai_stream(["Hel", "lo"], finish=None)) as upstream,
        facade_over(upstream) as facade,
    ):
        seen: list[str] = []

        def take(chunks: Any) -> None:
            seen[:] = content_of(chunks)

        with pytest.raises(openai.APIError) as streamed:
            await facade.chunks(HELLO, seen=take)
        with pytest.raises(openai.InternalServerError) as raised:
            await facade.chat(HELLO)
        raw = await _raw(facade, {"model": MODEL, "messages": [HELLO], "stream": True})
    assert "".join(seen) == "Hello"
    assert streamed.value.code == raised.value.code == "stream_truncated"
    assert raised.value.status_code == 502
    assert b"[DONE]" not in raw
    assert b'"finish_reason":"stop"' not in raw


async def _raw(facade: Facade, body: Any) -> bytes:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{facade.url}/v1/chat/completions", json=body) as response,
    ):
        return await response.read()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "nobody", "content": "hi"}]}, "messages"),
    ({"messages": [user([{"type": "video", "video": "x"}])]}, "messages"),
    ({"messages": [HELLO, {"role": "assistant", "content": "Hi"}]}, "messages"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"temperature": "hot"}, "temperature"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tool_choice": "perhaps"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"metadata": {"conversation_id": "ä"}}, "metadata.conversation_id"),
]


@pytest.mark.parametrize(("change", "param"), BAD)
async def test_an_invalid_request_names_the_member(change: dict[str, Any], param: str) -> None:
    async with facade_over(handler=Scripted()) as facade:
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post(
                "/chat/completions", body={"model": "tailrace", "messages": [HELLO], **change}, cast_to=object
            )
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
async def test_a_body_that_is_no_request(body: bytes) -> None:
    async with facade_over(handler=Scripted()) as facade, aiohttp.ClientSession() as http:
        async with http.post(f"{facade.url}/v1/chat/completions", data=body, headers=JSON) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_the_key_is_read_from_where_the_client_puts_it() -> None:
    async with facade_over(handler=Scripted(), caller_keys="alice:k1", key="wrong") as facade:
        with pytest.raises(openai.AuthenticationError):
            await facade.chat(HELLO)
        with pytest.raises(openai.AuthenticationError):
            await facade.client.models.list()
        completion = await facade.as_caller("k1").chat(HELLO)
    assert completion.choices[0].message.content == "Hello?"


async def test_limits_are_errors_with_a_pause() -> None:
    hold = Scripted()
    async with facade_over(
        handler=hold, caller_keys="alice:k1", key="k1", bounds=Bounds(max_caller_streams=1)
    ) as facade:
        stream, _ = await facade.stream(user("hold"))
        with pytest.raises(openai.RateLimitError) as raised:
            await facade.chat(HELLO)
        hold.go_on.set()
        async for _ in stream:
            pass
    assert raised.value.response.headers["retry-after"] == "2"
    assert raised.value.code == "rate_limit_exceeded"


async def test_a_request_that_is_too_large() -> None:
    async with facade_over(handler=Scripted(), max_request_bytes=1000) as facade:
        with pytest.raises(openai.APIStatusError) as raised:
            await facade.chat({"role": "user", "content": "x" * 2000})
    assert raised.value.status_code == 413


# --- disconnecting, canceling, stopping -------------------------------------------------------------------------


async def test_who_leaves_leaves_the_task_running() -> None:
    handler = Scripted()
    async with facade_over(handler=handler) as facade, Rpc(facade.url) as rpc:
        stream, task_id = await facade.stream(user("hold"))
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        assert (await rpc.result("GetTask", {"id": task_id}))["status"]["state"] == "TASK_STATE_WORKING"
        handler.go_on.set()
        events = await rpc.stream("SubscribeToTask", {"id": task_id}, headers={"Last-Event-ID": "1"})
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_task_that_is_canceled_is_an_error() -> None:
    async with facade_over(handler=Scripted()) as facade, Rpc(facade.url) as rpc:
        stream, task_id = await facade.stream(user("hold"))
        await rpc.result("CancelTask", {"id": task_id})
        with pytest.raises(openai.APIError) as raised:
            _ = [chunk async for chunk in stream]
    assert raised.value.code == "task_canceled"


async def test_a_server_that_stops_ends_its_streams_in_order(tmp_path: Path) -> None:
    async with ScriptedUpstream([*openai_stream(["Hel"], finish=None), Hang()]) as upstream:
        model = ("--model", f"openai:{MODEL}", "--base-url", upstream.base_url, "--store", "sqlite://")
        with served(tmp_path / "log", *model, TAILRACE_SHUTDOWN_GRACE="0") as server:
            await server.ready()
            body = {"model": MODEL, "messages": [HELLO], "stream": True}
            received = b""
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"{server.url}/v1/chat/completions", json=body) as response,
            ):
                async for data in response.content.iter_any():
                    # One signal: a second one would interrupt the shutdown.
                    is_terminated = b"Hel" in received
                    received += data
                    if b"Hel" in received and not is_terminated:
                        server.process.terminate()
            await anyio.to_thread.run_sync(server.process.wait)
    *_, last, rest = received.split(b"\n\n")
    assert rest == b""
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "task_failed"


# --- agents without a model -------------------------------------------------------------------------------------


async def test_a_question_is_an_answer() -> None:
    async with facade_over(handler=Scripted()) as facade:
        first = await facade.chat(user("ask"))
        text = content_of(await facade.chunks(user("ask")))
    assert (first.choices[0].message.content, first.choices[0].finish_reason) == ("which one?", "stop")
    assert text == ["which one?"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("word", ["fail", "crash"])
async def test_an_agent_that_fails_is_an_error(word: str, streamed: bool) -> None:
    async with facade_over(handler=Scripted()) as facade:
        ask = facade.chunks if streamed else facade.chat
        with pytest.raises(openai.APIError) as raised:
            await ask(user(word))
    assert raised.value.code == "task_failed"
    assert "secret" not in raised.value.message


def _artifact(artifact_id: str, *parts: Part, **facts: Any) -> Artifact:
    metadata = {EXTENSION_URI: facts} if facts else {}
    return Artifact(artifact_id=artifact_id, parts=parts, metadata=metadata)


async def test_artifacts_of_other_agents_stand_one_after_the_other() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("report", Part(text="One")), last=False)
        yield ArtifactUpdate(_artifact("summary", Part(text="Sum")), last=False)
        yield TextDelta("report", " two")
        yield TextDelta("summary", "mary")
        yield TextDelta("report", " three.", last=True)
        yield ArtifactUpdate(_artifact("data", Part(data={"a": [1]})))
        yield StatusUpdate(TaskState.COMPLETED, agent_message("all done"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        pieces = content_of(await facade.chunks(HELLO))
    expected = 'One two three.\n\nSummary\n\n```json\n{\n  "a": [\n    1\n  ]\n}\n```'
    assert whole.choices[0].message.content == expected
    assert "".join(pieces) == expected
    assert pieces[:2] == ["One", " two"]


async def test_the_text_of_the_last_status_is_the_response_if_there_is_no_other() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.WORKING, agent_message("thinking"))
        yield StatusUpdate(TaskState.COMPLETED, agent_message("42"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
    assert whole.choices[0].message.content == "42"


async def test_files_are_markdown() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("text", Part(text="Look:"), channel="text"), last=False)
        picture = Part(raw=b"\x89PNG", media_type="image/png", filename="a.png")
        yield ArtifactUpdate(_artifact("file-1", picture, channel="file"))
        yield TextDelta("text", "Nice?", last=True)
        yield ArtifactUpdate(_artifact("file-2", Part(url="https://x.example/b.pdf"), channel="file"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        pieces = content_of(await facade.chunks(HELLO))
    expected = "Look:\n\n![a.png](data:image/png;base64,iVBORw==)\n\nNice?\n\n[file](https://x.example/b.pdf)"
    assert whole.choices[0].message.content == expected
    assert "".join(pieces) == expected


async def test_a_restarted_response_is_not_repeated() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("text", Part(text="Hello wor"), channel="text"), last=False)
        yield ArtifactUpdate(_artifact("text", Part(text=""), channel="text"), last=False)
        for piece in ("Hel", "lo ", "world", "!"):
            yield TextDelta("text", piece)
        yield TextDelta("text", "", last=True)

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        pieces = content_of(await facade.chunks(HELLO))
    assert whole.choices[0].message.content == "Hello world!"
    assert "".join(pieces) == "Hello world!"


async def test_an_answer_that_is_replaced_by_another_is_an_error_of_the_stream_alone() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("text", Part(text="Hello"), channel="text"), last=False)
        yield ArtifactUpdate(_artifact("text", Part(text="Goodbye"), channel="text"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        seen: list[str] = []

        def take(chunks: Any) -> None:
            seen[:] = content_of(chunks)

        with pytest.raises(openai.APIError) as raised:
            await facade.chunks(HELLO, seen=take)
    assert whole.choices[0].message.content == "Goodbye"
    assert (raised.value.code, seen) == ("answer_replaced", ["Hello"])


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_repeated_request_of_an_earlier_turn_gets_the_completion_of_this_turn(
    streamed: bool, dropped: bool, tmp_path: Path
) -> None:
    store: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/t.db"}
    script = answer("Let me look.", calls=[PARIS]), answer("Sunny.")
    first_messages: list[Any] = [HELLO]

    async def ask(facade: Facade, key: str, messages: list[Any]) -> tuple[str, Any, Any, Any]:
        options: dict[str, Any] = {"tools": [WEATHER], "extra_headers": {"Idempotency-Key": key}}
        if not streamed:
            made = await facade.chat(*messages, **options)
            [choice] = made.choices
            calls = [call.id for call in choice.message.tool_calls or ()]
            return made.id, choice.message.content, calls, choice.finish_reason
        chunks = await facade.chunks(*messages, **options)
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        deltas = [call for choice in choices for call in choice.delta.tool_calls or ()]
        calls = [call.id for call in deltas if call.id]
        return chunks[0].id, "".join(content_of(chunks)), calls, choices[-1].finish_reason

    async with ScriptedUpstream(*script) as upstream:
        async with facade_over(upstream, **store) as facade:
            first = await ask(facade, "one", first_messages)
            call: Any = {"id": "c1", "type": "function", "function": {"name": "get_weather"}}
            call["function"]["arguments"] = json.dumps(PARIS[2])
            called = {"role": "assistant", "content": first[1], "tool_calls": [call]}
            follow_up = [HELLO, called, tool("c1", "sunny")]
            second = await ask(facade, "two", follow_up)
            assert (first[2], first[3], second[1:]) == (["c1"], "tool_calls", ("Sunny.", [], "stop"))
            assert first[0].rpartition("-")[0] == second[0].rpartition("-")[0]
        if dropped:
            expired = Store(store["store"], Retention(events=1e-6))
            await expired.open()
            while await expired.drop_expired():
                pass
            await expired.close()
        async with facade_over(upstream, **store) as facade:
            assert await ask(facade, "one", first_messages) == first
            assert await ask(facade, "two", follow_up) == second
        assert len(upstream.requests) == 2


async def test_a_request_that_is_sent_again_under_its_key_gets_the_same_task() -> None:
    options: dict[str, Any] = {"tools": [WEATHER], "extra_headers": {"Idempotency-Key": "k"}}
    script = answer("Once.", calls=[PARIS]), answer("Twice.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        first, _, task_id = await facade.chat_named(HELLO, **options)
        again, _, same_id = await facade.chat_named(HELLO, **options)
        assert (again.choices, same_id) == (first.choices, task_id)
        with pytest.raises(openai.APIStatusError, match="idempotency key"):
            await facade.chat(user("Another?"), **options)
        options["extra_headers"] = {"Idempotency-Key": "other"}
        streams = [await facade.chunks(HELLO, **options) for _ in range(2)]
        assert ["".join(content_of(chunks)) for chunks in streams] == ["Twice.", "Twice."]
        assert len(upstream.requests) == 2
