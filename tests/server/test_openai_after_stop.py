"""Requests of OpenAI's client whose responses a server leaves unfinished when it is stopped (SIGTERM)."""

import json
import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from support.continuing import ContinuingServer
from support.processes import Served, served
from support.restarts import arguments_of
from support.rpc import Rpc
from support.upstream import ScriptedUpstream

PIECES = ["Water ", "flows ", "to the 🌊", " and more."]
TEXT = "".join(PIECES)
PUBLISHED = "".join(PIECES[:3])

QUESTION: Any = [{"role": "user", "content": "Rivers?"}]
KEY = {"Idempotency-Key": "k1"}

Ask = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


class Stopped:
    """A server, and its client with the default retries.

    Attributes:
        sent: The requests of the client.
        client: The client.
        upstream: The provider.
    """

    def __init__(self, folder: Path, upstream: ScriptedUpstream) -> None:
        self.sent: list[Any] = []
        self.upstream = upstream
        self._folder = folder
        self._arguments = arguments_of(folder, upstream, "openai")

    @asynccontextmanager
    async def running(self, name: str) -> AsyncGenerator[Served]:
        """Run the server."""

        async def sent(request: Any) -> None:
            self.sent.append(request)

        grace = {"TAILRACE_SHUTDOWN_GRACE": "0"}
        http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [sent]}, timeout=60)
        with served(self._folder / name, *self._arguments, **grace) as process:
            await process.ready()
            async with openai.AsyncOpenAI(
                base_url=f"{process.url}/v1", api_key="none", http_client=http
            ) as self.client:
                yield process

    async def stopped_during(self, ask: Ask) -> Any:
        """Return the result of a request during which the server is stopped."""
        results: list[Any] = []
        async with self.running("first.log") as process, anyio.create_task_group() as group:

            async def send() -> None:
                results.append(await ask(self.client))

            group.start_soon(send)
            with anyio.fail_after(30):
                await self.upstream.received()
                process.process.send_signal(signal.SIGTERM)
        return results[0]

    async def error_of(self, ask: Ask) -> openai.APIStatusError:
        """Return the error of a request during which the server is stopped."""

        async def failing(client: openai.AsyncOpenAI) -> openai.APIStatusError:
            with pytest.raises(openai.APIStatusError) as raised:
                await ask(client)
            return raised.value

        return await self.stopped_during(failing)


@asynccontextmanager
async def stopped(folder: Path) -> AsyncGenerator[Stopped]:
    """A server whose first response delivers `PUBLISHED` and then nothing."""
    server = ContinuingServer("llamacpp", PIECES, ending="silence")
    server.cut = server.first_body.index(b" and more.")
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        yield Stopped(folder, upstream)


def message_of(error: openai.APIError) -> str:
    """Return the message of the server."""
    body: Any = error.body
    return str(body["message"])


async def completed(client: openai.AsyncOpenAI, response_id: str) -> Any:
    """Return a response at its end."""
    stream = await client.responses.retrieve(response_id, stream=True)
    return [event async for event in stream][-1]


async def test_a_client_gets_a_suspended_response_by_its_id(tmp_path: Path) -> None:
    """The client does not send the request again by itself: its message would be processed twice."""
    async with stopped(tmp_path) as server:
        error = await server.error_of(lambda client: client.responses.create(model="m", input="Rivers?"))
        assert (error.code, error.response.headers["x-should-retry"]) == ("server_stopping", "false")
        assert [request.method for request in server.sent] == ["POST"]
        [response_id] = re.findall("get it with GET /v1/responses/([^ ,]+)$", message_of(error))
        async with server.running("second.log"):
            last = await completed(server.client, response_id)
    assert last.type == "response.completed"
    assert last.response.output_text.endswith(TEXT)


async def test_a_chat_completion_of_a_stopped_server_is_not_requested_again(tmp_path: Path) -> None:
    async with stopped(tmp_path) as server:
        error = await server.error_of(
            lambda client: client.chat.completions.create(model="m", messages=QUESTION, store=True)
        )
        assert [request.method for request in server.sent] == ["POST"]
        [completion_id] = re.findall("get it with GET /v1/chat/completions/([^ ,]+)$", message_of(error))
        async with server.running("second.log") as process:
            task_id = error.response.headers["x-task-id"]
            async with Rpc(process.url) as rpc:
                await rpc.stream("SubscribeToTask", {"id": task_id}, {"Last-Event-ID": "0"})
            completion = await server.client.chat.completions.retrieve(completion_id)
    assert str(completion.choices[0].message.content).endswith(TEXT)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_request_with_a_key_is_repeated_and_processed_once(api: str, tmp_path: Path) -> None:
    async def ask(client: openai.AsyncOpenAI) -> str:
        if api == "chat":
            completion = await client.chat.completions.create(model="m", messages=QUESTION, extra_headers=KEY)
            return str(completion.choices[0].message.content)
        response = await client.responses.create(model="m", input="Rivers?", store=False, extra_headers=KEY)
        return response.output_text

    async with stopped(tmp_path) as server:
        error = await server.error_of(lambda client: ask(client.with_options(max_retries=0)))
        assert "x-should-retry" not in error.response.headers
        assert message_of(error).endswith("repeat the request with the same Idempotency-Key")
        async with server.running("second.log") as process:
            text = await ask(server.client)
            async with Rpc(process.url) as rpc:
                tasks = (await rpc.result("ListTasks", {}))["tasks"]
    assert text.endswith(TEXT)
    assert len(tasks) == 1


async def test_a_stream_of_a_suspended_response_is_resumed_without_a_gap(tmp_path: Path) -> None:
    """The stream ends with an error, but not with `response.failed`."""
    events: list[Any] = []
    async with stopped(tmp_path) as server:
        async with server.running("first.log") as process:
            stream = await server.client.responses.create(model="m", input="Rivers?", stream=True)

            async def read() -> None:
                async for event in stream:
                    events.append(event)
                    if "".join(texts(events)) == PUBLISHED:
                        process.process.send_signal(signal.SIGTERM)

            with pytest.raises(openai.APIError) as raised:
                await read()
        assert raised.value.code == "server_stopping"
        assert events[-1].type == "response.output_text.delta"
        number = events[-1].sequence_number
        async with server.running("second.log"):
            response_id = events[0].response.id
            rest = await server.client.responses.retrieve(response_id, stream=True, starting_after=number)
            events += [event async for event in rest]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert ("".join(texts(events)), events[-1].type) == (TEXT, "response.completed")


async def test_the_error_at_the_end_of_a_stream_has_the_number_of_the_last_event(tmp_path: Path) -> None:
    body = {"model": "m", "input": "Rivers?", "stream": True}
    async with stopped(tmp_path) as server:
        text = await server.stopped_during(lambda client: client.post("/responses", body=body, cast_to=str))
    *events, error = [json.loads(data) for data in re.findall("^data: (.*)$", text, re.MULTILINE)]
    assert (error["type"], error["code"]) == ("error", "server_stopping")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert error["sequence_number"] == events[-1]["sequence_number"]


def texts(events: list[Any]) -> list[str]:
    """Return the text of each delta."""
    return [event.delta for event in events if event.type == "response.output_text.delta"]
