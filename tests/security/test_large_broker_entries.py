"""Large entries of the broker are signed and verified outside of the event loop, and forged ones are rejected there."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from support.nodes import running_apart
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.event_streams import Addition, TaskStreams
from tailrace.server.cluster.message_authentication import Authentication
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.handlers import Turn
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.wrappers.concurrency.worker_thread import in_event_loop

LARGE = "x" * 2_000_000


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What was done with large entries, and whether it was done in the event loop."""
    done: list[tuple[str, bool]] = []
    for name in ("sign", "verify"):
        original = getattr(Authentication, name)

        def watched(
            self: Authentication,
            purpose: Any,
            body: bytes,
            *context: bytes,
            name: str = name,
            original: Any = original,
        ) -> bytes:
            if len(body) > 1_500_000:
                done.append((name, in_event_loop()))
            return original(self, purpose, body, *context)

        monkeypatch.setattr(Authentication, name, watched)
    return done


async def test_a_large_event_reaches_subscribers_at_another_node(
    postgres: PostgresServer, valkey: ValkeyServer, work: list[tuple[str, bool]]
) -> None:
    subscribed = anyio.Event()

    async def answer(_: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.WORKING)
        await subscribed.wait()
        yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text=LARGE),)))
        yield StatusUpdate(TaskState.COMPLETED)

    async with running_apart(postgres, valkey, answer) as engine:
        message = Message(message_id="m", role=Role.USER, parts=(Part(text=LARGE),))
        started = await engine.start(SendMessageRequest(message=message))
        assert isinstance(started, Subscription)
        subscribed.set()
        with anyio.fail_after(60):
            async with aclosing(started.batches()) as batches:
                bodies = [event.body async for events in batches for event in events]
        task = await engine.get_task(started.task_id)
    assert sum(LARGE.encode() in body for body in bodies) >= 1
    assert task.artifacts[0].parts[0].text == LARGE
    assert {name for name, _ in work} == {"sign", "verify"}
    assert not any(in_loop for _, in_loop in work)


async def test_a_large_entry_with_another_signature_is_rejected(
    valkey: ValkeyServer, work: list[tuple[str, bool]]
) -> None:
    valkey.command("FLUSHALL")
    broker = Broker(valkey.url())
    ours, others = SecretKeys(), SecretKeys("another-secret-of-32-characters!")
    written = [Event(1, LARGE.encode())]
    await TaskStreams(broker, Authentication(others)).add("node", [Addition("t", written, True, 0)])
    assert (await TaskStreams(broker, Authentication(ours)).read("t", 0, 10)).events == []
    assert (await TaskStreams(broker, Authentication(others)).read("t", 0, 10)).events == written
    assert work == [("sign", False), ("verify", False), ("verify", False)]
    await broker.close()
