"""The common message format: round trips, equality, and rejected values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from support import strategies
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.messages import MAX_DEPTH, MAX_MESSAGE_LENGTH, clipped, join_surrogates, json_value

PARTS: list[tuple[ContentPart, dict[str, Any]]] = [
    (ContentPartText(text="hi"), {"type": "text", "text": "hi", "metadata": {}}),
    (
        ContentPartReasoning(text="hm", signature="s", metadata={"id": "r1"}),
        {"type": "reasoning", "text": "hm", "signature": "s", "metadata": {"id": "r1"}},
    ),
    (
        ContentPartFile(data=b"\xfb\xff", media_type="image/png", filename="a.png"),
        {
            "type": "file",
            "data": "+/8=",
            "url": None,
            "media_type": "image/png",
            "filename": "a.png",
            "metadata": {},
        },
    ),
    (
        ContentPartFile(url="https://example.com/a"),
        {
            "type": "file",
            "data": None,
            "url": "https://example.com/a",
            "media_type": "",
            "filename": "",
            "metadata": {},
        },
    ),
    (
        ContentPartData(data=[1, None, {"a": 1.5}]),
        {"type": "data", "data": [1, None, {"a": 1.5}], "metadata": {}},
    ),
    (
        ContentPartToolCall(id="c", name="f", arguments={"x": 1}),
        {
            "type": "tool_call",
            "id": "c",
            "name": "f",
            "arguments": {"x": 1},
            "arguments_json": None,
            "arguments_text": None,
            "arguments_error": None,
            "kind": "function",
            "synthetic_id": False,
            "metadata": {},
        },
    ),
    (
        ContentPartToolResult(id="c", name="f", output={"t": 72}, is_error=True),
        {
            "type": "tool_result",
            "id": "c",
            "name": "f",
            "output": {"t": 72},
            "is_error": True,
            "metadata": {},
        },
    ),
]


@pytest.mark.parametrize(("part", "expected"), PARTS)
@pytest.mark.parametrize("role", Role)
def test_every_part_in_every_role_has_this_json_and_comes_back_from_it(
    role: Role, part: ContentPart, expected: dict[str, Any]
) -> None:
    message = Message(role=role, content=(part,))
    text = message.model_dump_json()
    assert json.loads(text) == {"role": str(role), "content": [expected], "metadata": {}}
    assert Message.model_validate_json(text) == message


@given(strategies.histories)
def test_any_history_makes_the_round_trip_through_json(history: History) -> None:
    text = history.model_dump_json()
    assert History.model_validate_json(text) == history
    assert History.model_validate(json.loads(text)) == history
    assert History.model_validate(history.model_dump(mode="json")) == history
    assert History.model_validate(history.model_dump()) == history


@given(strategies.messages(*Role))
def test_several_round_trips_change_nothing_more(message: Message) -> None:
    text = message.model_dump_json()
    for _ in range(3):
        message = Message.model_validate_json(text)
        assert message.model_dump_json() == text


@given(
    st.text(st.characters(codec=None), max_size=20) | st.lists(st.sampled_from("\ud83d\ude00a")).map("".join)
)
def test_any_text_makes_the_round_trip_through_json(text: str) -> None:
    part = ContentPartText(text=text, metadata={text: text})
    assert ContentPartText.model_validate_json(part.model_dump_json()) == part


def test_halves_of_a_character_are_joined_and_lone_ones_replaced() -> None:
    text = json.loads('"a\\ud83d\\ude00b\\ud83dc\\ude00"')
    assert join_surrogates("a\ud83d" + "\ude00") == "a😀"
    assert ContentPartText(text=text).text == "a😀b\ufffdc\ufffd"
    assert ContentPartData(data={text: [text]}).data == {"a😀b\ufffdc\ufffd": ["a😀b\ufffdc\ufffd"]}


def test_messages_are_equal_by_value() -> None:
    def make() -> Message:
        call = ContentPartToolCall(id="c", name="f", arguments={"a": [1, {"b": None}]})
        return Message(role=Role.MODEL, content=(ContentPartText(text="hi"), call), metadata={"k": [1]})

    assert make() == make()
    assert make() != make().model_copy(update={"metadata": {}})
    assert Message(role=Role.USER) != Message(role=Role.MODEL)
    assert ContentPartText(text="x") != ContentPartReasoning(text="x")
    assert Message(role=Role.USER, content=(ContentPartText(text="a"), ContentPartText(text="b"))) != Message(
        role=Role.USER, content=(ContentPartText(text="b"), ContentPartText(text="a"))
    )


@pytest.mark.parametrize("part", [part for part, _ in PARTS])
def test_parts_are_frozen(part: ContentPart) -> None:
    for field in type(part).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, field, getattr(part, field))


def test_messages_and_histories_are_frozen() -> None:
    message = Message(role=Role.USER)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(message, "content", ())  # noqa: B010
    with pytest.raises(ValidationError, match="frozen"):
        setattr(History(), "context", "x")  # noqa: B010


def test_a_message_does_not_change_with_the_objects_it_was_made_from() -> None:
    arguments: dict[str, Any] = {"a": {"b": [1]}}
    metadata: dict[str, Any] = {"k": {"l": 1}}
    message = Message(
        role=Role.MODEL,
        content=(ContentPartToolCall(id="c", name="f", arguments=arguments),),
        metadata=metadata,
    )
    text = message.model_dump_json()
    arguments["a"]["b"].append(2)
    metadata["k"]["l"] = 2
    assert message.model_dump_json() == text


def test_two_messages_do_not_share_their_defaults() -> None:
    first, second = ContentPartText(text="a"), ContentPartText(text="b")
    first.metadata["k"] = 1
    assert second.metadata == {}


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", b""),
        ("AA==", b"\0"),
        ("AA", b"\0"),
        ("+/8=", b"\xfb\xff"),
        ("-_8=", b"\xfb\xff"),
        ("-_8", b"\xfb\xff"),
        ("aGk=", b"hi"),
    ],
)
def test_base64_is_taken_in_both_alphabets_with_and_without_padding(text: str, data: bytes) -> None:
    part = ContentPartFile.model_validate({"data": text})
    assert part.data == data
    assert ContentPartFile.model_validate_json(json.dumps({"data": text})) == part


@pytest.mark.parametrize("text", ["A", "AAAAA", "a b=", "aGk=aGk=", "aGk\n", "é", "aGk*", "a=Gk"])
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        ContentPartFile.model_validate({"data": text})


@given(st.binary(max_size=100))
def test_any_bytes_make_the_round_trip_as_base64(data: bytes) -> None:
    part = ContentPartFile(data=data)
    assert ContentPartFile.model_validate_json(part.model_dump_json()) == part


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(ValidationError):
        ContentPartFile(url="")


@pytest.mark.parametrize("fields", [{}, {"data": None}, {"data": "AA==", "url": "https://example.com"}])
def test_a_file_has_exactly_one_source(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly one of data and url"):
        ContentPartFile.model_validate(fields)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_json_is_kept_down_to_a_stated_depth_in_a_whole_history() -> None:
    part = ContentPartData(data=nested(MAX_DEPTH), metadata={"a": nested(MAX_DEPTH - 1)})
    history = History(conversation=(Message(role=Role.USER, content=(part,)),))
    assert History.model_validate_json(history.model_dump_json()) == history
    with pytest.raises(ValidationError, match=f"nested deeper than {MAX_DEPTH} levels"):
        ContentPartData(data=nested(MAX_DEPTH + 1))
    with pytest.raises(ValidationError, match="nested deeper"):
        Message(role=Role.USER, metadata={"a": nested(MAX_DEPTH)})


def test_a_value_that_holds_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValidationError, match="nested deeper"):
        ContentPartData(data=circle)


@pytest.mark.parametrize("value", [b"x", {1, 2}, {1: 2}, object(), Role])
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a JSON|not text"):
        json_value([value])
    with pytest.raises(ValidationError):
        ContentPartData(data={"a": value})
    with pytest.raises(ValidationError):
        ContentPartToolResult(id="c", name="f", output=value)
    with pytest.raises(ValidationError):
        ContentPartToolCall(id="c", name="f", arguments={"a": value})


def test_numbers_that_are_not_finite_are_null() -> None:
    values = json.loads("[NaN, Infinity, -Infinity, 1e999, 0.5]")
    assert json_value(values) == [None, None, None, None, 0.5]
    assert Message(role=Role.MODEL, metadata={"logprobs": values}).metadata == {
        "logprobs": [None] * 4 + [0.5]
    }


def test_arguments_that_nest_too_deep_are_kept_as_text() -> None:
    call = ContentPartToolCall(id="c", name="f", arguments={"a": nested(MAX_DEPTH)})
    assert call.arguments == {}
    assert json.loads(call.arguments_text or "") == {"a": nested(MAX_DEPTH)}
    assert call.arguments_error == f"nested deeper than {MAX_DEPTH} levels"
    assert ContentPartToolCall.model_validate_json(call.model_dump_json()) == call
    as_written = ContentPartToolCall(id="c", name="f", arguments={"a": nested(99)}, arguments_text="raw")
    assert as_written.arguments_text == "raw"


def test_tuples_are_json_arrays() -> None:
    assert ContentPartData(data=(1, (2,))).data == [1, [2]]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "unknown", "text": "x"},
        {"text": "x"},
        {"type": "text"},
        {"type": "text", "text": "x", "colour": "red"},
        {"type": "text", "text": 1},
        {"type": "tool_call", "id": "c", "name": "f", "arguments": "{}"},
        {"type": "tool_call", "id": "c"},
    ],
)
def test_an_unknown_or_incomplete_part_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", "content": [part]})


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "agent", "content": []})


def test_a_system_message_is_not_part_of_the_conversation() -> None:
    with pytest.raises(ValidationError, match=r"History\.system_message"):
        History(conversation=(Message(role=Role.SYSTEM),))


def test_the_views_of_a_message_keep_the_order() -> None:
    call_a, call_b = (ContentPartToolCall(id=name, name=name) for name in "ab")
    result = ContentPartToolResult(id="a", name="a", output=1)
    message = Message(
        role=Role.MODEL,
        content=(
            ContentPartReasoning(text="x"),
            ContentPartText(text="1"),
            call_a,
            ContentPartReasoning(text="y"),
            ContentPartText(text="2"),
            result,
            call_b,
        ),
    )
    assert message.text == "12"
    assert message.reasoning == "xy"
    assert message.tool_calls == (call_a, call_b)
    assert message.tool_results == (result,)
    empty = Message(role=Role.USER)
    assert (empty.text, empty.reasoning, empty.tool_calls, empty.tool_results) == ("", "", (), ())


def test_with_message_leaves_the_history_as_it_is() -> None:
    first, second, third = (Message(role=Role.USER, metadata={"n": n}) for n in range(3))
    history = History(system_message="s", context="c", conversation=(first,))
    longer = history.with_message(second, third)
    assert history.conversation == (first,)
    assert longer == History(system_message="s", context="c", conversation=(first, second, third))
    with pytest.raises(ValidationError):
        history.with_message(Message(role=Role.SYSTEM))


@pytest.mark.parametrize("size", [10, 299, 300, 5_000])
def test_an_error_message_keeps_its_statement_beside_a_long_id(size: int) -> None:
    word = "x" * size
    shown = word if size < 300 else f"{word[:100]}…"
    assert clipped(f"No task '{word}'") == f"No task '{shown}'"
    assert clipped(f"Task '{word}' or {word} not found.") == f"Task '{shown}' or {shown} not found."


def test_an_error_message_of_many_words_is_truncated() -> None:
    text = "word " * MAX_MESSAGE_LENGTH
    assert clipped(text) == f"{text[:MAX_MESSAGE_LENGTH]}…"
    assert clipped(text, 10) == "word word …"
    assert clipped("x" * 1_000_000) == "x" * 100 + "…"
