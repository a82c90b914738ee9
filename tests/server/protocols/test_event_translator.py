"""A task's events as the events of a turn."""

from typing import Any

from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.ui_events import (
    ArgumentsAdded,
    CallEnded,
    CallPending,
    CallResult,
    CallStarted,
    DataAdded,
    FileAdded,
    RoundStarted,
    StateChanged,
    TextAdded,
    TextEnded,
    TextStarted,
    TurnEnded,
    TurnStarted,
    UiEvent,
)
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import ContentPartToolCall

LOOK = {"call_id": "c1", "name": "look", "arguments": {"a": 1}}
CALL = ContentPartToolCall(id="c1", name="look", arguments={"a": 1})
DONE = StatusUpdate(TaskState.COMPLETED)


def user_message(text: str = "hi") -> Message:
    return Message(message_id=f"m-{text}", role=Role.USER, parts=(Part(text=text),))


def results(*entries: dict[str, Any]) -> Message:
    return Message(message_id="r", role=Role.USER, parts=(Part(data={"tool_results": list(entries)}),))


def artifact(artifact_id: str, *parts: Part, name: str = "", **facts: Any) -> Artifact:
    metadata = {EXTENSION_URI: facts} if facts else {}
    return Artifact(artifact_id=artifact_id, parts=parts, name=name, metadata=metadata)


def text(value: str, artifact_id: str = "text", **facts: Any) -> ArtifactUpdate:
    facts = {"channel": "text", **facts}
    return ArtifactUpdate(artifact(artifact_id, Part(text=value), **facts), last=False)


def call(*pieces: str, whole: dict[str, Any] | None = LOOK, **facts: Any) -> list[Update]:
    facts = {"channel": "tool_call", **facts}
    name = whole["name"] if whole else "look"
    updates: list[Update] = [
        ArtifactUpdate(artifact("tool-call-1", Part(text=pieces[0]), name=name, **facts), last=False)
    ]
    updates += [TextDelta("tool-call-1", piece) for piece in pieces[1:]]
    if whole is not None:
        data = Part(data={"tool_calls": [whole]})
        updates.append(ArtifactUpdate(artifact("tool-call-1", data, name=name, **facts)))
    return updates


def waiting(*calls: dict[str, Any]) -> StatusUpdate:
    message = Message(message_id="s", role=Role.AGENT, parts=(Part(data={"tool_calls": list(calls)}),))
    return StatusUpdate(TaskState.INPUT_REQUIRED, message)


def begun() -> TaskRecord:
    record = TaskRecord.create(user_message(), task_id="t", context_id="c")
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    return record


def read(turn: EventTranslator, *updates: Update, record: TaskRecord | None = None) -> list[UiEvent]:
    record = record or begun()
    events = [record.apply(update) for update in updates]
    return [each for event in events for each in turn.feed(event)]


def standing(record: TaskRecord) -> Event:
    body = StreamResponse(task=record.snapshot()).to_json()
    return Event(record.number, body, record.state)


def test_a_text_is_reported_as_it_grows() -> None:
    assert read(
        EventTranslator(), text("a"), TextDelta("text", "b"), TextDelta("text", "", last=True), DONE
    ) == [
        RoundStarted(1, 1),
        TextStarted("text", "text"),
        TextAdded("text", "text", "a"),
        TextAdded("text", "text", "b"),
        TextEnded("text", "text"),
        TurnEnded(TaskState.COMPLETED),
    ]


def test_reasoning_ends_at_a_text_and_further_reasoning_starts_after_it() -> None:
    thought = text("hm", "reasoning", channel="reasoning")
    more = TextDelta("reasoning", "ah", last=True)
    folded = read(EventTranslator(), thought, text("So"), more, DONE)
    assert [each for each in folded if isinstance(each, TextStarted | TextEnded)] == [
        TextStarted("reasoning", "reasoning"),
        TextEnded("reasoning", "reasoning"),
        TextStarted("text", "text"),
        TextStarted("reasoning-2", "reasoning"),
        TextEnded("reasoning-2", "reasoning"),
        TextEnded("text", "text"),
    ]


def test_a_restarted_text_continues_at_its_position() -> None:
    folded = read(
        EventTranslator(), text("abc"), text(""), TextDelta("text", "ab"), TextDelta("text", "cd"), DONE
    )
    assert "".join(each.text for each in folded if isinstance(each, TextAdded)) == "abcd"


def test_a_text_that_has_become_another_is_an_error() -> None:
    turn = EventTranslator()
    *_, ended = read(turn, text("abc"), text("xyz"), DONE)
    assert isinstance(ended, TurnEnded)
    assert ended.error is not None
    assert ended.error.code == "answer_replaced"
    assert turn.ended


def test_the_error_of_a_response_precedes_its_restart() -> None:
    *_, ended = read(EventTranslator(), text("abc"), text(""), StatusUpdate(TaskState.FAILED))
    assert isinstance(ended, TurnEnded)
    assert ended.error is not None
    assert ended.error.code == "task_failed"


def test_a_client_call_is_reported_as_it_is_written_and_waits() -> None:
    turn = EventTranslator(tools=["look"])
    assert read(turn, *call('{"a"', ": 1}", callId="c1"), waiting(LOOK)) == [
        RoundStarted(1, 1),
        CallStarted("c1", "look", declared=True),
        ArgumentsAdded("c1", '{"a"'),
        ArgumentsAdded("c1", ": 1}"),
        CallEnded(CALL, True),
        TurnEnded(TaskState.INPUT_REQUIRED, "tool_calls", pending=("c1",)),
    ]


def test_a_call_with_a_known_id_is_reported_under_its_new_id() -> None:
    turn = EventTranslator(tools=["look"], known_ids=["c1"])
    renamed = {**LOOK, "call_id": "c9"}
    folded = read(turn, *call('{"a": 1}', whole=renamed, callId="c1"), waiting(renamed))
    assert folded[1:3] == [CallStarted("c9", "look", declared=True), ArgumentsAdded("c9", '{"a": 1}')]


def test_a_call_that_waits_is_the_clients_though_it_has_not_declared_it() -> None:
    *_, left, ended = read(EventTranslator(), *call('{"a": 1}', callId="c1"), waiting(LOOK))
    assert left == CallPending(CALL)
    assert isinstance(ended, TurnEnded)
    assert ended.pending == ("c1",)


def test_a_call_that_is_only_in_the_status_is_reported_completely() -> None:
    assert read(EventTranslator(tools=["look"]), waiting(LOOK))[:-1] == [
        CallStarted("c1", "look", declared=True),
        ArgumentsAdded("c1", '{"a": 1}'),
        CallEnded(CALL, True),
    ]


def test_invalid_arguments_are_reported_verbatim() -> None:
    broken: dict[str, Any] = {
        "call_id": "c1",
        "name": "look",
        "arguments": {},
        "arguments_text": '{"a',
        "arguments_error": "no",
    }
    *_, ended, _ = read(EventTranslator(tools=["look"]), *call('{"a', whole=broken, callId="c1"), DONE)
    assert isinstance(ended, CallEnded)
    assert (ended.input, ended.call.arguments_error, ended.as_written) == ('{"a', "no", True)


def test_rewritten_arguments_are_marked() -> None:
    *_, ended, _ = read(EventTranslator(), *call('{"a": 1}{"a": 1}', callId="c1"), DONE)
    assert ended == CallEnded(CALL, False, as_written=False)


def test_results_of_the_agents_tools_are_reported_once() -> None:
    entries = [
        {"call_id": "c1", "name": "look", "output": {"b": 2}},
        {"call_id": "c1", "name": "look", "output": "again"},
        {"call_id": "other", "name": "look", "output": "nobody asked"},
    ]
    result = ArtifactUpdate(
        artifact("tool-result-1", Part(data={"tool_results": entries}), channel="tool_result")
    )
    folded = read(EventTranslator(), *call('{"a": 1}', callId="c1"), result, DONE)
    assert [each for each in folded if isinstance(each, CallResult)] == [CallResult("c1", {"b": 2})]


def test_a_failed_tool_is_reported() -> None:
    entry = {"call_id": "c1", "name": "look", "output": "broken", "is_error": True}
    result = ArtifactUpdate(
        artifact("tool-result-1", Part(data={"tool_results": [entry]}), channel="tool_result")
    )
    folded = read(EventTranslator(), *call('{"a": 1}', callId="c1"), result, DONE)
    assert CallResult("c1", "broken", is_error=True) in folded


def test_rounds_follow_one_another() -> None:
    folded = read(EventTranslator(), text("a"), text("b", "text-round-2", round=2), DONE)
    assert [type(each) for each in folded] == [
        RoundStarted,
        TextStarted,
        TextAdded,
        TextEnded,
        RoundStarted,
        TextStarted,
        TextAdded,
        TextEnded,
        TurnEnded,
    ]


def test_files_and_data_are_given_by_their_kind() -> None:
    file = artifact("file-1", Part(raw=b"\x89PNG", media_type="image/png", filename="a.png"), channel="file")
    data = artifact("data-1", Part(data={"x": 1}), name="facts", channel="data")
    output = artifact("output", Part(data={"y": 2}), name="output", channel="output")
    folded = read(EventTranslator(), ArtifactUpdate(file), ArtifactUpdate(data), ArtifactUpdate(output), DONE)
    assert folded[1:-1] == [
        FileAdded("file-1", "data:image/png;base64,iVBORw==", "image/png", "a.png"),
        DataAdded("data-1", "facts", {"x": 1}),
        DataAdded("output", "output", {"y": 2}, is_output=True),
    ]


def test_an_agent_that_knows_nothing_of_channels_is_read_as_text_files_and_data() -> None:
    mixed = artifact("a", Part(text="See"), Part(url="https://x.example/a.pdf"), Part(data=[1]), name="A")
    folded = read(EventTranslator(), ArtifactUpdate(mixed), DONE)
    assert folded[1:-1] == [
        TextStarted("a", "text"),
        TextAdded("a", "text", "See"),
        TextEnded("a", "text"),
        FileAdded("a", "https://x.example/a.pdf", "application/octet-stream"),
        DataAdded("a", "A", [1]),
    ]


def test_the_last_status_message_is_reported_if_there_is_no_other_text() -> None:
    agent_message = Message(message_id="s", role=Role.AGENT, parts=(Part(text="Which?"),))
    question = StatusUpdate(TaskState.INPUT_REQUIRED, agent_message)
    folded = read(EventTranslator(), question)
    assert folded[:-1] == [
        TextStarted("status", "text"),
        TextAdded("status", "text", "Which?"),
        TextEnded("status", "text"),
    ]
    answered = read(EventTranslator(), text("a"), StatusUpdate(TaskState.COMPLETED, agent_message))
    assert [each.text for each in answered if isinstance(each, TextAdded)] == ["a"]


def test_progress_is_reported() -> None:
    agent_message = Message(message_id="s", role=Role.AGENT, parts=(Part(text="Searching"),))
    folded = read(EventTranslator(), StatusUpdate(TaskState.WORKING, agent_message))
    assert folded == [StateChanged(TaskState.WORKING, "Searching")]


def test_what_was_counted_and_referred_to_comes_at_the_end() -> None:
    facts = {
        "finishReason": "length",
        "usage": {"totalTokens": 3},
        "extra": {"annotations": [{"url": "https://x.example"}]},
        "response": {"model": "m"},
    }
    done = StatusUpdate(TaskState.COMPLETED, metadata={EXTENSION_URI: facts})
    *_, ended = read(EventTranslator(), text("a"), done)
    assert ended == TurnEnded(
        TaskState.COMPLETED,
        "length",
        usage={"totalTokens": 3},
        annotations=({"url": "https://x.example"},),
        response={"model": "m"},
    )


def test_a_direct_answer_has_no_task() -> None:
    agent_message = Message(
        message_id="d",
        role=Role.AGENT,
        parts=(
            Part(text="hm", metadata={EXTENSION_URI: {"channel": "reasoning"}}),
            Part(text="Hello"),
            Part(url="https://x.example/a.png", media_type="image/png"),
        ),
    )
    turn = EventTranslator()
    folded = turn.feed(Event(0, StreamResponse(message=agent_message).to_json()))
    assert [each.text for each in folded if isinstance(each, TextAdded)] == ["hm", "Hello"]
    assert FileAdded("message", "https://x.example/a.png", "image/png") in folded
    assert folded[-1] == TurnEnded(TaskState.COMPLETED)
    assert (turn.task_id, turn.ended) == ("", True)


# --- several turns ----------------------------------------------------------------------------------------------


def in_second_turn() -> TaskRecord:
    """A tool of the client was called and has returned."""
    record = begun()
    for update in [text("Let me see."), *call('{"a": 1}', callId="c1"), waiting(LOOK)]:
        record.apply(update)
    record.receive(results({"call_id": "c1", "name": "look", "output": "seen"}))
    record.apply(StatusUpdate(TaskState.WORKING))
    record.apply(text("So", "text-turn-2", turn=2))
    return record


def test_a_turn_that_continues_a_task_omits_the_earlier_turns() -> None:
    record = in_second_turn()
    turn = EventTranslator()
    assert turn.feed(standing(record)) == [
        TurnStarted("t", "c", 2),
        RoundStarted(2, 1),
        TextStarted("text-turn-2", "text"),
        TextAdded("text-turn-2", "text", "So"),
    ]
    assert read(turn, TextDelta("text-turn-2", "."), record=record) == [TextAdded("text-turn-2", "text", ".")]


def test_a_full_response_begins_after_the_users_message() -> None:
    record = in_second_turn()
    turn = EventTranslator(includes_earlier_turns=True)
    folded = turn.feed(standing(record))
    assert folded[0] == TurnStarted("t", "c", 1)
    assert CallResult("c1", "seen", by_caller=True) in folded
    assert "".join(each.text for each in folded if isinstance(each, TextAdded)) == "Let me see.So"
    assert [each for each in folded if isinstance(each, RoundStarted)] == [
        RoundStarted(1, 1),
        RoundStarted(2, 1),
    ]


def test_a_full_response_does_not_reach_back_beyond_the_users_message() -> None:
    record = begun()
    record.apply(text("Which?"))
    record.apply(StatusUpdate(TaskState.INPUT_REQUIRED))
    record.receive(user_message("That one"))
    record.apply(StatusUpdate(TaskState.WORKING))
    folded = EventTranslator(includes_earlier_turns=True).feed(standing(record))
    assert folded == [TurnStarted("t", "c", 2)]


def test_a_finished_task_is_reported_completely() -> None:
    record = begun()
    record.apply(text("All"))
    record.apply(StatusUpdate(TaskState.COMPLETED, metadata={EXTENSION_URI: {"usage": {"totalTokens": 3}}}))
    *folded, ended = EventTranslator().feed(standing(record))
    assert [each.text for each in folded if isinstance(each, TextAdded)] == ["All"]
    assert ended == TurnEnded(TaskState.COMPLETED, usage={"totalTokens": 3})


def test_a_lagging_turn_receives_the_rest() -> None:
    record = begun()
    turn = EventTranslator()
    folded = read(turn, text("ab"), record=record)
    record.apply(TextDelta("text", "cd"))
    for update in call('{"a": 1}', callId="c1"):
        record.apply(update)
    for event in record.overview():
        folded += turn.feed(event)
    folded += read(turn, TextDelta("text", "e", last=True), DONE, record=record)
    assert "".join(each.text for each in folded if isinstance(each, TextAdded)) == "abcde"
    assert [each for each in folded if isinstance(each, CallEnded)] == [CallEnded(CALL, False)]
