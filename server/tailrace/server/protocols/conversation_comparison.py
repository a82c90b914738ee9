"""Comparison of a client's copy of a conversation with the stored conversation.

Consecutive messages of the caller or of the agent are joined to a side. Clients do not reliably send back reasoning, calls of the
agent's tools, and the division of a response into messages, so the comparison ignores them. It also ignores white space in a
response and around a caller's message.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.server.protocols.markdown import markdown_of
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.a2a.models import Role as A2ARole
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.agent.caller_options import without_caller_options
from tailrace.streaming.conversion.approval_parts import (
    recorded_decisions,
    recorded_pending,
    without_decisions,
)
from tailrace.streaming.conversion.message_conversion import is_callers, to_common_message
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
    Role,
)
from tailrace.wrappers.conversion.text_joining import join_texts


@dataclass
class _Side:
    """Consecutive messages of the caller or of the agent.

    Attributes:
        refusal: The model's refusal; may be empty.
        status_text: The text of a status, which the client may have received as part of the response; may be empty.
        last: If the caller requested JSON, the parts of the last round, which then are the response; otherwise None.
    """

    is_callers: bool
    content: list[ContentPart] = field(default_factory=list[ContentPart])
    refusal: str = ""
    status_text: str = ""
    last: list[ContentPart] | None = None

    @property
    def calls(self) -> list[tuple[object, ...]]:
        # Clients in JavaScript send 1.0 as 1, so JSON texts are not compared.
        calls = [part for part in self.content if isinstance(part, ContentPartToolCall)]
        calls.sort(key=lambda call: (call.id, call.name))
        return [(call.id, call.name, call.arguments, call.arguments_text) for call in calls]

    def texts(self) -> set[str]:
        """Return the possible texts of this response in the client's copy, without white space."""
        plain = [markdown_of(self.content, with_data=with_data) for with_data in (True, False)]
        if self.last is not None:
            plain += [markdown_of(self.last, with_data=with_data) for with_data in (True, False)]
            # Text before calls may have been sent as reasoning. The text of the response is then empty.
            plain += [""] if any(isinstance(part, ContentPartToolCall) for part in self.last) else []
        texts = {text + end for text in plain for end in (self.refusal, self.status_text)}
        return {"".join(text.split()) for text in texts}

    def message(self) -> str:
        """Return the caller's messages in a normal form, because clients may join or divide texts."""
        texts = [
            part.text for part in self.content if isinstance(part, ContentPartText) and part.text.strip()
        ]
        other_parts = [
            part.model_dump(mode="json", exclude={"metadata"})
            for part in self.content
            if isinstance(part, ContentPartFile | ContentPartData)
        ]
        results = sorted(
            _json([part.id, part.output if not part.is_error else {"error": part.output}])
            for part in self.content
            if isinstance(part, ContentPartToolResult)
        )
        return _json([join_texts(texts).strip(), other_parts, results])

    def __bool__(self) -> bool:
        return self.is_callers or bool(self.calls or any(self.texts()))


def is_same_conversation(
    received: Iterable[Message],
    stored: Sequence[A2AMessage],
    status_texts: Mapping[str, str] | None = None,
    waiting: Collection[str] = (),
) -> bool:
    """Return whether the earlier messages of a request equal the stored conversation.

    Args:
        received: The client's messages.
        stored: The stored conversation.
        status_texts: Status texts by the id of the preceding stored message, or None.
        waiting: The ids of calls that wait for an approval. Clients of some protocols do not receive these calls.
    """
    own = calls_run_here(stored) | frozenset(waiting)
    request_sides = _joined(_request_sides(received, own))
    stored_sides = _joined(_stored_sides(stored, status_texts or {}, own))
    return len(request_sides) == len(stored_sides) and all(map(_are_equal, request_sides, stored_sides))


def _are_equal(received: _Side, stored: _Side) -> bool:
    if received.is_callers != stored.is_callers:
        return False
    if received.is_callers:
        return received.message() == stored.message()
    return received.calls == stored.calls and bool(received.texts() & stored.texts())


def calls_run_here(stored: Iterable[A2AMessage]) -> frozenset[str]:
    """Return the ids of the calls that the agent or its provider ran, or that required an approval."""
    ran: set[str] = set()
    for message in stored:
        ran |= {each.call_id for each in (*recorded_decisions(message), *recorded_pending(message))}
        if is_callers(message) or all(part.kind != "data" for part in message.parts):
            continue
        common = to_common_message(message)
        ran |= {result.id for result in common.tool_results}
        ran |= {call.id for call in common.tool_calls if call.kind == "server"}
    return frozenset(ran)


def without_calls(message: Message, call_ids: Collection[str]) -> Message:
    """Remove calls and their results from a message. If it has none of them, return the same object."""
    content = tuple(
        part
        for part in message.content
        if not (isinstance(part, ContentPartToolCall | ContentPartToolResult) and part.id in call_ids)
    )
    return (
        message if len(content) == len(message.content) else message.model_copy(update={"content": content})
    )


def _request_sides(messages: Iterable[Message], ran_here: Collection[str]) -> Iterable[_Side]:
    # Clients of some protocols receive the calls of the agent's tools and send them back.
    for message in messages:
        remaining = without_calls(message, ran_here)
        if remaining.content or not message.content:
            yield _side_of(remaining)


def _stored_sides(
    stored: Sequence[A2AMessage], status_texts: Mapping[str, str], ran_here: Collection[str]
) -> Iterable[_Side]:
    wants_json = False
    for message in stored:
        rest = without_decisions(message)
        common = to_common_message(without_caller_options(rest)) if rest is not None else None
        if common is None:
            pass  # the message has only decisions
        elif is_callers(message):
            wants_json = _wants_json(message)
            yield _Side(True, list(common.content))
        elif message.role is A2ARole.AGENT:
            side = _side_of(without_calls(common, ran_here))
            side.last = list(side.content) if wants_json else None
            yield side
        if message.message_id in status_texts:
            yield _Side(False, status_text=status_texts[message.message_id])


def _side_of(message: Message) -> _Side:
    refusal = message.metadata.get("refusal")
    is_callers = message.role is not Role.MODEL
    return _Side(is_callers, list(message.content), refusal if isinstance(refusal, str) else "")


def _wants_json(message: A2AMessage) -> bool:
    request = extension_metadata(message.metadata).get("request")
    return isinstance(request, Mapping) and "output" in request


def _joined(sides: Iterable[_Side]) -> list[_Side]:
    joined: list[_Side] = []
    for side in filter(None, sides):
        if joined and joined[-1].is_callers == side.is_callers:
            last = joined[-1]
            last.content.extend(side.content)
            last.refusal += side.refusal
            last.status_text += side.status_text
            last.last = side.last if side.last is not None else last.last
        else:
            joined.append(side)
    return joined


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
