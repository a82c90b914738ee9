"""The state of a task, and the conversion of its updates: each update becomes one numbered, encoded event.

Applying an update takes constant time.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec

from tailrace.streaming.a2a.client_quirks import stores_last_chunk_only
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_encoding import encode_text
from tailrace.streaming.a2a.lifecycle import TaskState, advance
from tailrace.streaming.a2a.models import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from tailrace.streaming.a2a.stream_extension import (
    extension_metadata,
    turn_continues,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.task.growing_artifact import GrowingArtifact
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update

_decode_text = msgspec.json.Decoder(str).decode
_encode_json = msgspec.json.Encoder().encode

MAX_COPIED_CHARACTERS = 2 * 1024 * 1024
"""Maximum number of characters of a copied artifact (see `stores_last_chunk_only`). Encoding a larger one would block the
event loop."""

_RECEIVED = b'"received":'
_APPENDED = b'}]},"append":true}}'
_APPENDED_LAST = b'}]},"append":true,"lastChunk":true}}'


class TaskRecord:
    """The state of one task, and the encoder of its events. Sans-IO.

    Args:
        task: The task with its current status, artifacts and messages.
        number: The number of the last event that ``task`` includes; 0 before the first event.

    Attributes:
        context_id: The id of the task's conversation.
        number: The number of the last event.
        history: The messages of the task, oldest first.
    """

    def __init__(self, task: Task, number: int = 0) -> None:
        self.id = task.id
        self.context_id = task.context_id
        self.number: int = number
        self.status = task.status
        self.history = list(task.history)
        self._metadata = dict(task.metadata)
        self._artifacts: dict[str, GrowingArtifact] = {}
        for artifact in task.artifacts:
            self._set_artifact(artifact, open_=False)

    @classmethod
    def create(
        cls, message: Message, *, task_id: str = "", context_id: str = "", dialect: str = ""
    ) -> "TaskRecord":
        """Create a task in the state SUBMITTED for a caller's message. The task has no event yet.

        Args:
            message: The first message of the history.
            task_id: The id; empty to create a UUID.
            context_id: The id of the conversation; empty for the id in the message or, without one, a new UUID.
            dialect: The protocol version for later requests without a version, stored in the task's metadata. Empty if responses
                do not depend on the version.
        """
        task_id = task_id or str(uuid4())
        context_id = context_id or message.context_id or str(uuid4())
        task = Task(
            id=task_id,
            context_id=context_id,
            status=TaskStatus(state=TaskState.SUBMITTED, timestamp=datetime.now(UTC)),
            history=(message.model_copy(update={"task_id": task_id, "context_id": context_id}),),
            metadata=with_extension_metadata({}, dialect=dialect) if dialect else {},
        )
        return cls(task)

    @property
    def state(self) -> TaskState:
        """The current state."""
        return self.status.state

    @property
    def awaits_caller(self) -> bool:
        """True if the task is interrupted and no turn runs. The caller's next message continues the task."""
        return self.state.interrupted and not turn_continues(self._metadata)

    @property
    def extension_metadata(self) -> Mapping[str, Any]:
        """The data of the extension in the task's metadata."""
        return extension_metadata(self._metadata)

    @property
    def artifact_ids(self) -> tuple[str, ...]:
        """The ids of the artifacts, in the order of their creation."""
        return tuple(self._artifacts)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts with all content so far, in the order of their creation."""
        return tuple(record.complete() for record in self._artifacts.values())

    def is_open(self, artifact_id: str) -> bool:
        """Return True if more content of an artifact is expected."""
        return artifact_id in self._artifacts and self._artifacts[artifact_id].open

    def is_changed(self, artifact_id: str) -> bool:
        """Return True if an artifact was created, replaced or extended after the last call of `pop_changed_artifacts`.

        For a task from the store, only changes after the stored snapshot count.
        """
        return artifact_id in self._artifacts and self._artifacts[artifact_id].changed

    def submitted(self) -> Event:
        """Return the first event, which contains the task itself."""
        return self.begin()[0]

    def begin(self) -> tuple[Event, Task]:
        """Return the first event, and the snapshot of the task that it contains."""
        self.number += 1
        snapshot = self.snapshot()
        return Event(self.number, b'{"task":' + snapshot.to_json() + b"}", self.state), snapshot

    def addressed(self, message: Message) -> Message:
        """Return a message with the ids of the task and its conversation."""
        return message.model_copy(update={"task_id": self.id, "context_id": self.context_id})

    def receive(self, message: Message) -> Message:
        """Add a later message of the caller to the history. `receipt` returns its event.

        Returns:
            The message with the ids of the task and its conversation.
        """
        message = self.addressed(message)
        if self.awaits_caller:
            self._keep_status_message()
        self.history.append(message)
        return message

    def receipt(self, message: Message, encoded: bytes | None = None) -> Event:
        """Return the event of a received message: a status event with the metadata ``received``.

        A task that waits for the caller changes to WORKING. The state of a running task does not change.

        Args:
            message: The message that `receive` returned.
            encoded: The JSON of the message; None to encode it.

        Raises:
            IllegalTransition: The task has ended.
        """
        if encoded is None:
            encoded = message.to_json()
        if not self.awaits_caller:
            if self.state.terminal:
                advance(self.state, TaskState.WORKING)
            self.number += 1
            return Event(self.number, self._encode_receipt(self.status, encoded), self.state)
        status = TaskStatus(state=advance(self.state, TaskState.WORKING), timestamp=datetime.now(UTC))
        self._store_status(status, {})
        self.number += 1
        return Event(self.number, self._encode_receipt(status, encoded), self.state)

    def apply(self, update: Update) -> Event:
        """Apply one update. Return its event.

        Raises:
            IllegalTransition: The task cannot change from its current state to the new state.
            InvalidAgentResponseError: The artifact does not exist or is complete, the update does not fit the artifact or the
                state, or the task has ended.
        """
        if isinstance(update, TextDelta):
            return self.append_text(update)
        self._check_not_ended()
        if isinstance(update, ArtifactUpdate):
            return self._apply_artifact(update)
        return self._apply_status(update)

    def closing_updates(self) -> list[Update]:
        """Return the updates that complete all open artifacts, in the order of their creation."""
        updates: list[Update] = []
        for artifact_id, record in self._artifacts.items():
            if not record.open:
                continue
            if record.ends_in_text:
                updates.append(TextDelta(artifact_id, "", last=True))
            else:
                # An empty text cannot follow a file. Instead, a full copy with `last` replaces the artifact.
                updates.append(ArtifactUpdate(record.complete(), last=True))
        return updates

    def take_changed(self) -> list[Artifact]:
        """Deprecated name of `pop_changed_artifacts`; to be removed in 0.3."""
        return self.pop_changed_artifacts()

    def pop_changed_artifacts(self) -> list[Artifact]:
        """Return the artifacts that were created, replaced or extended since the last call, with all content so far."""
        changed = [record for record in self._artifacts.values() if record.changed]
        for record in changed:
            record.changed = False
        return [record.complete() for record in changed]

    def snapshot(self, history_length: int | None = None) -> Task:
        """Return a snapshot of the task. Its metadata contains the number of its last event.

        Args:
            history_length: The number of newest messages to include; None for all, 0 for none.
        """
        history = (
            self.history if history_length is None else self.history[-history_length or len(self.history) :]
        )
        return Task(
            id=self.id,
            context_id=self.context_id,
            status=self.status,
            artifacts=self.artifacts,
            history=tuple(history),
            metadata=with_extension_metadata(self._metadata, number=self.number),
        )

    def overview(self) -> list[Event]:
        """Return a snapshot as events, for a lagging subscriber: all artifacts with their content so far, then the status.

        Each artifact replaces the subscriber's copy. Only the last event, the status, has a number. A subscriber that disconnects
        earlier therefore resumes at its earlier position.
        """
        events = [
            Event(0, self._encode_artifact(record.complete(), last=not record.open))
            for record in self._artifacts.values()
        ]
        metadata = without_extension_metadata(self._metadata, "number")
        return [*events, Event(self.number, self._encode_status(self.status, metadata), self.state)]

    def replay(self, event: Event) -> None:
        """Apply the next event of a stored log, which a `TaskRecord` has created.

        Raises:
            ValueError: The number of the event is not the next number.
        """
        if event.number != self.number + 1:
            raise ValueError(f"event {event.number} cannot follow event {self.number} of task {self.id}")
        if event.state is None and self._replay_text(event.body):
            self.number += 1
            return
        response = StreamResponse.from_json(event.body)
        self.number = event.number
        if response.task is not None:
            self.status = response.task.status
            self.history = list(response.task.history)
        elif response.status_update is not None:
            self._replay_status(response.status_update)
        elif response.artifact_update is not None:
            update = response.artifact_update
            self._store_artifact(update.artifact, append=update.append, last=update.last_chunk)

    def _replay_text(self, body: bytes) -> bool:
        """Apply an event of `append_text` without parsing it completely. Return False for any other event."""
        last = body.endswith(_APPENDED_LAST)
        if not last and not body.endswith(_APPENDED):
            return False
        for record in reversed(self._artifacts.values()):
            if record.ends_in_text and body.startswith(record.prefix):
                tail = _APPENDED_LAST if last else _APPENDED
                try:
                    text = _decode_text(body[len(record.prefix) : -len(tail)])
                except msgspec.DecodeError:  # for example, an event with several parts
                    return False
                record.add_text(text)
                record.open = not last
                return True
        return False

    def _replay_status(self, update: TaskStatusUpdateEvent) -> None:
        received = extension_metadata(update.metadata).get("received")
        if received is None:
            self._store_status(update.status, update.metadata)
            return
        waited = self.awaits_caller
        self.receive(Message.model_validate(received))
        if waited:
            self._store_status(update.status, {})

    def append_text(self, update: TextDelta) -> Event:
        """Apply a `TextDelta`; see `apply`."""
        record = self._artifacts.get(update.artifact_id)
        if record is None or not record.open:
            record = self._open_artifact(update.artifact_id)
        if not record.ends_in_text:
            raise InvalidAgentResponseError(f"artifact {update.artifact_id!r} does not end in text")
        text = update.text
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] — the text of a handler is not checked before
            raise InvalidAgentResponseError(f"the text of a delta is of type {type(text).__name__}")
        if text.isascii():  # the same as below, inlined because it runs for every token
            encoded = _encode_json(text)
            record.added += text.encode()
            record.changed = record.changed or bool(text)
        else:
            encoded = encode_text(text)
            record.add_text(text)
        self.number += 1
        if not update.last:
            return Event(self.number, record.prefix + encoded + _APPENDED)
        record.open = False
        body = self._encode_complete(record) or record.prefix + encoded + _APPENDED_LAST
        return Event(self.number, body)

    def _apply_artifact(self, update: ArtifactUpdate) -> Event:
        artifact = update.artifact
        if update.append:
            self._open_artifact(artifact.artifact_id)
        append = update.append
        body = update.encoded or encode_artifact_event(self.id, self.context_id, update)
        self._store_artifact(artifact, append=append, last=update.last)
        if append and update.last:
            body = self._encode_complete(self._artifacts[artifact.artifact_id]) or body
        self.number += 1
        return Event(self.number, body)

    def _encode_complete(self, record: GrowingArtifact) -> bytes:
        """Encode a complete artifact as its last chunk. Return empty bytes if no client needs this, or the artifact is large."""
        if not (self.history and stores_last_chunk_only(self.history[0])):
            return b""
        artifact = record.complete()
        if sum(len(part.text or part.raw or "") for part in artifact.parts) > MAX_COPIED_CHARACTERS:
            return b""
        return self._encode_artifact(artifact, last=True)

    def _encode_artifact(self, artifact: Artifact, *, last: bool) -> bytes:
        return encode_artifact_event(self.id, self.context_id, ArtifactUpdate(artifact, last=last))

    def _apply_status(self, update: StatusUpdate) -> Event:
        state = advance(self.state, update.state)
        message = update.message
        if message is not None:
            message = message.model_copy(update={"task_id": self.id, "context_id": self.context_id})
        status = TaskStatus(state=state, message=message, timestamp=datetime.now(UTC))
        metadata = update.metadata or {}
        if update.continues:
            if state is not TaskState.AUTH_REQUIRED:
                raise InvalidAgentResponseError(f"a turn continues in AUTH_REQUIRED only, not in {state}")
            metadata = with_extension_metadata(metadata, continues=True)
        elif turn_continues(metadata):  # the turn of a remote agent continues, but not the turn of this task
            metadata = without_extension_metadata(metadata, "continues")
        if message is not None and update.encoded:
            body = self._encode_status_with(status, metadata, update.encoded)
        else:
            body = self._encode_status(status, metadata)
        self._store_status(status, metadata)
        self.number += 1
        return Event(self.number, body, state)

    def _encode_status(self, status: TaskStatus, metadata: dict[str, Any]) -> bytes:
        event = TaskStatusUpdateEvent(
            task_id=self.id, context_id=self.context_id, status=status, metadata=metadata
        )
        return b'{"statusUpdate":' + event.to_json() + b"}"

    def _encode_status_with(self, status: TaskStatus, metadata: dict[str, Any], message: bytes) -> bytes:
        """Encode a status like `_encode_status`, with the encoded message ``message``."""
        placeholder = agent_message("")  # no other text of the event contains its id
        body = self._encode_status(status.model_copy(update={"message": placeholder}), metadata)
        return body.replace(placeholder.to_json(), message, 1)

    def _encode_receipt(self, status: TaskStatus, message: bytes) -> bytes:
        fields = {"continues": True} if turn_continues(self._metadata) else {}
        body = self._encode_status(status, with_extension_metadata({}, **fields, received=None))
        # Replace the last occurrence: a message in the status, before the metadata, may contain the same text.
        head, _, tail = body.rpartition(_RECEIVED + b"null")
        return b"".join((head, _RECEIVED, message, tail))

    def _store_status(self, status: TaskStatus, metadata: Mapping[str, Any]) -> None:
        known = self.status.message
        if known is None or status.message is None or status.message.message_id != known.message_id:
            self._keep_status_message()  # but not if the new status repeats the message
        self.status = status
        if turn_continues(self._metadata):
            self._metadata = without_extension_metadata(self._metadata, "continues")
        self._store_metadata(metadata)
        if status.state.terminal:
            for record in self._artifacts.values():
                record.open = False

    def _store_metadata(self, metadata: Mapping[str, Any]) -> None:
        known = extension_metadata(self._metadata)
        self._metadata |= metadata
        if known:
            self._metadata = with_extension_metadata(
                self._metadata, **{**known, **extension_metadata(metadata)}
            )

    def _keep_status_message(self) -> None:
        """Move the message of the current status to the history (A2A 1.0, section 3.7)."""
        if self.status.message is not None:
            self.history.append(self.status.message)
            self.status = self.status.model_copy(update={"message": None})

    def _store_artifact(self, artifact: Artifact, *, append: bool, last: bool) -> None:
        known = self._artifacts.get(artifact.artifact_id)
        if append and known is not None:
            if known.ends_in_text and all(map(_is_bare_text, artifact.parts)):
                known.add_text("".join(part.text or "" for part in artifact.parts))
            else:
                known.add_parts(artifact.parts)
            known.open = not last
        elif known is not None and known.open and last and known.complete() == artifact:
            known.open = (
                False  # an identical copy is not a change: its text may already be in the conversation
            )
        else:
            self._set_artifact(artifact, open_=not last)
            self._artifacts[artifact.artifact_id].changed = True

    def _set_artifact(self, artifact: Artifact, *, open_: bool) -> None:
        prefix = b"".join(
            (
                b'{"artifactUpdate":{"taskId":',
                encode_text(self.id),
                b',"contextId":',
                encode_text(self.context_id),
                b',"artifact":{"artifactId":',
                encode_text(artifact.artifact_id),
                b',"parts":[{"text":',
            )
        )
        self._artifacts[artifact.artifact_id] = GrowingArtifact(artifact, prefix, open=open_)

    def _check_not_ended(self) -> None:
        if self.state.terminal:
            raise InvalidAgentResponseError(f"the task has ended ({self.state}) and cannot be changed")

    def _open_artifact(self, artifact_id: str) -> GrowingArtifact:
        record = self._artifacts.get(artifact_id)
        if record is None:
            raise InvalidAgentResponseError(
                f"artifact {artifact_id!r} does not exist: create it before appending to it"
            )
        if not record.open:
            self._check_not_ended()
            raise InvalidAgentResponseError(f"artifact {artifact_id!r} is complete: it cannot be extended")
        return record


def encode_artifact_event(task_id: str, context_id: str, update: ArtifactUpdate) -> bytes:
    """Encode the event of an artifact update as JSON."""
    event = TaskArtifactUpdateEvent(
        task_id=task_id,
        context_id=context_id,
        artifact=update.artifact,
        append=update.append,
        last_chunk=update.last,
    )
    return b'{"artifactUpdate":' + event.to_json() + b"}"


def _is_bare_text(part: Part) -> bool:
    """Return True if a part is text without metadata, name and type. Such a part can be joined with another text."""
    return part.text is not None and not (part.metadata or part.filename or part.media_type)


def agent_message(text: str, metadata: Mapping[str, Any] | None = None) -> Message:
    """Return a message of the agent with one text part and a new id."""
    return Message(
        message_id=str(uuid4()), role=Role.AGENT, parts=(Part(text=text),), metadata=dict(metadata or {})
    )
