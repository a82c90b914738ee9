"""Filter that uses Presidio to replace personal data, such as e-mail addresses and card numbers.

It requires the optional dependencies ``pii``: ``pip install 'tailrace[pii]'``.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyio import to_thread

from tailrace.server.runtime.stream_filter import BlockedError, FilterStream, StreamFilter
from tailrace.wrappers import ConfigurationError

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine

ENTITIES = (
    "CREDIT_CARD",
    "CRYPTO",
    "EMAIL_ADDRESS",
    "IBAN_CODE",
    "IP_ADDRESS",
    "MAC_ADDRESS",
    "PHONE_NUMBER",
    "UK_NHS",
    "US_ITIN",
    "US_SSN",
)
"""The default entities. They are recognized by patterns and check digits."""

MAX_HELD = 1024
"""Maximum number of characters that a stream holds back."""

_OVERLAP = 128  # characters that two consecutive parts of a sentence longer than MAX_HELD share
_SENTENCE_END = re.compile(r"""[.!?\u2026]["'\u2019\u201d\xbb)\]]*\s|[\u3002\uff01\uff1f\n]""")


class PiiFilter(StreamFilter):
    """Replaces personal data with the name of its entity, or ends the turn.

    A sentence is held back until it is complete, and then analyzed in a thread. A sentence longer than `MAX_HELD` is analyzed in
    parts.

    Args:
        entities: The types of personal data, by the names that Presidio uses.
        replacement: Text that replaces each occurrence, in which ``{entity}`` stands for the entity; None to end the turn
            instead.
        threshold: Minimum score of an occurrence, from 0 to 1. Matches of patterns without check digits score at least 0.4,
            guesses score less.
        language: The language of the recognizers.
        analyzer: An analyzer with other recognizers, for example with a language model that recognizes names of persons. None for
            the recognizers of Presidio that need no language model.

    Raises:
        ConfigurationError: There are no entities, or no recognizer finds one of them.
        ImportError: The optional dependencies are not installed.
    """

    def __init__(
        self,
        entities: Sequence[str] = ENTITIES,
        replacement: str | None = "[{entity}]",
        *,
        threshold: float = 0.4,
        language: str = "en",
        analyzer: "AnalyzerEngine | None" = None,
    ) -> None:
        self._analyzer = analyzer or _create_analyzer(language)
        known = self._analyzer.get_supported_entities(language)
        unknown = sorted(set(entities) - set(known))
        if unknown or not entities:
            raise ConfigurationError(
                f"no recognizer finds {', '.join(unknown) or 'anything'}; known entities: {', '.join(sorted(known))}"
            )
        self._entities = list(entities)
        self._replacement = replacement
        self._threshold = threshold
        self._language = language

    def open(self) -> FilterStream:
        """Create the stream for a text."""
        return _PiiStream(self)

    def passed(self, text: str, *, is_end: bool) -> tuple[str, str]:
        """Return the complete sentences of a text after filtering, and the rest of the text.

        Args:
            text: The text.
            is_end: True if no further text follows.

        Raises:
            BlockedError: The text contains personal data, and the filter ends the turn.
        """
        passed: list[str] = []
        position = 0
        while position < len(text):
            end = _sentence_end(text, position)
            if end is not None:
                passed.append(self._replaced(text[position:end], end - position)[0])
                position = end
            elif len(text) - position >= MAX_HELD:
                part, size = self._replaced(text[position : position + MAX_HELD], None)
                passed.append(part)
                position += size
            elif is_end:
                passed.append(self._replaced(text[position:], len(text) - position)[0])
                position = len(text)
            else:
                break
        return "".join(passed), text[position:]

    def _replaced(self, text: str, size: int | None) -> tuple[str, int]:
        """Filter the beginning of a text.

        Args:
            text: The text.
            size: Number of characters to filter; None to exclude the end of the text, where an occurrence may be incomplete.

        Returns:
            The filtered text, and the number of characters of the original text that it replaces.
        """
        results = self._analyzer.analyze(
            text, self._language, entities=self._entities, score_threshold=self._threshold
        )
        spans: list[tuple[int, int, str]] = []  # sorted, without overlaps
        for each in sorted(results, key=lambda each: (each.start, -each.end, -each.score)):
            if self._replacement is None:
                raise BlockedError
            if spans and each.start < spans[-1][1]:
                start, end, entity = spans.pop()
                spans.append((start, max(end, each.end), entity))
            else:
                spans.append((each.start, each.end, each.entity_type))
        if size is None:
            size = _cut(text, spans)
        passed: list[str] = []
        position = 0
        for start, end, entity in spans:
            if start < size:
                passed += (text[position:start], str(self._replacement).replace("{entity}", entity))
                position = end
        passed.append(text[position:size])
        return "".join(passed), size


class _PiiStream(FilterStream):
    def __init__(self, pii: PiiFilter) -> None:
        self._pii = pii
        self._held = ""

    async def feed(self, text: str) -> str:
        self._held += text
        if _sentence_end(self._held, 0) is None and len(self._held) < MAX_HELD:
            return ""
        return await self._pass(is_end=False)

    async def close(self) -> str:
        return await self._pass(is_end=True) if self._held else ""

    async def _pass(self, *, is_end: bool) -> str:
        passed, self._held = await to_thread.run_sync(lambda: self._pii.passed(self._held, is_end=is_end))
        return passed


def _sentence_end(text: str, start: int) -> int | None:
    """Return the end of the sentence that begins at a position; None if the sentence is incomplete or longer than `MAX_HELD`."""
    found = _SENTENCE_END.search(text, start, start + MAX_HELD)
    return None if found is None else found.end()


def _cut(text: str, spans: Sequence[tuple[int, int, str]]) -> int:
    """Return the position at which to divide a long sentence: between words, and not inside an occurrence."""
    limit = len(text) - _OVERLAP
    cut = text.rfind(" ", limit // 2, limit) + 1 or limit
    for start, end, _ in spans:
        if start < cut < end:
            return start or end
    return cut


def _create_analyzer(language: str) -> "AnalyzerEngine":
    """Create an analyzer with the recognizers of Presidio that need neither a language model nor the network."""
    try:
        import tldextract  # a dependency of Presidio
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NoOpNlpEngine
        from presidio_analyzer.predefined_recognizers import EmailRecognizer
    except ImportError as error:
        raise ImportError(
            "the filter of personal data needs the extra: pip install 'tailrace[pii]'"
        ) from error
    domains = tldextract.TLDExtract(suffix_list_urls=())

    class LocalEmailRecognizer(EmailRecognizer):
        """Validates domains without downloading the list of top-level domains."""

        def validate_result(self, pattern_text: str) -> bool:
            return domains(pattern_text).top_domain_under_public_suffix != ""

    engine = NoOpNlpEngine([{"lang_code": language, "model_name": "none"}])
    analyzer = AnalyzerEngine(nlp_engine=engine, supported_languages=[language])
    analyzer.registry.remove_recognizer("EmailRecognizer")
    analyzer.registry.add_recognizer(LocalEmailRecognizer(supported_language=language))
    return analyzer
