"""The Gemini converter: each row of its tables in both directions, the round trip, and each documented loss."""

from typing import Any

import pytest
from google.genai import types

from support.gemini_contents import (
    CALL,
    CALL_PART,
    HI,
    RESULT,
    RESULT_PART,
    Fields,
    converter,
    received,
    say,
    sent,
    signed,
)
from support.messages import model, tool, user
from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
)
from tailrace.wrappers.gemini.converter import DUMMY_SIGNATURE, OPENING

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
