"""An agent that plays the scenarios of the official compatibility kits, through the handler interface that anybody uses.

The kits say by the prefix of a message's id what the agent is to do (https://github.com/a2aproject/a2a-tck).
"""

import argparse
from collections.abc import AsyncIterator, Callable

import anyio
import uvicorn

from tailrace.server import Settings, Turn, create_app
from tailrace.server.card import build_card
from tailrace.server.handlers import DirectHandler
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import AgentExtension, Artifact, Message, Part, Role
from tailrace.streaming.task import agent_message

Updates = AsyncIterator[Update | Message]

REQUIRED_EXTENSION = AgentExtension(uri="urn:a2a:tck:required-extension", required=True)
"""What the kit for 1.0 leaves out of a request on purpose; of the other tests none asks for it."""

BUSY_SECONDS = 4.0
"""How long a task stays at work for a client that is to find it so."""


def artifact(*parts: Part, append: bool = False, last: bool = True) -> ArtifactUpdate:
    """The one artifact of a scenario, or a chunk of it."""
    return ArtifactUpdate(
        Artifact(artifact_id="result", name="Result", parts=parts), append=append, last=last
    )


def working() -> StatusUpdate:
    """The task is worked on."""
    return StatusUpdate(TaskState.WORKING)


def done(text: str = "Hello from TCK") -> StatusUpdate:
    """The task is complete, with a word about it."""
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


# The first prefix that fits counts.
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
    # This one goes on with its task while that is at work.
    "test-state-message-id": stay_busy,
    "tck-": echo,
    # The kit for 0.3 names its messages as it likes, and goes on with every task.
    "": ask,
}


async def play(turn: Turn) -> Updates:
    """Play the scenario that the message asks for by its id."""
    message_id = turn.message.message_id
    scenario = next(play for prefix, play in SCENARIOS.items() if message_id.startswith(prefix))
    async for update in scenario(turn):
        yield update


def main() -> None:
    """Serve the agent until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=21250)
    parser.add_argument("--grpc-port", type=int, help="none without")
    parser.add_argument("--card-version", choices=("1.0", "0.3"), default="1.0")
    parser.add_argument("--required-extension", action="store_true", help="refuse who does not ask for one")
    arguments = parser.parse_args()
    settings = Settings.model_validate(
        {
            "store": "sqlite://",
            "grpc_port": arguments.grpc_port,
            "card_version": arguments.card_version,
            "push_allow_private": True,
            "agent_name": "Conformance",
        }
    )
    url = f"http://127.0.0.1:{arguments.port}/"
    # The kit for 0.3 wants the extended card of an agent that knows nobody to be refused; that for 1.0, to be given.
    extended = build_card(settings, url, has_extended=True) if arguments.card_version == "1.0" else None
    extensions = (REQUIRED_EXTENSION,) if arguments.required_extension else ()
    app = create_app(settings, handler=DirectHandler(play), extended_card=extended, extensions=extensions)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
