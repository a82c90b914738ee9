"""Separation of reasoning between ``<think>`` and ``</think>`` at the start of a response from its text.

Enabled by default: ordinary responses do not begin with this tag, so it shows that the server does not separate the
model's reasoning. Disable it for a model that writes such tags on purpose. A tag anywhere else is text.
"""

from enum import Enum, auto
from typing import Literal

OPENING = "<think>"
CLOSING = "</think>"

ThinkingChannel = Literal["text", "reasoning"]


class _State(Enum):
    BEFORE = auto()  # only white space, or the start of a tag, was received
    THINKING = auto()
    BETWEEN = auto()  # after the closing tag, in the white space before the text
    ANSWER = auto()


class ThinkTagSplitter:
    """Sans-IO splitter of a response's text into reasoning and text; a tag may be split at any character.

    Only a tag at the start of the response, possibly after white space, opens the reasoning, and only the first closing
    tag ends it. The tags and adjacent white space are dropped; an empty block yields nothing. The cost is linear in the
    text, however it is split.
    """

    __slots__ = ("_has_begun", "_space", "_state", "_tag")

    def __init__(self) -> None:
        self._state = _State.BEFORE
        self._tag = ""  # a possible start of a tag
        self._space: list[str] = []  # white space before it, which belongs to the following text
        self._has_begun = False  # the reasoning has text

    @property
    def done(self) -> bool:
        """True if all further text belongs to the response's text."""
        return self._state is _State.ANSWER

    @property
    def undecided(self) -> bool:
        """True while the response may still begin with a tag."""
        return self._state is _State.BEFORE

    @property
    def holding(self) -> bool:
        """True if text is buffered."""
        return bool(self._tag or self._space)

    def feed(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        """Split the response's next text; return the decided, non-empty fragments in order."""
        if self._state is _State.BEFORE:
            return self._before(text)
        if self._state is _State.THINKING:
            return self._thinking(text)
        if self._state is _State.BETWEEN:
            return self._between(text)
        return [("text", text)] if text else []

    def close(self) -> list[tuple[ThinkingChannel, str]]:
        """End the response and return the buffered text. Reasoning without a closing tag remains reasoning."""
        channel: ThinkingChannel = "reasoning" if self._state is _State.THINKING else "text"
        held = "".join((*self._space, self._tag))
        self._state = _State.ANSWER
        self._space.clear()
        self._tag = ""
        return [(channel, held)] if held else []

    def _before(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        if not self._tag:
            rest = text.lstrip()
            self._hold(text[: len(text) - len(rest)])
            text = rest
        seen = self._tag + text
        if seen.startswith(OPENING):
            self._state = _State.THINKING
            self._space.clear()
            self._tag = ""
            return self._thinking(seen.removeprefix(OPENING))
        self._tag = seen
        return [] if OPENING.startswith(seen) else self.close()

    def _thinking(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        if "<" not in text and not self._tag:
            return self._reasoning(text)
        seen, closing, rest = (self._tag + text).partition(CLOSING)
        cut = 0 if closing else _beginning_at_end(seen, CLOSING)
        self._tag = seen[len(seen) - cut :]
        thought = seen[: len(seen) - cut]
        pieces = self._reasoning(thought)
        if not closing:
            return pieces
        self._state = _State.BETWEEN
        self._space.clear()
        return pieces + self._between(rest)

    def _reasoning(self, thought: str) -> list[tuple[ThinkingChannel, str]]:
        """Return reasoning without leading and trailing white space; possibly trailing white space is buffered."""
        kept = thought.rstrip()
        if self._has_begun and not self._space and kept == thought:
            return [("reasoning", thought)] if thought else []
        if not kept:
            if self._has_begun:
                self._hold(thought)
            return []
        text = "".join((*self._space, kept)) if self._has_begun else kept.lstrip()
        self._has_begun = True
        self._space.clear()
        self._hold(thought[len(kept) :])
        return [("reasoning", text)]

    def _between(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        rest = text.lstrip()
        if not rest:
            return []
        self._state = _State.ANSWER
        return [("text", rest)]

    def _hold(self, space: str) -> None:
        if space:
            self._space.append(space)


def _beginning_at_end(text: str, tag: str) -> int:
    """Return the number of characters at the end of ``text`` that may be the start of ``tag``."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
