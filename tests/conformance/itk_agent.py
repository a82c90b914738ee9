"""The agent ``current`` of the official interoperation kit (https://github.com/a2aproject/a2a-itk).

A message contains an instruction: return a text, call another agent, or run several instructions. The agent calls others
with `AgentClient`, which cannot register a webhook; those calls use the official SDK.
"""

import argparse
import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import grpc.aio
import httpx
import uvicorn
from a2a.client import ClientConfig, create_client
from a2a.types import Role as SdkRole
from a2a.types import a2a_pb2
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.server import Settings, Turn, create_app
from tailrace.server.remote.client import AgentClient
from tailrace.server.sdk import to_sdk
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Message, Part, Role, StreamResponse
from tailrace.streaming.task.task_record import agent_message

Instruction = Any
"""A message of the kit's ``instruction.proto``."""

BINDINGS = {"JSONRPC": "JSONRPC", "GRPC": "GRPC", "HTTP_JSON": "HTTP+JSON"}

FINISHED = "task-finished"
"""Text that ends a subscription to a task that remains working."""

HOLD_SECONDS = 10.0
"""Time that such a task remains working."""


class Agent:
    """Runs the instructions of messages.

    Args:
        instructions: The kit's module ``instruction_pb2``.
    """

    def __init__(self, instructions: Any) -> None:
        self._instructions = instructions

    async def run(self, turn: Turn) -> AsyncIterator[Update | Message]:
        """Run the instruction of a message; its result is the message of the last status."""
        yield StatusUpdate(TaskState.WORKING)
        instruction = self._instructions.Instruction()
        instruction.ParseFromString(next(part.raw for part in turn.message.parts if part.raw))
        text = "\n".join(await self._results(instruction))
        if _holds(instruction):
            text = f"{text}\n{FINISHED}"
            yield StatusUpdate(TaskState.WORKING, agent_message(text))
            await anyio.sleep(HOLD_SECONDS)
        yield StatusUpdate(TaskState.COMPLETED, agent_message(text))

    async def _results(self, instruction: Instruction) -> list[str]:
        step = instruction.WhichOneof("step")
        if step == "return_response":
            return [instruction.return_response.response]
        if step == "call_agent":
            return await self._call(instruction.call_agent)
        return [text for each in instruction.steps.instructions for text in await self._results(each)]

    async def _call(self, call: Any) -> list[str]:
        binding = BINDINGS[call.transport.upper()]
        part = Part(
            raw=call.instruction.SerializeToString(),
            media_type="application/x-protobuf",
            filename="instruction.bin",
        )
        message = Message(message_id=str(uuid4()), role=Role.USER, parts=(part,))
        if url := call.push_notification.url:
            return await _call_with_webhook(call, binding, message, url)
        async with AgentClient(call.agent_card_uri, bindings=(binding,)) as client:
            if call.HasField("resubscribe"):
                return await _resubscribe(client, message)
            async with aclosing(client.stream(message)) as events:
                return [text async for event in events for text in _texts(event.response)]


async def _resubscribe(client: AgentClient, message: Message) -> list[str]:
    """Close the stream after its first event, subscribe to the task until its text arrives, and cancel the task."""
    async with aclosing(client.stream(message)) as events:
        first = (await anext(events)).response
    task_id = first.task.id if first.task else first.status_update.task_id if first.status_update else ""
    async with aclosing(client.follow(task_id)) as events:
        async for event in events:
            if finished := [text for text in _texts(event.response) if FINISHED in text]:
                break
        else:
            raise RuntimeError(f"the stream of task {task_id} has ended")
    await client.cancel_task(task_id)
    return [text.replace(FINISHED, "") for text in finished]


async def _call_with_webhook(call: Any, binding: str, message: Message, url: str) -> list[str]:
    address = url if "://" in url else f"http://{url}"
    webhook = a2a_pb2.TaskPushNotificationConfig(url=f"{address}/notifications", token="itk-token")
    async with httpx.AsyncClient(timeout=30) as http:
        config = ClientConfig(
            httpx_client=http,
            streaming=call.streaming or binding == "GRPC",
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[binding],
            push_notification_config=webhook,
        )
        client = await create_client(call.agent_card_uri, client_config=config)
        request = a2a_pb2.SendMessageRequest(message=to_sdk(message, a2a_pb2.Message))
        events = client.send_message(request)
        return [text async for event in events for text in _sdk_texts(event)]


def _holds(instruction: Instruction) -> bool:
    """Return whether the task must remain working after its result."""
    return instruction.return_response.hold_task or any(map(_holds, instruction.steps.instructions))


def _texts(response: StreamResponse) -> list[str]:
    """Return the texts of the agent in an event: of its message, or of the message of its status."""
    message = response.message
    if response.task is not None:
        message = response.task.status.message
        if message is None:
            message = next((each for each in response.task.history if each.role is Role.AGENT), None)
    elif response.status_update is not None:
        message = response.status_update.status.message
    return [part.text for part in message.parts if part.text] if message else []


def _sdk_texts(event: a2a_pb2.StreamResponse) -> list[str]:
    message = event.message
    if event.HasField("task"):
        message = event.task.status.message
    elif event.HasField("status_update"):
        message = event.status_update.status.message
    return [part.text for part in message.parts if part.text and message.role == SdkRole.ROLE_AGENT]


class JsonRpcPath:
    """Serve JSON-RPC at ``/jsonrpc/`` too, where the kit sends the first message of a scenario."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/jsonrpc/":
            scope = {**scope, "path": "/", "raw_path": b"/"}
        await self._app(scope, receive, send)


def main() -> None:
    """Serve the agent until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=Path, required=True, help="folder of the kit")
    parser.add_argument("--httpPort", dest="port", type=int, required=True)
    parser.add_argument("--grpcPort", dest="grpc_port", type=int, required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.kit / "agents/python/v10"))
    instructions = importlib.import_module("pyproto.instruction_pb2")
    settings = Settings.model_validate(
        {
            "store": "sqlite://",
            "grpc_port": arguments.grpc_port,
            "push_notifications": "private",
            "agent_name": "Interoperation",
        }
    )
    app = create_app(settings, handler=Agent(instructions).run)
    uvicorn.run(JsonRpcPath(app), host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
