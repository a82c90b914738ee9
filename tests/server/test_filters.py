"""Filtered turns on every wire: no forbidden text is sent, stored, logged, or returned to the provider."""

import json
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from pydantic import SecretStr

from support.continuing import ContinuingServer
from support.crashes import across_a_crash
from support.engines import begin, engine_with, read, shown, start
from support.forbidden_texts import texts_of
from support.live_server import serving
from support.random_seeds import EVERY_TIME_OTHERS
from support.rpc import Rpc, message
from support.ui_streams import RUN
from support.upstream import Hang, Received, ScriptedUpstream, Step, openai_chunk, openai_stream, sse
from tailrace.server import Settings, create_app
from tailrace.server.runtime.handlers import Item, Turn
from tailrace.server.runtime.stream_filter import FilterStream, StreamFilter
from tailrace.server.runtime.word_filters import RegexFilter, WordFilter
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta
from tailrace.wrappers import ConfigurationError, SSEDecoder
from torture import filters as forbidden_texts_scenario

CASES = int(os.environ.get("TAILRACE_TEST_FILTER_CASES", "50"))
"""Random responses of the scenario; `make torture` takes 10,000."""

WORD = "Forbidden Ägypten"
NUMBER = "4111-1111"
FILTERS = (WordFilter([WORD]), RegexFilter(r"\d{4}-\d{4}", max_match=12))
MESSAGE = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
USER = [{"role": "user", "content": "hi"}]
TOOL = {"name": "look", "parameters": {"type": "object"}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a2a": ("/", {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message("hi")}),
    "chat": ("/v1/chat/completions", {"model": "m", "messages": USER, "stream": True}),
    "responses": ("/v1/responses", {"model": "m", "input": "hi", "stream": True}),
    "ai-sdk": ("/ai-sdk", {"id": "c1", "messages": [MESSAGE], "trigger": "submit-message"}),
    "ag-ui": ("/ag-ui", {**RUN, "messages": [{"id": "u1", "role": "user", "content": "hi"}]}),
}


def is_clean(text: str) -> bool:
    """No forbidden text, in any case."""
    return WORD.casefold() not in text.casefold() and NUMBER not in text


async def post(url: str, wire: str, **members: Any) -> list[Any]:
    """The events of a stream; its bytes have no forbidden text."""
    path, body = BODIES[wire]
    if wire == "a2a":
        headers = {"A2A-Version": "1.0"}
    else:
        headers = {"accept": "text/event-stream"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + path, json={**body, **members}, headers=headers) as response,
    ):
        data = await response.read()
        assert response.status == 200, data
    assert is_clean(data.decode())
    events = [json.loads(each.data) for each in SSEDecoder().feed(data) if each.data != b"[DONE]"]
    for text in texts_of(events).values():
        assert is_clean(text)
    return events


@asynccontextmanager
async def filtering(
    script: Callable[[Received], Sequence[Step]], store: str = "sqlite://", **options: Any
) -> AsyncGenerator[tuple[str, ScriptedUpstream]]:
    """A server with filters over a scripted provider."""
    async with ScriptedUpstream(script, lists_models=True) as upstream:
        settings = Settings(
            store=store, model="openai:m", base_url=upstream.base_url, api_key=SecretStr("none"), **options
        )
        async with serving(create_app(settings, filters=FILTERS)) as url:
            yield url, upstream


@pytest.mark.timeout(3000)
async def test_no_forbidden_text_leaves_the_server_on_any_way(tmp_path: Path) -> None:
    """On no wire, in no webhook, database, broker, log, trace or metric, with each filter. `make torture` also kills servers."""
    chance = random.Random(None if EVERY_TIME_OTHERS else 1)
    outcome = await forbidden_texts_scenario.run(tmp_path, chance, cases=CASES, kills=0)
    assert not outcome.violated, outcome.explain()


def calls_in(events: Sequence[Any]) -> tuple[list[Any], dict[str, str]]:
    """The tool calls in the artifacts, and all texts of the events."""
    entries: list[Any] = []
    for event in events:
        update = event["result"].get("artifactUpdate")
        for part in update["artifact"]["parts"] if update is not None else ():
            entries += part.get("data", {}).get("tool_calls", [])
    return entries, texts_of(events)


def calling(arguments: str, finish: str = "tool_calls") -> list[bytes]:
    """A response that is a tool call."""
    function = {"name": "look", "arguments": arguments}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    return [sse(openai_chunk({"tool_calls": [call]}), openai_chunk({}, finish=finish), "[DONE]")]


async def test_escapes_in_the_json_text_of_arguments_do_not_hide_a_match() -> None:
    async with filtering(lambda _: calling(json.dumps({"a": f"{WORD}!"}))) as (url, _):
        [entry], texts = calls_in(await post(url, "a2a"))
    assert entry == {"call_id": "c1", "name": "look", "arguments": {"a": "[blocked]!"}}
    assert not any("gypten" in text for text in texts.values())


async def test_escapes_in_incomplete_arguments_do_not_hide_a_match() -> None:
    arguments = json.dumps({"a": f"{WORD}!\n"}).removesuffix('"}')
    async with filtering(lambda _: calling(arguments, "length")) as (url, _):
        [entry], texts = calls_in(await post(url, "a2a"))
    assert entry["arguments_text"] == '{"a": "[blocked]!\n'
    assert not any("gypten" in text for text in texts.values())


async def test_arguments_without_a_match_keep_the_text_of_the_model() -> None:
    async with filtering(lambda _: calling('{"a":"\\u00e9"}')) as (url, _):
        [entry], texts = calls_in(await post(url, "a2a"))
    assert entry["arguments"] == {"a": "é"}
    assert texts["argumentsText"].startswith('{"a":"\\u00e9"}')


async def test_data_beside_tool_calls_is_filtered() -> None:
    data: dict[str, Any] = {"tool_calls": [{"call_id": "c", "name": "look"}], "note": WORD}

    async def handle(_: Turn) -> AsyncIterator[Item]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(data=data),)))

    async with engine_with(handle, filters=FILTERS) as engine:
        events = await read(await start(engine))
    assert '"note":"[blocked]"' in "".join(each.body.decode() for each in events)


@pytest.mark.parametrize("wire", BODIES)
async def test_the_text_around_a_match_is_complete(wire: str) -> None:
    pieces = ["before forbid", "den ÄGY", "pten between 4111", "-1111", " after"]
    async with filtering(lambda _: openai_stream(pieces)) as (url, _):
        events = await post(url, wire)
    expected = "before [blocked] between [blocked] after"
    assert any(expected in text for text in texts_of(events).values())


async def test_the_next_request_has_the_filtered_conversation() -> None:
    async with (
        filtering(lambda _: openai_stream(["a forbidden ", "ägypten", " b"])) as (url, upstream),
        Rpc(url) as rpc,
    ):
        events = await rpc.stream("SendStreamingMessage", message("one"))
        context = events[0][1]["task"]["contextId"]
        await rpc.stream("SendStreamingMessage", message("two", contextId=context))
        second = await upstream.received(1)
    assert [each["content"] for each in second.json["messages"]] == ["one", "a [blocked] b", "two"]


async def test_choices_are_filtered_separately() -> None:
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}
        for text, index in (("forbidden ", 0), ("x", 1), ("ägypten", 0), ("forbidden ägypten", 1))
    ]
    ends: list[dict[str, Any]] = [
        {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in (0, 1)
    ]
    parts = [{"id": "c", "object": "chat.completion.chunk", "model": "m", **each} for each in chunks + ends]
    async with filtering(lambda _: [sse(*parts, "[DONE]")]) as (url, _):
        events = await post(url, "a2a")
    texts = {"text": "", "text-choice-1": ""}
    for event in events:
        update = event["result"].get("artifactUpdate")
        if update is not None:
            texts[update["artifact"]["artifactId"]] += update["artifact"]["parts"][0]["text"]
    assert texts == {"text": "[blocked]", "text-choice-1": "x[blocked]"}


@pytest.mark.parametrize("kind", ["llamacpp", "other"])
async def test_a_word_that_a_cut_divides_is_filtered_once(kind: str) -> None:
    server = ContinuingServer(kind, ["one ", "forbidden ", "ägypten", " two"])
    server.cut = (
        server.first_body.index("ägypten".encode())
        if "ägypten".encode() in server.first_body
        else (server.first_body.index(b"gypten"))
    )
    async with filtering(server.respond) as (url, _):
        events = await post(url, "a2a")
        results = [event["result"] for event in events]
    text = ""
    for update in (each["artifactUpdate"] for each in results if "artifactUpdate" in each):
        added = "".join(part["text"] for part in update["artifact"]["parts"])
        text = text + added if update.get("append") else added
    assert text.endswith("one [blocked] two")
    assert text.count("[blocked]") == 1


async def test_an_error_of_the_provider_is_filtered(caplog: pytest.LogCaptureFixture) -> None:
    error = {"error": {"message": f"cannot say {WORD}", "type": "invalid_request_error", "code": "c"}}
    async with filtering(lambda _: [sse(openai_chunk({"content": "part"}), error)]) as (url, _):
        events = await post(url, "a2a")
    assert events[-1]["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"
    assert is_clean(caplog.text)


async def test_a_filter_ends_the_turn_and_closes_the_connection_of_the_provider() -> None:
    script = [*openai_stream(["fine. ", "ba", "d", " more"], finish=None), Hang()]
    async with ScriptedUpstream(lambda _: script, lists_models=True) as upstream:
        settings = Settings(
            store="sqlite://", model="openai:m", base_url=upstream.base_url, api_key=SecretStr("none")
        )
        async with serving(create_app(settings, filters=[WordFilter(["bad"], None)])) as url:
            events = await post(url, "a2a")
            await (await upstream.received()).client_left.wait()
    status = events[-1]["result"]["statusUpdate"]
    assert status["status"]["state"] == "TASK_STATE_FAILED"
    assert "filter" in status["status"]["message"]["parts"][0]["text"]
    assert "content_filter" in json.dumps(status["metadata"])


class Broken(StreamFilter, FilterStream):
    """A filter whose error contains the text."""

    def open(self) -> FilterStream:
        return self

    async def feed(self, text: str) -> str:
        raise RuntimeError(text)

    async def close(self) -> str:
        return ""


class Slow(Broken):
    """A filter that does not return."""

    def __init__(self) -> None:
        self.entered = anyio.Event()

    async def feed(self, text: str) -> str:
        self.entered.set()
        await anyio.sleep_forever()
        return text


async def _handle(_: Turn) -> AsyncIterator[Item]:
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="for"),)), last=False)
    yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="bidden "),)), append=True, last=False)
    yield TextDelta("a", "ägypten 4111")
    yield TextDelta("a", "-1111 end")


async def test_the_updates_of_a_custom_handler_are_filtered() -> None:
    async with engine_with(_handle, filters=FILTERS) as engine:
        events = await read(await start(engine))
    text = "".join(texts_of([json.loads(each.body) for each in events])["text"])
    assert text == "hello[blocked] [blocked] end"  # the caller's message is not filtered


async def test_a_tool_call_that_a_crash_divides_is_published_when_it_is_complete(tmp_path: Path) -> None:
    arguments = {"a": WORD}
    artifact = Artifact(
        artifact_id="c1", parts=(Part(text=""),), metadata={EXTENSION_URI: {"channel": "tool_call"}}
    )
    call = {"tool_calls": [{"call_id": "c1", "name": "look", "arguments": arguments}]}
    complete = artifact.model_copy(update={"parts": (Part(data=call),)})
    before = [*begin()[:1], ArtifactUpdate(artifact, last=False), TextDelta("c1", '{"a":')]
    after = [TextDelta("c1", json.dumps(arguments)), ArtifactUpdate(complete)]
    events = await across_a_crash(tmp_path, FILTERS, before, 3, after)
    assert [json.loads(each.body).get("artifactUpdate", {}).get("append", False) for each in events] == [
        False
    ] * len(events)
    assert json.dumps(WORD)[1:-1] not in "".join(each.body.decode() for each in events)
    assert '"a":"[blocked]"' in events[-2].body.decode()


async def test_halves_of_a_character_in_two_deltas_are_joined_before_they_are_filtered() -> None:
    filters = (RegexFilter("x", max_match=8), WordFilter(["🌊"]))
    deltas = ["a\ud83c", "\udf0ab\ud83c", "c\ud83c"]

    async def handle(_: Turn) -> AsyncIterator[Item]:
        for update in [*begin(), *(TextDelta("text", each) for each in deltas)]:
            yield update

    async with engine_with(handle, filters=filters) as engine:
        assert shown(await read(await start(engine))) == "a[blocked]b\ufffdc\ufffd"


async def test_the_error_of_a_filter_is_not_published_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with engine_with(_handle, filters=[Broken()]) as engine:
        events = await read(await start(engine))
    body = events[-1].body.decode()
    assert "a filter of the server failed" in body
    assert "a filter failed with RuntimeError" in caplog.text
    assert "bidden" not in caplog.text + "".join(each.body.decode() for each in events)


async def test_a_task_is_cancelled_while_a_filter_runs() -> None:
    slow = Slow()
    async with engine_with(_handle, filters=[slow]) as engine:
        subscription = await start(engine)
        await slow.entered.wait()
        task = await engine.cancel_task(subscription.task_id, "")
    assert task.status.state is TaskState.CANCELED


async def _raise(_: Turn) -> AsyncIterator[Item]:
    yield StatusUpdate(TaskState.WORKING)
    raise ValueError(WORD)


async def test_the_error_of_a_handler_is_not_logged_if_it_has_forbidden_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with engine_with(_raise, filters=FILTERS) as engine:
        events = await read(await start(engine))
    assert "TASK_STATE_FAILED" in events[-1].body.decode()
    assert is_clean(caplog.text)


def test_spans_with_messages_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("bad\n")
    with pytest.raises(ConfigurationError, match="TAILRACE_TRACE_CONTENT"):
        create_app(
            Settings(
                store="sqlite://",
                model="openai:m",
                api_key=SecretStr("k"),
                filters=(str(path),),
                trace_content=True,
            )
        )
