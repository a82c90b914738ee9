"""Output of the demo."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from tailrace.server.cli.demo_view import DemoView
from tailrace.server.cli.transcript import Transcript
from tailrace.server.remote.client import StreamEvent
from tailrace.streaming.a2a import Artifact, Message, Part, Role, StreamResponse, TaskState
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import TaskRecord, agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update

QUESTION = Message(message_id="m", role=Role.USER, parts=(Part(text="?"),))
USAGE = {"usage": {"inputTokens": 5, "outputTokens": 7}, "finishReason": "stop"}


def text(words: str, *, id_: str = "text", channel: str = "text", name: str = "") -> ArtifactUpdate:
    metadata = {EXTENSION_URI: {"channel": channel}}
    parts = (Part(text=words),)
    return ArtifactUpdate(Artifact(artifact_id=id_, parts=parts, metadata=metadata, name=name), last=False)


def events_of(*updates: Update) -> list[StreamEvent]:
    record = TaskRecord.create(QUESTION, task_id="t1", context_id="c1")
    events = [record.submitted(), *(record.apply(update) for update in updates)]
    return [
        StreamEvent(StreamResponse.model_validate_json(event.body), str(event.number), None)
        for event in events
    ]


def show(*updates: Update, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    view = DemoView(Console(file=out, width=width, force_terminal=terminal, color_system=None))
    transcript = Transcript()
    view.begin_events()
    for event in events_of(*updates):
        view.event(event, transcript.read(event.response))
    view.summary(transcript)
    return out.getvalue()


def rows(printed: str) -> list[list[str]]:
    return [line.split(maxsplit=2) for line in printed.splitlines() if line.strip()]


def test_events_are_shown_with_their_numbers_and_text_as_one_paragraph():
    printed = show(
        StatusUpdate(TaskState.WORKING),
        text("The sky", name="Answer"),
        TextDelta("text", " is blue.\nYes, "),
        TextDelta("text", "it is.", last=True),
        StatusUpdate(TaskState.COMPLETED, metadata={EXTENSION_URI: USAGE}),
    )
    *events, message, usage, finish = rows(printed)
    assert events == [
        ["1", "task", "t1  submitted"],
        ["2", "status", "working"],
        ["3", "artifact", '"Answer"'],
        ["The", "sky", "is blue."],
        ["Yes,", "it", "is."],
        ["3-5", "artifact", "complete: 3 events, 28 characters"],
        ["6", "status", "completed"],
    ]
    assert message == ["final", "message", 'from the agent, 28 characters: "The sky is blue. Yes, it is."']
    assert usage[:2] == ["usage", "5"]
    assert " 7 out, " in usage[2]
    assert " tokens/s" in usage[2]
    assert finish == ["finish", "reason", "stop"]
    assert "\x1b" not in printed


def test_reasoning_tool_calls_and_the_reason_of_a_failure_are_shown():
    calls = Part(data={"tool_calls": [{"call_id": "1", "name": "add", "arguments": {}}]})
    printed = show(
        text("hm", id_="reasoning", channel="reasoning"),
        text("so", id_="text"),
        ArtifactUpdate(Artifact(artifact_id="tool-call", parts=(calls,))),
        StatusUpdate(TaskState.FAILED, agent_message("broken \x1b[0m")),
    )
    assert rows(printed)[1:8] == [
        ["2", "artifact", '"reasoning" (reasoning)'],
        ["hm"],
        ["3", "artifact", '"text"'],
        ["so"],
        ["4", "tool", "call add({})"],
        ["5", "status", "failed: broken \\x1b[0m"],
        ["final", "message", 'from the agent, 2 characters: "so"'],
    ]


def test_a_continuation_divides_the_text():
    after = {"model": "openai:m", "error": {"type": "stream_truncated"}}
    facts = {"attempt": 2, "route": "prefill", "model": "openai:m", "after": after}
    printed = show(
        text("The sky", name="Answer"),
        TextDelta("text", " is"),
        StatusUpdate(TaskState.WORKING, metadata={EXTENSION_URI: {"continuation": facts}}),
        TextDelta("text", " blue."),
        StatusUpdate(TaskState.COMPLETED),
    )
    assert rows(printed)[1:9] == [
        ["2", "artifact", '"Answer"'],
        ["The", "sky", "is"],
        ["2-3", "artifact", "so far: 2 events, 10 characters"],
        ["4", "continued", "attempt 2 by prefill, after the error stream_truncated"],
        ["4", "status", "working"],
        ["5", "artifact", '"Answer"'],
        ["blue."],
        ["6", "status", "completed"],
    ]


def test_a_replaced_text_starts_again():
    printed = show(text("one"), text("two"), TextDelta("text", " three"), StatusUpdate(TaskState.COMPLETED))
    assert rows(printed)[1:6] == [
        ["2", "artifact", '"text"'],
        ["one"],
        ["3", "artifact", '"text"'],
        ["two", "three"],
        ["3-4", "artifact", "complete: 2 events, 9 characters"],
    ]


@pytest.mark.parametrize("pieces", [1, 3, 200])
def test_on_a_terminal_text_is_wrapped_between_words_and_nothing_is_lost(pieces: int):
    words = "Ein Fluß fließt 天空是蓝色的 langsam und stetig in das Meer hinein. " * 5
    step = max(1, len(words) // pieces)
    deltas = [TextDelta("text", words[at : at + step]) for at in range(step, len(words), step)]
    printed = show(text(words[:step]), *deltas, width=60, terminal=True)
    lines = [line for line in printed.splitlines() if line.startswith(" " * 13) and line.strip()]
    assert " ".join(" ".join(lines).split()) == words.strip()
    assert len(lines) > 5
    # A word that arrives in several deltas may be highlighted; a word in one delta may not.
    assert all(cell_len(line) <= 60 for line in lines) or pieces == 200


def test_in_a_pipe_text_is_not_wrapped():
    words = "word " * 100
    assert words.strip() in show(text(words), width=60)


def test_a_long_answer_is_shortened_to_its_beginning_and_end():
    printed = show(text("a" * 100 + "z" * 100))
    [message] = [row for row in rows(printed) if row[:2] == ["final", "message"]]
    assert message[2] == f'from the agent, 200 characters: "{"a" * 30} … {"z" * 30}"'


def test_a_task_that_was_fetched_is_compared_with_what_was_seen():
    out = io.StringIO()
    view = DemoView(Console(file=out, width=80))
    seen, same, other = Transcript(), Transcript(), Transcript()
    for event in events_of(text("one"), StatusUpdate(TaskState.COMPLETED)):
        seen.read(event.response)
        same.read(event.response)
    for event in events_of(text("two")):
        other.read(event.response)
    assert view.fetched_again(seen, same)
    assert "same id: yes, same state: yes, same text: yes" in out.getvalue()
    assert not view.fetched_again(seen, other)
    assert "same id: yes, same state: no, same text: no" in out.getvalue()
