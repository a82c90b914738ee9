"""The results and errors of an agent's run, and the steps of a turn. `Agent` creates the objects."""

from dataclasses import dataclass, field
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from tailrace.streaming.accumulator import Attempt
from tailrace.wrappers import (
    Change,
    ContentPartFile,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    Message,
    TailraceError,
    UpstreamError,
    Usage,
)
from tailrace.wrappers.continuation import Route

T = TypeVar("T", default=str)


@dataclass(frozen=True, slots=True)
class ChatResult(Generic[T]):
    """The new content of a run. In a stream, a result contains the content since the previous result.

    Attributes:
        output: The visible text. `Agent.run` returns the parsed response instead, if the agent has an output type and there
            are no open calls.
        messages: The complete new messages: first the prompt, then for each round the message of the model and the
            message with the tool results.
        finish_reason: The finish reason of the last response; None if it had none. In a stream, only the last result contains
            it.
        usage: The token counts of all requests; None if none were reported. In a stream, only the last result contains it.
        metadata: Metadata of the responses. In a stream, a result contains only new and changed values.
        id: The id of the last response; empty if the provider sent none.
        files: Files whose content the model sent.
        linked_files: Files of which the model sent the URL.
        open_calls: Calls without a result: calls of the caller's tools, and calls that need an approval. The caller adds the
            results to the next prompt.
        replaces: True if the model restarted a response in a stream. The output, reasoning, files and linked files then replace
            those of all earlier results.
    """

    output: T
    messages: tuple[Message, ...] = ()
    reasoning: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""
    files: tuple[ContentPartFile, ...] = ()
    linked_files: tuple[ContentPartFile, ...] = ()
    open_calls: tuple[ContentPartToolCall, ...] = ()
    replaces: bool = False

    @property
    def links(self) -> tuple[ContentPartFile, ...]:
        """Deprecated name of `linked_files`; to be removed in 0.3."""
        return self.linked_files


class AgentError(TailraceError):
    """The run of an agent ended without a usable response.

    Args:
        message: The reason.
        messages: The messages of the run so far, beginning with the prompt. Tools may have had side effects.
    """

    def __init__(self, message: str, messages: tuple[Message, ...] = ()) -> None:
        super().__init__(message)
        self.messages = messages


class BrokenRunError(UpstreamError, AgentError):
    """The run of an agent ended without a complete response, because the provider failed.

    Args:
        error: The error of the provider.
        messages: The messages of the run so far. The last message may be an incomplete response.
    """

    def __init__(self, error: UpstreamError, messages: tuple[Message, ...] = ()) -> None:
        super().__init__(
            error.message,
            fault=error.fault,
            provider=error.provider,
            status=error.status,
            code=error.code,
            retry_after=error.retry_after,
            tries=error.tries,
            details=error.details,
            diagnosis=error.diagnosis,
        )
        self.messages = messages


class Received(msgspec.Struct, frozen=True, gc=False):
    """Step: a part of a response has arrived."""

    changes: list[Change]


class ResponseEnded(msgspec.Struct, frozen=True):
    """Step: a response has ended.

    Attributes:
        changes: The changes from text that was still buffered at the end.
    """

    changes: list[Change]


class ToolEnded(msgspec.Struct, frozen=True):
    """Step: a tool has returned a result."""

    result: ContentPartToolResult


class ExecutionStarting(msgspec.Struct, frozen=True):
    """Step: approved calls are about to run."""

    call_ids: tuple[str, ...]


class RoundEnded(msgspec.Struct, frozen=True):
    """Step: all tools of a round have returned results, which are the last message of the turn."""


class ResponseBegun(msgspec.Struct, frozen=True):
    """Step: the first chunk of a response, or of a further attempt, has arrived.

    Attributes:
        model: The model, as ``provider:name``.
        route: How the attempt continues the response; None for the first attempt.
        stored_id: The id under which the provider stores the response (`Model.stored_id`). Another process can receive the
            response with this id. Empty if the provider does not store the response.
    """

    model: str
    route: Route | None
    stored_id: str


class ResponseContinued(msgspec.Struct, frozen=True):
    """Step: a response broke off, and another attempt continues it.

    Attributes:
        attempt: The attempt that broke off.
        model: The model of the next attempt, as ``provider:name``.
        route: How the next attempt continues the response. With `Route.REPLACE`, its content replaces all content so far.
        has_text: True if only text has arrived.
    """

    attempt: Attempt
    model: str
    route: Route
    has_text: bool


Step = (
    Received | ResponseBegun | ResponseContinued | ResponseEnded | ExecutionStarting | ToolEnded | RoundEnded
)
"""A step of a turn."""
