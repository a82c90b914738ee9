"""Chat events: the events of a turn, independent of the client's protocol."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.tools.approvals import ApprovalRequest
from tailrace.wrappers import ContentPartToolCall

Channel = Literal["text", "reasoning", "refusal"]
"""The channel of a text. The last status has the channel ``text``."""


class UiEvent(msgspec.Struct, frozen=True):
    """Base class of chat events."""


class TurnStarted(UiEvent, frozen=True):
    """The first event of a turn.

    Attributes:
        task_id: The id of the task; empty for a response without a task.
        context_id: The id of the conversation; empty if ``task_id`` is empty.
        first_turn: The number of the first turn in the response. Further turns follow if the caller's messages between them have
            only tool results or decisions about calls.
    """

    task_id: str
    context_id: str
    first_turn: int = 1


class RoundStarted(UiEvent, frozen=True, gc=False):
    """A round starts."""

    turn: int
    round: int


class TextStarted(UiEvent, frozen=True, gc=False):
    """A text starts. Its id is unique in the task."""

    id: str
    channel: Channel


class TextAdded(UiEvent, frozen=True, gc=False):
    """A delta of a text."""

    id: str
    channel: Channel
    text: str


class TextEnded(UiEvent, frozen=True, gc=False):
    """A text is complete."""

    id: str
    channel: Channel


class CallStarted(UiEvent, frozen=True, gc=False):
    """A tool call starts.

    Attributes:
        id: The id of the call.
        name: The name of the tool.
        declared: Whether the client declared the tool, and runs it.
    """

    id: str
    name: str
    declared: bool


class ArgumentsAdded(UiEvent, frozen=True, gc=False):
    """A delta of the arguments of a call."""

    id: str
    text: str


class CallEnded(UiEvent, frozen=True):
    """A call is complete. The agent or the client runs it.

    Attributes:
        declared: See `CallStarted`.
        as_written: False if the agent changed the arguments after they were streamed in `ArgumentsAdded`.
    """

    call: ContentPartToolCall
    declared: bool
    as_written: bool = True

    @property
    def input(self) -> Any:
        """The arguments: an object, or a string for a tool with text input."""
        return self.call.arguments if self.call.arguments_text is None else self.call.arguments_text


class CallResult(UiEvent, frozen=True):
    """The result of a call.

    Attributes:
        output: Any JSON value. It describes the error if ``is_error`` is True.
        is_error: Whether the tool failed.
        by_caller: Whether the client ran the tool.
        is_rejected: Whether the call was rejected, so that the tool did not run.
    """

    id: str
    output: Any
    is_error: bool = False
    by_caller: bool = False
    is_rejected: bool = False


class FileAdded(UiEvent, frozen=True):
    """A file.

    Attributes:
        url: The URL of the file, or its content as a ``data:`` URL.
        filename: The name; may be empty.
    """

    id: str
    url: str
    media_type: str
    filename: str = ""


class DataAdded(UiEvent, frozen=True):
    """JSON data.

    Attributes:
        is_output: Whether the data is the requested JSON response.
    """

    id: str
    name: str
    data: Any
    is_output: bool = False


class StateChanged(UiEvent, frozen=True):
    """The task continues in another state. ``text`` is the text of the status."""

    state: TaskState
    text: str = ""


class CallPending(UiEvent, frozen=True):
    """A call of a tool that the client did not declare waits for the client."""

    call: ContentPartToolCall


class TurnEnded(UiEvent, frozen=True):
    """The last event of a turn.

    Attributes:
        finish: ``stop``, ``length``, ``content_filter`` or ``tool_calls``; without meaning if ``error`` is set.
        error: The error that ended the turn; None without an error. Reaching the maximum length is not an error.
        usage: The usage of the task; None if it is unknown.
        pending: The ids of the calls that wait for the client.
        approvals: The calls that wait for an approval.
        annotations: The citations from the provider.
        response: The provider's metadata of the response.
    """

    state: TaskState
    finish: str = "stop"
    error: OpenAIError | None = None
    usage: Mapping[str, Any] | None = None
    pending: Sequence[str] = ()
    approvals: Sequence[ApprovalRequest] = ()
    annotations: Sequence[Any] = ()
    response: Mapping[str, Any] = {}
