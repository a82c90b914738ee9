"""A task's events as the pieces of an answer."""

from typing import Any

from tailrace.server.facade.answers import AnswerReader
from tailrace.server.facade.pieces import CallArguments, CallBegun, Ending, Piece, TextPiece
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event, TaskRecord
from tailrace.streaming.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update

LOOK = {"call_id": "c1", "name": "look", "arguments": {"a": 1}}


def asked(text: str = "hi") -> Message:
    return Message(message_id=f"m-{text}", role=Role.USER, parts=(Part(text=text),))


def artifact(artifact_id: str, part: Part, name: str = "", **facts: Any) -> Artifact:
    return Artifact(artifact_id=artifact_id, parts=(part,), name=name, metadata={EXTENSION_URI: facts})


def waiting(*calls: dict[str, Any]) -> StatusUpdate:
    message = Message(message_id="s", role=Role.AGENT, parts=(Part(data={"tool_calls": list(calls)}),))
    return StatusUpdate(TaskState.INPUT_REQUIRED, message)


def begun() -> TaskRecord:
    record = TaskRecord.create(asked())
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    return record


def events(record: TaskRecord, *updates: Update) -> list[Event]:
    return [record.apply(update) for update in updates]


def read(reader: AnswerReader, *updates: Update) -> list[Piece]:
    return reader.take(events(begun(), *updates))


def call_updates(**facts: Any) -> list[Update]:
    return [
        ArtifactUpdate(
            artifact("tool-call-1", Part(text='{"a"'), "look", channel="tool_call", **facts), last=False
        ),
        TextDelta("tool-call-1", ":  1}"),
        ArtifactUpdate(
            artifact("tool-call-1", Part(data={"tool_calls": [LOOK]}), "look", channel="tool_call")
        ),
    ]


def test_arguments_are_sent_on_where_the_call_is_the_callers_and_its_id_is_known() -> None:
    reader = AnswerReader(tools={"look"})
    assert read(reader, *call_updates(callId="c1"), waiting(LOOK)) == [
        CallBegun(0, "c1", "look"),
        CallArguments(0, '{"a"'),
        CallArguments(0, ":  1}"),
        Ending("tool_calls"),
    ]


def test_a_call_comes_whole_where_its_id_is_not_known_or_taken() -> None:
    whole = [CallBegun(0, "c1", "look"), CallArguments(0, '{"a":  1}'), Ending("tool_calls")]
    assert read(AnswerReader(tools={"look"}), *call_updates(), waiting(LOOK)) == whole
    assert read(AnswerReader(), *call_updates(callId="c1"), waiting(LOOK)) == whole
    assert read(AnswerReader(tools={"look"}, live=False), *call_updates(callId="c1"), waiting(LOOK)) == whole
    taken = AnswerReader(tools={"look"}, known_ids={"c1"})
    renamed = {**LOOK, "call_id": "c1-2"}
    assert read(taken, *call_updates(callId="c1"), waiting(renamed)) == [
        CallBegun(0, "c1-2", "look"),
        CallArguments(0, '{"a": 1}'),
        Ending("tool_calls"),
    ]


def test_a_call_that_was_sent_and_is_another_in_the_end_is_an_error() -> None:
    for other in ({**LOOK, "call_id": "c9"}, {**LOOK, "arguments": {"a": 2}}, {**LOOK, "name": "find"}):
        reader = AnswerReader(tools={"look"})
        *_, last = read(reader, *call_updates(callId="c1"), waiting(other))
        assert isinstance(last, Ending)
        assert last.error is not None
        assert last.error.code == "answer_replaced"
        assert reader.over


def test_a_reader_that_was_left_behind_is_given_the_rest_once() -> None:
    record = begun()
    text = events(record, ArtifactUpdate(artifact("text", Part(text="Hel"), channel="text"), last=False))
    reader = AnswerReader()
    assert reader.take(text) == [TextPiece("Hel")]
    events(record, TextDelta("text", "lo"))
    assert reader.take(record.overview()) == [TextPiece("lo")]
    assert reader.take(events(record, TextDelta("text", "!", last=True))) == [TextPiece("!")]


def test_what_an_earlier_turn_made_is_not_told_again() -> None:
    record = begun()
    events(record, ArtifactUpdate(artifact("text", Part(text="One."), channel="text")), waiting())
    message = record.receive(asked("more"))
    record.receipt(message)
    first = Event(record.number, _task(record), record.state)
    reader = AnswerReader()
    assert reader.take([first]) == []
    assert (reader.task_id, reader.turn) == (record.id, 2)
    assert reader.take(record.overview()) == []
    second = artifact("text-turn-2", Part(text="Two."), channel="text", turn=2)
    assert reader.take(events(record, ArtifactUpdate(second))) == [TextPiece("Two.")]


def _task(record: TaskRecord) -> bytes:
    return b'{"task":' + record.snapshot().to_json() + b"}"


def test_other_choices_are_not_shown() -> None:
    updates = [
        ArtifactUpdate(artifact("text", Part(text="a"), channel="text")),
        ArtifactUpdate(artifact("text-choice-1", Part(text="b"), channel="text", choice=1)),
        StatusUpdate(TaskState.COMPLETED),
    ]
    assert read(AnswerReader(), *updates) == [TextPiece("a"), Ending()]


def test_a_direct_message_is_an_answer() -> None:
    reader = AnswerReader()
    body = b'{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"hi"},{"text":"!"}]}}'
    assert reader.take([Event(0, body)]) == [TextPiece("hi!"), Ending()]
    assert (reader.over, reader.task_id) == (True, "")
