"""Events of a task's log as the SDK's objects."""

from typing import Any, cast

import msgspec
from a2a.server.events.event_queue import Event as SdkEvent
from a2a.types import a2a_pb2

from tailrace.server.protocols.a2a.sdk_types import fill
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.stream_extension import with_extension_metadata

_UPDATES = ("artifactUpdate", "statusUpdate")


def to_stream_response(event: Event, *, numbered: bool = True) -> a2a_pb2.StreamResponse:
    """The SDK's object of an event, with the event's number among the extension's facts.

    Where there is no SSE ``id``, the facts are where a client finds the number. (A task's have it anyway; a direct
    message has none.)

    Args:
        event: An event of a task's log.
        numbered: False leaves the facts as they are.

    Raises:
        InternalError: As `tailrace.server.protocols.a2a.sdk_types.to_sdk`.
    """
    fields = cast("dict[str, Any]", msgspec.json.decode(event.body))
    for name in _UPDATES if numbered and event.number else ():
        update = fields.get(name)
        if update is not None:
            update["metadata"] = with_extension_metadata(update.get("metadata", {}), number=event.number)
    return fill(a2a_pb2.StreamResponse(), fields)


def to_sdk_event(event: Event, *, numbered: bool = True) -> SdkEvent:
    """Return the task, message or update inside a response."""
    response = to_stream_response(event, numbered=numbered)
    return getattr(response, response.WhichOneof("payload") or "")
