"""Checks and encodes large updates of handlers in a thread, and splits long texts into several events."""

from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

import msgspec

from tailrace.server.runtime.limits import size_of
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.models import Part
from tailrace.streaming.task.task_record import encode_artifact_event
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta
from tailrace.wrappers.concurrency.worker_thread import (
    CHARACTERS_OF_VALUE,
    MAX_INLINE_COST,
    json_cost,
    run_bounded,
)

MAX_DELTA_CHARACTERS = MAX_INLINE_COST * CHARACTERS_OF_VALUE
"""Maximum number of characters of a text delta in one event."""

MAX_VALUES = 100_000
"""Maximum number of JSON values in a large update. More values would delay other requests, even in a thread."""

Update = ArtifactUpdate | StatusUpdate

T = TypeVar("T")


def check_size(update: Update, max_bytes: int) -> None:
    """Check the total size of the parts of an update. If ``max_bytes`` is 0, there is no limit.

    Raises:
        InvalidAgentResponseError: The update is larger than ``max_bytes``.
    """
    if max_bytes:
        check_bytes(sum(map(size_of, _parts_of(update))), max_bytes)


def check_bytes(size: int, max_bytes: int) -> None:
    """Check the size of an update in bytes.

    Raises:
        InvalidAgentResponseError: The size exceeds the maximum.
    """
    if size > max_bytes:
        raise InvalidAgentResponseError(
            f"an update has {size} bytes; the maximum for an event is {max_bytes}"
        )


async def encoded_if_large(item: T, task_id: str, context_id: str, max_bytes: int) -> T | Update:
    """Encode a large update in a thread, and return it with the JSON. Return any other item unchanged.

    Args:
        item: The item of a handler.
        task_id: The id of the task.
        context_id: The id of the conversation.
        max_bytes: Maximum size of an update in bytes; 0 for no limit.

    Raises:
        InvalidAgentResponseError: The update has more than ``max_bytes`` bytes or more than `MAX_VALUES` JSON values.
    """
    if not isinstance(item, ArtifactUpdate | StatusUpdate):
        return item
    cost = json_cost(item.artifact if isinstance(item, ArtifactUpdate) else item.message)
    if cost <= MAX_INLINE_COST:
        return item
    return await run_bounded(cost, _encoded, item, task_id, context_id, max_bytes)


def slices_of(delta: TextDelta) -> Iterator[TextDelta]:
    """Split a delta into deltas of `MAX_DELTA_CHARACTERS` characters, or of one more so that no surrogate pair is divided."""
    text, at = delta.text, 0
    while at < len(text):
        end = at + MAX_DELTA_CHARACTERS
        if "\ud800" <= text[end - 1 : end] <= "\udbff":  # do not split a surrogate pair
            end += 1
        yield TextDelta(delta.artifact_id, text[at:end], last=delta.last and end >= len(text))
        at = end


def _encoded(update: Update, task_id: str, context_id: str, max_bytes: int) -> Update:
    if _has_too_many_values(update):
        raise InvalidAgentResponseError(f"an update has more than {MAX_VALUES} JSON values")
    check_size(update, max_bytes)
    if isinstance(update, ArtifactUpdate):
        return msgspec.structs.replace(update, encoded=encode_artifact_event(task_id, context_id, update))
    assert update.message is not None  # noqa: S101 — a status without a message is not large
    message = update.message.model_copy(update={"task_id": task_id, "context_id": context_id})
    return msgspec.structs.replace(update, message=message, encoded=message.to_json())


def _has_too_many_values(update: Update) -> bool:
    """Return whether data and metadata of an update have more than `MAX_VALUES` JSON values."""
    metadata: object = update.artifact.metadata if isinstance(update, ArtifactUpdate) else update.metadata
    waiting: list[object] = [metadata, *((part.data, part.metadata) for part in _parts_of(update))]
    count = 0
    while waiting and count <= MAX_VALUES:
        each = waiting.pop()
        if isinstance(each, dict):
            members = list(cast("dict[str, object]", each).values())
        elif isinstance(each, list | tuple):
            members = list(cast("Sequence[object]", each))
        else:
            continue
        count += len(members)
        waiting += members
    return count > MAX_VALUES


def _parts_of(update: Update) -> tuple[Part, ...]:
    if isinstance(update, ArtifactUpdate):
        return update.artifact.parts
    return update.message.parts if update.message is not None else ()
