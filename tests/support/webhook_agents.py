"""Agents that deliver push notifications, and responses of webhooks."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from aiohttp import web

from support.agents import ask_back
from support.webhook_receiver import Answer, Delivery, accept
from tailrace.server import Settings
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler, HandlerFunction
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.webhooks.addresses import WebhookGuard
from tailrace.server.runtime.webhooks.client import WebhookClient
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.store.store import Store
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Message, Part, Role, Task
from tailrace.streaming.a2a.requests import (
    DeleteTaskPushNotificationConfigRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.version_codec import Operation

Updates = AsyncIterator[Update | Message]

WORKED = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED", "TASK_STATE_COMPLETED"]
"""The notifications of a task that completes: every change of status, then the complete task."""


def settings(**values: object) -> Settings:
    return Settings.model_validate({"store": "sqlite://", "push_notifications": "private", **values})


@asynccontextmanager
async def agent(
    handler: HandlerFunction = ask_back,
    store: str = "sqlite://",
    *,
    guard: WebhookGuard | None = None,
    answer_within: float = 10.0,
    attempts: int = 4,
    first_pause: float = 0.01,
    grace: float = 3.0,
) -> AsyncGenerator[Operations]:
    """Return an agent without bindings, with short pauses between attempts."""
    kept = Store(store)
    client = WebhookClient(
        guard or WebhookGuard(allow_private=True),
        timeout=answer_within,
        attempts=attempts,
        first_pause=first_pause,
    )
    push = PushNotifier(kept, client, grace=grace)
    async with Engine(kept, FunctionHandler(handler), push=push).running() as engine:
        yield Operations(engine, push)


def hook(url: str, **fields: Any) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(url=url, **fields)


async def send(
    agent: Operations,
    text: str = "hello",
    *,
    wait: bool = True,
    webhook: str | None = None,
    task_id: str = "",
) -> Task:
    user_message = Message(message_id="m", role=Role.USER, parts=(Part(text=text),), task_id=task_id)
    configuration = SendMessageConfiguration(
        return_immediately=not wait, task_push_notification_config=hook(webhook) if webhook else None
    )
    request = SendMessageRequest(message=user_message, configuration=configuration)
    task = await agent.execute(Operation.SEND_MESSAGE, request, Caller())
    assert isinstance(task, Task)
    return task


async def create(agent: Operations, task: Task, url: str, **fields: Any) -> TaskPushNotificationConfig:
    config = hook(url, task_id=task.id, **fields)
    created = await agent.execute(Operation.CREATE_PUSH_CONFIG, config, Caller())
    assert isinstance(created, TaskPushNotificationConfig)
    return created


async def delete(agent: Operations, task: Task, config_id: str) -> None:
    request = DeleteTaskPushNotificationConfigRequest(task_id=task.id, id=config_id)
    assert await agent.execute(Operation.DELETE_PUSH_CONFIG, request, Caller()) is None


def answering(*statuses: int, **headers: str) -> Answer:
    """Answer the first requests with these statuses, and accept every later one."""
    rest = list(statuses)

    async def answer(delivery: Delivery) -> web.StreamResponse:
        return web.Response(status=rest.pop(0), headers=headers) if rest else await accept(delivery)

    return answer


def holding(gate: anyio.Event) -> Answer:
    """Respond after the gate opens."""

    async def answer(delivery: Delivery) -> web.StreamResponse:
        await gate.wait()
        return await accept(delivery)

    return answer


class GivenUp(logging.Handler):
    """Collects log records of abandoned notifications.

    Attributes:
        texts: The messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._changed = anyio.Event()

    @property
    def reasons(self) -> list[str]:
        """The reasons, in order."""
        return [text.rpartition(": ")[2] for text in self.texts]

    def emit(self, record: logging.LogRecord) -> None:
        """Record a message of the log."""
        if "given up" in record.getMessage():
            self.texts.append(record.getMessage())
            self._changed.set()

    async def until(self, count: int) -> None:
        """Wait until that many notifications were abandoned."""
        with anyio.fail_after(20):
            while len(self.texts) < count:
                self._changed = anyio.Event()
                await self._changed.wait()
