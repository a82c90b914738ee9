"""Both protocols' clients end with the same content as the task, for every form of the answer."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.a2a_client import FoldedTask, fold
from support.scenarios import Scenario, completion, cut_at, load_scenarios
from support.ui_streams import ClientTurn, read_run, read_ui_messages
from tailrace.server.protocols.ag_ui.encoder import AgUiEncoder
from tailrace.server.protocols.ai_sdk.encoder import UiMessageEncoder
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.wrappers.openai import ChatCompletionsDecoder

FIXTURES = sorted(Path(__file__).parents[2].glob("fixtures/openai/*.sse"))

# Arguments sent twice mean one call; this is detected after the first were sent.
REPEATED = "C08"


def events_of(reads: Iterable[bytes]) -> list[Event]:
    conversion = StreamConversion(ChatCompletionsDecoder(), task_id="t", context_id="c")
    events = [event for data in reads for event in conversion.feed(data)]
    return events + conversion.close()


def as_ui_message(events: Sequence[Event], tools: Sequence[str] = ()) -> ClientTurn:
    turn = EventTranslator(tools=tools)
    encoder = UiMessageEncoder(turn)
    return read_ui_messages([chunk for event in events for chunk in encoder.payloads(turn.feed(event))])


def as_run(events: Sequence[Event], tools: Sequence[str] = ()) -> ClientTurn:
    turn = EventTranslator(tools=tools)
    encoder = AgUiEncoder(turn, "thread", "run")
    return read_run([each for event in events for each in encoder.payloads(turn.feed(event))])


def answer_of(task: FoldedTask) -> str:
    """Return the text of the answer, or the reason for its absence."""
    kinds = {"text": "", "refusal": ""}
    kinds |= {name: text for name, text in task.texts.items() if name in kinds}
    return "".join(kinds.values())


def calls_of(task: FoldedTask) -> dict[str, tuple[str, Any]]:
    """Return the calls by id; of two with one id, the first."""
    found = [call for data in task.data.values() for each in data for call in _calls_in(each)]
    return {
        call["call_id"]: (call["name"], call.get("arguments_text") or call["arguments"])
        for call in reversed(found)
    }


def _calls_in(data: Any) -> list[dict[str, Any]]:
    return data.get("tool_calls", [])


def _parsed(arguments: object) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def scenarios() -> list[Scenario]:
    return [each for each in load_scenarios() if "texts" not in each.expect]


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
def test_every_shape_of_a_stream_is_the_answer_that_it_means(scenario: Scenario) -> None:
    expected = completion([scenario.body])
    [choice, *_] = expected["choices"]
    events = events_of([scenario.body])
    task = fold(event.body for event in events)
    calls = calls_of(task)
    tools = sorted({name for name, _ in calls.values()})
    message, run = as_ui_message(events, tools), as_run(events, tools)
    for turn in (message, run):
        if "images" not in choice["message"]:
            assert turn.text == answer_of(task)
        assert "".join(turn.reasoning) == task.texts.get("reasoning", "")
    if "error" in expected:
        assert message.end["type"] == "error"
        assert run.end["type"] == "RUN_ERROR"
        return
    assert message.end["finishReason"].replace("-", "_") == choice["finish_reason"]
    assert message.calls == calls
    usage = expected.get("usage")
    if usage:
        assert message.end["messageMetadata"]["usage"]["totalTokens"] == usage["total_tokens"]
    if scenario.name.startswith(REPEATED):
        assert run.end["type"] == "RUN_ERROR"
        return
    assert {call_id: (name, _parsed(text)) for call_id, (name, text) in run.calls.items()} == {
        call_id: (name, _parsed(given)) for call_id, (name, given) in calls.items()
    }
    if task.state == "TASK_STATE_INPUT_REQUIRED":
        assert message.waiting == run.waiting == set(calls)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
@given(cuts=st.lists(st.integers(min_value=0, max_value=4000), max_size=6))
def test_it_makes_no_difference_where_a_stream_was_cut(path: Path, cuts: list[int]) -> None:
    body = path.read_bytes()
    whole, parted = events_of([body]), events_of(cut_at(body, cuts))
    for read in (as_ui_message, as_run):
        one, other = read(whole), read(parted)
        assert (one.texts, one.reasoning, one.calls) == (other.texts, other.reasoning, other.calls)
        assert (one.end["type"], one.waiting) == (other.end["type"], other.waiting)


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
def test_who_comes_in_the_middle_has_the_same_in_the_end(scenario: Scenario) -> None:
    """The snapshot after each event, then the events that follow."""
    conversion = StreamConversion(ChatCompletionsDecoder(), task_id="t", context_id="c")
    events = conversion.feed(scenario.body) + conversion.close()
    whole = as_ui_message(events)
    bodies = [event.body for event in events]
    for at in sorted({1, len(events) // 2, len(events) - 1}):
        late = [standing(bodies[:at], events[at - 1]), *events[at:]]
        turn = as_ui_message(late)
        assert "".join(turn.texts) == "".join(whole.texts)
        assert "".join(turn.reasoning) == "".join(whole.reasoning)
        assert turn.calls == whole.calls
        assert turn.end == whole.end
        assert turn.waiting == whole.waiting


def standing(bodies: Sequence[bytes], last: Event) -> Event:
    """Return the snapshot after some events, as a subscription sends it."""
    task: dict[str, Any] = {}
    artifacts: dict[str, dict[str, Any]] = {}
    for body in bodies:
        event = json.loads(body)
        if "task" in event:
            task = event["task"]
        elif "statusUpdate" in event:
            task["status"] = event["statusUpdate"]["status"]
        else:
            update = event["artifactUpdate"]
            artifact = update["artifact"]
            if not update.get("append"):
                artifacts[artifact["artifactId"]] = artifact
                continue
            parts = artifacts[artifact["artifactId"]]["parts"]
            [added] = artifact["parts"]
            parts[-1] = {**parts[-1], "text": parts[-1]["text"] + added["text"]}
    task["artifacts"] = list(artifacts.values())
    return Event(last.number, json.dumps({"task": task}).encode(), last.state)
