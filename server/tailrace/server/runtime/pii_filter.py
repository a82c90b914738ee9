"""A filter that replaces personal data, such as addresses and numbers of cards, with Presidio.

It needs the extra ``pii``: ``pip install 'tailrace[pii]'``.
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
"""The default entities, which are recognised by patterns and check digits."""

MAX_HELD = 1024
"""The maximum number of characters that a stream holds back."""

_OVERLAP = 128  # characters of a sentence longer than MAX_HELD that are analysed again with its next part
_SENTENCE_END = re.compile(r"""[.!?\u2026]["'\u2019\u201d\xbb)\]]*\s|[\u3002\uff01\uff1f\n]""")


class PiiFilter(StreamFilter):
    """Replaces personal data with the names of its kinds, or ends the turn.

    A sentence is held back until its end, and analysed in a thread. A longer sentence is analysed in parts.

    Args:
        entities: The kinds of personal data, as Presidio names them.
        replacement: Replaces each occurrence; ``{entity}`` is its kind. None to end the turn instead.
        threshold: The minimum score, from 0 to 1. Patterns without check digits have 0.4 or more, guesses less.
        language: The language of the recognizers.
        analyzer: An analyzer with other recognizers, for example with a language model for names of persons; None for
            Presidio's recognizers without a language model.

    Raises:
        ConfigurationError: No recognizer finds one of the entities.
        ImportError: The extra is not installed.
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
        """Return the filtered complete sentences of a text, and the rest of the text.

        Raises:
            BlockedError: The text contains personal data, and the turn must end.
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
        """Return the filtered beginning of a text.

        Args:
            text: The text.
            size: The number of characters; None to leave a rest in which an occurrence may be incomplete.

        Returns:
            The filtered text, and the number of its characters before.
        """
        results = self._analyzer.analyze(
            text, self._language, entities=self._entities, score_threshold=self._threshold
        )
        spans: list[tuple[int, int, str]] = []  # without overlaps
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
    """Return the end of the sentence that begins at a position; None if it is incomplete or longer than `MAX_HELD`."""
    found = _SENTENCE_END.search(text, start, start + MAX_HELD)
    return None if found is None else found.end()


def _cut(text: str, spans: Sequence[tuple[int, int, str]]) -> int:
    """Return where a long sentence is divided: between words, and not in an occurrence."""
    limit = len(text) - _OVERLAP
    cut = text.rfind(" ", limit // 2, limit) + 1 or limit
    for start, end, _ in spans:
        if start < cut < end:
            return start or end
    return cut


def _create_analyzer(language: str) -> "AnalyzerEngine":
    """Create an analyzer with Presidio's recognizers that need no language model, and no network."""
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
        """Validates domains without a request for the list of top-level domains."""

        def validate_result(self, pattern_text: str) -> bool:
            return domains(pattern_text).top_domain_under_public_suffix != ""

    engine = NoOpNlpEngine([{"lang_code": language, "model_name": "none"}])
    analyzer = AnalyzerEngine(nlp_engine=engine, supported_languages=[language])
    analyzer.registry.remove_recognizer("EmailRecognizer")
    analyzer.registry.add_recognizer(LocalEmailRecognizer(supported_language=language))
    return analyzer
