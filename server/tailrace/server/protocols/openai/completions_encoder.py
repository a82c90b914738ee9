"""Encoder of the legacy Completions API: chunks of a stream, or a complete ``text_completion``.

See https://platform.openai.com/docs/api-reference/completions/object. The format has no member for reasoning.
"""

from collections.abc import Iterable
from typing import ClassVar

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.openai.choice_encoder import ChoiceEncoder
from tailrace.streaming.a2a.json_encoding import encode_text

_SHOWN = ("text", "refusal")


class CompletionEncoder(ChoiceEncoder):
    """Encodes a turn as one choice of a text completion."""

    id_prefix: ClassVar[str] = "cmpl"
    kind: ClassVar[str] = "text_completion"
    chunk_kind: ClassVar[str] = "text_completion"

    def encode(self, event: ui_events.UiEvent) -> bytes:
        """Encode a chat event as chunks."""
        if isinstance(event, ui_events.TextAdded):
            return self._chunk(b'"text":' + encode_text(event.text)) if event.channel in _SHOWN else b""
        if isinstance(event, ui_events.TurnEnded):
            return self._end(event, b'"text":""')
        if isinstance(event, ui_events.TurnStarted):
            self._start(event)
        return b""

    def _choice(self, events: Iterable[ui_events.UiEvent]) -> Fields:
        texts = (event for event in events if isinstance(event, ui_events.TextAdded))
        return {"text": "".join(each.text for each in texts if each.channel in _SHOWN)}
