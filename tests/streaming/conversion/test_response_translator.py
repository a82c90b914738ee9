"""From a response to a task's updates: golden sequences, endings, and metadata."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.deltas import Delta, call, count, end, refuse, say, think
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import (
    EXTENSION_URI,
    extension_metadata,
    provider_json,
    provider_members,
    provider_text,
    provider_usage,
)
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import (
    ChunkDetails,
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolResult,
    FinishMessage,
    FinishReason,
    UpstreamError,
    UpstreamFault,
    Usage,
)

CITY = '{"city": "Paris"}'


def translate(*reads: list[Delta], error: UpstreamError | None = None, **options: Any) -> list[Update]:
    """The updates of a response in these reads."""
    translator = ResponseTranslator(**options)
    updates = [update for chunks in reads for update in translator.feed(chunks)]
    return updates + translator.close(error)


def one_by_one(*deltas: Delta, **options: Any) -> list[Update]:
    return translate(*([delta] for delta in deltas), **options)


def outline(updates: list[Update]) -> list[tuple[Any, ...]]:
    """Updates as short tuples: kind, artifact, text, and whether it is the last of its artifact."""
    lines: list[tuple[Any, ...]] = []
    for update in updates:
        if isinstance(update, TextDelta):
            lines.append(("+", update.artifact_id, update.text, update.last))
        elif isinstance(update, ArtifactUpdate):
            assert not update.append
            (part,) = update.artifact.parts
            content = part.data if part.text is None else part.text
            lines.append(("=", update.artifact.artifact_id, content, update.last))
        else:
            lines.append((update.state.removeprefix("TASK_STATE_"),))
    return lines


def final(updates: list[Update]) -> StatusUpdate:
    *others, last = updates
    assert isinstance(last, StatusUpdate)
    assert not any(isinstance(update, StatusUpdate) for update in others)
    return last


def facts_of(updates: list[Update]) -> dict[str, Any]:
    return dict(extension_metadata(final(updates).metadata or {}))


def text_of(status: StatusUpdate) -> str | None:
    assert status.message is not None
    return status.message.parts[0].text


# --- golden sequences -------------------------------------------------------------------------------------------


def test_text_creates_its_artifact_then_appends_then_ends_it_once() -> None:
    assert outline(one_by_one(say("Hel"), say("lo"), say("!"), end())) == [
        ("=", "text", "Hel", False),
        ("+", "text", "lo", False),
        ("+", "text", "!", False),
        ("+", "text", "", True),
        ("COMPLETED",),
    ]


def test_text_of_one_read_is_one_update() -> None:
    assert outline(translate([say("a"), say("b")], [say("c"), say("d"), end()])) == [
        ("=", "text", "ab", False),
        ("+", "text", "cd", False),
        ("+", "text", "", True),
        ("COMPLETED",),
    ]


def test_text_of_one_read_is_as_many_updates_of_complete_deltas_as_its_size_requires() -> None:
    words = ["one ", "two ", "drei", "vi\u00e9r", "\U0001f30a\U0001f30a", "x" * 30, "six", "seven"]
    deltas = [say(word) for word in words]
    assert outline(translate(deltas, [end()], max_event_bytes=13)) == [
        ("=", "text", "one two drei", False),
        ("+", "text", "vi\u00e9r", False),
        ("+", "text", "\U0001f30a\U0001f30a", False),
        ("+", "text", "x" * 30, False),
        ("+", "text", "sixseven", False),
        ("+", "text", "", True),
        ("COMPLETED",),
    ]
    assert outline(translate(deltas, [end()]))[0] == ("=", "text", "".join(words), False)


def test_arguments_of_one_read_are_as_many_updates_as_their_size_requires() -> None:
    pieces = ['{"a":"', "\ud83c", "\udf0a", "12345", '67"}']
    reads = [call("", index=0, id="i", name="f")], [call(piece, index=0) for piece in pieces], [end()]
    updates = translate(*reads, max_event_bytes=10)
    shown = [update.text for update in updates if isinstance(update, TextDelta)]
    assert shown == ['{"a":"', "\U0001f30a12345", '67"}']
    assert max(len(text.encode()) for text in shown) <= 10


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from("a\u00e9\u20ac\ud83c\udf0a"), min_size=1, max_size=4), max_size=12),
    st.integers(min_value=16, max_value=40),
    st.booleans(),
)
def test_no_merged_update_is_larger_than_it_may_be_and_none_is_cut(
    texts: list[str], most: int, in_call: bool
) -> None:
    begun = [call("", index=0, id="i", name="f")] if in_call else [say("a")]
    reads = begun, [call(text, index=0) if in_call else say(text) for text in texts], [end()]
    split, whole = translate(*reads, max_event_bytes=most), translate(*reads)

    def shown(updates: list[Update]) -> list[str]:
        return [update.text for update in updates if isinstance(update, TextDelta)]

    assert "".join(shown(split)) == "".join(shown(whole))
    assert all(len(text.encode("utf-8", "surrogatepass")) <= most for text in shown(split))


def test_merging_keeps_the_order_of_the_channels() -> None:
    assert outline(
        translate([think("a"), think("b"), say("c"), think("d"), think("e"), say("f")], [end()])
    ) == [
        ("=", "reasoning", "ab", False),
        ("=", "text", "c", False),
        ("+", "reasoning", "de", False),
        ("+", "text", "f", False),
        ("+", "reasoning", "", True),
        ("+", "text", "", True),
        ("COMPLETED",),
    ]


def test_a_refusal_is_an_artifact_of_its_own() -> None:
    assert outline(one_by_one(refuse("I can"), refuse("not"), end())) == [
        ("=", "refusal", "I can", False),
        ("+", "refusal", "not", False),
        ("+", "refusal", "", True),
        ("COMPLETED",),
    ]


def test_the_arguments_of_a_call_are_shown_as_they_come_then_the_call_replaces_them() -> None:
    entry = {"call_id": "i", "name": "f", "arguments": {"city": "Paris"}}
    updates = one_by_one(
        say("So: "), call(CITY[:5], index=0, id="i", name="f"), call(CITY[5:], index=0), end()
    )
    assert outline(updates) == [
        ("=", "text", "So: ", False),
        ("=", "tool-call-1", CITY[:5], False),
        ("+", "tool-call-1", CITY[5:], False),
        ("+", "text", "", True),
        ("=", "tool-call-1", {"tool_calls": [entry]}, True),
        ("INPUT_REQUIRED",),
    ]
    status = final(updates)
    assert status.message is not None
    assert [part.data for part in status.message.parts] == [{"tool_calls": [entry]}]


def test_several_choices_have_artifacts_of_their_own() -> None:
    assert outline(
        translate([say("a", 0), say("b", 1), say("c", 1)], [say("d", 0), end(choice=0), end(choice=1)])
    ) == [
        ("=", "text", "a", False),
        ("=", "text-choice-1", "bc", False),
        ("+", "text", "d", False),
        ("+", "text", "", True),
        ("+", "text-choice-1", "", True),
        ("COMPLETED",),
    ]


def test_a_later_turn_has_other_artifact_ids() -> None:
    first = [line[1] for line in outline(one_by_one(think("a"), say("b"), end()))[:-1]]
    second = [line[1] for line in outline(one_by_one(think("a"), say("b"), end(), turn=2))[:-1]]
    assert first == ["reasoning", "text"] * 2
    assert second == ["reasoning-turn-2", "text-turn-2"] * 2


def test_an_empty_answer_has_no_artifact() -> None:
    updates = one_by_one(end())
    assert outline(updates) == [("COMPLETED",)]


def test_deltas_that_change_nothing_give_no_update() -> None:
    translator = ResponseTranslator()
    assert translator.feed([]) == []
    assert translator.feed([Delta(None), say(""), *count(Usage(1, 2, 3))]) == []
    assert translator.feed([call("", index=0, name="f")]) != []
    assert translator.feed([call("", index=0)]) == []


def test_text_that_was_held_back_comes_before_the_end() -> None:
    assert outline(one_by_one(say("a"), say("\ud83d"), end())) == [
        ("=", "text", "a", False),
        ("+", "text", "\ufffd", False),
        ("+", "text", "", True),
        ("COMPLETED",),
    ]


def test_reasoning_in_think_tags_is_separated_unless_disabled() -> None:
    deltas = (say("<think>hm"), say("</think>yes"), end())
    assert outline(one_by_one(*deltas)) == [
        ("=", "reasoning", "hm", False),
        ("=", "text", "yes", False),
        ("+", "reasoning", "", True),
        ("+", "text", "", True),
        ("COMPLETED",),
    ]
    assert outline(one_by_one(*deltas, think_tags=False))[0] == ("=", "text", "<think>hm", False)


# --- complete parts ---------------------------------------------------------------------------------------------


def with_parts(*parts: ContentPart, choice: int = 0) -> Delta:
    return Delta(None, choice, ChunkDetails(parts=parts))


def test_a_file_is_an_artifact_of_its_own_between_the_texts() -> None:
    image = ContentPartFile(data=b"png", media_type="image/png", filename="cat.png")
    updates = translate([say("See "), with_parts(image), say("above."), end()])
    files = [
        update
        for update in updates
        if isinstance(update, ArtifactUpdate) and update.artifact.artifact_id == "file-1"
    ]
    assert [(each.artifact.name, each.artifact.parts[0].raw, each.last) for each in files] == [
        ("cat.png", b"png", True)
    ]
    assert [line[:3] for line in outline(updates)][:3] == [
        ("=", "text", "See "),
        ("=", "file-1", None),
        ("+", "text", "above."),
    ]
    assert extension_metadata(files[0].artifact.metadata) == {"channel": "file"}


def test_files_of_choices_and_turns_have_ids_of_their_own() -> None:
    link = ContentPartFile(url="https://example.org/a.png")
    updates = translate([with_parts(link), with_parts(link, choice=1), end(), end(choice=1)], turn=2)
    assert [update.artifact.artifact_id for update in updates if isinstance(update, ArtifactUpdate)] == [
        "file-1-turn-2",
        "file-2-choice-1-turn-2",
    ]


def test_data_is_an_artifact_too() -> None:
    updates = translate([with_parts(ContentPartData(data={"sum": 3})), end()])
    assert outline(updates)[0] == ("=", "data-1", {"sum": 3}, True)


def test_tools_that_the_provider_ran_require_no_input() -> None:
    result = ContentPartToolResult(id="s1", name="search", output="found")
    updates = translate(
        [call('{"q": "a"}', index=0, id="s1", name="search", type="server"), with_parts(result)],
        [say("It is."), end()],
    )
    assert final(updates).state is TaskState.COMPLETED
    entry = {"call_id": "s1", "name": "search", "arguments": {"q": "a"}, "kind": "server"}
    output = {"call_id": "s1", "name": "search", "output": "found"}
    assert [line for line in outline(updates) if line[0] == "=" and line[3]] == [
        ("=", "tool-call-1", {"tool_calls": [entry]}, True),
        ("=", "tool-result-1", {"tool_results": [output]}, True),
    ]


def test_only_calls_that_wait_for_the_caller_require_input() -> None:
    updates = translate(
        [
            call("{}", index=0, id="s1", name="search", type="server"),
            call("{}", index=1, id="c1", name="f"),
            end(),
        ]
    )
    status = final(updates)
    assert status.state is TaskState.INPUT_REQUIRED
    assert status.message is not None
    (part,) = status.message.parts
    assert [entry["call_id"] for entry in part.data["tool_calls"]] == ["c1"]


def test_a_restarted_response_replaces_the_published_text() -> None:
    anew = Delta(None, 0, ChunkDetails(restarts=True))
    updates = one_by_one(think("hm"), say("wrong"), anew, say("right"), end())
    assert outline(updates)[:5] == [
        ("=", "reasoning", "hm", False),
        ("=", "text", "wrong", False),
        ("=", "reasoning", "", False),
        ("=", "text", "", False),
        ("+", "text", "right", False),
    ]
    record = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)))
    for update in updates[:-1]:
        record.apply(update)
    assert {each.artifact_id: each.parts[0].text for each in record.snapshot().artifacts} == {
        "reasoning": "",
        "text": "right",
    }


def test_fields_beyond_the_vocabulary_are_facts() -> None:
    noted = Delta(None, 0, ChunkDetails(extra={"annotations": [{"url": "a"}]}), text="yes")
    assert facts_of(one_by_one(noted, end()))["extra"] == {"annotations": [{"url": "a"}]}


# --- metadata ---------------------------------------------------------------------------------------------------


def test_an_artifact_names_its_channel() -> None:
    updates = one_by_one(
        think("a"), say("b", 1), call(CITY, index=0, id="i", name="f"), end(), end(choice=1), turn=2
    )
    artifacts = [update.artifact for update in updates if isinstance(update, ArtifactUpdate)]
    assert [(artifact.name, artifact.metadata[EXTENSION_URI]) for artifact in artifacts] == [
        ("Reasoning", {"channel": "reasoning", "turn": 2}),
        ("Answer", {"channel": "text", "choice": 1, "turn": 2}),
        ("f", {"channel": "tool_call", "turn": 2, "callId": "i"}),
        ("f", {"channel": "tool_call", "turn": 2, "callId": "i"}),
    ]
    assert all(artifact.extensions == (EXTENSION_URI,) for artifact in artifacts)


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


reads = st.lists(
    st.lists(
        st.builds(say, st.text(max_size=3), st.integers(0, 1))
        | st.builds(think, st.text(max_size=3), st.integers(0, 1))
        | st.builds(refuse, st.text(max_size=3))
        | st.builds(
            call, st.sampled_from(["{", "}", ""]), index=st.none() | st.integers(0, 1), name=st.just("f")
        )
        | st.builds(end, st.sampled_from(FinishReason), st.integers(0, 1)),
        max_size=4,
    ),
    max_size=5,
)


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
