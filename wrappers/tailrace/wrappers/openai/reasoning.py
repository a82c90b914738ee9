"""Selection of the reasoning that a Chat Completions request contains, and of the fields that contain it.

OpenAI's models do not return or accept reasoning in this API. Other servers use one of two forms:

- Most servers return reasoning as text, in the field ``reasoning_content`` or ``reasoning``. DeepSeek and Moonshot reject every
  later request if a message of a turn with tool calls has no reasoning (https://api-docs.deepseek.com/guides/thinking_mode). In
  turns without tool calls, servers ignore reasoning, and older servers rejected it. Reasoning text is therefore sent only in
  turns with tool calls, and there in every message of the model.
- Some servers return reasoning in sealed (encrypted or signed) objects, for example ``reasoning_details`` of OpenRouter and
  compatible servers (https://openrouter.ai/docs/use-cases/reasoning-tokens), and ``thinking_blocks`` of LiteLLM's proxy. Later
  requests must contain these objects unchanged and in the same order.

Reasoning text is sent in the field in which it was received (``metadata["openai"]`` of the reasoning part). If a message of a
turn has the field ``reasoning_content``, the messages of the turn without reasoning get an empty ``reasoning_content``. With
``reasoning_field`` of `OpenAIConverter`, all reasoning text is sent in that field, and sealed objects are not sent.
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
"""Fields of an assistant message that contain sealed reasoning, which later requests must contain unchanged."""

_REQUIRED_FIELD = "reasoning_content"  # some servers reject messages without this field


def client_calls(message: Message) -> list[ContentPartToolCall]:
    """Return the tool calls that the provider does not run itself."""
    return [call for call in message.tool_calls if call.kind != "server"]


def reasoning_fields(conversation: Sequence[Message], only_field: str | None = None) -> list[dict[str, Any]]:
    """Return the reasoning fields of each message of a conversation.

    Args:
        conversation: The complete conversation.
        only_field: The only field that the server accepts; ``""`` if it accepts no reasoning. None to send each text in the field
            in which it was received.
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
    """Yield the index range of each turn: a user message, and the messages after it, up to the next user message."""
    start = 0
    for position, message in enumerate(conversation):
        if message.role is Role.USER and position > start and not _only_results(message):
            yield range(start, position)
            start = position
    yield range(start, len(conversation))


def _only_results(message: Message) -> bool:
    return bool(message.content) and all(isinstance(part, ContentPartToolResult) for part in message.content)


def _texts(message: Message) -> dict[str, str]:
    """Return the reasoning text by field. Reasoning of other APIs has no field and is omitted."""
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
    """Join the fragments of streamed thinking blocks. Blocks have no index: a block ends with its signature."""
    blocks: list[dict[str, Any]] = []
    for delta in as_mappings(deltas):
        last = blocks[-1] if blocks else {}
        extends_last = delta.get("type") == last.get("type") == "thinking" and not last.get("signature")
        if not extends_last:
            blocks.append(dict(delta))
            continue
        thinking = as_text(last.get("thinking")) + as_text(delta.get("thinking"))
        blocks[-1] = {**last, **delta, "thinking": thinking}
    return blocks
