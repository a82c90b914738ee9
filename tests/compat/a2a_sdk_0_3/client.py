"""The official Python SDK of A2A 0.3 as a program: its client. It stores nothing; its history is that of the server's tasks."""

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
        """Yield the text of the task that the client makes of its events."""
        message = _message(conversation, types.TextPart(text=text))
        known = self._tasks.setdefault(conversation, [])
        async for task, _ in self._streaming.send_message(message):
            if task.id not in known:
                known.append(task.id)
            if task.status.state == types.TaskState.failed:
                raise RuntimeError(_text(task.status.message))
            yield {"message": {"text": _answer(task)}}

    async def ask(self, conversation: str, text: str) -> str:
        return _answer(await self._send(_message(conversation, types.TextPart(text=text))))

    async def call(self, conversation: str, text: str) -> str:
        """Return the text after the result of a tool, which the client returns to the task that requires it."""
        task = await self._send(_message(conversation, types.TextPart(text=text)))
        assert task.status.state == types.TaskState.input_required
        [calls] = [part.root.data for part in task.status.message.parts if part.root.kind == "data"]
        [call] = calls["tool_calls"]
        result = {"tool_results": [{"call_id": call["call_id"], "name": call["name"], "output": "sunny"}]}
        return _answer(await self._send(_message(conversation, types.DataPart(data=result), task.id)))

    async def cancel(self, conversation: str) -> None:
        await self._streaming.cancel_task(types.TaskIdParams(id=self._tasks[conversation][-1]))

    async def history(self, conversation: str) -> list[dict[str, str]]:
        tasks = [
            await self._streaming.get_task(types.TaskQueryParams(id=task))
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

    async def _send(self, message: Any) -> Any:
        [(task, _)] = [event async for event in self._waiting.send_message(message)]
        self._tasks.setdefault(message.context_id, []).append(task.id)
        return task


def _message(conversation: str, part: Any, task: str | None = None) -> Any:
    return types.Message(
        message_id=str(uuid4()),
        role=types.Role.user,
        parts=[types.Part(root=part)],
        context_id=conversation,
        task_id=task,
    )


def _answer(task: Any) -> str:
    return "".join(map(_text, task.artifacts or ()))


def _text(holder: Any) -> str:
    return "".join(part.root.text for part in holder.parts if part.root.kind == "text")


async def main(url: str) -> None:
    connect = client.ClientFactory.connect
    streaming = await connect(url)
    waiting = await connect(url, client_config=client.ClientConfig(streaming=False))
    operations = Operations(streaming, waiting)
    names = [name for name in vars(Operations) if not name.startswith("_")]
    await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
