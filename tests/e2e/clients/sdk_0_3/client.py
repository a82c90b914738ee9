"""The official Python client of A2A 0.3 as a program: ``python -m e2e.clients.sdk_0_3.client URL BINDING CARD_PATH``."""

import sys
from collections.abc import AsyncGenerator, Callable
from importlib import import_module
from typing import Any, cast
from uuid import uuid4

import anyio

from e2e.clients.commands import carry_out_commands

# Installed in its own environment: the type checker finds another version of this package.
client: Any = import_module("a2a.client")
types: Any = import_module("a2a.types")
httpx: Any = import_module("httpx")
grpc: Any = import_module("grpc.aio")


class Operations:
    """The operations of the client program.

    Args:
        card: The agent's card.
        connect: Creates a client for the card, with configuration options.
    """

    def __init__(self, card: Any, connect: Callable[..., Any]) -> None:
        self._card = card
        self._connect = connect
        self._streaming = connect()

    async def card(self) -> object:
        return _plain(self._card)

    async def send(self, *, at_once: bool = False, webhook: str = "", **fields: Any) -> object:
        # Passed with the call instead, the webhook would be a dict where gRPC and HTTP+JSON need an object.
        hooks = [types.PushNotificationConfig(id="inline", url=webhook)] if webhook else []
        waiting = self._connect(streaming=False, polling=at_once, push_notification_configs=hooks)
        [answer] = [answer async for answer in waiting.send_message(_message(**fields))]
        return _plain(answer[0] if isinstance(answer, tuple) else answer)

    async def stream(self, **fields: Any) -> AsyncGenerator[object]:
        async for event in _events(self._streaming.send_message(_message(**fields))):
            yield event

    async def subscribe(self, task_id: str) -> AsyncGenerator[object]:
        async for event in _events(self._streaming.resubscribe(types.TaskIdParams(id=task_id))):
            yield event

    async def get(self, task_id: str, history_length: int | None = None) -> object:
        params = types.TaskQueryParams(id=task_id, history_length=history_length)
        return _plain(await self._streaming.get_task(params))

    async def cancel(self, task_id: str) -> object:
        return _plain(await self._streaming.cancel_task(types.TaskIdParams(id=task_id)))

    async def set_webhook(self, task_id: str, config_id: str, url: str) -> object:
        hook = types.PushNotificationConfig(id=config_id, url=url, token="t")
        config = types.TaskPushNotificationConfig(task_id=task_id, push_notification_config=hook)
        return _plain(await self._streaming.set_task_callback(config))

    async def get_webhook(self, task_id: str, config_id: str) -> object:
        params = types.GetTaskPushNotificationConfigParams(id=task_id, push_notification_config_id=config_id)
        return _plain(await self._streaming.get_task_callback(params))

    async def extended_card(self) -> object:
        return _plain(await self._streaming.get_card())


async def _events(answers: Any) -> AsyncGenerator[object]:
    """Yield the events, then the task that the client has built from them."""
    task: Any = None
    async for answer in answers:
        update: Any = answer
        if isinstance(answer, tuple):
            task, update = cast("tuple[Any, Any]", answer)
        yield _plain(update or task)
    if task is not None:
        yield {**_plain(task), "kind": "folded"}


def _message(*, text: str = "", data: object = None, task_id: str = "", context_id: str = "") -> Any:
    root = types.TextPart(text=text) if data is None else types.DataPart(data=data)
    return types.Message(
        message_id=str(uuid4()),
        role=types.Role.user,
        parts=[types.Part(root=root)],
        task_id=task_id or None,
        context_id=context_id or None,
    )


def _plain(model: Any) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main(url: str, binding: str, card_path: str) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        card = await client.A2ACardResolver(http, url).get_agent_card(card_path)

        def connect(**options: Any) -> Any:
            config = client.ClientConfig(
                httpx_client=http,
                supported_transports=[binding],
                grpc_channel_factory=grpc.insecure_channel,
                **options,
            )
            return client.ClientFactory(config).create(card)

        operations = Operations(card, connect)
        names = [name for name in vars(Operations) if not name.startswith("_")]
        await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    _, url, binding, card_path = sys.argv
    anyio.run(main, url, binding, card_path)
