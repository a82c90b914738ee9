"""How much of an answer was said: its items, their parts, and which of them an event is about."""

from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.wrappers.loose_json import as_index

# The kinds of parts. Those of messages and reasoning have the names of the API's content types.
TEXT, REFUSAL, SUMMARY, THOUGHT = "output_text", "refusal", "summary_text", "reasoning_text"
ARGUMENTS, INPUT, SERVER_ARGUMENTS, CODE = "arguments", "input", "server arguments", "code"

# Event: the kind of part, the field that numbers it within its item, the field of the end event that repeats it.
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
"""The part that each event with a delta is about: its kind, and the field with its index."""
DONES = {f"{name}.done": place for name, place in _PARTS.items()}
"""The same for the events that end a part, and the field that repeats the whole of it."""

# In what item each kind of part stands, for servers that do not say which.
_ITEM_OF = {
    TEXT: "message",
    REFUSAL: "message",
    SUMMARY: "reasoning",
    THOUGHT: "reasoning",
    ARGUMENTS: "function_call",
    INPUT: "custom_tool_call",
    SERVER_ARGUMENTS: "mcp_call",
    CODE: "code_interpreter_call",
}
_EVERYTHING = 1 << 60


class Item:
    """What was said of one item of the answer.

    Attributes:
        kind: Its type.
        position: Its place in the answer, which no other item has.
        parts: By kind and index, in order of appearance.
        facts: Those of a message that the metadata of its text says already.
        announced: Of a call: its beginning was told.
        done: Nothing more is to be said.
    """

    __slots__ = ("announced", "done", "facts", "kind", "parts", "position")

    def __init__(self, kind: str, position: int) -> None:
        self.kind = kind
        self.position = position
        self.parts: dict[tuple[str, int], Part] = {}
        self.facts: dict[str, Any] = {}
        self.announced = False
        self.done = False

    def parts_of(self, kind: str) -> "list[Part]":
        """The parts of a kind, in order of appearance."""
        return [part for part in self.parts.values() if part.kind == kind]


class Part:
    """What was said of one part of an item: how much, never what, but for the last piece.

    Attributes:
        item: The item.
        kind: One of this module's.
        length: Characters of the text.
        annotations: How many.
        logprobs: Of how many tokens.
        frozen: Deltas add nothing, since the part is given as a whole.
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

    def take(self, text: str) -> None:
        """Further text is said."""
        if text:
            self.length += len(text)
            self._tail = text

    def rest(self, whole: str) -> str:
        """What of the whole text was not said; nothing where it is another than the one that was begun."""
        said = self.length
        if not said:
            return whole
        return whole[said:] if len(whole) > said and whole[:said].endswith(self._tail) else ""


class Progress:
    """The items of one answer.

    Args:
        alone: What was said before is not known: of every part it is taken to be all.

    Attributes:
        alone: See there.
        open_text: The part whose text the answer's latest block of text holds.
        open_reasoning: The same for reasoning.
    """

    __slots__ = (
        "_by_index",
        "_items_of",
        "_last",
        "_last_of",
        "_last_place",
        "_positions",
        "alone",
        "open_reasoning",
        "open_text",
    )

    def __init__(self, *, alone: bool = False) -> None:
        self.alone = alone
        self._positions = 0
        self.begin()

    def begin(self) -> None:
        """Another response begins in the same stream; positions go on, so that its calls are calls of their own."""
        self.open_text: Part | None = None
        self.open_reasoning: Part | None = None
        self._items_of: dict[str, list[Item]] = {}  # of each type, in order of appearance
        self._by_index: dict[int, Item] = {}
        self._last_of: dict[str, Item] = {}  # the latest item of each type
        self._last: Part | None = None  # what the latest delta added to, and what that delta said about it
        self._last_place: tuple[object, object] = (None, None)

    @property
    def begun(self) -> bool:
        """Whether anything of the answer was said."""
        return bool(self._items_of)

    def streamed(self) -> dict[str, Iterator[Item]]:
        """The items so far of each type, in order of appearance."""
        return {kind: iter(items) for kind, items in self._items_of.items()}

    def item(self, event: Mapping[str, Any], kind: str) -> Item:
        """The item that an event is about: that of its index, or without one the latest of the type."""
        index = as_index(event.get("output_index"))
        known = self._by_index.get(index) if index is not None else self._last_of.get(kind)
        return known or self.new_item(kind, index)

    def added_item(self, event: Mapping[str, Any], kind: str) -> Item:
        """The item that an event says begins: a new one, unless its text came before."""
        index = as_index(event.get("output_index"))
        known = self._by_index.get(index) if index is not None else None
        return known if known and known.kind == kind and not known.done else self.new_item(kind, index)

    def new_item(self, kind: str, index: int | None = None) -> Item:
        """A further item.

        Args:
            kind: Its type.
            index: The provider's index: its position too, unless that is taken (some servers give all the same).
        """
        position = self._positions if index is None else max(self._positions, index)
        self._positions = position + 1
        item = Item(kind, position)
        self._items_of.setdefault(kind, []).append(item)
        self._last_of[kind] = item
        self._last = None
        if index is not None:
            self._by_index[index] = item
        return item

    def part(self, event: Mapping[str, Any], kind: str, numbered: str) -> Part:
        """The part that an event is about.

        Args:
            event: The event.
            kind: The part's.
            numbered: The event's field with the index of the part; empty when there is only one.
        """
        last, place = self._last, (event.get("output_index"), event.get(numbered))
        if last is not None and last.kind is kind and place == self._last_place:
            return last
        item = self.item(event, _ITEM_OF[kind])
        index = as_index(place[1]) or 0
        part = item.parts.get((kind, index)) or self.new_part(item, kind, index)
        self._last, self._last_place = part, place
        return part

    def new_part(self, item: Item, kind: str, index: int) -> Part:
        """A further part of an item."""
        part = item.parts[kind, index] = Part(item, kind)
        if not self.alone:
            return part
        if kind in (CODE, SERVER_ARGUMENTS):
            part.frozen = True  # given at the end, as a whole
            return part
        part.length = part.annotations = part.logprobs = _EVERYTHING
        if kind == TEXT:
            self.open_text = part
        elif kind in (SUMMARY, THOUGHT):
            self.open_reasoning = part
        return part
