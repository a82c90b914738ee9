"""The Bedrock converter: each row of its tables in both directions, and each documented loss."""

from collections.abc import Mapping
from typing import Any

import pytest

from support.messages import model, tool, user
from tailrace.wrappers import (
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
from tailrace.wrappers.bedrock import BedrockConverter, BedrockWrapper

converter = BedrockConverter()
say = ContentPartText


def sent(*messages: Message) -> list[dict[str, Any]]:
    return converter.from_history(History(conversation=messages))


def received(*messages: Mapping[str, Any]) -> tuple[Message, ...]:
    return converter.to_history(messages).conversation


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*sent(*messages))


HELLO = user(say(text="Hello"))
HELLO_PARAM = {"role": "user", "content": [{"text": "Hello"}]}
CALL = ContentPartToolCall(id="t1", name="get_weather", arguments={"city": "Oakland"})
CALL_PARAM = {"toolUse": {"toolUseId": "t1", "name": "get_weather", "input": {"city": "Oakland"}}}
RESULT = ContentPartToolResult(id="t1", name="get_weather", output="Sunny")
RESULT_PARAM = {"toolResult": {"toolUseId": "t1", "content": [{"text": "Sunny"}]}}
SEALED = ContentPartReasoning(text="hm", signature="s", metadata={"bedrock": {"type": "reasoningContent"}})
SEALED_PARAM = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}
PNG = ContentPartFile(data=b"\x89PNG", media_type="image/png")
PNG_PARAM = {"image": {"format": "png", "source": {"bytes": "iVBORw=="}}}
PDF = ContentPartFile(data=b"%PDF", media_type="application/pdf", filename="The report.pdf")
PDF_PARAM = {"document": {"format": "pdf", "name": "The report", "source": {"bytes": "JVBERg=="}}}
CITED = {"title": "a.pdf", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}
SERVER_CALL = ContentPartToolCall(
    id="s", name="nova_grounding", arguments={"q": 1}, kind="server", metadata={"bedrock": {"type": "server_tool_use"}}
)  # fmt: skip


def assistant(*blocks: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


# A conversation and the members of its request, converted both ways.
ROWS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "text": ([HELLO, model(say(text="Hi"))], [HELLO_PARAM, assistant({"text": "Hi"})]),
    "text in several parts": (
        [HELLO, model(say(text="a"), say(text="b"))],
        [HELLO_PARAM, assistant({"text": "a"}, {"text": "b"})],
    ),
    "an image": ([user(say(text="?"), PNG)], [{"role": "user", "content": [{"text": "?"}, PNG_PARAM]}]),
    "a document": ([user(say(text="?"), PDF)], [{"role": "user", "content": [{"text": "?"}, PDF_PARAM]}]),
    "a document with citations enabled": (
        [user(say(text="?"), PDF.model_copy(update={"metadata": {"bedrock": {"citations": {"enabled": True}}}}))],
        [
            {
                "role": "user",
                "content": [
                    {"text": "?"},
                    {"document": {"citations": {"enabled": True}, **PDF_PARAM["document"]}},
                ],
            }
        ],
    ),
    "a file in S3": (
        [user(ContentPartFile(url="s3://bucket/key", media_type="video/mp4",
                              metadata={"bedrock": {"s3Location": {"bucketOwner": "123456789012"}}}))],
        [
            {
                "role": "user",
                "content": [
                    {
                        "video": {
                            "format": "mp4",
                            "source": {"s3Location": {"bucketOwner": "123456789012", "uri": "s3://bucket/key"}},
                        }
                    }
                ],
            }
        ],
    ),
    "a round of tools": (
        [HELLO, model(say(text="Let me see."), CALL), tool(RESULT), model(say(text="Sunny."))],
        [
            HELLO_PARAM,
            assistant({"text": "Let me see."}, CALL_PARAM),
            {"role": "user", "content": [RESULT_PARAM]},
            assistant({"text": "Sunny."}),
        ],
    ),
    "results of several kinds": (
        [
            HELLO,
            model(CALL, ContentPartToolCall(id="t2", name="now")),
            tool(
                RESULT.model_copy(update={"output": {"sky": ["blue"]}}),
                ContentPartToolResult(id="t2", name="now", output="no clock", is_error=True),
            ),
        ],
        [
            HELLO_PARAM,
            assistant(CALL_PARAM, {"toolUse": {"toolUseId": "t2", "name": "now", "input": {}}}),
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "t1", "content": [{"json": {"sky": ["blue"]}}]}},
                    {"toolResult": {"toolUseId": "t2", "status": "error", "content": [{"text": "no clock"}]}},
                ],
            },
        ],
    ),
    "a result that holds an image": (
        [
            HELLO,
            model(CALL),
            tool(RESULT.model_copy(update={
                "output": [{"text": "see"}, PNG_PARAM], "metadata": {"bedrock": {"content": [{"text": "see"}, PNG_PARAM]}},
            })),
        ],
        [
            HELLO_PARAM,
            assistant(CALL_PARAM),
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "see"}, PNG_PARAM]}}]},
        ],
    ),
    "a user message after the results": (
        [HELLO, model(CALL), tool(RESULT), user(say(text="and tomorrow?"))],
        [
            HELLO_PARAM,
            assistant(CALL_PARAM),
            {"role": "user", "content": [RESULT_PARAM, {"text": "and tomorrow?"}]},
        ],
    ),
    "sealed reasoning": (
        [HELLO, model(SEALED, say(text="Hi"))],
        [HELLO_PARAM, assistant(SEALED_PARAM, {"text": "Hi"})],
    ),
    "redacted reasoning": (
        [HELLO, model(ContentPartReasoning(text="", metadata={"bedrock": {"redactedContent": "c2Vj"}}), CALL)],
        [HELLO_PARAM, assistant({"reasoningContent": {"redactedContent": "c2Vj"}}, CALL_PARAM)],
    ),
    "text with citations": (
        [HELLO, model(say(text="It rains.", metadata={"bedrock": {"citations": [CITED]}}))],
        [
            HELLO_PARAM,
            assistant({"citationsContent": {"citations": [CITED], "content": [{"text": "It rains."}]}}),
        ],
    ),
    "a tool run by Bedrock": (
        [HELLO, model(SERVER_CALL, ContentPartToolResult(id="s", name="nova_grounding", output="x"), say(text="Hi"))],
        [
            HELLO_PARAM,
            assistant(
                {"toolUse": {"type": "server_tool_use", "toolUseId": "s", "name": "nova_grounding", "input": {"q": 1}}},
                {"toolResult": {"toolUseId": "s", "content": [{"text": "x"}]}},
                {"text": "Hi"},
            ),
        ],
    ),
    "a block without a common form": (
        [user(say(text="a"), ContentPartData(data={"type": "default"}, metadata={"bedrock": {"type": "cachePoint"}}))],
        [{"role": "user", "content": [{"text": "a"}, {"cachePoint": {"type": "default"}}]}],
    ),
    "a text document": (
        [
            user(
                say(text="a"),
                ContentPartData(
                    data={"name": "n", "source": {"text": "x"}}, metadata={"bedrock": {"type": "document"}}
                ),
            )
        ],
        [{"role": "user", "content": [{"text": "a"}, {"document": {"name": "n", "source": {"text": "x"}}}]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    messages, params = ROWS[name]
    assert sent(*messages) == params
    assert received(*params) == tuple(messages)


# Each documented loss: the message before and after the round trip.
PLAIN_TEXT = ContentPartFile(data=b"print()", media_type="text/x-python", filename="a.py")
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "neighbours are merged": (
        [user(say(text="a")), user(say(text="b")), model(say(text="c")), model(say(text="d"))],
        [user(say(text="a"), say(text="b")), model(say(text="c"), say(text="d"))],
    ),
    "results come first": (
        [HELLO, model(CALL), user(say(text="wait"), RESULT, say(text="there"))],
        [HELLO, model(CALL), tool(RESULT), user(say(text="wait"), say(text="there"))],
    ),
    "a user message comes first": ([model(say(text="Hi"))], [user(say(text=converter.opening_text)), model(say(text="Hi"))]),
    "blank text is omitted": (
        [user(say(text="a"), say(text=" \n")), model(say(text=" ")), user(say(text="b"))],
        [user(say(text="a"), say(text="b"))],
    ),
    "trailing white space of the last model message": (
        [HELLO, model(say(text="Once \n"))],
        [HELLO, model(say(text="Once"))],
    ),
    "text goes before calls": (
        [HELLO, model(CALL, say(text="Let me see.")), tool(RESULT)],
        [HELLO, model(say(text="Let me see."), CALL), tool(RESULT)],
    ),
    "reasoning without Bedrock's signature": (
        [
            HELLO,
            model(
                ContentPartReasoning(text="a"),
                ContentPartReasoning(text="b", signature="s"),
                ContentPartReasoning(text="c", signature="s", metadata={"anthropic": {"type": "thinking"}}),
                ContentPartReasoning(text="d", metadata={"bedrock": {"type": "reasoningContent"}}),
                say(text="Hi"),
            ),
        ],
        [HELLO, model(say(text="Hi"))],
    ),
    "reasoning at the end": ([HELLO, model(say(text="Hi"), SEALED)], [HELLO, model(say(text="Hi"))]),
    "reasoning of the user": ([user(say(text="Hello"), SEALED)], [HELLO]),
    "tools run by other providers": (
        [
            HELLO,
            model(
                ContentPartToolCall(id="w", name="web_search", kind="server", metadata={"anthropic": {"type": "x"}}),
                ContentPartToolResult(id="w", name="web_search", output=[1]),
                say(text="Hi"),
            ),
        ],
        [HELLO, model(say(text="Hi"))],
    ),
    "results in a model's message follow it": ([HELLO, model(CALL, RESULT)], [HELLO, model(CALL), tool(RESULT)]),
    "data becomes its JSON": (
        [user(ContentPartData(data={"a": "é"})), model(ContentPartData(data=[1]))],
        [user(say(text='{"a":"é"}')), model(say(text="[1]"))],
    ),
    "a link that is not in S3 is named": (
        [user(ContentPartFile(url="https://example.com/a.png", media_type="image/png", filename="cat"))],
        [user(say(text="[cat](https://example.com/a.png)"))],
    ),
    "a type that Converse does not support is named": (
        [user(ContentPartFile(data=b"abc", media_type="application/zip", filename="a.zip"))],
        [user(say(text="[file a.zip, application/zip, 3 bytes]"))],
    ),
    "an empty file is named": (
        [user(ContentPartFile(data=b"", media_type="image/png"))],
        [user(say(text="[file, image/png, 0 bytes]"))],
    ),
    "files of the model are named": (
        [HELLO, model(PNG, ContentPartData(data={}, metadata={"bedrock": {"type": "image"}}))],
        [HELLO, model(say(text="[file, image/png, 4 bytes]"), say(text="[image]"))],
    ),
    "text of an unknown type is plain": (
        [user(say(text="?"), PLAIN_TEXT)],
        [user(say(text="?"), PLAIN_TEXT.model_copy(update={"media_type": "text/plain", "filename": "a py.txt"}))],
    ),
    "a file without a type gets that of its name": (
        [user(ContentPartFile(data=b"x", filename="cat.JPG"), ContentPartFile(url="s3://b/k.mp4", media_type="video/*"))],
        [user(ContentPartFile(data=b"x", media_type="image/jpeg"), ContentPartFile(url="s3://b/k.mp4", media_type="video/mp4"))],
    ),
    "images lose their name": ([user(PNG.model_copy(update={"filename": "a.png"}))], [user(PNG)]),
    "names of documents are valid, unique, and have an extension": (
        [user(say(text="?"), *(PDF.model_copy(update={"filename": name}) for name in ("a_b:  c", "A b c.pdf", "", "é")))],
        [user(say(text="?"), *(PDF.model_copy(update={"filename": f"{name}.pdf"}) for name in
              ("a b c", "A b c (2)", "document", "document (2)")))],
    ),
    "documents need text beside them": ([user(PDF)], [user(PDF, say(text=converter.documents_text))]),
    "names of tools are replaced": (
        [HELLO, model(CALL.model_copy(update={"name": "my.tool"}), CALL.model_copy(update={"id": "t2", "name": ""}))],
        [HELLO, model(CALL.model_copy(update={"name": "my_tool_bca2c361"}), CALL.model_copy(update={"id": "t2", "name": "unknown"}))],
    ),
    "arguments that are not an object": (
        [HELLO, model(ContentPartToolCall(id="t", name="f", arguments_text='{"a', arguments_error="cut"))],
        [HELLO, model(ContentPartToolCall(id="t", name="f", arguments={"input": '{"a'}))],
    ),
    "the kind of a call": (
        [HELLO, model(ContentPartToolCall(id="t", name="f", kind="custom", arguments_text="ls", synthetic_id=True))],
        [HELLO, model(ContentPartToolCall(id="t", name="f", arguments={"input": "ls"}))],
    ),
    "outputs that are neither text nor an object": (
        [HELLO, tool(*(ContentPartToolResult(id="t", name="f", output=output) for output in ([1], None, "", " ")))],
        [
            tool(*(ContentPartToolResult(id="t", name="unknown", output=text) for text in ("[1]", "null", '""', '" "'))),
            HELLO,
        ],
    ),
    "other metadata is not sent": (
        [Message(role=Role.USER, content=(say(text="a", metadata={"openai": {"x": 1}}),), metadata={"k": 1})],
        [user(say(text="a"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_the_documented_one(name: str) -> None:
    messages, expected = LOSSES[name]
    assert back(*messages) == tuple(expected)


def test_the_system_message_stands_apart() -> None:
    history = History(system_message="Be brief.", context="Background.", conversation=(HELLO,))
    assert converter.from_history(history) == [
        {"role": "user", "content": [{"text": "Background."}, {"text": "Hello"}]}
    ]
    assert converter.system_prompt(history) == [{"text": "Be brief."}]
    assert converter.system_prompt(History(system_message=" ")) == []
    assert converter.system_prompt(History()) == []
    system = [{"text": "a"}, {"cachePoint": {"type": "default"}}, {"text": "b"}]
    assert converter.to_history([HELLO_PARAM], system=system) == History(
        system_message="a\n\nb", conversation=(HELLO,)
    )


def test_a_model_without_a_status_receives_a_failure_in_the_output() -> None:
    plain = BedrockConverter(result_status=False)
    results = [
        ContentPartToolResult(id="t", name="f", output=output, is_error=True)
        for output in ("no", {"error": "x"})
    ]
    (message,) = plain.tool_result_messages(results)
    assert [block["toolResult"] for block in message["content"]] == [
        {"toolUseId": "t", "content": [{"json": {"error": "no"}}]},
        {"toolUseId": "t", "content": [{"json": {"error": "x"}}]},
    ]


def test_all_results_are_one_message() -> None:
    assert converter.tool_result_messages([RESULT, RESULT]) == [
        {"role": "user", "content": [RESULT_PARAM, RESULT_PARAM]}
    ]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "system", "content": [{"text": "a"}]}, "the role 'system'"),
    ({"content": [{"text": "a"}]}, "the role None"),
    ({"role": "user", "content": "a"}, "content of type str"),
    ({"role": "user"}, "content of type NoneType"),
    ({"role": "user", "content": ["a"]}, "block 0 is not an object with one member"),
    ({"role": "user", "content": [{"text": "a"}, {"text": "a", "image": {}}]}, "block 1 is not an object"),
]


@pytest.mark.parametrize(("message", "complaint"), REFUSED)
def test_what_converse_does_not_define_is_refused(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="message 1: ") as caught:
        received(HELLO_PARAM, message)
    assert complaint in str(caught.value)


def test_boto3s_bytes_are_read_as_they_are() -> None:
    blocks = [
        {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}},
        {"guardContent": {"image": {"format": "png", "source": {"bytes": b"P"}}}},
        {"video": {"format": "vhs", "source": {"bytes": b"P"}}},
    ]
    image, guarded, video = received({"role": "user", "content": blocks})[0].content
    assert image == PNG
    assert guarded == ContentPartData(
        data={"image": {"format": "png", "source": {"bytes": "UA=="}}}, metadata={"bedrock": {"type": "guardContent"}}
    )  # fmt: skip
    assert isinstance(video, ContentPartData)


def test_a_response_or_a_message_of_it_is_a_message() -> None:
    message = {"role": "assistant", "content": [{"text": "Hi"}, CALL_PARAM]}
    response = {"output": {"message": message}, "stopReason": "tool_use", "usage": {}}
    whole = converter.to_message(response)
    assert whole.content == (say(text="Hi"), CALL)
    assert whole.metadata == {"finish_reason": "tool_calls"}
    assert converter.to_message(message) == model(say(text="Hi"), CALL)


def test_a_stream_is_a_message() -> None:
    events = [
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hi"}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "!"}}},
    ]
    assert converter.to_message(map(converter.create_chunk_wrapper, events)).text == "Hi!"
    assert isinstance(converter.create_chunk_wrapper({"contentBlockStop": {}}), BedrockWrapper)


def test_ids_of_bedrocks_form_are_recognized() -> None:
    pattern = converter.id_pattern
    assert pattern is not None
    assert pattern.fullmatch("tooluse_KpK32lLgTt2PX8GsiwTe-g")
    assert not pattern.fullmatch("functions.f:0")
    assert not pattern.fullmatch("x" * 65)
    assert not pattern.fullmatch("")


def test_a_subclass_may_set_the_texts_by_their_deprecated_names() -> None:
    class Former(BedrockConverter):
        opening = "Hello."
        documents = "See below."

    class Current(Former):
        opening_text = "Welcome."

    first, *_ = Former().from_history(History(conversation=(model(say(text="Hi")),)))
    assert first["content"] == [{"text": "Hello."}]
    assert (Current.opening_text, Current.documents_text) == ("Welcome.", "See below.")
