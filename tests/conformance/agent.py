"""An agent that implements the scenarios of the official compatibility kits, with the public handler interface.

The kits select a scenario by the prefix of a message's id (https://github.com/a2aproject/a2a-tck).
"""

import argparse
import re
from collections.abc import AsyncIterator, Callable

import anyio
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from tailrace.server import Settings, Turn, create_app
from tailrace.server.protocols.a2a.card import CARD_PATH, build_card
from tailrace.server.runtime.handlers import DirectHandler
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import AgentExtension, Artifact, Message, Part, Role
from tailrace.streaming.task.task_record import agent_message

Updates = AsyncIterator[Update | Message]

REQUIRED_EXTENSION = AgentExtension(uri="urn:a2a:tck:required-extension", required=True)
"""The extension that the kit for 1.0 omits on purpose; the other tests do not require it."""

BUSY_SECONDS = 4.0
"""Working time of a task for a client that polls it."""


def artifact(*parts: Part, append: bool = False, last: bool = True) -> ArtifactUpdate:
    """Return the one artifact of a scenario, or a chunk of it."""
    return ArtifactUpdate(
        Artifact(artifact_id="result", name="Result", parts=parts), append=append, last=last
    )


def working() -> StatusUpdate:
    """Return the working status."""
    return StatusUpdate(TaskState.WORKING)


def done(text: str = "Hello from TCK") -> StatusUpdate:
    """Return the completed status, with a message."""
    return StatusUpdate(TaskState.COMPLETED, agent_message(text))


async def complete(turn: Turn) -> Updates:
    yield done()


async def ask(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("Tell me more"))


async def text(turn: Turn) -> Updates:
    yield working()
    yield artifact(Part(text="Generated text content"))
    yield done()


async def file(turn: Turn) -> Updates:
    yield working()
    yield artifact(Part(raw=b"Generated file content", filename="output.txt", media_type="text/plain"))
    yield done()


async def file_url(turn: Turn) -> Updates:
    yield working()
    url = "https://example.com/output.txt"
    yield artifact(Part(url=url, filename="output.txt", media_type="text/plain"))
    yield done()


async def data(turn: Turn) -> Updates:
    yield working()
    yield artifact(Part(data={"key": "value", "count": 42}))
    yield done()


async def chunks(turn: Turn) -> Updates:
    yield working()
    yield artifact(Part(text="First chunk, "), last=False)
    yield artifact(Part(text="second chunk"), append=True)
    yield done()


async def reply(turn: Turn) -> Updates:
    parts = (Part(text="Direct message response"),)
    yield Message(message_id=f"reply-to-{turn.task_id}", role=Role.AGENT, parts=parts)


async def reject(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.REJECTED, agent_message("This agent does not do that"))


async def stay_busy(turn: Turn) -> Updates:
    yield working()
    await anyio.sleep(BUSY_SECONDS)
    yield done()


async def echo(turn: Turn) -> Updates:
    yield working()
    yield artifact(Part(text=f"Echo: {turn.history.conversation[-1].text}"))
    yield done()


# The first matching prefix wins.
SCENARIOS: dict[str, Callable[[Turn], Updates]] = {
    "tck-complete-task": complete,
    "tck-input-required": ask,
    "tck-artifact-text": text,
    "tck-artifact-file-url": file_url,
    "tck-artifact-file": file,
    "tck-artifact-data": data,
    "tck-message-response": reply,
    "tck-reject-task": reject,
    "tck-stream-artifact-chunked": chunks,
    "tck-stream-artifact-file": file,
    "tck-stream-artifact-text": text,
    "tck-stream-ordering-001": text,
    "tck-stream-001": text,
    "tck-stream-003": text,
    "tck-stream-002": complete,
    "test-resubscribe-message-id": stay_busy,
    # This scenario continues its task while it is working.
    "test-state-message-id": stay_busy,
    "tck-": echo,
    # The kit for 0.3 generates its message ids, and continues every task.
    "": ask,
}


async def play(turn: Turn) -> Updates:
    """Run the scenario that the message's id selects."""
    message_id = turn.message.message_id
    scenario = next(play for prefix, play in SCENARIOS.items() if message_id.startswith(prefix))
    async for update in scenario(turn):
        yield update


class GrpcAddressWithScheme:
    """Write the gRPC address of the card as ``http://HOST:PORT``: the kit for 0.3 cannot read ``HOST:PORT``.

    The official clients of 0.3 can dial ``HOST:PORT`` alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != CARD_PATH:
            return await self._app(scope, receive, send)

        async def rewrite(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                headers = [field for field in message["headers"] if field[0] != b"content-length"]
                message = {**message, "headers": headers}
            elif message["type"] == "http.response.body":
                body = re.sub(rb'"url": ?"(127\.0\.0\.1:\d+)"', rb'"url": "http://\1"', message["body"])
                message = {**message, "body": body}
            await send(message)

        return await self._app(scope, receive, rewrite)


def main() -> None:
    """Serve the agent until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=21250)
    parser.add_argument("--grpc-port", type=int, help="none without")
    parser.add_argument("--card-version", choices=("1.0", "0.3", "both"), default="1.0")
    parser.add_argument("--required-extension", action="store_true", help="refuse who does not ask for one")
    arguments = parser.parse_args()
    settings = Settings.model_validate(
        {
            "store": "sqlite://",
            "grpc_port": arguments.grpc_port,
            "card": {"protocol_version": arguments.card_version},
            "push_notifications": "private",
            "agent_name": "Conformance",
        }
    )
    url = f"http://127.0.0.1:{arguments.port}/"
    # The kit for 0.3 expects an error for the extended card without authentication; the one for 1.0 expects the card.
    extended = build_card(settings, url, has_extended=True) if arguments.card_version != "0.3" else None
    extensions = (REQUIRED_EXTENSION,) if arguments.required_extension else ()
    app = create_app(settings, handler=DirectHandler(play), extended_card=extended, extensions=extensions)
    served = GrpcAddressWithScheme(app) if arguments.card_version == "0.3" else app
    uvicorn.run(served, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
