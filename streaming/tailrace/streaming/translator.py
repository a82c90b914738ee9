"""From a model's response to a task's updates: which artifact each piece of an answer belongs to, and how it ends.

One artifact a channel and choice. Its first event creates it (``append`` false), the following ones append text,
and the last says ``lastChunk``, once. What A2A has no place for (reasoning, refusals, tool calls, usage, finish
reason) is carried under the extension `tailrace.streaming.extension.EXTENSION_URI`; a client that does not know it
sees further artifacts and metadata, and loses nothing of the answer.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversation import to_a2a_message
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import agent_message
from tailrace.streaming.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import Change, Channel, ChunkWrapper, FinishReason, UpstreamError
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
        think_tags: The model writes its reasoning into the text, in ``<think>`` tags: part the two.

    Attributes:
        accumulator: Everything received so far.
    """

    def __init__(self, *, turn: int = 1, think_tags: bool = False) -> None:
        self.accumulator = Accumulator(think_tags=think_tags)
        self._turn = turn
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
        calls: list[Part] = []
        for choice in self.accumulator.choices:
            parts = self._tool_call_parts(choice)
            if parts:
                artifact = self._artifact(Channel.TOOL_CALL, choice, tuple(parts))
                updates.append(ArtifactUpdate(artifact, last=True))
                calls += parts
        return [*updates, self._final_status(calls)]

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
            artifact_id = self._artifact_ids.get((change.channel, change.choice))
            if artifact_id is not None:
                updates.append(TextDelta(artifact_id, change.text))
            else:
                artifact = self._artifact(change.channel, change.choice, (Part(text=change.text),))
                updates.append(ArtifactUpdate(artifact, last=False))
        return updates

    def _artifact(self, channel: Channel, choice: int, parts: tuple[Part, ...]) -> Artifact:
        artifact_id = str(channel).replace("_", "-")
        facts: dict[str, Any] = {"channel": str(channel)}
        if choice:
            artifact_id += f"-choice-{choice}"
            facts["choice"] = choice
        if self._turn > 1:
            artifact_id += f"-turn-{self._turn}"
            facts["turn"] = self._turn
        self._artifact_ids[channel, choice] = artifact_id
        return Artifact(
            artifact_id=artifact_id,
            name=_NAMES[channel],
            parts=parts,
            metadata={EXTENSION_URI: facts},
            extensions=(EXTENSION_URI,),
        )

    def _tool_call_parts(self, choice: int) -> list[Part]:
        calls = self.accumulator.choices[choice].tool_calls
        if not calls:
            return []
        message = CommonMessage(role=SpeakerRole.MODEL, content=tuple(calls))
        return list(to_a2a_message(message, message_id="-").parts)

    def _final_status(self, calls: list[Part]) -> StatusUpdate:
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
            message = Message(message_id=str(uuid4()), role=Role.AGENT, parts=tuple(calls))
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


def _merged(changes: list[Change]) -> list[Change]:
    """Each run of changes to one channel of one choice as one change."""
    return [
        Change(channel, choice, "".join([change.text for change in run]))
        for (channel, choice), run in groupby(changes, attrgetter("channel", "choice"))
    ]
