"""The interface of handlers, which run the turns of tasks and yield updates.

The engine iterates over the updates of the handler. `AgentHandler` is the handler for a model with tools. A custom handler is an
async generator function that takes a `Turn` and yields artifacts and status changes, or one direct message::

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="report", parts=(Part(text="42"),)))
        yield StatusUpdate(TaskState.COMPLETED)

    app = create_app(handler=handle)
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio.lowlevel

from tailrace.server.runtime.large_updates import MAX_DELTA_CHARACTERS, slices_of
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.agent.caller_options import NO_FACTS, CallerOptions
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.conversion.published_artifacts import PublishedArtifact
from tailrace.streaming.task.updates import MessageAdded, TextDelta, Update
from tailrace.wrappers import History

Item = Update | MessageAdded | Message
"""An item that a handler yields: an update of the task, a message to record in the conversation, or a direct response."""

HandlerFunction = Callable[["Turn"], AsyncIterator[Item]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a caller, with the conversation and the options of the request. The input of a handler.

    Attributes:
        task_id: The task that the answer belongs to.
        context_id: The conversation that the task belongs to: the caller's own id, which another caller may use too.
        external_context_id: Identifies the conversation to other systems, and in whatever is kept by conversation:
            opaque, and unique to the conversation and its caller. Empty where no server made the turn.
        external_message_id: Identifies the message to other systems, as `external_context_id` the conversation; the
            same when the turn is begun again after a crash.
        message: The message of the caller.
        history: The conversation in the common format, this message at its end; behind it only what the turn had come to
            when a crash interrupted it.
        number: 1 for a task's first message, 2 for the second, ….
        accepted_output_modes: Media types that the caller accepts; empty for no restriction.
        metadata: The request's metadata.
        facts: What the caller asks for beyond the message, in this request or in one for the same task before it.
        extensions: URIs of the extensions that the request uses, of those that the agent's card lists.
        resumed: The number of messages in the history that follow this one, because a crash interrupted the turn after them.
        interrupted: The response that a crash interrupted; None if the turn begins.
        published: The artifacts of ``interrupted``. The handler may extend or replace those that are open.
        max_event_bytes: How large an update may be; 0 for any size.
        at_once: Deprecated, always None: yield every update.
        executing: The ids of approved tool calls whose execution had begun when a crash interrupted the turn.
        persisted: Returns when all updates that the handler has yielded are persisted.
    """

    task_id: str
    context_id: str
    message: Message
    history: History
    number: int = 1
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    extensions: tuple[str, ...] = ()
    facts: CallerOptions = NO_FACTS
    resumed: int = 0
    interrupted: InterruptedResponse | None = None
    published: Sequence[PublishedArtifact] = ()
    max_event_bytes: int = 0
    at_once: None = None
    external_context_id: str = ""
    external_message_id: str = ""
    executing: frozenset[str] = frozenset()
    persisted: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint


class Handler(ABC):
    """Runs the turns of tasks. Base class of `AgentHandler`; to use a function instead, see `FunctionHandler`.

    Attributes:
        replies_directly: True if a turn may be answered by a bare `Message`, yielded first, without a task.
            The caller then sees nothing of a task before the handler's first update, so the default is False:
            the task exists, and its stream has begun, before the handler runs.
        continues: A turn that a crash interrupted may begin again, behind the rounds in its history.
        accepts_native_tools: As `Model.accepts_native_tools`, for the options of a request.
    """

    replies_directly: ClassVar[bool] = False
    continues: ClassVar[bool] = False
    accepts_native_tools: bool = False

    @abstractmethod
    def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Yield the updates of a turn, as an async generator.

        A `StatusUpdate` with a terminal or interrupted state ends the turn, unless its field ``continues`` is True. If the
        generator returns without such an update, the task ends COMPLETED. If the generator raises an error, the task ends FAILED
        with the error's text for a `TailraceError`, or with a general text for other errors. If the task is canceled, the await
        of the generator raises the usual cancellation error. Updates that the generator yielded before remain in the task.
        """

    async def begin(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        """Prepare a turn, and return an async generator of batches of updates. The engine closes the generator.

        The default yields the updates of `run` one at a time, and divides long texts. Override it in a handler that has
        several updates at once.
        """
        return _one_by_one(self.run(turn))

    def check(self, facts: CallerOptions) -> None:  # noqa: B027 — accepts all options by default
        """Check the options of a request before its task is created. Accepts all options by default.

        Raises:
            InvalidParamsError: The handler does not support an option. The text states the reason.
        """

    def received(self, message: Message) -> Message:
        """Return the message to record for a caller's message. Returns the message unchanged by default."""
        return message

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold the resources of the handler (connections, processes) while the server runs. Holds none by default.

        Raises:
            TailraceError: A resource is not available. The server then does not start.
        """
        yield


class FunctionHandler(Handler):
    """An async generator function as a handler."""

    def __init__(self, function: HandlerFunction) -> None:
        self._function = function

    def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Call the function."""
        return self._function(turn)


class DirectHandler(FunctionHandler):
    """An async generator function that may respond with a message (`Handler.replies_directly`)."""

    replies_directly = True


async def _one_by_one(updates: AsyncIterator[Item]) -> AsyncGenerator[Sequence[Item]]:
    async with closing(updates):
        async for item in updates:
            if isinstance(item, TextDelta) and len(item.text) > MAX_DELTA_CHARACTERS:
                for delta in slices_of(item):
                    yield (delta,)
                    await anyio.lowlevel.checkpoint()
            else:
                yield (item,)


class closing:
    """Close an async generator at the end of the block. Other async iterators, which have no ``aclose``, are left alone."""

    __slots__ = ("_updates",)

    def __init__(self, updates: AsyncIterator[Item]) -> None:
        self._updates = updates

    async def __aenter__(self) -> AsyncIterator[Item]:
        return self._updates

    async def __aexit__(self, *_raised: object) -> None:
        aclose = getattr(self._updates, "aclose", None)
        if aclose is not None:
            await aclose()
