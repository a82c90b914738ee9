"""The join of a text that broke off with its continuation: repeated characters are removed. Sans-IO."""

import re

from tailrace.wrappers.decoding.think_tags import OPENING

MIN_REPEATED = 16
"""Minimum length of the last line or sentence that counts as repeated; shorter ones may be repeated on purpose."""

_SENTENCE_ENDS = re.compile(r"[.!?]\s+|\u3002")


class TextJoin:
    """Removes from a continuation what it repeats of the text before.

    A request has the text without its trailing white space, which some APIs reject and many chat templates remove.
    The continuation may then begin with

    1. the complete text of the request, its unfinished last line, or its unfinished last sentence, with at least
       `MIN_REPEATED` characters: removed, unless the server is known to continue exactly;
    2. the white space with which the text ended, or the beginning of it: removed.

    Characters are held only while they are such a repetition so far, or a part of a ``<think>`` tag. The cost is linear in the text.

    Args:
        text: The text before the cut, as it was published.
        is_exact: The server repeats nothing, so that only white space is removed.
        has_prefix: The server returns the complete text first, of any length.
    """

    __slots__ = ("_candidates", "_held", "_matched", "_space", "has_reasoning", "is_over")

    def __init__(self, text: str, *, is_exact: bool = False, has_prefix: bool = False) -> None:
        self.is_over = False
        """All further text is passed on unchanged."""
        self.has_reasoning = False
        """The continuation begins with a ``<think>`` tag, so that it does not continue the text."""
        sent = text.rstrip()
        self._space = text[len(sent) :]
        line = sent[sent.rfind("\n") + 1 :]
        ends = [match.end() for match in _SENTENCE_ENDS.finditer(line)]
        tails = {sent, line, line[ends[-1] :] if ends else line}
        self._candidates = [] if is_exact else [each for each in tails if len(each) >= MIN_REPEATED]
        if has_prefix and len(sent) < MIN_REPEATED:
            self._candidates = [sent]
        self._held = ""
        self._matched = 0  # length of the longest candidate that was repeated

    def feed(self, text: str) -> str:
        """Add text of the continuation; return the text to append."""
        if self.is_over:
            return text
        start = len(self._held)
        self._held += text
        open_candidates: list[str] = []
        for candidate in self._candidates:
            if candidate.startswith(text[: len(candidate) - start], start):
                if len(candidate) <= len(self._held):
                    self._matched = max(self._matched, len(candidate))
                else:
                    open_candidates.append(candidate)
        self._candidates = open_candidates
        if open_candidates:
            return ""
        rest = self._held[self._matched :]
        space, begun = self._space, rest.lstrip()
        self.has_reasoning = begun.startswith(OPENING)
        if len(begun) < len(OPENING) and OPENING.startswith(begun):
            return ""
        if len(rest) < len(space) and space.startswith(rest):
            return ""
        return self._release(rest)

    def close(self) -> str:
        """End a complete continuation; return the held text that repeats nothing."""
        return "" if self.is_over else self._release(self._held[self._matched :])

    def _release(self, rest: str) -> str:
        self.is_over = True
        self._held = ""
        count = 0
        while count < min(len(rest), len(self._space)) and rest[count] == self._space[count]:
            count += 1
        return rest[count:]
