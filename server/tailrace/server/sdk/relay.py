"""What a remote agent's events amount to: updates of a task of ours, and what was said by it. Sans-IO.

A stream that was lost may be gone on with by full copies, of the task or of an artifact. A copy replaces what came
before; where it only says more of the same, only what is new is passed on, so that nobody reads a text twice.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.models import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from tailrace.streaming.conversation import results_message, to_a2a_message, to_common_message
from tailrace.streaming.extension import extension_facts, with_extension_facts, without_extension_facts
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import agent_message
from tailrace.streaming.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole

RemoteEvent = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
"""One event of a remote agent."""

UNSAID = "-"
"""Stands for the id of a task or a context that an event of the remote does not say."""

_OF_THE_REMOTE = ("number", "received", "dialect")
"""Facts of the extension that are about the remote's own log, and would be wrong about ours."""

_TOOL_PARTS = (ContentPartToolCall, ContentPartToolResult)

_WORDS = {
    TaskState.FAILED: "the agent failed, and did not say why",
    TaskState.REJECTED: "the agent will not do this, and did not say why",
    TaskState.AUTH_REQUIRED: "the agent needs an authorisation, and did not say which",
    TaskState.INPUT_REQUIRED: "the agent needs more to go on with, and did not say what",
}


class Relay:
    """Folds the events of one answer of a remote agent, and says what each one changes.

    Args:
        known: Artifacts that the remote's task had before this answer.
        suffix: Added to the ids of the artifacts, where the task is not the first one of a task of ours.

    Attributes:
        task_id: The remote's task; empty until it is known, and for an answer without one.
        context_id: The remote's conversation.
        ending: How the answer ended, or the last status it would have ended with.
    """

    def __init__(self, known: Iterable[Artifact] = (), *, suffix: str = "") -> None:
        self.task_id = ""
        self.context_id = ""
        self.ending: StatusUpdate | None = None
        self._suffix = suffix
        self._copies: dict[str, _Copy] = {}
        self._words: Message | None = None
        self._asked: Message | None = None
        for artifact in known:
            copy = _Copy(self._renamed(artifact))
            copy.complete, copy.changed = True, False
            self._copies[copy.head.artifact_id] = copy

    def feed(self, event: RemoteEvent) -> list[Update]:
        """Take in an event; return what it changes. How the answer ends is kept for `close`."""
        if isinstance(event, TaskArtifactUpdateEvent):  # first, since almost everything is one
            self._take_ids(event.task_id, event.context_id)
            return self._artifact(self._renamed(event.artifact), append=event.append, last=event.last_chunk)
        if isinstance(event, TaskStatusUpdateEvent):
            self._take_ids(event.task_id, event.context_id)
            return self._status(event.status, event.metadata)
        if isinstance(event, Task):
            self._take_ids(event.id, event.context_id)
            updates: list[Update] = []
            for artifact in event.artifacts:
                # A copy has the pieces of a text as its server kept them; as a text they mean the same.
                whole = artifact.model_copy(update={"parts": tuple(_joined(artifact.parts))})
                updates += self._replace(self._renamed(whole), last=event.status.state.terminal)
            return updates + self._status(event.status, event.metadata)
        self._take_ids(event.task_id, event.context_id)
        self.ending = StatusUpdate(TaskState.COMPLETED)
        return self._message(event)

    def close(self, failure: StatusUpdate | None = None) -> list[Update]:
        """The answer is over; return the last updates, of which the very last is the status that ends it.

        Args:
            failure: What ended it, where that was not the agent.
        """
        ending = failure or self.ending or StatusUpdate(TaskState.COMPLETED)
        updates: list[Update] = []
        message = ending.message
        if ending.state is TaskState.COMPLETED and message is not None and not self.artifacts:
            # The answer itself, where an agent makes no artifacts: it belongs where all answers are.
            updates += self._message(message)
            message = None
        elif message is None and ending.state in _WORDS:
            message = agent_message(_WORDS[ending.state])
        self._asked = message if failure is None else None
        return [*updates, StatusUpdate(ending.state, message, ending.metadata)]

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What this answer made or changed, whole."""
        return tuple(copy.whole() for copy in self._copies.values() if copy.changed)

    @property
    def words(self) -> Message | None:
        """The last message that came with a status."""
        return self._words

    def _take_ids(self, task_id: str, context_id: str) -> None:
        if task_id not in ("", UNSAID):
            self.task_id = task_id
        if context_id not in ("", UNSAID):
            self.context_id = context_id

    def _renamed(self, artifact: Artifact) -> Artifact:
        if not self._suffix:
            return artifact
        return artifact.model_copy(update={"artifact_id": artifact.artifact_id + self._suffix})

    # --- statuses -----------------------------------------------------------------------------------------------

    def _status(self, status: TaskStatus, metadata: Mapping[str, Any]) -> list[Update]:
        facts = without_extension_facts(metadata, *_OF_THE_REMOTE) or None
        message = status.message and status.message.model_copy(update={"reference_task_ids": ()})
        if "received" in extension_facts(metadata):
            return []  # what the caller said is known here
        self._words = message or self._words
        if status.state.terminal or status.state.interrupted:
            self.ending = StatusUpdate(status.state, message, facts)
            return []
        self.ending = None
        if message is None and not facts:
            return []  # the task works: that was said before
        return [StatusUpdate(TaskState.WORKING, message, facts)]

    def _message(self, message: Message) -> list[Update]:
        """A message as the artifact that it is meant as."""
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
            # Appended to what is not there: it begins here.
            return self._replace(artifact, last=last)
        if copy.complete:
            # "The last chunk" was not the last: nothing is added to a complete artifact, but it may be replaced.
            copy.add_parts(artifact.parts)
            copy.complete = last
            return [ArtifactUpdate(copy.whole(), last=last)]
        copy.complete = last
        if copy.ends_in_text and all(map(_is_bare_text, artifact.parts)):
            text = "".join(part.text or "" for part in artifact.parts)
            return self._more_text(copy, text, last=last)
        copy.add_parts(artifact.parts)
        return [ArtifactUpdate(artifact, append=True, last=last)]

    def _more_text(self, copy: "_Copy", text: str, *, last: bool) -> list[Update]:
        copy.add_text(text)
        return [TextDelta(copy.head.artifact_id, text, last=last)] if text or last else []

    def _replace(self, artifact: Artifact, *, last: bool) -> list[Update]:
        """A full copy: nothing when it is what is known, the rest of its text when that is new, else all of it."""
        copy = self._copies.get(artifact.artifact_id)
        if copy is not None:
            rest = _rest(copy.whole(), artifact)
            if rest is not None and not (rest and copy.complete):
                if not rest and (copy.complete or not last):
                    return []
                copy.complete = last
                if copy.ends_in_text:
                    return self._more_text(copy, rest, last=last)
                return [ArtifactUpdate(artifact, last=True)]
        copy = self._copies[artifact.artifact_id] = _Copy(artifact)
        copy.complete = last
        return [ArtifactUpdate(artifact, last=last)]

    # --- the conversation ---------------------------------------------------------------------------------------

    def said(self, metadata: Mapping[str, Any] | None = None) -> list[Message]:
        """What was said in this answer: the agent's artifacts and what came with its last status, round by round.

        The results of tools that ran at the remote stand between the agent's messages, as those of our own agents do.

        Args:
            metadata: Of the agent's last message.
        """
        content: list[ContentPart] = []
        for artifact in self.artifacts:
            facts = extension_facts(artifact.metadata)
            channel = facts.get("channel")
            if facts.get("choice") or channel == "output":
                continue  # of several choices, the conversation goes on from the first; a value is in the text, too
            for item in _content_of(artifact.parts):
                if channel in ("tool_call", "tool_result") and not isinstance(item, _TOOL_PARTS):
                    continue  # arguments that did not become a call
                if channel == "reasoning" and isinstance(item, ContentPartText):
                    item = ContentPartReasoning(text=item.text, metadata=item.metadata)
                content.append(item)
        if self._asked is not None:
            content += _content_of(self._asked.parts)
        messages = _in_rounds(_each_once(content))
        last = max(at for at, message in enumerate(messages) if message.role is SpeakerRole.MODEL)
        messages[last] = messages[last].model_copy(update={"metadata": dict(metadata or {})})
        return [
            to_a2a_message(message, message_id=str(uuid4()))
            if message.role is SpeakerRole.MODEL
            else results_message(message)
            for message in messages
        ]


class _Copy:
    """An artifact while it grows."""

    __slots__ = ("_pieces", "changed", "complete", "ends_in_text", "head")

    def __init__(self, artifact: Artifact) -> None:
        self.complete = False
        self.changed = True
        self._pieces: list[str] = []
        self._set_head(artifact)

    def add_text(self, text: str) -> None:
        self._pieces.append(text)
        self.changed = True

    def add_parts(self, parts: tuple[Part, ...]) -> None:
        whole = self.whole()
        self.changed = True
        self._set_head(whole.model_copy(update={"parts": (*whole.parts, *parts)}))

    def whole(self) -> Artifact:
        if self._pieces:
            last = self.head.parts[-1]
            joined = last.model_copy(update={"text": (last.text or "") + "".join(self._pieces)})
            self._pieces.clear()
            self._set_head(self.head.model_copy(update={"parts": (*self.head.parts[:-1], joined)}))
        return self.head

    def _set_head(self, artifact: Artifact) -> None:
        self.head = artifact
        self.ends_in_text = artifact.parts[-1].text is not None


def _rest(known: Artifact, copy: Artifact) -> str | None:
    """The text that a copy has behind what is known; None when it is another artifact altogether."""
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
    """The parts with each run of plain text as one: how many pieces a text came in says nothing."""
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
    """Text with metadata, a name or a type stays a part of its own."""
    return part.text is not None and not (part.metadata or part.filename or part.media_type)


def _content_of(parts: Iterable[Part]) -> list[ContentPart]:
    """Parts in the common format; what only looks like tool calls is kept as the data that it is."""
    content: list[ContentPart] = []
    for part in parts:
        if part.text == "":
            continue
        try:
            content += to_common_message(_in_a_message(part)).content
        except ValueError:
            metadata = with_extension_facts(part.metadata, channel="data")
            content += to_common_message(
                _in_a_message(part.model_copy(update={"metadata": metadata}))
            ).content
    return content


def _in_a_message(part: Part) -> Message:
    return Message(message_id="-", role=Role.AGENT, parts=(part,))


def _each_once(content: Iterable[ContentPart]) -> Iterable[ContentPart]:
    """Content without repeats of calls and results: a call stands in its artifact, and in the status that asks for it."""
    seen: set[tuple[type, str]] = set()
    for item in content:
        if isinstance(item, _TOOL_PARTS):
            if (type(item), item.id) in seen:
                continue
            seen.add((type(item), item.id))
        yield item


def _in_rounds(content: Iterable[ContentPart]) -> list[CommonMessage]:
    """Content as messages of the agent, and of the results that each of them was given; at least one of the agent."""
    rounds: list[tuple[SpeakerRole, list[ContentPart]]] = [(SpeakerRole.MODEL, [])]
    elsewhere: set[str] = (
        set()
    )  # calls that the remote's own provider ran: their results are part of the answer
    for item in content:
        if isinstance(item, ContentPartToolCall) and item.kind == "server":
            elsewhere.add(item.id)
        is_result = isinstance(item, ContentPartToolResult) and item.id not in elsewhere
        role = SpeakerRole.TOOL if is_result else SpeakerRole.MODEL
        if role is not rounds[-1][0]:
            rounds.append((role, []))
        rounds[-1][1].append(item)
    return [CommonMessage(role=role, content=tuple(items)) for role, items in rounds]
