"""Each conformance scenario through decoder, accumulator and ``chat.completion``, wherever reads are cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.scenarios import Scenario, completion, cut_at, in_reads, load_scenarios, mismatches, payloads
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import StreamResponse
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.wrappers.openai import ChatCompletionsDecoder

SCENARIOS = load_scenarios()
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)


def events_of(scenario: Scenario, reads: list[bytes]) -> tuple[StreamConversion, list[Event]]:
    conversion = StreamConversion(ChatCompletionsDecoder())
    events = [event for data in reads for event in conversion.feed(data)]
    return conversion, events + conversion.close()


def test_the_scenarios_are_all_there() -> None:
    assert len(SCENARIOS) == 105


@every_scenario
def test_a_body_in_one_read_is_understood(scenario: Scenario) -> None:
    found = completion([scenario.body])
    assert mismatches(scenario.expect, found) == []


@every_scenario
def test_a_body_in_single_bytes_gives_the_same_as_in_one_read(scenario: Scenario) -> None:
    whole = completion([scenario.body])
    assert completion(in_reads(scenario.body, 1)) == whole


@given(scenario=st.sampled_from(SCENARIOS), positions=st.lists(st.integers(0, 1400), max_size=12))
@settings(max_examples=300, deadline=None)
def test_a_body_cut_anywhere_gives_the_same_as_in_one_read(scenario: Scenario, positions: list[int]) -> None:
    whole = completion([scenario.body])
    assert completion(cut_at(scenario.body, positions)) == whole


@every_scenario
def test_the_events_are_numbered_valid_and_end_the_task(scenario: Scenario) -> None:
    conversion, events = events_of(scenario, in_reads(scenario.body, 60))
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    states = [event.state for event in events if event.state is not None]
    assert all(not (state.terminal or state.interrupted) for state in states[:-1])
    assert states[-1].terminal or states[-1].interrupted
    assert states[-1] is conversion.record.state
    for event in events:
        StreamResponse.model_validate_json(event.body)
    json.dumps(conversion.message(), allow_nan=False).encode()


@every_scenario
def test_the_artifacts_hold_the_text_of_the_answer(scenario: Scenario) -> None:
    conversion, _ = events_of(scenario, [scenario.body])
    texts = {
        artifact.artifact_id: artifact.parts[0].text for artifact in conversion.record.snapshot().artifacts
    }
    if "text" in scenario.expect:
        assert texts.get("text", "") == scenario.expect["text"]
    if "reasoning" in scenario.expect:
        assert texts["reasoning"] == scenario.expect["reasoning"]
    if "refusal" in scenario.expect:
        assert texts["refusal"] == scenario.expect["refusal"]


def test_think_tags_are_text_if_the_operator_configures_it() -> None:
    (scenario,) = (each for each in SCENARIOS if each.name.startswith("E05"))
    message = completion([scenario.body], think_tags=False)["choices"][0]["message"]
    assert message["content"] == "<think>hmm</think>Answer"
    assert "reasoning_content" not in message


@pytest.mark.parametrize(
    "scenario", [each for each in SCENARIOS if not each.name.startswith(("E05", "E16"))], ids=str
)
def test_splitting_think_tags_leaves_every_other_answer_alone(scenario: Scenario) -> None:
    assert completion([scenario.body]) == completion([scenario.body], think_tags=False)


def test_the_helper_reads_the_payloads_of_a_body() -> None:
    assert payloads(b'data: {"a":1}\r\n\r\ndata:{"b":2}\n\ndata: [1]\n\ndata: [DONE]\n\n') == [
        {"a": 1},
        {"b": 2},
    ]
