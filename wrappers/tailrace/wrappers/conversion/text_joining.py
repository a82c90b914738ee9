"""Joining of text parts into one string, for APIs and fields that accept only a single string.

The text parts of a message are usually separate texts, which are joined with blank lines. But some providers divide a model's
text into blocks, even within a sentence, to attach citations or signatures. Such blocks are joined without a separator.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from tailrace.wrappers.messages import ContentPart, ContentPartText, Message, Role

BLANK_LINE = "\n\n"
"""Separator of joined texts."""


def join_texts(texts: Iterable[str]) -> str:
    """Join texts with blank lines. Empty texts are omitted."""
    return BLANK_LINE.join(filter(None, texts))


def message_text(message: Message) -> str:
    """Return the visible text of a message as one string, with the separators of the module docstring."""
    texts = [part for part in message.content if isinstance(part, ContentPartText)]
    if message.role is not Role.MODEL:
        return join_texts(part.text for part in texts)
    return join_texts(joined_blocks(texts))


def joined_blocks(parts: Sequence[ContentPartText]) -> list[str]:
    """Return the texts of a model's text parts. Blocks that belong to one text are joined."""
    texts: list[str] = []
    for position, part in enumerate(parts):
        if position and belong_to_one_text(parts[position - 1], part):
            texts[-1] += part.text
        else:
            texts.append(part.text)
    return texts


def belong_to_one_text(before: ContentPart, after: ContentPart) -> bool:
    """Return True if two adjacent parts of a model's message belong to one text.

    At least one part must have metadata (a citation, a signature), and their metadata must not contain different ids.
    """
    if not (isinstance(before, ContentPartText) and isinstance(after, ContentPartText)):
        return False
    if not (before.metadata or after.metadata):
        return False
    ids = _ids(before.metadata), _ids(after.metadata)
    return ids[0] == ids[1] or not all(ids)


def _ids(metadata: Mapping[str, Any]) -> set[str]:
    ids: set[str] = set()
    for fields in metadata.values():
        if isinstance(fields, Mapping):
            identifier: object = cast("Mapping[str, object]", fields).get("id")
            ids |= {identifier} if isinstance(identifier, str) else set()
    return ids
