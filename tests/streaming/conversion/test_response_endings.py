"""Endings of translated responses, and their further data."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from support.deltas import Delta, call, count, end, say, think
from support.translated_responses import CITY, facts_of, final, one_by_one, outline, reads, translate
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import (
    extension_metadata,
    provider_json,
    provider_members,
    provider_text,
    provider_usage,
)
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta
from tailrace.wrappers import (
    ChunkDetails,
    ContentPartToolResult,
    FinishMessage,
    FinishReason,
    UpstreamError,
    UpstreamFault,
    Usage,
)


def text_of(status: StatusUpdate) -> str | None:
    assert status.message is not None
    return status.message.parts[0].text


# --- endings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (FinishReason.STOP, TaskState.COMPLETED),
        (FinishReason.LENGTH, TaskState.COMPLETED),
        (FinishReason.UNSPECIFIED, TaskState.COMPLETED),
        (FinishReason.CONTENT_FILTER, TaskState.FAILED),
        (FinishReason.RECITATION, TaskState.FAILED),
    ],
    ids=str,
)
def test_the_state_follows_from_the_finish_reason(reason: FinishReason, state: TaskState) -> None:
    updates = one_by_one(say("a"), end(reason))
    assert final(updates).state is state
    assert facts_of(updates)["finishReason"] == str(reason)


def test_a_filtered_response_is_marked() -> None:
    status = final(one_by_one(say("a"), end(FinishReason.CONTENT_FILTER)))
    assert text_of(status) == "the provider stopped the response: content_filter"


def test_a_filtered_response_requires_no_tools() -> None:
    updates = one_by_one(call(CITY, index=0, id="i", name="f"), end(FinishReason.CONTENT_FILTER))
    assert final(updates).state is TaskState.FAILED


def test_an_error_fails_the_task_after_everything_is_closed() -> None:
    error = UpstreamError(
        "died", fault=UpstreamFault.PROVIDER, provider="groq", status=502, code="c", retry_after=3
    )
    updates = one_by_one(think("a"), say("b"), call("{", index=0, id="i", name="f"), error=error)
    assert [line[0] for line in outline(updates)] == ["=", "=", "=", "+", "+", "=", "FAILED"]
    assert text_of(final(updates)) == "groq: died (HTTP 502, c, retry after 3 s)"
    assert facts_of(updates)["error"] == {
        "type": "provider_error",
        "status": 502,
        "code": "c",
        "retryAfter": 3,
    }


def test_a_stream_that_breaks_off_fails_the_task() -> None:
    updates = one_by_one(say("a"))
    assert outline(updates) == [("=", "text", "a", False), ("+", "text", "", True), ("FAILED",)]
    assert text_of(final(updates)) == "the stream ended before the response was complete"
    assert facts_of(updates)["error"] == {"type": "stream_truncated"}


def test_a_call_that_was_cut_is_shown_with_its_text_and_the_reason() -> None:
    updates = one_by_one(call('{"city": "Par', index=0, id="i", name="f"), end(FinishReason.LENGTH))
    *_, artifact = (update.artifact for update in updates if isinstance(update, ArtifactUpdate))
    (entry,) = artifact.parts[0].data["tool_calls"]
    assert (entry["arguments"], entry["arguments_text"]) == ({}, '{"city": "Par')
    assert entry["arguments_error"].startswith("not valid JSON")


def test_the_first_choice_decides_whatever_its_index() -> None:
    updates = one_by_one(say("a", 5), end(FinishReason.CONTENT_FILTER, 5))
    assert final(updates).state is TaskState.FAILED
    assert facts_of(updates)["finishReason"] == "content_filter"


def test_half_a_character_of_the_arguments_waits_for_the_other_half() -> None:
    updates = one_by_one(
        call("\ud83d", index=0, id="i", name="f"), call("\ude00", index=0), call("\ud83d", index=0), end()
    )
    assert outline(updates)[:2] == [
        ("=", "tool-call-1", "", False),
        ("+", "tool-call-1", "\U0001f600", False),
    ]


def test_a_call_whose_id_will_change_is_published_without_an_id() -> None:
    translator = ResponseTranslator(taken_ids=lambda: {"i"})
    (update,) = translator.feed([call("{", index=0, id="i", name="f")])
    assert isinstance(update, ArtifactUpdate)
    assert "callId" not in extension_metadata(update.artifact.metadata)


def test_later_rounds_have_artifacts_of_their_own() -> None:
    translator = ResponseTranslator(turn=2, round=3)
    updates = [*translator.feed([say("a"), call("{}", index=0, id="i", name="f")])]
    updates.append(translator.result(ContentPartToolResult(id="i", name="f", output=1)))
    assert [line[1] for line in outline(updates)] == [
        "text-round-3-turn-2",
        "tool-call-1-round-3-turn-2",
        "tool-result-1-round-3-turn-2",
    ]


# --- further data of the response -------------------------------------------------------------------------------


def test_usage_finish_and_facts_are_in_the_last_status() -> None:
    updates = one_by_one(
        Delta(None, details=ChunkDetails(metadata={"id": "x", "model": "m"})),
        say("a", 0),
        say("b", 1),
        *count(Usage(1, 2, 3, {"prompt_tokens": 1, "cost": 0.5})),
        end(choice=0),
        end(FinishReason.LENGTH, 1),
    )
    assert facts_of(updates) == {
        "finishReason": "stop",
        "finishReasons": {"0": "stop", "1": "length"},
        "usage": {
            "inputTokens": 1,
            "outputTokens": 2,
            "totalTokens": 3,
            "raw": '{"prompt_tokens":1,"cost":0.5}',
        },
        "response": {"id": "x", "model": "m"},
    }


def test_what_was_not_reported_is_left_out() -> None:
    assert facts_of(one_by_one(end())) == {"finishReason": "stop"}
    assert facts_of(translate()) == {"error": {"type": "stream_truncated"}}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


ODD: list[Any] = [
    float("nan"),
    float("-inf"),
    "\ud83d",
    deep(60),
    deep(900),
    [deep(60)],
    10**60,
    {"\ud83d": 1},
]


@pytest.mark.parametrize("odd", ODD, ids=[f"{str(odd)[:20]!a}" for odd in ODD])
def test_no_value_that_a_provider_may_send_makes_an_update_fail(odd: Any) -> None:
    record = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING)))
    updates = one_by_one(
        Delta(
            None, details=ChunkDetails(metadata={"id": "x", "odd": odd}, extra={"odd": odd, "odds": [odd]})
        ),
        say("a"),
        call(json.dumps({"a": odd}), index=0, id="i", name="f", extra={"odd": odd}),
        *count(Usage(1, 2, 3, {"odd": odd})),
        Delta(None, finish=FinishMessage(FinishReason.UNSPECIFIED, str(odd))),
        error=UpstreamError(str(odd), fault=UpstreamFault.PROVIDER, code=str(odd), details={"odd": odd}),
    )
    for update in updates:
        json.loads(record.apply(update).body)
    record.snapshot().to_json()


@given(reads=reads)
@settings(deadline=None)
def test_every_sequence_can_be_carried_out_and_closes_what_it_opens(reads: list[list[Delta]]) -> None:
    record = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING)))
    updates = translate(*reads)
    for update in updates:
        record.apply(update)
    assert record.closing_updates() == []
    lasts = [each.artifact_id for each in updates if isinstance(each, TextDelta) and each.last]
    lasts += [each.artifact.artifact_id for each in updates if isinstance(each, ArtifactUpdate) and each.last]
    assert sorted(lasts) == sorted(artifact.artifact_id for artifact in record.snapshot().artifacts)
    assert record.state.terminal or record.state is TaskState.INPUT_REQUIRED


@given(reads=reads)
@settings(deadline=None)
def test_the_artifacts_are_the_same_however_the_deltas_are_grouped(reads: list[list[Delta]]) -> None:
    def artifacts(*grouped: list[Delta]) -> object:
        record = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING)))
        for update in translate(*grouped):
            record.apply(update)
        return record.snapshot().artifacts

    singles = [[delta] for read in reads for delta in read]
    assert artifacts(*reads) == artifacts(*singles) == artifacts([delta for read in reads for delta in read])


def test_a_call_of_a_response_that_restarts_in_the_same_read_has_no_name() -> None:
    anew = Delta(None, 0, ChunkDetails(restarts=True))
    translator = ResponseTranslator()
    updates = translator.feed([call("{", index=0, id="i", name="f"), anew, say("No."), end()])
    record = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)))
    for update in (*updates, *translator.close()):
        record.apply(update)
    assert {each.artifact_id: each.parts[0].text for each in record.snapshot().artifacts} == {
        "tool-call-1": "",
        "text": "No.",
    }


def test_choices_below_zero_have_artifacts_of_their_own() -> None:
    updates = translate([say("a", 0), say("b", -1), end(choice=0), end(choice=-1)])
    assert [line[1] for line in outline(updates)[:2]] == ["text", "text-choice--1"]


def test_the_usage_of_a_provider_is_read_as_text_and_as_the_object_of_0_1() -> None:
    own = {"prompt_tokens": 1, "cost": 0.5}
    forms: tuple[object, ...] = (provider_text(own), own)
    for raw in forms:
        assert provider_usage({"raw": raw}) == own
    for wrong in ("{", "[]", 1, None):
        assert provider_usage({"raw": wrong}) == {}


def test_names_of_a_provider_in_snake_case_are_json_text() -> None:
    timings = {"cacheN": [{"prompt_n": 3}]}
    noted = Delta(
        None, details=ChunkDetails(metadata={"id": "x", "system_fingerprint": "f", "timings": timings})
    )
    cited = {"url_citation": {"url": "https://x.example"}}
    extra = Delta(None, details=ChunkDetails(extra={"annotations": [cited], "audio": {"id": "a"}}))
    facts = facts_of(one_by_one(noted, extra, end()))
    assert facts["response"].keys() == {"id", "raw"}
    assert json.loads(facts["response"]["raw"]) == {"system_fingerprint": "f", "timings": timings}
    assert facts["extra"] == {
        "audio": {"id": "a"},
        "raw": '{"annotations":[{"url_citation":{"url":"https://x.example"}}]}',
    }
    assert provider_members(facts["extra"]) == {"annotations": [cited], "audio": {"id": "a"}}


MEMBERS: list[dict[str, Any]] = [
    {},
    {"a": 1},
    {"a_b": 1, "c": [{"d": 1}]},
    {"a": [{"b_c": {}}]},
    {"raw": "{}"},
    {"raw": 1, "b_c": 2},
]


@pytest.mark.parametrize("members", MEMBERS)
def test_the_members_of_a_provider_are_restored(members: dict[str, Any]) -> None:
    assert provider_members(provider_json(members)) == members


def test_the_members_that_0_1_wrote_are_read() -> None:
    for written in (
        {"id": "x", "system_fingerprint": "f", "timings": {"cache_n": 1}},
        {"raw": {"a": 1}, "b": 2},
    ):
        assert provider_members(written) == written
    for wrong in ("{", "[]"):
        assert provider_members({"id": "x", "raw": wrong}) == {"id": "x"}
