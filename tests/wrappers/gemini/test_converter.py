"""The Gemini converter: each row of its tables in both directions, the round trip, and each documented loss."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from support.messages import model, tool, user
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
from tailrace.wrappers.gemini import GeminiConverter
from tailrace.wrappers.gemini.converter import DUMMY_SIGNATURE, OPENING

converter = GeminiConverter()

Fields = dict[str, Any]
say = ContentPartText


def sent(*messages: Message) -> list[Fields]:
    """The contents of the request for a conversation."""
    return converter.from_history(History(conversation=messages))


def received(*contents: Mapping[str, Any]) -> tuple[Message, ...]:
    return converter.to_history(contents).conversation


def signed(signature: str, **more: Any) -> Fields:
    return {"gemini": {"thoughtSignature": signature, **more}}


CALL = ContentPartToolCall(
    id="c1", name="get_weather", arguments={"city": "Oakland"}, metadata=signed("c2lnY2Fs")
)
CALL_PART = {
    "thoughtSignature": "c2lnY2Fs",
    "functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Oakland"}},
}
RESULT = ContentPartToolResult(id="c1", name="get_weather", output={"sky": "clear"})
RESULT_PART = {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"sky": "clear"}}}
HI = {"role": "user", "parts": [{"text": "hi"}]}

# Messages in the common format and the contents of the request, converted both ways.
ROWS: dict[str, tuple[tuple[Message, ...], list[Fields]]] = {
    "user text in several parts": (
        (user(say(text="a"), say(text="b")),),
        [{"role": "user", "parts": [{"text": "a"}, {"text": "b"}]}],
    ),
    "files": (
        (
            user(
                ContentPartFile(data=b"\x89PNG", media_type="image/png"),
                ContentPartFile(url="https://example.com/a", media_type="application/pdf"),
                ContentPartFile(url="gs://bucket/a"),
            ),
        ),
        [
            {
                "role": "user",
                "parts": [
                    {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
                    {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.com/a"}},
                    {"fileData": {"fileUri": "gs://bucket/a"}},
                ],
            }
        ],
    ),
    "fields of Gemini's own": (
        (
            user(
                say(text="a", metadata={"gemini": {"partMetadata": {"k": 1}}}),
                ContentPartFile(
                    data=b"",
                    media_type="video/mp4",
                    filename="a.mp4",
                    metadata={
                        "gemini": {"inlineData": {"displayName": "a.mp4"}, "videoMetadata": {"fps": 2}}
                    },
                ),
            ),
        ),
        [
            {
                "role": "user",
                "parts": [
                    {"partMetadata": {"k": 1}, "text": "a"},
                    {
                        "inlineData": {"displayName": "a.mp4", "mimeType": "video/mp4", "data": ""},
                        "videoMetadata": {"fps": 2},
                    },
                ],
            }
        ],
    ),
    "signatures on text, on nothing, on a thought and on a file": (
        (
            user(say(text="hi")),
            model(
                ContentPartReasoning(text="hm", metadata=signed("c2kw")),
                say(text="a"),
                say(text="b", metadata=signed("c2kx")),
                say(text="c"),
                say(text="", metadata=signed("c2ky")),
                ContentPartFile(data=b"x", media_type="image/png", metadata=signed("c2kz")),
            ),
        ),
        [
            HI,
            {
                "role": "model",
                "parts": [
                    {"thoughtSignature": "c2kw", "text": "hm", "thought": True},
                    {"text": "a"},
                    {"thoughtSignature": "c2kx", "text": "b"},
                    {"text": "c"},
                    {"thoughtSignature": "c2ky", "text": ""},
                    {"thoughtSignature": "c2kz", "inlineData": {"mimeType": "image/png", "data": "eA=="}},
                ],
            },
        ],
    ),
    "a round of tools": (
        (
            user(say(text="hi")),
            model(CALL, ContentPartToolCall(id="c2", name="now")),
            tool(RESULT, ContentPartToolResult(id="c2", name="now", output="noon")),
            model(say(text="Clear.")),
        ),
        [
            HI,
            {"role": "model", "parts": [CALL_PART, {"functionCall": {"id": "c2", "name": "now", "args": {}}}]},
            {
                "role": "user",
                "parts": [
                    RESULT_PART,
                    {"functionResponse": {"id": "c2", "name": "now", "response": {"output": "noon"}}},
                ],
            },
            {"role": "model", "parts": [{"text": "Clear."}]},
        ],
    ),
    "outputs of every kind": (
        (
            user(say(text="hi")),
            model(*(ContentPartToolCall(id=f"c{n}", name="f", metadata=signed("c2ln")) for n in range(6))),
            tool(
                ContentPartToolResult(id="c0", name="f", output=None),
                ContentPartToolResult(id="c1", name="f", output=[1]),
                ContentPartToolResult(id="c2", name="f", output={}),
                ContentPartToolResult(id="c3", name="f", output={"output": 1}),
                ContentPartToolResult(id="c4", name="f", output={"error": "found in the text"}),
                ContentPartToolResult(id="c5", name="f", output="no such city", is_error=True),
            ),
        ),
        [
            HI,
            {
                "role": "model",
                "parts": [
                    {"thoughtSignature": "c2ln", "functionCall": {"id": f"c{n}", "name": "f", "args": {}}}
                    for n in range(6)
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": f"c{n}", "name": "f", "response": response}}
                    for n, response in enumerate(
                        [
                            {"output": None},
                            {"output": [1]},
                            {},
                            {"output": {"output": 1}},
                            {"output": {"error": "found in the text"}},
                            {"error": "no such city"},
                        ]
                    )
                ],
            },
        ],
    ),
    "tools run by Google": (
        (
            user(say(text="hi")),
            model(
                ContentPartToolCall(
                    id="e1",
                    name="code_execution",
                    kind="server",
                    arguments={"language": "PYTHON", "code": "1+1"},
                    metadata={"gemini": {"executableCode": {"id": "e1"}}},
                ),
                ContentPartToolResult(
                    id="e1",
                    name="code_execution",
                    output="2",
                    metadata={
                        "gemini": {"codeExecutionResult": {"outcome": "OUTCOME_OK", "id": "e1"}} | signed("c2ln")["gemini"]
                    },
                ),
                ContentPartToolCall(
                    id="t1",
                    name="GOOGLE_SEARCH_WEB",
                    kind="server",
                    arguments={"q": "x"},
                    metadata={"gemini": {"toolCall": {"id": "t1"}}},
                ),
                ContentPartToolResult(
                    id="t1",
                    name="GOOGLE_SEARCH_WEB",
                    output={"hits": []},
                    metadata={"gemini": {"toolResponse": {"id": "t1"}}},
                ),
            ),
        ),
        [
            HI,
            {
                "role": "model",
                "parts": [
                    {"executableCode": {"id": "e1", "language": "PYTHON", "code": "1+1"}},
                    {
                        "codeExecutionResult": {"outcome": "OUTCOME_OK", "id": "e1", "output": "2"},
                        "thoughtSignature": "c2ln",
                    },
                    {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"q": "x"}}},
                    {
                        "toolResponse": {
                            "id": "t1",
                            "toolType": "GOOGLE_SEARCH_WEB",
                            "response": {"hits": []},
                        }
                    },
                ],
            },
        ],
    ),
    "a part of unknown kind": (
        (user(ContentPartData(data={"hologram": {"w": 1}}, metadata={"gemini": {"part": True}})),),
        [{"role": "user", "parts": [{"hologram": {"w": 1}}]}],
    ),
    "results and text of one turn": (
        (user(say(text="hi")), model(CALL), tool(RESULT), user(say(text="and?"))),
        [
            HI,
            {"role": "model", "parts": [CALL_PART]},
            {"role": "user", "parts": [RESULT_PART, {"text": "and?"}]},
        ],
    ),
    "an id that the provider never sent": (
        (
            user(say(text="hi")),
            model(ContentPartToolCall(id="call_0", name="f", synthetic_id=True, metadata=signed("c2ln"))),
            tool(ContentPartToolResult(id="call_0", name="f", output="1")),
        ),
        [
            HI,
            {
                "role": "model",
                "parts": [{"thoughtSignature": "c2ln", "functionCall": {"name": "f", "args": {}}}],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "1"}}}]},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    messages, contents = ROWS[name]
    assert sent(*messages) == contents
    assert received(*contents) == messages


@pytest.mark.parametrize("name", [name for name in ROWS if "unknown kind" not in name])
def test_what_is_sent_is_valid_by_the_packages_own_types_which_are_read_too(name: str) -> None:
    messages, contents = ROWS[name]
    checked = [types.Content.model_validate(content) for content in contents]
    assert converter.to_history(checked).conversation == messages


def test_the_packages_contents_equal_their_json() -> None:
    content = {
        "role": "model",
        "parts": [
            {"text": "a", "thoughtSignature": "+/+/"},
            {"inlineData": {"mimeType": "image/png", "data": "++//"}},
            {"functionCall": {"name": "f", "args": {"a": None}}},
        ],
    }
    assert converter.to_history([types.Content.model_validate(content)]) == converter.to_history([content])


def test_the_system_prompt_stands_apart() -> None:
    history = History(system_message="Be brief.", conversation=(user(say(text="hi")),))
    assert converter.from_history(history) == [HI]
    assert converter.system_instruction(history) == {"parts": [{"text": "Be brief."}]}
    assert converter.system_instruction(History()) is None
    assert converter.system_instruction(History(system_message="")) is None


@pytest.mark.parametrize(
    "system",
    [
        "Be brief.\n\nBe kind.",
        {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
        types.Content.model_validate({"parts": [{"text": "Be brief."}, {"text": "Be kind."}]}),
    ],
)
def test_the_system_prompt_is_read_in_every_form(system: Any) -> None:
    assert converter.to_history([HI], system) == History(
        system_message="Be brief.\n\nBe kind.", conversation=(user(say(text="hi")),)
    )


# --- Gemini's rules ---------------------------------------------------------------------------------------------


def test_the_first_call_of_a_foreign_message_has_the_dummy_signature() -> None:
    calls = [ContentPartToolCall(id=id_, name="f", metadata={"openai": {"x": 1}}) for id_ in "ab"]
    results = [ContentPartToolResult(id=id_, name="f", output="1") for id_ in "ab"]
    conversation = (user(say(text="hi")), model(say(text="see"), *calls), tool(*results))
    contents = sent(*conversation)
    assert contents[1]["parts"] == [
        {"text": "see"},
        {"functionCall": {"id": "a", "name": "f", "args": {}}, "thoughtSignature": DUMMY_SIGNATURE},
        {"functionCall": {"id": "b", "name": "f", "args": {}}},
    ]
    assert converter.to_history(
        [types.Content.model_validate(content) for content in contents]
    ) == converter.to_history(contents)
    plain = model(say(text="see"), *(call.model_copy(update={"metadata": {}}) for call in calls))
    assert received(*contents) == (conversation[0], plain, conversation[2])


def test_a_call_with_a_signature_of_its_own_gets_no_other() -> None:
    later = ContentPartToolCall(id="c2", name="f")
    first, second = sent(user(say(text="hi")), model(CALL, later))[1]["parts"]
    assert first["thoughtSignature"] == "c2lnY2Fs"
    assert "thoughtSignature" not in second


def test_signatures_of_other_providers_are_never_sent() -> None:
    foreign = {"anthropic": {"signature": "x"}, "extra_content": {"google": {"thought_signature": "y"}}}
    contents = sent(
        user(say(text="hi")),
        model(
            ContentPartReasoning(text="hm", signature="x", metadata=foreign), say(text="a", metadata=foreign)
        ),
    )
    assert contents[1]["parts"] == [{"text": "a"}]


def test_a_conversation_that_begins_with_the_model_gets_a_word_before_it() -> None:
    greeting = model(say(text="Hello, how can I help?"))
    contents = sent(greeting, user(say(text="hi")))
    assert [content["role"] for content in contents] == ["user", "model", "user"]
    assert contents[0]["parts"] == [{"text": OPENING}]
    assert received(*contents) == (greeting, user(say(text="hi")))


def test_results_go_out_in_the_order_of_their_calls() -> None:
    calls = [
        ContentPartToolCall(id=f"call_{n}", name="f", arguments={"n": n}, synthetic_id=True) for n in range(3)
    ]
    results = [ContentPartToolResult(id=f"call_{n}", name="f", output=n) for n in (2, 0, 1)]
    contents = sent(user(say(text="hi")), model(*calls), tool(*results))
    answers = [part["functionResponse"]["response"]["output"] for part in contents[2]["parts"]]
    assert answers == [0, 1, 2]
    assert [result.id for result in received(*contents)[2].tool_results] == ["call_0", "call_1", "call_2"]


def test_text_before_the_results_is_sent_after_them() -> None:
    contents = sent(user(say(text="hi")), model(CALL), user(say(text="hurry")), tool(RESULT))
    assert contents[2]["parts"] == [RESULT_PART, {"text": "hurry"}]


def test_an_unanswered_call_gets_an_answer_when_the_conversation_continues() -> None:
    contents = sent(user(say(text="hi")), model(CALL), user(say(text="never mind")))
    answer, words = contents[2]["parts"]
    assert answer["functionResponse"]["id"] == "c1"
    assert "error" in answer["functionResponse"]["response"]
    assert words == {"text": "never mind"}


def test_a_result_of_nothing_becomes_text() -> None:
    (content,) = sent(tool(RESULT))
    assert [set(part) for part in content["parts"]] == [{"text"}]


def test_a_conversation_from_another_provider_is_one_that_gemini_takes() -> None:
    contents = sent(
        model(say(text="Welcome.")),
        user(),
        user(ContentPartFile(url="openai-file:f1", filename="report.pdf"), say(text="")),
        model(
            ContentPartReasoning(text="hm", signature="sealed", metadata={"anthropic": {"type": "thinking"}}),
            ContentPartToolCall(id="srv", name="web_search", kind="server", arguments={"q": "x"}),
            ContentPartToolResult(id="srv", name="web_search", output=[]),
            ContentPartToolCall(id="toolu_1", name="sh", kind="custom", arguments_text="ls"),
        ),
        tool(ContentPartToolResult(id="toolu_1", name="sh", output="a b")),
    )
    assert contents == [
        {"role": "user", "parts": [{"text": OPENING}]},
        {"role": "model", "parts": [{"text": "Welcome."}]},
        {"role": "user", "parts": [{"text": "[report.pdf](openai-file:f1)"}]},
        {
            "role": "model",
            "parts": [
                {
                    "functionCall": {"id": "toolu_1", "name": "sh", "args": {"input": "ls"}},
                    "thoughtSignature": DUMMY_SIGNATURE,
                }
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"id": "toolu_1", "name": "sh", "response": {"output": "a b"}}}],
        },
    ]


def test_the_result_of_another_providers_tool_is_no_function_response() -> None:
    call = ContentPartToolCall(id="w", name="web", kind="server")
    contents = sent(
        user(say(text="hi")),
        model(call, CALL),
        tool(ContentPartToolResult(id="w", name="web", output="found"), RESULT),
    )
    assert [part for part in contents[2]["parts"] if "text" not in part] == [RESULT_PART]


# --- losses -----------------------------------------------------------------------------------------------------


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*sent(*messages))


# Each documented loss of a single message: the message before and after the round trip.
LOSSES: dict[str, tuple[Message, tuple[Message, ...]]] = {
    "an empty text is omitted": (user(say(text=""), say(text="a")), (user(say(text="a")),)),
    "an empty message is omitted": (user(), ()),
    "data becomes its JSON": (
        user(ContentPartData(data={"a": [1, "é"]})),
        (user(say(text='{"a":[1,"é"]}')),),
    ),
    "a file loses its name": (
        user(ContentPartFile(data=b"", media_type="image/png", filename="a.png")),
        (user(ContentPartFile(data=b"", media_type="image/png")),),
    ),
    "a file without a type gets that of its name": (
        user(ContentPartFile(data=b"", filename="a.png")),
        (user(ContentPartFile(data=b"", media_type="image/png")),),
    ),
    "a file without a type or a name is binary": (
        user(ContentPartFile(data=b"")),
        (user(ContentPartFile(data=b"", media_type="application/octet-stream")),),
    ),
    "a link loses a type that is a wildcard": (
        user(ContentPartFile(url="https://example.com/a", media_type="image/*")),
        (user(ContentPartFile(url="https://example.com/a")),),
    ),
    "a link that Gemini cannot fetch is named in text": (
        user(ContentPartFile(url="file:///a", media_type="image/png")),
        (user(say(text="[file:///a](file:///a)")),),
    ),
    "a data URL becomes a file by value": (
        user(ContentPartFile(url="data:text/plain;base64,YQ=="), ContentPartFile(url="data:,a%20b", media_type="text/plain")),
        (user(ContentPartFile(data=b"a", media_type="text/plain"), ContentPartFile(data=b"a b", media_type="text/plain")),),
    ),
    "a user's thoughts are omitted": (user(ContentPartReasoning(text="hm"), say(text="a")), (user(say(text="a")),)),
    "metadata is not sent": (
        user(say(text="a", metadata={"k": 1, "gemini": 7}), id="x"),
        (user(say(text="a")),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_of_a_users_message_is_the_documented_one(name: str) -> None:
    message, expected_messages = LOSSES[name]
    assert back(message) == expected_messages


MODEL_LOSSES: dict[str, tuple[Message, Message]] = {
    "thoughts without a signature are omitted": (
        model(ContentPartReasoning(text="hm", signature="s"), say(text="a")),
        model(say(text="a")),
    ),
    "an image thought is omitted": (
        model(ContentPartFile(data=b"", media_type="image/png", metadata={"gemini": {"thought": True}}), say(text="a")),
        model(say(text="a")),
    ),
    "a call without a name is unknown": (
        model(ContentPartToolCall(id="c", name="", metadata=signed("c2ln"))),
        model(ContentPartToolCall(id="c", name="unknown", metadata=signed("c2ln"))),
    ),
    "arguments that did not parse become an input": (
        model(ContentPartToolCall(id="c", name="f", arguments_text="{", arguments_error="cut")),
        model(ContentPartToolCall(id="c", name="f", arguments={"input": "{"})),
    ),
    "every kind of call is a function": (
        model(ContentPartToolCall(id="c", name="f", kind="custom", arguments_text="ls")),
        model(ContentPartToolCall(id="c", name="f", arguments={"input": "ls"})),
    ),
    "a generated id is replaced": (
        model(ContentPartToolCall(id="mine", name="f", synthetic_id=True)),
        model(ContentPartToolCall(id="call_0", name="f", synthetic_id=True)),
    ),
    "server tools of another provider are omitted": (
        model(ContentPartToolCall(id="c", name="web", kind="server"), ContentPartToolResult(id="c", name="web"), say(text="a")),
        model(say(text="a")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODEL_LOSSES)
def test_each_loss_of_a_models_message_is_the_documented_one(name: str) -> None:
    message, expected_message = MODEL_LOSSES[name]
    assert back(user(say(text="hi")), message)[1:] == (expected_message,)


def test_context_comes_back_as_the_users_first_words() -> None:
    history = History(context="Background.", conversation=(user(say(text="hi")),))
    assert converter.to_history(converter.from_history(history)).conversation == (
        user(say(text="Background."), say(text="hi")),
    )


def test_the_result_of_a_function_in_a_models_message_becomes_one_of_the_users() -> None:
    assert back(user(say(text="hi")), model(CALL, RESULT)) == (
        user(say(text="hi")),
        model(CALL),
        tool(RESULT),
    )


def test_a_history_is_never_changed() -> None:
    history = History(
        conversation=(
            user(say(text="hi")),
            model(
                ContentPartData(data={"functionCall": {"name": "f"}}, metadata={"gemini": {"part": True}}),
                CALL,
            ),
        )
    )
    before = history.model_dump()
    contents = converter.from_history(history)
    assert contents[1]["parts"][0]["thoughtSignature"] == DUMMY_SIGNATURE
    assert history.model_dump() == before


# --- the round trip of generated histories ----------------------------------------------------------------------


signatures = st.sampled_from(["", "sig"]).map(lambda text: signed(text) if text else {})
own_parts: st.SearchStrategy[ContentPart] = (
    st.builds(ContentPartText, text=strategies.texts, metadata=signatures)
    | st.builds(ContentPartReasoning, text=strategies.texts, metadata=signatures)
    | st.builds(
        ContentPartFile,
        url=st.just("https://example.com/a"),
        media_type=st.sampled_from(["", "image/*", "image/png"]),
        metadata=signatures,
    )
    | st.builds(
        ContentPartToolCall,
        id=st.sampled_from(["", "a", "b"]),
        name=st.sampled_from(["", "f", "g"]),
        arguments=strategies.json_objects,
        synthetic_id=st.booleans(),
        metadata=signatures,
    )
    | st.builds(
        ContentPartToolResult,
        id=st.sampled_from(["", "a", "b"]),
        name=st.sampled_from(["", "f", "g"]),
        output=strategies.json_values,
        is_error=st.booleans(),
    )
)
# Without Gemini's own fields, which a separate strategy generates.
foreign_parts = strategies.parts.filter(lambda part: "gemini" not in part.metadata)
histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(
        st.builds(
            Message,
            role=st.sampled_from([Role.USER, Role.MODEL, Role.TOOL]),
            content=st.lists(own_parts | foreign_parts, max_size=5).map(tuple),
        ),
        max_size=5,
    ).map(tuple),
)


def is_refused(history: History) -> bool:
    return any(message.tool_calls and message.role is not Role.MODEL for message in history.conversation)


@settings(deadline=None)
@given(histories)
def test_any_history_makes_a_request_that_gemini_takes(history: History) -> None:
    if is_refused(history):
        return
    contents = converter.from_history(history)
    assert [content["role"] for content in contents] == [
        ("user", "model")[n % 2] for n in range(len(contents))
    ]
    for content, following in zip(contents, [*contents[1:], None], strict=False):
        parts = content["parts"]
        assert parts
        for part in parts:
            assert (
                len(part.keys() & {"text", "inlineData", "fileData", "functionCall", "functionResponse"}) == 1
            )
            assert part.get("text") != "" or "thoughtSignature" in part
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        if calls:
            first = next(part for part in parts if "functionCall" in part)
            assert first["thoughtSignature"]
            assert content["role"] == "model"
            behind: list[Fields] = [] if following is None else following["parts"]
            responses: list[Fields] = [part["functionResponse"] for part in behind[: len(calls)]]
            assert not responses or [(call["name"], call.get("id")) for call in calls] == [
                (response["name"], response.get("id")) for response in responses
            ]


@settings(deadline=None)
@given(histories)
def test_what_came_back_goes_out_the_same(history: History) -> None:
    if is_refused(history):
        return
    contents = converter.from_history(history)
    assert converter.from_history(converter.to_history(contents)) == contents


# --- requests of other programs ---------------------------------------------------------------------------------


def test_a_content_without_a_role_is_the_users() -> None:
    assert received({"parts": [{"text": "hi"}]}) == (user(say(text="hi")),)


def test_results_of_the_older_role_answer_their_calls_by_name() -> None:
    _, answer = received(
        {"role": "model", "parts": [{"functionCall": {"name": n, "args": {}}} for n in "fgf"]},
        {
            "role": "function",
            "parts": [
                {"functionResponse": {"name": name, "response": {"output": number}}}
                for number, name in enumerate(["f", "f", "g", "h"])
            ],
        },
    )
    assert [(result.id, result.output) for result in answer.tool_results] == [
        ("call_0", 0),
        ("call_2", 1),
        ("call_1", 2),
        ("", 3),
    ]


def test_calls_of_the_same_id_stay_apart() -> None:
    parts = [{"functionCall": {"id": "x", "name": "f", "args": {"n": n}}} for n in (1, 2)]
    (message,) = received({"role": "model", "parts": parts})
    assert [call.arguments for call in message.tool_calls] == [{"n": 1}, {"n": 2}]


def test_files_in_an_answer_of_a_tool_are_kept_and_sent_back() -> None:
    part = {
        "functionResponse": {
            "id": "c1",
            "name": "get_weather",
            "response": {"sky": "clear"},
            "parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}],
        }
    }
    contents = [HI, {"role": "model", "parts": [CALL_PART]}, {"role": "user", "parts": [part]}]
    conversation = received(*contents)
    assert conversation[2].tool_results[0].output == {"sky": "clear"}
    assert sent(*conversation) == contents


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": "*"}},
        {"fileData": {"mimeType": "image/png"}},
        {"new": 1},
    ],
)
def test_parts_that_are_no_file_are_kept_and_sent_back_as_they_are(part: Fields) -> None:
    contents = [{"role": "user", "parts": [part]}]
    (message,) = received(*contents)
    assert message.content == (ContentPartData(data=part, metadata={"gemini": {"part": True}}),)
    assert sent(message) == contents


def test_a_role_that_gemini_does_not_define_is_refused() -> None:
    with pytest.raises(ValueError, match="content 1: the role 'critic'"):
        received(HI, {"role": "critic", "parts": []})


# --- complete responses, streams, results -----------------------------------------------------------------------

RESPONSE: Fields = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"text": "Let me "},
                    {"text": "see."},
                    {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "f", "args": {"a": 2}}},
                ],
            },
            "finishReason": "STOP",
            "safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}],
        },
        {"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "STOP"},
    ],
    "modelVersion": "gemini-x",
    "responseId": "r1",
}
ANSWER = (
    ContentPartReasoning(text="hm"),
    say(text="Let me see."),
    ContentPartToolCall(
        id="call_0", name="f", arguments={"a": 1}, synthetic_id=True, metadata=signed("c2ln")
    ),
    ContentPartToolCall(id="call_1", name="f", arguments={"a": 2}, synthetic_id=True),
)


def test_a_whole_response_is_the_message_of_its_first_candidate() -> None:
    expected_message = model(
        *ANSWER,
        finish_reason="tool_calls",
        extra={"safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]},
    )
    assert converter.to_message(RESPONSE) == expected_message
    assert converter.to_message(types.GenerateContentResponse.model_validate(RESPONSE)) == expected_message


def test_a_single_content_is_taken_too() -> None:
    content = RESPONSE["candidates"][0]["content"]
    assert converter.to_message(content) == model(*ANSWER)
    assert converter.to_message(types.Content.model_validate(content)) == model(*ANSWER)


def test_the_results_of_a_round_are_one_content() -> None:
    assert converter.tool_result_messages([RESULT]) == [{"role": "user", "parts": [RESULT_PART]}]
    nameless = ContentPartToolResult(id="", name="", output=1)
    assert converter.tool_result_messages([nameless]) == [
        {"role": "user", "parts": [{"functionResponse": {"name": "unknown", "response": {"output": 1}}}]}
    ]


def test_a_wrapper_over_a_part_of_either_form() -> None:
    part = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "+/+/"}
    ours = converter.create_chunk_wrapper(part)
    theirs = converter.create_chunk_wrapper(types.Part.model_validate(part))
    assert ours == theirs
    (call,) = ours.get_tool_calls()
    assert (call.index, call.name, call.arguments) == (None, "f", '{"a": 1}')
    assert call.extra == cast("Any", signed("+/+/"))
