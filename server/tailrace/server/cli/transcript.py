"""Converts a stream of A2A events to items for users: new text, remarks, and changes of state."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, StreamResponse, Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.conversion.approval_parts import approval_requests
from tailrace.wrappers import ContentPartText
from tailrace.wrappers.conversion.text_joining import BLANK_LINE, belong_to_one_text

RESPONSE_CHANNEL = "text"
"""The channel of the response itself, also of artifacts without a channel."""

# C0 and C1 control characters, except tab and line feed. A text must not control the terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


@dataclass(frozen=True, slots=True)
class Text:
    """New text of an artifact or a message.

    Attributes:
        source: The id of the artifact or message.
        channel: The channel of the artifact.
        text: The new text; empty only if an artifact has been replaced with one without text.
        again: Whether the text replaces all earlier text of the artifact.
    """

    source: str
    channel: str
    text: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Remark:
    """An item other than text, in one line.

    Attributes:
        kind: ``tool call``, ``tool result``, ``approval required``, ``file`` or ``data``.
        text: The line.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Status:
    """The status of the task.

    Attributes:
        state: The state of the task.
        message: The agent's message about the state; empty if there is none.
        digests: The digests of the tool calls that wait for an approval.
    """

    state: TaskState
    message: str = ""
    digests: tuple[str, ...] = ()


Item = Text | Remark | Status


class Transcript:
    """Converts the events of a task, or a direct message of an agent, to new items. Sans-IO.

    Attributes:
        task_id: The id of the task; empty until it is known.
        context_id: The id of the conversation; empty until it is known.
        status: The status of the task; COMPLETED after a direct message; None before the first status.
        metadata: The agent's metadata for tailrace's extension, for example ``usage`` and ``finishReason``.
    """

    def __init__(self) -> None:
        self.task_id = ""
        self.context_id = ""
        self.status: Status | None = None
        self.metadata: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._channels: dict[str, str] = {}
        self._remarks: set[Remark] = set()

    @property
    def response_text(self) -> str:
        """The text of the response so far."""
        responses = (
            texts for source, texts in self._texts.items() if self._channels[source] == RESPONSE_CHANNEL
        )
        return "\n".join("".join(texts) for texts in responses if texts)

    def read(self, response: StreamResponse) -> list[Item]:
        """Add an event, and return its new items in order."""
        if response.task is not None:
            return self._read_task(response.task)
        if response.message is not None:
            return self._read_direct(response.message)
        if response.status_update is not None:
            update = response.status_update
            self.task_id, self.context_id = update.task_id, update.context_id
            self.metadata |= extension_metadata(update.metadata)
            return self._read_status(update.status)
        if response.artifact_update is not None:
            update = response.artifact_update
            self.task_id, self.context_id = update.task_id, update.context_id
            return self._read_artifact(update.artifact, append=update.append)
        return []

    def _read_task(self, task: Task) -> list[Item]:
        self.task_id, self.context_id = task.id, task.context_id
        self.metadata |= extension_metadata(task.metadata)
        items: list[Item] = []
        for artifact in task.artifacts:
            # Some servers return a part for each delta of a text.
            items += self._read_artifact(artifact, append=False, is_joined=True)
        return items + self._read_status(task.status)

    def _read_direct(self, message: Message) -> list[Item]:
        self.context_id = message.context_id
        self.metadata |= extension_metadata(message.metadata)
        self.status = Status(TaskState.COMPLETED)
        return self._add(message.message_id, RESPONSE_CHANNEL, message.parts)

    def _read_status(self, status: TaskStatus) -> list[Item]:
        parts = status.message.parts if status.message is not None else ()
        text = "\n".join(part.text for part in parts if part.text)
        now = Status(status.state, text, tuple(each.digest for each in approval_requests(status.message)))
        # The message of an input-required task repeats tool calls of an artifact.
        items: list[Item] = [remark for remark in remarks(parts) if remark not in self._remarks]
        self._remarks.update(remarks(parts))
        if now != self.status:
            items.append(now)
        self.status = now
        return items

    def _read_artifact(self, artifact: Artifact, *, append: bool, is_joined: bool = False) -> list[Item]:
        source = artifact.artifact_id
        channel = str(extension_metadata(artifact.metadata).get("channel") or RESPONSE_CHANNEL)
        if append:
            return self._add(source, self._channels.get(source, channel), artifact.parts, is_joined=True)
        if source not in self._texts:
            return self._add(source, channel, artifact.parts, is_joined=is_joined)
        return self._replace(source, artifact.parts)

    def _add(
        self, source: str, channel: str, parts: Iterable[Part], *, is_joined: bool = False
    ) -> list[Item]:
        self._channels.setdefault(source, channel)
        texts = self._texts.setdefault(source, [])
        items: list[Item] = []
        for part, text in shown_texts(parts, is_joined=is_joined):
            if part.text:
                # Without the separator: `_replace` compares this text with copies of the artifact.
                texts.append(part.text)
                items.append(Text(source, channel, text))
            else:
                items += remarks((part,))
        self._remarks.update(item for item in items if isinstance(item, Remark))
        return items

    def _replace(self, source: str, parts: tuple[Part, ...]) -> list[Item]:
        """Compare a copy of an artifact with its known text.

        Return the text after the known text, or the complete text if it begins differently.
        """
        printed = "".join(self._texts[source])
        text = "".join(part.text or "" for part in parts)
        self._texts[source] = [text]
        found = remarks(parts)
        items: list[Item] = [remark for remark in found if remark not in self._remarks]
        self._remarks.update(found)
        more, again = (text[len(printed) :], False) if text.startswith(printed) else (text, True)
        # The arguments of a tool call also arrive as text deltas. The remark for the call is enough.
        if more or (again and not found):
            items.insert(0, Text(source, self._channels[source], more, again))
        return items


def shown_texts(parts: Iterable[Part], *, is_joined: bool = False) -> Iterator[tuple[Part, str]]:
    """Yield each part with its text, after a blank line if it does not continue the previous text.

    Args:
        parts: The parts.
        is_joined: Whether the parts are deltas of one text.
    """
    before: ContentPartText | None = None
    for part in parts:
        if not part.text:
            yield part, ""
            continue
        text = ContentPartText(text=part.text, metadata=part.metadata)
        is_apart = not is_joined and before is not None and not belong_to_one_text(before, text)
        yield part, BLANK_LINE + part.text if is_apart else part.text
        before = text


def remarks(parts: Iterable[Part]) -> list[Remark]:
    """Return the remarks about all parts that are not text."""
    remarks: list[Remark] = []
    for part in parts:
        if part.kind == "data":
            remarks += _data_remarks(part.data)
        elif part.kind != "text":
            size = f"{len(part.raw):,} bytes" if part.raw is not None else ""
            details = ", ".join(fact for fact in (part.media_type, size, part.url or "") if fact)
            remarks.append(Remark("file", f"{part.filename or 'without a name'} ({details})"))
    return remarks


def _data_remarks(data: object) -> list[Remark]:
    if not isinstance(data, Mapping):
        return [Remark("data", _to_json(data))]
    fields = cast("Mapping[str, object]", data)
    remarks = [
        Remark("tool call", f"{call.get('name')}({_to_json(call.get('arguments'))})")
        for call in _objects(fields.get("tool_calls"))
    ]
    remarks += [
        Remark("tool result", f"{result.get('name')}: {_to_json(result.get('output'))}")
        for result in _objects(fields.get("tool_results"))
    ]
    remarks += [
        Remark(
            "approval required",
            f"{each.get('name')}({each.get('canonical_arguments')}), digest {each.get('digest')}, until {each.get('expires_at')}",
        )
        for each in _objects(fields.get("approval_requests"))
    ]
    return remarks or [Remark("data", _to_json(fields))]


def _objects(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list):
        return []
    items = cast("list[object]", value)
    return [cast("Mapping[str, object]", item) for item in items if isinstance(item, Mapping)]


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class Pace:
    """The speed of a response, measured by the client.

    Args:
        live: Whether the response begins when the object is created; otherwise, the speed is unknown.
    """

    def __init__(self, *, live: bool = True) -> None:
        self._live = live
        self._started = time.monotonic()
        self._first: float | None = None
        self._last = self._started

    def record_text(self) -> None:
        """Record the arrival of text."""
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last

    def describe(self, transcript: Transcript) -> str:
        """Return the tokens and the tokens per second, or the characters if the agent reports no usage.

        The speed is the average from the request to the last text.
        """
        seconds = max(self._last - self._started, 1e-6)
        first = ""
        if self._live and self._first is not None:
            first = f", the first after {self._first - self._started:.2f} s"
        usage: Any = transcript.metadata.get("usage")
        try:
            tokens_in, tokens_out = int(usage["inputTokens"]), int(usage["outputTokens"])
        except (KeyError, TypeError, ValueError):
            taken = f" in {seconds:.1f} s" if self._live else ""
            return f"{len(transcript.response_text):,} characters{taken}{first}"
        rate = f", {tokens_out / seconds:.1f} tokens/s" if self._live else ""
        return f"{tokens_in:,} tokens in, {tokens_out:,} out{rate}{first}"


def in_words(state: TaskState) -> str:
    """Convert ``TASK_STATE_INPUT_REQUIRED`` to ``input required``."""
    return state.removeprefix("TASK_STATE_").replace("_", " ").lower()


def for_terminal(text: str) -> str:
    r"""Escape control characters (``\x1b``), except tab and line feed."""
    return text.translate(_CONTROLS)
