"""A task's events as what happens in a turn."""

from typing import Any

from tailrace.server.ui_streams.happenings import (
    ArgumentsAdded,
    Begun,
    CallAnswered,
    CallBegun,
    CallEnded,
    CallLeft,
    DataGiven,
    Ended,
    FileGiven,
    Happening,
    RoundBegun,
    StateChanged,
    TextAdded,
    TextBegun,
    TextEnded,
)
from tailrace.server.ui_streams.turns import TurnReader
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event, TaskRecord
from tailrace.streaming.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update

LOOK = {"call_id": "c1", "name": "look", "arguments": {"a": 1}}
DONE = StatusUpdate(TaskState.COMPLETED)


def asked(text: str = "hi") -> Message:
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
    record = TaskRecord.create(asked(), task_id="t", context_id="c")
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    return record


def read(reader: TurnReader, *updates: Update, record: TaskRecord | None = None) -> list[Happening]:
    record = record or begun()
    events = [record.apply(update) for update in updates]
    return [happening for event in events for happening in reader.take(event)]


def standing(record: TaskRecord) -> Event:
    body = StreamResponse(task=record.snapshot()).to_json()
    return Event(record.number, body, record.state)


def test_a_text_is_told_as_it_grows() -> None:
    assert read(TurnReader(), text("a"), TextDelta("text", "b"), TextDelta("text", "", last=True), DONE) == [
        RoundBegun(1, 1),
        TextBegun("text", "text"),
        TextAdded("text", "text", "a"),
        TextAdded("text", "text", "b"),
        TextEnded("text", "text"),
        Ended(TaskState.COMPLETED),
    ]


def test_a_thought_ends_where_the_model_speaks_and_another_begins_behind() -> None:
    thought = text("hm", "reasoning", channel="reasoning")
    more = TextDelta("reasoning", "ah", last=True)
    happened = read(TurnReader(), thought, text("So"), more, DONE)
    assert [each for each in happened if isinstance(each, TextBegun | TextEnded)] == [
        TextBegun("reasoning", "reasoning"),
        TextEnded("reasoning", "reasoning"),
        TextBegun("text", "text"),
        TextBegun("reasoning-2", "reasoning"),
        TextEnded("reasoning-2", "reasoning"),
        TextEnded("text", "text"),
    ]


def test_a_text_that_is_begun_anew_goes_on_where_it_was() -> None:
    happened = read(
        TurnReader(), text("abc"), text(""), TextDelta("text", "ab"), TextDelta("text", "cd"), DONE
    )
    assert "".join(each.text for each in happened if isinstance(each, TextAdded)) == "abcd"


def test_a_text_that_has_become_another_is_an_error() -> None:
    reader = TurnReader()
    *_, ended = read(reader, text("abc"), text("xyz"), DONE)
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert ended.error.code == "answer_replaced"
    assert reader.over


def test_why_an_answer_broke_off_counts_more_than_that_it_was_begun_anew() -> None:
    *_, ended = read(TurnReader(), text("abc"), text(""), StatusUpdate(TaskState.FAILED))
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert ended.error.code == "task_failed"


def test_a_call_of_the_clients_is_told_as_it_is_written_and_waits() -> None:
    reader = TurnReader(tools=["look"])
    assert read(reader, *call('{"a"', ": 1}", callId="c1"), waiting(LOOK)) == [
        RoundBegun(1, 1),
        CallBegun("c1", "look", declared=True),
        ArgumentsAdded("c1", '{"a"'),
        ArgumentsAdded("c1", ": 1}"),
        CallEnded("c1", "look", True, {"a": 1}),
        Ended(TaskState.INPUT_REQUIRED, "tool_calls", waiting=("c1",)),
    ]


def test_a_call_whose_id_was_there_before_is_told_when_it_has_its_own() -> None:
    reader = TurnReader(tools=["look"], known_ids=["c1"])
    renamed = {**LOOK, "call_id": "c9"}
    happened = read(reader, *call('{"a": 1}', whole=renamed, callId="c1"), waiting(renamed))
    assert happened[1:3] == [CallBegun("c9", "look", declared=True), ArgumentsAdded("c9", '{"a": 1}')]


def test_a_call_that_waits_is_the_clients_though_it_has_not_declared_it() -> None:
    *_, left, ended = read(TurnReader(), *call('{"a": 1}', callId="c1"), waiting(LOOK))
    assert left == CallLeft("c1", "look", {"a": 1})
    assert isinstance(ended, Ended)
    assert ended.waiting == ("c1",)


def test_a_call_of_which_there_is_nothing_but_that_it_waits_is_told_whole() -> None:
    assert read(TurnReader(tools=["look"]), waiting(LOOK))[:-1] == [
        CallBegun("c1", "look", declared=True),
        ArgumentsAdded("c1", '{"a": 1}'),
        CallEnded("c1", "look", True, {"a": 1}),
    ]


def test_arguments_that_cannot_be_read_are_told_as_they_are() -> None:
    broken: dict[str, Any] = {
        "call_id": "c1",
        "name": "look",
        "arguments": {},
        "arguments_text": '{"a',
        "arguments_error": "no",
    }
    *_, ended, _ = read(TurnReader(tools=["look"]), *call('{"a', whole=broken, callId="c1"), DONE)
    assert ended == CallEnded("c1", "look", True, '{"a', "no")


def test_arguments_that_were_written_otherwise_are_said_to_be() -> None:
    *_, ended, _ = read(TurnReader(), *call('{"a": 1}{"a": 1}', callId="c1"), DONE)
    assert ended == CallEnded("c1", "look", False, {"a": 1}, "", as_written=False)


def test_what_the_agents_tools_answered_is_told_once() -> None:
    entries = [
        {"call_id": "c1", "name": "look", "output": {"b": 2}},
        {"call_id": "c1", "name": "look", "output": "again"},
        {"call_id": "other", "name": "look", "output": "nobody asked"},
    ]
    result = ArtifactUpdate(
        artifact("tool-result-1", Part(data={"tool_results": entries}), channel="tool_result")
    )
    happened = read(TurnReader(), *call('{"a": 1}', callId="c1"), result, DONE)
    assert [each for each in happened if isinstance(each, CallAnswered)] == [CallAnswered("c1", {"b": 2})]


def test_a_tool_that_failed_says_so() -> None:
    entry = {"call_id": "c1", "name": "look", "output": "broken", "is_error": True}
    result = ArtifactUpdate(
        artifact("tool-result-1", Part(data={"tool_results": [entry]}), channel="tool_result")
    )
    happened = read(TurnReader(), *call('{"a": 1}', callId="c1"), result, DONE)
    assert CallAnswered("c1", "broken", is_error=True) in happened


def test_rounds_follow_one_another() -> None:
    happened = read(TurnReader(), text("a"), text("b", "text-round-2", round=2), DONE)
    assert [type(each) for each in happened] == [
        RoundBegun,
        TextBegun,
        TextAdded,
        TextEnded,
        RoundBegun,
        TextBegun,
        TextAdded,
        TextEnded,
        Ended,
    ]


def test_files_and_data_are_given_by_their_kind() -> None:
    file = artifact("file-1", Part(raw=b"\x89PNG", media_type="image/png", filename="a.png"), channel="file")
    data = artifact("data-1", Part(data={"x": 1}), name="facts", channel="data")
    output = artifact("output", Part(data={"y": 2}), name="output", channel="output")
    happened = read(TurnReader(), ArtifactUpdate(file), ArtifactUpdate(data), ArtifactUpdate(output), DONE)
    assert happened[1:-1] == [
        FileGiven("file-1", "data:image/png;base64,iVBORw==", "image/png", "a.png"),
        DataGiven("data-1", "facts", {"x": 1}),
        DataGiven("output", "output", {"y": 2}, is_output=True),
    ]


def test_an_agent_that_knows_nothing_of_channels_is_read_as_text_files_and_data() -> None:
    mixed = artifact("a", Part(text="See"), Part(url="https://x.example/a.pdf"), Part(data=[1]), name="A")
    happened = read(TurnReader(), ArtifactUpdate(mixed), DONE)
    assert happened[1:-1] == [
        TextBegun("a", "text"),
        TextAdded("a", "text", "See"),
        TextEnded("a", "text"),
        FileGiven("a", "https://x.example/a.pdf", "application/octet-stream"),
        DataGiven("a", "A", [1]),
    ]


def test_what_an_agent_says_with_its_last_status_is_told_where_nothing_else_is() -> None:
    said = Message(message_id="s", role=Role.AGENT, parts=(Part(text="Which?"),))
    question = StatusUpdate(TaskState.INPUT_REQUIRED, said)
    happened = read(TurnReader(), question)
    assert happened[:-1] == [
        TextBegun("status", "text"),
        TextAdded("status", "text", "Which?"),
        TextEnded("status", "text"),
    ]
    answered = read(TurnReader(), text("a"), StatusUpdate(TaskState.COMPLETED, said))
    assert [each.text for each in answered if isinstance(each, TextAdded)] == ["a"]


def test_progress_is_told() -> None:
    said = Message(message_id="s", role=Role.AGENT, parts=(Part(text="Searching"),))
    happened = read(TurnReader(), StatusUpdate(TaskState.WORKING, said))
    assert happened == [StateChanged(TaskState.WORKING, "Searching")]


def test_what_was_counted_and_referred_to_comes_at_the_end() -> None:
    facts = {
        "finishReason": "length",
        "usage": {"totalTokens": 3},
        "extra": {"annotations": [{"url": "https://x.example"}]},
        "response": {"model": "m"},
    }
    done = StatusUpdate(TaskState.COMPLETED, metadata={EXTENSION_URI: facts})
    *_, ended = read(TurnReader(), text("a"), done)
    assert ended == Ended(
        TaskState.COMPLETED,
        "length",
        usage={"totalTokens": 3},
        annotations=({"url": "https://x.example"},),
        response={"model": "m"},
    )


def test_a_direct_answer_has_no_task() -> None:
    said = Message(
        message_id="d",
        role=Role.AGENT,
        parts=(
            Part(text="hm", metadata={EXTENSION_URI: {"channel": "reasoning"}}),
            Part(text="Hello"),
            Part(url="https://x.example/a.png", media_type="image/png"),
        ),
    )
    reader = TurnReader()
    happened = reader.take(Event(0, StreamResponse(message=said).to_json()))
    assert [each.text for each in happened if isinstance(each, TextAdded)] == ["hm", "Hello"]
    assert FileGiven("file-2", "https://x.example/a.png", "image/png") in happened
    assert happened[-1] == Ended(TaskState.COMPLETED)
    assert (reader.task_id, reader.over) == ("", True)


# --- several turns ----------------------------------------------------------------------------------------------


def in_second_turn() -> TaskRecord:
    """The client's tool was called, and has answered."""
    record = begun()
    for update in [text("Let me see."), *call('{"a": 1}', callId="c1"), waiting(LOOK)]:
        record.apply(update)
    record.receive(results({"call_id": "c1", "name": "look", "output": "seen"}))
    record.apply(StatusUpdate(TaskState.WORKING))
    record.apply(text("So", "text-turn-2", turn=2))
    return record


def test_a_turn_that_goes_on_with_a_task_tells_nothing_of_those_before() -> None:
    record = in_second_turn()
    reader = TurnReader()
    assert reader.take(standing(record)) == [
        Begun("t", "c", 2),
        RoundBegun(2, 1),
        TextBegun("text-turn-2", "text"),
        TextAdded("text-turn-2", "text", "So"),
    ]
    assert read(reader, TextDelta("text-turn-2", "."), record=record) == [
        TextAdded("text-turn-2", "text", ".")
    ]


def test_a_whole_answer_begins_with_what_the_user_said() -> None:
    record = in_second_turn()
    reader = TurnReader(whole_answer=True)
    happened = reader.take(standing(record))
    assert happened[0] == Begun("t", "c", 1)
    assert CallAnswered("c1", "seen", by_caller=True) in happened
    assert "".join(each.text for each in happened if isinstance(each, TextAdded)) == "Let me see.So"
    assert [each for each in happened if isinstance(each, RoundBegun)] == [RoundBegun(1, 1), RoundBegun(2, 1)]


def test_a_whole_answer_does_not_go_back_beyond_what_the_user_said() -> None:
    record = begun()
    record.apply(text("Which?"))
    record.apply(StatusUpdate(TaskState.INPUT_REQUIRED))
    record.receive(asked("That one"))
    record.apply(StatusUpdate(TaskState.WORKING))
    happened = TurnReader(whole_answer=True).take(standing(record))
    assert happened == [Begun("t", "c", 2)]


def test_a_task_that_is_over_is_told_whole() -> None:
    record = begun()
    record.apply(text("All"))
    record.apply(StatusUpdate(TaskState.COMPLETED, metadata={EXTENSION_URI: {"usage": {"totalTokens": 3}}}))
    *happened, ended = TurnReader().take(standing(record))
    assert [each.text for each in happened if isinstance(each, TextAdded)] == ["All"]
    assert ended == Ended(TaskState.COMPLETED, usage={"totalTokens": 3})


def test_a_reader_that_fell_behind_has_the_rest_of_what_it_was_told() -> None:
    record = begun()
    reader = TurnReader()
    told = read(reader, text("ab"), record=record)
    record.apply(TextDelta("text", "cd"))
    for update in call('{"a": 1}', callId="c1"):
        record.apply(update)
    for event in record.overview():
        told += reader.take(event)
    told += read(reader, TextDelta("text", "e", last=True), DONE, record=record)
    assert "".join(each.text for each in told if isinstance(each, TextAdded)) == "abcde"
    assert [each for each in told if isinstance(each, CallEnded)] == [
        CallEnded("c1", "look", False, {"a": 1})
    ]
