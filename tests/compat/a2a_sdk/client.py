"""The official Python SDK of A2A 1.0 as a program: its client. It stores nothing; its history is that of the server's tasks."""

import sys
from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any
from uuid import uuid4

import anyio

from e2e.clients.commands import carry_out_commands

# Installed in an environment of its own.
client: Any = import_module("a2a.client")
types: Any = import_module("a2a.types")
json_format: Any = import_module("google.protobuf.json_format")

_COMPLETED = types.TaskState.TASK_STATE_COMPLETED
_INPUT_REQUIRED = types.TaskState.TASK_STATE_INPUT_REQUIRED
_FAILED = types.TaskState.TASK_STATE_FAILED


class Operations:
    """The commands that the program carries out.

    Args:
        streaming: The client, with its defaults.
        waiting: The client, without streaming.
    """

    def __init__(self, streaming: Any, waiting: Any) -> None:
        self._streaming = streaming
        self._waiting = waiting
        self._tasks: dict[str, list[str]] = {}

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        """Yield the text of the artifacts so far, as the specification adds up their chunks."""
        artifacts: dict[str, str] = {}
        async for event in self._streaming.send_message(_request(conversation, types.Part(text=text))):
            match event.WhichOneof("payload"):
                case "task":
                    self._tasks.setdefault(conversation, []).append(event.task.id)
                    artifacts |= {each.artifact_id: _text(each) for each in event.task.artifacts}
                case "artifact_update":
                    update = event.artifact_update
                    so_far = artifacts.get(update.artifact.artifact_id, "") if update.append else ""
                    artifacts[update.artifact.artifact_id] = so_far + _text(update.artifact)
                case "status_update" if event.status_update.status.state == _FAILED:
                    raise RuntimeError(_text(event.status_update.status.message))
                case _:
                    pass
            yield {"message": {"text": "".join(artifacts.values())}}

    async def ask(self, conversation: str, text: str) -> str:
        return _answer(await self._send(_request(conversation, types.Part(text=text))))

    async def call(self, conversation: str, text: str) -> str:
        """Return the text after the result of a tool, which the client returns to the task that requires it."""
        task = await self._send(_request(conversation, types.Part(text=text)))
        assert task.status.state == _INPUT_REQUIRED
        [calls] = [part.data for part in task.status.message.parts if part.HasField("data")]
        [call] = json_format.MessageToDict(calls)["tool_calls"]
        result = {"tool_results": [{"call_id": call["call_id"], "name": call["name"], "output": "sunny"}]}
        part = json_format.ParseDict({"data": result}, types.Part())
        return _answer(await self._send(_request(conversation, part, task.id)))

    async def cancel(self, conversation: str) -> None:
        await self._streaming.cancel_task(types.CancelTaskRequest(id=self._tasks[conversation][-1]))

    async def history(self, conversation: str) -> list[dict[str, str]]:
        tasks = [
            await self._streaming.get_task(types.GetTaskRequest(id=task))
            for task in self._tasks[conversation]
        ]
        return [
            message
            for task in tasks
            for message in (
                {"role": "user", "text": _text(task.history[0])},
                {"role": "agent", "text": _answer(task)},
            )
        ]

    async def _send(self, request: Any) -> Any:
        [event] = [event async for event in self._waiting.send_message(request)]
        self._tasks.setdefault(request.message.context_id, []).append(event.task.id)
        return event.task


def _request(conversation: str, part: Any, task: str = "") -> Any:
    message = types.Message(
        message_id=str(uuid4()),
        role=types.Role.ROLE_USER,
        parts=[part],
        context_id=conversation,
        task_id=task,
    )
    return types.SendMessageRequest(message=message)


def _answer(task: Any) -> str:
    return "".join(map(_text, (artifact for artifact in task.artifacts)))


def _text(holder: Any) -> str:
    return "".join(part.text for part in holder.parts)


async def main(url: str) -> None:
    async with (
        await client.create_client(url) as streaming,
        await client.create_client(url, client.ClientConfig(streaming=False)) as waiting,
    ):
        operations = Operations(streaming, waiting)
        names = [name for name in vars(Operations) if not name.startswith("_")]
        await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
