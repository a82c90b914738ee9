"""Record of the content of a streamed response that the decoder has returned, by item and part.

The API sends all content several times. `ResponsesDecoder` returns it only once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.wrappers.decoding.lenient_json import as_index

# Types of parts. The first four are content types of the API, in messages and reasoning.
TEXT, REFUSAL, SUMMARY, THOUGHT = "output_text", "refusal", "summary_text", "reasoning_text"
ARGUMENTS, INPUT, SERVER_ARGUMENTS, CODE = "arguments", "input", "server arguments", "code"

# By name of the event (without ``.delta`` or ``.done``): the type of the part, the field with its index, and the field of the
# ``.done`` event with the complete text.
_PARTS = {
    "response.output_text": (TEXT, "content_index", "text"),
    "response.refusal": (REFUSAL, "content_index", "refusal"),
    "response.reasoning_text": (THOUGHT, "content_index", "text"),
    "response.reasoning": (THOUGHT, "content_index", "text"),
    "response.reasoning_summary_text": (SUMMARY, "summary_index", "text"),
    "response.reasoning_summary": (SUMMARY, "summary_index", "text"),
    "response.function_call_arguments": (ARGUMENTS, "", "arguments"),
    "response.custom_tool_call_input": (INPUT, "", "input"),
    "response.mcp_call_arguments": (SERVER_ARGUMENTS, "", "arguments"),
    "response.code_interpreter_call_code": (CODE, "", "code"),
}
DELTAS = {f"{name}.delta": (kind, numbered) for name, (kind, numbered, _) in _PARTS.items()}
"""Type of the part, and field with its index, by delta event."""
DONE_EVENTS = {f"{name}.done": place for name, place in _PARTS.items()}
"""Type, index field and text field of the part, by the event that ends the part."""

# Types of items by type of part, for events without the index of the item.
_ITEM_KINDS = {
    TEXT: "message",
    REFUSAL: "message",
    SUMMARY: "reasoning",
    THOUGHT: "reasoning",
    ARGUMENTS: "function_call",
    INPUT: "custom_tool_call",
    SERVER_ARGUMENTS: "mcp_call",
    CODE: "code_interpreter_call",
}
_UNLIMITED = 1 << 60


class Item:
    """The content of one item that the decoder has returned.

    Attributes:
        position: The unique position of the item in the response.
        parts: The parts by type and index, in order of appearance.
        metadata: The fields of a message that are already in the metadata of its text.
        announced: True if the start of the call was returned.
    """

    __slots__ = ("announced", "done", "kind", "metadata", "parts", "position")

    def __init__(self, kind: str, position: int) -> None:
        self.kind = kind
        self.position = position
        self.parts: dict[tuple[str, int], Part] = {}
        self.metadata: dict[str, Any] = {}
        self.announced = False
        self.done = False

    def parts_by_kind(self, kind: str) -> "list[Part]":
        """Return the parts of one type, in order of appearance."""
        return [part for part in self.parts.values() if part.kind == kind]


class Part:
    """The content of one part that the decoder has returned. Only the text of the last delta is stored.

    Attributes:
        kind: The type of the part (a constant of this module).
        length: Number of returned characters.
        annotations: Number of returned annotations.
        logprobs: Number of tokens whose log probabilities were returned.
        frozen: True if later deltas must be ignored.
    """

    __slots__ = ("_tail", "annotations", "frozen", "item", "kind", "length", "logprobs")

    def __init__(self, item: Item, kind: str) -> None:
        self.item = item
        self.kind = kind
        self.length = 0
        self.annotations = 0
        self.logprobs = 0
        self.frozen = False
        self._tail = ""

    def add(self, text: str) -> None:
        """Record that the decoder has returned this text."""
        if text:
            self.length += len(text)
            self._tail = text

    def remaining(self, text: str) -> str:
        """Return the rest of a complete text that was not returned; empty if the texts do not match."""
        length = self.length
        if not length:
            return text
        return text[length:] if len(text) > length and text[:length].endswith(self._tail) else ""


class ResponseProgress:
    """Record of the content of one response.

    Args:
        single: True to read a single event. All content that the API repeats is then ignored.

    Attributes:
        open_text: The part of the latest text block, or None.
        open_reasoning: The part of the latest reasoning block, or None.
    """

    __slots__ = (
        "_by_index",
        "_items_by_kind",
        "_last",
        "_last_by_kind",
        "_last_key",
        "_positions",
        "open_reasoning",
        "open_text",
        "single",
    )

    def __init__(self, *, single: bool = False) -> None:
        self.single = single
        self._positions = 0
        self.restart()

    def restart(self) -> None:
        """Begin another response in the same stream. Positions are not reused, so that all calls have different positions."""
        self.open_text: Part | None = None
        self.open_reasoning: Part | None = None
        self._items_by_kind: dict[str, list[Item]] = {}  # in order of appearance
        self._by_index: dict[int, Item] = {}
        self._last_by_kind: dict[str, Item] = {}
        self._last: Part | None = None  # the part of the latest delta
        self._last_key: tuple[object, object] = (None, None)

    @property
    def has_started(self) -> bool:
        """True after the first item."""
        return bool(self._items_by_kind)

    def items_by_kind(self) -> dict[str, Iterator[Item]]:
        """Return the items of each type, in order of appearance."""
        return {kind: iter(items) for kind, items in self._items_by_kind.items()}

    def item(self, event: Mapping[str, Any], kind: str) -> Item:
        """Return the item to which an event belongs. Add a missing item.

        For an event without the index of an item, this is the latest item of the type ``kind``.
        """
        index = as_index(event.get("output_index"))
        known = self._by_index.get(index) if index is not None else self._last_by_kind.get(kind)
        return known or self.new_item(kind, index)

    def added_item(self, event: Mapping[str, Any], kind: str) -> Item:
        """Return the item that an event starts. It already exists if its text arrived before this event."""
        index = as_index(event.get("output_index"))
        known = self._by_index.get(index) if index is not None else None
        return known if known and known.kind == kind and not known.done else self.new_item(kind, index)

    def new_item(self, kind: str, index: int | None = None) -> Item:
        """Add an item.

        Args:
            kind: The type of the item.
            index: The provider's index, or None. It becomes the position of the item. If it is not higher than all earlier
                positions, the next higher position is used, because some servers repeat an index.
        """
        position = self._positions if index is None else max(self._positions, index)
        self._positions = position + 1
        item = Item(kind, position)
        self._items_by_kind.setdefault(kind, []).append(item)
        self._last_by_kind[kind] = item
        self._last = None
        if index is not None:
            self._by_index[index] = item
        return item

    def part(self, event: Mapping[str, Any], kind: str, index_field: str) -> Part:
        """Return the part to which an event belongs.

        Args:
            event: The event.
            kind: The type of the part.
            index_field: The field of the event with the index of the part; empty if the item has only one part.
        """
        last, key = self._last, (event.get("output_index"), event.get(index_field))
        if last is not None and last.kind is kind and key == self._last_key:
            return last
        item = self.item(event, _ITEM_KINDS[kind])
        index = as_index(key[1]) or 0
        part = item.parts.get((kind, index)) or self.new_part(item, kind, index)
        self._last, self._last_key = part, key
        return part

    def new_part(self, item: Item, kind: str, index: int) -> Part:
        """Add a part to an item."""
        part = item.parts[kind, index] = Part(item, kind)
        if not self.single:
            return part
        if kind in (CODE, SERVER_ARGUMENTS):
            part.frozen = True  # the event that ends the part has the complete content
            return part
        part.length = part.annotations = part.logprobs = _UNLIMITED
        if kind == TEXT:
            self.open_text = part
        elif kind in (SUMMARY, THOUGHT):
            self.open_reasoning = part
        return part
