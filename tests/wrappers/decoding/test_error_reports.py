"""The forms in which Chat Completions servers report an error."""

from typing import Any

import pytest

from support.chat import decode, error_of, fold, sse
from tailrace.wrappers import UpstreamFault
from tailrace.wrappers.decoding.error_reports import finish_error, pop_error, provider_error


def nested_errors(levels: int, inner: object) -> dict[str, Any]:
    value: dict[str, Any] = {"error": inner}
    for _ in range(levels - 1):
        value = {"error": value}
    return value


def test_an_error_object_gives_message_status_and_code() -> None:
    error = provider_error({"message": "no", "type": "server_error", "code": 502}, "openrouter")
    assert (error.message, error.status, error.code) == ("no", 502, "502")
    assert (error.fault, error.provider) == (UpstreamFault.PROVIDER, "openrouter")
    assert error.details == {"message": "no", "type": "server_error", "code": 502}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"message": "no", "type": "t", "code": None}, "t"),
        ({"message": "no", "type": "t", "code": ""}, "t"),
        ({"message": "no", "code": "c", "type": "t"}, "c"),
        ({"message": "no", "code": {"a": 1}}, '{"a": 1}'),
        ({"message": "no"}, None),
    ],
)
def test_the_code_is_the_providers_own_or_else_its_type(fields: dict[str, Any], code: str | None) -> None:
    error = provider_error(fields)
    assert (error.code, error.status) == (code, None)


@pytest.mark.parametrize("number", [99, 200, 600, -1, 10**30])
def test_a_code_that_is_no_http_error_is_no_status(number: int) -> None:
    assert provider_error({"message": "no", "code": number}).status is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("CUDA out of memory", "CUDA out of memory"),
        ("", "an error without a description"),
        (None, "null"),
        (3, "3"),
        ([1, "a"], '[1, "a"]'),
        ({}, "an error without a description"),
        ({"detail": "d"}, "d"),
        ({"message": {"text": "m"}}, '{"text": "m"}'),
        ({"odd": 1}, '{"odd": 1}'),
    ],
)
def test_an_error_of_any_shape_has_a_message(value: object, message: str) -> None:
    assert provider_error(value).message == message


def test_an_error_within_an_error_is_the_error() -> None:
    whole = nested_errors(2, {"message": "no", "code": 429})
    error = provider_error(whole)
    assert (error.message, error.status, error.details) == ("no", 429, whole)
    error = provider_error({"error": "no"})
    assert (error.message, error.details) == ("no", {"error": "no"})


def test_a_message_beside_the_inner_error_is_the_message() -> None:
    assert provider_error({"message": "outer", "error": {"message": "inner"}}).message == "outer"


def test_errors_within_errors_without_end_do_no_harm() -> None:
    assert provider_error(nested_errors(50_000, "no")).message == "(nested too deeply)"


def test_an_error_member_is_taken_out_of_its_chunk() -> None:
    fields: dict[str, Any] = {"id": "x", "error": {"message": "no"}, "choices": []}
    error = pop_error(fields, "", error_event=False)
    assert error is not None
    assert error.message == "no"
    assert fields == {"id": "x", "choices": []}


@pytest.mark.parametrize("empty", [None, "", {}, False])
def test_an_empty_error_member_is_none(empty: object) -> None:
    fields: dict[str, Any] = {"id": "x", "error": empty}
    assert pop_error(fields, "", error_event=False) is None
    assert fields == {"id": "x"}


@pytest.mark.parametrize("report", [{"object": "error"}, {"type": "error"}])
def test_a_chunk_with_an_error_is_an_error_and_has_its_choices(report: dict[str, Any]) -> None:
    fields: dict[str, Any] = {**report, "message": "no", "code": 400, "choices": [1], "usage": {}}
    error = pop_error(fields, "vllm", error_event=False)
    assert error is not None
    assert (error.message, error.status, error.provider) == ("no", 400, "vllm")
    assert fields == {"choices": [1], "usage": {}}


def test_any_payload_of_an_error_event_is_an_error() -> None:
    fields: dict[str, Any] = {"reason": "overloaded"}
    error = pop_error(fields, "", error_event=True)
    assert error is not None
    assert error.message == '{"reason": "overloaded"}'


def test_a_chunk_is_no_error() -> None:
    fields: dict[str, Any] = {"id": "x", "choices": []}
    assert pop_error(fields, "", error_event=False) is None
    assert fields == {"id": "x", "choices": []}


@pytest.mark.parametrize(
    "reason", ["error", "network_error", "insufficient_system_resource", "internal_error"]
)
def test_some_finish_reasons_are_errors(reason: str) -> None:
    error = finish_error(reason, "zai")
    assert error is not None
    assert (error.fault, error.code, error.provider) == (UpstreamFault.PROVIDER, reason, "zai")


@pytest.mark.parametrize("reason", [None, "", "stop", "sensitive"])
def test_all_others_are_none(reason: str | None) -> None:
    assert finish_error(reason, "") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"code": "502"},
        {"code": 502.0},
        {"status": 502, "code": "overloaded"},
        {"status_code": 502},
        {"code": 7, "status": "502"},
    ],
)
def test_a_status_is_found_wherever_it_stands(fields: dict[str, Any]) -> None:
    assert provider_error({"message": "no", **fields}).status == 502


DIED = {"message": "prov died", "code": 502}


@pytest.mark.parametrize("finish", ["stop", "error", None])
@pytest.mark.parametrize("place", ["chunk", "choice", "delta", "message", "groq"])
def test_an_error_beside_the_answer_is_one_wherever_it_stands(place: str, finish: str | None) -> None:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": "so far"}, "finish_reason": finish}
    chunk: dict[str, Any] = {"choices": [choice]}
    if place == "message":
        choice["message"] = {"content": "so far", "error": DIED}
        del choice["delta"]
    else:
        {"chunk": chunk, "choice": choice, "delta": choice["delta"], "groq": chunk.setdefault("x_groq", {})}[
            place
        ]["error"] = DIED
    body = sse(chunk) + b"data: [DONE]\n\n"
    error = error_of(body)
    assert (error.message, error.status, error.code) == ("prov died", 502, "502")
    assert error.fault is UpstreamFault.PROVIDER
    assert "".join(chunk.get_text() for chunk in decode(body)) == "so far"
    completion = fold(decode(body))
    assert completion["error"]["code"] == "502"
    assert completion["choices"][0]["finish_reason"] is None


def test_the_error_of_a_delta_counts_where_that_of_its_choice_is_empty() -> None:
    choice = {"delta": {"error": "no"}, "error": {}, "finish_reason": "stop"}
    assert error_of(sse({"choices": [choice]})).message == "no"


def test_an_error_of_the_chunk_precedes_the_finish_reason_of_any_choice() -> None:
    choices: list[Any] = [{"index": number, "delta": {}, "finish_reason": "error"} for number in range(2)]
    assert error_of(sse({"choices": choices, "error": DIED})).message == "prov died"


@pytest.mark.parametrize(
    "report",
    [
        {"error": None},
        {"error": {}},
        {"error": ""},
        {"content_filter_results": {"error": {"code": "content_filter_error", "message": "no filter ran"}}},
        {"content_filter_result": {"error": {"code": "content_filter_error", "message": "no filter ran"}}},
    ],
)
@pytest.mark.parametrize("place", ["choice", "delta"])
def test_what_is_no_error_of_the_answer_is_none(report: dict[str, Any], place: str) -> None:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
    (choice if place == "choice" else choice["delta"]).update(report)
    completion = fold(decode(sse({"choices": [choice]})))
    assert "error" not in completion
    assert completion["choices"][0]["finish_reason"] == "stop"
