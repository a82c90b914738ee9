"""A task's events as the events of a turn with serial texts."""

from collections.abc import Iterable
from typing import Any

from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.serial_texts import SerialTexts
from tailrace.server.protocols.ui_events import (
    ArgumentsAdded,
    CallEnded,
    CallPending,
    CallStarted,
    RoundStarted,
    StateChanged,
    TextAdded,
    TurnEnded,
    TurnStarted,
    UiEvent,
)
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update

LOOK = {"call_id": "c1", "name": "look", "arguments": {"a": 1}}


def user_message(text: str = "hi") -> Message:
    return Message(message_id=f"m-{text}", role=Role.USER, parts=(Part(text=text),))


def artifact(artifact_id: str, part: Part, name: str = "", **facts: Any) -> Artifact:
    return Artifact(artifact_id=artifact_id, parts=(part,), name=name, metadata={EXTENSION_URI: facts})


def waiting(*calls: dict[str, Any]) -> StatusUpdate:
    message = Message(message_id="s", role=Role.AGENT, parts=(Part(data={"tool_calls": list(calls)}),))
    return StatusUpdate(TaskState.INPUT_REQUIRED, message)


def begun() -> TaskRecord:
    record = TaskRecord.create(user_message())
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    return record


def events(record: TaskRecord, *updates: Update) -> list[Event]:
    return [record.apply(update) for update in updates]


def serial(*, live: bool = True, **options: Any) -> EventTranslator:
    return EventTranslator(texts=SerialTexts(live=live), **options)


_UNUSED = RoundStarted | CallEnded | TurnStarted | StateChanged


def feed(turn: EventTranslator, events: Iterable[Event]) -> list[UiEvent]:
    """Convert events; omit events without an equivalent in a serial response."""
    folded = [each for event in events for each in turn.feed(event)]
    return [each for each in folded if not isinstance(each, _UNUSED)]


def read(turn: EventTranslator, *updates: Update) -> list[UiEvent]:
    return feed(turn, events(begun(), *updates))


def text_added(text: str) -> TextAdded:
    return TextAdded("text", "text", text)


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
    turn = serial(tools={"look"})
    assert read(turn, *call_updates(callId="c1"), waiting(LOOK)) == [
        CallStarted("c1", "look", True),
        ArgumentsAdded("c1", '{"a"'),
        ArgumentsAdded("c1", ":  1}"),
        TurnEnded(TaskState.INPUT_REQUIRED, "tool_calls", pending=("c1",)),
    ]


def test_a_call_comes_whole_where_its_id_is_not_known_or_taken() -> None:
    def whole(call_id: str, arguments: str, *, declared: bool = True) -> list[UiEvent]:
        return [
            CallStarted(call_id, "look", declared),
            ArgumentsAdded(call_id, arguments),
            TurnEnded(TaskState.INPUT_REQUIRED, "tool_calls", pending=(call_id,)),
        ]

    expected = whole("c1", '{"a":  1}')
    assert read(serial(tools={"look"}), *call_updates(), waiting(LOOK)) == expected
    assert read(serial(tools={"look"}, live=False), *call_updates(callId="c1"), waiting(LOOK)) == expected
    *undeclared, pending, ended = read(serial(), *call_updates(callId="c1"), waiting(LOOK))
    assert isinstance(pending, CallPending)
    assert [*undeclared, ended] == whole("c1", '{"a":  1}', declared=False)
    taken = serial(tools={"look"}, known_ids={"c1"})
    renamed = {**LOOK, "call_id": "c1-2"}
    assert read(taken, *call_updates(callId="c1"), waiting(renamed)) == whole("c1-2", '{"a": 1}')


def test_a_call_that_was_sent_and_is_another_in_the_end_is_an_error() -> None:
    for other in ({**LOOK, "call_id": "c9"}, {**LOOK, "arguments": {"a": 2}}, {**LOOK, "name": "find"}):
        turn = serial(tools={"look"})
        *_, last = read(turn, *call_updates(callId="c1"), waiting(other))
        assert isinstance(last, TurnEnded)
        assert last.error is not None
        assert last.error.code == "answer_replaced"
        assert turn.ended


def test_a_turn_that_was_left_behind_is_given_the_rest_once() -> None:
    record = begun()
    text = events(record, ArtifactUpdate(artifact("text", Part(text="Hel"), channel="text"), last=False))
    turn = serial()
    assert feed(turn, text) == [text_added("Hel")]
    events(record, TextDelta("text", "lo"))
    assert feed(turn, record.overview()) == [text_added("lo")]
    assert feed(turn, events(record, TextDelta("text", "!", last=True))) == [text_added("!")]


def test_artifacts_of_an_earlier_turn_are_not_sent_again() -> None:
    record = begun()
    events(record, ArtifactUpdate(artifact("text", Part(text="One."), channel="text")), waiting())
    message = record.receive(user_message("more"))
    record.receipt(message)
    first = Event(record.number, _task(record), record.state)
    turn = serial()
    assert turn.feed(first) == [TurnStarted(record.id, record.context_id, 2)]
    assert turn.task_id == record.id
    assert feed(turn, record.overview()) == []
    second = artifact("text-turn-2", Part(text="Two."), channel="text", turn=2)
    assert feed(turn, events(record, ArtifactUpdate(second))) == [text_added("Two.")]


def _task(record: TaskRecord) -> bytes:
    return b'{"task":' + record.snapshot().to_json() + b"}"


def test_other_choices_are_not_shown() -> None:
    updates = [
        ArtifactUpdate(artifact("text", Part(text="a"), channel="text")),
        ArtifactUpdate(artifact("text-choice-1", Part(text="b"), channel="text", choice=1)),
        StatusUpdate(TaskState.COMPLETED),
    ]
    assert read(serial(), *updates) == [text_added("a"), TurnEnded(TaskState.COMPLETED)]


def test_a_direct_message_is_an_answer() -> None:
    turn = serial()
    body = b'{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"hi"},{"text":"!"}]}}'
    assert feed(turn, [Event(0, body)]) == [text_added("hi\n\n!"), TurnEnded(TaskState.COMPLETED)]
    assert (turn.ended, turn.task_id) == (True, "")
