"""The interface of handlers, which run the turns of tasks and yield updates.

`AgentHandler` is the handler for a model with tools. A custom handler is an async generator function that takes a `Turn` and
yields artifacts and status changes, or one direct message::

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
from tailrace.streaming.agent.caller_options import NO_CALLER_OPTIONS, CallerOptions
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.conversion.published_artifacts import PublishedArtifact
from tailrace.streaming.task.updates import MessageAdded, TextDelta, Update
from tailrace.wrappers import History

Item = Update | MessageAdded | Message
"""An item that a handler yields: an update of the task, a message for the conversation, or a direct response."""

HandlerFunction = Callable[["Turn"], AsyncIterator[Item]]


@dataclass(frozen=True, slots=True)
class Turn:
    """The input of a handler: a message of a caller, with the conversation and the options of the request.

    Attributes:
        task_id: The id of the task.
        context_id: The caller's id of the conversation. Another caller may use the same id for another conversation.
        external_context_id: An opaque id of the conversation for other systems, and a key for data that the handler stores. It is
            unique for the conversation and its caller. Empty if the turn was not created by a server.
        external_message_id: An opaque id of the message for other systems. It stays the same if the turn is run again. Empty if
            the turn was not created by a server.
        history: The conversation in the format for all providers, with ``message`` at its end. If the turn was interrupted (by a
            crash or a stop of the server), the messages of its complete rounds follow.
        number: The number of the message in the task, from 1.
        accepted_output_modes: The media types that the caller accepts; empty for no restriction.
        metadata: The metadata of the request.
        caller_options: The options of the request. If the request has none, the options of the task's previous request.
        extensions: URIs of the extensions that the request activates.
        resumed_message_count: If the turn was interrupted, the number of messages that follow ``message`` in the history;
            otherwise 0.
        interrupted: The response that was interrupted; None if the turn was not interrupted.
        published: The artifacts of ``interrupted``. The handler may extend or replace those that are not complete.
        max_event_bytes: Maximum size of an update in bytes; 0 for no limit.
        at_once: Deprecated; always None.
        executing_call_ids: The ids of approved tool calls that had begun to run when the turn was interrupted.
        cost: The cost of processing ``history``, ``caller_options`` and ``metadata``, for `run_bounded`.
        wait_until_persisted: Waits until all updates that the handler has yielded are persisted.
    """

    task_id: str
    context_id: str
    message: Message
    history: History
    number: int = 1
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    extensions: tuple[str, ...] = ()
    caller_options: CallerOptions = NO_CALLER_OPTIONS
    resumed_message_count: int = 0
    interrupted: InterruptedResponse | None = None
    published: Sequence[PublishedArtifact] = ()
    max_event_bytes: int = 0
    at_once: None = None
    external_context_id: str = ""
    external_message_id: str = ""
    executing_call_ids: frozenset[str] = frozenset()
    cost: int = 0
    wait_until_persisted: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint

    @property
    def facts(self) -> CallerOptions:
        """Deprecated name of `caller_options`; to be removed in 0.3."""
        return self.caller_options

    @property
    def resumed(self) -> int:
        """Deprecated name of `resumed_message_count`; to be removed in 0.3."""
        return self.resumed_message_count


class Handler(ABC):
    """The base class of handlers. `FunctionHandler` makes a handler from a function.

    Attributes:
        replies_directly: True if the handler may yield a `Message` as its first item, to respond without a task. The task and its
            stream then begin only with the first update of the handler.
        continues_after_crash: True if the handler can continue an interrupted turn, after the complete rounds in `Turn.history`.
        accepts_native_tools: True if callers may request tools that a provider defines; see `Model.accepts_native_tools`.
    """

    replies_directly: ClassVar[bool] = False
    continues_after_crash: ClassVar[bool] = False
    accepts_native_tools: bool = False

    @abstractmethod
    def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Yield the updates of a turn, as an async generator.

        A `StatusUpdate` with a terminal or interrupted state ends the turn, unless its field ``continues`` is True. If the
        generator returns without such an update, the task is completed.

        If the generator raises an error, the task fails with the message of a `TailraceError`, or with a general message. If the
        task is cancelled, the current await of the generator raises the usual cancellation error. In all cases, the task keeps
        the updates that the generator has yielded.
        """

    async def run_in_batches(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        """Prepare a turn, and return an async generator of batches of updates. The engine closes the generator.

        By default, the generator yields the updates of `run` one at a time, and splits long texts. Override this method to yield
        several updates at the same time.
        """
        return _one_by_one(self.run(turn))

    def check(self, caller_options: CallerOptions) -> None:  # noqa: B027 — accepts all options by default
        """Check the options of a request before its task is created. By default, all options are accepted.

        Raises:
            InvalidParamsError: The handler does not support an option.
        """

    def message_to_store(self, message: Message) -> Message:
        """Return the message to store for a caller's message. By default, this is the same message."""
        return message

    async def cancel_interrupted(self, interrupted: InterruptedResponse) -> None:  # noqa: B027 — most responses end with the process
        """Cancel a response that a crash or a stop interrupted and that still runs at a provider or remote agent.

        The server calls this method when it fails the task. By default, do nothing.

        Args:
            interrupted: The response. Its ``stored_id`` is not empty.
        """

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold the resources of the handler (connections, processes) until the block ends. By default, there are none.

        Raises:
            TailraceError: A resource is not available. At startup, the server then stops.
        """
        yield


class FunctionHandler(Handler):
    """A handler that runs an async generator function."""

    def __init__(self, function: HandlerFunction) -> None:
        self._function = function

    def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Call the function."""
        return self._function(turn)


class DirectHandler(FunctionHandler):
    """A handler that runs an async generator function, and may respond directly (`Handler.replies_directly`)."""

    replies_directly = True


async def _one_by_one(updates: AsyncIterator[Item]) -> AsyncGenerator[Sequence[Item]]:
    async with ClosingUpdates(updates):
        async for item in updates:
            if isinstance(item, TextDelta) and len(item.text) > MAX_DELTA_CHARACTERS:
                for delta in slices_of(item):
                    yield (delta,)
                    await anyio.lowlevel.checkpoint()
            else:
                yield (item,)


class ClosingUpdates:
    """Closes an async generator at the end of the block. Does nothing for async iterators without ``aclose``."""

    __slots__ = ("_updates",)

    def __init__(self, updates: AsyncIterator[Item]) -> None:
        self._updates = updates

    async def __aenter__(self) -> AsyncIterator[Item]:
        return self._updates

    async def __aexit__(self, *_raised: object) -> None:
        aclose = getattr(self._updates, "aclose", None)
        if aclose is not None:
            await aclose()
