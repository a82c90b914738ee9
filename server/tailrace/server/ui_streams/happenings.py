"""What happens in a turn, in the terms that protocols of user interfaces share."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tailrace.server.facade.errors import OpenAIError
from tailrace.streaming.lifecycle import TaskState

Channel = Literal["text", "reasoning"]
"""What a text is for: refusals, and what an agent says with its last status, are text like the answer's."""


class Begun(msgspec.Struct, frozen=True):
    """The turn's task is known. An answer without a task has no such happening.

    Attributes:
        task_id: The task.
        context_id: The conversation.
        first_turn: The first of the task's turns that is told.
    """

    task_id: str
    context_id: str
    first_turn: int = 1


class RoundBegun(msgspec.Struct, frozen=True, gc=False):
    """The model is asked again, with the results of its calls, or with what the caller said meanwhile.

    Attributes:
        turn: Which of the task's turns this is.
        round: Which of the turn's rounds.
    """

    turn: int
    round: int


class TextBegun(msgspec.Struct, frozen=True, gc=False):
    """A text begins.

    Attributes:
        id: The text's, which no other of the task has.
        channel: What it is for.
    """

    id: str
    channel: Channel


class TextAdded(msgspec.Struct, frozen=True, gc=False):
    """More of a text."""

    id: str
    channel: Channel
    text: str


class TextEnded(msgspec.Struct, frozen=True, gc=False):
    """A text is complete."""

    id: str
    channel: Channel


class CallBegun(msgspec.Struct, frozen=True, gc=False):
    """A call of a tool begins.

    Attributes:
        id: The call's.
        name: The tool's.
        declared: The tool is one that the client has declared, and is to run.
    """

    id: str
    name: str
    declared: bool


class ArgumentsAdded(msgspec.Struct, frozen=True, gc=False):
    """More of the text of a call's arguments."""

    id: str
    text: str


class CallEnded(msgspec.Struct, frozen=True):
    """A call is whole, and is run now by whoever is to.

    Attributes:
        id: The call's.
        name: The tool's.
        declared: As of `CallBegun`.
        input: The arguments: an object, or the text of a tool that takes text.
        error: Why the arguments cannot be read; empty where they can. Then ``input`` is their text.
        as_written: The pieces of the arguments that were given say the same.
    """

    id: str
    name: str
    declared: bool
    input: Any
    error: str = ""
    as_written: bool = True


class CallAnswered(msgspec.Struct, frozen=True):
    """What a tool answered.

    Attributes:
        id: The call's.
        output: Any JSON.
        is_error: The tool failed, and ``output`` says why.
        by_caller: The client ran it, and has said so in this turn's stretch of the log.
    """

    id: str
    output: Any
    is_error: bool = False
    by_caller: bool = False


class FileGiven(msgspec.Struct, frozen=True):
    """The agent gives a file.

    Attributes:
        id: Of the artifact.
        url: Where it is, or all of it as a ``data:`` URL.
        media_type: Its type.
        filename: Its name; empty where it has none.
    """

    id: str
    url: str
    media_type: str
    filename: str = ""


class DataGiven(msgspec.Struct, frozen=True):
    """The agent gives data.

    Attributes:
        id: Of the artifact.
        name: What the artifact is called.
        data: Any JSON.
        is_output: It is the answer, which was to be JSON.
    """

    id: str
    name: str
    data: Any
    is_output: bool = False


class StateChanged(msgspec.Struct, frozen=True):
    """The task is in another state, and goes on.

    Attributes:
        state: The state.
        words: What the agent says about it.
    """

    state: TaskState
    words: str = ""


class CallLeft(msgspec.Struct, frozen=True):
    """A call waits for the client, and was not known to: the client has not declared its tool."""

    id: str
    name: str
    input: Any


class Ended(msgspec.Struct, frozen=True):
    """The turn is over.

    Attributes:
        state: The task's state by now.
        finish: ``stop``, ``length``, ``content_filter`` or ``tool_calls``; nothing of it counts with an error.
        error: Why there is no answer, or none that is whole.
        usage: The fact ``usage`` of the task; None where nothing was counted.
        waiting: The ids of the calls that wait for the client.
        annotations: What the answer refers to, as the provider said it.
        response: What the provider said about its response.
    """

    state: TaskState
    finish: str = "stop"
    error: OpenAIError | None = None
    usage: Mapping[str, Any] | None = None
    waiting: Sequence[str] = ()
    annotations: Sequence[Any] = ()
    response: Mapping[str, Any] = {}


Happening = (
    Begun
    | RoundBegun
    | TextBegun
    | TextAdded
    | TextEnded
    | CallBegun
    | ArgumentsAdded
    | CallEnded
    | CallAnswered
    | FileGiven
    | DataGiven
    | StateChanged
    | CallLeft
    | Ended
)
