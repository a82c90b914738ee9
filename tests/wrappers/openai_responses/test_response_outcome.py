"""The end of a response, its facts and usage, and errors that a server reports."""

import json
from typing import Any

import pytest

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import FinishMessage, FinishReason, UpstreamError, UpstreamFault, Usage
from tailrace.wrappers.openai_responses import ResponsesDecoder

Fields = dict[str, Any]

TEXT = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}


def event(kind: str, **response: Any) -> Fields:
    return {"type": f"response.{kind}", "response": response}


def fold_body(body: bytes) -> tuple[Accumulator, ResponsesDecoder]:
    decoder = ResponsesDecoder(provider="openai")
    accumulator = Accumulator(think_tags=False)
    for chunk in decoder.feed(body) + decoder.close():
        accumulator.add(chunk)
    accumulator.close()
    return accumulator, decoder


def fold(*events: object) -> Accumulator:
    return fold_body(b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events))[0]


def finish_of(*events: object) -> FinishMessage | None:
    first = fold(*events).first
    return first.finish if first is not None else None


def error_of(*events: object) -> UpstreamError:
    error = fold(*events).error
    assert error is not None
    return error


def incomplete(reason: str | None) -> Fields:
    return event("incomplete", status="incomplete", incomplete_details=reason and {"reason": reason})


# --- the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "reason", "raw"),
    [
        (event("completed", status="completed"), FinishReason.STOP, "completed"),
        (event("completed"), FinishReason.STOP, "completed"),
        ({"type": "response.completed"}, FinishReason.STOP, "completed"),
        (event("done", status="completed"), FinishReason.STOP, "completed"),
        (incomplete("max_output_tokens"), FinishReason.LENGTH, "max_output_tokens"),
        (incomplete("content_filter"), FinishReason.CONTENT_FILTER, "content_filter"),
        (incomplete("server_timeout"), FinishReason.UNSPECIFIED, "server_timeout"),
        (incomplete(None), FinishReason.UNSPECIFIED, "incomplete"),
        (
            event("completed", status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            FinishReason.LENGTH,
            "max_output_tokens",
        ),
    ],
)
def test_an_end_is_a_common_word_beside_the_apis_own(end: Fields, reason: FinishReason, raw: str) -> None:
    assert finish_of(TEXT, end) == FinishMessage(reason, raw)
    assert fold(TEXT, end).error is None


@pytest.mark.parametrize(
    "begin", [event("in_progress", status="in_progress"), event("queued", status="queued")]
)
def test_a_response_that_goes_on_has_no_end(begin: Fields) -> None:
    accumulator, decoder = fold_body(b"data: " + json.dumps(begin).encode() + b"\n\n")
    assert not accumulator.finished
    assert not decoder.done


def test_a_response_that_failed_is_an_error_and_no_end() -> None:
    end = event(
        "failed",
        status="failed",
        error={"code": "server_error", "message": "oops"},
        usage={"input_tokens": 1},
    )
    answer = fold(TEXT, end)
    assert answer.error is not None
    assert (answer.error.message, answer.error.code, answer.error.fault) == (
        "oops",
        "server_error",
        UpstreamFault.PROVIDER,
    )
    assert answer.error.provider == "openai"
    assert answer.first is not None
    assert (answer.first.text, answer.first.finish) == ("Hi", None)
    assert answer.usage == Usage(1, 0, 1, {"input_tokens": 1})


@pytest.mark.parametrize(
    ("end", "message", "code"),
    [
        (event("failed"), "the response failed", "failed"),
        (event("cancelled"), "the response was cancelled", "cancelled"),
        (event("completed", status="cancelled"), "the response was cancelled", "cancelled"),
    ],
)
def test_a_response_without_a_description_of_its_failure_gets_one(
    end: Fields, message: str, code: str
) -> None:
    error = error_of(TEXT, end)
    assert (error.message, error.code) == (message, code)


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed", "cancelled"])
def test_the_end_is_the_end(kind: str) -> None:
    body = b"data: " + json.dumps(event(kind, status=kind)).encode() + b"\n\n"
    assert fold_body(body)[1].done


# --- responses without streaming --------------------------------------------------------------------------------

WHOLE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "model": "m",
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"x": 1}'},
    ],
    "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
}


def test_a_whole_response_is_understood() -> None:
    accumulator, decoder = fold_body(json.dumps(WHOLE, indent=2).encode())
    answer = accumulator.message()
    assert (answer.reasoning, answer.text, answer.tool_calls[0].arguments) == ("hm", "Hi", {"x": 1})
    assert answer.metadata["finish_reason"] == "tool_calls"
    assert accumulator.usage == Usage(1, 2, 3, {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})
    assert accumulator.metadata == {"id": "resp_1", "model": "m", "created": 7}
    assert decoder.done


def test_a_whole_response_that_is_still_waiting_is_not_finished() -> None:
    accumulator, decoder = fold_body(json.dumps({**WHOLE, "status": "queued", "output": []}).encode())
    assert not accumulator.finished
    assert not decoder.done


# --- facts and usage --------------------------------------------------------------------------------------------


def test_new_facts_are_reported_and_fields_of_the_request_are_not() -> None:
    begun = event(
        "created", id="resp_1", model="m", service_tier="auto", tools=[{"name": "f"}], instructions="be"
    )
    again = event("in_progress", id="resp_1", model="m", service_tier="auto")
    end = event(
        "completed", id="resp_1", model="m", service_tier="default", content_filters=[{"blocked": False}]
    )
    decoder = ResponsesDecoder()
    reported = [
        chunk.details.metadata if chunk.details else None
        for each in (begun, again, end)
        for chunk in decoder.wrap(each)
    ]
    assert reported == [
        {"id": "resp_1", "model": "m", "service_tier": "auto"},
        None,
        {"service_tier": "default", "content_filters": [{"blocked": False}]},
    ]


def test_further_members_beside_the_response_are_facts_too() -> None:
    end = {**event("completed", id="resp_1"), "sequence_number": 9, "copilot_usage": {"total_nano_aiu": 5}}
    assert fold(TEXT, end).metadata == {"id": "resp_1", "copilot_usage": {"total_nano_aiu": 5}}


def test_usage_is_the_last_and_never_added_up() -> None:
    growing = event("in_progress", usage={"input_tokens": 3, "output_tokens": 1, "total_tokens": 4})
    end = event("completed", usage={"output_tokens": 5, "total_tokens": 8, "input_tokens": None})
    raw = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
    assert fold(TEXT, growing, end).usage == Usage(3, 5, 8, raw)


@pytest.mark.parametrize("usage", [None, {}, {"seconds": 3}, "many"])
def test_what_counts_nothing_is_no_usage(usage: object) -> None:
    assert fold(TEXT, event("completed", usage=usage)).usage is None


def test_counts_under_the_older_names_and_as_fractions_count_too() -> None:
    usage = {"prompt_tokens": 3.0, "completion_tokens": 4, "total_tokens": True}
    assert fold(TEXT, event("completed", usage=usage)).usage == Usage(3, 4, 7, usage)


# --- errors -----------------------------------------------------------------------------------------------------

FLAT = {
    "type": "error",
    "sequence_number": 2,
    "code": "rate_limit_exceeded",
    "message": "slow down",
    "param": None,
}
NESTED = {
    "type": "error",
    "sequence_number": 2,
    "error": {"type": "requests", "code": "rate_limit_exceeded", "message": "slow down"},
}
ERRORS: dict[str, Fields] = {
    "an event with the error's members": FLAT,
    "an event with an error": NESTED,
    "an object with an error": {"error": NESTED["error"]},
    "an object that is an error": {"object": "error", "code": "rate_limit_exceeded", "message": "slow down"},
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_found_wherever_it_stands(name: str) -> None:
    error = error_of(TEXT, ERRORS[name])
    assert (error.message, error.code) == ("slow down", "rate_limit_exceeded")


def test_an_event_named_error_is_one_whatever_its_type() -> None:
    accumulator, _ = fold_body(b'event: error\ndata: {"message": "slow down", "code": 429}\n\n')
    assert accumulator.error is not None
    assert (accumulator.error.message, accumulator.error.status) == ("slow down", 429)


def test_an_error_without_a_word_is_an_error() -> None:
    assert error_of({"type": "error", "sequence_number": 1}).message == "an error without a description"


def test_of_an_error_and_the_failure_that_follows_the_first_counts() -> None:
    failed = event("failed", error={"code": "server_error", "message": "oops"})
    assert error_of(TEXT, FLAT, failed).message == "slow down"


def test_a_tool_that_failed_is_no_failure_of_the_answer() -> None:
    failed = {"type": "response.mcp_call.failed", "output_index": 0, "error": "no such tool"}
    assert fold(TEXT, failed, event("completed")).error is None
