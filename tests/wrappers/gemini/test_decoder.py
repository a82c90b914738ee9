"""The Gemini decoder: both framings, facts of a response, buffered data, and errors."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from google.genai import types

from support.messages import accumulate
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPartReasoning,
    ContentPartText,
    FinishMessage,
    FinishReason,
    UpstreamError,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.gemini import GeminiDecoder, GeminiPartWrapper, wrap_chunk

Fields = dict[str, Any]


def chunk(*parts: Fields, finish: object = None, index: int | None = None, **fields: Any) -> Fields:
    """A chunk with one candidate; ``fields`` are members of the chunk."""
    candidate: Fields = {"content": {"role": "model", "parts": list(parts)}}
    if finish is not None:
        candidate["finishReason"] = finish
    if index is not None:
        candidate["index"] = index
    return {"candidates": [candidate], **fields}


def text(value: str, **fields: Any) -> Fields:
    return chunk({"text": value}, **fields)


def candidate(index: int = 0, **fields: Any) -> Fields:
    return {"candidates": [{"index": index, **fields}]}


def sse(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\r\n\r\n" for each in chunks)


def array(*chunks: object) -> bytes:
    return b"[" + b",\r\n".join(json.dumps(each, indent=2).encode() for each in chunks) + b"\n]\n"


def decode(body: bytes | Iterable[bytes]) -> list[GeminiPartWrapper]:
    decoder = GeminiDecoder()
    reads = [body] if isinstance(body, bytes) else body
    return [wrapper for data in reads for wrapper in decoder.feed(data)] + decoder.close()


def fold(*chunks: object, body: Callable[..., bytes] = sse) -> Accumulator:
    return accumulate(decode(body(*chunks)))


def finish_of(accumulator: Accumulator) -> FinishMessage | None:
    return accumulator.first.finish if accumulator.first is not None else None


def error_of(accumulator: Accumulator) -> UpstreamError:
    assert accumulator.error is not None
    return accumulator.error


ANSWER = [
    chunk({"text": "hm", "thought": True}, modelVersion="gemini-x", responseId="r1"),
    text("Hel", usageMetadata={"promptTokenCount": 5, "totalTokenCount": 6, "candidatesTokenCount": 1}),
    text("lo", usageMetadata={"promptTokenCount": 5, "totalTokenCount": 7, "candidatesTokenCount": 2}),
    chunk(
        {"text": "", "thoughtSignature": "c2ln"},
        finish="STOP",
        usageMetadata={
            "promptTokenCount": 5,
            "totalTokenCount": 10,
            "candidatesTokenCount": 2,
            "thoughtsTokenCount": 3,
        },
    ),
]
USAGE = {"promptTokenCount": 5, "totalTokenCount": 10, "candidatesTokenCount": 2, "thoughtsTokenCount": 3}


def check_answer(accumulator: Accumulator) -> None:
    assert accumulator.message().content == (
        ContentPartReasoning(text="hm"),
        ContentPartText(text="Hello"),
        ContentPartText(text="", metadata={"gemini": {"thoughtSignature": "c2ln"}}),
    )
    assert accumulator.usage == Usage(5, 5, 10, USAGE)
    assert accumulator.metadata == {"model": "gemini-x", "id": "r1"}
    assert finish_of(accumulator) == FinishMessage(FinishReason.STOP, "STOP")
    assert accumulator.error is None


# --- framing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [sse, array])
def test_an_answer_in_either_framing(body: Callable[..., bytes]) -> None:
    check_answer(fold(*ANSWER, body=body))


def test_a_whole_response_that_was_not_streamed() -> None:
    parts = [
        {"text": "hm", "thought": True},
        {"text": "Hello"},
        {"text": "", "thoughtSignature": "c2ln"},
    ]
    response = chunk(*parts, finish="STOP", usageMetadata=USAGE, modelVersion="gemini-x", responseId="r1")
    accumulator = Accumulator()
    for wrapper in decode(json.dumps(response, indent=2).encode()):
        accumulator.add(wrapper)
    accumulator.close()
    check_answer(accumulator)


def test_the_end_mark_of_some_gateways_ends_the_stream_and_what_was_held_back_comes() -> None:
    ratings = [{"category": "X"}]
    decoder = GeminiDecoder()
    rated = candidate(content={"parts": [{"text": "a"}]}, finishReason="STOP", safetyRatings=ratings)
    decoder.feed(sse(rated) + b"data: [DONE]\r\n\r\n" + sse(text("never read")))
    assert decoder.done
    (held,) = decoder.close()
    assert held.details is not None
    assert held.details.extra == {"safetyRatings": ratings}


# --- one chunk --------------------------------------------------------------------------------------------------


def test_the_usual_chunk_is_one_plain_delta() -> None:
    facts = {"modelVersion": "m", "responseId": "r"}
    _, wrapper, thought = decode(
        sse(
            {**text("a"), **facts}, {**text("b"), **facts}, {**chunk({"text": "c", "thought": True}), **facts}
        )
    )
    assert (wrapper.plain, wrapper.get_text(), wrapper.details, wrapper.raw) == (
        True,
        "b",
        None,
        {"text": "b"},
    )
    assert (thought.plain, thought.get_reasoning()) == (True, "c")


def test_each_part_is_a_delta_in_its_place() -> None:
    wrappers = decode(
        sse(
            chunk(
                {"text": "a"}, {"functionCall": {"name": "f"}}, {"text": "b"}, {"text": "c", "thought": True}
            )
        )
    )
    outline = [
        (each.get_text(), each.get_reasoning(), [call.name for call in each.calls]) for each in wrappers
    ]
    assert outline == [("a", "", []), ("", "", ["f"]), ("b", "", []), ("", "c", [])]


def test_candidates_are_choices_and_the_first_has_no_index() -> None:
    first, second = decode(sse({"candidates": [{"content": {"parts": [{"text": "a"}]}}, {"index": 1, "content": {"parts": [{"text": "b"}]}}]}))  # fmt: skip
    assert [(each.choice, each.get_text()) for each in (first, second)] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"content": None},
        {"content": {}},
        {"content": {"parts": None}},
        {"content": {"parts": []}},
        {"content": {"parts": [None, 1]}},
        {"content": {"role": "model"}},
        {"content": "x"},
    ],
)
def test_a_candidate_may_lack_anything(odd: Fields) -> None:
    accumulator = fold(text("a"), {"candidates": [odd]}, {"candidates": [{**odd, "finishReason": "STOP"}]})
    assert accumulator.message().text == "a"
    assert finish_of(accumulator) == FinishMessage(FinishReason.STOP, "STOP")


def test_the_parts_may_be_one_object_instead_of_a_list() -> None:
    assert fold({"candidates": {"content": {"parts": {"text": "a"}}}}).message().text == "a"


@pytest.mark.parametrize("odd", [{}, {"ping": 1}, {"candidates": []}, {"candidates": None}, [], 7, None])
def test_data_without_content_has_no_chunks(odd: object) -> None:
    assert decode(sse(odd)) == []


def test_the_end_stands_on_the_last_part_or_by_itself() -> None:
    wrappers = decode(sse(chunk({"text": "a"}, {"text": "b"}, finish="STOP"), candidate(finishReason="STOP")))
    assert [wrapper.get_finish_message() is not None for wrapper in wrappers] == [False, True, True]
    assert wrappers[-1].raw == {"index": 0, "finishReason": "STOP"}


def test_of_several_ends_the_incomplete_one_is_used() -> None:
    for reasons in (["STOP", "RECITATION"], ["SAFETY", "STOP"]):
        accumulator = fold(*(text("a", finish=reason) for reason in reasons))
        finish = finish_of(accumulator)
        assert finish is not None
        assert finish.raw != "STOP"


def test_a_number_in_place_of_the_word() -> None:
    assert finish_of(fold(text("a", finish=1))) == FinishMessage(FinishReason.STOP, "1")


def test_calls_make_an_end_one_for_tools() -> None:
    first = fold(chunk({"functionCall": {"name": "f"}}, finish="STOP")).first
    assert first is not None
    assert first.finish_reason is FinishReason.TOOL_CALLS


def test_a_stream_without_an_end_has_none() -> None:
    accumulator = fold(text("a"), text("b"))
    assert not accumulator.finished
    assert error_of(accumulator).fault is UpstreamFault.TRUNCATED


# --- the response -----------------------------------------------------------------------------------------------


def test_facts_come_once() -> None:
    facts = {"modelVersion": "m", "responseId": "r", "createTime": "2026-01-01T00:00:00Z", "new": 1}
    wrappers = decode(sse(*(text("a", **facts) for _ in range(3))))
    assert [wrapper.details is not None for wrapper in wrappers] == [True, False, False]
    accumulator = fold(text("a", **facts), text("b", **{**facts, "modelVersion": "n"}))
    assert accumulator.metadata == {
        "model": "n",
        "id": "r",
        "createTime": "2026-01-01T00:00:00Z",
        "new": 1,
    }


@pytest.mark.parametrize("facts", [{}, {"modelVersion": "m"}])
def test_token_counts_come_only_where_they_change_and_replace_each_other(facts: Fields) -> None:
    first = {"promptTokenCount": 5, "totalTokenCount": 5}
    second = {"candidatesTokenCount": 2, "totalTokenCount": 7}
    third = {"candidatesTokenCount": 3, "totalTokenCount": 8}
    counts = (first, first, second, third, third)
    wrappers = decode(sse(*({**text("a", usageMetadata=each), **facts} for each in counts)))
    assert [wrapper.get_usage() for wrapper in wrappers] == [
        Usage(5, 0, 5, first),
        None,
        Usage(5, 2, 7, {**first, **second}),
        Usage(5, 3, 8, {**first, **third}),
        None,
    ]


@pytest.mark.parametrize(
    "odd", [{}, None, [], "x", 0, {"trafficType": "ON_DEMAND"}, {"promptTokenCount": None}]
)
def test_a_usage_that_counts_nothing_is_none(odd: object) -> None:
    assert fold(text("a", usageMetadata=odd)).usage is None


def test_a_chunk_with_nothing_but_counts() -> None:
    (wrapper,) = decode(sse({"usageMetadata": USAGE}))
    assert wrapper.get_usage() == Usage(5, 5, 10, USAGE)
    assert wrapper.raw == {"usageMetadata": USAGE}


def test_the_service_tier_is_a_fact_about_the_response() -> None:
    counts = {"promptTokenCount": 1, "serviceTier": "standard"}
    assert fold(text("a", usageMetadata=counts)).metadata == {"service_tier": "standard"}
    later = {"promptTokenCount": 1, "serviceTier": "flex"}
    assert fold(text("a", usageMetadata=counts), text("b", finish="STOP", usageMetadata=later)).metadata == {
        "service_tier": "flex"
    }


def test_a_prompt_that_was_refused_is_an_answer_that_was_filtered() -> None:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": "No.", "safetyRatings": [{"category": "X"}]}
    accumulator = fold({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 5}})
    assert finish_of(accumulator) == FinishMessage(FinishReason.CONTENT_FILTER, "SAFETY", "No.")
    assert accumulator.metadata == {"promptFeedback": feedback}
    assert accumulator.usage == Usage(5, 0, 5, {"promptTokenCount": 5})
    assert accumulator.finished
    assert accumulator.error is None


def test_feedback_that_refuses_nothing_ends_nothing() -> None:
    accumulator = fold(text("a", promptFeedback={"safetyRatings": []}))
    assert not accumulator.finished
    assert accumulator.metadata == {"promptFeedback": {"safetyRatings": []}}


# --- facts about a candidate ------------------------------------------------------------------------------------


def extra_of(*chunks: Fields, choice: int = 0) -> Fields:
    return fold(*chunks).choices[choice].extra


def test_safety_ratings_come_once_as_they_were_last() -> None:
    first, last = [[{"category": "X", "probability": each}] for each in ("LOW", "HIGH")]
    chunks = [
        candidate(content={"parts": [{"text": "a"}]}, safetyRatings=first),
        candidate(1, content={"parts": [{"text": "b"}]}, safetyRatings=first),
        candidate(finishReason="STOP", safetyRatings=last),
    ]
    assert extra_of(*chunks) == {"safetyRatings": last}
    assert extra_of(*chunks, choice=1) == {"safetyRatings": first}


@pytest.mark.parametrize(
    "sent",
    [["a", "b"], ["a", "ab"], ["a", "ab", "ab"], ["ab", "a"]],
    ids=["piece by piece", "growing", "repeated", "shrinking"],
)
def test_citations_are_annotations_however_they_come(sent: list[str]) -> None:
    chunks = [
        candidate(
            content={"parts": [{"text": "x"}]},
            citationMetadata={"citations": [{"uri": each} for each in uris]},
        )
        for uris in sent
    ]
    assert extra_of(*chunks) == {"annotations": [{"uri": "a"}, {"uri": "b"}]}


def test_the_older_name_of_citations() -> None:
    sources = {"citationSources": [{"uri": "a"}]}
    assert extra_of(candidate(finishReason="STOP", citationMetadata=sources)) == {
        "annotations": [{"uri": "a"}]
    }


def test_grounding_is_folded() -> None:
    first = {"webSearchQueries": ["q"], "groundingChunks": [{"web": {"uri": "a"}}]}
    second = {
        "webSearchQueries": ["q"],
        "searchEntryPoint": {"renderedContent": "<p>"},
        "groundingChunks": [{"web": {"uri": "a"}}, {"web": {"uri": "b"}}],
    }
    urls = {"urlMetadata": [{"retrievedUrl": "u"}]}
    assert extra_of(
        candidate(content={"parts": [{"text": "x"}]}, groundingMetadata=first),
        candidate(finishReason="STOP", groundingMetadata=second, urlContextMetadata=urls),
        candidate(finishReason="STOP", urlContextMetadata=urls),
    ) == {"groundingMetadata": second, "urlContextMetadata": urls}


def test_log_probabilities_append_and_unknown_facts_are_kept() -> None:
    def scored(token: str) -> Fields:
        return candidate(
            content={"parts": [{"text": token}]},
            logprobsResult={"chosenCandidates": [{"token": token}]},
            avgLogprobs=-0.5,
            new={"k": token},
        )

    assert extra_of(scored("a"), scored("b")) == {
        "logprobsResult": {"chosenCandidates": [{"token": "a"}, {"token": "b"}]},
        "avgLogprobs": -0.5,
        "new": {"k": "b"},
    }


# --- calls whose arguments are streamed -------------------------------------------------------------------------


def begin(**fields: Any) -> Fields:
    return chunk({"functionCall": {"name": "f", "willContinue": True}}, **fields)


def piece(value: str, **fields: Any) -> Fields:
    partial = {"jsonPath": "$.city", "stringValue": value, "willContinue": True}
    return chunk({"functionCall": {"partialArgs": [partial], "willContinue": True}}, **fields)


@pytest.mark.parametrize(
    "ending",
    [
        [chunk({"functionCall": {}}, finish="STOP")],
        [text("", finish="STOP")],
        [candidate(finishReason="STOP")],
    ],
    ids=["empty call", "no last call", "no part"],
)
def test_arguments_are_whole_at_the_end_of_the_call_or_of_the_answer(ending: list[Fields]) -> None:
    (call,) = fold(begin(), piece("New "), piece("York"), *ending).message().tool_calls
    assert (call.name, call.arguments, call.arguments_error) == ("f", {"city": "New York"}, None)


@pytest.mark.parametrize(
    "ending",
    [[], [candidate(finishReason="MAX_TOKENS")], [candidate(finishReason="MALFORMED_FUNCTION_CALL")]],
    ids=["no end", "its limit", "another end"],
)
def test_arguments_that_were_cut_off_are_kept_and_never_pass_for_whole(ending: list[Fields]) -> None:
    (call,) = fold(begin(), piece("New "), *ending).message().tool_calls
    assert (call.name, call.arguments, call.arguments_text) == ("f", {}, '{"city": "New "')
    assert call.arguments_error is not None


def test_calls_of_two_candidates_do_not_mix() -> None:
    accumulator = fold(
        begin(index=0), begin(index=1), piece("A", index=0), piece("B", index=1),
        candidate(0, finishReason="STOP"), candidate(1, finishReason="STOP"),
    )  # fmt: skip
    cities = [accumulator.message(choice).tool_calls[0].arguments for choice in (0, 1)]
    assert cities == [{"city": "A"}, {"city": "B"}]


# --- errors -----------------------------------------------------------------------------------------------------

ERROR = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}


@pytest.mark.parametrize("body", [sse, array])
def test_an_error_after_chunks_keeps_what_came_before(body: Callable[..., bytes]) -> None:
    accumulator = fold(text("a"), ERROR, body=body)
    error = error_of(accumulator)
    assert (error.message, error.status, error.code) == ("The model is overloaded.", 503, "UNAVAILABLE")
    assert error.fault is UpstreamFault.PROVIDER
    assert accumulator.message().text == "a"
    assert not accumulator.finished


def test_an_error_in_a_chunk_takes_nothing_from_it() -> None:
    accumulator = fold({**text("a", usageMetadata=USAGE), **ERROR})
    assert accumulator.message().text == "a"
    assert accumulator.usage is not None
    assert error_of(accumulator).code == "UNAVAILABLE"


# --- the package's objects --------------------------------------------------------------------------------------

THEIRS: list[Fields] = [
    *ANSWER,
    chunk(
        {"text": "a", "thoughtSignature": "+/+/"},
        {"inlineData": {"mimeType": "image/png", "data": "++//"}},
        {"functionCall": {"name": "f", "args": {"a": None, "b": [1.5]}}},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        finish="STOP",
        index=0,
    ),
    {"promptFeedback": {"blockReason": "SAFETY"}},
    begin(),
    chunk({"functionCall": {"partialArgs": [{"jsonPath": "$.n", "numberValue": 3.0}]}}),
]


def test_the_packages_objects_give_the_same_as_bytes() -> None:
    decoder = GeminiDecoder()
    wrappers: list[GeminiPartWrapper] = []
    for each in THEIRS:
        response = types.GenerateContentResponse.model_validate(each)
        response.sdk_http_response = types.HttpResponse(headers={"x": "y"})
        wrappers += wrap_chunk(response, decoder)
    assert wrappers + decoder.close() == decode(sse(*THEIRS))


def test_a_chunk_by_itself_gives_all_that_it_holds() -> None:
    wrappers = wrap_chunk(
        candidate(
            content={"parts": [{"functionCall": {"name": "f", "willContinue": True}}]},
            safetyRatings=[{"category": "X"}],
        )
    )
    calls = [call for wrapper in wrappers for call in wrapper.get_tool_calls()]
    assert [(call.index, call.name, call.arguments) for call in calls] == [(None, "f", ""), (None, "", "{")]
    assert wrappers[-1].details is not None
    assert wrappers[-1].details.extra == {"safetyRatings": [{"category": "X"}]}


def test_what_was_given_is_not_changed() -> None:
    given_chunk = {**text("a"), **ERROR}
    before = json.dumps(given_chunk)
    wrap_chunk(given_chunk)
    assert json.dumps(given_chunk) == before
