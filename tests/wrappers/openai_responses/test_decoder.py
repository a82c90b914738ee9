"""The Responses decoder: deltas, the final copies of their content, calls, and the openai package's events."""

import pytest

from support.responses_events import (
    WHOLE_TEXT,
    added,
    decode,
    done,
    event,
    fold,
    function_call,
    message,
    output_text,
    sse,
    text_delta,
    text_message,
)
from tailrace.wrappers import ContentPartText, Message


def test_a_delta_of_text_is_plain_once_its_block_is_open() -> None:
    first, second = decode(sse(text_delta("Hel"), text_delta("lo", obfuscation="xyz")))
    assert (first.get_text(), first.plain) == ("Hel", False)
    assert (second.get_text(), second.plain, second.details) == ("lo", True, None)
    assert (second.get_reasoning(), second.get_tool_calls()) == ("", [])
    assert (second.get_finish_message(), second.get_usage()) == (None, None)
    assert second.raw["obfuscation"] == "xyz"


def test_a_complete_stream_has_all_content_once() -> None:
    accumulator = fold(*WHOLE_TEXT)
    assert accumulator.message() == Message.model_validate(
        {
            "role": "model",
            "content": [{"type": "text", "text": "Hello", "metadata": {"openai-responses": {"id": "msg_1"}}}],
            "metadata": {"finish_reason": "stop"},
        }
    )
    assert accumulator.metadata == {"id": "resp_1", "model": "m", "created": 7}
    assert accumulator.usage is not None
    assert (accumulator.usage.input_tokens, accumulator.usage.total_tokens) == (3, 7)
    assert accumulator.error is None


# Sequences without the first delta: the rest is not a prefix of the full text.
@pytest.mark.parametrize("left_out", [0, 1, 2, 3, 5, 6, 7, 8, 9])
def test_whichever_event_is_left_out_the_text_is_the_same(left_out: int) -> None:
    events = [each for index, each in enumerate(WHOLE_TEXT) if index != left_out]
    assert message(*events).text == "Hello"


@pytest.mark.parametrize("first", [2, 3, 4, 6, 7, 8, 9])
def test_whatever_the_stream_begins_with_the_text_is_the_same(first: int) -> None:
    assert message(*WHOLE_TEXT[first:]).text == "Hello"


def test_what_contradicts_the_deltas_is_not_added_to_them() -> None:
    assert message(text_delta("He"), done(text_message("Good morning"))).text == "He"


def test_parts_and_items_are_blocks_of_their_own() -> None:
    events = [
        text_delta("a"),
        text_delta("b", content=1),
        text_delta("c", output=1),
        text_delta("d", output=1),
    ]
    assert [part.text for part in message(*events).content if isinstance(part, ContentPartText)] == [
        "a",
        "b",
        "cd",
    ]


def test_text_of_two_parts_that_comes_in_turns_is_not_mixed() -> None:
    events = [text_delta("a"), text_delta("b", output=1), text_delta("c")]
    assert [part.text for part in message(*events).content if isinstance(part, ContentPartText)] == [
        "a",
        "b",
        "c",
    ]


def test_ids_that_change_with_every_event_are_of_no_account() -> None:
    events = [
        added(text_message(id="x1")),
        text_delta("Hel") | {"item_id": "x2"},
        text_delta("lo") | {"item_id": "x3"},
        event("output_text.done", item_id="x4", output_index=0, content_index=0, text="Hello"),
        done(text_message("Hello", id="x5")),
        event("completed", response={"status": "completed", "output": [text_message("Hello", id="x6")]}),
    ]
    [part] = message(*events).content
    assert part == ContentPartText(text="Hello", metadata={"openai-responses": {"id": "x1"}})


def test_without_indexes_a_delta_belongs_to_the_latest_item_of_its_type() -> None:
    events = [
        added({"type": "reasoning", "id": "rs"}),
        event("reasoning_summary_text.delta", summary_index=0, delta="hm"),
        added(text_message(), output=1),
        text_delta("Hel", None, None),
        text_delta("lo", None, None),
        done(text_message("Hello"), output=1),
    ]
    assert (message(*events).reasoning, message(*events).text) == ("hm", "Hello")


def test_items_with_the_same_index_are_distinguished() -> None:
    events = [
        added(function_call(call_id="a")),
        done(function_call("{}", call_id="a")),
        added(function_call(call_id="b", name="sub")),
        event("function_call_arguments.delta", output_index=0, delta='{"x":1}'),
        done(function_call('{"x":1}', call_id="b", name="sub")),
    ]
    calls = message(*events).tool_calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("a", "add", {}),
        ("b", "sub", {"x": 1}),
    ]


def test_the_state_of_a_message_and_its_phase_are_kept_with_its_text() -> None:
    begun = text_message(phase="commentary", status="in_progress")
    events = [
        added(begun),
        text_delta("Hi"),
        done(text_message("Hi", phase="final_answer", status="incomplete")),
    ]
    [part] = message(*events).content
    assert part.metadata == {
        "openai-responses": {"id": "msg_1", "phase": "final_answer", "status": "incomplete"}
    }


def test_a_phase_that_comes_with_the_text_at_the_end_is_kept_too() -> None:
    [part] = message(done(text_message("Hi", phase="final_answer"))).content
    assert part.metadata == {"openai-responses": {"id": "msg_1", "phase": "final_answer"}}


def test_a_refusal_has_a_channel_of_its_own() -> None:
    refusal = {"type": "refusal", "refusal": "I can't."}
    events = [
        event("refusal.delta", output_index=0, content_index=0, delta="I "),
        event("refusal.delta", output_index=0, content_index=0, delta="can"),
        event("refusal.done", output_index=0, content_index=0, refusal="I can't."),
        event("content_part.done", output_index=0, content_index=0, part=refusal),
        done({"type": "message", "content": [refusal]}),
    ]
    assert message(*events).metadata["refusal"] == "I can't."
    assert message(events[-1]).metadata["refusal"] == "I can't."


def test_annotations_are_reported_once_and_stay_with_their_text() -> None:
    link = {
        "type": "url_citation",
        "url": "https://example.com",
        "start_index": 0,
        "end_index": 2,
        "title": "e",
    }
    book = {"type": "file_citation", "file_id": "f", "filename": "a.pdf", "index": 0}
    whole = output_text("Hi", annotations=[link, book])
    events = [
        text_delta("Hi"),
        event(
            "output_text.annotation.added",
            output_index=0,
            content_index=0,
            annotation_index=0,
            annotation=link,
        ),
        event("content_part.done", output_index=0, content_index=0, part=whole),
        done(text_message() | {"content": [whole]}),
    ]
    answer = message(*events)
    assert answer.metadata["extra"] == {"annotations": [link, book]}
    [part] = answer.content
    assert part.metadata["openai-responses"]["annotations"] == [link, book]


def test_an_annotation_of_a_block_that_is_no_longer_the_last_is_not_given_to_another() -> None:
    link = {"type": "url_citation", "url": "https://example.com"}
    late = event("output_text.annotation.added", output_index=0, content_index=0, annotation=link)
    answer = message(text_delta("a"), text_delta("b", output=1), late)
    assert answer.metadata["extra"] == {"annotations": [link]}
    assert [part.metadata for part in answer.content] == [{}, {}]


def test_logprobs_are_reported_once() -> None:
    first, second = {"token": "Hel", "logprob": -0.1}, {"token": "lo", "logprob": -0.2}
    events = [
        text_delta("Hel") | {"logprobs": [first]},
        event("output_text.done", output_index=0, content_index=0, text="Hello", logprobs=[first, second]),
        done(text_message() | {"content": [output_text("Hello", logprobs=[first, second])]}),
    ]
    answer = message(*events)
    assert answer.text == "Hello"
    assert answer.metadata["extra"] == {"logprobs": {"content": [first, second]}}


def test_sound_is_joined_from_its_pieces() -> None:
    events = [
        event("audio.delta", delta="UklG"),
        event("audio.transcript.delta", delta="Hel"),
        event("audio.delta", delta="Rg=="),
        event("audio.transcript.delta", delta="lo"),
        event("audio.done"),
    ]
    assert message(*events).metadata["extra"] == {"audio": {"data": "UklGRg==", "transcript": "Hello"}}


def test_content_of_an_unknown_type_is_kept() -> None:
    odd = {"type": "output_smell", "smell": "rose"}
    assert message(done({"type": "message", "content": [odd]})).metadata["extra"] == {"content_parts": [odd]}


def test_content_of_type_text_is_text() -> None:
    assert message(done({"type": "message", "content": [{"type": "text", "text": "Hi"}]})).text == "Hi"
