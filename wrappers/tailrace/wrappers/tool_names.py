"""Names of tools that a provider refuses: sent under another name, and called back under their own.

Tools get their names where nobody thinks of one provider's rules (``weather.get``, ``files/read``, 80 characters of an
MCP server's), and every provider has others. A name that does not fit is mended for the request, wherever it stands in
it: among the tools offered, in the choice of one, in calls and in results. What the model calls comes back under the name
that the tool has.

A name is always mended the same way, whatever else the request holds, and no two names alike: what was changed ends with
a few digits made from the whole of it. A name that fits is never changed.
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
"""What a tool without a name is sent as."""

_DIGITS = 8

# The members of a request in which tools are named, and those inside them that lead to names.
_MEMBERS = frozenset({"function_call", "functions", "toolConfig", "tool_choice", "tool_config", "tools"})
_LEADING = frozenset(
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
    """What the name of a tool may be made of.

    Attributes:
        refused: Matches each character that may not stand in it.
        length: How long it may be.
        letter_first: It has to begin with a letter or an underscore.
    """

    refused: re.Pattern[str]
    length: int = 64
    letter_first: bool = False

    def fits(self, name: str) -> bool:
        """Whether the provider takes a name."""
        return (
            0 < len(name) <= self.length
            and not self.refused.search(name)
            and not (self.letter_first and name[0] in "0123456789.-")
        )

    def mend(self, name: str) -> str:
        """The name if it fits, else one that does, made from it."""
        if not name or self.fits(name):
            return name or NAMELESS
        mended = self.refused.sub("_", name)
        if self.letter_first and mended[0] in "0123456789.-":
            mended = f"_{mended}"
        digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
        return f"{mended[: self.length - _DIGITS - 1]}_{digits}"


LETTERS_DIGITS_DASHES = NameRule(re.compile(r"[^a-zA-Z0-9_-]"))
"""Letters, digits, underscores and dashes, 64 at most: what most providers say."""


class ToolNames:
    """The names of one request's tools, as its provider takes them, and of the calls in its answer, as they were.

    Args:
        rule: What the provider takes; None for anything but no name at all.
    """

    def __init__(self, rule: NameRule | None) -> None:
        self._rule = rule
        self._originals: dict[str, str] = {}  # of the names that were mended
        self._held: dict[int, _HeldCall] = {}  # by choice, the call whose name may not be whole
        self._ids: dict[tuple[int, int], str] = {}  # by choice and index, the id of the latest call

    def sent(self, name: str) -> str:
        """The name under which a tool is sent."""
        mended = self._rule.mend(name) if self._rule is not None else name or NAMELESS
        if mended != name and name:
            self._originals[mended] = name
        return mended

    def in_history(self, history: History) -> History:
        """The history with names that the provider takes; the same object when none needs mending.

        Calls of tools that a provider ran by itself, and their results, keep the names that it gave.
        """
        conversation = tuple(self._in_message(message) for message in history.conversation)
        if all(new is old for new, old in zip(conversation, history.conversation, strict=True)):
            return history
        return history.model_copy(update={"conversation": conversation})

    def in_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The members of a request, in whichever provider's form, with names that the provider takes."""
        return {
            member: self._in_tools(value) if member in _MEMBERS else value
            for member, value in parameters.items()
        }

    def restored(self, chunks: Sequence[ChunkWrapper[Any]]) -> Sequence[ChunkWrapper[Any]]:
        """Chunks of the answer, in order, with the tools' own names.

        The fragments of a call whose name is the beginning of one that was mended are held until it is told whether the
        rest follows: up to the call's arguments, the next call or text of its choice, or the end of either. `close`
        gives what a stream held that broke off before.
        """
        if not self._originals:
            return chunks
        restored: list[ChunkWrapper[Any]] = []
        for chunk in chunks:
            if chunk.plain and not self._held:
                restored.append(chunk)
            else:
                restored += self._restored(chunk)
        return restored

    def close(self) -> list[ChunkWrapper[Any]]:
        """The answer is over, however it ended: chunks with the calls that were still held."""
        return [chunk for choice in list(self._held) for chunk in self._released_chunk(choice)]

    def _in_message(self, message: Message) -> Message:
        by_provider = {call.id for call in message.tool_calls if call.kind == "server"}
        content: list[ContentPart] = []
        for part in message.content:
            if isinstance(part, ContentPartToolCall | ContentPartToolResult) and part.id not in by_provider:
                # A result that knows no name is matched by its id.
                nameless = isinstance(part, ContentPartToolResult) and not part.name
                name = part.name if nameless else self.sent(part.name)
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
        mended: dict[str, Any] = {}
        for key, member in cast("Mapping[str, object]", value).items():
            if key == "name" and isinstance(member, str):
                mended[key] = self.sent(member)
            elif key in _LISTS and isinstance(member, list | tuple):
                mended[key] = [self.sent(str(name)) for name in cast("Sequence[object]", member)]
            else:
                mended[key] = self._in_tools(member) if key in _LEADING else member
        return mended

    def _restored(self, chunk: ChunkWrapper[Any]) -> list[ChunkWrapper[Any]]:
        """A chunk with the tools' own names, behind those with calls that have to come before it."""
        details, choice = chunk.details, chunk.choice
        before: list[ChunkWrapper[Any]] = []
        if details is not None and details.restarts:
            self._held.pop(choice, None)
            self._ids = {key: known for key, known in self._ids.items() if key[0] != choice}
        if self._held:
            if details is not None and details.error is not None:
                before = self.close()
            elif _says_something(chunk):
                before = self._released_chunk(choice)
        calls = chunk.get_tool_calls()
        restored = [each for call in calls for each in self._restored_call(call, chunk)]
        if chunk.get_finish_message() is not None or (details is not None and details.error is not None):
            restored += self._released(choice)
        if len(restored) == len(calls) and all(map(is_, restored, calls)):
            return [*before, chunk]
        return [
            *before,
            _RenamedChunk(chunk.raw, choice, details, said=chunk, calls=restored),
        ]

    def _restored_call(self, call: ToolCallDelta, chunk: ChunkWrapper[Any]) -> list[ToolCallDelta]:
        held = self._held.get(chunk.choice)
        before: list[ToolCallDelta] = []
        others = self._is_another(call, chunk.choice)
        if held is not None and (others or not held.goes_on_in(call)):
            before, held = self._released(chunk.choice), None
        name = call.name
        if held is not None:
            name = name if name.startswith(held.name) else held.name + name
        if name in self._originals:
            name = self._originals[name]
        elif name and not call.arguments and any(each.startswith(name) for each in self._originals):
            held = self._held.setdefault(chunk.choice, _HeldCall(chunk.raw))
            held.name = name
            held.fragments.append(call)
            return before
        if held is None:
            return [*before, call if name == call.name else msgspec.structs.replace(call, name=name)]
        held.name = name
        return [*self._released(chunk.choice), msgspec.structs.replace(call, name="")]

    def _is_another(self, call: ToolCallDelta, choice: int) -> bool:
        """Whether a fragment begins another call of its index, by the rule of `tailrace.wrappers.assembly`."""
        if call.index is None or not call.id:
            return False
        key = choice, call.index
        known = self._ids.get(key)
        another = bool(known and call.name and call.id != known)
        if another or not known:
            self._ids[key] = call.id
        return another

    def _released(self, choice: int) -> list[ToolCallDelta]:
        """The fragments of the call that is held, of which the first says the name; none where none is."""
        held = self._held.pop(choice, None)
        if held is None:
            return []
        first, *others = held.fragments
        named = msgspec.structs.replace(first, name=held.name)
        return [named, *(msgspec.structs.replace(other, name="") for other in others)]

    def _released_chunk(self, choice: int) -> list[ChunkWrapper[Any]]:
        """The same as a chunk of their own."""
        held = self._held.get(choice)
        if held is None:
            return []
        return [ReadWrapper[Any](held.raw, choice, calls=tuple(self._released(choice)))]


class _HeldCall:
    """A call of which so far came only the name, or the beginning of it.

    Attributes:
        raw: The provider's object that it began in.
        name: The name so far.
        fragments: All that came of it.
    """

    __slots__ = ("fragments", "name", "raw")

    def __init__(self, raw: object) -> None:
        self.raw = raw
        self.name = ""
        self.fragments: list[ToolCallDelta] = []

    def goes_on_in(self, call: ToolCallDelta) -> bool:
        """Whether a fragment that begins no other call of its index belongs to this one."""
        begun = self.fragments[0]
        if call.index is not None or begun.index is not None:
            return call.index == begun.index
        return call.id == begun.id if call.id else not call.name


def _says_something(chunk: ChunkWrapper[Any]) -> bool:
    """Whether a chunk holds anything of an answer besides calls, which come behind it."""
    details = chunk.details
    return bool(
        chunk.get_text()
        or chunk.get_reasoning()
        or (details is not None and (details.refusal or details.block or details.parts))
    )


class _RenamedChunk(ChunkWrapper[Any], gc=False):
    """A chunk with other names of the tools that it calls."""

    said: Any = None
    calls: list[ToolCallDelta] = msgspec.field(default_factory=list[ToolCallDelta])

    def get_text(self) -> str:
        return self.said.get_text()

    def get_reasoning(self) -> str:
        return self.said.get_reasoning()

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        return self.said.reasoning_origin

    def get_tool_calls(self) -> list[ToolCallDelta]:
        return self.calls

    def get_finish_message(self) -> FinishMessage | None:
        return self.said.get_finish_message()

    def get_usage(self) -> Usage | None:
        return self.said.get_usage()
