"""The official Python client (a2a-sdk 1.x) as a program: ``python -m e2e.clients.sdk_1_3 URL BINDING CARD_PATH``."""

import sys
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import anyio
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, create_client
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message as Protobuf
from grpc.aio import insecure_channel

from e2e.clients.commands import carry_out_commands


class Operations:
    """The operations of the client program, with a streaming and a non-streaming client."""

    def __init__(self, card: AgentCard, streaming: Client, waiting: Client) -> None:
        self._card = card
        self._streaming = streaming
        self._waiting = waiting

    async def card(self) -> object:
        return _plain(self._card)

    async def send(self, *, at_once: bool = False, **fields: Any) -> object:
        request = _request(**fields)
        request.configuration.return_immediately = at_once
        [event] = [event async for event in self._waiting.send_message(request)]
        return _plain(event)

    async def stream(self, **fields: Any) -> AsyncGenerator[object]:
        async for event in self._streaming.send_message(_request(**fields)):
            yield _plain(event)

    async def subscribe(self, task_id: str) -> AsyncGenerator[object]:
        async for event in self._streaming.subscribe(SubscribeToTaskRequest(id=task_id)):
            yield _plain(event)

    async def get(self, task_id: str, history_length: int | None = None) -> object:
        request = GetTaskRequest(id=task_id, history_length=history_length)
        return _plain(await self._streaming.get_task(request))

    async def list(self, context_id: str, page_size: int | None = None, page_token: str = "") -> object:
        request = ListTasksRequest(context_id=context_id, page_size=page_size, page_token=page_token)
        request.include_artifacts = True
        return _plain(await self._streaming.list_tasks(request))

    async def cancel(self, task_id: str) -> object:
        return _plain(await self._streaming.cancel_task(CancelTaskRequest(id=task_id)))

    async def set_webhook(self, task_id: str, config_id: str, url: str) -> object:
        config = TaskPushNotificationConfig(task_id=task_id, id=config_id, url=url, token="t")
        return _plain(await self._streaming.create_task_push_notification_config(config))

    async def get_webhook(self, task_id: str, config_id: str) -> object:
        request = GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        return _plain(await self._streaming.get_task_push_notification_config(request))

    async def list_webhooks(self, task_id: str) -> object:
        request = ListTaskPushNotificationConfigsRequest(task_id=task_id)
        return _plain(await self._streaming.list_task_push_notification_configs(request)).get("configs", [])

    async def delete_webhook(self, task_id: str, config_id: str) -> None:
        request = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        await self._streaming.delete_task_push_notification_config(request)

    async def extended_card(self) -> object:
        return _plain(await self._streaming.get_extended_agent_card(GetExtendedAgentCardRequest()))


def _request(
    *, text: str = "", data: object = None, task_id: str = "", context_id: str = "", webhook: str = ""
) -> SendMessageRequest:
    part = {"text": text} if data is None else {"data": data}
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [part]}
    request = SendMessageRequest(configuration=SendMessageConfiguration())
    ParseDict({**message, "taskId": task_id, "contextId": context_id}, request.message)
    if webhook:
        hook = TaskPushNotificationConfig(id="inline", url=webhook)
        request.configuration.task_push_notification_config.CopyFrom(hook)
    return request


def _plain(message: Protobuf) -> dict[str, Any]:
    return MessageToDict(message)


async def main(url: str, binding: str, card_path: str) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card(card_path)

        async def client(*, streaming: bool) -> Client:
            config = ClientConfig(
                streaming=streaming,
                httpx_client=http,
                supported_protocol_bindings=[binding],
                grpc_channel_factory=insecure_channel,
            )
            return await create_client(card, config)

        async with await client(streaming=True) as streaming, await client(streaming=False) as waiting:
            operations = Operations(card, streaming, waiting)
            names = [name for name in vars(Operations) if not name.startswith("_")]
            await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    _, url, binding, card_path = sys.argv
    anyio.run(main, url, binding, card_path)
