"""Handlers: a handler runs the turns of tasks and yields updates.

The engine behind every binding drives a task by iterating its handler. An agent is one (`AgentHandler`); any code of
yours is another: an async generator function that takes a `Turn` and yields artifacts, status changes, or one direct
message::

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="report", parts=(Part(text="42"),)))
        yield StatusUpdate(TaskState.COMPLETED)

    app = create_app(handler=handle)
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio.lowlevel

from tailrace.server.runtime.large_updates import MAX_DELTA_CHARACTERS, encoded_if_large, slices_of
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.agent.request_facts import NO_FACTS, RequestFacts
from tailrace.streaming.task.updates import ArtifactUpdate, MessageAdded, StatusUpdate, TextDelta, Update
from tailrace.wrappers import History

Item = Update | MessageAdded | Message
"""An item that a handler yields: an update of its task, a message of the conversation, or its direct response."""

HandlerFunction = Callable[["Turn"], AsyncIterator[Item]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a caller, and all that is known when it is to be answered.

    Attributes:
        task_id: The task that the answer belongs to.
        context_id: The conversation that the task belongs to: the caller's own id, which another caller may use too.
        external_context_id: Identifies the conversation to other systems, and in whatever is kept by conversation:
            opaque, and unique to the conversation and its caller. Empty where no server made the turn.
        external_message_id: Identifies the message to other systems, as `external_context_id` the conversation; the
            same when the turn is begun again after a crash.
        message: What the caller said.
        history: The conversation in the common format, this message at its end; behind it only what the turn had come to
            when a crash interrupted it.
        number: 1 for a task's first message, 2 for the second, ….
        accepted_output_modes: Media types that the caller can take; empty when it did not say.
        metadata: The request's metadata.
        facts: What the caller asks for beyond the message, in this request or in one for the same task before it.
        extensions: URIs of the extensions that the request uses, of those that the agent's card lists.
        resumed: How many messages of the history stand behind this one: a crash interrupted the turn after them.
        max_event_bytes: How large an update may be; 0 for any size.
        at_once: Deprecated, always None: yield every update.
    """

    task_id: str
    context_id: str
    message: Message
    history: History
    number: int = 1
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    extensions: tuple[str, ...] = ()
    facts: RequestFacts = NO_FACTS
    resumed: int = 0
    max_event_bytes: int = 0
    at_once: None = None
    external_context_id: str = ""
    external_message_id: str = ""


class Handler(ABC):
    """Does the work of tasks.

    Attributes:
        replies_directly: True if a turn may be answered by a bare `Message`, yielded first, without a task.
            The caller then sees nothing of a task before the handler's first update, so the default is False:
            the task exists, and its stream has begun, before the handler runs.
        accepts_native_tools: As `Model.accepts_native_tools`, for the options of a request.
    """

    replies_directly: ClassVar[bool] = False
    accepts_native_tools: bool = False

    @abstractmethod
    def run(self, turn: Turn) -> AsyncIterator[Item]:
        """The updates that answer a turn, as an async generator.

        It ends the turn by a `StatusUpdate` with a terminal or interrupted state (unless it ``continues``); when it just returns, the
        task is completed, and when it raises, the task fails with the exception's text if it is a
        `TailraceError` and a general one otherwise. On cancel the generator gets the usual cancellation at
        its await; what it yielded until then is kept.
        """

    async def begin(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        """Prepare a turn, and return its updates in batches; the engine iterates over them, and closes the generator.

        By itself, the updates of `run`, one at a time; large ones are encoded in a thread, and long texts become several
        updates. A handler that has several at once overrides it.
        """
        return _one_by_one(self.run(turn), turn)

    def check(self, facts: RequestFacts) -> None:  # noqa: B027 — by itself a handler refuses nothing
        """Refuse now what a request asks for and cannot have.

        Raises:
            InvalidParamsError: And says why.
        """

    def received(self, message: Message) -> Message:
        """Return a caller's message as it is recorded; by itself a handler changes nothing."""
        return message

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold what the handler needs (connections, processes) as long as the server runs; nothing by itself.

        Raises:
            TailraceError: It cannot be had: the server does not start.
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


async def _one_by_one(updates: AsyncIterator[Item], turn: Turn) -> AsyncGenerator[Sequence[Item]]:
    async with closing(updates):
        async for item in updates:
            if isinstance(item, TextDelta) and len(item.text) > MAX_DELTA_CHARACTERS:
                for delta in slices_of(item):
                    yield (delta,)
                    await anyio.lowlevel.checkpoint()
            elif isinstance(item, ArtifactUpdate | StatusUpdate):
                ids = (turn.task_id, turn.context_id)
                yield (await encoded_if_large(item, *ids, turn.max_event_bytes),)
            else:
                yield (item,)


class closing:
    """Close an async generator at the end of the block; an iterator of another kind has nothing to close."""

    __slots__ = ("_updates",)

    def __init__(self, updates: AsyncIterator[Item]) -> None:
        self._updates = updates

    async def __aenter__(self) -> AsyncIterator[Item]:
        return self._updates

    async def __aexit__(self, *_raised: object) -> None:
        aclose = getattr(self._updates, "aclose", None)
        if aclose is not None:
            await aclose()
