"""Who does the work of a task: a handler, which yields updates.

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
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tailrace.streaming.a2a.models import Message
from tailrace.streaming.request_facts import NO_FACTS, RequestFacts
from tailrace.streaming.updates import Said, Update
from tailrace.wrappers import History

Item = Update | Said | Message
"""What a handler yields: what happens to its task, what joins the conversation, or its direct answer."""

HandlerFunction = Callable[["Turn"], AsyncIterator[Item]]


class AtOnce(Protocol):
    """Carries out what a handler would yield, while the engine waits for it to yield something."""

    @property
    def ready(self) -> bool:
        """Whether it can be done now: there is a task, which is not cancelled, and not too much waits to be written."""
        ...

    def show(self, item: Item) -> None:
        """Carry out an update that does not end the turn. Only to be called when `ready`.

        Raises:
            InvalidAgentResponseError: It ends the turn, or is too large. It is to be let out by the handler.
        """
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a caller, and all that is known when it is to be answered.

    Attributes:
        task_id: The task that the answer belongs to.
        context_id: The conversation that the task belongs to.
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
        at_once: For updates that come from a callback while the handler waits; None where every one has to be yielded.
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
    at_once: AtOnce | None = None


class Handler(ABC):
    """Does the work of tasks.

    Attributes:
        replies_directly: True if a turn may be answered by a bare `Message`, yielded first, without a task.
            The caller then sees nothing of a task before the handler's first update, so the default is False:
            the task exists, and its stream has begun, before the handler runs.
    """

    replies_directly: ClassVar[bool] = False

    @abstractmethod
    def run(self, turn: Turn) -> AsyncIterator[Item]:
        """The updates that answer a turn, as an async generator.

        It ends the turn by a `StatusUpdate` with a terminal or interrupted state; when it just returns, the
        task is completed, and when it raises, the task fails with the exception's text if it is a
        `TailraceError` and a general one otherwise. On cancel the generator gets the usual cancellation at
        its await; what it yielded until then is kept.
        """

    def check(self, facts: RequestFacts) -> None:  # noqa: B027 — by itself a handler refuses nothing
        """Refuse now what a request asks for and cannot have.

        Raises:
            InvalidParamsError: And says why.
        """

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
    """An async generator function that may answer with a bare message, as `Handler.replies_directly` says."""

    replies_directly = True


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
