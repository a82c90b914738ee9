"""Personal data is replaced, for every division of the text, and is on no wire and in no database."""

import json
import logging
import os
import random
from pathlib import Path

import pytest
from presidio_analyzer import AnalyzerEngine, Pattern, PatternRecognizer, RecognizerRegistry
from presidio_analyzer.nlp_engine import NoOpNlpEngine
from pydantic import SecretStr

from support.live_server import serving
from support.missing_packages import run_without
from support.random_seeds import EVERY_TIME_OTHERS
from support.rpc import Rpc, message, streamed_text
from support.upstream import ScriptedUpstream, openai_chunk, openai_stream, sse
from tailrace.server import Settings, create_app
from tailrace.server.runtime.pii_filter import MAX_PART, PiiFilter
from tailrace.server.runtime.stream_filter import BlockedError
from tailrace.wrappers import ConfigurationError

CASES = int(os.environ.get("TAILRACE_TEST_FILTER_CASES", "50"))
"""Random divisions of a text; the torture run takes more."""

EMAIL, CARD, PHONE, DIVIDED, IBAN = (
    "jo.doe@example.com",
    "4111 1111 1111 1111",
    "+44 20 7946 0958",
    "+44 20 7946. 0959",
    "DE89370400440532013000",
)


@pytest.fixture(scope="module")
def pii() -> PiiFilter:
    return PiiFilter()


async def passed(pii: PiiFilter, *pieces: str) -> list[str]:
    """What a stream publishes for each piece, and at the end."""
    stream = pii.open()
    return [*[await stream.feed(piece) for piece in pieces], await stream.close()]


MORE = "More text follows" * 8
"""Text that is longer than the overlap of two sentences, without the end of a sentence."""


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Write to jo.d", "oe@example.com", ". ", MORE], ["", "", "", "Write to [EMAIL_ADDRESS]. ", MORE]),
        (["Card 4111 1111", f" 1111 1111\n{MORE}"], ["", "Card [CREDIT_CARD]\n", MORE]),
        (["Call +44 20 7946 0958"], ["", "Call [PHONE_NUMBER]"]),
        (["SSN 536-22-1234, IP 10.1.2.3."], ["", "SSN [US_SSN], IP [IP_ADDRESS]."]),
        (["Version 1.2. Done? ", "Yes", MORE], ["", "", "Version 1.2. Done? ", f"Yes{MORE}"]),
        (["Call +44 20. ", f"7946 0958 today. {MORE}"], ["", "Call [PHONE_NUMBER] today. ", MORE]),
        (["Call 415. 5", "55. 2671"], ["", "", "Call [PHONE_NUMBER]"]),
    ],
)
async def test_personal_data_is_replaced_across_deltas(
    pii: PiiFilter, pieces: list[str], expected: list[str]
) -> None:
    assert await passed(pii, *pieces) == expected


@pytest.mark.timeout(3000)
async def test_the_result_does_not_depend_on_the_deltas(pii: PiiFilter) -> None:
    chance = random.Random(None if EVERY_TIME_OTHERS else 1)
    spans = [
        EMAIL,
        CARD,
        PHONE,
        DIVIDED,
        IBAN,
        "word",
        "and more words",
        "é🌊。",
        "x" * 400,
        "The end.",
        "12",
        "\n",
    ]
    for _ in range(CASES):
        text = " ".join(chance.choices(spans, k=chance.randrange(20)))
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(12)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        published = "".join(await passed(pii, *pieces))
        assert published == "".join(await passed(pii, text)), (text, pieces)
        assert not any(each in published for each in (EMAIL, CARD, IBAN))


@pytest.mark.parametrize("offset", range(MAX_PART - 160, MAX_PART + 4, 4))
async def test_a_long_sentence_is_divided_between_occurrences(pii: PiiFilter, offset: int) -> None:
    text = ("x" if offset % 8 else "word ") * 400
    text = text[:offset] + f" {EMAIL} " + "more " * 300
    published = await passed(pii, *text)
    assert EMAIL not in "".join(published)
    assert "".join(published) == text.replace(EMAIL, "[EMAIL_ADDRESS]")
    assert len(published[-1]) < MAX_PART


async def test_a_filter_without_a_replacement_ends_the_turn() -> None:
    stream = PiiFilter(["CREDIT_CARD"], replacement=None).open()
    assert await stream.feed(f"Write to {EMAIL}. Pay with 4111 1111") == ""
    assert await stream.feed(f" 1111 1111, {MORE}") == f"Write to {EMAIL}. "
    with pytest.raises(BlockedError):
        await stream.close()


async def test_an_analyzer_finds_entities_of_its_own() -> None:
    staff = PatternRecognizer("STAFF_ID", "staff", patterns=[Pattern("id", r"\bE-\d{5}\b", 0.8)])
    analyzer = AnalyzerEngine(
        RecognizerRegistry([staff]), NoOpNlpEngine([{"lang_code": "en", "model_name": "none"}])
    )
    staff_filter = PiiFilter(["STAFF_ID"], "<{entity}>", analyzer=analyzer)
    assert "".join(await passed(staff_filter, "Ask E-12", "345 today")) == "Ask <STAFF_ID> today"


NAMES = PatternRecognizer(
    "NAME", "name", patterns=[Pattern("name", r"J\.\s+R\.\s+R\.\s+Tolkien|Jo\s+Doe", 0.8)]
)
"""Recognizes names that contain ends of sentences, as language models do."""


@pytest.mark.parametrize("name", ["J. R. R. Tolkien", "J.\nR.\nR.\nTolkien", "Jo\nDoe"])
@pytest.mark.parametrize("before", ["", "x" * (MAX_PART - 8), "word " * 202, "One. " * 30])
async def test_a_name_with_ends_of_sentences_is_replaced_for_any_deltas(name: str, before: str) -> None:
    analyzer = AnalyzerEngine(
        RecognizerRegistry([NAMES]), NoOpNlpEngine([{"lang_code": "en", "model_name": "none"}])
    )
    names = PiiFilter(["NAME"], analyzer=analyzer)
    text = f"{before} It is by {name}. And by {name}.\n{name}"
    expected = text.replace(name, "[NAME]")
    assert "".join(await passed(names, text)) == expected
    for position in range(len(before), len(text)):
        assert "".join(await passed(names, text[:position], text[position:])) == expected
    assert "".join(await passed(names, *text)) == expected


async def test_personal_data_is_not_sent_stored_or_logged(
    pii: PiiFilter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tailrace")
    function = {"name": "look", "arguments": json.dumps({"mail": EMAIL, "card": CARD})}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    chunks = [
        {"reasoning_content": f"He is {EMAIL}"},
        {"content": f"It is {CARD[:9]}"},
        {"content": CARD[9:]},
    ]
    script = [
        sse(
            *(openai_chunk(each) for each in [*chunks, {"tool_calls": [call]}]),
            openai_chunk({}, finish="tool_calls"),
            "[DONE]",
        )
    ]
    async with ScriptedUpstream(script, lists_models=True) as upstream:
        store = f"sqlite:///{tmp_path / 'tasks.db'}"
        settings = Settings(store=store, model="openai:m", base_url=upstream.base_url, api_key=SecretStr("k"))
        async with serving(create_app(settings, filters=[pii])) as url, Rpc(url) as rpc:
            events = await rpc.stream("SendStreamingMessage", message("hi"))
    sent = json.dumps(events)
    assert "He is [EMAIL_ADDRESS]" in streamed_text(events)
    assert "It is [CREDIT_CARD]" in streamed_text(events)
    assert '"mail": "[EMAIL_ADDRESS]"' in sent
    for each in (EMAIL, CARD):
        assert each not in sent + caplog.text
        assert each.encode() not in _bytes_of(tmp_path)


async def test_a_message_with_personal_data_is_refused(pii: PiiFilter) -> None:
    async with ScriptedUpstream(openai_stream(["hi"]), lists_models=True) as upstream:
        settings = Settings(
            store="sqlite://", model="openai:m", base_url=upstream.base_url, api_key=SecretStr("k")
        )
        async with serving(create_app(settings, input_filters=[pii])) as url, Rpc(url) as rpc:
            error = await rpc.error("SendMessage", message(f"I am {EMAIL}"))
            assert error["data"][0]["reason"] == "CONTENT_FILTERED"
            await rpc.stream("SendStreamingMessage", message("I am 42."))


def test_unknown_entities_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"no recognizer finds NOTHING; known entities: .*EMAIL_ADDRESS"
    ):
        PiiFilter(["NOTHING"])
    with pytest.raises(ConfigurationError, match="no recognizer finds anything"):
        PiiFilter([])
    with pytest.raises(ConfigurationError, match=r"max_match .* from 1 to 256, not 1024"):
        PiiFilter(max_match=1024)


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "from tailrace.server.runtime.pii_filter import PiiFilter\n"
        "try:\n    PiiFilter()\nexcept ImportError as error:\n    print(error)"
    )
    assert "pip install 'tailrace[pii]'" in run_without("presidio_analyzer", code)


def _bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())
