"""Messages in the common format and the JSON of text parts."""

from collections.abc import Iterable
from typing import Any

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import ChunkWrapper, ContentPart, ContentPartText, Message, Role


def user(*content: ContentPart, **metadata: Any) -> Message:
    """Return a message of the user."""
    return Message(role=Role.USER, content=content, metadata=metadata)


def model(*content: ContentPart, **metadata: Any) -> Message:
    """Return a message of the model."""
    return Message(role=Role.MODEL, content=content, metadata=metadata)


def tool(*content: ContentPart) -> Message:
    """Return the results of one round of tools."""
    return Message(role=Role.TOOL, content=content)


def text_part(text: str) -> ContentPartText:
    """Return a text part."""
    return ContentPartText(text=text)


def text_entries(*each: str) -> list[dict[str, str]]:
    """Return text parts in the JSON of most providers."""
    return [{"type": "text", "text": text} for text in each]


def accumulate(wrappers: Iterable[ChunkWrapper[Any]], *, think_tags: bool = True) -> Accumulator:
    """Return the response that the wrappers form."""
    accumulator = Accumulator(think_tags=think_tags)
    for wrapper in wrappers:
        accumulator.add(wrapper)
    accumulator.close()
    return accumulator
