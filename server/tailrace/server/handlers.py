"""Who does the work of a task: a handler, which yields updates.

The engine behind every binding drives a task by iterating its handler. A model is one (`ModelHandler`); any code of
yours is another: an async generator function that takes a `Turn` and yields artifacts, status changes, or one direct
message::

    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="report", parts=(Part(text="42"),)))
        yield StatusUpdate(TaskState.COMPLETED)

    app = create_app(handler=handle)
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tailrace.streaming.a2a.models import Message
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.translator import ResponseTranslator
from tailrace.streaming.updates import StatusUpdate, Update
from tailrace.wrappers import History, UpstreamError
from tailrace.wrappers.model import Model

HandlerFunction = Callable[["Turn"], AsyncIterator[Update | Message]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a caller, and all that is known when it is to be answered.

    Attributes:
        task_id: The task that the answer belongs to.
        context_id: The conversation that the task belongs to.
        message: What the caller said.
        history: The conversation in the common format, this message at its end.
        number: 1 for a task's first message, 2 for the second, ….
        accepted_output_modes: Media types that the caller can take; empty when it did not say.
        metadata: The request's metadata.
        extensions: URIs of the extensions that the request uses, of those that the agent's card lists.
    """

    task_id: str
    context_id: str
    message: Message
    history: History
    number: int = 1
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    extensions: tuple[str, ...] = ()


class Handler(ABC):
    """Does the work of tasks.

    Attributes:
        replies_directly: True if a turn may be answered by a bare `Message`, yielded first, without a task.
            The caller then sees nothing of a task before the handler's first update, so the default is False:
            the task exists, and its stream has begun, before the handler runs.
    """

    replies_directly: ClassVar[bool] = False

    @abstractmethod
    def run(self, turn: Turn) -> AsyncIterator[Update | Message]:
        """The updates that answer a turn, as an async generator.

        It ends the turn by a `StatusUpdate` with a terminal or interrupted state; when it just returns, the
        task is completed, and when it raises, the task fails with the exception's text if it is a
        `TailraceError` and a general one otherwise. On cancel the generator gets the usual cancellation at
        its await; what it yielded until then is kept.
        """

    async def aclose(self) -> None:
        """Release what the handler holds; called once, when the server stops."""
        return


class FunctionHandler(Handler):
    """An async generator function as a handler."""

    def __init__(self, function: HandlerFunction) -> None:
        self._function = function

    def run(self, turn: Turn) -> AsyncIterator[Update | Message]:
        """Call the function."""
        return self._function(turn)


class DirectHandler(FunctionHandler):
    """An async generator function that may answer with a bare message, as `Handler.replies_directly` says."""

    replies_directly = True


class ModelHandler(Handler):
    """Answers each turn by one response of a model.

    Args:
        model: The model; closed with the handler.
        instructions: The system message of every conversation.
        merge_reads: True merges the deltas that arrived with one read of the network into one update.
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text.
    """

    def __init__(
        self,
        model: Model,
        *,
        instructions: str | None = None,
        merge_reads: bool = True,
        think_tags: bool = True,
    ) -> None:
        self._model = model
        self._instructions = instructions
        self._merge_reads = merge_reads
        self._think_tags = think_tags

    async def run(self, turn: Turn) -> AsyncIterator[Update | Message]:
        """Stream the model's answer; an upstream that fails ends the task FAILED with what arrived kept."""
        yield StatusUpdate(TaskState.WORKING)
        translator = ResponseTranslator(turn=turn.number, think_tags=self._think_tags)
        history = turn.history.model_copy(update={"system_message": self._instructions})
        failure: UpstreamError | None = None
        try:
            async with self._model.stream(history) as batches:
                async for batch in batches:
                    for chunks in (batch,) if self._merge_reads else ((chunk,) for chunk in batch):
                        for update in translator.feed(chunks):
                            yield update
                    if translator.accumulator.error is not None:
                        break
        except UpstreamError as error:
            failure = error
        for update in translator.close(failure):
            yield update

    async def aclose(self) -> None:
        """Close the model's connections."""
        await self._model.aclose()


@asynccontextmanager
async def closing(
    updates: AsyncIterator[Update | Message],
) -> AsyncGenerator[AsyncIterator[Update | Message]]:
    """Close an async generator at the end of the block; an iterator of another kind has nothing to close."""
    try:
        yield updates
    finally:
        aclose = getattr(updates, "aclose", None)
        if aclose is not None:
            await aclose()
