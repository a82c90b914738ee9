"""What an answer is made of for OpenAI's clients, whichever of the two APIs they speak: pieces, and an end."""

from typing import Any

import msgspec

from tailrace.server.facade.errors import OpenAIError


class TextPiece(msgspec.Struct, frozen=True, gc=False):
    """More of the visible text."""

    text: str


class ReasoningPiece(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thought."""

    text: str


class RefusalPiece(msgspec.Struct, frozen=True, gc=False):
    """More of why the model does not answer."""

    text: str


class CallBegun(msgspec.Struct, frozen=True, gc=False):
    """A call of one of the caller's tools begins.

    Attributes:
        index: Its place among the calls of the answer.
        id: The call's id.
        name: The tool.
    """

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of the text of a call's arguments.

    Attributes:
        index: Of the call.
        text: What is added.
    """

    index: int
    text: str


class Ending(msgspec.Struct, frozen=True):
    """The answer is over.

    Attributes:
        finish: ``stop``, ``length``, ``content_filter`` or ``tool_calls``; nothing of it counts with an error.
        usage: The fact ``usage`` of the task; None where nothing was counted.
        error: Why there is no answer, or none that is whole.
    """

    finish: str = "stop"
    usage: dict[str, Any] | None = None
    error: OpenAIError | None = None


Piece = TextPiece | ReasoningPiece | RefusalPiece | CallBegun | CallArguments | Ending
