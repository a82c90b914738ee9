"""Webhooks of background responses with several servers, of which two are killed while they deliver."""

import base64
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from support.nodes import Nodes
from support.postgres import PostgresServer
from support.processes import Served, served
from support.response_streams import raw_client
from support.rounds import answer
from support.upstream import ScriptedUpstream
from support.valkey import ValkeyServer
from support.webhook_receiver import Delivery, receiving

pytestmark = pytest.mark.timeout(600)  # three processes, and the time until other nodes take over, twice

SECRET = f"whsec_{base64.b64encode(bytes(32)).decode()}"
BODY = {"model": "", "input": "Hello?", "background": True}
SECONDS = 100
"""The limit for a notification that another node has to deliver."""


async def create(server: Served, count: int) -> list[str]:
    """Create background responses at a node; return their ids."""
    async with raw_client(server.url) as client:
        return [(await client.json("POST", "/responses", BODY))["id"] for _ in range(count)]


def event_of(delivery: Delivery) -> Any:
    """Verify the signature of a notification; return its event."""
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    return client.webhooks.unwrap(delivery.raw, delivery.headers)


async def test_each_webhook_is_delivered_once_and_repeated_after_a_kill(
    tmp_path: Path, postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    nodes = await Nodes.empty(postgres, valkey)
    accepted: list[str] = []
    refused: list[str] = []

    async def accept(delivery: Delivery) -> web.StreamResponse:
        accepted.append(delivery.headers["Webhook-Id"])
        return web.Response(status=204)

    async def refuse(delivery: Delivery) -> web.StreamResponse:
        refused.append(delivery.headers["Webhook-Id"])
        return web.Response(status=503)

    async with ScriptedUpstream(*[answer("Hello")] * 13) as upstream, receiving() as receiver:
        environment = {
            "TAILRACE_EVENTS": nodes.events,
            "TAILRACE_STORE": nodes.store,
            "TAILRACE_PUSH_NOTIFICATIONS": "private",
            "TAILRACE_OPENAI_WEBHOOK": json.dumps({"url": receiver.url, "secret": SECRET}),
        }
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url]
        with ExitStack() as stack:
            first, second, third = (
                stack.enter_context(served(tmp_path / f"log-{number}", *options, **environment))
                for number in range(3)
            )
            for server in (first, second, third):
                await server.ready()
            receiver.answer = accept
            expected = [name for server in (first, second, third) for name in await create(server, 3)]
            await receiver.until(lambda _: len(accepted) >= len(expected), SECONDS)

            # A node is killed while the receiver refuses its notifications.
            receiver.answer = refuse
            expected += await create(first, 3)
            await receiver.until(lambda _: len(set(refused)) == 3, SECONDS)
            first.kill()
            receiver.answer = accept
            await receiver.until(lambda _: len(accepted) >= len(expected), SECONDS)

            # A node is killed before it receives the acknowledgement.
            async def accept_and_kill(delivery: Delivery) -> web.StreamResponse:
                receiver.answer = accept
                second.kill()
                return await accept(delivery)

            receiver.answer = accept_and_kill
            expected += await create(second, 1)
            await receiver.until(lambda _: len(accepted) > len(expected), SECONDS)
    events = {delivery.headers["Webhook-Id"]: event_of(delivery) for delivery in receiver.deliveries}
    assert {name: event.id for name, event in events.items()} == {name: name for name in events}
    assert sorted(event.data.id for event in events.values()) == sorted(expected)
    assert {event.type for event in events.values()} == {"response.completed"}
    [(repeated, times)] = [each for each in Counter(accepted).items() if each[1] > 1]
    assert (events[repeated].data.id, times) == (expected[-1], 2)
    for delivery in receiver.deliveries:
        assert event_of(delivery) == events[delivery.headers["Webhook-Id"]]
