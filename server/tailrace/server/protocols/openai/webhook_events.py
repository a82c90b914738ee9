"""Notifications about ended background responses in the format of OpenAI's webhooks (``response.completed``, …)."""

from tailrace.server.protocols.conversation_lookup import response_id
from tailrace.server.protocols.encoder import encode_json
from tailrace.server.protocols.openai.responses_encoder import NO_EVENTS, ResponsesEncoder
from tailrace.server.protocols.openai.stored_request import read_stored_request
from tailrace.server.protocols.openai.stored_response_events import StoredTurn, turn_cost
from tailrace.server.protocols.turn_events import callers_messages, last_turn
from tailrace.server.runtime.webhooks.signatures import Signature, StandardSignature
from tailrace.server.settings import OpenAIWebhookSettings
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded

FORMAT_NAME = "openai"
"""The name of this notification format."""


class ResponseNotifications:
    """Creates notifications about ended responses; see `OperatorForm`."""

    def __init__(self, settings: OpenAIWebhookSettings) -> None:
        self.url = settings.url
        self.sign: Signature = StandardSignature(settings.secrets)

    async def write(self, task: Task, message_id: str) -> tuple[str, bytes] | None:
        """Return the id and the body of the notification about the response to a message.

        Return None if the response has not ended, or if the message did not request a response of this API.
        """
        messages = [message for message in task.history if is_callers(message)]
        for turn, message in enumerate(messages, 1):
            if message.message_id == message_id:
                return await _notification(task, turn, message)
        return None


async def _notification(task: Task, turn: int, message: Message) -> tuple[str, bytes] | None:
    request = await run_bounded(json_cost(message.metadata), read_stored_request, message.metadata)
    if request is None:
        return None
    state = task.status.state
    if not (state.terminal or state.interrupted or last_turn(task, turn) < callers_messages(task)):
        return None
    stored = StoredTurn(response_id(task.id, turn), task, turn, message, request, turn_has_ended=True)
    encoder = ResponsesEncoder(request, after=NO_EVENTS, live=False)
    await run_bounded(turn_cost(stored), encoder.feed, stored.snapshot())
    name = f"evt_{task.id}_{turn}"
    ended = task.status.timestamp
    body = encode_json(
        {
            "id": name,
            "object": "event",
            "created_at": int(ended.timestamp()) if ended else request.created,
            "type": f"response.{encoder.response['status']}",
            "data": {"id": stored.id},
        }
    )
    return name, body
