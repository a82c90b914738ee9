"""Converts the events of a remote agent to updates of the local task, and to messages of the conversation. Sans-IO.

After a lost connection, the stream may continue with full copies of the task or of an artifact. A copy replaces earlier content.
If it only extends the content, only the new text is forwarded.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace
from pydantic_core import to_json

from tailrace.server.remote.agent_output_variants import (
    output_of_status,
    split_reasoning,
    status_text_id,
    text_in_history,
)
from tailrace.server.remote.conversation_messages import conversation_messages, readable_part
from tailrace.server.remote.response_validation import MISSING_ID, RemoteEvent
from tailrace.server.runtime.limits import size_of
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from tailrace.streaming.a2a.stream_extension import (
    extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.conversion.published_artifacts import PublishedArtifact
from tailrace.streaming.task.growing_artifact import GrowingArtifact
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import (
    UpstreamError,
    UpstreamFault,
)

MAX_ARTIFACTS = 1_000
"""Maximum number of artifacts of one response."""

MAX_PARTS = 10_000
"""Maximum number of parts in all artifacts of one response."""

MAX_ARTIFACT_BYTES = 8 * 1024 * 1024
"""Maximum size in bytes of an artifact without appended text, and of a message in a status."""

MAX_MESSAGE_PARTS = 2_000
"""Maximum number of parts of a message in a status."""

_OF_THE_REMOTE = ("number", "received", "dialect")
"""Extension metadata about the log of the remote agent, which is not forwarded."""


_SUCCESSFUL = (TaskState.COMPLETED, TaskState.INPUT_REQUIRED)

_INCOMPLETE = (
    "a part of the agent's response may be missing: the connection to the agent was lost, and its task does not have "
    "the messages that it sent meanwhile"
)

_DEFAULT_MESSAGES = {
    TaskState.FAILED: "the agent failed without an error message",
    TaskState.REJECTED: "the agent rejected the message without a reason",
    TaskState.AUTH_REQUIRED: "the agent requires an authorization, without a description",
    TaskState.INPUT_REQUIRED: "the agent requires more input, without a question",
}


class EventConverter:
    """Converts the events of one response of a remote agent to updates.

    Args:
        known: Artifacts that the remote task had before this response.
        published: Artifacts of the local task that were published before a crash interrupted this response.
        suffix: Suffix of all artifact ids. Empty for the first remote task of the local task.
        turn: The number of the turn of the remote task, from 1.
        interrupted: The response that a crash interrupted and that these events continue; None for a new response.

    Attributes:
        task_id: Id of the remote task; empty if it is not known yet, or if there is none.
        context_id: Id of the conversation at the remote agent; empty if it is not known yet.
        ending: The status with which the response would end now; None if there is none yet.
    """

    def __init__(
        self,
        known: Iterable[Artifact] = (),
        *,
        published: Iterable[PublishedArtifact] = (),
        suffix: str = "",
        turn: int = 1,
        interrupted: InterruptedResponse | None = None,
    ) -> None:
        self.task_id = ""
        self.context_id = ""
        self.ending: StatusUpdate | None = None
        self._suffix = suffix
        self._turn = turn
        self._parts = 0
        self._bytes: dict[str, int] = {}
        self._copies: dict[str, GrowingArtifact] = {}
        self._status_message: Message | None = None
        self._question: Message | None = None
        self._has_text_in_statuses = False
        self._is_incomplete = False  # True if text that the agent sent in a status may be missing
        self._is_resumed = interrupted is not None
        self._published_messages = set(interrupted.published_messages if interrupted is not None else ())
        # Text of statuses from a copy of the task, which becomes the response if there is no other output.
        self._unreceived_text = ""
        for artifact in [part for each in known for part in split_reasoning(each)]:
            renamed = self._renamed(artifact)
            self._copies[renamed.artifact_id] = GrowingArtifact(renamed, open=False)
        for each in published:
            if each.artifact.artifact_id.endswith(suffix):
                copy = GrowingArtifact(each.artifact, open=each.is_open)
                copy.changed = each.is_new  # the messages of earlier turns are already in the conversation
                self._copies[each.artifact.artifact_id] = copy
                if each.is_open and each.artifact.artifact_id == self._status_text_id:
                    self._has_text_in_statuses = True

    def feed(self, event: RemoteEvent) -> list[Update]:
        """Convert an event to updates. The final status is not included; `close` returns it.

        The status AUTH_REQUIRED is returned immediately with ``continues``. If the response ends with it, `close` returns it
        again.

        Raises:
            UpstreamError: The response has too many artifacts, parts or bytes.
        """
        if isinstance(event, TaskArtifactUpdateEvent):  # checked first, because most events are of this type
            self._record_ids(event.task_id, event.context_id)
            artifact = event.artifact
            if not any(part.metadata for part in artifact.parts):
                return self._artifact(self._renamed(artifact), append=event.append, last=event.last_chunk)
            return [
                update
                for each in split_reasoning(artifact)
                for update in self._artifact(self._renamed(each), append=event.append, last=event.last_chunk)
            ]
        if isinstance(event, TaskStatusUpdateEvent):
            self._record_ids(event.task_id, event.context_id)
            return self._status(event.status, event.metadata)
        if isinstance(event, Task):
            # Only the first copy of a task may contain texts of the previous turn.
            self._is_resumed = self._is_resumed or bool(self.task_id)
            self._record_ids(event.id, event.context_id)
            updates: list[Update] = []
            if len(event.artifacts) > MAX_ARTIFACTS:
                raise _too_large(f"{MAX_ARTIFACTS} artifacts")
            for artifact in [part for each in event.artifacts for part in split_reasoning(each)]:
                # In a copy, a text may be divided into parts differently.
                complete = artifact.model_copy(update={"parts": tuple(_joined(artifact.parts))})
                updates += self._replace(self._renamed(complete), last=event.status.state.terminal)
            return (
                updates + self._missed_text(event) + self._status(event.status, event.metadata, is_copy=True)
            )
        self._record_ids(event.task_id, event.context_id)
        self.ending = StatusUpdate(TaskState.COMPLETED)
        return self._message(event)

    def _unreceived_updates(self, ending: StatusUpdate) -> list[Update]:
        """Return the updates for text of statuses that did not arrive, if there is no other output."""
        if self.artifacts or ending.message is not None or ending.state not in _SUCCESSFUL:
            return []
        last = self._status_message
        if last is not None and any(part.text is None for part in last.parts):
            return []  # gemini-cli: a call that needs a confirmation
        return self._status_text(self._pop_unknown_text())

    def close(self, failure: StatusUpdate | None = None) -> list[Update]:
        """End the response, and return the remaining updates. The last update is the final status.

        Args:
            failure: The status of a request that failed; None if the agent ended the response.
        """
        ending = failure or self.ending or StatusUpdate(TaskState.COMPLETED)
        if self._is_incomplete and failure is None and ending.state in _SUCCESSFUL:
            ending = StatusUpdate(TaskState.FAILED, agent_message(_INCOMPLETE), ending.metadata)
        updates: list[Update] = []
        message = ending.message
        if ending.state is TaskState.COMPLETED and message is not None and not self.artifacts:
            # Without artifacts, the message is the response.
            updates += self._message(message)
            message = None
        elif missed := self._unreceived_updates(ending):
            updates += missed
        elif (
            message is None and ending.state is TaskState.INPUT_REQUIRED and self._status_message is not None
        ):
            message = self._status_message  # gemini-cli: a call that needs a confirmation, or an error
        elif message is None and ending.state is TaskState.INPUT_REQUIRED and self._has_text_in_statuses:
            pass  # the response ends with the agent's question
        elif message is None and ending.state in _DEFAULT_MESSAGES:
            message = agent_message(_DEFAULT_MESSAGES[ending.state])
        self._question = message if failure is None else None
        return [*updates, StatusUpdate(ending.state, message, ending.metadata)]

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts that this response created or changed, with their complete content."""
        return tuple(copy.complete() for copy in self._copies.values() if copy.changed)

    @property
    def status_message(self) -> Message | None:
        """The last message in a status; None if no status had a message."""
        return self._status_message

    def _record_ids(self, task_id: str, context_id: str) -> None:
        if task_id not in ("", MISSING_ID):
            self.task_id = task_id
        if context_id not in ("", MISSING_ID):
            self.context_id = context_id

    def _renamed(self, artifact: Artifact) -> Artifact:
        if not self._suffix:
            return artifact
        return artifact.model_copy(update={"artifact_id": artifact.artifact_id + self._suffix})

    # --- statuses -----------------------------------------------------------------------------------------------

    @property
    def _status_text_id(self) -> str:
        return status_text_id(self._turn) + self._suffix

    def _missed_text(self, task: Task) -> list[Update]:
        """Return the updates for text of statuses that only a copy of the task has."""
        if not self._has_text_in_statuses:
            self._unreceived_text = (
                text_in_history(task, self._published_messages) if self._is_resumed else ""
            )
            return []
        known = self._copies.get(self._status_text_id)
        before = "".join(part.text or "" for part in known.complete().parts) if known is not None else ""
        text = text_in_history(task)
        if text.startswith(before):
            return self._status_text(text[len(before) :])
        # A task without a history has only the last text.
        self._is_incomplete = self._is_incomplete or not (text and before.endswith(text))
        return []

    def _status_text(self, text: str) -> list[Update]:
        """Return the updates that append to the text that the agent sends in statuses."""
        rest = Artifact(artifact_id=self._status_text_id, name="Answer", parts=(Part(text=text),))
        return self._artifact(rest, append=True, last=False) if text else []

    def _pop_unknown_text(self) -> str:
        text, self._unreceived_text = self._unreceived_text, ""
        return text

    def _status(
        self, status: TaskStatus, metadata: Mapping[str, Any], *, is_copy: bool = False
    ) -> list[Update]:
        fields = without_extension_metadata(metadata, *_OF_THE_REMOTE) or None
        message = status.message and status.message.model_copy(update={"reference_task_ids": ()})
        if "received" in extension_metadata(metadata):
            return []  # the status only confirms the caller's message
        if message is not None and len(message.parts) > MAX_MESSAGE_PARTS:
            raise _too_large(f"{MAX_MESSAGE_PARTS} parts in a message")
        if message is not None and _size_of(message) > MAX_ARTIFACT_BYTES:
            raise _too_large(f"{MAX_ARTIFACT_BYTES} bytes in a message")
        if message is not None and any(part.data is not None for part in message.parts):
            message = message.model_copy(update={"parts": tuple(map(readable_part, message.parts))})
        output = (
            output_of_status(message, metadata, self._turn) if status.state is TaskState.WORKING else None
        )
        if output is not None:
            self._has_text_in_statuses = True
            self.ending = self._status_message = None
            missed = self._status_text(self._pop_unknown_text())
            return missed + self._artifact(self._renamed(output), append=True, last=False)
        if is_copy and message is not None and status.state is TaskState.WORKING:
            if self._has_text_in_statuses or message.message_id in self._published_messages:
                message = None  # the message is already part of the text, or was published before
        if message is not None:
            self._published_messages.add(message.message_id)
        self._status_message = message or self._status_message
        if status.state.terminal or status.state.interrupted:
            if status.state is TaskState.AUTH_REQUIRED:
                return self._authorization(message, fields)
            self.ending = StatusUpdate(status.state, message, fields)
            return []
        authorized = self.ending is not None and self.ending.state is TaskState.AUTH_REQUIRED
        self.ending = None
        if message is None and not fields and not authorized:
            return []  # the local task already has the state WORKING
        return [StatusUpdate(TaskState.WORKING, message, fields)]

    def _authorization(self, message: Message | None, metadata: dict[str, Any] | None) -> list[Update]:
        """Return the update that requests credentials, unless it was returned before."""
        known = self.ending
        if known is not None and known.message is not None and known.state is TaskState.AUTH_REQUIRED:
            if message is None or message.message_id == known.message.message_id:
                return []  # a copy of the task repeats the request
        message = message or agent_message(_DEFAULT_MESSAGES[TaskState.AUTH_REQUIRED])
        self.ending = StatusUpdate(TaskState.AUTH_REQUIRED, message, metadata)
        return [replace(self.ending, continues=True)]

    def _message(self, message: Message) -> list[Update]:
        """Convert a message to an artifact."""
        artifact = Artifact(
            artifact_id="message",
            name="Answer",
            parts=message.parts,
            metadata=message.metadata,
            extensions=message.extensions,
        )
        return self._replace(self._renamed(artifact), last=True)

    # --- artifacts ----------------------------------------------------------------------------------------------

    def _artifact(self, artifact: Artifact, *, append: bool, last: bool) -> list[Update]:
        copy = self._copies.get(artifact.artifact_id)
        if copy is None or not append:
            # An append may also create an artifact.
            return self._replace(artifact, last=last)
        if not copy.open:
            # A complete local artifact can only be replaced.
            self._check_appended(artifact)
            copy.add_parts(artifact.parts)
            copy.open = not last
            return [ArtifactUpdate(copy.complete(), last=last)]
        copy.open = not last
        if copy.ends_in_text and all(map(_is_bare_text, artifact.parts)):
            text = "".join(part.text or "" for part in artifact.parts)
            return self._more_text(artifact.artifact_id, text, last=last)
        self._check_appended(artifact)
        copy.add_parts(artifact.parts)
        return [ArtifactUpdate(artifact, append=True, last=last)]

    def _more_text(self, artifact_id: str, text: str, *, last: bool) -> list[Update]:
        self._copies[artifact_id].add_text(text)
        return [TextDelta(artifact_id, text, last=last)] if text or last else []

    def _replace(self, artifact: Artifact, *, last: bool) -> list[Update]:
        """Return the updates for a full copy of an artifact: none, the new text, or the complete copy."""
        copy = self._copies.get(artifact.artifact_id)
        if copy is not None:
            rest = _rest(copy.complete(), artifact)
            if rest is not None and (copy.open or not rest):
                if not rest and (not copy.open or not last):
                    return []
                copy.open = not last
                if copy.ends_in_text:
                    return self._more_text(artifact.artifact_id, rest, last=last)
                return [ArtifactUpdate(artifact, last=True)]
        if copy is None and len(self._copies) >= MAX_ARTIFACTS:
            raise _too_large(f"{MAX_ARTIFACTS} artifacts")
        self._check_parts(len(artifact.parts) - (len(copy.complete().parts) if copy is not None else 0))
        self._check_bytes(artifact, 0)
        copy = self._copies[artifact.artifact_id] = GrowingArtifact(artifact, open=not last)
        copy.changed = True
        return [ArtifactUpdate(artifact, last=last)]

    def _check_appended(self, artifact: Artifact) -> None:
        self._check_parts(len(artifact.parts))
        self._check_bytes(artifact, self._bytes.get(artifact.artifact_id, 0))

    def _check_bytes(self, artifact: Artifact, before: int) -> None:
        size = self._bytes[artifact.artifact_id] = before + _size_of(artifact)
        if size > MAX_ARTIFACT_BYTES:
            raise _too_large(f"{MAX_ARTIFACT_BYTES} bytes in an artifact")

    def _check_parts(self, number: int) -> None:
        """Add to the number of parts, and check it.

        Raises:
            UpstreamError: The response has too many parts.
        """
        self._parts += number
        if self._parts > MAX_PARTS:
            raise _too_large(f"{MAX_PARTS} parts")

    def messages(self, metadata: Mapping[str, Any] | None = None) -> list[Message]:
        """Return the messages for the conversation; see `conversation_messages`."""
        return conversation_messages(self.artifacts, self._question, metadata or {})


def _too_large(allowed: str) -> UpstreamError:
    return UpstreamError(f"the agent's response has more than {allowed}", fault=UpstreamFault.TOO_LARGE)


def _size_of(content: Artifact | Message) -> int:
    metadata = len(to_json(content.metadata)) if content.metadata else 0
    return metadata + sum(map(size_of, content.parts))


def _rest(known: Artifact, copy: Artifact) -> str | None:
    """Return the text by which a copy extends a known artifact; None if the copy differs in other ways."""
    old, new = _joined(known.parts), _joined(copy.parts)
    if len(old) != len(new) or old[:-1] != new[:-1] or known.metadata != copy.metadata:
        return None
    if old[-1] == new[-1]:
        return ""
    text, longer = old[-1].text, new[-1].text
    if text is None or longer is None or not longer.startswith(text):
        return None
    same = new[-1].model_copy(update={"text": text}) == old[-1]
    return longer[len(text) :] if same else None


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Join adjacent plain texts."""
    joined: list[Part] = []
    run: list[str] = []
    for part in parts:
        if _is_bare_text(part):
            run.append(part.text or "")
            continue
        if run:
            joined.append(Part(text="".join(run)))
            run = []
        joined.append(part)
    return [*joined, Part(text="".join(run))] if run else joined


def _is_bare_text(part: Part) -> bool:
    """Return True if a part is a text without metadata, file name and media type."""
    return part.text is not None and not (part.metadata or part.filename or part.media_type)
