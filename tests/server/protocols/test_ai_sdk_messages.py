"""The messages of a chat, for a page of the AI SDK that is loaded again."""

import json
from typing import Any

import aiohttp
import anyio

from server.protocols.test_ui_routes import Page, look, page_over, tasks_of, user
from support.rounds import answer, sent
from support.ui_streams import payloads
from support.upstream import ScriptedUpstream, SetEvent, Wait, json_answer

Fields = dict[str, Any]

WEATHER = {"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}

FAILURE = json_answer({"error": {"message": "the model is not there", "type": "x"}}, 404)


async def messages_of(page: Page, chat: str = "chat", **headers: str) -> list[Fields]:
    body = await page.ask("GET", f"/ai-sdk/{chat}/messages", None, **headers)
    assert page.status == 200, body
    assert page.headers["cache-control"] == "no-store"
    return json.loads(body)


def text(message: Fields) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


async def test_messages_have_the_ids_of_the_stream() -> None:
    async with (
        ScriptedUpstream(answer("One.", reasoning="Hm.")) as upstream,
        page_over(upstream) as (page, _),
    ):
        assert await messages_of(page) == []
        body = {"id": "chat", "messages": [user("First")]}
        start, *_ = map(json.loads, payloads(await page.ask("POST", "/ai-sdk", body))[:-1])
        question, reply = await messages_of(page)
        assert (question["role"], question["parts"]) == ("user", [{"type": "text", "text": "First"}])
        metadata = start["messageMetadata"]
        assert (reply["id"], reply["role"], reply["metadata"]) == (start["messageId"], "assistant", metadata)
        assert reply["parts"] == [
            {"type": "step-start"},
            {"type": "reasoning", "text": "Hm.", "state": "done"},
            {"type": "text", "text": "One.", "state": "done"},
        ]


async def test_tools_of_both_sides_are_parts_of_one_message() -> None:
    rounds = (
        answer("Let me see.", calls=[("c1", "look", {"city": "Oslo"})]),
        answer(calls=[("c2", "get_weather", {"city": "Rome"})]),
        answer("Sunny."),
        answer("Bye."),
    )
    async with ScriptedUpstream(*rounds) as upstream, page_over(upstream, tools=[look]) as (page, facade):
        await page.chat(user("First"), tools=[WEATHER])
        question, pending = await messages_of(page)
        waiting = {"type": "tool-get_weather", "toolCallId": "c2", "state": "input-available"}
        assert pending["parts"][-1] == {**waiting, "input": {"city": "Rome"}}
        done = {**pending["parts"][-1], "state": "output-available", "output": "rain"}
        returned = {**pending, "parts": [*pending["parts"][:-1], done]}
        assert (await page.chat(question, returned, tools=[WEATHER])).text == "Sunny."
        first, second = await messages_of(page)
        assert (first, second["id"]) == (question, pending["id"])
        by_agent = {"type": "dynamic-tool", "toolName": "look", "toolCallId": "c1", "providerExecuted": True}
        result = {"state": "output-available", "input": {"city": "Oslo"}, "output": "sunny in Oslo"}
        assert [part for part in second["parts"] if part["type"] != "step-start"] == [
            {"type": "text", "text": "Let me see.", "state": "done"},
            {**by_agent, **result},
            done,
            {"type": "text", "text": "Sunny.", "state": "done"},
        ]
        # What the page loaded continues the conversation.
        assert (await page.chat(first, second, user("Thanks"), tools=[WEATHER])).text == "Bye."
        assert len(await tasks_of(facade.url, "chat")) == 2
        assert len(await tasks_of(facade.url, "chat~2")) == 0
        assert [message["role"] for message in await messages_of(page)] == ["user", "assistant"] * 2


async def test_the_running_response_is_left_to_the_stream() -> None:
    half, go_on = anyio.Event(), anyio.Event()
    role, first, second, *rest = answer("One, ", "two.")
    script = [role, first, SetEvent(half), Wait(go_on), second, *rest]
    async with ScriptedUpstream(script) as upstream, page_over(upstream) as (page, facade):
        async with anyio.create_task_group() as group:
            group.start_soon(page.chat, user("First"))
            await half.wait()
            async with aiohttp.ClientSession() as http:
                other = Page(http, facade.url)
                assert [message["role"] for message in await messages_of(other)] == ["user"]
            go_on.set()
        assert [text(message) for message in await messages_of(page)] == ["First", "One, two."]


async def test_a_failed_question_remains_a_message_of_its_own() -> None:
    async with ScriptedUpstream(FAILURE, answer("Two.")) as upstream, page_over(upstream) as (page, facade):
        assert (await page.chat(user("First"))).end["type"] == "error"
        [question] = await messages_of(page)
        assert text(question) == "First"
        assert (await page.chat(question, user("Second"))).text == "Two."
        # One message for the provider, whose API wants alternating roles; two in the conversation.
        assert [message["content"] for message in sent(upstream.requests[-1])] == ["First\n\nSecond"]
        assert [text(message) for message in await messages_of(page)] == ["First", "Second", "Two."]
        assert len(await tasks_of(facade.url, "chat")) == 2


async def test_the_messages_of_other_callers_are_unknown() -> None:
    async with (
        ScriptedUpstream(answer("One.")) as upstream,
        page_over(upstream, caller_keys="ann:a,bob:b", key="a") as (page, _),
    ):
        await page.chat(user("First"), **{"x-api-key": "a"})
        assert len(await messages_of(page, **{"x-api-key": "a"})) == 2
        assert await messages_of(page, **{"x-api-key": "b"}) == []
        await page.ask("GET", "/ai-sdk/chat/messages")
        assert page.status == 401
