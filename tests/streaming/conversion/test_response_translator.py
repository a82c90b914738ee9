"""From a response to a task's updates: golden sequences, endings, and metadata."""

from hypothesis import given, settings
from hypothesis import strategies as st

from support.deltas import Delta, call, count, end, refuse, say, think
from support.translated_responses import CITY, facts_of, final, one_by_one, outline, translate
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI, extension_metadata
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, TextDelta, Update
from tailrace.wrappers import (
    ChunkDetails,
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolResult,
    Usage,
)

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
