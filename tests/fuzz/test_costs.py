"""Work and memory are linear in the length of a stream, for each kind of event of each format.

Work is counted, not timed: the number of function calls is the same in every run. Work inside one call is not
included; ``make fuzz`` measures time.
"""

from typing import Any

import pytest

from fuzz.corpus import samples
from fuzz.costs import IDS, INDEXES, calls, convert, fold, growth, held, repeated
from fuzz.decoder_fuzzer import decoder_of
from fuzz.framing import split
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDeltaWrapper
from tailrace.wrappers.providers import FORMATS

# The same few lines many times, which other tests cover.
pytestmark = pytest.mark.no_cover

_FEW, _TIMES = 8, 8
_TEXT = b'{"id":"1","choices":[{"index":0,"delta":{"content":"mill"},"finish_reason":null}]}'

COUNTING = pytest.mark.parametrize(
    "counting", [(), IDS, INDEXES + IDS], ids=["the same", "other ids", "all counts up"]
)


def payloads(format: str) -> list[bytes]:
    """One event of each kind."""
    return [frame.payload for seed in samples(format)[:1] for frame in split(seed.body)]


@pytest.mark.parametrize("format", FORMATS)
@COUNTING
def test_an_event_costs_the_same_however_often_it_came(format: str, counting: tuple[str, ...]) -> None:
    make = decoder_of(format)
    wrong: list[str] = []
    for payload in payloads(format):
        few = repeated([payload], _FEW, counting)
        many = repeated([payload], _FEW * _TIMES, counting)
        once = calls(lambda few=few: convert(make(), few))
        often = calls(lambda many=many: convert(make(), many))
        if often > once * _TIMES * 1.1:
            wrong.append(f"{often / once:.1f} times the calls for {_TIMES} times {payload[:150]!r}")
    assert wrong == []


@pytest.mark.parametrize("format", FORMATS)
@COUNTING
def test_a_decoder_holds_no_more_than_a_multiple_of_what_it_read(
    format: str, counting: tuple[str, ...]
) -> None:
    reads = repeated(payloads(format), 60, counting)
    assert held(decoder_of(format)(), reads) < 6 * len(b"".join(reads))


def test_a_decoder_of_text_holds_nothing() -> None:
    assert held(ChatCompletionsDecoder(), repeated([_TEXT], 3000)) < 5000


def test_work_that_grows_with_what_came_before_is_seen() -> None:
    class Forgetful(ChatCompletionsDecoder):
        """Processes all previous reads again with each read."""

        seen: tuple[Any, ...] = ()

        def feed(self, data: Any) -> list[ChoiceDeltaWrapper]:
            self.seen = (*self.seen, data)
            return [chunk for each in self.seen for chunk in ChatCompletionsDecoder().feed(each)][-1:]

    few, many = (repeated([_TEXT], times) for times in (_FEW, _FEW * _TIMES))
    assert calls(lambda: fold(Forgetful(), many)) > 2 * _TIMES * calls(lambda: fold(Forgetful(), few))
    assert growth(Forgetful, [_TEXT], times=20) > 2
