"""What of a model's reasoning goes back to it in Chat Completions requests, and under which names.

OpenAI's own models neither give their reasoning here nor take any. Of all the others there are two kinds:

- Most keep it as text, in a field that each names for itself (``reasoning_content``, ``reasoning``). It belongs to the
  turn in which tools ran: DeepSeek and Moonshot refuse a request in which one of that turn's answers lacks it
  (https://api-docs.deepseek.com/guides/thinking_mode), in later turns as well. After a turn without tools it means
  nothing to them, and older servers refused it. So that is when it goes: to every answer of a turn in which the model
  called tools, and else never.
- Some seal it, in objects that are to come back unchanged and in their order: ``reasoning_details`` of OpenRouter and
  those that follow it (https://openrouter.ai/docs/use-cases/reasoning-tokens), ``thinking_blocks`` of LiteLLM's proxy,
  and others. These go with their answer, always.

What a server wants is told by what it sent: the text goes back in the field that it came in (``metadata["openai"]``
of the reasoning part names it), and an answer that has none in a turn in which others have ``reasoning_content`` gets an
empty one. Only a converter that is made for a server that is known to refuse all other names goes by that instead: what
another server's model thought goes under this name then, and what is sealed stays here.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tailrace.wrappers.loose_json import as_mapping, as_mappings, as_text
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
"""Fields of an assistant's message in which servers keep reasoning that they want back as it was."""

_DEMANDED = "reasoning_content"  # the one field that is missed where it is absent


def calls_for_others(message: Message) -> list[ContentPartToolCall]:
    """The calls that somebody else than the provider was to answer."""
    return [call for call in message.tool_calls if call.kind != "server"]


def reasoning_fields(conversation: Sequence[Message], known: str | None = None) -> list[dict[str, Any]]:
    """For each message of a conversation the fields in which its reasoning goes back; empty where none does.

    Args:
        conversation: All of it.
        known: The only field that the server takes, or ``""`` where it takes none; None where what the messages say
            about themselves decides.
    """
    fields: list[dict[str, Any]] = [{} for _ in conversation]
    if known == "":
        return fields
    for turn in _turns(conversation):
        answers = [position for position in turn if conversation[position].role is Role.MODEL]
        if known is None:
            for position in answers:
                fields[position] = _sealed(conversation[position])
        if not any(calls_for_others(conversation[position]) for position in answers):
            continue
        texts = {position: _texts(conversation[position]) for position in answers}
        if known is not None:
            texts = {
                position: {known: "".join(said.values())} if said else {} for position, said in texts.items()
            }
        demanded = known == _DEMANDED or any(_DEMANDED in said for said in texts.values())
        for position, said in texts.items():
            fields[position] |= said or ({_DEMANDED: ""} if demanded else {})
    return fields


def _turns(conversation: Sequence[Message]) -> Iterable[range]:
    """Positions of what was said from each time that the user spoke up to the next."""
    start = 0
    for position, message in enumerate(conversation):
        if message.role is Role.USER and not _only_results(message) and position > start:
            yield range(start, position)
            start = position
    yield range(start, len(conversation))


def _only_results(message: Message) -> bool:
    return bool(message.content) and all(isinstance(part, ContentPartToolResult) for part in message.content)


def _texts(message: Message) -> dict[str, str]:
    """The text of each field that reasoning of the message came in; what came in none is another format's."""
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
        sealed["thinking_blocks"] = _whole_blocks(sealed["thinking_blocks"])
    return sealed


def _whole_blocks(pieces: object) -> list[dict[str, Any]]:
    """Blocks of thinking, which are streamed in pieces without a number: each ends with the piece that is signed."""
    blocks: list[dict[str, Any]] = []
    for piece in as_mappings(pieces):
        last = blocks[-1] if blocks else {}
        grows = piece.get("type") == last.get("type") == "thinking" and not last.get("signature")
        if not grows:
            blocks.append(dict(piece))
            continue
        thinking = as_text(last.get("thinking")) + as_text(piece.get("thinking"))
        blocks[-1] = {**last, **piece, "thinking": thinking}
    return blocks
