"""The results and errors of an agent's run, and the steps of a turn. `Agent` creates all of them."""

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
    """The new content of a run. In a stream, it is the content since the previous result.

    Attributes:
        output: The visible text. If the agent has an output type, the parsed response in the result of `Agent.run`.
        messages: The complete new messages: first the prompt, then for each round the message of the model and a
            message with the tool results.
        reasoning: Reasoning text.
        finish_reason: The finish reason of the last response. In a stream, only the last result has it.
        usage: The token counts of all requests together; None if none were reported. In a stream, only the last
            result has it.
        metadata: Metadata of the responses. In a stream, only new and changed values.
        id: The id of the last response; empty if the provider sent no id.
        files: Files that the model sent by value.
        links: Files that the model sent by URL.
        open_calls: Calls of the caller's tools. The caller adds their results to the next prompt.
        replaces: True if the model restarted a response in a stream. This result then has the complete output,
            reasoning and files of the run so far, which replace the earlier results.
    """

    output: T
    messages: tuple[Message, ...] = ()
    reasoning: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""
    files: tuple[ContentPartFile, ...] = ()
    links: tuple[ContentPartFile, ...] = ()
    open_calls: tuple[ContentPartToolCall, ...] = ()
    replaces: bool = False


class AgentError(TailraceError):
    """The run of an agent ended without a response.

    Args:
        message: The reason.
        messages: The messages of the run so far, the prompt first. Tools may have run, with side effects.
    """

    def __init__(self, message: str, messages: tuple[Message, ...] = ()) -> None:
        super().__init__(message)
        self.messages = messages


class BrokenRunError(UpstreamError, AgentError):
    """The run of an agent ended without a response, because the provider failed.

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
    """Step: a part of a response has arrived.

    Attributes:
        changes: The changes of the response.
    """

    changes: list[Change]


class ResponseEnded(msgspec.Struct, frozen=True):
    """Step: a response has ended. Its message is the last of the turn, unless it is empty and the request is repeated.

    Attributes:
        changes: The changes that buffered text caused.
    """

    changes: list[Change]


class ToolEnded(msgspec.Struct, frozen=True):
    """Step: a tool has returned a result.

    Attributes:
        result: The result.
    """

    result: ContentPartToolResult


class ExecutionStarting(msgspec.Struct, frozen=True):
    """Step: approved calls are about to run.

    Attributes:
        call_ids: The ids of the calls.
    """

    call_ids: tuple[str, ...]


class RoundEnded(msgspec.Struct, frozen=True):
    """Step: all tools of a round have returned results. The message with these results is the last of the turn."""


class ResponseBegun(msgspec.Struct, frozen=True):
    """Step: the first chunk of a response, or of a further attempt, has arrived.

    Attributes:
        model: The model, as ``provider:name``.
        route: How the attempt continues the response; None for the first one.
        stored_id: The id by which the provider holds the response (`tailrace.wrappers.model.Model.stored_id`), so that another
            process can receive it; empty if the provider does not hold it.
    """

    model: str
    route: Route | None
    stored_id: str


class ResponseContinued(msgspec.Struct, frozen=True):
    """A response broke off, and another attempt continues it.

    Attributes:
        attempt: The attempt that broke off.
        model: The model of the next attempt, as ``provider:name``.
        route: How it continues the response. With `Route.REPLACE`, its first content voids what has arrived.
        has_text: What has arrived is text alone, which may have been published by another process.
    """

    attempt: Attempt
    model: str
    route: Route
    has_text: bool


Step = (
    Received | ResponseBegun | ResponseContinued | ResponseEnded | ExecutionStarting | ToolEnded | RoundEnded
)
"""A step of a turn."""
