"""Validation of the events and tasks of a remote agent."""

from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from uuid import uuid4

from pydantic import ValidationError

from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import (
    A2AModel,
    Message,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from tailrace.wrappers import UpstreamError, UpstreamFault

RemoteEvent = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
"""An event of a remote agent."""

MISSING_ID = "-"
"""Placeholder for a missing task id or context id."""

_Fields = dict[str, Any]
_Model = TypeVar("_Model", bound=A2AModel)

_CONTENT = frozenset({"text", "raw", "url", "data"})


def event_of(response: StreamResponse) -> RemoteEvent:
    """Return the event that a response contains."""
    event = response.artifact_update or response.status_update or response.task or response.message
    return cast("RemoteEvent", event)


def read_model(model: type[_Model], fields: Mapping[str, Any]) -> _Model:
    """Validate a JSON object of A2A 1.0, if necessary with default values.

    Raises:
        UpstreamError: The object is not valid.
    """
    try:
        return model.model_validate(fields)
    except ValidationError:
        try:
            copy = deepcopy(dict(fields))
        except RecursionError:
            raise UpstreamError(
                f"the agent sent a {model.__name__} that is nested too deep", fault=UpstreamFault.INVALID
            ) from None
        for name, value in [("task", copy)] if model is Task else copy.items():
            if isinstance(value, dict):
                _complete(name, cast("_Fields", value))
    try:
        return model.model_validate(copy)
    except ValidationError as error:
        reason = InvalidParamsError.from_validation(error).detail
        raise UpstreamError(
            f"the agent sent a {model.__name__} that is not valid A2A: {reason}", fault=UpstreamFault.INVALID
        ) from None


def _complete(kind: str, fields: _Fields) -> None:
    if kind == "message":
        _complete_message(fields)
        return
    if kind != "task":
        # An event of A2A 0.3 may have only one of the two ids.
        fields.setdefault("taskId", MISSING_ID)
        fields.setdefault("contextId", MISSING_ID)
    status = fields.get("status")
    if isinstance(status, dict):
        status = cast("_Fields", status)
        if status.get("state") not in list(TaskState):
            status["state"] = TaskState.WORKING  # A2A 0.3 has a state "unknown"
        _complete_timestamp(status)
        _each(status.get("message"), _complete_message)
    _each(fields.get("history"), _complete_message)
    for name in ("artifact", "artifacts"):
        _each(fields.get(name), _complete_artifact)


def _each(value: object, complete: Any) -> None:
    for item in cast("list[object]", value if isinstance(value, list) else [value]):
        if isinstance(item, dict):
            complete(item)


def _complete_timestamp(status: _Fields) -> None:
    """Add the time zone UTC to a timestamp without a time zone, and remove an invalid timestamp."""
    value = status.get("timestamp")
    if value is None:
        return
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        time = None
    if time is None:
        del status["timestamp"]
    elif time.tzinfo is None:
        status["timestamp"] = time.replace(tzinfo=UTC).isoformat()


def _complete_message(message: _Fields) -> None:
    message.setdefault("messageId", str(uuid4()))
    message.setdefault("role", "ROLE_AGENT")
    _complete_parts(message)


def _complete_artifact(artifact: _Fields) -> None:
    artifact.setdefault("artifactId", "artifact")
    _complete_parts(artifact)


def _complete_parts(owner: _Fields) -> None:
    """Remove parts without content. If no part remains, add an empty text."""
    value = owner.get("parts")
    parts = cast("list[object]", value) if isinstance(value, list) else []
    objects = [cast("_Fields", part) for part in parts if isinstance(part, dict)]
    owner["parts"] = [part for part in objects if not _CONTENT.isdisjoint(part)] or [{"text": ""}]
