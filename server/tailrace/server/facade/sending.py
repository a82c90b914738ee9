"""Sending what a request amounts to, in the place of the store where it belongs."""

from dataclasses import dataclass

from tailrace.server.facade.asked import Asked
from tailrace.server.facade.conversations import Conversations, Placed
from tailrace.server.operations import Caller, EventStream, Operations
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.request_facts import RequestFacts


@dataclass(frozen=True)
class Sent:
    """A message that was taken.

    Attributes:
        stream: The events that answer it.
        call_ids: The ids of all calls that its conversation had before.
    """

    stream: EventStream
    call_ids: frozenset[str]


class Sender:
    """Sends the messages of clients that tell the whole conversation with each request.

    Args:
        operations: What takes them.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._conversations = Conversations(operations)

    async def send(self, asked: Asked, caller: Caller) -> Sent:
        """Send a request's message, or follow the task that has taken it under the caller's name for it.

        Args:
            asked: The request.
            caller: Who asks.

        Raises:
            OpenAIError: As `Conversations.place`.
            A2AError: As `Operations.stream`.
            StoreError: As `Operations.stream`.
        """
        if caller.send_key:
            # Before it is looked for its place: what it told is said by now.
            known = await self._operations.sent_before(caller)
            if known is not None:
                return Sent(known, asked.call_ids)
        passed: set[str] = set()
        while True:
            placed = await self._conversations.place(asked, caller, passed)
            try:
                return Sent(await self._stream(asked, placed, caller), placed.call_ids | asked.call_ids)
            except A2AError:
                message = placed.message
                if not message.task_id or message.task_id in passed:
                    raise
                if await self._conversations.still_waits(message, caller):
                    raise
                # Somebody else was first to answer that task: there may be another, and else a conversation begins.
                passed.add(message.task_id)

    async def _stream(self, asked: Asked, placed: Placed, caller: Caller) -> EventStream:
        facts = asked.facts
        if placed.message.task_id and not facts.model_fields_set:
            # Else those of the task's message before this one would count.
            facts = RequestFacts(instructions=None)
        send = SendMessageRequest(
            message=placed.message, metadata=facts.to_metadata() if facts.model_fields_set else {}
        )
        return await self._operations.stream(
            Operation.SEND_STREAMING_MESSAGE, send, caller, preceding=placed.preceding
        )
