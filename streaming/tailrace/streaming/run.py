"""What comes of an agent's run: its results, its errors, and its steps."""

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

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
    """What a run has brought that is new: all of it, or in a stream what came since the last result.

    Attributes:
        output: Visible text; the whole answer as an object where `Agent.run` was to give one.
        messages: The messages that are complete: the prompt first, then the model's and one with the results of tools a
            round.
        reasoning: Reasoning text.
        finish_reason: Why the last answer ended; in a stream only with the last result, as ``usage``.
        usage: Tokens of all requests together; None when none were reported.
        metadata: Facts about the answers; in a stream those that are new or have changed.
        id: The last answer's id; empty when it had none.
        files: Files that came by value.
        links: Files that came by address.
        open_calls: Calls of tools that the caller is to run: put their results into the next prompt.
        replaces: In a stream: the model began an answer anew, and this result holds all of the run's output, reasoning
            and files so far, in place of what was given before.
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
    """The agent did not come to an answer.

    Args:
        message: Why.
        messages: What the run brought until then, the prompt first: tools may have run, and done something.
    """

    def __init__(self, message: str, messages: tuple[Message, ...] = ()) -> None:
        super().__init__(message)
        self.messages = messages


class BrokenRunError(UpstreamError, AgentError):
    """The agent did not come to an answer since the provider failed; an `UpstreamError` that has the messages, too.

    Args:
        error: What the provider did.
        messages: As of any `AgentError`; the last may be an answer that broke off.
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
        )
        self.messages = messages


class Received(msgspec.Struct, frozen=True, gc=False):
    """Something of an answer arrived.

    Attributes:
        changes: What it added.
    """

    changes: list[Change]


class ResponseEnded(msgspec.Struct, frozen=True):
    """An answer is over; its message is the turn's last, unless it said nothing and is asked for again.

    Attributes:
        changes: The text that was held back, if any.
    """

    changes: list[Change]


class ToolEnded(msgspec.Struct, frozen=True):
    """A tool has answered.

    Attributes:
        result: What.
    """

    result: ContentPartToolResult


class RoundEnded(msgspec.Struct, frozen=True):
    """All tools of a round that are run here have answered; the message with their results is the turn's last."""


Step = Received | ResponseEnded | ToolEnded | RoundEnded
"""What happens in a turn, in order."""


class StepTaker(Protocol):
    """Takes the usual steps of a turn where they arrive, so that whoever waits for the next step need not be woken."""

    @property
    def ready(self) -> bool:
        """Whether it takes one now."""
        ...

    def take(self, step: Received) -> None:
        """Take one; only called when `ready`. What it raises, the turn's steps raise; an `UpstreamError` is the provider's."""
        ...
