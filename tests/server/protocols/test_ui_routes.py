"""The AI SDK and AG-UI at a real server: conversations, resuming, stopping, and permissions."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from ag_ui.core import Message as AgUiMessage
from pydantic import TypeAdapter

from support.openai_api import Facade, facade_over
from support.rounds import answer, sent
from support.rpc import tasks_of, text_of
from support.ui_streams import ClientTurn, payloads, read_run, read_ui_messages
from support.upstream import ScriptedUpstream, SetEvent, Wait
from tailrace.server.runtime.handlers import DirectHandler, FunctionHandler, Turn
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.task.updates import ArtifactUpdate

Fields = dict[str, Any]

_MESSAGES: TypeAdapter[Any] = TypeAdapter(list[AgUiMessage])

WEATHER = {"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}


def look(city: str) -> str:
    """Look out of the window."""
    return f"sunny in {city}"


class Page:
    """A page that stores a conversation, like the clients of both protocols.

    Args:
        http: The HTTP client.
        url: The URL of the server.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self.headers: dict[str, str] = {}
        self.status = 0

    async def ask(self, method: str, path: str, body: Fields | None = None, /, **headers: str) -> bytes:
        """Return the complete response."""
        async with self._http.request(method, self._url + path, json=body, headers=headers) as response:
            self.headers = {name.lower(): value for name, value in response.headers.items()}
            self.status = response.status
            return await response.read()

    async def chat(self, *messages: Fields, chat: str = "chat", tools: Any = (), **more: Any) -> ClientTurn:
        """Return a response of the AI SDK protocol."""
        body = {"id": chat, "messages": list(messages), "trigger": "submit-message", "tools": list(tools)}
        content = await self.ask("POST", "/ai-sdk", {**body, **more.pop("fields", {})}, **more)
        assert self.status == 200, content
        return read_ui_messages(payloads(content))

    async def run(
        self, *messages: Fields, thread: str = "thread", tools: Any = (), **headers: str
    ) -> ClientTurn:
        """Return a run of AG-UI."""
        return read_run(await self.events(*messages, thread=thread, tools=tools, **headers))

    async def events(
        self, *messages: Fields, thread: str = "thread", tools: Any = (), version: str = "1.0", **headers: str
    ) -> list[bytes]:
        """Return the events of a run of AG-UI, as a client of that version; versions before 1.0 declare none."""
        body = {"threadId": thread, "runId": "run", "messages": list(messages), "tools": list(tools)}
        text_part = await self.ask(
            "POST", "/ag-ui", body | {"protocolVersion": version} if version else body, **headers
        )
        assert self.status == 200, text_part
        return payloads(text_part)


def user(text: str) -> Fields:
    return {"id": f"u-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}


def assistant(*parts: Fields, id: str = "a") -> Fields:
    return {"id": id, "role": "assistant", "parts": list(parts)}


def text_part(text: str) -> Fields:
    return {"type": "text", "text": text}


@asynccontextmanager
async def page_over(
    upstream: ScriptedUpstream | None = None, **options: Any
) -> AsyncGenerator[tuple[Page, Facade]]:
    async with facade_over(upstream, **options) as facade, aiohttp.ClientSession() as http:
        yield Page(http, facade.url), facade


async def test_a_chat_is_a_conversation_and_only_what_is_new_is_sent() -> None:
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream:
        async with page_over(upstream) as (page, facade):
            assert (await page.chat(user("First"))).text == "One."
            assert page.headers["x-vercel-ai-ui-message-stream"] == "v1"
            assert page.headers["x-conversation-id"] == "chat"
            assert (
                await page.chat(user("First"), assistant(text_part("One.")), user("Second"))
            ).text == "Two."
            tasks = await tasks_of(facade.url, "chat")
            assert sorted(map(text_of, tasks)) == ["One.", "Two."]
            assert [len(task["history"]) for task in tasks] == [1, 1]
        assert [message["content"] for message in sent(upstream.requests[1])] == ["First", "One.", "Second"]


async def test_a_chat_that_sends_its_last_message_alone_goes_on() -> None:
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream:
        async with page_over(upstream) as (page, _):
            await page.chat(user("First"))
            turn = await page.chat(fields={"messages": None, "message": user("Second")})
            assert turn.text == "Two."
        assert [message["content"] for message in sent(upstream.requests[1])] == ["First", "One.", "Second"]


async def test_results_of_the_agents_tools_are_sent_and_accepted_in_return() -> None:
    rounds = (
        answer("Let me see.", calls=[("c1", "look", {"city": "Oslo"})]),
        answer("Sunny."),
        answer("Bye."),
    )
    async with ScriptedUpstream(*rounds) as upstream, page_over(upstream, tools=[look]) as (page, facade):
        first = await page.chat(user("First"))
        assert first.texts == ["Let me see.", "Sunny."]
        assert first.calls == {"c1": ("look", {"city": "Oslo"})}
        assert first.results == {"c1": "sunny in Oslo"}
        assert first.waiting == set()
        tool = {
            "type": "dynamic-tool",
            "toolName": "look",
            "toolCallId": "c1",
            "state": "output-available",
            "input": {"city": "Oslo"},
            "output": "sunny in Oslo",
            "providerExecuted": True,
        }
        step = {"type": "step-start"}
        shown = assistant(step, text_part("Let me see."), tool, step, text_part("Sunny."))
        assert (await page.chat(user("First"), shown, user("Thanks"))).text == "Bye."
        assert len(await tasks_of(facade.url, "chat")) == 2


async def test_the_same_through_ag_ui() -> None:
    rounds = (
        answer("Let me see.", calls=[("c1", "look", {"city": "Oslo"})]),
        answer("Sunny."),
        answer("Bye."),
    )
    async with ScriptedUpstream(*rounds) as upstream, page_over(upstream, tools=[look]) as (page, facade):
        question = {"id": "1", "role": "user", "content": "First"}
        first = await page.run(question)
        assert (first.texts, first.results) == (["Let me see.", "Sunny."], {"c1": "sunny in Oslo"})
        function = {"name": "look", "arguments": '{"city": "Oslo"}'}
        calls = [{"id": "c1", "type": "function", "function": function}]
        shown = [
            {"id": "2", "role": "assistant", "content": "Let me see.", "toolCalls": calls},
            {"id": "3", "role": "tool", "toolCallId": "c1", "content": "sunny in Oslo"},
            {"id": "4", "role": "assistant", "content": "Sunny."},
        ]
        thanks = {"id": "5", "role": "user", "content": "Thanks"}
        assert (await page.run(question, *shown, thanks)).text == "Bye."
        assert len(await tasks_of(facade.url, "thread")) == 2
        assert page.headers["x-conversation-id"] == "thread"
        # A new subscriber receives the same.
        _, snapshot, finished = map(json.loads, await page.events())
        messages = _MESSAGES.validate_python(snapshot["messages"])
        assert [(message.role, message.content) for message in messages] == [
            ("user", "First"),
            ("assistant", "Let me see."),
            ("tool", "sunny in Oslo"),
            ("assistant", "Sunny."),
            ("user", "Thanks"),
            ("assistant", "Bye."),
        ]
        assert finished["outcome"] == {"type": "success"}
        # Its next message continues the same conversation.
        upstream_count = len(upstream.requests)
        assert upstream_count == 3


async def test_clients_before_1_0_get_no_outcome_since_they_reject_its_new_members() -> None:
    question: Fields = {"id": "1", "role": "user", "content": "First"}
    calls = [("c1", "get_weather", {"city": "Oslo"})]
    async with ScriptedUpstream(answer(calls=calls)) as upstream, page_over(upstream) as (page, _):
        old = list(map(json.loads, await page.events(question, tools=[WEATHER], version="")))
        assert [event["type"] for event in old[-2:]] == ["TOOL_CALL_END", "RUN_FINISHED"]
        assert "outcome" not in old[-1]
        joined_old, joined = [json.loads((await page.events(version=each))[-1]) for each in ("", "1.0")]
        assert "outcome" not in joined_old
        assert joined["outcome"]["type"] == "success"


async def test_the_clients_tool_and_the_agents_in_one_round() -> None:
    calls = [("c1", "look", {"city": "Oslo"}), ("c2", "get_weather", {"city": "Oslo"})]
    async with ScriptedUpstream(answer(calls=calls), answer("Both.")) as upstream:
        async with page_over(upstream, tools=[look]) as (page, facade):
            first = await page.chat(user("First"), tools=[WEATHER])
            assert (first.results, first.waiting) == ({"c1": "sunny in Oslo"}, {"c2"})
            assert first.end["finishReason"] == "tool-calls"
            parts = [
                {"type": "dynamic-tool", "toolName": "look", "toolCallId": "c1"},
                {"type": "tool-get_weather", "toolCallId": "c2"},
            ]
            done = {"state": "output-available", "input": {"city": "Oslo"}, "output": "x"}
            shown = assistant({"type": "step-start"}, *({**part, **done} for part in parts), id="mine")
            second = await page.chat(user("First"), shown, tools=[WEATHER])
            assert second.text == "Both."
            assert len(await tasks_of(facade.url, "chat")) == 1
        results = [message for message in sent(upstream.requests[1]) if message["role"] == "tool"]
        assert [result["content"] for result in results] == ["sunny in Oslo", "x"]


async def test_a_request_that_is_sent_again_is_taken_once() -> None:
    key = {"Idempotency-Key": "k"}
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream, page_over(upstream) as (page, _):
        first = await page.chat(user("First"), **key)
        again = await page.chat(user("First"), **key)
        assert (first.text, again.text) == ("One.", "One.")
        refused = await page.ask("POST", "/ai-sdk", {"id": "chat", "message": user("Other")}, **key)
        assert page.status == 400
        assert b"the idempotency key was used for another message; choose a new one" in refused
        run = await page.run({"id": "1", "role": "user", "content": "Hi"}, **{"Idempotency-Key": "other"})
        assert run.text == "Two."
        run = await page.run({"id": "1", "role": "user", "content": "Hi"}, **{"Idempotency-Key": "other"})
        assert run.text == "Two."
        assert len(upstream.requests) == 2


async def test_a_repeated_request_of_an_earlier_turn_gets_the_response_of_this_turn() -> None:
    first, second = {"Idempotency-Key": "first"}, {"Idempotency-Key": "second"}
    script = answer(calls=[("c1", "get_weather", {"city": "Oslo"})]), answer("Cold.")
    async with ScriptedUpstream(*script) as upstream, page_over(upstream) as (page, _):
        call = await page.chat(user("Weather?"), tools=[WEATHER], **first)
        part = {"type": "tool-get_weather", "toolCallId": "c1", "state": "output-available"}
        shown = assistant({**part, "input": {"city": "Oslo"}, "output": "x"}, id="mine")
        text = await page.chat(user("Weather?"), shown, tools=[WEATHER], **second)
        assert (call.waiting, call.text, text.waiting, text.text) == ({"c1"}, "", set(), "Cold.")
        again = await page.chat(user("Weather?"), tools=[WEATHER], **first)
        assert (again.waiting, again.text) == ({"c1"}, "")
        assert (await page.chat(user("Weather?"), shown, tools=[WEATHER], **second)).text == "Cold."
    assert len(upstream.requests) == 2


async def test_an_answer_is_resumed_from_its_beginning_and_stopped() -> None:
    half, go_on = anyio.Event(), anyio.Event()
    role, first, second, *rest = answer("One, ", "two.")
    script = [role, first, SetEvent(half), Wait(go_on), second, *rest]
    async with ScriptedUpstream(script, script) as upstream, page_over(upstream) as (page, facade):
        assert await page.ask("GET", "/ai-sdk/chat/stream") == b""
        assert page.status == 204
        async with aiohttp.ClientSession() as http:
            body = {"id": "chat", "messages": [user("First")]}
            async with http.post(f"{facade.url}/ai-sdk", json=body) as response:
                await half.wait()
                await response.content.readany()
            # It disconnects and reconnects.
            async with http.get(f"{facade.url}/ai-sdk/chat/stream") as response:
                begun = await response.content.readany()
                go_on.set()
                turn = read_ui_messages(payloads(begun + await response.read()))
        assert (turn.text, turn.end["finishReason"]) == ("One, two.", "stop")
        await page.ask("DELETE", "/ai-sdk/chat/stream")
        assert page.status == 204
        [task] = await tasks_of(facade.url, "chat")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_limits_hold_here_too() -> None:
    body = {"id": "chat", "messages": [user("x" * 2000)]}
    async with ScriptedUpstream() as upstream, page_over(upstream, max_request_bytes=1000) as (page, _):
        assert b"1000 bytes" in await page.ask("POST", "/ai-sdk", body)
        assert page.status == 413
        assert page.headers["content-type"].startswith("text/plain")
        assert b"Content-Type: application/json" in await page.ask("POST", "/ag-ui")
        assert page.status == 415
        assert page.headers["content-type"] == "application/json"


async def test_an_agent_may_answer_directly() -> None:
    async def greet(turn: Turn) -> AsyncGenerator[Message]:
        yield Message(message_id="m", role=Role.AGENT, parts=(Part(text="Hello"),))

    async with page_over(handler=DirectHandler(greet)) as (page, _):
        assert (await page.chat(user("Hi"))).text == "Hello"
        assert "x-task-id" not in page.headers
        assert (await page.run({"id": "1", "role": "user", "content": "Hi"})).text == "Hello"


async def test_a_data_artifact_is_sent_again_whenever_it_changes() -> None:
    async def plan(turn: Turn) -> AsyncGenerator[ArtifactUpdate]:
        for steps in (["look"], ["look", "leap"]):
            shown = Artifact(artifact_id="plan", name="Plan", parts=(Part(data={"steps": steps}),))
            yield ArtifactUpdate(shown, last=len(steps) == 2)

    values = [{"name": "Plan", "data": {"steps": steps}} for steps in (["look"], ["look", "leap"])]
    async with page_over(handler=FunctionHandler(plan)) as (page, _):
        assert [value for _, value in (await page.chat(user("Go"))).data] == values
        run = await page.run({"id": "1", "role": "user", "content": "Go"})
        assert run.data == [("CUSTOM", value) for value in values]


@pytest.mark.parametrize("path", ["/ai-sdk", "/ag-ui"])
async def test_each_can_be_switched_off(path: str) -> None:
    async with ScriptedUpstream() as upstream, page_over(upstream, endpoints=()) as (page, _):
        await page.ask("POST", path, {})
        assert page.status == 404
