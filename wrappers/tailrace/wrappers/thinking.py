"""Reasoning that a model writes into its answer, between ``<think>`` and ``</think>``, told apart from the answer.

On by default: a tag at the very start of an answer is evidence enough that the model reasons and that its server does
not part the two, since ordinary answers do not begin with it. Only an operator whose model writes such tags on purpose
turns it off. A tag anywhere else is text.
"""

from enum import Enum, auto
from typing import Literal

OPENING = "<think>"
CLOSING = "</think>"

ThinkingChannel = Literal["text", "reasoning"]


class _State(Enum):
    BEFORE = auto()  # nothing but white space, or the beginning of a tag, was seen
    THINKING = auto()
    BETWEEN = auto()  # behind the closing tag, in the white space before the answer
    ANSWER = auto()


class ThinkTagSplitter:
    """Splits the text of one answer into reasoning and text. Sans-IO; a tag may be cut anywhere.

    Only a tag at the very start of the answer (white space may come before it) opens the reasoning, and only the
    first closing tag ends it. The tags belong to neither side, and so does the white space next to them: a block
    that holds nothing else gives nothing. Work is linear in the text, however it is cut.
    """

    __slots__ = ("_begun", "_space", "_state", "_tag")

    def __init__(self) -> None:
        self._state = _State.BEFORE
        self._tag = ""  # what may be the beginning of a tag
        self._space: list[str] = []  # white space in front of it, which goes with what comes next
        self._begun = False  # the reasoning holds text

    @property
    def done(self) -> bool:
        """Nothing is left to be told apart: all further text is the answer's."""
        return self._state is _State.ANSWER

    @property
    def undecided(self) -> bool:
        """Nothing was given back yet: the answer may still begin with a tag."""
        return self._state is _State.BEFORE

    @property
    def holding(self) -> bool:
        """Some text was taken in and not given back yet."""
        return bool(self._tag or self._space)

    def feed(self, text: str) -> list[tuple[ThinkingChannel, str]]:
        """Take the answer's next text; return what is certain by now, in order, no piece empty."""
        if self._state is _State.BEFORE:
            return self._before(text)
        if self._state is _State.THINKING:
            return self._thinking(text)
        if self._state is _State.BETWEEN:
            return self._between(text)
        return [("text", text)] if text else []

    def close(self) -> list[tuple[ThinkingChannel, str]]:
        """The answer is over: return what was held back. Reasoning that was never closed stays reasoning."""
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
        said = seen[: len(seen) - cut]
        pieces = self._reasoning(said)
        if not closing:
            return pieces
        self._state = _State.BETWEEN
        self._space.clear()
        return pieces + self._between(rest)

    def _reasoning(self, said: str) -> list[tuple[ThinkingChannel, str]]:
        """Reasoning without the white space at its ends; what may turn out to be the end's is held back."""
        kept = said.rstrip()
        if self._begun and not self._space and kept == said:
            return [("reasoning", said)] if said else []
        if not kept:
            if self._begun:
                self._hold(said)
            return []
        text = "".join((*self._space, kept)) if self._begun else kept.lstrip()
        self._begun = True
        self._space.clear()
        self._hold(said[len(kept) :])
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
    """How many characters at the end of ``text`` may be the beginning of ``tag``."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
