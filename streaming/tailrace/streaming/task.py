"""A task as the fold of its updates: each update becomes one numbered, encoded event.

`TaskRecord` is where a task's state lives while it is worked on. Applying an update costs the same however much the
task already holds; a snapshot costs what it is long and is made only when somebody asks for one.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec

from tailrace.streaming.a2a.encoding import encode_text
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
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
from tailrace.streaming.extension import (
    extension_facts,
    with_extension_facts,
    without_extension_facts,
)
from tailrace.streaming.lifecycle import TaskState, advance
from tailrace.streaming.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers.messages import join_surrogates


class Event(msgspec.Struct, frozen=True, gc=False):
    """One entry of a task's log.

    Attributes:
        number: 1, 2, 3, … without gaps: one for each mutation of the task.
        body: The A2A 1.0 ``StreamResponse`` as JSON, encoded once and shared by all readers.
        state: The state the task is in from this event on, where the event changed its status; else None.
    """

    number: int
    body: bytes
    state: TaskState | None = None


_decode_text = msgspec.json.Decoder(str).decode

_APPENDED = b'}]},"append":true}}'
_APPENDED_LAST = b'}]},"append":true,"lastChunk":true}}'


class _ArtifactRecord:
    """An artifact while it grows: whole parts, and the pieces of the text that is still being added to."""

    __slots__ = ("_added", "_head", "changed", "ends_in_text", "open", "prefix")

    def __init__(self, artifact: Artifact, prefix: bytes, *, open_: bool) -> None:
        self.prefix = prefix
        self.open = open_
        self.changed = False
        self._added: bytearray | None = None  # as UTF-8, which takes the least
        self._set_head(artifact)

    def add_text(self, text: str) -> None:
        if text:
            if self._added is None:
                self._added = bytearray()
            # Piece by piece, as the events have it: two halves of a character in two events are no character.
            self._added += (text if text.isascii() else join_surrogates(text)).encode()
            self.changed = True

    def add_parts(self, parts: tuple[Part, ...]) -> None:
        head = self.whole()
        self.changed = True
        self._set_head(head.model_copy(update={"parts": (*head.parts, *parts)}))

    def _set_head(self, head: Artifact) -> None:
        self._head = head
        self.ends_in_text = head.parts[-1].text is not None

    def whole(self) -> Artifact:
        """The artifact as one part a run of text."""
        if self._added is None:
            return self._head
        last = self._head.parts[-1]
        joined = last.model_copy(update={"text": (last.text or "") + self._added.decode()})
        self._added = None
        self._head = self._head.model_copy(update={"parts": (*self._head.parts[:-1], joined)})
        return self._head


class TaskRecord:
    """The state of one task, and the encoder of its events. Sans-IO.

    Args:
        task: The task as it stands.
        number: The number of the last event that ``task`` includes; 0 for one that has no event yet.

    Attributes:
        id: The task's id.
        context_id: The conversation it belongs to.
        number: The number of the last event.
        status: The present status.
        history: The messages of the task, oldest first.
    """

    def __init__(self, task: Task, number: int = 0) -> None:
        self.id = task.id
        self.context_id = task.context_id
        self.number: int = number
        self.status = task.status
        self.history = list(task.history)
        self._metadata = dict(task.metadata)
        self._artifacts: dict[str, _ArtifactRecord] = {}
        for artifact in task.artifacts:
            self._set_artifact(artifact, open_=False)

    @classmethod
    def create(
        cls, message: Message, *, task_id: str = "", context_id: str = "", dialect: str = ""
    ) -> "TaskRecord":
        """A new task for a message of a caller, in state SUBMITTED and without an event yet.

        Args:
            message: What the caller asks; becomes the first message of the history.
            task_id: Made here (UUID) when empty.
            context_id: Made here when neither this nor the message names one.
            dialect: The version of the protocol that the task was begun in, where that says how it is to be
                written when nobody says; becomes a fact of the task.
        """
        task_id = task_id or str(uuid4())
        context_id = context_id or message.context_id or str(uuid4())
        task = Task(
            id=task_id,
            context_id=context_id,
            status=TaskStatus(state=TaskState.SUBMITTED, timestamp=datetime.now(UTC)),
            history=(message.model_copy(update={"task_id": task_id, "context_id": context_id}),),
            metadata=with_extension_facts({}, dialect=dialect) if dialect else {},
        )
        return cls(task)

    @property
    def state(self) -> TaskState:
        """The present state."""
        return self.status.state

    @property
    def artifact_ids(self) -> tuple[str, ...]:
        """The artifacts, in the order of their making."""
        return tuple(self._artifacts)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts as they stand, in the order of their making."""
        return tuple(record.whole() for record in self._artifacts.values())

    def submitted(self) -> Event:
        """The first event of a task: the task itself."""
        self.number += 1
        return Event(self.number, StreamResponse(task=self.snapshot()).to_json(), self.state)

    def receive(self, message: Message) -> Message:
        """Take a further message of the caller into the history; `receipt` tells the readers.

        Returns:
            The message with the task's ids filled in.
        """
        message = message.model_copy(update={"task_id": self.id, "context_id": self.context_id})
        if self.state.interrupted:
            self._keep_status_message()
        self.history.append(message)
        return message

    def receipt(self, message: Message) -> Event:
        """The event that tells the readers of a message that was received, as a status with the fact ``received``.

        A task that waited for its caller is WORKING from then on; one that is at work on an earlier message stays
        as it is.

        Raises:
            IllegalTransition: The task is over.
        """
        received = with_extension_facts({}, received=message.to_dict())
        if not self.state.interrupted:
            if self.state.terminal:
                advance(self.state, TaskState.WORKING)
            self.number += 1
            return Event(self.number, self._encode_status(self.status, received), self.state)
        status = TaskStatus(state=advance(self.state, TaskState.WORKING), timestamp=datetime.now(UTC))
        self._take_status(status, {})
        self.number += 1
        return Event(self.number, self._encode_status(status, received), self.state)

    def apply(self, update: Update) -> Event:
        """Carry out one update and return its event.

        Raises:
            IllegalTransition: The state may not follow the present one.
            InvalidAgentResponseError: The update names an artifact that does not exist or is complete, or
                comes after the task's end.
        """
        if isinstance(update, TextDelta):
            return self._apply_text(update)
        self._check_not_over()
        if isinstance(update, ArtifactUpdate):
            return self._apply_artifact(update)
        return self._apply_status(update)

    def closing_updates(self) -> list[Update]:
        """The updates that complete every artifact that is still open, in the order they were begun."""
        updates: list[Update] = []
        for artifact_id, record in self._artifacts.items():
            if not record.open:
                continue
            if record.ends_in_text:
                updates.append(TextDelta(artifact_id, "", last=True))
            else:
                # An artifact of files has no text to end with: a full copy replaces it and says "last".
                updates.append(ArtifactUpdate(record.whole(), last=True))
        return updates

    def take_changed(self) -> list[Artifact]:
        """The artifacts that were begun, replaced or added to since this was last asked, whole."""
        changed = [record for record in self._artifacts.values() if record.changed]
        for record in changed:
            record.changed = False
        return [record.whole() for record in changed]

    def snapshot(self, history_length: int | None = None) -> Task:
        """The task as it stands; its metadata says which event is the last that it includes.

        Args:
            history_length: At most so many of the newest messages; None for all, 0 for none.
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
            metadata=with_extension_facts(self._metadata, number=self.number),
        )

    def overview(self) -> list[Event]:
        """The task as it stands for a reader that left events out: every artifact whole, then the status.

        Only the last of them has a number, that of the last event which they include: a reader that breaks off
        before it goes on from where it was. A full copy replaces what a reader has of the artifact.
        """
        events: list[Event] = []
        for record in self._artifacts.values():
            copy = TaskArtifactUpdateEvent(
                task_id=self.id,
                context_id=self.context_id,
                artifact=record.whole(),
                last_chunk=not record.open,
            )
            events.append(Event(0, StreamResponse(artifact_update=copy).to_json()))
        metadata = without_extension_facts(self._metadata, "number")
        return [*events, Event(self.number, self._encode_status(self.status, metadata), self.state)]

    def replay(self, event: Event) -> None:
        """Take in an event that was made earlier (by this class) and is next in number.

        Raises:
            ValueError: Its number is not the next one: something is missing.
        """
        if event.number != self.number + 1:
            raise ValueError(f"event {event.number} cannot follow event {self.number} of task {self.id}")
        if event.state is None and self._replay_text(event.body):
            self.number += 1
            return
        response = StreamResponse.model_validate_json(event.body)
        self.number = event.number
        if response.task is not None:
            self.status = response.task.status
            self.history = list(response.task.history)
        elif response.status_update is not None:
            self._replay_status(response.status_update)
        elif response.artifact_update is not None:
            update = response.artifact_update
            self._take_artifact(update.artifact, append=update.append, last=update.last_chunk)

    def _replay_text(self, body: bytes) -> bool:
        """Take in what is added to the text of an artifact, as `_apply_text` writes it; says whether it was that."""
        last = body.endswith(_APPENDED_LAST)
        if not last and not body.endswith(_APPENDED):
            return False
        for record in reversed(self._artifacts.values()):
            if record.ends_in_text and body.startswith(record.prefix):
                tail = _APPENDED_LAST if last else _APPENDED
                try:
                    text = _decode_text(body[len(record.prefix) : -len(tail)])
                except msgspec.DecodeError:  # more than one part, for example
                    return False
                record.add_text(text)
                record.open = not last
                return True
        return False

    def _replay_status(self, update: TaskStatusUpdateEvent) -> None:
        received = extension_facts(update.metadata).get("received")
        if received is None:
            self._take_status(update.status, update.metadata)
            return
        waited = self.state.interrupted
        self.receive(Message.model_validate(received))
        if waited:
            self._take_status(update.status, {})

    def _apply_text(self, update: TextDelta) -> Event:
        record = self._artifacts.get(update.artifact_id)
        if record is None or not record.open:
            record = self._open_artifact(update.artifact_id)
        if not record.ends_in_text:
            raise InvalidAgentResponseError(f"artifact {update.artifact_id!r} does not end in text")
        text = update.text
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] — a handler's; nobody checked it
            raise InvalidAgentResponseError(f"the text of a delta is of type {type(text).__name__}")
        encoded = encode_text(text)
        record.add_text(text)
        self.number += 1
        tail = _APPENDED
        if update.last:
            record.open = False
            tail = _APPENDED_LAST
        return Event(self.number, record.prefix + encoded + tail)

    def _apply_artifact(self, update: ArtifactUpdate) -> Event:
        artifact = update.artifact
        if update.append:
            self._open_artifact(artifact.artifact_id)
        event = TaskArtifactUpdateEvent(
            task_id=self.id,
            context_id=self.context_id,
            artifact=artifact,
            append=update.append,
            last_chunk=update.last,
        )
        body = StreamResponse(artifact_update=event).to_json()
        self._take_artifact(artifact, append=update.append, last=update.last)
        self.number += 1
        return Event(self.number, body)

    def _apply_status(self, update: StatusUpdate) -> Event:
        state = advance(self.state, update.state)
        message = update.message
        if message is not None:
            message = message.model_copy(update={"task_id": self.id, "context_id": self.context_id})
        status = TaskStatus(state=state, message=message, timestamp=datetime.now(UTC))
        metadata = update.metadata or {}
        body = self._encode_status(status, metadata)
        self._take_status(status, metadata)
        self.number += 1
        return Event(self.number, body, state)

    def _encode_status(self, status: TaskStatus, metadata: dict[str, Any]) -> bytes:
        event = TaskStatusUpdateEvent(
            task_id=self.id, context_id=self.context_id, status=status, metadata=metadata
        )
        return StreamResponse(status_update=event).to_json()

    def _take_status(self, status: TaskStatus, metadata: Mapping[str, Any]) -> None:
        self._keep_status_message()
        self.status = status
        self._take_metadata(metadata)
        if status.state.terminal:
            for record in self._artifacts.values():
                record.open = False

    def _take_metadata(self, metadata: Mapping[str, Any]) -> None:
        """The facts of a status (usage, finish reason, …) are facts about the task from then on."""
        known = extension_facts(self._metadata)
        self._metadata |= metadata
        if known:
            self._metadata = with_extension_facts(self._metadata, **{**known, **extension_facts(metadata)})

    def _keep_status_message(self) -> None:
        """What the agent said in its last status becomes history when the status changes (A2A 1.0, 3.7)."""
        if self.status.message is not None:
            self.history.append(self.status.message)
            self.status = self.status.model_copy(update={"message": None})

    def _take_artifact(self, artifact: Artifact, *, append: bool, last: bool) -> None:
        known = self._artifacts.get(artifact.artifact_id)
        if append and known is not None:
            if known.ends_in_text and all(map(_is_bare_text, artifact.parts)):
                known.add_text("".join(part.text or "" for part in artifact.parts))
            else:
                known.add_parts(artifact.parts)
            known.open = not last
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
        self._artifacts[artifact.artifact_id] = _ArtifactRecord(artifact, prefix, open_=open_)

    def _check_not_over(self) -> None:
        if self.state.terminal:
            raise InvalidAgentResponseError(f"the task is over ({self.state}), nothing can be added to it")

    def _open_artifact(self, artifact_id: str) -> _ArtifactRecord:
        record = self._artifacts.get(artifact_id)
        if record is None:
            raise InvalidAgentResponseError(
                f"artifact {artifact_id!r} was never begun: nothing can be appended"
            )
        if not record.open:
            self._check_not_over()
            raise InvalidAgentResponseError(f"artifact {artifact_id!r} is complete: nothing can be appended")
        return record


def _is_bare_text(part: Part) -> bool:
    """Text with metadata, a name or a type stays a part of its own."""
    return part.text is not None and not (part.metadata or part.filename or part.media_type)


def agent_message(text: str, metadata: Mapping[str, Any] | None = None) -> Message:
    """A message of the agent with one text part and an id of its own, for a status."""
    return Message(
        message_id=str(uuid4()), role=Role.AGENT, parts=(Part(text=text),), metadata=dict(metadata or {})
    )
