"""Reasoning in Chat Completions requests: which parts are returned to the server, under which names.

OpenAI's models neither return reasoning in this API nor accept it. Other servers are of two kinds:

- Most return text, in a field of their own (``reasoning_content``, ``reasoning``). It is required in turns with tool
  calls: DeepSeek and Moonshot reject a request if a message of such a turn lacks it
  (https://api-docs.deepseek.com/guides/thinking_mode), also in later turns. After a turn without tools it is ignored,
  and older servers rejected it. Therefore it is sent with every message of a turn with tool calls, and never otherwise.
- Some seal it in objects that must be returned unchanged and in order: ``reasoning_details`` of OpenRouter and
  compatible servers (https://openrouter.ai/docs/use-cases/reasoning-tokens), ``thinking_blocks`` of LiteLLM's proxy,
  and others. These are always sent with their message.

The field is derived from the server's responses: text is returned in the field it came from (``metadata["openai"]`` of
the reasoning part names it), and a message without reasoning in a turn whose other messages have ``reasoning_content``
gets an empty one. A converter created with a fixed reasoning field sends all reasoning text in that field, whichever
server produced it, and omits sealed reasoning.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_text
from tailrace.wrappers.messages import (
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
    Role,
)

SEALED_FIELDS = (
    "reasoning_details",
    "reasoning_encrypted",
    "reasoning_opaque",
    "thinking_blocks",
    "extra_content",
)
"""Fields of an assistant's message with sealed reasoning, which servers expect back unchanged."""

_REQUIRED_FIELD = "reasoning_content"  # servers reject messages without this field


def client_calls(message: Message) -> list[ContentPartToolCall]:
    """Return the calls that the provider did not run itself."""
    return [call for call in message.tool_calls if call.kind != "server"]


def reasoning_fields(conversation: Sequence[Message], only_field: str | None = None) -> list[dict[str, Any]]:
    """Return the reasoning fields to send with each message of a conversation; empty dicts for messages without any.

    Args:
        conversation: The complete conversation.
        only_field: The only field that the server accepts; ``""`` if it accepts none; None to derive the field from
            the messages' metadata.
    """
    fields: list[dict[str, Any]] = [{} for _ in conversation]
    if only_field == "":
        return fields
    for turn in _turns(conversation):
        responses = [position for position in turn if conversation[position].role is Role.MODEL]
        if only_field is None:
            for position in responses:
                fields[position] = _sealed(conversation[position])
        if not any(client_calls(conversation[position]) for position in responses):
            continue
        texts = {position: _texts(conversation[position]) for position in responses}
        if only_field is not None:
            texts = {
                position: {only_field: "".join(by_field.values())} if by_field else {}
                for position, by_field in texts.items()
            }
        required = only_field == _REQUIRED_FIELD or any(
            _REQUIRED_FIELD in by_field for by_field in texts.values()
        )
        for position, by_field in texts.items():
            fields[position] |= by_field or ({_REQUIRED_FIELD: ""} if required else {})
    return fields


def _turns(conversation: Sequence[Message]) -> Iterable[range]:
    """Yield the positions of each turn: a user message up to the next one."""
    start = 0
    for position, message in enumerate(conversation):
        if message.role is Role.USER and not _only_results(message) and position > start:
            yield range(start, position)
            start = position
    yield range(start, len(conversation))


def _only_results(message: Message) -> bool:
    return bool(message.content) and all(isinstance(part, ContentPartToolResult) for part in message.content)


def _texts(message: Message) -> dict[str, str]:
    """Return the message's reasoning text by field; reasoning of other formats has no field and is skipped."""
    texts: dict[str, str] = {}
    for part in message.content:
        if isinstance(part, ContentPartReasoning):
            field = as_text((as_mapping(part.metadata.get("openai")) or {}).get("field"))
            if field and part.text:
                texts[field] = texts.get(field, "") + part.text
    return texts


def _sealed(message: Message) -> dict[str, Any]:
    extra = as_mapping(message.metadata.get("extra")) or {}
    sealed = {name: extra[name] for name in SEALED_FIELDS if extra.get(name)}
    if "thinking_blocks" in sealed:
        sealed["thinking_blocks"] = _complete_blocks(sealed["thinking_blocks"])
    return sealed


def _complete_blocks(deltas: object) -> list[dict[str, Any]]:
    """Join streamed thinking blocks, which have no index: a signature ends each block."""
    blocks: list[dict[str, Any]] = []
    for delta in as_mappings(deltas):
        last = blocks[-1] if blocks else {}
        grows = delta.get("type") == last.get("type") == "thinking" and not last.get("signature")
        if not grows:
            blocks.append(dict(delta))
            continue
        thinking = as_text(last.get("thinking")) + as_text(delta.get("thinking"))
        blocks[-1] = {**last, **delta, "thinking": thinking}
    return blocks
