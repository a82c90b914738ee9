"""A moderation endpoint checks windows of the text: text without a verdict, and flagged text, is on no wire."""

import json
import logging
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from pydantic import SecretStr

from support.crashes import across_a_crash
from support.engines import begin, engine_with, read, shown, start
from support.live_server import serving
from support.random_seeds import EVERY_TIME_OTHERS
from support.rpc import Rpc, message, streamed_text
from support.upstream import (
    Cut,
    Hang,
    Head,
    Received,
    ScriptedUpstream,
    SetEvent,
    Step,
    Wait,
    json_answer,
    openai_chunk,
    openai_stream,
    sse,
)
from tailrace.server import FilterError, Settings, create_app
from tailrace.server.runtime.handlers import Item, Turn
from tailrace.server.runtime.moderation_filter import ModerationFilter
from tailrace.server.runtime.stream_filter import BlockedError, StreamFilter
from tailrace.server.runtime.word_filters import WordFilter
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta
from tailrace.wrappers import ConfigurationError

CASES = int(os.environ.get("TAILRACE_TEST_FILTER_CASES", "30"))
"""Random divisions of a text; the torture run takes more."""

WORD = "forbidden"
SHORT = 12  # characters of a window


def verdict(request: Received) -> list[Step]:
    """The verdict for a text: flagged if it has the word."""
    assert request.path.endswith("/moderations")
    assert request.headers["authorization"] == "Bearer key"
    assert request.json["model"] == "omni-moderation-latest"
    return json_answer({"id": "m", "results": [{"flagged": WORD in request.json["input"]}]})


Script = Callable[[Received], Sequence[Step]]


@asynccontextmanager
async def moderation(
    script: Script | Sequence[Step] = verdict, **arguments: Any
) -> AsyncGenerator[tuple[ModerationFilter, ScriptedUpstream]]:
    """A filter with an endpoint."""
    async with ScriptedUpstream(script) as endpoint:
        given: dict[str, Any] = {"window": SHORT, "delay": 0, **arguments}
        moderated = ModerationFilter(base_url=endpoint.base_url, api_key="key", **given)
        try:
            yield moderated, endpoint
        finally:
            await moderated.aclose()


@asynccontextmanager
async def moderating(
    script: Script | Sequence[Step],
    *filters: StreamFilter,
    store: str = "sqlite://",
    input_filters: Sequence[StreamFilter] = (),
) -> AsyncGenerator[tuple[Rpc, ScriptedUpstream]]:
    """A server with filters over a scripted provider."""
    async with ScriptedUpstream(script, lists_models=True) as upstream:
        settings = Settings(
            store=store, model="openai:m", base_url=upstream.base_url, api_key=SecretStr("none")
        )
        app = create_app(settings, filters=filters, input_filters=input_filters)
        async with serving(app) as url, Rpc(url) as rpc:
            yield rpc, upstream


Events = list[tuple[int, dict[str, Any]]]


def bytes_of(folder: Path) -> bytes:
    """The content of all files: the database and its journal."""
    return b"".join(path.read_bytes() for path in folder.iterdir())


def status_of(events: Events) -> tuple[str, str, str]:
    """The state, message and finish reason at the end of a stream."""
    update = events[-1][1]["statusUpdate"]
    parts = update["status"].get("message", {}).get("parts", [])
    text = parts[0]["text"] if parts else ""
    return update["status"]["state"], text, json.dumps(update.get("metadata", {}))


async def passed(moderated: ModerationFilter, pieces: Sequence[str]) -> str:
    """The text that a stream publishes before it ends the turn."""
    stream = moderated.open()
    given: list[str] = []

    async def feed() -> None:
        try:
            for piece in pieces:
                given.append(await stream.feed(piece))  # noqa: PERF401 — what was published before an error counts
            given.append(await stream.close())
        except BlockedError:
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(stream.run, lambda: None)
        group.start_soon(feed)
    return "".join(given)


@pytest.mark.timeout(3000)
async def test_a_flagged_window_is_not_published_for_any_deltas() -> None:
    chance = random.Random(None if EVERY_TIME_OTHERS else 1)
    async with moderation() as (moderated, _):
        for _ in range(CASES):
            text = "".join(chance.choices([WORD, "forbid", "den", " fine ", "é🌊", "\n"], k=8))
            cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(12)))
            pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            published = await passed(moderated, pieces)
            assert text.startswith(published)
            assert WORD not in published
            assert WORD in text or published == text


async def test_a_word_in_many_short_windows_is_flagged() -> None:
    async with moderation() as (moderated, endpoint):
        stream = moderated.open()
        published = ""
        async with anyio.create_task_group() as group:
            group.start_soon(stream.run, lambda: None)
            for number, piece in enumerate(["it is ", "for", "bid", "den"]):
                published += await stream.feed(piece)
                stream.flush()
                await endpoint.received(number)
            with pytest.raises(BlockedError):
                await stream.close()
            group.cancel_scope.cancel()
    assert WORD not in published
    assert endpoint.requests[-1].json["input"] == "it is forbidden"


async def test_cleared_text_is_published_while_the_provider_sends_nothing() -> None:
    go_on = anyio.Event()
    steps = [*openai_stream(["Hello, "], finish=None), Wait(go_on), *openai_stream(["world"])]
    async with (
        moderation(window=1000) as (moderated, endpoint),
        moderating(steps, moderated) as (rpc, _),
    ):

        def see(events: Events) -> None:
            if "Hello, " in streamed_text(events):
                go_on.set()

        events = await rpc.stream("SendStreamingMessage", message("hi"), seen=see)
    assert streamed_text(events) == "Hello, world"
    assert [each.json["input"] for each in endpoint.requests] == ["Hello, ", "Hello, world"]


async def test_a_slow_verdict_holds_only_its_window_and_those_after_it() -> None:
    slow, first, last = anyio.Event(), anyio.Event(), anyio.Event()

    def script(request: Received) -> Sequence[Step]:
        text = request.json["input"]
        if text.endswith("b" * SHORT):
            return [Wait(slow), *verdict(request)]
        if text.endswith("c" * SHORT):
            return [*verdict(request), SetEvent(last)]
        return verdict(request)

    async def release() -> None:
        await first.wait()
        await last.wait()
        slow.set()

    def see(events: Events) -> None:
        if not slow.is_set() and streamed_text(events):
            assert streamed_text(events) == "a" * SHORT
            first.set()

    text = "a" * SHORT + "b" * SHORT + "c" * SHORT
    async with (
        moderation(script) as (moderated, _),
        moderating(openai_stream([text]), moderated) as (rpc, _),
        anyio.create_task_group() as group,
    ):
        group.start_soon(release)
        events = await rpc.stream("SendStreamingMessage", message("hi"), seen=see)
        assert streamed_text(events) == text


async def test_a_flagged_window_ends_the_turn_while_the_provider_sends_nothing() -> None:
    script = [*openai_stream(["All is fine. ", f"{WORD} things"], finish=None), Hang()]
    async with moderation() as (moderated, _), moderating(script, moderated) as (rpc, upstream):
        events = await rpc.stream("SendStreamingMessage", message("hi"))
        await (await upstream.received()).client_left.wait()
    state, text, metadata = status_of(events)
    assert (state, text) == ("TASK_STATE_FAILED", "a filter of the server stopped the response")
    assert "content_filter" in metadata
    assert WORD not in json.dumps(events)
    assert "All is fine." in streamed_text(events)


@pytest.mark.parametrize("kind", ["reasoning", "arguments"])
async def test_reasoning_and_arguments_are_checked(kind: str, tmp_path: Path) -> None:
    function = {"name": "look", "arguments": json.dumps({"a": WORD})}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    delta = {"reasoning_content": WORD} if kind == "reasoning" else {"tool_calls": [call]}
    script = [sse(openai_chunk(delta), openai_chunk({}, finish="tool_calls"), "[DONE]")]
    async with (
        moderation() as (moderated, _),
        moderating(script, moderated, store=f"sqlite:///{tmp_path / 'tasks.db'}") as (rpc, _),
    ):
        events = await rpc.stream("SendStreamingMessage", message("hi"))
    assert "content_filter" in status_of(events)[2]
    assert WORD not in json.dumps(events)
    assert WORD.encode() not in bytes_of(tmp_path)


async def test_each_window_is_checked_once_and_metadata_is_not() -> None:
    script = openai_stream(["one two"], usage={"prompt_tokens": 1, "completion_tokens": 2})
    async with moderation(delay=60) as (moderated, endpoint), moderating(script, moderated) as (rpc, _):
        await rpc.stream("SendStreamingMessage", message("hi"))
    assert [each.json["input"] for each in endpoint.requests] == ["one two"]


async def test_usage_is_recorded() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    script = openai_stream(["one two"], usage=usage)
    async with moderation() as (moderated, _), moderating(script, moderated) as (rpc, _):
        await rpc.stream("SendStreamingMessage", message("hi"))
        async with rpc.http.get(f"{rpc.url}/usage") as response:
            total = (await response.json())["total"]
    assert (total["attempts"], total["input_tokens"], total["output_tokens"]) == (1, 3, 4)


FAILURES: dict[str, tuple[Sequence[Step], str]] = {
    "status": (
        [Head(500, {"x-should-retry": "false", "content-length": "6"}, chunked=False), b"secret"],
        "HTTP 500",
    ),
    "no result": (json_answer({"results": []}), "invalid_stream"),
    "no JSON": ([Head(200, {"content-length": "6"}, chunked=False), b"secret"], "invalid_stream"),
    "cut": ([Head(200, {"content-length": "9"}, chunked=False), b"secret", Cut()], "stream_truncated"),
    "timeout": ([Hang()], "no verdict within 0.05 seconds"),
}


@pytest.mark.parametrize("on_error", ["block", "pass"])
@pytest.mark.parametrize("kind", FAILURES)
async def test_a_failing_endpoint_ends_the_turn_or_passes(
    kind: str, on_error: Literal["block", "pass"], caplog: pytest.LogCaptureFixture
) -> None:
    steps, reason = FAILURES[kind]
    timeout = 0.05 if kind == "timeout" else 30
    async with (
        moderation(steps, timeout=timeout, on_error=on_error) as (moderated, _),
        moderating(openai_stream(["some text, ", "and more text"]), moderated) as (rpc, _),
    ):
        events = await rpc.stream("SendStreamingMessage", message("hi"))
    text = streamed_text(events)
    problem = f"the moderation endpoint failed: {reason}"
    if on_error == "block":
        assert status_of(events)[:2] == ("TASK_STATE_FAILED", problem)
        assert not text
    else:
        assert status_of(events)[0] == "TASK_STATE_COMPLETED"
        assert text == "some text, and more text"
        assert caplog.text.count("is published unchecked") == 1
    assert problem in caplog.text
    assert "secret" not in caplog.text


async def test_a_message_of_a_caller_is_checked() -> None:
    async with (
        moderation() as (moderated, _),
        moderating(openai_stream(["hi"]), input_filters=[moderated]) as (
            rpc,
            upstream,
        ),
    ):
        error = await rpc.error("SendMessage", message(f"a text with a {WORD} word, and more"))
        assert error["data"][0]["reason"] == "CONTENT_FILTERED"
        assert not upstream.requests
        await rpc.stream("SendStreamingMessage", message("a long text without such a word"))


async def test_a_message_is_refused_if_the_endpoint_fails() -> None:
    async with (
        moderation(json_answer({}, 403)) as (moderated, _),
        moderating(openai_stream(["hi"]), input_filters=[moderated]) as (rpc, _),
    ):
        error = await rpc.error("SendMessage", message("hello"))
    assert "the moderation endpoint failed: HTTP 403" in json.dumps(error)


async def test_a_task_is_cancelled_while_a_verdict_is_awaited() -> None:
    script = [*openai_stream(["some text"], finish=None), Hang()]
    async with (
        moderation([Hang()]) as (moderated, endpoint),
        moderating(script, moderated) as (rpc, upstream),
    ):
        sent = {**message("hi"), "configuration": {"returnImmediately": True}}
        task_id = (await rpc.result("SendMessage", sent))["task"]["id"]
        checked = await endpoint.received()
        task = await rpc.result("CancelTask", {"id": task_id})
        assert task["status"]["state"] == "TASK_STATE_CANCELED"
        await checked.client_left.wait()
        await (await upstream.received()).client_left.wait()
        assert "some" not in json.dumps(await rpc.result("GetTask", {"id": task_id}))


@pytest.mark.parametrize("position", [0, 1])
async def test_a_chain_with_another_filter(position: int) -> None:
    filters: list[StreamFilter] = [WordFilter(["one two"])]
    async with moderation() as (moderated, _):
        filters.insert(position, moderated)
        script = openai_stream(["a one", " two b", " c, and on"])
        async with moderating(script, *filters) as (rpc, _):
            events = await rpc.stream("SendStreamingMessage", message("hi"))
    assert streamed_text(events) == "a [blocked] b c, and on"


async def test_a_handler_continues_when_its_updates_are_applied_and_fails_as_before() -> None:
    left: list[str] = []

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        scope = anyio.CancelScope()
        scope.__enter__()  # open across updates: all updates must be read in one asyncio task
        try:
            yield StatusUpdate(TaskState.WORKING)
            yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="some "),)), last=False)
            yield TextDelta("a", "text")
            await turn.wait_until_persisted()
            raise FilterError("not a filter")
        finally:
            scope.__exit__(None, None, None)
            await anyio.lowlevel.checkpoint()
            left.append("closed")

    async with moderation() as (moderated, _), engine_with(handle, filters=[moderated]) as engine:
        events = await read(await start(engine))
    body = b"".join(event.body for event in events).decode()
    assert "the agent failed" in body
    assert '"some ' in body
    assert left == ["closed"]


def test_invalid_arguments_are_refused() -> None:
    for arguments in ({"window": 0}, {"window": 5000}, {"delay": -1}, {"timeout": 0}, {"on_error": "x"}):
        given: Any = arguments
        with pytest.raises(ConfigurationError):
            ModerationFilter(api_key="key", **given)


async def test_a_complete_text_is_checked_in_bounded_parts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    text = "fine " * 2000
    async with moderation(window=1000) as (moderated, endpoint):
        stream = moderated.open()
        assert await stream.feed(text) + await stream.close() == text
        assert len(endpoint.requests) == 10
        stream = moderated.open()
        assert await stream.feed(text[:4000] + WORD) == ""
        with pytest.raises(BlockedError):
            await stream.close()
    assert WORD not in caplog.text


async def test_a_flagged_text_that_a_crash_divides_ends_the_turn(tmp_path: Path) -> None:
    async with moderation(window=100) as (moderated, endpoint):
        before, after = [*begin("Hello. forbid")], [TextDelta("text", "den things.", last=True)]
        events = await across_a_crash(tmp_path, [moderated], before, 4, after)
    assert shown(events) == "Hello. forbid"
    assert "content_filter" in events[-1].body.decode()
    assert endpoint.requests[-1].json["input"] == "Hello. forbidden things."


# --- thresholds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thresholds", "scores", "flags", "is_flagged"),
    [
        ({"violence": 0.5}, {"violence": 0.5}, {"violence": False}, True),
        ({"violence": 0.5}, {"violence": 0.49}, {"violence": True}, False),
        ({"violence": 0.5}, {"violence": 0.1, "hate": 0.9}, {"violence": False, "hate": True}, True),
        ({"violence": 0.5}, {"violence": 0.1, "hate": 0.9}, {"violence": True, "hate": False}, False),
        ({"violence": 1, "hate": 0.2}, {"violence": 0.9, "hate": 0.3}, {"violence": True}, True),
        ({}, {"violence": 0.9}, {"violence": False}, False),
        ({"violence": 0.5}, {"violence": 0.1}, {"violence": False, "hate": False}, False),
    ],
)
async def test_thresholds_replace_the_decision_of_the_endpoint(
    thresholds: dict[str, float], scores: dict[str, float], flags: dict[str, bool], is_flagged: bool
) -> None:
    result = {"flagged": any(flags.values()), "categories": flags, "category_scores": scores}
    async with moderation(json_answer({"results": [result]}), thresholds=thresholds) as (moderated, _):
        assert await moderated.is_flagged("text") is is_flagged


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (
            {"flagged": False, "categories": {}, "category_scores": {"hate": 0.1}},
            "the moderation model has no score for the category 'violence'",
        ),
        ({"flagged": False}, "the moderation endpoint failed: invalid_stream"),
        (
            {"flagged": False, "categories": {}, "category_scores": {"violence": float("nan")}},
            "the moderation endpoint failed: invalid_stream",
        ),
    ],
)
async def test_without_a_score_there_is_no_verdict(result: dict[str, Any], problem: str) -> None:
    script = json_answer({"results": [result]})
    async with moderation(script, thresholds={"violence": 0.5}) as (moderated, _):
        with pytest.raises(FilterError, match=problem):
            await moderated.is_flagged("text")


async def test_a_text_that_is_flagged_without_a_category_is_flagged() -> None:
    result = {"flagged": True, "categories": {"violence": False}, "category_scores": {"violence": 0.1}}
    async with moderation(json_answer({"results": [result]}), thresholds={"violence": 0.5}) as (moderated, _):
        assert await moderated.is_flagged("text")


@pytest.mark.parametrize("threshold", [0, -0.1, 1.1, float("nan"), "0.5", True, None])
def test_a_threshold_is_a_score(threshold: Any) -> None:
    with pytest.raises(ConfigurationError, match="the threshold of the category 'violence'"):
        ModerationFilter(api_key="key", thresholds={"violence": threshold})
