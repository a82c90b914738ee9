"""Concurrent requests with one idempotency key receive the same response."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.openai_api import MODEL, user
from support.repeated_requests import HoldingFilter, streams_of_both
from support.response_streams import RawClient, raw_client
from support.rounds import answer
from support.upstream import ScriptedUpstream, Wait
from tailrace.server import Settings, create_app

CONVERSATIONS = pytest.mark.parametrize("conversation", ["", "c1"])


@asynccontextmanager
async def client_of(
    hold: HoldingFilter, go_on: anyio.Event, conversation: str
) -> AsyncGenerator[tuple[RawClient, ScriptedUpstream]]:
    """A server whose model waits before the last piece of its response, and a client with an idempotency key."""
    headers = {"Idempotency-Key": "k"}
    if conversation:
        headers["X-Conversation-Id"] = conversation
    steps = answer("one ", "two ", "three")
    async with ScriptedUpstream([*steps[:3], Wait(go_on), *steps[3:]]) as upstream:
        settings = Settings(
            store="sqlite://",
            coalesce="none",
            model=f"openai:{MODEL}",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
        )
        async with serving(create_app(settings, input_filters=[hold])) as url:
            async with raw_client(url, headers) as client:
                yield client, upstream


@CONVERSATIONS
@pytest.mark.parametrize("background", [True, False])
async def test_responses_are_the_same_bytes_and_can_be_resumed(background: bool, conversation: str) -> None:
    hold, go_on = HoldingFilter("Count."), anyio.Event()
    body = {"model": MODEL, "input": "Count.", "background": background}
    async with client_of(hold, go_on, conversation) as (client, upstream):
        one, two = await streams_of_both(
            client,
            client,
            "/responses",
            body,
            hold=hold,
            go_on=go_on,
            piece=b'two "',
            is_locked=bool(conversation),
        )
        created = _data(two[:1])[0]["response"]["id"]
        retrieved = await client.resumed(created)
        assert one == two == retrieved.frames
        for after in retrieved.numbers[:-1]:
            assert (await client.resumed(created, after)).frames == two[after + 1 :]
    assert len(upstream.requests) == 1


@CONVERSATIONS
async def test_chat_completions_are_the_same_chunks(conversation: str) -> None:
    hold, go_on = HoldingFilter("Count."), anyio.Event()
    body = {"model": MODEL, "messages": [user("Count.")]}
    async with client_of(hold, go_on, conversation) as (client, upstream):
        one, two = await streams_of_both(
            client,
            client,
            "/chat/completions",
            body,
            hold=hold,
            go_on=go_on,
            piece=b'two "',
            is_locked=bool(conversation),
        )
    assert one[-1] == two[-1] == b"data: [DONE]\n\n"
    assert [{**each, "created": 0} for each in _data(one[:-1])] == [
        {**each, "created": 0} for each in _data(two[:-1])
    ]
    assert len(upstream.requests) == 1


def _data(frames: Sequence[bytes]) -> list[dict[str, Any]]:
    return [json.loads(frame.partition(b"data: ")[2]) for frame in frames]
