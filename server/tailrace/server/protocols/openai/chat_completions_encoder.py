"""Encoder of the Chat Completions API: chunks of a stream, or a complete ``chat.completion``.

See https://platform.openai.com/docs/api-reference/chat/object and …/chat-streaming. The member ``reasoning_content`` contains
reasoning, as in the responses of most OpenAI-compatible servers.
"""

from collections.abc import Iterable
from typing import ClassVar

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai.choice_encoder import ChoiceEncoder
from tailrace.streaming.a2a.json_encoding import encode_text

_MEMBERS = {"text": "content", "reasoning": "reasoning_content", "refusal": "refusal"}
_DELTAS = {channel: b'"delta":{"%b":' % member.encode() for channel, member in _MEMBERS.items()}


class ChatCompletionEncoder(ChoiceEncoder):
    """Encodes a turn as one choice of a chat completion."""

    id_prefix: ClassVar[str] = "chatcmpl"
    kind: ClassVar[str] = "chat.completion"
    chunk_kind: ClassVar[str] = "chat.completion.chunk"

    def __init__(
        self, translator: EventTranslator, request: ChatRequest, previous: ChoiceEncoder | None = None
    ) -> None:
        super().__init__(translator, request, previous)
        self._indexes: dict[str, int] = {}  # by call id

    def encode(self, event: ui_events.UiEvent) -> bytes:
        """Encode a chat event as chunks."""
        if isinstance(event, ui_events.TextAdded):
            return self.choice_prefix + _DELTAS[event.channel] + encode_text(event.text) + b"}" + self._suffix
        if isinstance(event, ui_events.ArgumentsAdded):
            fields = self._indexes[event.id], encode_text(event.text)
            return self._call_chunk(b'{"index":%d,"function":{"arguments":%b}}' % fields)
        if isinstance(event, ui_events.CallStarted):
            index = self._indexes[event.id] = len(self._indexes)
            fields = index, encode_text(event.id), encode_text(event.name)
            return self._call_chunk(
                b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}' % fields
            )
        if isinstance(event, ui_events.TurnEnded):
            return self._end(event, b'"delta":{}')
        if isinstance(event, ui_events.TurnStarted):
            self._start(event)
            return self._chunk(b'"delta":{"role":"assistant","content":""}')
        return b""

    def _choice(self, events: Iterable[ui_events.UiEvent]) -> Fields:
        texts: dict[str, list[str]] = {channel: [] for channel in _MEMBERS}
        calls: dict[str, Fields] = {}
        for event in events:
            match event:
                case ui_events.TextAdded(_, channel, text):
                    texts[channel].append(text)
                case ui_events.CallStarted(call_id, name):
                    function = {"name": name, "arguments": ""}
                    calls[call_id] = {"id": call_id, "type": "function", "function": function}
                case ui_events.ArgumentsAdded(call_id, text):
                    calls[call_id]["function"]["arguments"] += text
                case _:
                    pass
        content, reasoning, refusal = map("".join, texts.values())
        message: Fields = {"role": "assistant", "content": content, "refusal": refusal or None}
        if not content and (calls or refusal):
            message["content"] = None
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = list(calls.values())
        return {"message": message}

    def _call_chunk(self, call: bytes) -> bytes:
        return self._chunk(b'"delta":{"tool_calls":[' + call + b"]}")
