"""The part of a response that was published before a crash or a stop, reconstructed from the record of its task."""

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.streaming.a2a.models import Artifact, Role
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.accumulator import Attempt
from tailrace.streaming.agent.continuation import InterruptedResponse, attempts_of, attempts_to_json
from tailrace.streaming.conversion.published_artifacts import PublishedArtifact
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text


def interrupted_response(
    record: TaskRecord, turn: int, after_round: int
) -> tuple[InterruptedResponse, Sequence[PublishedArtifact]]:
    """Return the interrupted response and its artifacts. For a remote agent, these are all artifacts of the task.

    Args:
        record: The task.
        turn: The number of the turn.
        after_round: The number of complete responses in the turn.
    """
    task: Mapping[str, Any] = record.extension_metadata.get("remoteTask") or {}
    if task.get("turn") == turn:
        last = record.status.message
        messages = [*record.history, last] if last is not None else record.history
        known = tuple(each.message_id for each in messages if each.role is Role.AGENT)
        response = InterruptedResponse(stored_id=task.get("id", ""), published_messages=known)
        return response, _published(record, record.artifacts)
    place = (turn, after_round + 1)
    artifacts = [
        artifact
        for artifact in record.artifacts
        if (fields := extension_metadata(artifact.metadata)).get("channel") != "tool_result"
        and (fields.get("turn", 1), fields.get("round", 1)) == place
    ]
    stored: Mapping[str, Any] = record.extension_metadata.get("storedResponse") or {}
    if (stored.get("turn"), stored.get("round")) != place:
        stored = {}
    writers = [as_text(extension_metadata(artifact.metadata).get("model")) for artifact in artifacts]
    model = stored.get("model") or next(filter(None, reversed(writers)), "")
    attempts = _attempts(record, place)
    if not attempts and (artifacts or stored):
        attempts = [Attempt(model)]
    response = InterruptedResponse(
        text=_text(record, artifacts),
        stored_id=stored.get("id", ""),
        model=model,
        has_provider_tool=any(
            extension_metadata(artifact.metadata).get("kind") == "server" for artifact in artifacts
        ),
        attempts=tuple(attempts),
        calls=tuple(
            (artifact.name, as_text(fields.get("callId")))
            for artifact in artifacts
            if (fields := extension_metadata(artifact.metadata)).get("channel") == "tool_call"
            and not fields.get("choice")
        ),
    )
    return response, _published(record, artifacts)


def attempts_of_turn(record: TaskRecord, turn: int) -> list[dict[str, Any]]:
    """Return the attempts of the last continued response of a turn as JSON values; may be empty."""
    fact = as_mapping(record.extension_metadata.get("continuation")) or {}
    return attempts_to_json(_attempts(record, (turn, fact.get("round", 1))))


def _attempts(record: TaskRecord, place: tuple[int, int]) -> list[Attempt]:
    """Return the attempts of a continued response, the interrupted one last; empty for other responses."""
    fact = as_mapping(record.extension_metadata.get("continuation"))
    if fact is None or (fact.get("turn", 1), fact.get("round", 1)) != place:
        return []
    return [*attempts_of(fact.get("before")), *attempts_of([fact.get("after")]), *attempts_of([fact])]


def _published(record: TaskRecord, artifacts: Sequence[Artifact]) -> Sequence[PublishedArtifact]:
    ids = [artifact.artifact_id for artifact in artifacts]
    states = [(record.is_open(each), record.is_changed(each)) for each in ids]
    return [PublishedArtifact(artifact, *state) for artifact, state in zip(artifacts, states, strict=True)]


def _text(record: TaskRecord, artifacts: Sequence[Artifact]) -> str:
    """Return the text of a response that consists only of text; empty for other responses."""
    if len(artifacts) != 1 or len(artifacts[0].parts) != 1 or not record.is_open(artifacts[0].artifact_id):
        return ""
    fields = extension_metadata(artifacts[0].metadata)
    is_text = fields.get("channel") == "text" and not fields.get("choice")
    return artifacts[0].parts[0].text or "" if is_text else ""
