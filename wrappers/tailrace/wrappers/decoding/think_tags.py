"""Separation of reasoning in ``<think>`` tags from the text of a response.

Some servers begin the text of a response with ``<think>reasoning</think>``. By default, `MessageAssembly` therefore uses
`ThinkTagSplitter`. The splitter can be disabled for models that write such a tag on purpose.
"""

from enum import Enum, auto
from typing import Literal

OPENING = "<think>"
CLOSING = "</think>"

ThinkingChannel = Literal["text", "reasoning"]


class _State(Enum):
    BEFORE = auto()  # so far, only white space and the beginning of a possible tag
    THINKING = auto()
    BETWEEN = auto()  # the white space after the closing tag
    ANSWER = auto()


class ThinkTagSplitter:
    """Sans-IO splitter that divides the text of a response into reasoning and visible text.

    Reasoning begins with an opening tag at the start of the response, and ends with the first closing tag. White space may
    precede the opening tag. A tag elsewhere is text. The tags, the white space next to them, and empty reasoning are dropped. A
    tag may be split between fragments.
    """

    __slots__ = ("_has_begun", "_space", "_state", "_tag")

    def __init__(self) -> None:
        self._state = _State.BEFORE
        self._tag = ""  # buffered text that may be the beginning of a tag
        self._space: list[str] = []  # buffered white space; a tag may follow
        self._has_begun = False  # True after reasoning has been returned

    @property
    def done(self) -> bool:
        """True if all further text is visible text."""
        return self._state is _State.ANSWER

    @property
    def undecided(self) -> bool:
        """True while the response may begin with a tag."""
        return self._state is _State.BEFORE

    @property
    def holding(self) -> bool:
        """True if text is buffered."""
        return bool(self._tag or self._space)

    def feed(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        """Split the next fragment of the text. Return the non-empty results with their channels."""
        if self._state is _State.BEFORE:
            return self._before(text)
        if self._state is _State.THINKING:
            return self._thinking(text)
        if self._state is _State.BETWEEN:
            return self._between(text)
        return [("text", text)] if text else []

    def close(self) -> list[tuple[ThinkingChannel, str]]:
        """End the response. Return the buffered text. After an opening tag without a closing tag, the text is reasoning."""
        channel: ThinkingChannel = "reasoning" if self._state is _State.THINKING else "text"
        buffered = "".join((*self._space, self._tag))
        self._state = _State.ANSWER
        self._space.clear()
        self._tag = ""
        return [(channel, buffered)] if buffered else []

    def _before(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        if not self._tag:
            rest = text.lstrip()
            if rest != text:
                self._buffer_space(text[: len(text) - len(rest)])
                text = rest
        text_so_far = self._tag + text
        if text_so_far.startswith(OPENING):
            self._state = _State.THINKING
            self._space.clear()
            self._tag = ""
            return self._thinking(text_so_far.removeprefix(OPENING))
        self._tag = text_so_far
        return [] if OPENING.startswith(text_so_far) else self.close()

    def _thinking(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        if "<" not in text and not self._tag:
            return self._reasoning(text)
        text_so_far, closing, rest = (self._tag + text).partition(CLOSING)
        cut = 0 if closing else _beginning_at_end(text_so_far, CLOSING)
        self._tag = text_so_far[len(text_so_far) - cut :]
        thought = text_so_far[: len(text_so_far) - cut]
        segments = self._reasoning(thought)
        if not closing:
            return segments
        self._state = _State.BETWEEN
        self._space.clear()
        return segments + self._between(rest)

    def _reasoning(self, thought: str) -> list[tuple[ThinkingChannel, str]]:
        """Return reasoning without leading white space. Buffer white space at the end, because a tag may follow."""
        trimmed = thought.rstrip()
        if self._has_begun and not self._space and trimmed == thought:
            return [("reasoning", thought)] if thought else []
        if not trimmed:
            if self._has_begun:
                self._buffer_space(thought)
            return []
        text = "".join((*self._space, trimmed)) if self._has_begun else trimmed.lstrip()
        self._has_begun = True
        self._space.clear()
        self._buffer_space(thought[len(trimmed) :])
        return [("reasoning", text)]

    def _between(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        rest = text.lstrip()
        if not rest:
            return []
        self._state = _State.ANSWER
        return [("text", rest)]

    def _buffer_space(self, space: str) -> None:
        if space:
            self._space.append(space)


def _beginning_at_end(text: str, tag: str) -> int:
    """Return the length of the longest end of ``text`` that is the beginning of ``tag``."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
