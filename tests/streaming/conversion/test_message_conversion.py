"""A2A messages as OpenAI messages and in the common format, and the round trip."""

import json
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from support import strategies
from tailrace.streaming.a2a import Message as A2AMessage
from tailrace.streaming.a2a import Part
from tailrace.streaming.a2a import Role as A2ARole
from tailrace.streaming.a2a.stream_extension import (
    EXTENSION_URI,
    extension_metadata,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.conversion.message_conversion import (
    convert_a2a_message_to_openai,
    to_a2a_message,
    to_common_message,
)
from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
    Role,
)
from tailrace.wrappers.messages import MAX_DEPTH


def message(role: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(parts), **fields}


def data(**entries: Any) -> dict[str, Any]:
    return {"kind": "data", "data": entries}


def result(output: Any, call_id: str = "c", **fields: Any) -> dict[str, Any]:
    return {"call_id": call_id, "name": "f", "output": output, **fields}


USER_TEXT = message("user", {"kind": "text", "text": "What's the weather?"})
USER_TEXT_SENT = {"role": "user", "content": "What's the weather?"}
AGENT_CALLS = message(
    "agent", data(tool_calls=[{"call_id": "a", "name": "f", "arguments": {"at": "Oakland"}}])
)
FUNCTION_SENT = {"name": "f", "arguments": '{"at": "Oakland"}'}
AGENT_CALLS_SENT = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "a", "type": "function", "function": FUNCTION_SENT}],
}
USER_RESULTS = message("user", data(tool_results=[result("Sunny, 72°F", "a")]))
RESULT_SENT = {"role": "tool", "tool_call_id": "a", "content": "Sunny, 72°F"}


# --- the mapping to Chat Completions; its table and examples are in `tests/origins` ------------------------------


def test_each_tool_result_is_a_message() -> None:
    parts = [data(tool_results=[result("1", "a"), result("2", "b")]), data(tool_results=[result("3", "c")])]
    assert convert_a2a_message_to_openai(message("user", *parts)) == (
        None,
        [
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ],
    )


def test_a_message_of_results_and_text_gives_both() -> None:
    mixed = message(
        "user", {"kind": "text", "text": "Here:"}, *USER_RESULTS["parts"], {"kind": "text", "text": "OK?"}
    )
    assert convert_a2a_message_to_openai(mixed) == (
        {"role": "user", "content": [{"type": "text", "text": "Here:"}, {"type": "text", "text": "OK?"}]},
        [RESULT_SENT],
    )


def test_a_message_of_text_and_calls_is_one_message() -> None:
    mixed = message("agent", {"kind": "text", "text": "Let me see."}, *AGENT_CALLS["parts"])
    assert convert_a2a_message_to_openai(mixed) == ({**AGENT_CALLS_SENT, "content": "Let me see."}, [])


def test_an_agents_calls_and_results_give_both() -> None:
    mixed = message("agent", *AGENT_CALLS["parts"], *USER_RESULTS["parts"])
    assert convert_a2a_message_to_openai(mixed) == (AGENT_CALLS_SENT, [RESULT_SENT])
    assert convert_a2a_message_to_openai(message("agent", *USER_RESULTS["parts"])) == (None, [RESULT_SENT])


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ("", ""),
        ("{}", "{}"),
        ({"temp": 72, "unit": "°F"}, '{"temp": 72, "unit": "°F"}'),
        ([1, 2], "[1, 2]"),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
    ],
)
def test_an_output_that_is_not_text_is_sent_as_json(output: Any, content: str) -> None:
    _, (sent,) = convert_a2a_message_to_openai(message("user", data(tool_results=[result(output)])))
    assert sent["content"] == content


def test_a_failed_tool_is_sent_as_an_error() -> None:
    _, (sent,) = convert_a2a_message_to_openai(
        message("user", data(tool_results=[result("x", is_error=True)]))
    )
    assert sent["content"] == '{"error": "x"}'


@pytest.mark.parametrize(
    ("role", "expected"),
    [("user", {"role": "user", "content": ""}), ("agent", {"role": "assistant", "content": ""})],
)
def test_a_message_without_content_has_empty_text(role: str, expected: dict[str, Any]) -> None:
    assert convert_a2a_message_to_openai(message(role)) == (expected, [])
    reasoning = {"text": "hm", "metadata": {EXTENSION_URI: {"channel": "reasoning"}}}
    assert convert_a2a_message_to_openai(message(role, reasoning)) == (expected, [])


def test_other_data_is_sent_as_text() -> None:
    sent, _ = convert_a2a_message_to_openai(
        message("user", {"text": "Use this:"}, {"data": {"depth": [1, None]}})
    )
    assert sent == {
        "role": "user",
        "content": [{"type": "text", "text": "Use this:"}, {"type": "text", "text": '{"depth":[1,null]}'}],
    }


def test_files_are_sent_as_parts() -> None:
    image = {"kind": "file", "file": {"bytes": "iVBORw==", "mimeType": "image/png", "name": "a.png"}}
    sent, _ = convert_a2a_message_to_openai(message("user", {"kind": "text", "text": "What?"}, image))
    assert sent == {
        "role": "user",
        "content": [
            {"type": "text", "text": "What?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        ],
    }


def test_tool_calls_of_a_user_are_refused() -> None:
    with pytest.raises(ValueError, match="the tool call 'a' is in a message of role user"):
        convert_a2a_message_to_openai({**AGENT_CALLS, "role": "user"})


# --- the forms of an A2A message --------------------------------------------------------------------------------


@dataclass
class Record:
    """Like the messages of `A2ATaskBridge`: a role and parts that are dicts."""

    role: str
    parts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class SnakeCase(BaseModel):
    """Like the official SDK's classes for 0.3: pydantic, snake_case, with null where nothing is set."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="allow")


def forms() -> list[Any]:
    text = "What's the weather?"
    return [
        USER_TEXT,
        message("user", {"type": "text", "text": text}),
        message("ROLE_USER", {"text": text}, messageId="m1"),
        message("ROLE_USER", {"text": text, "raw": None, "url": None, "data": None, "mediaType": "text/plain"}),
        message("user", {"kind": "text", "text": text, "metadata": None}, kind="message", messageId="m1", metadata=None),
        {"role": 1, "parts": ({"text": text},)},
        A2AMessage(message_id="m1", role=A2ARole.USER, parts=(Part(text=text),)),
        message("ROLE_USER", Part(text=text)),
        Record("user", [{"type": "text", "text": text}]),
        SimpleNamespace(role="user", parts=[SimpleNamespace(kind="text", text=text)], metadata=None),
        SnakeCase.model_validate(
            {"role": "user", "kind": "message", "parts": [SnakeCase.model_validate({"kind": "text", "text": text})]}
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("form", forms())
def test_a_message_is_read_in_every_form(form: Any) -> None:
    assert convert_a2a_message_to_openai(form) == (USER_TEXT_SENT, [])
    assert to_common_message(form) == Message(
        role=Role.USER, content=(ContentPartText(text="What's the weather?"),)
    )


@pytest.mark.parametrize("role", ["agent", "ROLE_AGENT", 2])
def test_agents_are_models(role: object) -> None:
    assert to_common_message({"role": role, "parts": [{"text": "hi"}]}).role is Role.MODEL


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"raw": "AAE", "mediaType": "image/png", "filename": "a.png"}, ContentPartFile(data=b"\0\1", media_type="image/png", filename="a.png")),
        ({"raw": "AAE=", "media_type": "image/png"}, ContentPartFile(data=b"\0\1", media_type="image/png")),
        ({"url": "https://example.com"}, ContentPartFile(url="https://example.com")),
        ({"data": None}, ContentPartData(data=None)),
        ({"data": [1]}, ContentPartData(data=[1])),
        ({"text": "", "metadata": {"k": 1}}, ContentPartText(text="", metadata={"k": 1})),
        ({"kind": "file", "file": {"bytes": "AAE=", "mimeType": "image/png", "name": "a.png"}}, ContentPartFile(data=b"\0\1", media_type="image/png", filename="a.png")),
        ({"kind": "file", "file": {"uri": "https://example.com", "name": None}}, ContentPartFile(url="https://example.com")),
        ({"type": "file", "file": {"url": "https://example.com", "mime_type": "a/b"}}, ContentPartFile(url="https://example.com", media_type="a/b")),
        ({"kind": "data", "data": {"a": None}, "metadata": {"k": 1}}, ContentPartData(data={"a": None}, metadata={"k": 1})),
        ({"type": "data", "data": None}, ContentPartData(data=None)),
        ({"data": {"tool_calls": "none"}}, ContentPartData(data={"tool_calls": "none"})),
    ],
)  # fmt: skip
def test_a_part_is_read_in_every_form(part: dict[str, Any], expected: Any) -> None:
    assert to_common_message(message("user", part)).content == (expected,)


def test_calls_and_results_with_few_fields_are_read() -> None:
    calls = [{"call_id": "1", "name": "f"}, {"call_id": "2", "name": "f", "arguments": None}]
    assert to_common_message(message("agent", data(tool_calls=calls))).content == (
        ContentPartToolCall(id="1", name="f"),
        ContentPartToolCall(id="2", name="f"),
    )
    received = to_common_message(message("user", data(tool_results=[{"call_id": "1"}])))
    assert received == Message(role=Role.TOOL, content=(ContentPartToolResult(id="1", name="unknown"),))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', ContentPartToolCall(id="c", name="f", arguments={"a": 1})),
        ("", ContentPartToolCall(id="c", name="f")),
        ("[1]", ContentPartToolCall(id="c", name="f", arguments_text="[1]")),
        ([1, "é"], ContentPartToolCall(id="c", name="f", arguments_text='[1, "é"]')),
        ([], ContentPartToolCall(id="c", name="f", arguments_text="[]")),
        (0, ContentPartToolCall(id="c", name="f", arguments_text="0")),
    ],
)
def test_arguments_are_also_taken_as_text_or_any_json(arguments: Any, expected: ContentPartToolCall) -> None:
    call = {"call_id": "c", "name": "f", "arguments": arguments}
    assert to_common_message(message("agent", data(tool_calls=[call]))).content == (expected,)


REFUSED: list[tuple[Any, str]] = [
    ({"parts": []}, "the role None"),
    (message("assistant"), "the role 'assistant'"),
    (message(["user"]), "the role"),  # type: ignore[arg-type]
    ({"role": "user"}, "a list of parts"),
    ({"role": "user", "parts": "hi"}, "a list of parts"),
    (message("user", {"text": "a"}, {}), "part 1: "),
    (message("user", {"text": "a", "url": "https://example.com"}), "part 0: "),
    (message("user", {"kind": "text"}), "part 0: a part of kind 'text'"),
    (message("user", {"kind": "video"}), "part 0: a part of kind 'video'"),
    (message("user", {"kind": "file", "file": {}}), "part 0: "),
    (message("user", {"kind": "file", "file": {"bytes": "*"}}), "part 0: "),
    (message("agent", data(tool_calls=[{"name": "f"}])), "part 0: tool_calls[0] has no call_id"),
    (message("agent", data(tool_calls=[{"call_id": "c"}])), "part 0: tool_calls[0] has no name"),
    (message("agent", data(tool_calls=["f"])), "part 0: tool_calls[0] has no call_id"),
    (message("user", data(tool_results=[result(1), {}])), "part 0: tool_results[1] has no call_id"),
    (message("user", data(tool_results=[result(1, name=1)])), "part 0: "),
    (message("user", {"data": json.loads("[" * 36 + "]" * 36)}), "part 0: "),
]


@pytest.mark.parametrize(("wrong", "complaint"), REFUSED)
def test_what_is_not_an_a2a_message_is_refused(wrong: Any, complaint: str) -> None:
    for convert in (to_common_message, convert_a2a_message_to_openai):
        with pytest.raises(ValueError, match=re.escape(complaint)):
            convert(wrong)


@pytest.mark.parametrize("wrong", [None, 1, "hi", ["hi"], message("user", "hi"), message("user", None)])
def test_what_has_no_fields_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a dict or an object with fields"):
        to_common_message(wrong)


# --- the common format to A2A and back --------------------------------------------------------------------------


def to_json(common: Message) -> dict[str, Any]:
    """The parts, metadata and extensions of the A2A message in their wire format."""
    sent = to_a2a_message(common, message_id="m1").to_dict()
    assert sent.pop("messageId") == "m1"
    return sent


CALL = ContentPartToolCall(id="1", name="f", arguments={"a": 1})
RESULT = ContentPartToolResult(id="1", name="f", output=[1])


def test_a_models_answer_in_a2a() -> None:
    common = Message(
        role=Role.MODEL,
        content=(
            ContentPartReasoning(text="hm", signature="s", metadata={"id": "r"}),
            ContentPartText(text="hi", metadata={"k": 1}),
            CALL,
            ContentPartToolCall(
                id="2", name="g", arguments_text="x", kind="custom", synthetic_id=True, metadata={"k": 1}
            ),
            ContentPartFile(data=b"\0", media_type="image/png", filename="a.png"),
            ContentPartFile(url="https://example.com"),
            ContentPartData(data={"depth": 1}),
        ),
        metadata={"finish_reason": "stop"},
    )
    assert to_json(common) == {
        "role": "ROLE_AGENT",
        "parts": [
            {
                "text": "hm",
                "metadata": {"id": "r", EXTENSION_URI: {"channel": "reasoning", "signature": "s"}},
            },
            {"text": "hi", "metadata": {"k": 1}},
            {
                "data": {
                    "tool_calls": [
                        {"call_id": "1", "name": "f", "arguments": {"a": 1}},
                        {
                            "call_id": "2",
                            "name": "g",
                            "arguments": {},
                            "arguments_text": "x",
                            "kind": "custom",
                            "synthetic_id": True,
                            "metadata": {"k": 1},
                        },
                    ]
                }
            },
            {"raw": "AA==", "mediaType": "image/png", "filename": "a.png"},
            {"url": "https://example.com"},
            {"data": {"depth": 1}},
        ],
        "metadata": {EXTENSION_URI: {"finishReason": "stop"}},
        "extensions": [EXTENSION_URI],
    }


def test_the_metadata_of_a_response_is_under_the_extension() -> None:
    metadata = {
        "refusal": "no",
        "finish_reason": "stop",
        "extra": {"audio": {"id": "a"}, "annotations": [{"url_citation": {"url": "u"}}]},
    }
    common = Message(role=Role.MODEL, content=(ContentPartText(text="hi"),), metadata=metadata)
    sent = to_json(common)
    assert sent["metadata"] == {
        "refusal": "no",
        EXTENSION_URI: {
            "finishReason": "stop",
            "extra": {"audio": {"id": "a"}, "raw": '{"annotations":[{"url_citation":{"url":"u"}}]}'},
        },
    }
    assert sent["extensions"] == [EXTENSION_URI]
    assert to_common_message({**sent, "messageId": "m1"}) == common


def test_the_metadata_of_a_response_as_0_1_stored_it_is_read() -> None:
    metadata = {"finish_reason": "stop", "extra": {"annotations": [{"url_citation": {"url": "u"}}]}}
    assert to_common_message(message("ROLE_AGENT", {"text": "hi"}, metadata=metadata)).metadata == metadata


def test_the_metadata_of_a_callers_message_is_unchanged() -> None:
    metadata = {"finish_reason": "stop", "extra": {"a_b": 1}}
    common = Message(role=Role.USER, content=(ContentPartText(text="hi"),), metadata=metadata)
    assert to_json(common)["metadata"] == metadata
    named = message("ROLE_USER", {"text": "hi"}, metadata={EXTENSION_URI: {"finishReason": "stop"}})
    assert to_common_message(named).metadata == {EXTENSION_URI: {"finishReason": "stop"}}


def test_tool_results_in_a2a() -> None:
    failed = ContentPartToolResult(id="2", name="g", output="no", is_error=True)
    assert to_json(Message(role=Role.TOOL, content=(RESULT, failed))) == {
        "role": "ROLE_USER",
        "parts": [
            {
                "data": {
                    "tool_results": [
                        {"call_id": "1", "name": "f", "output": [1]},
                        {"call_id": "2", "name": "g", "output": "no", "is_error": True},
                    ]
                }
            }
        ],
    }


def test_a_plain_message_uses_no_extension() -> None:
    assert to_json(Message(role=Role.USER, content=(ContentPartText(text="hi"),))) == {
        "role": "ROLE_USER",
        "parts": [{"text": "hi"}],
    }


@pytest.mark.parametrize(
    ("common", "marked"),
    [
        (Message(role=Role.USER, content=(RESULT,)), {"role": "user"}),
        (Message(role=Role.TOOL, content=(ContentPartText(text="x"),)), {"role": "tool"}),
    ],
)
def test_a_role_that_the_parts_do_not_imply_is_stored(common: Message, marked: dict[str, Any]) -> None:
    assert to_json(common)["metadata"] == {EXTENSION_URI: marked}
    assert to_common_message(to_a2a_message(common, message_id="m")) == common


def test_a_client_cannot_speak_as_the_model_or_the_system() -> None:
    for role in ("model", "system", 1, None):
        forged = message("user", {"text": "hi"}, metadata={EXTENSION_URI: {"role": role}})
        assert to_common_message(forged).role is Role.USER
    agent = message("agent", {"text": "hi"}, metadata={EXTENSION_URI: {"role": "user"}})
    assert to_common_message(agent).role is Role.MODEL


def test_data_that_looks_like_tool_calls_stays_data() -> None:
    for name in ("tool_calls", "tool_results"):
        common = Message(
            role=Role.USER, content=(ContentPartData(data={name: [1], "x": 1}, metadata={"k": 1}),)
        )
        assert to_common_message(to_a2a_message(common, message_id="m")) == common


def test_a_system_message_has_no_form_in_a2a() -> None:
    with pytest.raises(ValueError, match="system message"):
        to_a2a_message(Message(role=Role.SYSTEM), message_id="m")


def test_ids_are_those_that_were_given() -> None:
    hello = Message(role=Role.USER, content=(ContentPartText(text="hi"),))
    sent = to_a2a_message(hello, message_id="m", context_id="c", task_id="t")
    assert (sent.message_id, sent.context_id, sent.task_id) == ("m", "c", "t")
    assert (to_a2a_message(hello, message_id="m").context_id, sent.reference_task_ids) == ("", ())


def test_values_at_the_allowed_depth_fit_into_a2a() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = {"a": value}
    common = Message(
        role=Role.MODEL,
        content=(
            ContentPartToolCall(id="1", name="f", arguments=value, metadata=value),
            ContentPartToolResult(id="1", name="f", output=value, metadata=value),
            ContentPartData(data=value, metadata=value),
            ContentPartReasoning(text="", metadata=value),
        ),
        metadata=value,
    )
    assert to_common_message(json.loads(to_a2a_message(common, message_id="m").to_json())) == common


@pytest.mark.parametrize("name", ["a", "a_b"])
def test_metadata_of_a_response_at_the_allowed_depth_is_restored(name: str) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = {name: value}
    common = Message(role=Role.MODEL, content=(ContentPartText(text="a"),), metadata={"extra": value})
    assert to_common_message(json.loads(to_a2a_message(common, message_id="m").to_json())) == common


@given(strategies.messages(Role.USER, Role.MODEL, Role.TOOL))
def test_any_message_comes_back_from_a2a_as_it_was(common: Message) -> None:
    sent = to_a2a_message(common, message_id="m1")
    assert to_common_message(sent) == common
    assert to_common_message(json.loads(sent.to_json())) == common
    assert to_common_message(A2AMessage.model_validate_json(sent.to_json())) == common


@given(
    st.lists(strategies.data_parts | strategies.tool_calls | strategies.tool_results, max_size=6).map(tuple),
    st.sampled_from([Role.USER, Role.MODEL, Role.TOOL]),
)
def test_the_order_of_calls_results_and_data_is_kept(content: Any, role: Role) -> None:
    common = Message(role=role, content=content)
    assert to_common_message(to_a2a_message(common, message_id="m1")).content == content


# --- the extension's facts --------------------------------------------------------------------------------------


def test_facts_stand_under_the_extensions_uri_beside_other_metadata() -> None:
    metadata = with_extension_metadata({"k": 1}, channel="reasoning")
    assert metadata == {"k": 1, "urn:tailrace:ext:stream:v1": {"channel": "reasoning"}}
    more = with_extension_metadata(metadata, signature="s")
    assert extension_metadata(more) == {"channel": "reasoning", "signature": "s"}
    assert without_extension_metadata(more, "signature") == metadata
    assert without_extension_metadata(more, "signature", "channel", "other") == {"k": 1}
    assert extension_metadata(metadata) == {"channel": "reasoning"}


@pytest.mark.parametrize(
    "metadata", [{}, {"k": 1}, {EXTENSION_URI: None}, {EXTENSION_URI: "x"}, {EXTENSION_URI: [1]}]
)
def test_facts_that_are_not_an_object_are_none(metadata: dict[str, Any]) -> None:
    assert extension_metadata(metadata) == {}
