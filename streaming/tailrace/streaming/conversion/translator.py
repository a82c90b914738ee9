"""Translates a model's response to a task's updates: the artifact of each delta, and the final status.

One artifact a channel and choice, one a tool call, one a result, and one a file. Its first event creates it (``append``
false), the following ones append text, and the last says ``lastChunk``, once. Content without a place in A2A (reasoning,
refusals, tool calls, usage, finish reason) is carried under the extension
`tailrace.streaming.a2a.extension.EXTENSION_URI`; a client that does not know it sees further artifacts and metadata, and
gets the complete response.
"""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.extension import EXTENSION_URI, usage_json
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.conversation import to_a2a_message
from tailrace.streaming.task.task import agent_message
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
from tailrace.wrappers.decoding.fields import plain_json
from tailrace.wrappers.messages import join_surrogates, utf8_size

_NAMES = {
    Channel.TEXT: "Answer",
    Channel.REASONING: "Reasoning",
    Channel.REFUSAL: "Refusal",
}

_TOOL_CALL = Channel.TOOL_CALL  # kept: in Python 3.11 looking up a member costs more than making a struct


class ResponseTranslator:
    """Translates one model response into updates of a task. Sans-IO.

    Args:
        turn: Which of the task's turns this is; artifact ids of later ones differ from earlier ones.
        round: Which response of the turn this is; likewise.
        accumulator: What folds the response, where somebody else feeds it: hand what it gives to `take`.
        taken_ids: Gives the ids that calls of the conversation have already: a call that comes under one of them will
            get another.
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text.
        max_event_bytes: How large the text of one update may become by merging; 0 for any size.

    Attributes:
        accumulator: Everything received so far.
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
    ) -> None:
        self._taken_ids = taken_ids
        self.accumulator = accumulator or Accumulator(think_tags=think_tags)
        self._turn = turn
        self._round = round
        self._max_event = max_event_bytes
        # Characters of a text that surely fits (see `_pieces`): UTF-8 has four bytes for one at most.
        self._max_text = max_event_bytes // 4 - 1 if max_event_bytes else math.inf
        self._whole_parts = 0
        self._results = 0
        self._artifact_ids: dict[tuple[Channel, int], str] = {}
        self._calls: dict[tuple[int, int], _CallArtifact] = {}  # by choice and position

    def feed(self, chunks: Iterable[ChunkWrapper[Any]]) -> list[Update]:
        """Fold chunks that arrived together; return the updates they amount to."""
        add = self.accumulator.add
        changes: list[Change] = []
        for chunk in chunks:
            changes += add(chunk)
        return self.take(changes)

    def take(self, changes: list[Change]) -> list[Update]:
        """The updates that changes which happened together amount to.

        Consecutive text of one artifact becomes one update, or as few as its size allows, each of whole changes:
        merging happens here, before anything is numbered.
        """
        updates: list[Update] = []
        for change in changes if len(changes) == 1 else self._merged(changes):
            if change.channel is _TOOL_CALL:
                updates += self._arguments(change)
                continue
            if change.part is not None or change.restarts:
                updates += self._whole(change)
                continue
            artifact_id = self._artifact_ids.get((change.channel, change.choice))
            if artifact_id is not None:
                updates.append(TextDelta(artifact_id, change.text))
            else:
                updates.append(self._begin_text(change.channel, change.choice, change.text))
        return updates

    def close(self, error: UpstreamError | None = None) -> list[Update]:
        """End the response: complete open artifacts, and return the final status.

        Args:
            error: What ended it, where the transport knows.

        Returns:
            The last updates; the very last is a `StatusUpdate`: COMPLETED; INPUT_REQUIRED when the answer
            asks for tools that the caller is to run; or FAILED, with the reason, when it is not whole.
        """
        updates = self.finish(self.accumulator.close(error))
        return [*updates, self.ending(self._open_calls())]

    def finish(
        self, changes: list[Change], calls: Sequence[ContentPartToolCall] | None = None
    ) -> list[Update]:
        """The response is over: complete its artifacts.

        Args:
            changes: What closing the accumulator gave.
            calls: Those of the first choice with the ids that they have in the conversation.
        """
        updates = self.take(changes)
        updates += [TextDelta(artifact_id, "", last=True) for artifact_id in self._artifact_ids.values()]
        counts: dict[int, int] = {}
        for choice, assembly in self.accumulator.choices.items():
            made = assembly.tool_calls
            counts[choice] = len(made)
            for position, call in enumerate(calls if calls and assembly is self.accumulator.first else made):
                shown = self._call_artifact(choice, position)
                updates.append(
                    ArtifactUpdate(shown.artifact(_a2a_parts([call]), call.name, call.id), last=True)
                )
            if made:
                updates += [self.result(each, choice) for each in assembly.message().tool_results]
        # What a response that was begun anew had called, and did not call again.
        updates += [
            TextDelta(call.artifact_id, "", last=True)
            for (choice, position), call in self._calls.items()
            if position >= counts[choice]
        ]
        return updates

    def result(self, result: ContentPartToolResult, choice: int = 0) -> Update:
        """The update for what a tool has answered: an artifact of its own."""
        self._results += 1
        facts: dict[str, Any] = {"channel": "tool_result"}
        artifact_id = self._place(f"tool-result-{self._results}", facts, choice)
        return ArtifactUpdate(_new_artifact(artifact_id, result.name, _a2a_parts([result]), facts))

    def ending(self, calls: Sequence[ContentPartToolCall], *, usage: Usage | None = None) -> StatusUpdate:
        """Return the final status of a turn that ends with this response.

        Args:
            calls: That the caller is to run.
            usage: Tokens of the whole turn; those of the response when None.
        """
        state, message = TaskState.COMPLETED, None
        first = self.accumulator.first
        reason = first.finish_reason if first is not None else None
        if self.accumulator.error is not None:
            state, message = TaskState.FAILED, agent_message(str(self.accumulator.error))
        elif reason in (FinishReason.CONTENT_FILTER, FinishReason.RECITATION):
            state, message = TaskState.FAILED, agent_message(f"the provider stopped the answer: {reason}")
        elif reason is FinishReason.LENGTH and self._holds_a_broken_call():
            state = TaskState.FAILED
            message = agent_message("the answer reached its length limit in the middle of a tool call")
        elif calls:
            state = TaskState.INPUT_REQUIRED
            message = calls_message(calls)
        return StatusUpdate(state, message, {EXTENSION_URI: self.facts(usage)})

    def _open_calls(self) -> list[ContentPartToolCall]:
        """Return the calls without results, of all choices."""
        choices = self.accumulator.choices.values()
        return [call for assembly in choices for call in assembly.tool_calls if call.kind != "server"]

    def _merged(self, changes: list[Change]) -> list[Change]:
        """Merge adjacent changes of one channel of one choice; complete parts are unchanged."""
        merged: list[Change] = []
        for (channel, choice, call, whole), run in groupby(changes, _place_of):
            if whole:
                merged += run
                continue
            texts = [change.text for change in run]
            text = "".join(texts)
            pieces = (text,) if len(text) <= self._max_text else _pieces(texts, self._max_event)
            merged += [Change(channel, choice, piece, call) for piece in pieces]
        return merged

    @cached_property
    def _taken(self) -> Container[str]:
        return self._taken_ids()

    def _arguments(self, change: Change) -> list[Update]:
        """A piece of a call's arguments, as text; the call as a whole replaces it when the response is over."""
        known = (change.choice, change.call) in self._calls
        call = self._call_artifact(change.choice, change.call)
        text = call.shown(change.text)
        if known:
            return [TextDelta(call.artifact_id, text)] if text else []
        begun = self.accumulator.choices[change.choice].begun_call(change.call)
        parts = (Part(text=text),)
        if begun is None or begun.id in self._taken:
            return [ArtifactUpdate(call.artifact(parts, begun.name if begun else ""), last=False)]
        return [ArtifactUpdate(call.artifact(parts, begun.name, begun.id), last=False)]

    def _call_artifact(self, choice: int, position: int) -> "_CallArtifact":
        call = self._calls.get((choice, position))
        if call is None:
            facts: dict[str, Any] = {"channel": str(_TOOL_CALL)}
            artifact_id = self._place(f"tool-call-{position + 1}", facts, choice)
            call = self._calls[choice, position] = _CallArtifact(artifact_id, facts)
        return call

    def _whole(self, change: Change) -> list[Update]:
        """The updates for a part that came whole, or for an answer that began anew."""
        if change.restarts:
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
            return []  # results are shown with the calls that they answer
        self._whole_parts += 1
        channel = "file" if isinstance(change.part, ContentPartFile) else "data"
        name = change.part.filename if isinstance(change.part, ContentPartFile) else ""
        facts: dict[str, Any] = {"channel": channel}
        artifact_id = self._place(f"{channel}-{self._whole_parts}", facts, change.choice)
        artifact = _new_artifact(artifact_id, name or channel.capitalize(), _a2a_parts([change.part]), facts)
        return [ArtifactUpdate(artifact, last=True)]

    def output(self, value: object) -> Update:
        """The update for an answer that was to be JSON, and is: an artifact with the data."""
        self._whole_parts += 1
        facts: dict[str, Any] = {"channel": "output"}
        artifact_id = self._place("output", facts, 0)
        return ArtifactUpdate(_new_artifact(artifact_id, "Output", (Part(data=value),), facts))

    def _begin_text(self, channel: Channel, choice: int, text: str) -> Update:
        facts: dict[str, Any] = {"channel": str(channel)}
        artifact_id = self._place(str(channel), facts, choice)
        self._artifact_ids[channel, choice] = artifact_id
        artifact = _new_artifact(artifact_id, _NAMES[channel], (Part(text=text),), facts)
        return ArtifactUpdate(artifact, last=False)

    def _place(self, artifact_id: str, facts: dict[str, Any], choice: int) -> str:
        """The id that is unique over choices, rounds and turns; what it was made of is added to the facts."""
        for name, number, first in (
            ("choice", choice, 0),
            ("round", self._round, 1),
            ("turn", self._turn, 1),
        ):
            if number != first:
                artifact_id += f"-{name}-{number}"
                facts[name] = number
        return artifact_id

    def _holds_a_broken_call(self) -> bool:
        return any(
            call.arguments_error is not None
            for choice in self.accumulator.choices.values()
            for call in choice.tool_calls
        )

    def facts(self, usage: Usage | None = None) -> dict[str, Any]:
        """Usage, finish reason and the response's own facts, for the metadata of the final status.

        Args:
            usage: Tokens of the whole turn; those of the response when None.

        JSON for every reader, whatever the provider put into it (see `plain_json`).
        """
        accumulator = self.accumulator
        facts: dict[str, Any] = {}
        finishes = {
            str(index): str(choice.finish_reason)
            for index, choice in sorted(accumulator.choices.items())
            if choice.finish_reason is not None
        }
        if accumulator.first is not None and accumulator.first.finish_reason is not None:
            facts["finishReason"] = str(accumulator.first.finish_reason)
        if len(finishes) > 1:
            facts["finishReasons"] = finishes
        usage = usage or accumulator.usage
        if usage is not None:
            facts["usage"] = {
                "inputTokens": usage.input_tokens,
                "outputTokens": usage.output_tokens,
                "totalTokens": usage.total_tokens,
                "raw": usage_json(usage),
            }
        if accumulator.metadata:
            facts["response"] = accumulator.metadata
        if accumulator.first is not None and accumulator.first.extra:
            facts["extra"] = accumulator.first.extra
        if accumulator.error is not None:
            error = accumulator.error
            facts["error"] = {
                key: value
                for key, value in (
                    ("type", str(error.fault)),
                    ("status", error.status),
                    ("code", error.code),
                    ("retryAfter", error.retry_after),
                )
                if value is not None
            }
        return plain_json(facts)


def calls_message(calls: Sequence[ContentPartToolCall]) -> Message:
    """The message by which a task asks its caller to run tools."""
    return Message(message_id=str(uuid4()), role=Role.AGENT, parts=_a2a_parts(calls))


class _CallArtifact:
    """The artifact of one tool call."""

    __slots__ = ("_facts", "_half", "artifact_id")

    def __init__(self, artifact_id: str, facts: dict[str, Any]) -> None:
        self.artifact_id = artifact_id
        self._facts = facts
        self._half = ""  # of a character, whose other half has yet to come

    def artifact(self, parts: tuple[Part, ...], name: str = "", call_id: str = "") -> Artifact:
        """The artifact with these parts in place of what it held.

        Args:
            parts: All of them.
            name: Of the tool; empty as long as it is not known.
            call_id: Of the call; empty as long as it is not settled.
        """
        facts = {**self._facts, "callId": call_id} if call_id else self._facts
        return _new_artifact(self.artifact_id, name or "Tool call", parts, facts)

    def shown(self, piece: str) -> str:
        """A piece of the arguments as it can be shown: of whole characters."""
        if piece.isascii() and not self._half:
            return piece
        text, self._half = self._half + piece, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return join_surrogates(text)


def _new_artifact(artifact_id: str, name: str, parts: tuple[Part, ...], facts: dict[str, Any]) -> Artifact:
    return Artifact(
        artifact_id=artifact_id,
        name=name,
        parts=parts,
        metadata={EXTENSION_URI: facts},
        extensions=(EXTENSION_URI,),
    )


def _a2a_parts(content: Sequence[ContentPart]) -> tuple[Part, ...]:
    if not content:
        return ()
    # How arguments were written is shown by the text that streams, and stored with the conversation.
    parts = tuple(
        part.model_copy(update={"arguments_json": None}) if isinstance(part, ContentPartToolCall) else part
        for part in content
    )
    return to_a2a_message(CommonMessage(role=SpeakerRole.MODEL, content=parts), message_id="-").parts


def _pieces(texts: Iterable[str], most: int) -> Iterable[str]:
    """Texts joined to as few pieces as fit; one that is too large itself stays alone."""
    piece: list[str] = []
    size = 0
    for text in texts:
        added = utf8_size(text)
        # Less than fits: half of a character that a call's arguments held back adds a byte to the other half.
        if piece and size + added >= most:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(text)
        size += added
    yield "".join(piece)


def _place_of(change: Change) -> tuple[Channel, int, int, bool]:
    return change.channel, change.choice, change.call, change.part is not None or change.restarts
