"""Conversion of a recorded provider stream to A2A events, a task and a message. Sans-IO.

``tailrace convert`` uses this module.
"""

from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Part, Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.message_conversion import to_a2a_message
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.task_record import TaskRecord
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
        decoder: The decoder for the format of the provider.
        task_id: The id of the task; empty to create an id.
        context_id: The id of the conversation; empty to create an id.
        think_tags: True to separate reasoning in ``<think>`` tags at the start of the response from its text.
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
        """The error if the decoder could not read any part of the body; otherwise None."""
        error = self.accumulator.error
        if error is not None and error.fault is UpstreamFault.INVALID and not self.accumulator.choices:
            return error
        return None

    def feed(self, data: Any) -> list[Event]:
        """Decode the next bytes of the body (or other input of the decoder). Return the resulting events.

        The data never causes an exception. An event that exceeds the size limit of the decoder ends the response.
        """
        try:
            chunks = self._decoder.feed(data)
        except UpstreamError as error:
            self.accumulator.error = self.accumulator.error or error
            return []
        return self._convert(chunks)

    def close(self) -> list[Event]:
        """End the body. Return the last events, ending with the final status. The data never causes an exception."""
        try:
            events = self._convert(self._decoder.close())
        except UpstreamError as error:
            self.accumulator.error = self.accumulator.error or error
            events = []
        if not self.record.number:
            events += self._begin()
        return events + self._apply(self._translator.close())

    def message(self) -> dict[str, Any]:
        """Return the response as one JSON object ``{"role": "agent", "parts": […], "metadata": {…}}``.

        The metadata contains the usage, the finish reason, the text of a refusal, and the error of an incomplete response.
        """
        parts = [part.to_dict() for part in answer_parts(self.accumulator)]
        fields = self._translator.response_metadata()
        first = self.accumulator.first
        if first is not None and first.refusal:
            fields["refusal"] = first.refusal
        return {"role": "agent", "parts": parts, "metadata": {EXTENSION_URI: fields}}

    def _convert(self, chunks: list[ChunkWrapper[Any]]) -> list[Event]:
        updates = self._translator.feed(chunks)
        begin = self._begin() if updates and not self.record.number else []
        return begin + self._apply(updates)

    def _begin(self) -> list[Event]:
        return [self.record.submitted(), self.record.apply(StatusUpdate(TaskState.WORKING))]

    def _apply(self, updates: list[Update]) -> list[Event]:
        return [self.record.apply(update) for update in updates]


def answer_parts(accumulator: Accumulator) -> list[Part]:
    """Return the first choice of a response as A2A parts: the reasoning, the text, and the other parts in their original order.

    Empty parts are omitted.
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
