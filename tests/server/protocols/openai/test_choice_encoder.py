"""Several choices (``n``): each is a task of its own, and they run at the same time."""

from collections import defaultdict
from typing import Any

import aiohttp
import anyio
import openai

from support.openai_api import assistant, facade_over, tool, user
from support.rounds import Call, answer, sent
from support.upstream import Head, Received, ScriptedUpstream, Step, Wait, sse

HELLO = user("Hello?")
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def by_choice(chunks: list[Any]) -> dict[int, str]:
    texts: dict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    return texts


def numbered() -> Any:
    """A script whose response names the number of the request."""
    numbers = iter(range(100))

    def script(_: Received) -> list[bytes]:
        return answer(f"Answer {next(numbers)}")

    return script


async def test_a_complete_response_with_several_choices() -> None:
    async with ScriptedUpstream(numbered()) as upstream, facade_over(upstream) as facade:
        completion, _, task = await facade.chat_named(HELLO, n=3)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    texts = {choice.message.content for choice in completion.choices}
    assert texts == {"Answer 0", "Answer 1", "Answer 2"}
    assert {choice.finish_reason for choice in completion.choices} == {"stop"}
    assert completion.id == f"chatcmpl-{task}-1"
    assert completion.usage is not None
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 15, 45)
    assert all("n" not in request.json for request in upstream.requests)


async def test_a_stream_has_the_choices_one_after_another() -> None:
    async with ScriptedUpstream(numbered()) as upstream, facade_over(upstream) as facade:
        chunks = await facade.chunks(HELLO, n=3, stream_options={"include_usage": True})
        raw = await _raw(facade.url, {"messages": [HELLO], "n": 2, "stream": True})
    indexes = [choice.index for chunk in chunks for choice in chunk.choices]
    assert indexes == sorted(indexes)
    texts = by_choice(chunks)
    assert set(texts) == {0, 1, 2}
    assert set(texts.values()) == {"Answer 0", "Answer 1", "Answer 2"}
    assert len({chunk.id for chunk in chunks}) == 1
    ended = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ended == ["stop"] * 3
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert [usage.total_tokens for usage in usages] == [45]
    assert raw.count(b"[DONE]") == 1
    assert raw.endswith(b"data: [DONE]\n\n")


async def _raw(url: str, body: Any) -> bytes:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        return await response.read()


async def test_the_choices_are_generated_at_the_same_time() -> None:
    go_on = anyio.Event()
    script: list[Step] = [Wait(go_on), *answer("Hi")]
    texts: list[str | None] = []
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:

        async def ask() -> None:
            completion = await facade.chat(HELLO, n=2)
            texts.extend(choice.message.content for choice in completion.choices)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await upstream.received(1)  # both, before one of them is answered
            go_on.set()
    assert texts == ["Hi", "Hi"]


async def test_each_choice_can_be_continued() -> None:
    name: Any = {"extra_headers": {"X-Conversation-Id": "rivers"}}
    async with ScriptedUpstream(numbered()) as upstream, facade_over(upstream) as facade:
        completion, first, _ = await facade.chat_named(HELLO, n=2, **name)
        texts = [choice.message.content for choice in completion.choices]
        contexts: list[str] = []
        for choice in completion.choices:
            reply = choice.message.model_dump(exclude_none=True)
            _, context, _ = await facade.chat_named(HELLO, reply, user("And?"), **name)
            contexts.append(context)
    assert first == contexts[0] == "rivers"
    assert contexts[1].startswith("rivers~")
    for request, text in zip(upstream.requests[2:], texts, strict=True):
        assert [message["content"] for message in sent(request)] == ["Hello?", text, "And?"]


async def test_calls_of_every_choice_wait_for_the_client() -> None:
    calls: list[Call] = [("c1", "get_weather", "{}")]
    scripts = answer(calls=calls), answer(calls=calls), answer("Sunny")
    async with ScriptedUpstream(*scripts) as upstream, facade_over(upstream) as facade:
        completion = await facade.chat(HELLO, n=2, tools=[WEATHER])
        last = await facade.chat(HELLO, assistant(completion), tool("c1", "22"), tools=[WEATHER])
    found = [choice.message.tool_calls for choice in completion.choices]
    assert [[call.id for call in each or ()] for each in found] == [["c1"], ["c1"]]
    assert [choice.finish_reason for choice in completion.choices] == ["tool_calls"] * 2
    assert last.choices[0].message.content == "Sunny"


def failing_once() -> Any:
    """A script whose second response is an error."""
    refusal: list[Step] = [Head(400, {"content-type": "application/json"}), b'{"error": {}}']
    scripts = iter([list[Step](answer("Hi")), refusal])

    def script(_: Received) -> list[Step]:
        return next(scripts)

    return script


async def test_a_choice_that_fails_fails_the_request() -> None:
    async with ScriptedUpstream(failing_once()) as upstream, facade_over(upstream) as facade:
        try:
            await facade.chat(HELLO, n=2)
            raised: openai.APIStatusError | None = None
        except openai.APIStatusError as error:
            raised = error
    assert raised is not None
    assert raised.status_code == 400
    async with ScriptedUpstream(failing_once()) as upstream, facade_over(upstream) as facade:
        raw = await _raw(facade.url, {"messages": [HELLO], "n": 2, "stream": True})
    assert raw.count(b'"error":{') == 1
    assert b"[DONE]" not in raw


async def test_a_request_with_an_idempotency_key_runs_once() -> None:
    name: Any = {"extra_headers": {"Idempotency-Key": "k"}}
    async with ScriptedUpstream(numbered()) as upstream, facade_over(upstream) as facade:
        once = await facade.chat(HELLO, n=2, **name)
        again = await facade.chat(HELLO, n=2, **name)
    assert again.choices == once.choices
    assert len(upstream.requests) == 2


async def test_the_details_of_the_usage_are_added() -> None:
    usage = {
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "total_tokens": 6,
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    script = answer("Hi", usage=None)
    script.insert(-1, sse({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage}))
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        completion = await facade.chat(HELLO, n=2)
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert (completion.usage.total_tokens, completion.usage.completion_tokens_details.reasoning_tokens) == (
        12,
        2,
    )
