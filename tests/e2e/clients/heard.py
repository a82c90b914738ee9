"""Events received by clients, in one form for all versions and JSON encodings."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Fields = dict[str, Any]

_MEMBERS = {"task": "task", "statusUpdate": "status", "artifactUpdate": "artifact", "message": "message"}
_KINDS = {
    "task": "task",
    "status-update": "status",
    "artifact-update": "artifact",
    "message": "message",
    "folded": "folded",
}


@dataclass(frozen=True)
class StreamedEvent:
    """An event of a stream.

    Attributes:
        kind: ``task``, ``status``, ``artifact``, ``message``; ``folded`` is the task that a client has built from a
            stream, at its end.
        fields: The object itself.
    """

    kind: str
    fields: Fields

    @property
    def task_id(self) -> str:
        return self.fields["id"] if self.kind in ("task", "folded") else self.fields["taskId"]

    @property
    def state(self) -> str:
        """The state in the names of 0.3; empty if there is none."""
        return state_of(self.fields) if "status" in self.fields else ""

    @property
    def text(self) -> str:
        """The text of an artifact's chunk."""
        return _text(self.fields["artifact"])

    @property
    def artifact_id(self) -> str:
        return self.fields["artifact"]["artifactId"]

    @property
    def append(self) -> bool:
        return bool(self.fields.get("append"))

    @property
    def last(self) -> bool:
        return bool(self.fields.get("lastChunk"))

    @property
    def final(self) -> bool:
        return bool(self.fields.get("final"))


def read_event(fields: Fields) -> StreamedEvent:
    """Parse an event from the JSON of 1.0 (one member named after its type) or of 0.3 (``kind``)."""
    if "kind" in fields:
        return StreamedEvent(_KINDS[fields["kind"]], fields)
    [(member, value)] = fields.items()
    return StreamedEvent(_MEMBERS[member], value)


def task_of(answer: Fields) -> Fields:
    """Return the task of a response, bare in 0.3 and wrapped in 1.0."""
    return answer.get("task", answer)


def state_of(task: Fields) -> str:
    """Return a task's state, in the names of 0.3."""
    return task["status"]["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")


def texts_of(task: Fields) -> list[str]:
    """Return the text of each of a task's artifacts."""
    return [_text(artifact) for artifact in task.get("artifacts", [])]


def data_of(message: Fields) -> list[Any]:
    """Return the data of a message's parts."""
    return [part["data"] for part in message["parts"] if "data" in part]


def history_texts(task: Fields) -> list[str]:
    """Return the texts of a task's history."""
    return [_text(message) for message in task.get("history", [])]


def fold(events: Iterable[StreamedEvent]) -> dict[str, str]:
    """Return the text of each artifact after these events: chunks are appended, snapshots replace."""
    artifacts: dict[str, str] = {}
    for event in events:
        if event.kind == "task":
            found = event.fields.get("artifacts", [])
            artifacts |= {artifact["artifactId"]: _text(artifact) for artifact in found}
        elif event.kind == "artifact":
            so_far = artifacts[event.artifact_id] if event.append else ""
            artifacts[event.artifact_id] = so_far + event.text
    return artifacts


def streamed_text(events: Iterable[StreamedEvent]) -> str:
    """Return the text of the only artifact."""
    artifacts = fold(events)
    assert len(artifacts) <= 1
    return "".join(artifacts.values())


def _text(holder: Fields) -> str:
    return "".join(part.get("text", "") for part in holder.get("parts", []))
