"""From a model's response to a task's updates: which artifact each piece of an answer belongs to, and how it ends.

One artifact a channel and choice, and one a file. Its first event creates it (``append`` false), the following ones
append text, and the last says ``lastChunk``, once. What A2A has no place for (reasoning, refusals, tool calls, usage, finish
reason) is carried under the extension `tailrace.streaming.extension.EXTENSION_URI`; a client that does not know it
sees further artifacts and metadata, and loses nothing of the answer.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversation import to_a2a_message
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import agent_message
from tailrace.streaming.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
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
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole
from tailrace.wrappers.fields import plain_json

_NAMES = {
    Channel.TEXT: "Answer",
    Channel.REASONING: "Reasoning",
    Channel.REFUSAL: "Refusal",
    Channel.TOOL_CALL: "Tool calls",
}

_TOOL_CALL = Channel.TOOL_CALL  # kept: in Python 3.11 looking up a member costs more than making a struct


class ResponseTranslator:
    """Translates one model response into updates of a task. Sans-IO.

    Args:
        turn: Which response of the task this is; artifact ids of later ones differ from earlier ones.
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text.

    Attributes:
        accumulator: Everything received so far.
    """

    def __init__(self, *, turn: int = 1, think_tags: bool = True) -> None:
        self.accumulator = Accumulator(think_tags=think_tags)
        self._turn = turn
        self._whole_parts = 0
        self._artifact_ids: dict[tuple[Channel, int], str] = {}

    def feed(self, chunks: Iterable[ChunkWrapper[Any]]) -> list[Update]:
        """Fold chunks that arrived together; return the updates they amount to.

        Consecutive text of one artifact becomes one update: merging happens here, before anything is numbered.
        """
        add = self.accumulator.add
        changes: list[Change] = []
        for chunk in chunks:
            changes += add(chunk)
        return self._updates(changes)

    def close(self, error: UpstreamError | None = None) -> list[Update]:
        """The response is over: complete what is open and say how it ended.

        Args:
            error: What ended it, where the transport knows.

        Returns:
            The last updates; the very last is a `StatusUpdate`: COMPLETED; INPUT_REQUIRED when the answer
            asks for tools that the caller is to run; or FAILED, with the reason, when it is not whole.
        """
        updates = self._updates(self.accumulator.close(error))
        updates += [
            TextDelta(artifact_id, "", last=True)
            for (channel, _), artifact_id in self._artifact_ids.items()
            if channel is not Channel.TOOL_CALL
        ]
        open_calls: list[ContentPartToolCall] = []
        for choice in self.accumulator.choices:
            content = self._tool_parts(choice)
            if content:
                artifact = self._artifact(Channel.TOOL_CALL, choice, _a2a_parts(content))
                updates.append(ArtifactUpdate(artifact, last=True))
            open_calls += [
                part for part in content if isinstance(part, ContentPartToolCall) and part.kind != "server"
            ]
        return [*updates, self._final_status(_a2a_parts(open_calls))]

    def message(self) -> Message | None:
        """The answer of the first choice as one A2A message, for the conversation; None when it is empty."""
        message = self.accumulator.message()
        if not message.content:
            return None
        return to_a2a_message(message, message_id=str(uuid4()))

    def _updates(self, changes: list[Change]) -> list[Update]:
        updates: list[Update] = []
        for change in changes if len(changes) == 1 else _merged(changes):
            if change.channel is _TOOL_CALL:
                continue  # calls are shown whole, when their arguments are
            if change.part is not None or change.restarts:
                updates += self._whole(change)
                continue
            artifact_id = self._artifact_ids.get((change.channel, change.choice))
            if artifact_id is not None:
                updates.append(TextDelta(artifact_id, change.text))
            else:
                artifact = self._artifact(change.channel, change.choice, (Part(text=change.text),))
                updates.append(ArtifactUpdate(artifact, last=False))
        return updates

    def _whole(self, change: Change) -> list[Update]:
        """The updates for a part that came whole, or for an answer that began anew."""
        if change.restarts:
            return [
                ArtifactUpdate(self._artifact(channel, choice, (Part(text=""),)), last=False)
                for channel, choice in list(self._artifact_ids)
                if choice == change.choice
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

    def _artifact(self, channel: Channel, choice: int, parts: tuple[Part, ...]) -> Artifact:
        facts: dict[str, Any] = {"channel": str(channel)}
        artifact_id = self._place(str(channel).replace("_", "-"), facts, choice)
        self._artifact_ids[channel, choice] = artifact_id
        return _new_artifact(artifact_id, _NAMES[channel], parts, facts)

    def _place(self, artifact_id: str, facts: dict[str, Any], choice: int) -> str:
        """The id that is unique over choices and turns; what it was made of is added to the facts."""
        if choice:
            artifact_id += f"-choice-{choice}"
            facts["choice"] = choice
        if self._turn > 1:
            artifact_id += f"-turn-{self._turn}"
            facts["turn"] = self._turn
        return artifact_id

    def _tool_parts(self, choice: int) -> list[ContentPart]:
        """The calls of a choice, and what the tools that the provider ran have answered."""
        assembly = self.accumulator.choices[choice]
        calls: list[ContentPart] = list(assembly.tool_calls)
        return calls + list(assembly.message().tool_results) if calls else []

    def _final_status(self, calls: tuple[Part, ...]) -> StatusUpdate:
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
            message = Message(message_id=str(uuid4()), role=Role.AGENT, parts=calls)
        return StatusUpdate(state, message, {EXTENSION_URI: self.facts()}, said=self.message())

    def _holds_a_broken_call(self) -> bool:
        return any(
            call.arguments_error is not None
            for choice in self.accumulator.choices.values()
            for call in choice.tool_calls
        )

    def facts(self) -> dict[str, Any]:
        """Usage, finish reason and the response's own facts, for the metadata of the final status.

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
        if accumulator.usage is not None:
            usage = accumulator.usage
            facts["usage"] = {
                "inputTokens": usage.input_tokens,
                "outputTokens": usage.output_tokens,
                "totalTokens": usage.total_tokens,
                "raw": dict(usage.raw),
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
    message = CommonMessage(role=SpeakerRole.MODEL, content=tuple(content))
    return to_a2a_message(message, message_id="-").parts


def _merged(changes: list[Change]) -> list[Change]:
    """Each run of changes to one channel of one choice as one change; what came whole stays as it is."""
    merged: list[Change] = []
    for (channel, choice, whole), run in groupby(changes, _place_of):
        if whole:
            merged += run
        else:
            merged.append(Change(channel, choice, "".join([change.text for change in run])))
    return merged


def _place_of(change: Change) -> tuple[Channel, int, bool]:
    return change.channel, change.choice, change.part is not None or change.restarts
