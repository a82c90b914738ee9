"""Translation of a model's response into updates of an A2A task: artifacts and the final status.

The text of each channel of each choice becomes one artifact. Each tool call, tool result, file and data part also becomes one
artifact. The first event of an artifact creates it (``append`` is false), later events append text, and the last event has
``lastChunk``. For a tool call, the last event replaces the text of the arguments with the complete call. Metadata of the
extension (`tailrace.streaming.a2a.stream_extension`) marks reasoning, refusals and tool calls, and contains the usage and the
finish reason.
"""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI, provider_json, provider_text
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.message_conversion import to_a2a_message
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkWrapper,
    ContentPart,
    ContentPartFile,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    UpstreamError,
    Usage,
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole
from tailrace.wrappers.decoding.extra_fields import plain_json
from tailrace.wrappers.messages import join_surrogates, utf8_size

_NAMES = {
    Channel.TEXT: "Answer",
    Channel.REASONING: "Reasoning",
    Channel.REFUSAL: "Refusal",
}

# Looking up an enum member in Python 3.11 takes longer than creating a struct.
_TOOL_CALL = Channel.TOOL_CALL


class ResponseTranslator:
    """Translates one model response into updates of a task. Sans-IO.

    Args:
        turn: The number of the turn in the task, for artifact ids.
        round: The number of the response in the turn, for artifact ids.
        accumulator: The accumulator of the response, to which the caller adds the chunks. None to create an accumulator for
            `feed`.
        taken_ids: Function that returns the ids of all earlier calls in the conversation. A call with one of these ids gets a new
            id at the end of the response. Until then, its artifact has no id of the call.
        think_tags: See `Accumulator`.
        max_event_bytes: Maximum size in bytes of the text of one update after merging; 0 for no limit.
        results: The number of tool results that were published earlier with this turn and round.

    Attributes:
        model: The model that writes the response, as ``provider:name``; empty if it is unknown.
    """

    def __init__(
        self,
        *,
        turn: int = 1,
        round: int = 1,
        accumulator: Accumulator | None = None,
        taken_ids: Callable[[], Container[str]] = tuple,
        think_tags: bool = True,
        max_event_bytes: int = 0,
        results: int = 0,
    ) -> None:
        self._read_used_ids = taken_ids
        self.accumulator = accumulator or Accumulator(think_tags=think_tags)
        self.model = ""
        self._turn = turn
        self._round = round
        self._max_event = max_event_bytes
        # A text of this length cannot exceed the limit (see `_joined`): a character has at most four bytes in UTF-8.
        self._max_text = max_event_bytes // 4 - 1 if max_event_bytes else math.inf
        self._complete_parts = 0
        self._results = results
        self._artifact_ids: dict[tuple[Channel, int], str] = {}
        self._calls: dict[tuple[int, int], _CallArtifact] = {}  # by choice and position

    def feed(self, chunks: Iterable[ChunkWrapper[Any]]) -> list[Update]:
        """Add chunks that arrived together. Return the resulting updates."""
        add = self.accumulator.add
        changes: list[Change] = []
        for chunk in chunks:
            changes += add(chunk)
        return self.translate(changes)

    def take(self, changes: list[Change]) -> list[Update]:
        """Deprecated name of `translate`; to be removed in 0.3."""
        return self.translate(changes)

    def translate(self, changes: list[Change]) -> list[Update]:
        """Return the updates for changes that arrived together.

        Consecutive texts of one artifact are merged, because updates with event numbers cannot be merged later. If the merged
        text is too large, it becomes as few updates as possible. The text of one change is never split.
        """
        updates: list[Update] = []
        for change in changes if len(changes) == 1 else self._merged(changes):
            if change.channel is _TOOL_CALL:
                updates += self._arguments(change)
                continue
            if change.part is not None or change.restarts:
                updates += self._complete_part(change)
                continue
            artifact_id = self._artifact_ids.get((change.channel, change.choice))
            if artifact_id is not None:
                updates.append(TextDelta(artifact_id, change.text))
            else:
                updates.append(self._begin_text(change.channel, change.choice, change.text))
        return updates

    def resume_text(self) -> None:
        """Append the text that follows to the text artifact of another process."""
        self._artifact_ids.setdefault((Channel.TEXT, 0), self._artifact_id("text", {}, 0))

    def close(self, error: UpstreamError | None = None) -> list[Update]:
        """End the response. Return the updates that complete the open artifacts, and the final status.

        Args:
            error: The error with which the stream ended; None for no error.

        Returns:
            The last updates. The final update is a `StatusUpdate`: COMPLETED; INPUT_REQUIRED if the caller must run tools; or
            FAILED, with the reason, if the response is incomplete or a filter of the provider stopped it.
        """
        updates = self.finish(self.accumulator.close(error))
        return [*updates, self.ending(self._open_calls())]

    def finish(
        self, changes: list[Change], calls: Sequence[ContentPartToolCall] | None = None
    ) -> list[Update]:
        """Return the updates that complete the artifacts of the response.

        Args:
            changes: The changes that `Accumulator.close` returned.
            calls: The calls of the first choice with their ids in the conversation; None to use the ids in the response.
        """
        updates = self.translate(changes)
        updates += [TextDelta(artifact_id, "", last=True) for artifact_id in self._artifact_ids.values()]
        counts: dict[int, int] = {}
        for choice, assembly in self.accumulator.choices.items():
            tool_calls = assembly.tool_calls
            counts[choice] = len(tool_calls)
            for position, call in enumerate(
                calls if calls and assembly is self.accumulator.first else tool_calls
            ):
                complete_text = self._call_artifact(choice, position)
                updates.append(
                    ArtifactUpdate(complete_text.artifact(_a2a_parts([call]), call.name, call.id), last=True)
                )
            if tool_calls:
                updates += [self.result(each, choice) for each in assembly.message().tool_results]
        # Complete the artifacts of calls that a restarted response did not make again.
        updates += [
            TextDelta(call.artifact_id, "", last=True)
            for (choice, position), call in self._calls.items()
            if position >= counts[choice]
        ]
        return updates

    def result(self, result: ContentPartToolResult, choice: int = 0) -> Update:
        """Return the update for a tool result, which becomes an artifact."""
        self._results += 1
        fields: dict[str, Any] = {"channel": "tool_result"}
        artifact_id = self._artifact_id(f"tool-result-{self._results}", fields, choice)
        return ArtifactUpdate(_new_artifact(artifact_id, result.name, _a2a_parts([result]), fields))

    def ending(self, calls: Sequence[ContentPartToolCall], *, usage: Usage | None = None) -> StatusUpdate:
        """Return the final status of a turn that ends with this response.

        Args:
            calls: The calls that the caller must run.
            usage: The token counts of the complete turn; None for those of the response.
        """
        state, message = TaskState.COMPLETED, None
        first = self.accumulator.first
        reason = first.finish_reason if first is not None else None
        error = self.accumulator.reported_error
        if error is not None:
            state, message = TaskState.FAILED, agent_message(str(error))
        elif reason in (FinishReason.CONTENT_FILTER, FinishReason.RECITATION):
            state, message = TaskState.FAILED, agent_message(f"the provider stopped the response: {reason}")
        elif reason is FinishReason.LENGTH and self._has_truncated_call():
            state = TaskState.FAILED
            message = agent_message("the response reached its length limit in the middle of a tool call")
        elif calls:
            state = TaskState.INPUT_REQUIRED
            message = calls_message(calls)
        return StatusUpdate(state, message, {EXTENSION_URI: self.response_metadata(usage)})

    def _open_calls(self) -> list[ContentPartToolCall]:
        choices = self.accumulator.choices.values()
        return [call for assembly in choices for call in assembly.tool_calls if call.kind != "server"]

    def _merged(self, changes: list[Change]) -> list[Change]:
        """Merge adjacent changes of the same channel and choice, except complete parts."""
        merged: list[Change] = []
        for (channel, choice, call, is_complete), run in groupby(changes, _place_of):
            if is_complete:
                merged += run
                continue
            texts = [change.text for change in run]
            text = "".join(texts)
            texts_to_send = (text,) if len(text) <= self._max_text else _joined(texts, self._max_event)
            merged += [Change(channel, choice, fragment, call) for fragment in texts_to_send]
        return merged

    @cached_property
    def _used_ids(self) -> Container[str]:
        return self._read_used_ids()

    def _arguments(self, change: Change) -> list[Update]:
        known = (change.choice, change.call) in self._calls
        call = self._call_artifact(change.choice, change.call)
        text = call.complete_text(change.text)
        if known:
            return [TextDelta(call.artifact_id, text)] if text else []
        started = self.accumulator.choices[change.choice].started_call(change.call)
        parts = (Part(text=text),)
        if started is not None and started.kind == "server":
            call.add_metadata({"kind": "server"})  # the provider runs the tool
        if started is None or started.final_id in self._used_ids:
            return [ArtifactUpdate(call.artifact(parts, started.name if started else ""), last=False)]
        return [ArtifactUpdate(call.artifact(parts, started.name, started.final_id), last=False)]

    def _call_artifact(self, choice: int, position: int) -> "_CallArtifact":
        call = self._calls.get((choice, position))
        if call is None:
            fields: dict[str, Any] = {"channel": str(_TOOL_CALL), **self._writer()}
            artifact_id = self._artifact_id(f"tool-call-{position + 1}", fields, choice)
            call = self._calls[choice, position] = _CallArtifact(artifact_id, fields)
        return call

    def _complete_part(self, change: Change) -> list[Update]:
        """Return the updates for a complete part, or for the restart of the response."""
        if change.restarts:
            for call in self._calls.values():
                call.add_metadata(self._writer())
            return [
                *(
                    self._begin_text(channel, choice, "")
                    for channel, choice in list(self._artifact_ids)
                    if choice == change.choice
                ),
                *(
                    ArtifactUpdate(call.artifact((Part(text=""),)), last=False)
                    for (choice, _), call in self._calls.items()
                    if choice == change.choice
                ),
            ]
        if change.part is None or isinstance(change.part, ContentPartToolResult):
            return []  # results become artifacts together with their calls
        self._complete_parts += 1
        channel = "file" if isinstance(change.part, ContentPartFile) else "data"
        name = change.part.filename if isinstance(change.part, ContentPartFile) else ""
        fields: dict[str, Any] = {"channel": channel, **self._writer()}
        artifact_id = self._artifact_id(f"{channel}-{self._complete_parts}", fields, change.choice)
        artifact = _new_artifact(artifact_id, name or channel.capitalize(), _a2a_parts([change.part]), fields)
        return [ArtifactUpdate(artifact, last=True)]

    def output(self, value: object) -> Update:
        """Return the update for structured output, which becomes an artifact with a data part."""
        self._complete_parts += 1
        fields: dict[str, Any] = {"channel": "output"}
        artifact_id = self._artifact_id("output", fields, 0)
        return ArtifactUpdate(_new_artifact(artifact_id, "Output", (Part(data=value),), fields))

    def _begin_text(self, channel: Channel, choice: int, text: str) -> Update:
        fields: dict[str, Any] = {"channel": str(channel), **self._writer()}
        if self.accumulator.attempts:
            fields["attempt"] = len(self.accumulator.attempts) + 1
        artifact_id = self._artifact_id(str(channel), fields, choice)
        self._artifact_ids[channel, choice] = artifact_id
        artifact = _new_artifact(artifact_id, _NAMES[channel], (Part(text=text),), fields)
        return ArtifactUpdate(artifact, last=False)

    def _artifact_id(self, artifact_id: str, fields: dict[str, Any], choice: int) -> str:
        """Return an artifact id that is unique in the task.

        The numbers of the choice, the round and the turn are added to the id and to ``fields``, except those of the first ones.
        """
        for name, number, first in (
            ("choice", choice, 0),
            ("round", self._round, 1),
            ("turn", self._turn, 1),
        ):
            if number != first:
                artifact_id += f"-{name}-{number}"
                fields[name] = number
        return artifact_id

    def _writer(self) -> dict[str, str]:
        """Return the model for the metadata. After a crash, only the same model may continue the text of the artifact."""
        return {"model": self.model} if self.model else {}

    def _has_truncated_call(self) -> bool:
        return any(
            call.arguments_error is not None
            for choice in self.accumulator.choices.values()
            for call in choice.tool_calls
        )

    def response_metadata(self, usage: Usage | None = None) -> dict[str, Any]:
        """Return the usage, the finish reason and the metadata of the response, for the metadata of the final status.

        Args:
            usage: The token counts of the complete turn; None for those of the response.
        """
        accumulator = self.accumulator
        fields: dict[str, Any] = {}
        finishes = {
            str(index): str(choice.finish_reason)
            for index, choice in sorted(accumulator.choices.items())
            if choice.finish_reason is not None
        }
        if accumulator.first is not None and accumulator.first.finish_reason is not None:
            fields["finishReason"] = str(accumulator.first.finish_reason)
        if len(finishes) > 1:
            fields["finishReasons"] = finishes
        usage = usage or accumulator.total_usage
        if usage is not None:
            fields["usage"] = {
                "inputTokens": usage.input_tokens,
                "outputTokens": usage.output_tokens,
                "totalTokens": usage.total_tokens,
                "raw": provider_text(plain_json(usage.raw)),
            }
        if accumulator.metadata:
            fields["response"] = provider_json(plain_json(accumulator.metadata))
        if accumulator.first is not None and accumulator.first.extra:
            fields["extra"] = provider_json(plain_json(accumulator.first.extra))
        error = accumulator.reported_error
        if error is not None:
            members = (
                ("type", str(error.fault)),
                ("status", error.status),
                ("code", error.code),
                ("retryAfter", error.retry_after),
            )
            fields["error"] = plain_json({name: value for name, value in members if value is not None})
        return fields


def calls_message(calls: Sequence[ContentPartToolCall]) -> Message:
    """Return the message with which a task asks the caller to run tools."""
    return Message(message_id=str(uuid4()), role=Role.AGENT, parts=_a2a_parts(calls))


class _CallArtifact:
    __slots__ = ("_metadata", "_surrogate", "artifact_id")

    def __init__(self, artifact_id: str, fields: dict[str, Any]) -> None:
        self.artifact_id = artifact_id
        self._metadata = fields
        self._surrogate = ""  # the first half of a surrogate pair, until the second half arrives

    def artifact(self, parts: tuple[Part, ...], name: str = "", call_id: str = "") -> Artifact:
        """Return the artifact with these parts instead of its earlier parts.

        Args:
            parts: All parts of the artifact.
            name: The name of the tool; empty if unknown.
            call_id: The id of the call; empty while the id may change.
        """
        fields = {**self._metadata, "callId": call_id} if call_id else self._metadata
        return _new_artifact(self.artifact_id, name or "Tool call", parts, fields)

    def add_metadata(self, fields: dict[str, str]) -> None:
        self._metadata = {**self._metadata, **fields}

    def complete_text(self, fragment: str) -> str:
        """Return a fragment of the arguments that ends with a complete character. Half of a surrogate pair is buffered."""
        if fragment.isascii() and not self._surrogate:
            return fragment
        text, self._surrogate = self._surrogate + fragment, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._surrogate = text[:-1], text[-1]
        return join_surrogates(text)


def _new_artifact(artifact_id: str, name: str, parts: tuple[Part, ...], fields: dict[str, Any]) -> Artifact:
    return Artifact(
        artifact_id=artifact_id,
        name=name,
        parts=parts,
        metadata={EXTENSION_URI: fields},
        extensions=(EXTENSION_URI,),
    )


def _a2a_parts(content: Sequence[ContentPart]) -> tuple[Part, ...]:
    if not content:
        return ()
    return to_a2a_message(CommonMessage(role=SpeakerRole.MODEL, content=tuple(content)), message_id="-").parts


def _joined(texts: Iterable[str], most: int) -> Iterable[str]:
    """Join texts into as few texts as possible that do not exceed a size. A single text that is too large is not split."""
    fragment: list[str] = []
    size = 0
    for text in texts:
        added = utf8_size(text)
        # A buffered half of a surrogate pair may add bytes to the text.
        if fragment and size + added >= most:
            yield "".join(fragment)
            fragment, size = [], 0
        fragment.append(text)
        size += added
    yield "".join(fragment)


def _place_of(change: Change) -> tuple[Channel, int, int, bool]:
    return change.channel, change.choice, change.call, change.part is not None or change.restarts
