"""Agents with a gRPC binding, and calls of a stub."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
from a2a.types import StreamResponse, SubscribeToTaskRequest, a2a_pb2_grpc

from support.agents import Scripted
from support.grpc_agents import GrpcAgent, grpc_address
from support.live_server import serving
from support.sdk import send
from tailrace.server import Settings, create_app
from tailrace.server.runtime.handlers import Handler, HandlerFunction

SETTINGS = Settings(store="sqlite://", grpc_port=0, push_notifications="private", shutdown_grace=0)
Metadata = tuple[tuple[str, str], ...]


def stub_of(channel: grpc.aio.Channel) -> Any:
    return cast("Any", a2a_pb2_grpc).A2AServiceStub(channel)


@asynccontextmanager
async def agent_with(
    settings: Settings = SETTINGS, *, handler: Handler | HandlerFunction | None = None, **options: Any
) -> AsyncGenerator[GrpcAgent]:
    scripted = Scripted()
    app = create_app(settings, handler=handler or scripted, **options)
    async with serving(app) as url:
        address = await grpc_address(url)
        async with grpc.aio.insecure_channel(address) as channel:
            yield GrpcAgent(url, address, stub_of(channel), scripted)


async def stream_of(
    agent: GrpcAgent, text: str, metadata: Metadata = (), **fields: Any
) -> list[StreamResponse]:
    call = agent.stub.SendStreamingMessage(send(text, **fields), metadata=metadata)
    return [event async for event in call]


async def follow(agent: GrpcAgent, task_id: str, after: int | str | None = None) -> list[StreamResponse]:
    metadata = () if after is None else (("last-event-id", str(after)),)
    return [
        event
        async for event in agent.stub.SubscribeToTask(SubscribeToTaskRequest(id=task_id), metadata=metadata)
    ]
