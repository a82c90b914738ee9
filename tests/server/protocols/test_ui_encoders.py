"""Chunks and events of a turn, where the round trip does not cover them."""

import json
from typing import Any

from support.ui_streams import read_run, read_ui_messages
from tailrace.server.protocols.ag_ui.encoder import AgUiEncoder
from tailrace.server.protocols.ai_sdk.encoder import UiMessageEncoder
from tailrace.server.protocols.encoder import frame_payloads
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai_error import OpenAIError
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
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.wrappers import ContentPartToolCall

BEGUN = TurnStarted("t", "c")
WITHOUT_TASK = TurnStarted("", "")
LOOK = ContentPartToolCall(id="c1", name="look", arguments={})
DONE = TurnEnded(TaskState.COMPLETED)
TEXT: list[UiEvent] = [
    TextStarted("text", "text"),
    TextAdded("text", "text", "a\u2028b"),
    TextEnded("text", "text"),
]
CALL: list[UiEvent] = [
    CallStarted("c1", "look", declared=True),
    ArgumentsAdded("c1", "{}"),
    CallEnded(LOOK, True),
]


def chunks(*ui_events: UiEvent, message_id: str = "") -> list[dict[str, Any]]:
    encoded = UiMessageEncoder(EventTranslator(), message_id).payloads(ui_events)
    return [json.loads(each) for each in encoded if each != b"[DONE]"]


def events(*ui_events: UiEvent) -> list[dict[str, Any]]:
    return [json.loads(each) for each in AgUiEncoder(EventTranslator(), "thread", "run").payloads(ui_events)]


def test_a_message_has_the_id_of_its_task_and_of_the_turn_that_began_it() -> None:
    assert [start["messageId"] for start, *_ in (chunks(BEGUN), chunks(TurnStarted("t", "c", 3)))] == [
        "t",
        "t-3",
    ]
    assert chunks(BEGUN, message_id="mine")[0]["messageId"] == "mine"
    assert "messageId" not in chunks(WITHOUT_TASK, DONE)[0]


def test_no_line_separator_leaves_as_it_is() -> None:
    for encoded in (
        UiMessageEncoder(EventTranslator()).payloads([BEGUN, *TEXT]),
        AgUiEncoder(EventTranslator(), "t", "r").payloads([BEGUN, *TEXT]),
    ):
        body = b"".join(encoded)
        assert "\u2028".encode() not in body
        assert rb"a\u2028b" in body


def test_what_an_answer_refers_to_is_a_source_once() -> None:
    annotations = (
        {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}},
        {"type": "url_citation", "url": "https://b.example"},
        {"uri": "https://a.example"},
        "no object",
    )
    *_, one, other, finish = chunks(BEGUN, TurnEnded(TaskState.COMPLETED, annotations=annotations))
    assert one == {"type": "source-url", "sourceId": "source-1", "url": "https://a.example", "title": "A"}
    assert other == {"type": "source-url", "sourceId": "source-2", "url": "https://b.example"}
    assert finish["type"] == "finish"


def test_a_canceled_task_is_an_answer_that_was_aborted() -> None:
    ended = TurnEnded(TaskState.CANCELED, error=OpenAIError(409, "the task was canceled"))
    assert chunks(BEGUN, *TEXT, ended)[-1] == {"type": "abort", "reason": "the task was canceled"}
    finished = events(BEGUN, *CALL[:2], ended)[-1]
    assert (finished["type"], finished["outcome"]) == ("RUN_FINISHED", {"type": "cancelled"})
    old = AgUiEncoder(EventTranslator(), "t", "r", has_outcome=False).payloads([BEGUN, ended])
    assert json.loads(old[-1]) == {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}


def test_a_failed_task_is_an_error() -> None:
    ended = TurnEnded(
        TaskState.FAILED, error=OpenAIError(502, "gone", code="http_status"), usage={"totalTokens": 3}
    )
    assert chunks(BEGUN, *TEXT, ended)[-1] == {"type": "error", "errorText": "gone"}
    assert events(BEGUN, ended)[-1] == {
        "type": "RUN_ERROR",
        "message": "gone",
        "code": "http_status",
        "usage": [{"totalTokens": 3}],
    }


def test_failed_tools_are_reported_in_text() -> None:
    failed = CallResult("c1", {"why": "x"}, is_error=True)
    turn = read_ui_messages(UiMessageEncoder(EventTranslator()).payloads([BEGUN, *CALL, failed, DONE]))
    assert (turn.results, turn.failed) == ({"c1": '{"why": "x"}'}, {"c1"})
    assert read_run(
        AgUiEncoder(EventTranslator(), "t", "r").payloads([BEGUN, *CALL, failed, DONE])
    ).results == {"c1": '{"why": "x"}'}


def test_a_call_that_turns_out_to_be_the_clients_is_given_back_to_it() -> None:
    undeclared: list[UiEvent] = [
        CallStarted("c1", "look", declared=False),
        ArgumentsAdded("c1", "{}"),
        CallEnded(LOOK, False),
        CallPending(LOOK),
        TurnEnded(TaskState.INPUT_REQUIRED, "tool_calls", pending=("c1",)),
    ]
    assert read_ui_messages(UiMessageEncoder(EventTranslator()).payloads([BEGUN, *undeclared])).waiting == {
        "c1"
    }
    assert read_run(AgUiEncoder(EventTranslator(), "t", "r").payloads([BEGUN, *undeclared])).waiting == {"c1"}


def test_files_and_data_have_their_place() -> None:
    given: list[UiEvent] = [
        FileAdded("file-1", "https://x.example/a.png", "image/png", "a.png"),
        DataAdded("data-1", "facts", {"x": 1}),
        DataAdded("output", "output", {"y": 2}, is_output=True),
        StateChanged(TaskState.WORKING, "Searching"),
    ]
    message = read_ui_messages(UiMessageEncoder(EventTranslator()).payloads([BEGUN, *given, DONE]))
    assert message.files == ["https://x.example/a.png"]
    assert message.data == [("data-artifact", {"name": "facts", "data": {"x": 1}}), ("data-output", {"y": 2})]
    run = read_run(AgUiEncoder(EventTranslator(), "t", "r").payloads([BEGUN, *given, DONE]))
    assert run.texts == ["![a.png](https://x.example/a.png)"]
    assert run.data == [("CUSTOM", {"name": "facts", "data": {"x": 1}})]
    assert run.end["result"] == {"y": 2}


def test_texts_and_calls_of_a_round_are_one_message_of_ag_ui() -> None:
    encoded = events(BEGUN, RoundStarted(1, 2), *CALL, *TEXT, TextStarted("refusal", "text"))
    assert [event["parentMessageId"] for event in encoded if event["type"] == "TOOL_CALL_START"] == ["t-1-2"]
    starts = [event["messageId"] for event in encoded if event["type"] == "TEXT_MESSAGE_START"]
    assert starts == ["t-1-2", "t-1-2-refusal"]


def test_an_answer_without_a_task_is_a_run_all_the_same() -> None:
    turn = read_run(
        AgUiEncoder(EventTranslator(), "t", "r").payloads([WITHOUT_TASK, RoundStarted(1, 1), *TEXT, DONE])
    )
    assert turn.texts == ["a\u2028b"]


def test_the_last_frame_of_an_event_has_its_number() -> None:
    assert frame_payloads([b"a", b"b"], 7) == b"data: a\n\nid: 7\ndata: b\n\n"
    assert frame_payloads([b"a", b"b"]) == b"data: a\n\ndata: b\n\n"
    assert frame_payloads([], 7) == b""
