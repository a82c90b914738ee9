"""Event streams as readable transcripts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.cli.transcript import (
    Item,
    Pace,
    Remark,
    Status,
    Text,
    Transcript,
    for_terminal,
    in_words,
)
from tailrace.streaming.a2a import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

CALLS = {"tool_calls": [{"call_id": "1", "name": "add", "arguments": {"a": 1}}, "odd"]}


def artifact(*parts: Part, append: bool = False, id_: str = "a", channel: str = "") -> StreamResponse:
    metadata: dict[str, Any] = {EXTENSION_URI: {"channel": channel}} if channel else {}
    piece = Artifact(artifact_id=id_, parts=parts, metadata=metadata)
    return StreamResponse(
        artifact_update=TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=piece, append=append)
    )


def message_of(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=parts)


def status(state: TaskState, *parts: Part, **facts: Any) -> StreamResponse:
    now = TaskStatus(state=state, message=message_of(*parts) if parts else None)
    update = TaskStatusUpdateEvent(
        task_id="t", context_id="c", status=now, metadata={EXTENSION_URI: facts} if facts else {}
    )
    return StreamResponse(status_update=update)


def snapshot(*artifacts: Artifact, state: TaskState = TaskState.WORKING) -> StreamResponse:
    task = Task(id="t", context_id="c", status=TaskStatus(state=state), artifacts=artifacts)
    return StreamResponse(task=task)


def read(*responses: StreamResponse) -> tuple[Transcript, list[Item]]:
    transcript = Transcript()
    return transcript, [item for response in responses for item in transcript.read(response)]


def test_text_grows_by_what_is_new_and_adds_up_to_the_answer():
    transcript, items = read(
        status(TaskState.WORKING),
        artifact(Part(text="one ")),
        artifact(Part(text="two"), append=True),
        artifact(Part(text=""), append=True),
        status(TaskState.COMPLETED, usage={"outputTokens": 2}),
    )
    assert items == [
        Status(TaskState.WORKING),
        Text("a", "text", "one "),
        Text("a", "text", "two"),
        Status(TaskState.COMPLETED),
    ]
    assert transcript.response_text == "one two"
    assert (transcript.task_id, transcript.context_id) == ("t", "c")
    assert transcript.metadata == {"usage": {"outputTokens": 2}}


def test_a_channel_is_named_once_and_holds_for_what_is_appended():
    transcript, items = read(
        artifact(Part(text="hm"), id_="r", channel="reasoning"),
        artifact(Part(text="m"), id_="r", append=True),
        artifact(Part(text="yes"), id_="t", channel="text"),
    )
    assert items == [Text("r", "reasoning", "hm"), Text("r", "reasoning", "m"), Text("t", "text", "yes")]
    assert transcript.response_text == "yes"


@given(st.text(min_size=1), st.text(), st.text())
def test_a_whole_copy_shows_what_it_has_more_or_else_all_of_it_again(first: str, more: str, other: str):
    transcript, _ = read(artifact(Part(text=first)))
    assert transcript.read(snapshot(Artifact(artifact_id="a", parts=(Part(text=first + more),)))) == [
        *([Text("a", "text", more)] if more else []),
        Status(TaskState.WORKING),
    ]
    assert transcript.response_text == first + more
    items = transcript.read(artifact(Part(text=other)))
    assert transcript.response_text == other
    again = not other.startswith(first + more)
    rest = other if again else other.removeprefix(first + more)
    assert items == ([Text("a", "text", rest, again)] if rest or again else [])


def test_a_status_is_printed_if_its_state_or_text_changes():
    working, progress = TaskState.WORKING, Part(text="half way")
    _, items = read(
        snapshot(), status(working), status(working, progress), status(working, progress), status(working)
    )
    assert items == [Status(working), Status(working, "half way"), Status(working)]


def test_tool_calls_files_and_data_are_remarks_and_a_question_does_not_repeat_them():
    transcript, items = read(
        artifact(Part(data=CALLS), id_="calls", channel="tool_call"),
        artifact(Part(data={"tool_results": [{"name": "add", "output": "é"}]}), id_="results"),
        artifact(Part(raw=b"12345", filename="a.bin", media_type="x/y"), Part(url="http://f/1"), id_="files"),
        artifact(Part(data={"tool_calls": 1}), Part(data=None), id_="data"),
        artifact(Part(data=CALLS), id_="calls"),
        status(TaskState.INPUT_REQUIRED, Part(data=CALLS)),
    )
    assert items == [
        Remark("tool call", 'add({"a": 1})'),
        Remark("tool result", 'add: "é"'),
        Remark("file", "a.bin (x/y, 5 bytes)"),
        Remark("file", "without a name (http://f/1)"),
        Remark("data", '{"tool_calls": 1}'),
        Remark("data", "null"),
        Status(TaskState.INPUT_REQUIRED),
    ]
    assert transcript.response_text == ""


def test_a_call_whose_arguments_came_as_text_is_a_remark_in_the_end_and_no_text_again():
    _, items = read(
        artifact(Part(text='{"a":'), channel="tool_call"),
        artifact(Part(text=" 1}"), append=True),
        artifact(Part(data=CALLS)),
    )
    assert items[:2] == [Text("a", "tool_call", '{"a":'), Text("a", "tool_call", " 1}")]
    assert items[2] == Remark("tool call", 'add({"a": 1})')
    assert not [item for item in items[2:] if isinstance(item, Text)]


def test_a_direct_message_is_an_answer_that_is_complete():
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="hi"),), context_id="c")
    transcript, items = read(StreamResponse(message=message))
    assert items == [Text("m", "text", "hi")]
    assert transcript.status == Status(TaskState.COMPLETED)
    assert (transcript.task_id, transcript.context_id, transcript.response_text) == ("", "c", "hi")


def test_two_artifacts_of_text_are_two_lines_of_the_answer():
    transcript, _ = read(artifact(Part(text="a"), id_="1"), artifact(Part(text="b"), id_="2"))
    assert transcript.response_text == "a\nb"


@pytest.mark.parametrize("usage", [None, {}, {"inputTokens": "many", "outputTokens": 1}, 7])
def test_tokens_are_shown_only_if_the_agent_counted_them(usage: Any):
    transcript, _ = read(artifact(Part(text="abc")), status(TaskState.COMPLETED, usage=usage))
    pace = Pace()
    pace.record_text()
    assert pace.describe(transcript).startswith("3 characters in 0.0 s, the first after 0.0")


def test_tokens_per_second_are_shown():
    usage = {"inputTokens": 1200, "outputTokens": 34}
    transcript, _ = read(status(TaskState.COMPLETED, usage=usage))
    description = Pace().describe(transcript)
    assert description.startswith("1,200 tokens in, 34 out, ")
    assert description.endswith(" tokens/s")


def test_the_pace_of_a_resumed_answer_is_not_shown():
    transcript, _ = read(artifact(Part(text="abc")), status(TaskState.COMPLETED))
    pace = Pace(live=False)
    pace.record_text()
    assert pace.describe(transcript) == "3 characters"
    transcript, _ = read(status(TaskState.COMPLETED, usage={"inputTokens": 1200, "outputTokens": 34}))
    assert pace.describe(transcript) == "1,200 tokens in, 34 out"


def test_states_are_described_in_words():
    assert in_words(TaskState.INPUT_REQUIRED) == "input required"


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str):
    safe = for_terminal(text)
    assert not any(
        character not in "\t\n" and not " " <= character <= "~" and character < "\xa0" for character in safe
    )
    assert for_terminal("\x1b[31m\x9bx\r\n\t") == "\\x1b[31m\\x9bx\\x0d\n\t"
