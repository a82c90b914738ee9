"""The changes of a message that is assembled."""

from enum import StrEnum

import msgspec

from tailrace.wrappers.messages import ContentPart


class Channel(StrEnum):
    """Type of content in a response."""

    TEXT = "text"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    TOOL_CALL = "tool_call"
    PART = "part"


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change of the message by one delta.

    Attributes:
        channel: The type of the content that changed.
        choice: Index of the choice.
        text: The added text: visible text, reasoning, a refusal, or a fragment of a call's arguments. Empty if there is none. A
            fragment of arguments may end between the two halves of a surrogate pair.
        call: The position of the tool call in the message, from 0; -1 for other changes.
        part: The added part (a file, data, the result of a server tool); None if the channel is not PART.
        restarts: True if the previous content of the choice must be discarded. Such a change adds no content.
    """

    channel: Channel
    choice: int
    text: str
    call: int = -1
    part: ContentPart | None = None
    restarts: bool = False
