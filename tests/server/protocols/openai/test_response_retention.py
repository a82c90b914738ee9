"""Responses that are read again on a later day of the server's clock."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import time_machine

from support.openai_api import MODEL, facade_over, send_further_message
from support.response_streams import Frames, RawClient, raw_client
from support.rounds import answer
from support.upstream import Cut, Hang, ScriptedUpstream, SetEvent, Step, Wait
from tailrace.server.settings import Bounds

DAY = 86_400
WEATHER: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
BODY = {"model": MODEL, "input": "Count.", "background": True}
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def server_at(time: datetime, upstream: ScriptedUpstream, store: Path) -> AsyncGenerator[RawClient]:
    """Run a server on a store, with a clock that begins at a time; events are stored for two days."""
    with time_machine.travel(time, tick=True):
        async with facade_over(upstream, store=f"sqlite:///{store}", retention={"events": 2 * DAY}) as facade:
            async with raw_client(facade.url) as raw:
                yield raw


async def until_dropped(raw: RawClient, response: Frames) -> None:
    """Wait until the server has dropped the events of a response; it does so when it starts."""
    path = f"/responses/{response.response['id']}"
    while await raw.status(path, stream="true", starting_after="0") == 200:
        pass
    refused = await raw.json("GET", path, stream="true", starting_after="0")
    assert refused["error"]["code"] == "stream_expired"
    assert await raw.status(path, stream="true", starting_after="0") == 410


@pytest.mark.parametrize("hours", [25, 47])
async def test_a_response_is_the_same_after_more_than_a_day(tmp_path: Path, hours: int) -> None:
    store = tmp_path / "t.db"
    async with ScriptedUpstream(*[answer("one ", "two", reasoning="hmm")] * 2) as upstream:
        async with server_at(START - timedelta(days=1), upstream, store) as raw:
            older = await raw.stream("/responses", BODY)
        async with server_at(START, upstream, store) as raw:
            first = await raw.stream("/responses", BODY)
        async with server_at(START + timedelta(hours=hours), upstream, store) as raw:
            await until_dropped(raw, older)
            for after in (None, *first.numbers):
                again = await raw.resumed(first.response["id"], after)
                assert again.frames == first.frames[0 if after is None else after + 1 :]
            assert await raw.json("GET", f"/responses/{first.response['id']}") == first.response
    assert datetime.fromtimestamp(first.response["created_at"], UTC).date() == START.date()


async def test_the_events_of_a_response_are_stored_for_a_day(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    async with ScriptedUpstream(answer("one ", "two", reasoning="hmm")) as upstream:
        with time_machine.travel(START, tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                first = await raw.stream("/responses", BODY)
        with time_machine.travel(START + timedelta(hours=25), tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                await until_dropped(raw, first)
                assert await raw.json("GET", f"/responses/{first.response['id']}") == first.response
                assert (await raw.resumed(first.response["id"])).response == first.response


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is sunny"


FORMAT = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
ROUND = answer("I look. ", calls=[("l1", "look", '{"place":"Paris"}')], reasoning="First.")
SCRIPTS: dict[str, list[list[Step]]] = {
    "text that breaks off": [[*answer("one ", "two", finish=None, reasoning="hmm"), Cut()]],
    "arguments that break off": [
        [*answer("one", calls=[("c1", "get_weather", '{"city":"Par')], finish=None), Cut()]
    ],
    "a break after a call": [
        [*answer(calls=[("c1", "get_weather", '{"city":"Paris"}')], finish=None, reasoning="hmm"), Cut()]
    ],
    "a limit on the length": [[*answer("one ", "two", finish="length", reasoning="hmm")]],
    "a limit within arguments": [
        [*answer("one", calls=[("c1", "get_weather", '{"city":"Par')], finish="length")]
    ],
    "a content filter": [[*answer("one ", "two", finish="content_filter")]],
    "two rounds": [[*ROUND], [*answer("Sunny.", reasoning="Then.")]],
    "two rounds, and a break": [[*ROUND], [*answer("Sun", finish=None, reasoning="Then."), Cut()]],
    "no output": [[*answer(finish=None), Cut()]],
}


@pytest.mark.parametrize("options", [{}, {"text": FORMAT}], ids=["text", "json"])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_response_keeps_its_output_when_its_events_are_dropped(
    script: str, options: dict[str, Any], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/t.db", "bounds": Bounds(continue_attempts=0)}
    body = {**BODY, **options, "tools": [WEATHER]}
    async with ScriptedUpstream(*SCRIPTS[script]) as upstream:
        with time_machine.travel(START, tick=True):
            async with (
                facade_over(upstream, tools=[look], **settings) as facade,
                raw_client(facade.url) as raw,
            ):
                first = await raw.stream("/responses", body)
                assert await raw.json("GET", f"/responses/{first.response['id']}") == first.response
        with time_machine.travel(START + timedelta(hours=25), tick=True):
            async with (
                facade_over(upstream, tools=[look], **settings) as facade,
                raw_client(facade.url) as raw,
            ):
                await until_dropped(raw, first)
                assert await raw.json("GET", f"/responses/{first.response['id']}") == first.response
                assert (await raw.resumed(first.response["id"])).response == first.response


async def test_a_cancelled_response_keeps_its_output_when_its_events_are_dropped(tmp_path: Path) -> None:
    reached = anyio.Event()
    steps = answer("one ", calls=[("c1", "get_weather", '{"city":"Par')], finish=None, reasoning="hmm")
    store = f"sqlite:///{tmp_path}/t.db"
    async with ScriptedUpstream([*steps, SetEvent(reached), Hang()]) as upstream:
        with time_machine.travel(START, tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                created = await raw.json("POST", "/responses", {**BODY, "tools": [WEATHER]})
                await reached.wait()
                path = f"/responses/{created['id']}"
                async with raw.open_stream(path) as frames:
                    async for frame in frames:
                        if b"function_call_arguments.delta" in frame:
                            break
                await raw.json("POST", f"{path}/cancel")
                first = await raw.resumed(created["id"])
        with time_machine.travel(START + timedelta(hours=25), tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                await until_dropped(raw, first)
                assert await raw.json("GET", path) == first.response
    assert first.response["status"] == "cancelled"
    assert [item["type"] for item in first.response["output"]] == ["reasoning", "message", "function_call"]


async def test_calls_of_an_earlier_turn_keep_their_arguments_when_events_are_dropped(tmp_path: Path) -> None:
    calls = [("c1", "get_weather", '{"city":"A"}'), ("c2", "get_weather", '{ "city": 1e2 }')]
    result = {"type": "function_call_output", "output": "Sunny."}
    store = f"sqlite:///{tmp_path}/t.db"
    body = {**BODY, "tools": [WEATHER]}
    async with ScriptedUpstream(answer("So: ", calls=calls, reasoning="hmm"), answer("Sunny.")) as upstream:
        with time_machine.travel(START, tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                first = await raw.stream("/responses", body)
                name = first.response["id"]
                results = [{**result, "call_id": "c1"}, {**result, "call_id": "c2"}]
                second = await raw.stream(
                    "/responses", {**body, "input": results, "previous_response_id": name}
                )
        with time_machine.travel(START + timedelta(hours=25), tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                await until_dropped(raw, second)
                without_usage = {**first.response, "usage": None}  # a task has the usage of its last turn
                assert await raw.json("GET", f"/responses/{name}") == without_usage
                assert await raw.json("GET", f"/responses/{second.response['id']}") == second.response


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_a_response_with_a_further_message_is_the_same_when_its_events_are_dropped(
    status: str, tmp_path: Path
) -> None:
    go_on = anyio.Event()
    last = Hang() if status == "cancelled" else Wait(go_on)
    script = [*answer("one ", finish=None), last, *answer("two")]
    store = f"sqlite:///{tmp_path}/t.db"
    async with ScriptedUpstream(script, answer("three")) as upstream:
        with time_machine.travel(START, tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                created = await raw.json("POST", "/responses", BODY)
                path = f"/responses/{created['id']}"
                async with raw.open_stream(path) as frames:
                    async for frame in frames:
                        if b'"delta":"one ' in frame:
                            break
                await send_further_message(facade, created["id"])
                go_on.set()
                if status == "cancelled":
                    await raw.json("POST", f"{path}/cancel")
                first = await raw.resumed(created["id"])
        with time_machine.travel(START + timedelta(hours=25), tick=True):
            async with facade_over(upstream, store=store) as facade, raw_client(facade.url) as raw:
                await until_dropped(raw, first)
                assert await raw.json("GET", path) == first.response
    assert first.response["status"] == status
