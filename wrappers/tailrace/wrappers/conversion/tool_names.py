"""Replacement of tool names that a provider rejects. The original names are restored in responses.

A provider may reject names such as ``weather.get``, or names with 80 characters. A model client replaces such names everywhere in
a request.

A replacement depends only on the original name. It ends with digits of the name's hash, so that different names have different
replacements.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, cast

import msgspec

from tailrace.wrappers.chunks import ChunkWrapper, FinishMessage, ReadWrapper, ToolCallDelta, Usage
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
)

NAMELESS = "unknown"
"""Replacement for an empty tool name."""

_DIGITS = 8

# Members that contain tool names, at the top level and in nested objects.
_MEMBERS = frozenset({"function_call", "functions", "toolConfig", "tool_choice", "tool_config", "tools"})
_NESTED = frozenset(
    {
        "allowed_tools",
        "custom",
        "function",
        "functionCallingConfig",
        "functionDeclarations",
        "function_calling_config",
        "function_declarations",
        "tool",
        "toolChoice",
        "toolSpec",
        "tools",
    }
)
_LISTS = frozenset({"allowedFunctionNames", "allowed_function_names"})


@dataclass(frozen=True)
class NameRule:
    """Rule for valid tool names.

    Attributes:
        refused: Regular expression of an invalid character.
        length: Maximum number of characters of a name.
        letter_first: True if a name must begin with a letter or an underscore.
    """

    refused: re.Pattern[str]
    length: int = 64
    letter_first: bool = False

    def fits(self, name: str) -> bool:
        """Return True if the rule accepts a name."""
        return (
            0 < len(name) <= self.length
            and not self.refused.search(name)
            and not (self.letter_first and name[0] in "0123456789.-")
        )

    def valid_name(self, name: str) -> str:
        """Return the name if it is valid; otherwise return a valid replacement."""
        if not name or self.fits(name):
            return name or NAMELESS
        valid = self.refused.sub("_", name[: self.length])
        if self.letter_first and valid[0] in "0123456789.-":
            valid = f"_{valid}"
        digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
        return f"{valid[: self.length - _DIGITS - 1]}_{digits}"


LETTERS_DIGITS_DASHES = NameRule(re.compile(r"[^a-zA-Z0-9_-]"))
"""The rule of most providers: at most 64 letters, digits, underscores and dashes."""


class ToolNames:
    """Replaces tool names in one request, and restores the original names in its response.

    Args:
        rule: The rule of the provider; None to replace only empty names.
    """

    def __init__(self, rule: NameRule | None) -> None:
        self._rule = rule
        self._originals: dict[str, str] = {}  # original names by replacement
        self._pending: dict[
            int, _PendingCall
        ] = {}  # buffered calls, whose names may be incomplete, by choice
        self._ids: dict[tuple[int, int], str] = {}  # the id of the latest call, by choice and index

    def request_name(self, name: str) -> str:
        """Return the name for a tool in the request."""
        valid = self._rule.valid_name(name) if self._rule is not None else name or NAMELESS
        if valid != name and name:
            self._originals[valid] = name
        return valid

    @property
    def has_changes(self) -> bool:
        """True if a name must be restored in the response. Replacements of empty names do not count."""
        return bool(self._originals)

    def replace_in_history(self, history: History) -> History:
        """Replace invalid names of client tools in a history. Return the same object if all names are valid."""
        conversation = tuple(self._in_message(message) for message in history.conversation)
        if all(new is old for new, old in zip(conversation, history.conversation, strict=True)):
            return history
        return history.model_copy(update={"conversation": conversation})

    def replace_in_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Replace invalid tool names in the members of a request to any provider."""
        return {
            member: self._in_tools(value) if member in _MEMBERS else value
            for member, value in parameters.items()
        }

    def restore_names(self, chunks: Sequence[ChunkWrapper[Any]]) -> Sequence[ChunkWrapper[Any]]:
        """Restore the original tool names in the next chunks of the response.

        A call is buffered while its name may be the incomplete beginning of a replacement. The name is complete when arguments of
        the call, another call, text of the choice, or the end of the response arrive. If the stream is interrupted, `close`
        returns the buffered fragments.
        """
        if not self._originals:
            return chunks
        restored: list[ChunkWrapper[Any]] = []
        for chunk in chunks:
            if chunk.plain and not self._pending:
                restored.append(chunk)
            else:
                restored += self._restored(chunk)
        return restored

    def close(self) -> list[ChunkWrapper[Any]]:
        """End the response. Return chunks with the buffered calls."""
        return [chunk for choice in list(self._pending) for chunk in self._release_chunk(choice)]

    def _in_message(self, message: Message) -> Message:
        server_call_ids = {call.id for call in message.tool_calls if call.kind == "server"}
        content: list[ContentPart] = []
        for part in message.content:
            if (
                isinstance(part, ContentPartToolCall | ContentPartToolResult)
                and part.id not in server_call_ids
            ):
                # The id of a result without a name determines the call.
                has_no_name = isinstance(part, ContentPartToolResult) and not part.name
                name = part.name if has_no_name else self.request_name(part.name)
                content.append(part if name == part.name else part.model_copy(update={"name": name}))
            else:
                content.append(part)
        if all(new is old for new, old in zip(content, message.content, strict=True)):
            return message
        return message.model_copy(update={"content": tuple(content)})

    def _in_tools(self, value: object) -> Any:
        if isinstance(value, list | tuple):
            return [self._in_tools(item) for item in cast("Sequence[object]", value)]
        if not isinstance(value, Mapping):
            return value
        renamed: dict[str, Any] = {}
        for key, member in cast("Mapping[str, object]", value).items():
            if key == "name" and isinstance(member, str):
                renamed[key] = self.request_name(member)
            elif key in _LISTS and isinstance(member, list | tuple):
                renamed[key] = [self.request_name(str(name)) for name in cast("Sequence[object]", member)]
            else:
                renamed[key] = self._in_tools(member) if key in _NESTED else member
        return renamed

    def _restored(self, chunk: ChunkWrapper[Any]) -> list[ChunkWrapper[Any]]:
        """Return a chunk with the original names, after chunks with buffered calls."""
        details, choice = chunk.details, chunk.choice
        before: list[ChunkWrapper[Any]] = []
        if details is not None and details.restarts:
            self._pending.pop(choice, None)
            self._ids = {key: identifier for key, identifier in self._ids.items() if key[0] != choice}
        if self._pending:
            if details is not None and details.error is not None:
                before = self.close()
            elif _has_content(chunk):
                before = self._release_chunk(choice)
        calls = chunk.get_tool_calls()
        restored = [each for call in calls for each in self._restored_call(call, chunk)]
        if chunk.get_finish_message() is not None or (details is not None and details.error is not None):
            restored += self._release(choice)
        if len(restored) == len(calls) and all(map(is_, restored, calls)):
            return [*before, chunk]
        return [
            *before,
            _RenamedChunk(chunk.raw, choice, details, original=chunk, calls=restored),
        ]

    def _restored_call(self, call: ToolCallDelta, chunk: ChunkWrapper[Any]) -> list[ToolCallDelta]:
        pending = self._pending.get(chunk.choice)
        before: list[ToolCallDelta] = []
        is_another = self._is_another(call, chunk.choice)
        if pending is not None and (is_another or not pending.continues_with(call)):
            before, pending = self._release(chunk.choice), None
        name = call.name
        if pending is not None:
            name = name if name.startswith(pending.name) else pending.name + name
        if name in self._originals:
            name = self._originals[name]
        elif name and not call.arguments and any(each.startswith(name) for each in self._originals):
            pending = self._pending.setdefault(chunk.choice, _PendingCall(chunk.raw))
            pending.name = name
            pending.fragments.append(call)
            return before
        if pending is None:
            return [*before, call if name == call.name else msgspec.structs.replace(call, name=name)]
        pending.name = name
        return [*self._release(chunk.choice), msgspec.structs.replace(call, name="")]

    def _is_another(self, call: ToolCallDelta, choice: int) -> bool:
        """Return True if a fragment starts a new call with the same index. The rule must be the same as in `MessageAssembly`."""
        if call.index is None or not call.id:
            return False
        key = choice, call.index
        previous = self._ids.get(key)
        another = bool(previous and call.name and call.id != previous)
        if another or not previous:
            self._ids[key] = call.id
        return another

    def _release(self, choice: int) -> list[ToolCallDelta]:
        """Remove the buffered call. Return its fragments, of which only the first has a name."""
        pending = self._pending.pop(choice, None)
        if pending is None:
            return []
        first, *further = pending.fragments
        released = msgspec.structs.replace(first, name=pending.name)
        return [released, *(msgspec.structs.replace(other, name="") for other in further)]

    def _release_chunk(self, choice: int) -> list[ChunkWrapper[Any]]:
        """Remove the buffered call. Return it as a separate chunk; empty if no call is buffered."""
        pending = self._pending.get(choice)
        if pending is None:
            return []
        return [ReadWrapper[Any](pending.raw, choice, calls=tuple(self._release(choice)))]


class _PendingCall:
    """A buffered call, of which at most the name has arrived.

    Attributes:
        raw: The provider's object that contained the first fragment.
    """

    __slots__ = ("fragments", "name", "raw")

    def __init__(self, raw: object) -> None:
        self.raw = raw
        self.name = ""
        self.fragments: list[ToolCallDelta] = []

    def continues_with(self, call: ToolCallDelta) -> bool:
        """Return True if a fragment belongs to this call. Use `_is_another` first to detect a new call with the same index."""
        first = self.fragments[0]
        if call.index is not None or first.index is not None:
            return call.index == first.index
        return call.id == first.id if call.id else not call.name


def _has_content(chunk: ChunkWrapper[Any]) -> bool:
    """Return True if a chunk has content that comes before its tool calls."""
    details = chunk.details
    return bool(
        chunk.get_text()
        or chunk.get_reasoning()
        or (details is not None and (details.refusal or details.block or details.parts))
    )


class _RenamedChunk(ChunkWrapper[Any], gc=False):
    original: Any = None
    calls: list[ToolCallDelta] = msgspec.field(default_factory=list[ToolCallDelta])

    def get_text(self) -> str:
        return self.original.get_text()

    def get_reasoning(self) -> str:
        return self.original.get_reasoning()

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        return self.original.reasoning_origin

    def get_tool_calls(self) -> list[ToolCallDelta]:
        return self.calls

    def get_finish_message(self) -> FinishMessage | None:
        return self.original.get_finish_message()

    def get_usage(self) -> Usage | None:
        return self.original.get_usage()
