"""Responses that are read again on a later day of the server's clock."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine

from support.openai_api import MODEL, facade_over
from support.response_streams import Frames, RawClient, raw_client
from support.rounds import answer
from support.upstream import ScriptedUpstream

DAY = 86_400
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
