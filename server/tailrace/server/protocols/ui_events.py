"""The events of a turn, in the terms that the protocols of clients share."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.tools.approvals import ApprovalRequest
from tailrace.wrappers import ContentPartToolCall

Channel = Literal["text", "reasoning", "refusal"]
"""The channel of a text. Text of the last status belongs to ``text``."""


class UiEvent(msgspec.Struct, frozen=True):
    """An event of a turn."""


class TurnStarted(UiEvent, frozen=True):
    """The first event of a turn.

    Attributes:
        task_id: The task; empty for a response without one.
        context_id: The conversation, likewise.
        first_turn: The first of the task's turns that is part of the response.
    """

    task_id: str
    context_id: str
    first_turn: int = 1


class RoundStarted(UiEvent, frozen=True, gc=False):
    """The model is called again, with the results of its tool calls or with another message of the caller.

    Attributes:
        turn: The number of the turn in the task.
        round: The number of the round in the turn.
    """

    turn: int
    round: int


class TextStarted(UiEvent, frozen=True, gc=False):
    """A text starts; its id is unique in the task."""

    id: str
    channel: Channel


class TextAdded(UiEvent, frozen=True, gc=False):
    """More of a text."""

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
        id: The call's id.
        name: The tool's name.
        declared: The client declared the tool and runs it.
    """

    id: str
    name: str
    declared: bool


class ArgumentsAdded(UiEvent, frozen=True, gc=False):
    """More of the text of a call's arguments."""

    id: str
    text: str


class CallEnded(UiEvent, frozen=True):
    """A call is complete, and the agent or the client runs it.

    Attributes:
        call: The call.
        declared: As in `CallStarted`.
        as_written: The text of `ArgumentsAdded` is the JSON of the call's arguments.
    """

    call: ContentPartToolCall
    declared: bool
    as_written: bool = True

    @property
    def input(self) -> Any:
        """The arguments: an object, or the text for a tool that takes text."""
        return self.call.arguments if self.call.arguments_text is None else self.call.arguments_text


class CallResult(UiEvent, frozen=True):
    """The result of a call.

    Attributes:
        id: The call's id.
        output: Any JSON value.
        is_error: The tool failed; ``output`` states why.
        by_caller: The client ran the tool and sent the result in this part of the log.
        is_rejected: The call was rejected, and the tool did not run.
    """

    id: str
    output: Any
    is_error: bool = False
    by_caller: bool = False
    is_rejected: bool = False


class FileAdded(UiEvent, frozen=True):
    """The agent adds a file.

    Attributes:
        id: The artifact's id.
        url: The file's URL, or its content as a ``data:`` URL.
        media_type: The media type.
        filename: The name; may be empty.
    """

    id: str
    url: str
    media_type: str
    filename: str = ""


class DataAdded(UiEvent, frozen=True):
    """The agent adds data.

    Attributes:
        id: The artifact's id.
        name: The artifact's name.
        data: Any JSON value.
        is_output: The data is the response that was requested as JSON.
    """

    id: str
    name: str
    data: Any
    is_output: bool = False


class StateChanged(UiEvent, frozen=True):
    """The task continues in another state; ``text`` is the message of the status."""

    state: TaskState
    text: str = ""


class CallPending(UiEvent, frozen=True):
    """A call waits for the client, which did not declare its tool."""

    call: ContentPartToolCall


class TurnEnded(UiEvent, frozen=True):
    """The last event of a turn.

    Attributes:
        state: The task's state.
        finish: ``stop``, ``length``, ``content_filter`` or ``tool_calls``; meaningless with an error.
        error: Why there is no complete response.
        usage: The fact ``usage`` of the task; None if nothing was counted.
        pending: The ids of the calls that wait for the client.
        approvals: The calls that wait for an approval.
        annotations: The provider's citations.
        response: The provider's facts about its response.
    """

    state: TaskState
    finish: str = "stop"
    error: OpenAIError | None = None
    usage: Mapping[str, Any] | None = None
    pending: Sequence[str] = ()
    approvals: Sequence[ApprovalRequest] = ()
    annotations: Sequence[Any] = ()
    response: Mapping[str, Any] = {}
