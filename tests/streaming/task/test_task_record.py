"""A task as the fold of its updates: numbering, rejected updates, snapshots, replay."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import IllegalTransition, TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse, Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import TaskRecord, agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update


def user(text: str, message_id: str = "m") -> Message:
    return Message(message_id=message_id, role=Role.USER, parts=(Part(text=text),))


def working() -> TaskRecord:
    record = TaskRecord.create(user("Hi"), task_id="t", context_id="c")
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    return record


def text(text: str, artifact_id: str = "a", *, last: bool = False, append: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(
        Artifact(artifact_id=artifact_id, parts=(Part(text=text),)), append=append, last=last
    )


def parts(*given: Part, artifact_id: str = "a", last: bool = False, append: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(Artifact(artifact_id=artifact_id, parts=given), append=append, last=last)


def body(event: Event) -> dict[str, Any]:
    return json.loads(event.body)


def shape(record: TaskRecord) -> list[list[str | None]]:
    """The texts of the parts of each artifact; None for a part of another kind."""
    return [[part.text for part in artifact.parts] for artifact in record.snapshot().artifacts]


# --- construction -----------------------------------------------------------------------------------------------


def test_a_new_task_holds_the_message_it_was_made_for() -> None:
    record = TaskRecord.create(user("Hi"), task_id="t", context_id="c")
    assert (record.id, record.context_id, record.number, record.state) == ("t", "c", 0, TaskState.SUBMITTED)
    assert record.history == [user("Hi").model_copy(update={"task_id": "t", "context_id": "c"})]


def test_ids_are_made_where_none_are_given() -> None:
    one, other = TaskRecord.create(user("Hi")), TaskRecord.create(user("Hi"))
    assert len({one.id, other.id, one.context_id, other.context_id}) == 4
    known = user("Hi").model_copy(update={"context_id": "known"})
    assert TaskRecord.create(known).context_id == "known"
    assert TaskRecord.create(known, context_id="c").context_id == "c"


def test_the_first_event_is_the_task_itself() -> None:
    record = TaskRecord.create(user("Hi"), task_id="t", context_id="c")
    event = record.submitted()
    assert (event.number, event.state) == (1, TaskState.SUBMITTED)
    task = body(event)["task"]
    assert (task["id"], task["contextId"], task["status"]["state"]) == ("t", "c", "TASK_STATE_SUBMITTED")
    assert task["metadata"][EXTENSION_URI]["number"] == 1
    assert task["history"][0]["parts"] == [{"text": "Hi"}]


# --- events -----------------------------------------------------------------------------------------------------


def test_every_update_is_one_event_with_the_next_number() -> None:
    record = working()
    events = [
        record.apply(text("a")),
        record.apply(TextDelta("a", "b")),
        record.apply(TextDelta("a", "", last=True)),
        record.apply(StatusUpdate(TaskState.COMPLETED)),
    ]
    assert [(event.number, event.state) for event in events] == [
        (3, None),
        (4, None),
        (5, None),
        (6, TaskState.COMPLETED),
    ]
    assert record.number == 6


def test_the_events_of_an_artifact_have_append_and_last_chunk() -> None:
    record = working()
    events = [
        record.apply(text("a")),
        record.apply(TextDelta("a", "é\u2028")),
        record.apply(TextDelta("a", "", last=True)),
    ]
    updates = [body(event)["artifactUpdate"] for event in events]
    assert all((update["taskId"], update["contextId"]) == ("t", "c") for update in updates)
    assert [(update["artifact"], update.get("append"), update.get("lastChunk")) for update in updates] == [
        ({"artifactId": "a", "parts": [{"text": "a"}]}, None, None),
        ({"artifactId": "a", "parts": [{"text": "é\u2028"}]}, True, None),
        ({"artifactId": "a", "parts": [{"text": ""}]}, True, True),
    ]


def test_the_event_of_a_delta_is_what_the_model_would_have_written() -> None:
    record = working()
    record.apply(text("x"))
    for update in (TextDelta("a", 'quote " and \\'), TextDelta("a", "😀", last=True)):
        event = record.apply(update)
        model = StreamResponse.model_validate_json(event.body)
        assert json.loads(model.to_json()) == body(event)
        assert model.artifact_update is not None
        assert model.artifact_update.last_chunk is update.last


def test_an_event_is_one_line_for_every_reader() -> None:
    record = working()
    record.apply(text("a"))
    for event in (
        record.apply(TextDelta("a", "\u2028\u2029\x85\n\r")),
        record.apply(text("\u2028\x85\n", "b")),
    ):
        assert len(event.body.decode().splitlines()) == 1


def test_a_status_carries_its_message_and_its_facts() -> None:
    record = working()
    event = record.apply(StatusUpdate(TaskState.WORKING, agent_message("half way"), {"progress": 0.5}))
    status = body(event)["statusUpdate"]
    assert status["metadata"] == {"progress": 0.5}
    assert status["status"]["message"]["parts"] == [{"text": "half way"}]
    assert (status["status"]["message"]["taskId"], status["status"]["message"]["contextId"]) == ("t", "c")
    assert record.snapshot().metadata["progress"] == 0.5


def test_facts_of_the_extension_are_added_to_those_that_are_known() -> None:
    record = working()
    record.apply(StatusUpdate(TaskState.WORKING, metadata={EXTENSION_URI: {"a": 1, "b": 1}}))
    record.apply(StatusUpdate(TaskState.WORKING, metadata={EXTENSION_URI: {"b": 2}, "x": 1}))
    assert record.snapshot().metadata == {EXTENSION_URI: {"a": 1, "b": 2, "number": 4}, "x": 1}


# --- rejected updates -------------------------------------------------------------------------------------------


def test_a_state_that_may_not_follow_is_refused_and_changes_nothing() -> None:
    record = working()
    before = record.snapshot()
    with pytest.raises(IllegalTransition):
        record.apply(StatusUpdate(TaskState.SUBMITTED))
    assert record.snapshot() == before


@pytest.mark.parametrize(
    "update",
    [TextDelta("a", "x"), text("x", append=True)],
    ids=["a delta", "an append"],
)
def test_nothing_is_appended_to_an_artifact_that_was_never_begun(update: Update) -> None:
    record = working()
    with pytest.raises(InvalidAgentResponseError, match="'a' does not exist"):
        record.apply(update)
    assert (record.number, shape(record)) == (2, [])


@pytest.mark.parametrize(
    "update",
    [TextDelta("a", "x"), TextDelta("a", "", last=True), text("x", append=True)],
    ids=["a delta", "a second end", "an append"],
)
def test_nothing_is_appended_to_an_artifact_that_is_complete(update: Update) -> None:
    record = working()
    record.apply(text("whole", last=True))
    with pytest.raises(InvalidAgentResponseError, match="'a' is complete"):
        record.apply(update)
    assert (record.number, shape(record)) == (3, [["whole"]])


def test_text_is_not_appended_to_a_file() -> None:
    record = working()
    record.apply(parts(Part(url="https://x/y")))
    with pytest.raises(InvalidAgentResponseError, match="does not end in text"):
        record.apply(TextDelta("a", "x"))
    assert record.number == 3


@pytest.mark.parametrize(
    "state", [TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED], ids=str
)
@pytest.mark.parametrize(
    "update",
    [text("x"), TextDelta("a", "x"), StatusUpdate(TaskState.WORKING)],
    ids=["artifact", "delta", "status"],
)
def test_nothing_follows_the_end(state: TaskState, update: Update) -> None:
    record = working()
    record.apply(text("x"))
    record.apply(StatusUpdate(state))
    with pytest.raises(InvalidAgentResponseError, match="the task has ended"):
        record.apply(update)
    assert record.number == 4


def test_an_update_that_cannot_be_written_changes_nothing() -> None:
    record = working()
    before = record.snapshot()
    for metadata in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(ValueError):  # noqa: PT011 — the text is the model's
            record.apply(StatusUpdate(TaskState.COMPLETED, metadata=metadata))
    assert record.snapshot() == before
    assert record.apply(StatusUpdate(TaskState.COMPLETED)).number == 3


# --- snapshots --------------------------------------------------------------------------------------------------


def test_the_text_of_an_artifact_is_one_part() -> None:
    record = working()
    record.apply(text("a"))
    for piece in "bcd":
        record.apply(TextDelta("a", piece))
    assert shape(record) == [["abcd"]]
    record.apply(TextDelta("a", "e"))
    assert shape(record) == [["abcde"]]
    record.apply(parts(Part(text="f"), Part(text="g"), append=True))
    assert shape(record) == [["abcdefg"]]


def test_parts_of_other_kinds_stand_between_runs_of_text() -> None:
    record = working()
    record.apply(text("a"))
    record.apply(TextDelta("a", "b"))
    record.apply(parts(Part(url="https://x/y"), append=True))
    record.apply(parts(Part(text="c"), append=True))
    record.apply(TextDelta("a", "d"))
    assert shape(record) == [["ab", None, "cd"]]


@pytest.mark.parametrize(
    "part",
    [Part(text="x", metadata={"k": 1}), Part(text="x", media_type="text/html"), Part(text="x", filename="f")],
)
def test_text_that_is_more_than_text_stays_a_part_of_its_own(part: Part) -> None:
    record = working()
    record.apply(text("a"))
    record.apply(parts(part, append=True))
    (artifact,) = record.snapshot().artifacts
    assert artifact.parts == (Part(text="a"), part)


def test_a_full_copy_replaces() -> None:
    record = working()
    record.apply(text("a"))
    record.apply(TextDelta("a", "b"))
    record.apply(text("new", last=True))
    assert shape(record) == [["new"]]


def test_a_snapshot_does_not_change_with_the_task() -> None:
    record = working()
    record.apply(text("a"))
    before = record.snapshot()
    record.apply(TextDelta("a", "b"))
    record.receive(user("more"))
    assert before.artifacts[0].parts[0].text == "a"
    assert len(before.history) == 1


def test_a_snapshot_names_its_last_event() -> None:
    record = working()
    record.apply(text("a"))
    assert record.snapshot().metadata == {EXTENSION_URI: {"number": 3}}


@pytest.mark.parametrize(("length", "kept"), [(None, "abc"), (0, ""), (1, "c"), (2, "bc"), (9, "abc")])
def test_a_snapshot_has_the_requested_history(length: int | None, kept: str) -> None:
    record = TaskRecord.create(user("a"))
    record.receive(user("b"))
    record.receive(user("c"))
    assert "".join(message.parts[0].text or "" for message in record.snapshot(length).history) == kept


def test_many_deltas_are_one_text_part() -> None:
    record = working()
    record.apply(text("a"))
    for _ in range(20_000):
        record.apply(TextDelta("a", "b"))
    assert shape(record) == [["a" + "b" * 20_000]]


def test_halves_of_a_character_are_kept_as_they_were_shown() -> None:
    record = working()
    record.apply(text("a"))
    shown = [
        body(record.apply(TextDelta("a", half)))["artifactUpdate"]["artifact"]["parts"]
        for half in ("\ud83d", "\ude00")
    ]
    assert shown == [[{"text": "\ufffd"}]] * 2
    assert shape(record) == [["a\ufffd\ufffd"]]
    record.snapshot().to_json()


# --- history ----------------------------------------------------------------------------------------------------


def test_a_status_message_becomes_history_when_the_status_changes() -> None:
    record = working()
    record.apply(StatusUpdate(TaskState.WORKING, agent_message("half way")))
    assert [message.role for message in record.history] == [Role.USER]
    record.apply(StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("which?")))
    record.receive(user("that one", "m2"))
    record.apply(StatusUpdate(TaskState.WORKING))
    record.apply(StatusUpdate(TaskState.COMPLETED, agent_message("done")))
    assert [message.parts[0].text for message in record.history] == ["Hi", "half way", "which?", "that one"]
    assert record.status.message is not None
    assert all(message.task_id == "t" and message.context_id == "c" for message in record.history)


def test_a_further_message_gets_the_tasks_ids() -> None:
    record = working()
    message = record.receive(user("more"))
    assert (message.task_id, message.context_id) == ("t", "c")
    assert record.history[-1] == message
    assert record.number == 2


# --- open artifacts and calls -----------------------------------------------------------------------------------


def test_closing_updates_complete_what_is_open_and_lose_nothing() -> None:
    record = working()
    record.apply(text("a", "a"))
    record.apply(TextDelta("a", "b"))
    record.apply(text("done", "b", last=True))
    record.apply(parts(Part(url="https://x/y"), artifact_id="c"))
    before = shape(record)
    updates = record.closing_updates()
    assert [type(update) for update in updates] == [TextDelta, ArtifactUpdate]
    for update in updates:
        record.apply(update)
    assert shape(record) == before == [["ab"], ["done"], [None]]
    assert record.closing_updates() == []


# --- replay -----------------------------------------------------------------------------------------------------


def bare() -> TaskRecord:
    """The task that the first event of `working` completes."""
    return TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)))


def test_an_event_that_is_not_the_next_is_refused() -> None:
    record = bare()
    for number in (0, 2):
        with pytest.raises(ValueError, match="cannot follow event 0 of task t"):
            record.replay(Event(number, b"{}"))


def test_replay_goes_on_from_a_snapshot() -> None:
    record = working()
    record.apply(text("a"))
    record.receive(user("more"))
    revived = TaskRecord(record.snapshot(), record.number)
    for update in (
        text("new", "b"),
        StatusUpdate(TaskState.WORKING, agent_message("x")),
        TextDelta("b", "er"),
    ):
        revived.replay(record.apply(update))
    assert revived.snapshot() == record.snapshot()


@pytest.mark.parametrize("state", [TaskState.SUBMITTED, TaskState.WORKING, TaskState.INPUT_REQUIRED])
def test_the_receipt_of_a_message_identifies_the_message(state: TaskState) -> None:
    record = TaskRecord.create(user("Hi"), task_id="t", context_id="c")
    revived = TaskRecord(record.snapshot())
    events = [record.submitted()]
    if state is not TaskState.SUBMITTED:
        events.append(record.apply(StatusUpdate(state, agent_message("which?"))))
    message = record.receive(user("more"))
    events.append(record.receipt(message))
    update = body(events[-1])["statusUpdate"]
    assert update["metadata"] == {EXTENSION_URI: {"received": message.to_dict()}}
    waited = state is TaskState.INPUT_REQUIRED
    assert record.state is events[-1].state is (TaskState.WORKING if waited else state)
    # A working task does not change; the question of an input-required task enters the history before its answer.
    assert ("message" in update["status"]) is (state is TaskState.WORKING)
    expected = ["Hi", "which?", "more"] if waited else ["Hi", "more"]
    assert [each.parts[0].text for each in record.history] == expected
    for event in events:
        revived.replay(event)
    assert revived.snapshot() == record.snapshot()


def test_a_task_that_is_over_receives_nothing() -> None:
    record = working()
    record.apply(StatusUpdate(TaskState.COMPLETED))
    with pytest.raises(IllegalTransition):
        record.receipt(user("late"))


def test_artifacts_of_a_stored_task_are_complete() -> None:
    record = working()
    record.apply(text("a"))
    revived = TaskRecord(record.snapshot(), record.number)
    with pytest.raises(InvalidAgentResponseError, match="is complete"):
        revived.apply(TextDelta("a", "b"))


any_text = st.text(st.characters(exclude_categories=()), max_size=4)
any_part = (
    st.builds(Part, text=any_text)
    | st.builds(Part, text=any_text, metadata=st.just({"k": 1}))
    | st.builds(Part, data=st.none() | st.integers() | any_text)
    | st.builds(Part, url=st.just("https://x/y"))
)
artifact_ids = st.sampled_from(["a", "b"])
any_update = (
    st.builds(TextDelta, artifact_ids, any_text, st.booleans())
    | st.builds(
        ArtifactUpdate,
        st.builds(
            Artifact, artifact_id=artifact_ids, parts=st.lists(any_part, min_size=1, max_size=3).map(tuple)
        ),
        st.booleans(),
        st.booleans(),
    )
    | st.builds(
        StatusUpdate,
        st.sampled_from(
            [TaskState.WORKING, TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.COMPLETED]
        ),
        st.none() | st.builds(agent_message, any_text),
        st.none() | st.just({EXTENSION_URI: {"usage": 1}, "k": 2}) | st.just({EXTENSION_URI: {"more": 1}}),
    )
)


@given(updates=st.lists(any_update, max_size=12))
@settings(deadline=None, max_examples=200)
def test_the_events_fold_back_to_the_task(updates: list[Update]) -> None:
    record = TaskRecord.create(user("Hi"), task_id="t", context_id="c")
    events = [record.submitted()]
    for update in updates:
        before = (record.number, record.snapshot())
        try:
            events.append(record.apply(update))
        except (InvalidAgentResponseError, IllegalTransition):
            assert (record.number, record.snapshot()) == before
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    folded = bare()
    for event in events:
        StreamResponse.model_validate_json(event.body)
        folded.replay(event)
    assert folded.snapshot() == record.snapshot()
    assert folded.number == record.number
    assert [each.artifact_id for each in map(_artifact_of, folded.closing_updates())] == [
        each.artifact_id for each in map(_artifact_of, record.closing_updates())
    ]
    assert Task.model_validate_json(record.snapshot().to_json()) == record.snapshot()


def _artifact_of(update: Update) -> TextDelta | Artifact:
    if isinstance(update, ArtifactUpdate):
        return update.artifact
    assert isinstance(update, TextDelta)
    return update
