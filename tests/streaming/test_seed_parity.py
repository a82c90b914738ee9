"""What the libraries that this one continues do with a stream, and what they get wrong, through our own classes.

dartantic_ai (Dart) folds the chunks of every provider into messages, and the messages of a turn into a result;
StreetRace (Python) had chunk wrappers and history converters. A test whose comment says "there" pins a case that
their code leaves wrong.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDelta as PackageChoiceDelta
from pydantic import ValidationError

from support.deltas import Delta, call, end, say, think
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.turn import TurnAccumulator, TurnDelta
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkDetails,
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishMessage,
    FinishReason,
    History,
    Message,
    MessageAssembly,
    Role,
    ToolCallDelta,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDeltaWrapper, OpenAIConverter, wrap_chunk
from tailrace.wrappers.tool_ids import unmatched_tools, with_matched_ids

converter = OpenAIConverter()

PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'


def chunk(
    delta: Mapping[str, Any] | None = None, finish: str | None = None, *, index: int = 0, **fields: Any
) -> dict[str, Any]:
    """One payload of an OpenAI stream with one choice."""
    return {"choices": [{"index": index, "delta": delta or {}, "finish_reason": finish}], **fields}


def tool_call(
    arguments: str | None = None, *, index: int | None = None, id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """A delta with one fragment of a tool call; what is None is not there."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return {"tool_calls": [{**fields, "function": function}]}


def body_of(*chunks: Mapping[str, Any], done: bool = True) -> bytes:
    data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)
    return data + b"data: [DONE]\n\n" if done else data


def respond(turn: TurnAccumulator, *chunks: Mapping[str, Any]) -> list[TurnDelta]:
    """One response of an OpenAI server; what was new after each of its chunks."""
    decoder = ChatCompletionsDecoder()
    news: list[TurnDelta] = []
    for wrapper in decoder.feed(body_of(*chunks)):
        turn.add(wrapper)
        news.append(turn.take_new())
    for wrapper in decoder.close():
        turn.add(wrapper)
    turn.end_response()
    return [*news, turn.take_new()]


def fold(*chunks: Mapping[str, Any], done: bool = True) -> Accumulator:
    decoder, accumulator = ChatCompletionsDecoder(), Accumulator()
    for wrapper in [*decoder.feed(body_of(*chunks, done=done)), *decoder.close()]:
        accumulator.add(wrapper)
    accumulator.close()
    return accumulator


def assemble(*deltas: Delta) -> Message:
    assembly = MessageAssembly()
    for delta in deltas:
        assembly.add(delta)
    assembly.close()
    return assembly.message()


def calls_of(*chunks: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(each.id, each.name, each.arguments) for each in fold(*chunks).message().tool_calls]


def user(*content: ContentPart) -> Message:
    return Message(role=Role.USER, content=content)


def model(*content: ContentPart, **metadata: Any) -> Message:
    return Message(role=Role.MODEL, content=content, metadata=metadata)


def tool(*content: ContentPart) -> Message:
    return Message(role=Role.TOOL, content=content)


def text(value: str) -> ContentPartText:
    return ContentPartText(text=value)


def params(*messages: Mapping[str, Any]) -> list[ChatCompletionMessageParam]:
    return cast("list[ChatCompletionMessageParam]", list(messages))


TWO_CALLS = [("a", "f", json.loads(PARIS)), ("b", "f", json.loads(ROME))]
FIRST, SECOND = (
    ContentPartToolCall(id=id, name=name, arguments=arguments) for id, name, arguments in TWO_CALLS
)
FIRST_RESULT = ContentPartToolResult(id="a", name="f", output="Sunny")
SECOND_RESULT = ContentPartToolResult(id="b", name="f", output="Rain")


# --- folding one message ----------------------------------------------------------------------------------------


def test_text_that_stands_together_becomes_one_part() -> None:
    assert fold(chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk(finish="stop")).message() == model(
        text("Hello"), finish_reason="stop"
    )


def test_empty_text_is_no_part() -> None:
    assert (
        fold(chunk({"content": ""}), chunk({"content": None}), chunk(finish="stop")).message().content == ()
    )


def test_fragments_under_the_same_id_are_one_call_and_a_name_that_is_empty_says_nothing() -> None:
    fragments = [
        chunk(tool_call(PARIS[:4], id="a", name="f")),
        chunk(tool_call(PARIS[4:9], id="a", name="")),
        chunk(tool_call(PARIS[9:], id="a")),
    ]
    assert calls_of(*fragments) == TWO_CALLS[:1]


def test_a_call_that_is_sent_twice_as_a_whole_is_one_call_with_its_arguments_once() -> None:
    assert calls_of(*[chunk(tool_call(PARIS, index=0, id="a", name="f"))] * 2) == TWO_CALLS[:1]


def test_parts_that_come_whole_are_kept_as_they_are() -> None:
    whole = (
        ContentPartFile(data=b"png", media_type="image/png", metadata={"k": 1}),
        ContentPartFile(url="https://example.com/a", media_type="text/html"),
        ContentPartData(data={"a": [1]}),
        ContentPartToolResult(id="s", name="search", output=[1]),
    )
    assert assemble(Delta(None, details=ChunkDetails(parts=whole))).content == whole


def test_parts_keep_the_order_in_which_they_came() -> None:
    # There, text moves before all other parts.
    image = ContentPartFile(data=b"png", media_type="image/png")
    message = assemble(
        Delta(None, details=ChunkDetails(parts=(image,))),
        say("a"),
        call(PARIS, index=0, id="a", name="f"),
        think("hm"),
        say("b"),
    )
    assert message.content == (image, text("a"), FIRST, ContentPartReasoning(text="hm"), text("b"))


def test_of_metadata_the_later_value_counts_but_the_first_id_and_time() -> None:
    accumulator = fold(
        chunk({"content": "a"}, id="1", created=1, model="m", system_fingerprint="x"),
        chunk({"content": "b"}, "stop", id="2", created=2, model="n", system_fingerprint="y"),
    )
    assert accumulator.metadata == {"id": "1", "created": 1, "model": "n", "system_fingerprint": "y"}


def test_metadata_that_came_alone_first_is_kept() -> None:
    # There, the first chunk with content replaces a message that has no parts yet, metadata included.
    facts = {"id": "1", "model": "m", "prompt_filter_results": [1]}
    turn = TurnAccumulator()
    news = respond(turn, {"choices": [], **facts}, chunk({"content": "a"}, "stop"))
    assert news[0] == TurnDelta(metadata=facts)
    assert turn.metadata == facts
    refusal = Delta(None, details=ChunkDetails(refusal="No.", extra={"annotations": [1]}))
    assert assemble(refusal, say("a")).metadata == {"refusal": "No.", "extra": {"annotations": [1]}}


def test_fields_that_nobody_knows_are_merged_by_their_kind() -> None:
    extra = [{"a": [1], "b": {"x": 1}, "c": 1}, {"a": [2], "b": {"y": 2}, "c": 2}]
    deltas = [Delta(None, details=ChunkDetails(extra=each)) for each in extra]
    assert assemble(*deltas).metadata["extra"] == {"a": [1, 2], "b": {"x": 1, "y": 2}, "c": 2}


def test_folding_changes_no_chunk_and_no_message_that_was_taken_before() -> None:
    first = {"a": {"x": [1]}}
    delta = Delta(None, text="a", details=ChunkDetails(extra=first, metadata={"id": "1"}))
    accumulator = Accumulator()
    accumulator.add(delta)
    before = accumulator.message()
    taken = before.model_copy(deep=True)
    accumulator.add(
        Delta(None, text="b", details=ChunkDetails(extra={"a": {"x": [2]}}, metadata={"id": "2"}))
    )
    assert before == taken
    assert first == {"a": {"x": [1]}}
    assert delta == Delta(None, text="a", details=ChunkDetails(extra=first, metadata={"id": "1"}))


def test_arguments_are_parsed_at_the_end_only() -> None:
    assembly = MessageAssembly()
    for piece in PARIS:
        assembly.add(call(piece, index=0, id="a", name="f"))
        assert len(assembly.tool_calls) == 1
    assert assembly.tool_calls == [FIRST]


def test_arguments_that_do_not_parse_are_kept_as_text() -> None:
    # There, the whole stream fails with the parser's exception.
    for raw in ('{"city": "Par', "{'city': 1}", "not JSON"):
        (broken,) = fold(chunk(tool_call(raw, index=0, id="a", name="f"), "tool_calls")).message().tool_calls
        assert (broken.arguments, broken.arguments_text) == ({}, raw)
        assert broken.arguments_error


@pytest.mark.parametrize("raw", ["null", "", None])
def test_arguments_of_nothing_are_an_empty_object(raw: str | None) -> None:
    assert calls_of(chunk(tool_call(raw, index=0, id="a", name="f"), "tool_calls")) == [("a", "f", {})]


def test_calls_without_an_id_get_one_each() -> None:
    chunks = [chunk(tool_call("{}", index=0, id="", name="f")), chunk(tool_call("{}", index=1, name="g"))]
    ids = [id for id, _, _ in calls_of(*chunks)]
    assert all(ids)
    assert len(set(ids)) == 2


def test_reasoning_is_apart_from_text_and_is_counted_once_where_it_comes_twice() -> None:
    details = [{"type": "reasoning.text", "text": "hm", "index": 0}]
    accumulator = fold(
        chunk({"reasoning": "hm", "reasoning_content": "hm", "reasoning_details": details}),
        chunk({"content": "a"}, "stop"),
    )
    message = accumulator.message()
    assert (message.reasoning, message.text) == ("hm", "a")
    assert message.metadata["extra"]["reasoning_details"] == details


def test_a_finish_reason_is_not_taken_back() -> None:
    accumulator = fold(chunk({"content": "a"}, "length"), chunk({}, None), chunk({}, ""), chunk({}, "stop"))
    assert accumulator.finished
    assert accumulator.message().metadata["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("recitation", FinishReason.RECITATION),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("function_call", FinishReason.TOOL_CALLS),
        ("something new", FinishReason.UNSPECIFIED),
    ],
)
def test_finish_reasons_are_six_words_beside_the_providers_own(raw: str, reason: FinishReason) -> None:
    (wrapper,) = wrap_chunk(chunk({}, raw))
    assert wrapper.get_finish_message() == FinishMessage(reason, raw)


# --- which call a fragment belongs to ---------------------------------------------------------------------------


def test_fragments_are_put_together_by_their_index() -> None:
    # There, one library counts the position in the chunk's own list, the other takes the latest call.
    assert (
        calls_of(
            chunk(tool_call(PARIS[:5], index=0, id="a", name="f")),
            chunk(tool_call(ROME[:7], index=1, id="b", name="f")),
            chunk(tool_call(PARIS[5:], index=0)),
            chunk(tool_call(ROME[7:], index=1)),
        )
        == TWO_CALLS
    )


def test_an_id_that_is_repeated_opens_no_new_call() -> None:
    # There, every fragment with an id is a call of its own.
    pieces = [chunk(tool_call(piece, index=0, id="a", name="f")) for piece in (PARIS[:5], PARIS[5:])]
    assert calls_of(*pieces) == TWO_CALLS[:1]


def test_an_index_that_never_counts_up_does_not_merge_calls() -> None:
    pieces = [
        chunk(tool_call(PARIS, index=0, id="a", name="f")),
        chunk(tool_call(ROME, index=0, id="b", name="f")),
    ]
    assert calls_of(*pieces) == TWO_CALLS


def test_a_name_that_is_repeated_is_not_doubled() -> None:
    pieces = [
        chunk(tool_call(piece, index=0, id="a", name="get_weather")) for piece in (PARIS[:5], PARIS[5:])
    ]
    assert [name for _, name, _ in calls_of(*pieces)] == ["get_weather"]


@pytest.mark.parametrize("roles", [["assistant"] * 3, [None] * 3, ["assistant", "tool", ""]], ids=str)
def test_a_role_that_is_repeated_missing_or_different_is_no_reason_to_fail(roles: list[str | None]) -> None:
    # There, a message needs exactly one role.
    deltas = [chunk({"role": role, "content": "a"}) for role in roles]
    assert fold(*deltas, chunk(finish="stop")).message() == model(text("aaa"), finish_reason="stop")


# --- choices ----------------------------------------------------------------------------------------------------


def test_every_choice_is_folded_by_itself() -> None:
    # There, only the first choice is read, or all are put together in one text.
    accumulator = fold(
        chunk({"content": "a"}),
        chunk({"content": "b"}, index=1),
        chunk(tool_call(ROME, index=0, id="b", name="f"), "tool_calls", index=1),
        chunk({"content": "A"}, "stop"),
    )
    assert accumulator.message(0) == model(text("aA"), finish_reason="stop")
    assert accumulator.message(1) == model(text("b"), SECOND, finish_reason="tool_calls")


# --- rules of the stream ----------------------------------------------------------------------------------------


def test_text_is_handed_on_at_once() -> None:
    turn = TurnAccumulator()
    news = respond(turn, chunk({"content": "a"}), chunk({"content": "b"}), chunk(finish="stop"))
    assert [new.output for new in news] == ["a", "b", "", ""]


def test_chunks_of_reasoning_and_of_metadata_alone_are_handed_on() -> None:
    turn = TurnAccumulator()
    news = respond(turn, {"choices": [], "id": "1"}, chunk({"reasoning": "hm"}, id="1"))
    assert news[:2] == [TurnDelta(metadata={"id": "1"}), TurnDelta(reasoning="hm")]


def test_metadata_is_not_repeated() -> None:
    turn = TurnAccumulator()
    facts: dict[str, Any] = {"id": "1", "model": "m", "created": 1}
    news = respond(turn, chunk({"content": "a"}, **facts), chunk({"content": "b"}, "stop", **facts))
    assert [new.metadata for new in news] == [facts, {}, {}]


def test_text_is_not_doubled_by_the_message_at_the_end() -> None:
    turn = TurnAccumulator()
    whole = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}]
    }
    news = respond(turn, chunk({"content": "a"}), chunk({"content": "b"}), whole)
    assert "".join(new.output for new in news) == turn.output == "ab"
    assert [message for new in news for message in new.messages] == [model(text("ab"), finish_reason="stop")]


def test_a_whole_message_without_deltas_is_the_answer() -> None:
    turn = TurnAccumulator()
    message = {"role": "assistant", "content": "ab"}
    respond(turn, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    assert turn.output == "ab"


USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
LAST_CHUNKS: list[dict[str, Any]] = [
    {"choices": [], "usage": USAGE},
    {"choices": None, "usage": USAGE},
    {"usage": USAGE},
]


def test_usage_is_taken_from_a_chunk_without_choices_too_and_leaves_the_finish_reason() -> None:
    turn = TurnAccumulator()
    for last in LAST_CHUNKS:
        respond(turn, chunk({"content": "a"}, "stop"), last)
        assert turn.usage == Usage(1, 2, 3, USAGE)
        assert turn.finish_reason is FinishReason.STOP
    assert turn.total_usage == Usage(3, 6, 9)


def test_usage_is_not_added_up_where_it_is_repeated() -> None:
    usage = [{"prompt_tokens": 5, "completion_tokens": made} for made in (1, 2, 3)]
    accumulator = fold(*(chunk({"content": "a"}, usage=each) for each in usage), chunk(finish="stop"))
    assert accumulator.usage == Usage(5, 3, 8, usage[-1])


def test_an_empty_text_does_not_hide_the_other_fields_of_its_delta() -> None:
    delta = {"content": "", **tool_call(PARIS, index=0, id="a", name="f")}
    assert calls_of(chunk(delta, "tool_calls")) == TWO_CALLS[:1]


def test_text_and_a_call_in_one_delta_are_both_kept() -> None:
    # There, such a delta loses its text.
    delta = {"content": "Let me see.", **tool_call(PARIS, index=0, id="a", name="f")}
    message = fold(chunk(delta, "tool_calls")).message()
    assert message == model(text("Let me see."), FIRST, finish_reason="tool_calls")


@pytest.mark.parametrize("finish", ["tool_calls", "stop", "length", "content_filter", "function_call", "odd"])
def test_calls_are_kept_whatever_the_finish_reason(finish: str) -> None:
    # There, calls are handed on with the reason "tool_calls" only.
    turn = TurnAccumulator()
    respond(turn, chunk(tool_call(PARIS, index=0, id="a", name="f")), chunk({}, finish))
    assert turn.unanswered_calls == (FIRST,)


def test_calls_are_kept_when_the_finish_reason_stands_in_their_own_chunk() -> None:
    turn = TurnAccumulator()
    respond(turn, chunk(tool_call(PARIS, index=0, id="a", name="f"), "tool_calls"))
    assert turn.unanswered_calls == (FIRST,)


def test_an_error_says_its_code_and_keeps_what_came_before() -> None:
    error = {"message": "no more", "code": "insufficient_quota", "type": "quota"}
    turn = TurnAccumulator()
    respond(turn, chunk({"content": "a"}), {"error": error})
    assert turn.error is not None
    assert (turn.error.fault, turn.error.code, turn.error.message) == (
        UpstreamFault.PROVIDER,
        "insufficient_quota",
        "no more",
    )
    assert turn.output == "a"
    assert turn.messages == (model(text("a")),)


def test_a_stream_that_breaks_off_is_no_finished_answer() -> None:
    accumulator = fold(chunk({"content": "a"}), done=False)
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED
    assert accumulator.message() == model(text("a"))


def test_an_answer_that_is_asked_for_again_is_not_doubled() -> None:
    # There, a second try begins behind the text of the first.
    turn = TurnAccumulator()
    turn.add(say("Hel"))
    shown = turn.take_new().output
    turn.drop_response()
    for new in respond(turn, chunk({"content": "Hello"}, "stop")):
        shown = new.output if new.replaces else shown + new.output
    assert shown == turn.output == "Hello"
    assert turn.messages == (model(text("Hello"), finish_reason="stop"),)


def test_an_answer_that_the_provider_begins_anew_is_not_doubled() -> None:
    again = Delta(None, details=ChunkDetails(restarts=True), text="Hello")
    assert assemble(say("Hel"), again, end()) == model(text("Hello"), finish_reason="stop")
    assembly = MessageAssembly()
    changes = [change for delta in (say("Hel"), again) for change in assembly.add(delta)]
    assert changes == [
        Change(Channel.TEXT, 0, "Hel"),
        Change(Channel.TEXT, 0, "", restarts=True),
        Change(Channel.TEXT, 0, "Hello"),
    ]


# --- a turn -----------------------------------------------------------------------------------------------------


def test_a_turn_gives_output_reasoning_and_all_new_messages() -> None:
    question = user(text("How is the weather in Paris and in Rome?"))
    turn = TurnAccumulator(question, history=History(system_message="Be brief."))
    respond(
        turn,
        chunk({"reasoning": "Two cities.", "content": "Let me see."}, id="1"),
        chunk(tool_call(PARIS, index=0, id="a", name="f")),
        chunk(tool_call(ROME, index=1, id="b", name="f"), "tool_calls"),
    )
    turn.add_results(FIRST_RESULT, SECOND_RESULT)
    respond(turn, chunk({"content": "Sun and rain."}, "stop", id="2"))
    assert turn.output == "Let me see.\nSun and rain."
    assert turn.reasoning == "Two cities."
    assert (turn.id, turn.finish_reason) == ("2", FinishReason.STOP)
    assert turn.messages == (
        question,
        model(
            ContentPartReasoning(text="Two cities.", metadata={"openai": {"field": "reasoning"}}),
            text("Let me see."),
            FIRST,
            SECOND,
            finish_reason="tool_calls",
        ),
        tool(FIRST_RESULT, SECOND_RESULT),
        model(text("Sun and rain."), finish_reason="stop"),
    )
    assert turn.history == History(system_message="Be brief.", conversation=turn.messages)


def test_the_whole_conversation_is_the_new_messages_of_every_turn() -> None:
    history = History()
    for words in ("one", "two"):
        turn = TurnAccumulator(user(text(words)), history=history)
        respond(turn, chunk({"content": words.upper()}, "stop"))
        assert len(turn.messages) == 2
        history = history.with_message(*turn.messages)
    assert [message.text for message in history.conversation] == ["one", "ONE", "two", "TWO"]


def test_an_empty_message_after_tools_can_be_told_from_no_message() -> None:
    turn = TurnAccumulator()
    respond(turn, chunk(tool_call(PARIS, index=0, id="a", name="f"), "tool_calls"))
    turn.add_results(FIRST_RESULT)
    respond(turn, chunk({"role": "assistant", "content": ""}, "stop"))
    assert turn.messages[-1] == model(finish_reason="stop")
    respond(turn)
    assert len(turn.messages) == 3
    assert turn.error is not None


def test_files_of_an_answer_are_collected() -> None:
    image = ContentPartFile(data=b"png", media_type="image/png")
    link = ContentPartFile(url="https://example.com/a.png")
    turn = TurnAccumulator()
    turn.add(Delta(None, details=ChunkDetails(parts=(image, link))))
    turn.add(end())
    turn.end_response()
    assert (turn.files, turn.links) == ((image,), (link,))
    assert turn.messages == (model(image, link, finish_reason="stop"),)


def test_images_in_the_deltas_of_a_chat_are_files_of_the_turn() -> None:
    images = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}]
    turn = TurnAccumulator()
    respond(turn, chunk({"content": "Here: ", "images": images}), chunk({"content": "a cat"}, "stop"))
    assert [(file.data, file.media_type) for file in turn.files] == [(b"\x89PNG", "image/png")]
    assert turn.output == "Here: a cat"


# --- ids --------------------------------------------------------------------------------------------------------


def test_ids_of_later_responses_do_not_repeat_those_of_earlier_ones() -> None:
    # Some servers number the calls of every response anew.
    turn = TurnAccumulator()
    ids: list[str] = []
    for _ in range(2):
        respond(turn, chunk(tool_call(PARIS, index=0, id="tool_name0", name="f"), "tool_calls"))
        (asked,) = turn.unanswered_calls
        ids.append(asked.id)
        turn.add_results(ContentPartToolResult(id=asked.id, name="f", output="Sunny"))
    assert ids[0] == "tool_name0" != ids[1]
    assert unmatched_tools(turn.history).calls == ()


def test_results_are_matched_to_calls_and_what_does_not_match_is_reported() -> None:
    history = History(
        conversation=(
            model(FIRST, SECOND),
            tool(ContentPartToolResult(id="", name="unknown", output="Sunny"), FIRST_RESULT, FIRST_RESULT),
        )
    )
    unmatched = unmatched_tools(history)
    assert ([each.id for each in unmatched.calls], [each.id for each in unmatched.results]) == ([], ["a"])
    matched = with_matched_ids(history).conversation[1].tool_results
    assert [(each.id, each.name) for each in matched] == [("b", "f"), ("a", "f"), ("a", "f")]


# --- wrappers over the openai package's objects -----------------------------------------------------------------


def package_delta(**fields: Any) -> ChoiceDeltaWrapper:
    return converter.create_chunk_wrapper(PackageChoiceDelta.model_validate(fields))


def test_the_text_of_a_delta() -> None:
    assert package_delta(content="Hello").get_text() == "Hello"
    assert package_delta().get_text() == ""
    assert package_delta(content=None).get_text() == ""


def test_the_tool_calls_of_a_delta_are_fragments_that_nobody_parses() -> None:
    # There, a fragment's arguments are parsed at once, which only whole ones survive.
    function = {"name": "f", "arguments": '{"ci'}
    wrapper = package_delta(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": function}])
    assert wrapper.get_tool_calls() == [ToolCallDelta(0, "a", "f", '{"ci', "function")]
    assert package_delta(content="a").get_tool_calls() == []
    empty = package_delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}])
    assert [each.arguments for each in empty.get_tool_calls()] == [""]


def test_the_finish_message_of_a_delta_is_none_or_a_word_and_what_was_said_about_it() -> None:
    assert package_delta(content="a").get_finish_message() is None
    (wrapper,) = wrap_chunk(
        ChatCompletionChunk.model_validate(
            {"id": "1", "created": 1, "model": "m", "object": "chat.completion.chunk", **chunk({}, "length")}
        )
    )
    assert wrapper.get_finish_message() == FinishMessage(FinishReason.LENGTH, "length")
    assert FinishMessage(FinishReason.CONTENT_FILTER, "SAFETY", "blocked").message == "blocked"


def test_a_wrapper_keeps_the_object_that_it_wraps() -> None:
    delta = PackageChoiceDelta(content="a")
    assert converter.create_chunk_wrapper(delta).raw is delta


# --- the common format ------------------------------------------------------------------------------------------


def test_a_part_of_no_known_type_is_refused() -> None:
    with pytest.raises(ValidationError, match="tag 'video'"):
        Message.model_validate({"role": "user", "content": [{"type": "video"}]})


def test_a_role_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValidationError, match="role"):
        Message.model_validate({"role": "critic", "content": []})
    with pytest.raises(ValueError, match="a system message belongs in History"):
        History().with_message(Message(role=Role.SYSTEM))


def test_context_is_no_role_but_a_field_of_its_own() -> None:
    # There, it is a role that stands for the user's.
    assert [str(role) for role in Role] == ["system", "user", "model", "tool"]
    assert History(context="It is noon.") != History(conversation=(user(text("It is noon.")),))


def test_a_tool_has_either_answered_or_failed() -> None:
    failed = ContentPartToolResult(id="a", name="f", output="no such city", is_error=True)
    assert [each.get("content") for each in converter.tool_result_messages([failed, FIRST_RESULT])] == [
        '{"error": "no such city"}',
        "Sunny",
    ]


# --- what every history converter has to stand ------------------------------------------------------------------
# The ten scenarios that StreetRace asks of whoever writes one, here for Chat Completions.

WHOLE = History(
    system_message="You are a helper.",
    context="The user is in Oakland.",
    conversation=(
        user(text("How is the weather in Paris and in Rome?")),
        model(text("Let me see."), FIRST, SECOND),
        tool(FIRST_RESULT, SECOND_RESULT),
        model(text("Sun and rain.")),
    ),
)


def sent(history: History) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", converter.from_history(history))


def test_a_basic_conversation_is_converted() -> None:
    history = History(conversation=(user(text("hi")), model(text("hello"))))
    assert [(each["role"], each["content"][0]["text"]) for each in sent(history)] == [
        ("user", "hi"),
        ("assistant", "hello"),
    ]


def test_an_empty_history_is_no_messages() -> None:
    assert sent(History()) == []
    assert converter.to_history([]) == History()
    assert converter.to_message([]) == model()
    assert converter.tool_result_messages([]) == []


def test_a_system_message_may_stand_alone() -> None:
    assert sent(History(system_message="Be brief.")) == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    ]


def test_content_of_several_kinds_keeps_its_order() -> None:
    image = ContentPartFile(data=b"png", media_type="image/png")
    history = History(conversation=(user(text("What is it?"), image, ContentPartData(data={"a": 1})),))
    (message,) = sent(history)
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "text"]


def test_a_conversation_comes_back_as_it_went_out() -> None:
    without_context = WHOLE.model_copy(update={"context": None})
    assert converter.to_history(converter.from_history(without_context)) == without_context


def test_no_edge_case_loses_anything() -> None:
    # There, of several texts in one answer the last is all that is left.
    several = model(text("one "), text("two"), FIRST, text(" three"))
    (message,) = sent(History(conversation=(several,)))
    assert [part["text"] for part in message["content"]] == ["one ", "two", " three"]
    # What says nothing is not said: servers refuse an answer without text and calls.
    assert sent(History(conversation=(user(), model(), tool()))) == [{"role": "user", "content": ""}]
    unnamed = {"role": "tool", "tool_call_id": "x", "content": "42"}
    (results,) = converter.to_history(params(unnamed)).conversation
    assert results == tool(ContentPartToolResult(id="x", name="unknown", output="42"))


def test_malformed_messages_are_refused_and_malformed_answers_are_read() -> None:
    for message in ({"role": "critic", "content": "x"}, {"role": "user", "content": [{"type": "video_url"}]}):
        with pytest.raises(ValueError, match="message 0: "):
            converter.to_history(params(message))
    broken = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    for response in (
        {"choices": [{"message": {"content": None, "tool_calls": [broken]}}]},
        {"role": "assistant", "content": None, "tool_calls": [broken]},
    ):
        (asked,) = converter.to_message(response).tool_calls
        assert asked.arguments_text == '{"a": '


def test_a_conversation_of_several_turns_keeps_its_order() -> None:
    assert [each["role"] for each in sent(WHOLE)] == [
        "system",
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [each["tool_call_id"] for each in sent(WHOLE) if each["role"] == "tool"] == ["a", "b"]


def test_a_streamed_answer_is_the_same_as_a_whole_one() -> None:
    chunks = [
        chunk({"role": "assistant", "content": "Let me "}),
        chunk({"content": "see."}),
        chunk(tool_call(PARIS, index=0, id="a", name="f")),
        chunk(finish="tool_calls"),
    ]
    streamed = converter.to_message(wrapper for each in chunks for wrapper in wrap_chunk(each))
    function = {"name": "f", "arguments": PARIS}
    message = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    assert streamed == converter.to_message(ChatCompletion.model_validate(whole))
    assert streamed == model(text("Let me see."), FIRST, finish_reason="tool_calls")


def test_every_role_has_its_counterpart() -> None:
    roles = {"user": user(text("a")), "assistant": model(text("a")), "tool": tool(FIRST_RESULT)}
    for role, message in roles.items():
        assert [each["role"] for each in sent(History(conversation=(message,)))] == [role]
    assert [each["role"] for each in sent(History(system_message="a", context="b"))] == ["system", "user"]
    assert converter.to_history(params({"role": "developer", "content": "a"})).system_message == "a"
