"""The official OpenAI clients as readers of background responses, over any number of connections."""

import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx
from anyio.streams.buffered import BufferedByteReceiveStream
from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient, omit

PROGRAM = Path(__file__).parents[1] / "compat/openai_node/background_reader.mjs"
MAX_LINE = 16 * 1024 * 1024
ENDINGS = ("response.completed", "response.failed", "response.incomplete")


class Received:
    """The events of one response that a client received.

    Attributes:
        input: The input of the response.
        reader: The client.
        id: The id of the response; empty before its first event.
        events: The events, in order.
        lost: Numbers that were skipped.
        repeated: Numbers that were received again after a resumption that excluded them.
    """

    def __init__(self, text: str, reader: "Reader", response_id: str = "") -> None:
        self.input = text
        self.reader = reader
        self.id = response_id
        self.events: list[dict[str, Any]] = []
        self.lost = self.repeated = 0
        self.started = anyio.Event()

    def add(self, event: dict[str, Any]) -> None:
        """Add an event; compare its number with that of the event before it."""
        distance = event["sequence_number"] - len(self.events)
        self.lost += max(distance, 0)
        self.repeated += distance < 0
        self.events.append(event)
        if not self.id:
            self.id = event["response"]["id"]
        self.started.set()

    @property
    def last(self) -> int:
        """The number of the last event; -1 before the first one."""
        return len(self.events) - 1

    @property
    def is_over(self) -> bool:
        """Return whether the last event ends the stream."""
        return bool(self.events) and self.events[-1]["type"] in ENDINGS

    @property
    def text(self) -> str:
        """The text of the deltas."""
        return "".join(each["delta"] for each in self.events if each["type"] == "response.output_text.delta")

    @property
    def response(self) -> dict[str, Any]:
        """The response of the last event."""
        return self.events[-1]["response"]

    @property
    def response_text(self) -> str:
        """The text of the response of the last event."""
        items = [item for item in self.response["output"] if item["type"] == "message"]
        return "".join(part["text"] for item in items for part in item["content"])

    def keep(self, count: int) -> None:
        """Forget all events but the first ones."""
        del self.events[count:]


class Reader(Protocol):
    """A client that reads a stream until it breaks, ends, or has given a number of events."""

    async def read(self, url: str, received: Received, upto: int | None = None) -> int | None:
        """Begin the response, or resume it after the last received event.

        Returns:
            The status of an error, 0 for a lost connection, or None.
        """
        ...


class PythonReader:
    """The openai package for Python."""

    async def read(self, url: str, received: Received, upto: int | None = None) -> int | None:
        """See `Reader.read`."""
        count = 0
        # To read the certificates of the system takes longer than the response.
        http = DefaultAsyncHttpxClient(verify=False)
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http
        ) as client:
            try:
                if received.id:
                    stream = await client.responses.retrieve(
                        received.id,
                        stream=True,
                        starting_after=received.last if received.events else omit,
                    )
                else:
                    stream = await client.responses.create(
                        model="tailrace", input=received.input, background=True, stream=True
                    )
                async with stream:
                    async for event in stream:
                        received.add(json.loads(event.to_json(indent=None)))
                        count += 1
                        if count == upto:
                            break
            except APIStatusError as error:
                return error.status_code
            except (APIConnectionError, APIError, httpx.TransportError):
                return 0
        return None


class NodeReader:
    """The openai package for Node, in a process of its own."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)

    async def read(self, url: str, received: Received, upto: int | None = None) -> int | None:
        """See `Reader.read`."""
        command: dict[str, Any] = {"url": url, "input": received.input, "upto": upto}
        if received.id:
            command |= {"id": received.id, "after": received.last if received.events else None}
        await self._stdin.send(json.dumps(command).encode() + b"\n")
        while True:
            line = json.loads(await self._stdout.receive_until(b"\n", MAX_LINE))
            if "over" in line:
                return line["status"]
            received.add(line)


@asynccontextmanager
async def node_reader() -> AsyncGenerator[NodeReader]:
    """Run the client for Node while the block runs; its packages must be installed."""
    async with await anyio.open_process(["node", str(PROGRAM)], stderr=subprocess.DEVNULL) as process:
        yield NodeReader(process)
        process.kill()
