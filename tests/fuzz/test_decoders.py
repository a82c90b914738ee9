"""Any input of a provider or proxy raises only `UpstreamError` and gives valid results.

A short form of ``make fuzz``. The cases are the same in every run, as many as the time allows; the command to repeat
one follows its traceback.
"""

import os
import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.cases import Case, cut
from fuzz.corpus import seeds
from fuzz.decoder_fuzzer import check_case, decoder_of
from fuzz.mutations import NAMES
from fuzz.oracles import check
from support.random_seeds import EVERY_TIME_OTHERS
from tailrace.wrappers.providers import FORMATS

# Coverage is disabled as for all tests with generated cases, which triples the number of cases.
pytestmark = pytest.mark.no_cover

SECONDS = float(os.environ.get("TAILRACE_FUZZ_SECONDS", "3"))
"""CPU time of each test here; other processes on the machine make it longer, but never twice as long."""
_ROUND = 150  # cases between two checks of the clock

_NUMBERS = st.integers(0, 2**32 - 1)


def cases(formats: st.SearchStrategy[str], *, detecting: bool) -> st.SearchStrategy[Case]:
    """Cases with bodies in one of these formats."""
    return st.builds(
        Case,
        format=formats,
        body=st.integers(0, 2**16),
        other=st.integers(0, 2**16),
        steps=st.lists(st.tuples(st.sampled_from(NAMES), _NUMBERS), min_size=1, max_size=8).map(tuple),
        reads=_NUMBERS,
        bound=st.sampled_from((0, 0, 0, 0, 0, 0, 0, 300)),
        think_tags=st.booleans(),
        detecting=st.just(detecting),
    )


def run(case: Case) -> None:
    """Check one case."""
    body = case.build()
    try:
        check_case(case, body)
    except Exception as error:
        error.add_note(f"body: {body[:2000]!r}")
        error.add_note(f"case, for a file that `python -m fuzz --decoders --repeat` takes: {case.to_json()}")
        raise


def run_for_a_while(formats: st.SearchStrategy[str], *, detecting: bool = False) -> int:
    """Run cases until the time is over; return their number."""
    count = 0

    @settings(
        max_examples=_ROUND,
        deadline=None,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
    )
    @given(cases(formats, detecting=detecting))
    def round_of_cases(case: Case) -> None:
        nonlocal count
        count += 1
        run(case)

    cpu, clock = time.process_time() + SECONDS, time.monotonic() + 2 * SECONDS
    rounds = 0
    while time.process_time() < cpu and time.monotonic() < clock:
        rounds += 1
        (round_of_cases if EVERY_TIME_OTHERS else seed(rounds)(round_of_cases))()
    return count


@pytest.mark.timeout(600)  # minimisation takes time
@pytest.mark.parametrize("format", FORMATS)
def test_a_mutated_body_raises_only_upstream_errors_and_gives_strict_json(
    format: str,
) -> None:
    assert run_for_a_while(st.just(format)) >= _ROUND


@pytest.mark.timeout(600)
def test_the_detecting_decoder_reads_mutated_bodies_of_every_format() -> None:
    assert run_for_a_while(st.sampled_from(sorted(FORMATS)), detecting=True) >= _ROUND


@pytest.mark.parametrize("format", FORMATS)
def test_every_body_of_the_corpus_holds_as_it_is(format: str) -> None:
    for each in seeds(format):
        if len(each.body) < 6000:
            check(decoder_of(format), each.body, cut(each.body, len(each.body)))


def test_a_case_is_the_same_after_being_written_down() -> None:
    case = Case("anthropic", 3, 5, (("replace", 1), ("splice", 2)), 7, 300, think_tags=True)
    again = Case.from_json(case.to_json())
    assert again == case
    assert again.build() == case.build() != seeds("anthropic")[3 % len(seeds("anthropic"))].body
