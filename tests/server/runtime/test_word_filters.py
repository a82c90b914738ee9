"""Word lists and expressions give the same text for every division into deltas."""

import os
import random
from pathlib import Path

import pytest

from support.random_seeds import EVERY_TIME_OTHERS
from tailrace.server.runtime.stream_filter import BlockedError, StreamFilter
from tailrace.server.runtime.word_filters import MAX_BUFFERED, RegexFilter, WordFilter, read_filters
from tailrace.wrappers import ConfigurationError

CASES = int(os.environ.get("TAILRACE_TEST_FILTER_CASES", "300"))
"""Random divisions of a text; the torture run takes more."""


async def passed(given: StreamFilter, pieces: list[str]) -> list[str]:
    """What a stream of the filter publishes for each piece, and at the end."""
    stream = given.open()
    return [*[await stream.feed(piece) for piece in pieces], await stream.close()]


@pytest.mark.parametrize(
    ("words", "pieces", "expected"),
    [
        (["secret"], ["a sec", "ret b"], ["a ", "[blocked] b", ""]),
        (["secret"], ["a sec", "ond"], ["a ", "second", ""]),
        (["secret"], ["a sec"], ["a ", "sec"]),
        (["secret"], ["SeC", "REt"], ["", "[blocked]", ""]),
        (["straße"], ["die STRAS", "SE!"], ["die ", "[blocked]!", ""]),
        (["é"], ["cafe\u0301", " caf\u00e9"], ["caf[blocked]", " caf[blocked]", ""]),
        (["ab", "bc"], ["xab", "cx"], ["x", "[blocked]x", ""]),
        (["a", "abc"], ["xab", "d"], ["x", "[blocked]bd", ""]),
        (["🌊🌊"], ["🌊", "🌊🌊", "!"], ["", "", "[blocked]!", ""]),
    ],
)
async def test_a_word_is_replaced_across_deltas(
    words: list[str], pieces: list[str], expected: list[str]
) -> None:
    assert await passed(WordFilter(words), pieces) == expected


@pytest.mark.parametrize(
    ("pattern", "pieces", "expected"),
    [
        (r"\d{4}", ["12", "34 ", "123"], "[blocked] 123"),
        (r"\bcat\b", ["cat concat cat", "s cat"], "[blocked] concat cats [blocked]"),
        (r"^a", ["aa", "a"], "[blocked]aa"),
        (r"sk-\w+", ["key sk-" + "x" * 300, "y" * 300, " end"], "key [blocked] end"),
        (r"x*", ["a", "xx", "b"], "a[blocked]b"),
        (r"(?i)GEHEIM", ["é geh", "eim ü"], "é [blocked] ü"),
    ],
)
async def test_an_expression_is_replaced_across_deltas(
    pattern: str, pieces: list[str], expected: str
) -> None:
    assert "".join(await passed(RegexFilter(pattern, max_match=16), pieces)) == expected


@pytest.mark.parametrize(
    "given",
    [WordFilter(["ab", "abba", "bb c", "é", "ẞ"]), RegexFilter(r"\bab+a?\b|c c|é$|s+", max_match=12)],
    ids=["words", "expression"],
)
async def test_the_result_does_not_depend_on_the_deltas(given: StreamFilter) -> None:
    chance = random.Random(None if EVERY_TIME_OTHERS else 1)
    for _ in range(CASES):
        text = "".join(chance.choices("aab bc éẞsS\u0301", k=chance.randrange(60)))
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(12)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert "".join(await passed(given, pieces)) == "".join(await passed(given, [text])), (text, pieces)


@pytest.mark.parametrize("given", [WordFilter(["bad"], None), RegexFilter("bad", None, 8)])
async def test_a_filter_without_a_replacement_ends_the_turn(given: StreamFilter) -> None:
    stream = given.open()
    assert await stream.feed("fine ba") in ("fine ", "")
    with pytest.raises(BlockedError):
        await stream.feed("d, and more text")


@pytest.mark.parametrize("given", [WordFilter(["aa"]), RegexFilter("a+", max_match=8)])
async def test_a_match_that_exceeds_the_bound_ends_the_turn(given: StreamFilter) -> None:
    with pytest.raises(BlockedError):
        await given.open().feed("a" * (MAX_BUFFERED + 100))


def test_an_invalid_filter_names_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "words"
    with pytest.raises(ConfigurationError, match="cannot read the filter file"):
        read_filters(path)
    path.write_text("# nothing\n\n")
    with pytest.raises(ConfigurationError, match="has no words"):
        read_filters(path)
    path.write_text("/(/\n")
    with pytest.raises(ConfigurationError, match="invalid expression"):
        read_filters(path)
    for words in ([], [""], ["x" * MAX_BUFFERED]):
        with pytest.raises(ConfigurationError):
            WordFilter(words)
    with pytest.raises(ConfigurationError, match="max_match"):
        RegexFilter("a", max_match=0)


async def test_a_file_has_words_and_expressions(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("# comment\nProject Falcon\n/\\d{3}-\\d{2}/\n")
    words, expression = read_filters(path)
    assert "".join(await passed(words, ["the project fal", "con"])) == "the [blocked]"
    assert "".join(await passed(expression, ["a 12", "3-45 b"])) == "a [blocked] b"
