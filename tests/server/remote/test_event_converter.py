"""Events of a remote agent as updates: the text is complete and not repeated despite lost and repeated events."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.remote.event_converter import EventConverter
from tailrace.server.remote.response_validation import RemoteEvent
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI, extension_metadata
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.streaming.conversion.published_artifacts import PublishedArtifact
from tailrace.streaming.task.task_record import TaskRecord, agent_message


def piece(text: str, *, append: bool = True, last: bool = False, **fields: Any) -> TaskArtifactUpdateEvent:
    artifact = Artifact(artifact_id="a", parts=(Part(text=text),), **fields)
    return TaskArtifactUpdateEvent(
        task_id="t", context_id="c", artifact=artifact, append=append, last_chunk=last
    )


def copy(*parts: Part, state: TaskState = TaskState.WORKING, **fields: Any) -> Task:
    artifacts = (Artifact(artifact_id="a", parts=parts, **fields),) if parts else ()
    return Task(id="t", context_id="c", status=TaskStatus(state=state), artifacts=artifacts)


def status(
    state: TaskState, message: Message | None = None, metadata: dict[str, Any] | None = None
) -> TaskStatusUpdateEvent:
    task_status = TaskStatus(state=state, message=message)
    return TaskStatusUpdateEvent(task_id="t", context_id="c", status=task_status, metadata=metadata or {})


def relayed(relay: EventConverter, events: Sequence[RemoteEvent]) -> list[Update]:
    return [update for event in events for update in relay.feed(event)] + relay.close()


def carried_out(updates: Sequence[Update]) -> Task:
    """Return the task that our server builds from updates; it rejects updates that break the rules."""
    question = Message(message_id="m", role=Role.USER, parts=(Part(text="?"),))
    record = TaskRecord.create(question)
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    for update in updates:
        if isinstance(update, StatusUpdate) and update.state.terminal:
            for closing in record.closing_updates():
                record.apply(closing)
        record.apply(update)
    return record.snapshot()


def text_of(task: Task) -> str:
    return "".join(part.text or "" for artifact in task.artifacts for part in artifact.parts)


@given(st.lists(st.text(max_size=3), min_size=1, max_size=12), st.data())
def test_copies_at_any_point_double_and_lose_nothing(pieces: list[str], data: st.DataObject):
    events: list[RemoteEvent] = [copy()]
    known = 0
    for at, text in enumerate(pieces):
        how = data.draw(st.sampled_from(["piece", "lost", "copy", "whole"]))
        so_far = tuple(Part(text=each) for each in pieces[: at + 1])
        joined = Artifact(artifact_id="a", parts=(Part(text="".join(pieces[: at + 1])),))
        if how == "copy":
            events.append(copy(*so_far))
        elif how == "whole":
            events.append(TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=joined))
        elif how == "piece" and known == at:
            events.append(piece(text, append=bool(at)))
        else:
            continue  # lost, until a snapshot arrives
        known = at + 1
    events.append(copy(*(Part(text=each) for each in pieces), state=TaskState.COMPLETED))
    updates = relayed(EventConverter(), events)
    task = carried_out(updates)
    assert text_of(task) == "".join(pieces)
    assert task.status.state is TaskState.COMPLETED
    wholes = [update for update in updates if isinstance(update, ArtifactUpdate) and not update.append]
    assert len(wholes) <= 1, "more than one snapshot was published"


def test_a_different_copy_replaces_the_text():
    events = [piece("one", append=False), copy(Part(text="another")), piece("!", last=True)]
    updates = relayed(EventConverter(), [*events, status(TaskState.COMPLETED)])
    assert [type(update) for update in updates] == [ArtifactUpdate, ArtifactUpdate, TextDelta, StatusUpdate]
    assert text_of(carried_out(updates)) == "another!"


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([piece("a"), piece("b")], "ab"),  # appended to nothing
        ([piece("a", append=False, last=True), piece("b"), piece("c")], "abc"),  # after the last
        ([piece("a", append=False, last=True), copy(Part(text="a"))], "a"),
        ([piece("a", append=False), copy(Part(text="a"), Part(url="http://x/"))], "a"),
        ([piece("", append=False), piece("a"), piece("", last=True), piece("", last=True)], "a"),
    ],
)
def test_what_servers_get_wrong_about_artifacts_breaks_nothing(events: list[RemoteEvent], text: str):
    task = carried_out(relayed(EventConverter(), [*events, status(TaskState.COMPLETED)]))
    assert text_of(task) == text


def test_what_the_task_had_before_is_not_shown_again_and_can_be_added_to():
    before = Artifact(artifact_id="a", parts=(Part(text="one"),))
    relay = EventConverter((before,))
    question = agent_message("which?")
    task = Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=question),
        artifacts=(before,),
    )
    assert relay.feed(task) == []
    assert relay.artifacts == ()
    [update] = relay.feed(piece(" two"))
    assert isinstance(update, ArtifactUpdate)
    assert not update.append
    assert [part.text for part in update.artifact.parts] == ["one", " two"]
    assert relay.feed(status(TaskState.WORKING)) == []
    [*_, ending] = relay.close()
    assert ending == StatusUpdate(TaskState.COMPLETED)


def test_artifacts_of_a_further_task_have_ids_of_their_own():
    relay = EventConverter(suffix="-turn-2")
    events = [piece("a", append=False), piece("b"), status(TaskState.COMPLETED)]
    assert [artifact.artifact_id for artifact in carried_out(relayed(relay, events)).artifacts] == [
        "a-turn-2"
    ]


def test_statuses_keep_their_facts_but_not_those_of_the_remotes_log():
    facts = {"number": 7, "dialect": "0.3", "usage": {"totalTokens": 1}}
    received = {EXTENSION_URI: {"number": 3, "received": {"messageId": "m"}}}
    events = [
        status(TaskState.SUBMITTED),
        status(TaskState.WORKING, metadata=received),
        status(TaskState.WORKING, agent_message("hm"), {"step": 1, EXTENSION_URI: {"number": 4}}),
        piece("x", append=False),
        status(TaskState.COMPLETED, agent_message("done"), {EXTENSION_URI: facts}),
    ]
    working, _, completed = relayed(EventConverter(), events)
    assert isinstance(working, StatusUpdate)
    assert isinstance(completed, StatusUpdate)
    assert working.metadata == {"step": 1}
    assert completed.metadata == {EXTENSION_URI: {"usage": {"totalTokens": 1}}}
    assert completed.message is not None
    assert completed.message.parts[0].text == "done"


def test_messages_are_divided_into_rounds_with_each_call_once():
    def calls(*ids: str, **members: str) -> Part:
        listed: list[dict[str, Any]] = [
            {"call_id": each, "name": "f", "arguments": {}, **members} for each in ids
        ]
        return Part(data={"tool_calls": listed})

    def result(of: str) -> Part:
        return Part(data={"tool_results": [{"call_id": of, "name": "f", "output": "x"}]})

    def artifact(channel: str, *parts: Part, number: int = 1) -> TaskArtifactUpdateEvent:
        facts = {EXTENSION_URI: {"channel": channel}}
        made = Artifact(artifact_id=f"{channel}-{number}", parts=parts, metadata=facts)
        return TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=made)

    question = Message(message_id="q", role=Role.AGENT, parts=(calls("2"),))
    relay = EventConverter()
    events = [
        artifact("reasoning", Part(text="hm")),
        artifact("text", Part(text="let me see")),
        artifact("tool_call", Part(text='{"half'), calls("1")),
        artifact("tool_result", result("1")),
        artifact("text", Part(text="and now"), number=2),
        artifact("tool_call", calls("s", kind="server"), result("s"), calls("2"), number=2),
        artifact("data", Part(data={"tool_calls": [{"no": "call"}]})),
        artifact("output", Part(data={"a": 1})),
        status(TaskState.INPUT_REQUIRED, question),
    ]
    relayed(relay, events)
    messages = [to_common_message(message) for message in relay.messages({"k": 1})]
    assert [(str(message.role), [part.type for part in message.content]) for message in messages] == [
        ("model", ["reasoning", "text", "tool_call"]),
        ("tool", ["tool_result"]),
        ("model", ["text", "tool_call", "tool_result", "tool_call", "data"]),
    ]
    assert [message.metadata.get("k") for message in messages] == [None, None, 1]


def test_an_empty_answer_is_recorded():
    relay = EventConverter()
    relayed(relay, [status(TaskState.COMPLETED)])
    [message] = relay.messages()
    assert to_common_message(message).content == ()


def test_an_answer_in_messages_of_statuses_is_taken_over_as_text() -> None:
    """gemini-cli's server sends each delta of the answer as a status message, and no artifacts."""

    def coder(kind: str, text: str = "", state: TaskState = TaskState.WORKING) -> TaskStatusUpdateEvent:
        facts = {"coderAgent": {"kind": kind}, "model": "gemini"}
        return status(state, agent_message(text) if text else None, facts)

    relay = EventConverter()
    updates = relayed(
        relay,
        [
            copy(state=TaskState.SUBMITTED),
            coder("state-change"),
            coder("text-content", "Grü"),
            coder("text-content", "ße"),
            coder("state-change", state=TaskState.INPUT_REQUIRED),
        ],
    )
    assert [update.text for update in updates if isinstance(update, TextDelta)] == ["ße"]
    task = carried_out(updates)
    assert (task.status.state, task.status.message) == (TaskState.INPUT_REQUIRED, None)
    assert text_of(task) == "Grüße"
    assert [to_common_message(message).text for message in relay.messages()] == ["Grüße"]


def test_a_request_for_credentials_is_forwarded_before_the_response_ends():
    relay = EventConverter()
    question = agent_message("Open the page.")
    [request] = relay.feed(status(TaskState.AUTH_REQUIRED, question))
    assert request == StatusUpdate(TaskState.AUTH_REQUIRED, question, continues=True)
    again = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.AUTH_REQUIRED, message=question))
    assert relay.feed(again) == []
    rest = relayed(relay, [status(TaskState.WORKING), piece("done", append=False, last=True)])
    assert rest[0] == StatusUpdate(TaskState.WORKING)
    assert text_of(carried_out([request, *rest])) == "done"


def test_a_response_that_ends_with_a_request_for_credentials_has_it_once():
    updates = relayed(EventConverter(), [status(TaskState.AUTH_REQUIRED)])
    assert [(each.state, each.continues) for each in updates if isinstance(each, StatusUpdate)] == [
        (TaskState.AUTH_REQUIRED, True),
        (TaskState.AUTH_REQUIRED, False),
    ]
    task = carried_out(updates)
    assert task.status.message is not None
    assert "requires an authorization" in (task.status.message.parts[0].text or "")
    assert [message.role for message in task.history] == [Role.USER]


def channels(task: Task) -> dict[str, str]:
    """Return the texts of a task by channel; the text itself is under the empty name."""
    texts: dict[str, str] = {}
    for artifact in task.artifacts:
        channel = str(extension_metadata(artifact.metadata).get("channel", ""))
        texts[channel] = texts.get(channel, "") + "".join(part.text or "" for part in artifact.parts)
    return texts


def test_thoughts_of_adk_are_reasoning():
    thought = Part(text="Let me see.", metadata={"adk_thought": True})
    artifact = Artifact(artifact_id="a", parts=(thought, Part(text="Paris")))
    event = TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact, last_chunk=True)
    copy_of_all = Task(
        id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED), artifacts=(artifact,)
    )
    relay = EventConverter()
    task = carried_out(relayed(relay, [event, copy_of_all]))
    assert channels(task) == {"reasoning": "Let me see.", "": "Paris"}
    [message] = relay.messages()
    assert [part.text for part in message.parts] == ["Let me see.", "Paris"]
    assert extension_metadata(message.parts[0].metadata)["channel"] == "reasoning"


def test_thoughts_of_gemini_cli_are_reasoning():
    def thinks(subject: str, description: str) -> TaskStatusUpdateEvent:
        data = {"subject": subject, "description": description}
        message = Message(message_id="m", role=Role.AGENT, parts=(Part(data=data),))
        return status(TaskState.WORKING, message, {"coderAgent": {"kind": "thought"}})

    text = status(TaskState.WORKING, agent_message("Paris"), {"coderAgent": {"kind": "text-content"}})
    events = [thinks("Plan", "Let me see. "), thinks("", "Yes."), text, status(TaskState.INPUT_REQUIRED)]
    task = carried_out(relayed(EventConverter(), events))
    assert channels(task) == {"reasoning": "**Plan**\nLet me see. Yes.", "": "Paris"}


def test_each_turn_of_a_task_without_artifacts_has_its_own_answer():
    facts = {"coderAgent": {"kind": "text-content"}}
    first = relayed(
        EventConverter(),
        [status(TaskState.WORKING, agent_message("one"), facts), status(TaskState.COMPLETED)],
    )
    second = EventConverter(turn=2).feed(status(TaskState.WORKING, agent_message("two"), facts))
    assert text_of(carried_out([*second, *first])) == "twoone"


_TEXT = {"coderAgent": {"kind": "text-content"}}


def spoken(text: str) -> TaskStatusUpdateEvent:
    """A text of an agent that sends its response in statuses."""
    return status(TaskState.WORKING, agent_message(text), _TEXT)


def copy_with(*texts: str, last: str = "", state: TaskState = TaskState.WORKING) -> Task:
    """A copy of a task with texts in its history and in its status."""
    caller = Message(message_id="m", role=Role.USER, parts=(Part(text="?"),))
    thought = Message(message_id="t", role=Role.AGENT, parts=(Part(data={"subject": "Plan"}),))
    history = (caller, thought, *map(agent_message, texts)) if texts else ()
    message = agent_message(last) if last else None
    return Task(id="t", context_id="c", status=TaskStatus(state=state, message=message), history=history)


_PUBLISHED = PublishedArtifact(Artifact(artifact_id="message", parts=(Part(text="One two "),)), is_open=True)


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize(
    "rest",
    [
        [copy_with("One ", "two ", "three ", last="four "), spoken("five.")],
        [copy_with("One ", "two ", "three ", "four "), spoken("five.")],
        [copy_with("One ", "two ", "three ", "four ", "five.", state=TaskState.COMPLETED)],
    ],
)
def test_texts_of_statuses_that_did_not_arrive_are_in_a_copy_of_the_task(
    rest: list[RemoteEvent], is_crash: bool
):
    """A lost connection and a crash lose no text that the task has."""
    relay = EventConverter(published=[_PUBLISHED] if is_crash else ())
    events = rest if is_crash else [spoken("One "), spoken("two "), *rest]
    updates = relayed(relay, [*events, status(TaskState.COMPLETED)])
    if is_crash:
        updates = [ArtifactUpdate(_PUBLISHED.artifact, last=False), *updates]
    task = carried_out(updates)
    assert (text_of(task), task.status.state) == ("One two three four five.", TaskState.COMPLETED)
    assert [message.role for message in task.history] == [Role.USER]
    assert [part.text for message in relay.messages() for part in message.parts] == [
        "One two three four five."
    ]


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize("end", [TaskState.COMPLETED, TaskState.INPUT_REQUIRED])
@pytest.mark.parametrize(
    "rest",
    [
        [copy_with("One ", "two ", last="three "), spoken("four.")],
        [copy_with("One ", "two ", "three ", "four.")],
        [copy_with("One ", "two ", "three ", last="four.")],
    ],
)
def test_texts_of_statuses_are_not_lost_if_none_had_arrived_before(
    rest: list[RemoteEvent], end: TaskState, is_crash: bool
):
    interrupted = InterruptedResponse(stored_id="t") if is_crash else None
    relay = EventConverter(interrupted=interrupted)
    begun = [] if is_crash else [copy(state=TaskState.SUBMITTED)]
    task = carried_out(relayed(relay, [*begun, *rest, status(end)]))
    assert (text_of(task), task.status.state, task.status.message) == ("One two three four.", end, None)


def test_texts_of_the_turn_before_are_not_the_response():
    task = carried_out(relayed(EventConverter(), [copy_with("before"), status(TaskState.COMPLETED)]))
    assert text_of(task) == ""


def test_a_message_of_a_status_is_published_once():
    """Also after a crash, and if the response has no other output."""
    thinking = agent_message("thinking")
    again = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING, message=thinking))
    done = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED), history=(thinking,))
    interrupted = InterruptedResponse(stored_id="t", published_messages=(thinking.message_id,))
    relay = EventConverter(interrupted=interrupted)
    assert relay.feed(again) == []
    assert text_of(carried_out(relayed(relay, [done]))) == ""

    relay = EventConverter()
    assert [
        each.message
        for each in relay.feed(status(TaskState.WORKING, thinking))
        if isinstance(each, StatusUpdate)
    ]
    assert relay.feed(again) == []


@pytest.mark.parametrize(
    ("lost", "state"),
    [
        (copy_with(last="two "), TaskState.COMPLETED),  # the last text has arrived
        (copy_with(last="four "), TaskState.FAILED),
        (copy_with(), TaskState.FAILED),
        (copy_with("another text"), TaskState.FAILED),
    ],
)
def test_a_response_of_which_a_text_may_be_missing_fails(lost: Task, state: TaskState):
    task = carried_out(
        relayed(EventConverter(), [spoken("One "), spoken("two "), lost, status(TaskState.COMPLETED)])
    )
    assert (text_of(task), task.status.state) == ("One two ", state)


def test_the_message_of_a_further_turn_has_what_it_published_before_a_crash():
    """Not only the artifacts that were open; those of earlier turns are in the conversation."""
    published = [
        PublishedArtifact(
            Artifact(artifact_id=name, parts=(Part(text=name),)), is_open=is_open, is_new=is_new
        )
        for name, is_open, is_new in (("first", False, False), ("second", False, True), ("a", True, True))
    ]
    relay = EventConverter(published=published, turn=2)
    relayed(relay, [piece(" more", last=True), status(TaskState.COMPLETED)])
    assert [part.text for message in relay.messages() for part in message.parts] == ["second", "a more"]


def test_a_request_for_input_without_a_message_has_the_one_before_it():
    request = agent_message("Confirm: write x.txt")
    text = status(TaskState.WORKING, agent_message("First, "), {"coderAgent": {"kind": "text-content"}})
    events = [text, status(TaskState.WORKING, request), status(TaskState.INPUT_REQUIRED)]
    task = carried_out(relayed(EventConverter(), events))
    assert task.status.message is not None
    assert task.status.message.parts == request.parts
    assert [each.parts for each in task.history if each.role is Role.AGENT] == []

    events = [status(TaskState.WORKING, agent_message("Wait.")), text, status(TaskState.INPUT_REQUIRED)]
    assert carried_out(relayed(EventConverter(), events)).status.message is None, "the text came later"
