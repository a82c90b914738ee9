"""A client program as a subprocess: commands as lines of JSON in, results as lines out."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from e2e.clients.heard import StreamedEvent, read_event
from e2e.clients.kinds import Kind

TESTS = Path(__file__).parents[2]

Line = dict[str, Any]


class RefusedError(Exception):
    """An exception of a client.

    Attributes:
        type: The name of its class.
        message: Its message.
        code: Its JSON-RPC, HTTP or gRPC code, if it has one.
    """

    def __init__(self, type: str, message: str, code: object) -> None:
        super().__init__(f"{type}: {message} ({code})")
        self.type = type
        self.message = message
        self.code = code


class Answer:
    """The response to a command: an async iterator of events, then a result.

    Attributes:
        result: The client's return value, available after the events.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.result: Any = None
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue()

    def add(self, line: Line | None) -> None:
        """Add a line that the program printed for this command; None after its end."""
        self._lines.put_nowait(line)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamedEvent:
        line = await self._lines.get()
        if line is None:
            raise RuntimeError("the client's program has ended")
        if "event" in line:
            return read_event(line["event"])
        if "error" in line:
            raise RefusedError(**line["error"])
        self.result = line["result"]
        raise StopAsyncIteration


class Client:
    """A running client program."""

    def __init__(self, kind: Kind, process: Process) -> None:
        self.kind = kind
        self._process = process
        self._answers: dict[int, Answer] = {}
        self._count = 0

    async def stream(self, do: str, **fields: object) -> Answer:
        """Start an operation that yields a stream of events."""
        self._count += 1
        answer = self._answers[self._count] = Answer(self._count)
        await self._send_command({"id": self._count, "do": do, **fields})
        return answer

    async def events(self, do: str, **fields: object) -> list[StreamedEvent]:
        """Return all events of a stream.

        Raises:
            RefusedError: The client raised an exception.
        """
        return [event async for event in await self.stream(do, **fields)]

    async def ask(self, do: str, **fields: object) -> Any:
        """Run an operation with a single result.

        Raises:
            RefusedError: The client raised an exception.
        """
        answer = await self.stream(do, **fields)
        async for event in answer:
            raise AssertionError(f"unexpected event of {do}: {event}")
        return answer.result

    async def leave(self, answer: Answer) -> None:
        """Close a stream's connection, and wait until it is closed."""
        await self._send_command({"do": "leave", "of": answer.number})
        async for _ in answer:
            pass
        assert answer.result == "left"

    async def _send_command(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps(command).encode() + b"\n")

    async def listen(self) -> None:
        """Dispatch the program's output until it ends."""
        assert self._process.stdout is not None
        rest = ""
        async for text in TextReceiveStream(self._process.stdout):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                output = cast("Line", json.loads(line))
                number = output["id"]
                answer = self._answers[number] if "event" in output else self._answers.pop(number)
                answer.add(output)
        for answer in self._answers.values():
            answer.add(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the program by closing its input."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        with anyio.move_on_after(10):
            await self._process.wait()


@asynccontextmanager
async def running_client(kind: Kind, url: str, *arguments: str) -> AsyncGenerator[Client]:
    """Run a client program while the block runs."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [*kind.command, url, kind.binding, *arguments]
    # Its standard error is inherited.
    async with await anyio.open_process(
        command, stdin=subprocess.PIPE, stderr=None, env=environment
    ) as process:
        client = Client(kind, process)
        async with anyio.create_task_group() as group:
            group.start_soon(client.listen)
            async with client:
                yield client
