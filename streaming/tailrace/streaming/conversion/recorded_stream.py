"""Converts a recorded provider stream to events, task and message. Sans-IO."""

from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.extension import EXTENSION_URI
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Part, Task, TaskStatus
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.conversation import to_a2a_message
from tailrace.streaming.conversion.translator import ResponseTranslator
from tailrace.streaming.task.task import TaskRecord
from tailrace.streaming.task.updates import StatusUpdate, Update
from tailrace.wrappers import (
    ChunkWrapper,
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole
from tailrace.wrappers.decoding.decoder import ResponseDecoder

_JOINED = (ContentPartReasoning, ContentPartText)


class StreamConversion:
    """Converts the bytes of one response body into the events of one task.

    Args:
        decoder: Decodes the provider's format.
        task_id: The task's id; created when empty.
        context_id: The conversation's id; created when empty.
        think_tags: Split reasoning at the start of the response, in ``<think>`` tags, from its text.

    Attributes:
        record: The task.
        accumulator: The response.
    """

    def __init__(
        self,
        decoder: ResponseDecoder[Any],
        *,
        task_id: str = "",
        context_id: str = "",
        think_tags: bool = True,
    ) -> None:
        self._decoder = decoder
        self._translator = ResponseTranslator(think_tags=think_tags)
        self.accumulator = self._translator.accumulator
        self.record = TaskRecord(
            Task(
                id=task_id or str(uuid4()),
                context_id=context_id or str(uuid4()),
                status=TaskStatus(state=TaskState.SUBMITTED),
            )
        )

    @property
    def unreadable(self) -> UpstreamError | None:
        """The reason why the body is not a stream of this provider; None if any of it was read."""
        error = self.accumulator.error
        if error is not None and error.fault is UpstreamFault.INVALID and not self.accumulator.choices:
            return error
        return None

    def feed(self, data: Any) -> list[Event]:
        """Feed the next bytes of the body, or other input of the decoder; return the events that they complete.

        Never raises for a provider's data: an event beyond the decoder's bound ends the response.
        """
        try:
            chunks = self._decoder.feed(data)
        except UpstreamError as error:
            self.accumulator.error = self.accumulator.error or error
            return []
        return self._take(chunks)

    def close(self) -> list[Event]:
        """End the body; return the last events, which end the task. Never raises for a provider's data."""
        try:
            events = self._take(self._decoder.close())
        except UpstreamError as error:
            self.accumulator.error = self.accumulator.error or error
            events = []
        if not self.record.number:
            events += self._begin()
        return events + self._apply(self._translator.close())

    def message(self) -> dict[str, Any]:
        """Return the response as one JSON object ``{"role": "agent", "parts": […], "metadata": {…}}``.

        Reasoning and text are one part each, tool calls as well. The metadata has, under the extension's URI, usage,
        finish reason, a refusal's text and, for an incomplete response, the error.
        """
        parts = [part.to_dict() for part in answer_parts(self.accumulator)]
        facts = self._translator.facts()
        first = self.accumulator.first
        if first is not None and first.refusal:
            facts["refusal"] = first.refusal
        return {"role": "agent", "parts": parts, "metadata": {EXTENSION_URI: facts}}

    def _take(self, chunks: list[ChunkWrapper[Any]]) -> list[Event]:
        updates = self._translator.feed(chunks)
        begin = self._begin() if updates and not self.record.number else []
        return begin + self._apply(updates)

    def _begin(self) -> list[Event]:
        return [self.record.submitted(), self.record.apply(StatusUpdate(TaskState.WORKING))]

    def _apply(self, updates: list[Update]) -> list[Event]:
        return [self.record.apply(update) for update in updates]


def answer_parts(accumulator: Accumulator) -> list[Part]:
    """Return the first choice of a response as A2A parts, without empty ones.

    One part with the reasoning, one with the text, then all else in order: tool calls, files, data, and the results of
    tools that the provider ran.
    """
    assembly = accumulator.first
    if assembly is None:
        return []
    content: list[ContentPart] = []
    if assembly.reasoning:
        content.append(ContentPartReasoning(text=assembly.reasoning))
    if assembly.text:
        content.append(ContentPartText(text=assembly.text))
    content += (part for part in assembly.message().content if not isinstance(part, _JOINED))
    if not content:
        return []
    message = CommonMessage(role=SpeakerRole.MODEL, content=tuple(content))
    return list(to_a2a_message(message, message_id="-").parts)
