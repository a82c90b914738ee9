"""A recorded provider stream as the events, the task and the message that it amounts to. Sans-IO."""

from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.models import Part, Task, TaskStatus
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversation import to_a2a_message
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event, TaskRecord
from tailrace.streaming.translator import ResponseTranslator
from tailrace.streaming.updates import StatusUpdate, Update
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
from tailrace.wrappers.decoding import ResponseDecoder

_JOINED = (ContentPartReasoning, ContentPartText)


class StreamConversion:
    """Converts the bytes of one response body into the events of one task.

    Args:
        decoder: Decodes the provider's format.
        task_id: The task's id; made here when empty.
        context_id: The conversation's id; made here when empty.
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text.

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
        """Why the body is no stream of this provider's at all; None when something of one was found."""
        error = self.accumulator.error
        if error is not None and error.fault is UpstreamFault.INVALID and not self.accumulator.choices:
            return error
        return None

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes of the body; return the events that they complete.

        Never raises for what a provider sent: an event beyond the decoder's bound ends the response.
        """
        try:
            chunks = self._decoder.feed(data)
        except UpstreamError as error:
            self.accumulator.error = self.accumulator.error or error
            return []
        return self._take(chunks)

    def close(self) -> list[Event]:
        """The body is over: return the last events, which end the task. Never raises for what was sent."""
        try:
            events = self._take(self._decoder.close())
        except UpstreamError as error:
            self.accumulator.error = self.accumulator.error or error
            events = []
        if not self.record.number:
            events += self._begin()
        return events + self._apply(self._translator.close())

    def message(self) -> dict[str, Any]:
        """The answer as one JSON object ``{"role": "agent", "parts": […], "metadata": {…}}``.

        Reasoning, text and tool calls are each in their own part, text joined in one. The metadata holds, under
        the extension's URI, usage, finish reason, a refusal's text and, where the response is not whole, the
        error.
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
    """The first choice's answer as A2A parts; nothing that is empty.

    Reasoning joined in one, text joined in one, then everything else in order: tool calls, files, data, and what
    tools that the provider ran have answered.
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
