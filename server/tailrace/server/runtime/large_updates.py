"""Large updates of handlers: checked and encoded outside of the event loop, and long texts in several events."""

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from tailrace.server.runtime.limits import size_of
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.models import Part
from tailrace.streaming.task.task import encode_artifact_event
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta
from tailrace.wrappers.concurrency.worker_thread import (
    CHARACTERS_OF_VALUE,
    MAX_INLINE_COST,
    json_cost,
    run_bounded,
)

MAX_DELTA_CHARACTERS = MAX_INLINE_COST * CHARACTERS_OF_VALUE
"""Characters of a delta of one event; a longer one becomes several."""

MAX_VALUES = 100_000
"""JSON values of a large update, as of a request: encoding more would delay other requests, also in a thread."""

Update = ArtifactUpdate | StatusUpdate


def check_size(update: Update, max_bytes: int) -> None:
    """Check the bytes of the parts of an update; 0 for any number.

    Raises:
        InvalidAgentResponseError: There are more.
    """
    if max_bytes:
        check_bytes(sum(map(size_of, _parts_of(update))), max_bytes)


def check_bytes(size: int, max_bytes: int) -> None:
    """Check the bytes of an update.

    Raises:
        InvalidAgentResponseError: There are more than the maximum.
    """
    if size > max_bytes:
        raise InvalidAgentResponseError(f"an update has {size} bytes, and an event may have {max_bytes}")


async def encoded_if_large(update: Update, task_id: str, context_id: str, max_bytes: int) -> Update:
    """Return an artifact or a status with its JSON, which is made in a thread, if it is large.

    Args:
        update: The update.
        task_id: The task of the turn.
        context_id: The conversation of the turn.
        max_bytes: The maximum bytes of an update; 0 for any number.

    Raises:
        InvalidAgentResponseError: A large update has more bytes, or more than `MAX_VALUES`.
    """
    cost = json_cost(update.artifact if isinstance(update, ArtifactUpdate) else update.message)
    if cost <= MAX_INLINE_COST:
        return update
    return await run_bounded(cost, _encoded, update, task_id, context_id, max_bytes)


def slices_of(delta: TextDelta) -> Iterator[TextDelta]:
    """Yield the parts of a delta with more than `MAX_DELTA_CHARACTERS`."""
    text, at = delta.text, 0
    while at < len(text):
        end = at + MAX_DELTA_CHARACTERS
        if "\ud800" <= text[end - 1 : end] <= "\udbff":  # with the other half of its character
            end += 1
        yield TextDelta(delta.artifact_id, text[at:end], last=delta.last and end >= len(text))
        at = end


def _encoded(update: Update, task_id: str, context_id: str, max_bytes: int) -> Update:
    if _has_too_many_values(update):
        raise InvalidAgentResponseError(f"an update has more than {MAX_VALUES} JSON values")
    check_size(update, max_bytes)
    if isinstance(update, ArtifactUpdate):
        return msgspec.structs.replace(update, encoded=encode_artifact_event(task_id, context_id, update))
    assert update.message is not None  # noqa: S101 — it is large
    message = update.message.model_copy(update={"task_id": task_id, "context_id": context_id})
    return msgspec.structs.replace(update, message=message, encoded=message.to_json())


def _has_too_many_values(update: Update) -> bool:
    """Return whether the data and metadata of an update have more than `MAX_VALUES` JSON values."""
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
