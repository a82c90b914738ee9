"""A minimal A2A client that applies events by the rules of the protocol."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FoldedTask:
    """The state of a task at a client of A2A 1.0."""

    state: str = ""
    status_text: str = ""
    texts: dict[str, str] = field(default_factory=dict[str, str])
    data: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    complete: list[str] = field(default_factory=list[str])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


def fold(bodies: Iterable[bytes]) -> FoldedTask:
    """Apply JSON events by the rules of A2A 1.0."""
    task = FoldedTask()
    for body in bodies:
        event = json.loads(body)
        if "task" in event:
            task.state = event["task"]["status"]["state"]
        elif "statusUpdate" in event:
            status = event["statusUpdate"]["status"]
            task.state = status["state"]
            task.status_text = _text(status.get("message", {}).get("parts", []))
            task.metadata |= event["statusUpdate"].get("metadata", {})
        else:
            _take_artifact(task, event["artifactUpdate"])
    return task


def _take_artifact(task: FoldedTask, update: dict[str, Any]) -> None:
    artifact_id, parts = update["artifact"]["artifactId"], update["artifact"]["parts"]
    assert artifact_id not in task.complete, f"{artifact_id} continues after its last chunk"
    if not update.get("append"):
        task.texts[artifact_id] = ""
        task.data[artifact_id] = []
    task.texts[artifact_id] += _text(parts)
    task.data[artifact_id] += [part["data"] for part in parts if "data" in part]
    if update.get("lastChunk"):
        task.complete.append(artifact_id)


def _text(parts: list[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in parts)
