"""The results, errors and steps of an agent's run."""

from dataclasses import dataclass, field
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

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

T = TypeVar("T", default=str)


@dataclass(frozen=True, slots=True)
class ChatResult(Generic[T]):
    """The new content of a run: all of it, or in a stream the content since the last result.

    Attributes:
        output: Visible text; the complete response as an object if `Agent.run` has an output type.
        messages: The complete messages: the prompt first, then the model's and one with the results of tools for each
            round.
        reasoning: Reasoning text.
        finish_reason: The finish reason of the last response; in a stream with the last result only, as ``usage``.
        usage: Tokens of all requests; None if none were reported.
        metadata: Metadata of the responses; in a stream new or changed values.
        id: The id of the last response; empty without one.
        files: Files sent as bytes.
        links: Files sent as URLs.
        open_calls: Calls of the caller's tools: add their results to the next prompt.
        replaces: In a stream: the model restarted a response, and this result has the complete output, reasoning and
            files of the run so far, in place of the earlier ones.
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
    """The agent has no response.

    Args:
        message: The reason.
        messages: The messages of the run until then, the prompt first: tools may have run, with side effects.
    """

    def __init__(self, message: str, messages: tuple[Message, ...] = ()) -> None:
        super().__init__(message)
        self.messages = messages


class BrokenRunError(UpstreamError, AgentError):
    """The agent has no response because the provider failed; an `UpstreamError` with messages.

    Args:
        error: The provider's error.
        messages: As for `AgentError`; the last may be an incomplete response.
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
    """Part of a response arrived.

    Attributes:
        changes: The changes of the response.
    """

    changes: list[Change]


class ResponseEnded(msgspec.Struct, frozen=True):
    """A response has ended; its message is the turn's last, unless it was empty and is requested again.

    Attributes:
        changes: Text that was held back, if any.
    """

    changes: list[Change]


class ToolEnded(msgspec.Struct, frozen=True):
    """A tool has a result.

    Attributes:
        result: The result.
    """

    result: ContentPartToolResult


class RoundEnded(msgspec.Struct, frozen=True):
    """All tools of a round have results; the message with these results is the turn's last."""


Step = Received | ResponseEnded | ToolEnded | RoundEnded
"""A step of a turn."""
