"""Whether a conversation that a client tells is the one that is stored.

Both are brought into one form: who speaks, in turns. What a client never sees counts for nothing: reasoning, tools
that ran on this server, and how an answer was parted into messages. White space does not count in an answer, nor at
the ends of what the caller says: clients trim both.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tailrace.server.facade.asked import joined_content
from tailrace.server.facade.markdown import markdown_of
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.a2a.models import Role as A2ARole
from tailrace.streaming.conversation import is_callers, to_common_message
from tailrace.streaming.extension import extension_facts
from tailrace.streaming.request_facts import without_request_facts
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


@dataclass
class _Side:
    """What one side says before the other speaks again.

    Attributes:
        is_callers: The caller speaks.
        content: What is said, in order.
        refusal: Why the model does not answer.
        words: What the agent said with a status, and may have been shown.
        last: What was said in the last round, where that alone was the answer because it was to be JSON.
    """

    is_callers: bool
    content: list[ContentPart] = field(default_factory=list[ContentPart])
    refusal: str = ""
    words: str = ""
    last: list[ContentPart] | None = None

    @property
    def calls(self) -> list[str]:
        calls = [part for part in self.content if isinstance(part, ContentPartToolCall)]
        said = ([call.id, call.name, _plain(call.arguments), call.arguments_text] for call in calls)
        return sorted(map(_json, said))

    def texts(self) -> set[str]:
        """The texts that a client may have of an answer."""
        plain = [markdown_of(self.content, with_data=with_data) for with_data in (True, False)]
        if self.last is not None:
            plain += [markdown_of(self.last, with_data=with_data) for with_data in (True, False)]
            # Beside calls, what was said may have been shown as reasoning.
            plain += [""] if any(isinstance(part, ContentPartToolCall) for part in self.last) else []
        said = {text + self.refusal for text in plain} | {text + self.words for text in plain}
        return {"".join(text.split()) for text in said}

    def said(self) -> str:
        """What the caller says."""
        text = "".join(part.text for part in self.content if isinstance(part, ContentPartText))
        others = [
            part.model_dump(mode="json", exclude={"metadata"})
            for part in self.content
            if isinstance(part, ContentPartFile | ContentPartData)
        ]
        results = sorted(
            _json([part.id, part.output if not part.is_error else {"error": part.output}])
            for part in self.content
            if isinstance(part, ContentPartToolResult)
        )
        return _json([text.strip(), others, results])

    def __bool__(self) -> bool:
        return self.is_callers or bool(self.calls or any(self.texts()))


def is_same_conversation(
    told: Iterable[Message], stored: Sequence[A2AMessage], words: Mapping[str, str] | None = None
) -> bool:
    """Whether what a client tells was said, and nothing else.

    Args:
        told: What was said before, as the client has it.
        stored: The conversation.
        words: What the agent said with a status, by the id of the stored message that it stands behind.
    """
    theirs = _joined(_told_sides(told, calls_run_here(stored)))
    ours = _joined(_stored_sides(stored, words or {}))
    return len(theirs) == len(ours) and all(map(_agree, theirs, ours))


def _agree(told: _Side, stored: _Side) -> bool:
    if told.is_callers != stored.is_callers:
        return False
    if told.is_callers:
        return told.said() == stored.said()
    return told.calls == stored.calls and bool(told.texts() & stored.texts())


def calls_run_here(stored: Iterable[A2AMessage]) -> frozenset[str]:
    """The ids of the calls of a conversation that the agent or its provider ran: they are nobody's to answer."""
    ran: set[str] = set()
    for message in stored:
        if is_callers(message) or all(part.kind != "data" for part in message.parts):
            continue
        said = to_common_message(message)
        ran |= {result.id for result in said.tool_results}
        ran |= {call.id for call in said.tool_calls if call.kind == "server"}
    return frozenset(ran)


def without_calls(message: Message, call_ids: Collection[str]) -> Message:
    """A message without some calls and their results; itself where it has none of them."""
    content = tuple(
        part
        for part in message.content
        if not (isinstance(part, ContentPartToolCall | ContentPartToolResult) and part.id in call_ids)
    )
    return (
        message if len(content) == len(message.content) else message.model_copy(update={"content": content})
    )


def _told_sides(messages: Iterable[Message], ran_here: Collection[str]) -> Iterable[_Side]:
    # Clients of some protocols are shown what the agent's tools did, and tell it again.
    for message in messages:
        told = without_calls(message, ran_here)
        if message.content and not told.content:
            continue
        refusal = told.metadata.get("refusal")
        yield _Side(
            told.role is not Role.MODEL, list(told.content), refusal if isinstance(refusal, str) else ""
        )


def _stored_sides(stored: Sequence[A2AMessage], words: Mapping[str, str]) -> Iterable[_Side]:
    common = [to_common_message(without_request_facts(message)) for message in stored]
    ran_here = calls_run_here(stored)
    wants_json = False
    for message, said in zip(stored, common, strict=True):
        if is_callers(message):
            wants_json = _wants_json(message)
            yield _Side(True, list(said.content))
        elif message.role is A2ARole.AGENT:
            content = list(without_calls(said, ran_here).content)
            refusal = said.metadata.get("refusal")
            last = content if wants_json else None
            yield _Side(False, content, refusal if isinstance(refusal, str) else "", last=last)
        if message.message_id in words:
            yield _Side(False, words=words[message.message_id])


def _wants_json(message: A2AMessage) -> bool:
    """Whether a caller's message asked for an answer that is JSON."""
    request = extension_facts(message.metadata).get("request")
    return isinstance(request, Mapping) and "output" in request


def _joined(sides: Iterable[_Side]) -> list[_Side]:
    joined: list[_Side] = []
    for side in filter(None, sides):
        if joined and joined[-1].is_callers == side.is_callers:
            last = joined[-1]
            last.content = list(
                joined_content(last.content, side.content)
                if side.is_callers
                else (*last.content, *side.content)
            )
            last.refusal += side.refusal
            last.words += side.words
            last.last = side.last if side.last is not None else last.last
        else:
            joined.append(side)
    return joined


def _plain(value: Any) -> Any:
    """A value with whole numbers as such: a client in JavaScript knows no other."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(each) for each in cast("list[Any]", value)]
    return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
