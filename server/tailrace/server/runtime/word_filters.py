"""Filters for words and regular expressions, also across deltas. They require ``pip install 'tailrace[filters]'``."""

import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

try:
    import ahocorasick
    import re2
except ImportError as error:
    raise ImportError("filters need the extra: pip install 'tailrace[filters]'") from error

from tailrace.server.runtime.stream_filter import BlockedError, FilterStream, StreamFilter
from tailrace.wrappers import ConfigurationError

REPLACEMENT = "[blocked]"
"""Default replacement."""

MAX_BUFFERED = 4096
"""Maximum number of characters that a stream holds back. A longer match ends the turn."""


class WordFilter(StreamFilter):
    """Replaces words wherever they occur, including inside other words, or ends the turn.

    Case, composition of characters (é as one or two characters) and compatibility forms are ignored.

    Args:
        words: The words or phrases.
        replacement: The text for each occurrence; None to end the turn instead.

    Raises:
        ConfigurationError: A word is empty or too long, or there are no words.
    """

    def __init__(self, words: Iterable[str], replacement: str | None = REPLACEMENT) -> None:
        self.replacement = replacement
        self.automaton = cast("Any", ahocorasick).Automaton()
        self.longest = 0
        for word in words:
            key, _ = _folded(word)
            if not key or len(key) > MAX_BUFFERED // 4:
                raise ConfigurationError(f"a word of a filter must have 1 to {MAX_BUFFERED // 4} characters")
            self.automaton.add_word(key, len(key))
            self.longest = max(self.longest, len(key))
        if not self.longest:
            raise ConfigurationError("a word filter needs at least one word")
        self.automaton.make_automaton()

    def open(self) -> FilterStream:
        """Create a stream for one text."""
        return _WordStream(self)


class _WordStream(FilterStream):
    def __init__(self, words: WordFilter) -> None:
        self._words = words
        self._buffered = ""

    async def feed(self, text: str) -> str:
        return self._pass(self._buffered + text, is_end=False)

    async def close(self) -> str:
        return self._pass(self._buffered, is_end=True)

    def _pass(self, text: str, *, is_end: bool) -> str:
        words = self._words
        folded, positions = _folded(text)
        cut = len(folded) if is_end else self._beginning(folded)
        spans: list[tuple[int, int]] = []
        for last, size in words.automaton.iter(folded):
            start = last + 1 - size
            while spans and spans[-1][1] > start:
                start = min(start, spans.pop()[0])
            spans.append((start, last + 1))
        if not is_end and spans and spans[-1][1] > cut:
            cut = min(cut, spans.pop()[0])
        end = len(text) if cut == len(folded) else positions[cut]
        passed: list[str] = []
        position = 0
        for first, last in ((positions[start], positions[stop - 1] + 1) for start, stop in spans):
            if words.replacement is None:
                raise BlockedError
            if position < last:
                passed += (text[position:first], words.replacement)
                position = last
        passed.append(text[position:end])
        self._buffered = text[max(position, end) :]
        if len(self._buffered) > MAX_BUFFERED:
            raise BlockedError
        return "".join(passed)

    def _beginning(self, folded: str) -> int:
        automaton = self._words.automaton
        for start in range(max(0, len(folded) - self._words.longest + 1), len(folded)):
            if automaton.match(folded[start:]):
                return start
        return len(folded)


class RegexFilter(StreamFilter):
    """Replaces matches of a regular expression, or ends the turn.

    The syntax is that of RE2. A stream holds back the last ``max_match`` characters.

    Args:
        pattern: The regular expression. Empty matches are ignored.
        replacement: The text for each match; None to end the turn instead.
        max_match: Maximum length of a match that is reliably found. A longer match is held back until it ends. It ends the turn
            if it exceeds `MAX_BUFFERED` characters.

    Raises:
        ConfigurationError: The expression or ``max_match`` is invalid.
    """

    def __init__(self, pattern: str, replacement: str | None = REPLACEMENT, max_match: int = 128) -> None:
        if not 0 < max_match < MAX_BUFFERED:
            raise ConfigurationError(
                f"max_match of a filter must be from 1 to {MAX_BUFFERED - 1}, not {max_match}"
            )
        library = cast("Any", re2)
        options = library.Options()
        options.log_errors = False
        try:
            self.expression = library.compile(pattern, options)
        except library.error as error:
            raise ConfigurationError(f"invalid expression of a filter: {pattern!r}") from error
        self.replacement = replacement
        self.window = max_match + 1  # one more character, for \b and $

    def open(self) -> FilterStream:
        """Create a stream for one text."""
        return _RegexStream(self)


class _RegexStream(FilterStream):
    def __init__(self, regex: RegexFilter) -> None:
        self._regex = regex
        self._before = ""  # the character before `_buffered`, for \b and ^
        self._buffered = ""

    async def feed(self, text: str) -> str:
        return self._pass(self._buffered + text, is_end=False)

    async def close(self) -> str:
        return self._pass(self._buffered, is_end=True)

    def _pass(self, added: str, *, is_end: bool) -> str:
        regex = self._regex
        text = self._before + added
        position = begin = len(self._before)
        end = len(text) if is_end else max(begin, len(text) - regex.window + 1)
        passed: list[str] = []
        for match in regex.expression.finditer(text, begin) if end > begin else ():
            start, stop = match.span()
            if start >= end:
                break
            # The match may continue in the next text.
            if stop == len(text) and not is_end:
                end = start
                break
            if start == stop:
                continue
            if regex.replacement is None:
                raise BlockedError
            passed += (text[position:start], regex.replacement)
            position = stop
        end = max(end, position)
        passed.append(text[position:end])
        self._before, self._buffered = text[max(0, end - 1) : end], text[end:]
        if len(self._buffered) > MAX_BUFFERED:
            raise BlockedError
        return "".join(passed)


def read_filters(path: Path) -> tuple[StreamFilter, ...]:
    """Read filters from a text file in UTF-8.

    Each line contains a word or phrase, or a regular expression between slashes. Empty lines and lines that begin with ``#`` are
    ignored.

    Raises:
        ConfigurationError: The file cannot be read, contains no filters, or has an invalid line.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the filter file {path}: {error}") from error
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ConfigurationError(f"the filter file {path} has no words and no expressions")
    is_regex = [len(line) > 2 and line.startswith("/") and line.endswith("/") for line in lines]
    words = [line for line, regex in zip(lines, is_regex, strict=True) if not regex]
    filters: list[StreamFilter] = [WordFilter(words)] if words else []
    filters += [RegexFilter(line[1:-1]) for line, regex in zip(lines, is_regex, strict=True) if regex]
    return tuple(filters)


def _folded(text: str) -> tuple[str, Any]:
    """Return the text in lower case without composed characters, and the position of each of its characters in ``text``."""
    if text.isascii():
        return text.lower(), range(len(text))
    folded: list[str] = []
    positions: list[int] = []
    for position, character in enumerate(text):
        plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
        folded.append(plain)
        positions += [position] * len(plain)
    return "".join(folded), positions
