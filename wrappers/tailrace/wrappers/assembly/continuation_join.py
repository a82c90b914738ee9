"""Removal of text that the continuation of an interrupted response repeats. Sans-IO."""

import re

from tailrace.wrappers.decoding.think_tags import OPENING

MIN_REPEATED = 16
"""Minimum length of repeated text. A model may repeat shorter text on purpose."""

_SENTENCE_ENDS = re.compile(r"[.!?]\s+|\u3002")


class TextJoin:
    """Removes from a continuation the characters that repeat the end of the interrupted text.

    The request for the continuation contains the interrupted text without its trailing white space, which some APIs reject. Two
    kinds of repetition are removed from the beginning of the continuation:

    1. The complete interrupted text, its unfinished last line, or its unfinished last sentence, if it has at least `MIN_REPEATED`
    characters. It is not removed if the server is known to continue exactly.
    2. The trailing white space of the interrupted text, or the beginning of it.

    Characters are buffered only while they may be a repetition or the beginning of a ``<think>`` tag.

    Args:
        text: The interrupted text, as it was published.
        is_exact: True if the server never repeats the text. Then only white space is removed.
        has_prefix: True if the server first returns the complete interrupted text, which is removed even if it is shorter than
            `MIN_REPEATED`.
    """

    __slots__ = ("_buffered", "_candidates", "_matched", "_space", "has_reasoning", "passes_all")

    def __init__(self, text: str, *, is_exact: bool = False, has_prefix: bool = False) -> None:
        self.passes_all = False
        """True if all further text is returned unchanged."""
        self.has_reasoning = False
        """True if the continuation begins with a ``<think>`` tag, and therefore does not continue the text."""
        sent_text = text.rstrip()
        self._space = text[len(sent_text) :]
        line = sent_text[sent_text.rfind("\n") + 1 :]
        ends = [match.end() for match in _SENTENCE_ENDS.finditer(line)]
        tails = {sent_text, line, line[ends[-1] :] if ends else line}
        self._candidates = [] if is_exact else [each for each in tails if len(each) >= MIN_REPEATED]
        if has_prefix and len(sent_text) < MIN_REPEATED:
            self._candidates = [sent_text]
        self._buffered = ""
        self._matched = 0  # length of the longest candidate that was repeated completely

    def feed(self, text: str) -> str:
        """Add text of the continuation. Return the text to append to the interrupted text."""
        if self.passes_all:
            return text
        start = len(self._buffered)
        self._buffered += text
        open_candidates: list[str] = []
        for candidate in self._candidates:
            if candidate.startswith(text[: len(candidate) - start], start):
                if len(candidate) <= len(self._buffered):
                    self._matched = max(self._matched, len(candidate))
                else:
                    open_candidates.append(candidate)
        self._candidates = open_candidates
        if open_candidates:
            return ""
        rest = self._buffered[self._matched :]
        space, stripped = self._space, rest.lstrip()
        self.has_reasoning = stripped.startswith(OPENING)
        if len(stripped) < len(OPENING) and OPENING.startswith(stripped):
            return ""
        if len(rest) < len(space) and space.startswith(rest):
            return ""
        return self._release(rest)

    def close(self) -> str:
        """End a complete continuation. Return the buffered text that is not a repetition."""
        return "" if self.passes_all else self._release(self._buffered[self._matched :])

    def _release(self, rest: str) -> str:
        self.passes_all = True
        self._buffered = ""
        count = 0
        while count < min(len(rest), len(self._space)) and rest[count] == self._space[count]:
            count += 1
        return rest[count:]
