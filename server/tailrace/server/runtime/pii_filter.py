"""Filter of personal data, such as e-mail addresses and card numbers. It requires Presidio (``pip install 'tailrace[pii]'``)."""

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

MAX_PART = 1024
"""Maximum number of characters that are published together. Longer sentences are divided."""

_SENTENCE_END = re.compile(r"""[.!?\u2026]["'\u2019\u201d\xbb)\]]*\s|[\u3002\uff01\uff1f\n]""")


_Span = tuple[int, int, str]  # start, end, entity


class PiiFilter(StreamFilter):
    """Replaces personal data with the name of its entity, or ends the turn.

    A sentence is held back until its end and ``max_match`` further characters have arrived. It is then analyzed in a thread.

    Args:
        entities: The types of personal data, as Presidio names them.
        replacement: The text for each occurrence, with ``{entity}`` for the entity; None to end the turn instead.
        threshold: Minimum score of an occurrence, from 0 to 1. Matches of most patterns without check digits score at least 0.4;
            matches of weak patterns score less.
        language: The language of the recognizers.
        analyzer: An analyzer with other recognizers, for example with a language model that recognizes names of persons. None for
            the recognizers of Presidio that need no language model.
        max_match: Maximum length of an occurrence that continues in the next sentence. Longer occurrences may not be found.

    Raises:
        ConfigurationError: There are no entities, no recognizer finds one of them, or ``max_match`` is not valid.
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
        max_match: int = 128,
    ) -> None:
        if not 0 < max_match <= MAX_PART // 4:
            raise ConfigurationError(
                f"max_match of a filter of personal data must be from 1 to {MAX_PART // 4}, not {max_match}"
            )
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
        self._overlap = (
            max_match + 1
        )  # an occurrence ends at the end of a word, so one more character is needed

    def open(self) -> FilterStream:
        """Create a stream for one text."""
        return _PiiStream(self)

    def size(self, text: str) -> int:
        """Return the length at which the first part of a text can be published; 0 if unknown."""
        end = self._end(text)
        return end + self._overlap if end else 0

    def passed(self, text: str, *, is_end: bool) -> tuple[str, str, int]:
        """Filter the beginning of a text. The result does not depend on how the text is divided into deltas.

        Args:
            text: The text.
            is_end: True if no further text follows.

        Returns:
            The filtered text, the rest of the text, and the size that the rest needs before it can be filtered.

        Raises:
            BlockedError: The text contains personal data, and the filter ends the turn.
        """
        passed: list[str] = []
        size = 0
        while text:
            end, size, spans = self._part(text[: 2 * MAX_PART], is_end=is_end)
            if not end:
                break
            passed.append(self._replaced(text[:end], spans))
            text = text[end:]
        return "".join(passed), text, size

    def _part(self, text: str, *, is_end: bool) -> tuple[int, int, list[_Span]]:
        """Return the end of the first part of a text, the size from which this part can be filtered, and the occurrences.

        The end is 0 if the text does not have this size yet. The size is 0 if the end is known, or if the size is unknown.
        """
        end: int = self._end(text) or (len(text) if is_end else 0)
        while end:
            size = end + self._overlap
            if size > len(text) and not is_end:
                return 0, size, []
            spans = self._spans(text[:size])
            crossing = [stop for start, stop, _ in spans if start < end < stop]
            if not crossing:
                return end, 0, spans
            end = crossing[0]  # an occurrence continues after the end of the sentence
            if end > MAX_PART:
                return end, 0, spans
        return 0, 0, []

    def _end(self, text: str) -> int:
        """Return the end of the first sentence, or the position at which a long sentence is divided; 0 if unknown."""
        found = _SENTENCE_END.search(text, 0, MAX_PART)
        if found is not None:
            return found.end()
        if len(text) < MAX_PART:
            return 0
        limit = MAX_PART - self._overlap
        return text.rfind(" ", limit // 2, limit) + 1 or limit

    def _spans(self, text: str) -> list[_Span]:
        results = self._analyzer.analyze(
            text, self._language, entities=self._entities, score_threshold=self._threshold
        )
        spans: list[_Span] = []
        for each in sorted(results, key=lambda each: (each.start, -each.end, -each.score)):
            if spans and each.start < spans[-1][1]:
                start, end, entity = spans.pop()
                spans.append((start, max(end, each.end), entity))
            else:
                spans.append((each.start, each.end, each.entity_type))
        return spans

    def _replaced(self, text: str, spans: Sequence[_Span]) -> str:
        passed: list[str] = []
        position = 0
        for start, end, entity in spans:
            if start >= len(text):
                break
            if self._replacement is None:
                raise BlockedError
            passed += (text[position:start], self._replacement.replace("{entity}", entity))
            position = end
        passed.append(text[position:])
        return "".join(passed)


class _PiiStream(FilterStream):
    def __init__(self, pii: PiiFilter) -> None:
        self._pii = pii
        self._buffered = ""
        self._size = 0  # the size that the text needs before it is filtered; 0 if unknown

    async def feed(self, text: str) -> str:
        self._buffered += text
        self._size = self._size or self._pii.size(self._buffered)
        if not self._size or len(self._buffered) < self._size:
            return ""
        return await self._pass(is_end=False)

    async def close(self) -> str:
        return await self._pass(is_end=True) if self._buffered else ""

    async def _pass(self, *, is_end: bool) -> str:
        passed, self._buffered, self._size = await to_thread.run_sync(
            lambda: self._pii.passed(self._buffered, is_end=is_end)
        )
        return passed


def _create_analyzer(language: str) -> "AnalyzerEngine":
    """Create an analyzer with the recognizers of Presidio that need neither a language model nor the network."""
    try:
        import tldextract
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
