"""The Anthropic converter: every row of its tables both ways, the round trip, and each documented loss."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import pytest
from anthropic.types import ContentBlock, RawMessageStreamEvent
from anthropic.types import Message as PackageMessage
from anthropic.types.beta import BetaMessageParam
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from support import strategies
from support.arguments import sent_arguments
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
from tailrace.wrappers.anthropic import AnthropicConverter, AnthropicEventWrapper, wrap_chunk
from tailrace.wrappers.tool_ids import with_answers, with_matched_ids

converter = AnthropicConverter()
package_messages: TypeAdapter[Any] = TypeAdapter(list[BetaMessageParam])
package_block: TypeAdapter[Any] = TypeAdapter(ContentBlock)
package_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

say = ContentPartText
Call = ContentPartToolCall
Result = ContentPartToolResult
File = ContentPartFile


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": each} for each in texts]


def user(*content: ContentPart, **metadata: Any) -> Message:
    return Message(role=Role.USER, content=content, metadata=metadata)


def model(*content: ContentPart, **metadata: Any) -> Message:
    return Message(role=Role.MODEL, content=content, metadata=metadata)


def tool(*content: ContentPart) -> Message:
    return Message(role=Role.TOOL, content=content)


def sent(*messages: Message) -> list[dict[str, Any]]:
    """The request's messages for a conversation."""
    return cast("list[dict[str, Any]]", converter.from_history(History(conversation=messages)))


def received(*messages: Mapping[str, Any], **options: Any) -> tuple[Message, ...]:
    return converter.to_history(cast("Any", messages), **options).conversation


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*sent(*messages))


def own(part: Any, **fields: Any) -> Any:
    """The part with fields of Anthropic's own."""
    return part.model_copy(update={"metadata": {"anthropic": fields}})


def asks(*content: object) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def answers(*content: object) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


HI, HI_PARAM = user(say(text="hi")), asks(*text("hi"))
WEATHER = Call(id="toolu_1", name="get_weather", arguments={"location": "Oakland"})
WEATHER_PARAM = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Oakland"}}
SUNNY = Result(id="toolu_1", name="get_weather", output="Sunny, 72°F")
SUNNY_PARAM = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny, 72°F"}
THOUGHT = own(ContentPartReasoning(text="hm", signature="s"), type="thinking")
THOUGHT_PARAM = {"type": "thinking", "thinking": "hm", "signature": "s"}
REDACTED = own(ContentPartReasoning(text=""), type="redacted_thinking", data="x")
REDACTED_PARAM = {"type": "redacted_thinking", "data": "x"}
SEARCH = own(
    Call(id="srvtoolu_1", name="web_search", arguments={"query": "a"}, kind="server"), type="server_tool_use"
)
SEARCH_PARAM = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}}
FOUND_PARAM: dict[str, Any] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "title": "A",
            "url": "https://a",
            "encrypted_content": "x",
            "page_age": None,
        }
    ],
}
FOUND = own(Result(id="srvtoolu_1", name="web_search", output=FOUND_PARAM["content"]), **FOUND_PARAM)
PNG = File(data=b"\x89PNG", media_type="image/png")
PNG_PARAM = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
EPHEMERAL = {"type": "ephemeral"}
COMPACTION = {"type": "compaction", "content": "So far.", "encrypted_content": "x"}
PAGES = {"type": "search_result", "source": "a", "title": "A", "content": text("b")}

# Every row of the tables: a conversation in the common format, and what the API is sent; the same way back.
ROWS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "user text": ([HI], [HI_PARAM]),
    "user text in several parts": ([user(say(text="a"), say(text="b\n"))], [asks(*text("a", "b\n"))]),
    "turns": (
        [HI, model(say(text="Hello."), say(text=" You?")), HI],
        [HI_PARAM, answers(*text("Hello.", " You?")), HI_PARAM],
    ),
    "text that looks like reasoning": (
        [HI, model(say(text="<think>a</think>b"))],
        [HI_PARAM, answers(*text("<think>a</think>b"))],
    ),
    "fields of Anthropic's own": (
        [user(own(say(text="hi"), cache_control=EPHEMERAL), own(PNG, cache_control=EPHEMERAL))],
        [asks({**text("hi")[0], "cache_control": EPHEMERAL}, {**PNG_PARAM, "cache_control": EPHEMERAL})],
    ),
    "files": (
        [
            user(
                PNG,
                File(data=b"%PDF", media_type="application/pdf", filename="a.pdf"),
                File(data="é".encode(), media_type="text/plain", filename="a.txt"),
                File(url="https://a/b.webp?c", media_type="image/webp"),
                File(url="https://a/b", media_type="image/*"),
                File(url="https://a/b", media_type="application/pdf", filename="b"),
                File(url="anthropic-file:file_1", media_type="image/*"),
                File(url="anthropic-file:file_2", filename="c"),
            )
        ],
        [
            asks(
                PNG_PARAM,
                {
                    "type": "document", "title": "a.pdf",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                },
                {
                    "type": "document", "title": "a.txt",
                    "source": {"type": "text", "media_type": "text/plain", "data": "é"},
                },
                {"type": "image", "source": {"type": "url", "url": "https://a/b.webp?c"}},
                {"type": "image", "source": {"type": "url", "url": "https://a/b"}},
                {"type": "document", "title": "b", "source": {"type": "url", "url": "https://a/b"}},
                {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
                {"type": "document", "title": "c", "source": {"type": "file", "file_id": "file_2"}},
            )
        ],
    ),
    "a block that only this API has": (
        [user(own(ContentPartData(data=PAGES), **PAGES))],
        [asks(PAGES)],
    ),
    "a round of tools": (
        [HI, model(say(text="Let me see."), WEATHER, Call(id="b", name="now")), tool(SUNNY, Result(id="b", name="now", output=""))],
        [
            HI_PARAM,
            answers(*text("Let me see."), WEATHER_PARAM, {"type": "tool_use", "id": "b", "name": "now", "input": {}}),
            asks(SUNNY_PARAM, {"type": "tool_result", "tool_use_id": "b", "content": ""}),
        ],
    ),
    "results, and what the user says to them": (
        [HI, model(WEATHER), tool(own(SUNNY, cache_control=EPHEMERAL)), user(say(text="So?"))],
        [HI_PARAM, answers(WEATHER_PARAM), asks({**SUNNY_PARAM, "cache_control": EPHEMERAL}, *text("So?"))],
    ),
    "a failed tool": (
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"is_error": True}))],
        [HI_PARAM, answers(WEATHER_PARAM), asks({**SUNNY_PARAM, "is_error": True})],
    ),
    "an output with an image": (
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": [*text("Look:"), PNG_PARAM]}))],
        [HI_PARAM, answers(WEATHER_PARAM), asks({**SUNNY_PARAM, "content": [*text("Look:"), PNG_PARAM]})],
    ),
    "reasoning of its own, in its place": (
        [HI, model(REDACTED, THOUGHT, say(text="a"), own(THOUGHT, type="thinking", depth=1), WEATHER), tool(SUNNY)],
        [
            HI_PARAM,
            answers(REDACTED_PARAM, THOUGHT_PARAM, *text("a"), {**THOUGHT_PARAM, "depth": 1}, WEATHER_PARAM),
            asks(SUNNY_PARAM),
        ],
    ),
    "reasoning that is kept back is sealed all the same": (
        [HI, model(own(ContentPartReasoning(text="", signature="s"), type="thinking"), say(text="a"))],
        [HI_PARAM, answers({"type": "thinking", "thinking": "", "signature": "s"}, *text("a"))],
    ),
    "tools that it runs itself": (
        [HI, model(say(text="Look:"), SEARCH, FOUND, say(text="There."))],
        [HI_PARAM, answers(*text("Look:"), SEARCH_PARAM, FOUND_PARAM, *text("There."))],
    ),
    "an answer that paused": ([HI, model(SEARCH)], [HI_PARAM, answers(SEARCH_PARAM)]),
    "a program of its own that calls our tools": (
        [
            HI,
            model(SEARCH, own(WEATHER, caller={"type": "code", "tool_id": "srvtoolu_1"})),
            tool(SUNNY),
            model(FOUND, say(text="There.")),
            HI,
        ],
        [
            HI_PARAM,
            answers(SEARCH_PARAM, {**WEATHER_PARAM, "caller": {"type": "code", "tool_id": "srvtoolu_1"}}),
            asks(SUNNY_PARAM),
            answers(FOUND_PARAM, *text("There.")),
            HI_PARAM,
        ],
    ),
    "a compaction": (
        [HI, model(own(ContentPartData(data=COMPACTION), **COMPACTION), say(text="a"))],
        [HI_PARAM, answers(COMPACTION, *text("a"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    messages, params = ROWS[name]
    assert sent(*messages) == params
    assert received(*params) == tuple(messages)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_sent_is_valid_by_the_packages_own_types(name: str) -> None:
    messages, params = ROWS[name]
    package_messages.validate_python(sent(*messages))
    assert json.loads(json.dumps(sent(*messages))) == params


def test_citations_go_back_with_their_text() -> None:
    citation = {"type": "char_location", "cited_text": "a", "document_index": 0}
    param = {"type": "text", "text": "a", "citations": [citation]}
    message = model(own(say(text="a"), citations=[citation]), extra={"annotations": [citation]})
    assert sent(HI, message) == [HI_PARAM, answers(param)]
    assert received(HI_PARAM, answers(param)) == (HI, message)


# --- the conversation as a whole --------------------------------------------------------------------------------


def test_the_system_message_stands_beside_the_messages() -> None:
    history = History(system_message="Be brief.", conversation=(HI,))
    messages = converter.from_history(history)
    assert messages == [HI_PARAM]
    assert converter.system_prompt(history) == "Be brief."
    assert converter.to_history(messages, system=converter.system_prompt(history)) == history
    assert converter.to_history(messages, system=text("Be ", "brief.")) == history
    assert converter.to_history(messages) == History(conversation=(HI,))


@pytest.mark.parametrize("system", [None, "", " \n"])
def test_instructions_that_say_nothing_are_none(system: str | None) -> None:
    assert converter.system_prompt(History(system_message=system)) is None


def test_context_is_what_the_user_says_first() -> None:
    history = History(context="Background.", conversation=(HI,))
    assert converter.from_history(history) == [asks(*text("Background.", "hi"))]


def test_the_user_speaks_first() -> None:
    assert sent(model(say(text="Welcome!")), HI) == [
        asks(*text("(The assistant speaks first.)")), answers(*text("Welcome!")), HI_PARAM,
    ]  # fmt: skip


def test_an_empty_history_is_no_messages() -> None:
    assert converter.from_history(History()) == []
    assert converter.to_history([]) == History()


def test_ids_are_sent_as_they_are_and_the_pattern_says_which_are_taken() -> None:
    assert converter.id_pattern is not None
    assert converter.id_pattern.fullmatch("toolu_01-A")
    assert not any(converter.id_pattern.fullmatch(each) for each in ("", "a.b", "a|b", "a\n", "é"))
    assert isinstance(converter.id_pattern, re.Pattern)
    assert sent(HI, model(Call(id="a.b", name="f")))[1]["content"][0]["id"] == "a.b"


@pytest.mark.parametrize("role", [Role.USER, Role.TOOL])
def test_a_tool_call_outside_a_models_message_is_refused(role: Role) -> None:
    with pytest.raises(ValueError, match="message 1: the tool call 'toolu_1' stands in a message of role"):
        sent(HI, Message(role=role, content=(WEATHER,)))


def test_a_conversation_that_others_began_is_one_that_this_api_takes() -> None:
    foreign = History(
        conversation=(
            model(say(text="Welcome!")),
            HI,
            model(
                ContentPartReasoning(text="hm", signature="gemini's", metadata={"gemini": {"thoughtSignature": "x"}}),
                ContentPartReasoning(text="", metadata={"openai-responses": {"encrypted_content": "x"}}),
                Call(id="ws_1", name="web_search", kind="server", metadata={"openai-responses": {"type": "web_search_call"}}),
                Result(id="ws_1", name="web_search", output=["a"]),
                Call(id="call.1|fc", name="f", kind="custom", arguments_text="do it", metadata={"gemini": {"a": 1}}),
                say(text="One moment."),
            ),
            HI,
            model(say(text=""), refusal="I won't."),
        )
    )  # fmt: skip
    mended = with_answers(with_matched_ids(foreign, pattern=converter.id_pattern))
    messages = cast("list[dict[str, Any]]", converter.from_history(mended))
    package_messages.validate_python(messages)
    assert messages[1:] == [
        answers(*text("Welcome!")),
        HI_PARAM,
        answers(
            *text("One moment."),
            {"type": "tool_use", "id": "call00001", "name": "f", "input": {"input": "do it"}},
        ),
        asks(
            {
                "type": "tool_result", "tool_use_id": "call00001", "is_error": True,
                "content": "There is no result: the conversation went on before this tool had answered.",
            },
            *text("hi"),
        ),
        answers(*text("I won't.")),
    ]  # fmt: skip


# Each loss that the module documents: what goes in behind a greeting, and what comes back.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "messages of one role become one": (
        [user(say(text="a")), model(say(text="b")), model(say(text="c")), user(say(text="d")), user(say(text="e"))],
        [user(say(text="hi"), say(text="a")), model(say(text="b"), say(text="c")), user(say(text="d"), say(text="e"))],
    ),
    "text that says nothing is left out, and so are messages": (
        [model(say(text=" \n")), user(say(text="a"), say(text="")), user()],
        [user(say(text="hi"), say(text="a"))],
    ),
    "white space at the very end is left out": (
        [model(say(text="a "), say(text=" b \n"))],
        [HI, model(say(text="a "), say(text=" b"))],
    ),
    "text goes before calls of our tools": (
        [model(say(text="a"), WEATHER, say(text="b"), Call(id="b", name="f"), say(text="c")), tool(SUNNY)],
        [HI, model(say(text="a"), say(text="b"), say(text="c"), WEATHER, Call(id="b", name="f")), tool(SUNNY)],
    ),
    "reasoning without a seal, or of others, is left out": (
        [model(
            own(ContentPartReasoning(text="hm"), type="thinking"), ContentPartReasoning(text="hm", signature="s"),
            own(ContentPartReasoning(text="hm"), type="redacted_thinking_of_old"), say(text="a"),
        )],
        [HI, model(say(text="a"))],
    ),
    "reasoning at the end is left out": (
        [model(say(text="a"), THOUGHT, REDACTED), HI, model(THOUGHT), HI],
        [HI, model(say(text="a")), user(say(text="hi"), say(text="hi"))],
    ),
    "the user's reasoning is left out": ([user(ContentPartReasoning(text="hm"), say(text="a"))], [user(say(text="hi"), say(text="a"))]),
    "tools that others ran are left out": (
        [model(say(text="a"), Call(id="x", name="f", kind="server"), Result(id="x", name="f", output=1)), tool(Result(id="x", name="f"))],
        [HI, model(say(text="a"))],
    ),
    "a call without its result is left out when the user has gone on": (
        [model(say(text="a"), SEARCH), HI],
        [HI, model(say(text="a")), HI],
    ),
    "a result without its call is left out": ([model(FOUND, say(text="a"))], [HI, model(say(text="a"))]),
    "a result before its call is left out, and the call too": (
        [model(FOUND, SEARCH, say(text="a")), HI],
        [HI, model(say(text="a")), HI],
    ),
    "a result of our tools in a model's message follows it": (
        [model(WEATHER, SUNNY, Result(id="other", name="f", output=""))],
        [HI, model(WEATHER), tool(SUNNY)],
    ),
    "results come first": (
        [model(WEATHER), user(say(text="a"), SUNNY), tool(Result(id="b", name="f", output="")), user(say(text="b"))],
        [HI, model(WEATHER), tool(SUNNY, Result(id="b", name="unknown", output="")), user(say(text="a"), say(text="b"))],
    ),
    "data becomes its JSON": (
        [model(ContentPartData(data={"a": [1, "é"]})), user(ContentPartData(data=[1]))],
        [HI, model(say(text='{"a":[1,"é"]}')), user(say(text="[1]"))],
    ),
    "a file of the model's is named in text": (
        [model(File(data=b"abc", media_type="image/png", filename="cat.png"), File(url="https://a/b.png"))],
        [HI, model(say(text="[file cat.png, image/png, 3 bytes]"), say(text="[https://a/b.png](https://a/b.png)"))],
    ),
    "arguments that are no object become one": (
        [model(Call(id="a", name="f", arguments_text="[1]"), Call(id="b", name="f", kind="custom", arguments_text=""))],
        [HI, model(Call(id="a", name="f", arguments={"input": "[1]"}), Call(id="b", name="f", arguments={"input": ""}))],
    ),
    "a call's kind, and that its id was made, are forgotten": (
        [model(Call(id="a", name="f", kind="custom", arguments={"n": 1}, synthetic_id=True))],
        [HI, model(Call(id="a", name="f", arguments={"n": 1}))],
    ),
    "an output that is not text becomes its JSON": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": {"t": [72, "°F"]}}), Result(id="b", name="f"))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": '{"t": [72, "°F"]}'}), Result(id="b", name="unknown", output="null"))],
    ),
    "an output of text blocks alone becomes its JSON": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": text("a")}))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": '[{"type": "text", "text": "a"}]'}))],
    ),
    "an output with blocks of others becomes its JSON": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": [{"type": "image", "data": "a", "mimeType": "b"}]}))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": '[{"type": "image", "data": "a", "mimeType": "b"}]'}))],
    ),
    "an output's blocks lose text that says nothing": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": [*text(""), PNG_PARAM]}))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": [PNG_PARAM]}))],
    ),
    "a refusal becomes text": ([model(say(text="No: "), refusal="I won't.")], [HI, model(say(text="No: "), say(text="I won't."))]),
    "metadata stays here": (
        [model(say(text="a", metadata={"k": 1, "openai": {"x": 1}}), finish_reason="stop", refusal=1)],
        [HI, model(say(text="a"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_the_documented_one(name: str) -> None:
    messages, expected = LOSSES[name]
    assert back(HI, *messages) == tuple(expected)
    package_messages.validate_python(sent(HI, *messages))


def test_fields_of_anthropics_own_never_replace_ours() -> None:
    fields: dict[str, Any] = {
        "type": "image",
        "text": "b",
        "id": "x",
        "tool_use_id": "x",
        "content": "x",
        "name": "x",
        "input": {},
    }
    assert sent(
        user(own(say(text="a"), **fields)), model(own(WEATHER, **fields)), tool(own(SUNNY, **fields))
    ) == [
        asks({**fields, **text("a")[0]}),
        answers({**fields, **WEATHER_PARAM}),
        asks({**fields, **SUNNY_PARAM}),
    ]


def test_a_block_of_its_own_that_says_nothing_is_left_out() -> None:
    assert sent(HI, model(own(ContentPartData(data=1), type="text"), say(text="a"))) == [
        HI_PARAM,
        answers(*text("a")),
    ]


# --- the round trip ---------------------------------------------------------------------------------------------

ids = st.sampled_from(["a", "b", "c"])
outputs: dict[str, tuple[Any, Any]] = {
    "text": ("Sunny.", "Sunny."),
    "none": (None, "null"),
    "object": ({"t": 72}, '{"t": 72}'),
    "blocks": ([*text("Look:"), PNG_PARAM], [*text("Look:"), PNG_PARAM]),
}
files: dict[str, tuple[ContentPartFile, ContentPart]] = {
    "image": (PNG, PNG),
    "named image": (File(data=b"", media_type="image/jpg", filename="a"), File(data=b"", media_type="image/jpeg")),
    "text": (File(data=b"a", media_type="text/markdown; charset=utf-8"), File(data=b"a", media_type="text/plain")),
    "sound": (File(data=b"RIFF", media_type="audio/wav", filename="a.wav"), say(text="[file a.wav, audio/wav, 4 bytes]")),
    "link": (File(url="https://a/b.mp3", filename="b"), say(text="[b](https://a/b.mp3)")),
}  # fmt: skip


def cited(value: str) -> ContentPart:
    return own(say(text=value), citations=[{"cited_text": "a"}])


def thought(value: str, seal: str | None) -> ContentPart:
    return own(ContentPartReasoning(text=value, signature=seal), type="thinking")


def search(call_id: str) -> ContentPart:
    return SEARCH.model_copy(update={"id": call_id})


def found(call_id: str) -> ContentPart:
    return own(FOUND.model_copy(update={"id": call_id}), **{**FOUND_PARAM, "tool_use_id": call_id})


blocks_of_its_own: st.SearchStrategy[ContentPart] = (
    st.builds(cited, strategies.texts)
    | st.builds(thought, strategies.texts, st.none() | st.sampled_from(["s", "t"]))
    | st.builds(search, ids)
    | st.builds(found, ids)
    | st.just(REDACTED)
)
calls = st.builds(
    Call,
    id=ids,
    name=strategies.names,
    arguments=strategies.json_objects,
    arguments_text=st.none() | strategies.texts,
    kind=st.sampled_from(["function", "custom"]),
    synthetic_id=st.booleans(),
    metadata=strategies.metadata,
)
foreign_calls = st.builds(Call, id=ids, name=strategies.names, kind=st.just("server"))
results = st.builds(
    Result,
    id=ids,
    name=strategies.names,
    output=st.sampled_from([output for output, _ in outputs.values()]),
    is_error=st.booleans(),
    metadata=strategies.metadata,
)
file_parts = st.sampled_from([file for file, _ in files.values()])


def is_foreign(part: ContentPart) -> bool:
    """Nothing in it claims to be Anthropic's."""
    return "anthropic" not in part.metadata


common_parts: st.SearchStrategy[ContentPart] = (
    strategies.text_parts | strategies.reasoning_parts | strategies.data_parts | file_parts | results
).filter(is_foreign)
model_parts = common_parts | blocks_of_its_own | calls.filter(is_foreign) | foreign_calls
arbitrary_messages = st.builds(
    Message,
    role=st.sampled_from([Role.USER, Role.TOOL]),
    content=st.lists(common_parts, max_size=4).map(tuple),
    metadata=strategies.metadata,
) | st.builds(
    Message,
    role=st.just(Role.MODEL),
    content=st.lists(model_parts, max_size=6).map(tuple),
    metadata=strategies.metadata | st.just({"refusal": "No."}),
)
arbitrary_histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(arbitrary_messages, max_size=6).map(tuple),
)

Turn = tuple[bool, list[ContentPart]]  # whether it is the model's


def expected(history: History) -> History:
    """The history with exactly the documented losses."""
    turns: list[Turn] = []
    every_call = [call for message in history.conversation for call in message.tool_calls]
    theirs = {call.id for call in every_call if call.kind == "server"}
    theirs -= {call.id for call in every_call if call.kind != "server"}
    _say(turns, False, [say(text=history.context or "")])
    for message in history.conversation:
        if message.role is Role.MODEL:
            refusal = message.metadata.get("refusal")
            content = [each for part in message.content for each in _model_part(part)]
            _say(turns, True, [*content, *([say(text=refusal)] if isinstance(refusal, str) else [])])
            ours = {call.id for call in message.tool_calls if call.kind != "server"}
            late = [
                each for each in message.tool_results if each.id in ours and "anthropic" not in each.metadata
            ]
            _say(turns, False, [_result(each) for each in late])
        else:
            content = [each for part in message.content for each in _user_part(part, theirs)]
            _say(turns, False, content)
    kept: list[Turn] = []
    for by_model, content in _without_unmatched(turns):
        while by_model and content and isinstance(content[-1], ContentPartReasoning):
            content = content[:-1]
        _say(kept, by_model, content)
    if kept and kept[0][0]:
        kept.insert(0, (False, [say(text=converter.opening)]))
    if kept and kept[-1][0] and isinstance(last := kept[-1][1][-1], ContentPartText):
        kept[-1][1][-1] = last.model_copy(update={"text": last.text.rstrip()})
    system = history.system_message
    return History(
        system_message=system if system and system.strip() else None, conversation=tuple(_messages(kept))
    )


def _own_only(part: Any) -> Any:
    fields = part.metadata.get("anthropic")
    return part.model_copy(update={"metadata": {"anthropic": fields} if fields else {}})


def _model_part(part: ContentPart) -> list[ContentPart]:
    fields: dict[str, Any] = part.metadata.get("anthropic") or {}
    match part:
        case ContentPartText():
            return [_own_only(part)]
        case ContentPartReasoning():
            return [_own_only(part)] if fields and (part.signature or "data" in fields) else []
        case ContentPartToolCall():
            if part.kind == "server":
                return [part] if fields else []
            values = sent_arguments(part)
            return [Call(id=part.id, name=part.name, arguments=values)]
        case ContentPartToolResult():
            return [part] if fields else []
        case ContentPartFile():
            note = f"[{part.filename or part.url}]({part.url})"
            if part.data is not None:
                facts = (f"file {part.filename}".strip(), part.media_type, f"{len(part.data)} bytes")
                note = f"[{', '.join(facts)}]"
            return [say(text=note)]
        case ContentPartData():
            return [say(text=json.dumps(part.data, ensure_ascii=False, separators=(",", ":")))]


def _user_part(part: ContentPart, theirs: set[str]) -> list[ContentPart]:
    match part:
        case ContentPartFile():
            return [after for file, after in files.values() if file == part]
        case ContentPartToolResult():
            return [] if part.id in theirs else [_result(part)]
        case ContentPartReasoning():
            return []
        case _:
            return _model_part(part)


def _result(part: ContentPartToolResult) -> ContentPartToolResult:
    (output,) = (after for before, after in outputs.values() if before == part.output)
    return Result(id=part.id, name="", output=output, is_error=part.is_error)


def _say(turns: list[Turn], by_model: bool, content: list[ContentPart]) -> None:
    """Add to the last turn or begin another; calls of ours stay behind text, results before all else."""
    for part in content:
        if isinstance(part, ContentPartText) and not part.text.strip():
            continue
        if not turns or turns[-1][0] is not by_model:
            turns.append((by_model, []))
        said = turns[-1][1]
        place = len(said)
        if by_model and isinstance(part, ContentPartText):
            while place and _is_ours(said[place - 1]):
                place -= 1
        elif not by_model and isinstance(part, Result):
            place = sum(isinstance(each, Result) for each in said)
        said.insert(place, part)


def _calls_theirs(part: ContentPart, call_id: str) -> bool:
    return isinstance(part, Call) and part.kind == "server" and part.id == call_id


def _is_ours(part: ContentPart) -> bool:
    return isinstance(part, Call) and part.kind != "server"


def _without_unmatched(turns: list[Turn]) -> list[Turn]:
    parts = [part for by_model, said in turns if by_model for part in said]
    answered = {
        part.id
        for place, part in enumerate(parts)
        if isinstance(part, Result) and any(_calls_theirs(each, part.id) for each in parts[:place])
    }
    asked: set[str] = set()
    kept: list[Turn] = []
    for place, (by_model, said) in enumerate(turns):
        following = turns[place + 1][1][0] if place + 1 < len(turns) else None
        content: list[ContentPart] = []
        for part in said:
            if by_model and isinstance(part, Call) and part.kind == "server":
                if part.id not in answered and following is not None and not isinstance(following, Result):
                    continue
                asked.add(part.id)
            elif by_model and isinstance(part, Result) and part.id not in asked:
                continue
            content.append(part)
        kept.append((by_model, content))
    return kept


def _messages(turns: list[Turn]) -> list[Message]:
    messages: list[Message] = []
    names: dict[str, str] = {}
    for by_model, content in turns:
        if by_model:
            annotations = [
                each
                for part in content
                if isinstance(part, ContentPartText)
                for each in part.metadata.get("anthropic", {}).get("citations", [])
            ]
            messages.append(
                model(*content, **({"extra": {"annotations": annotations}} if annotations else {}))
            )
            names |= {part.id: part.name for part in content if isinstance(part, Call)}
            continue
        results = [part for part in content if isinstance(part, Result)]
        named = [part.model_copy(update={"name": names.get(part.id, "unknown")}) for part in results]
        if named:
            messages.append(tool(*named))
        if len(results) < len(content):
            messages.append(user(*(part for part in content if not isinstance(part, Result))))
    return messages


@given(arbitrary_histories)
@settings(max_examples=200, deadline=None)
def test_a_history_comes_back_with_the_documented_losses_and_no_others(history: History) -> None:
    messages = converter.from_history(history)
    system = converter.system_prompt(history)
    assert converter.to_history(messages, system=system) == expected(history)
    assert converter.to_history(json.loads(json.dumps(messages)), system=system) == expected(history)


@given(arbitrary_histories)
@settings(deadline=None)
def test_what_came_back_goes_out_the_same(history: History) -> None:
    messages = converter.from_history(history)
    assert converter.from_history(converter.to_history(messages)) == messages


@given(arbitrary_histories)
@settings(deadline=None)
def test_what_is_sent_keeps_the_rules_of_the_api(history: History) -> None:
    messages = cast("list[dict[str, Any]]", converter.from_history(history))
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + [
        "user"
    ] * (len(messages) % 2)
    for message in messages:
        content = message["content"]
        assert content
        assert all(block["text"].strip() for block in content if block["type"] == "text")
        if message["role"] == "assistant":
            assert content[-1]["type"] not in ("thinking", "redacted_thinking")
        else:
            kinds = [block["type"] == "tool_result" for block in content]
            assert kinds == sorted(kinds, reverse=True)


# --- what other programs write ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected_parts"),
    [
        ("hi", (say(text="hi"),)),
        ("", ()),
        (None, ()),
        ([], ()),
        (["a", {"type": "text", "text": "b"}], (say(text="a"), say(text="b"))),
        (tuple(text("a")), (say(text="a"),)),
    ],
)
def test_content_is_taken_in_every_form(content: object, expected_parts: tuple[ContentPart, ...]) -> None:
    for role, message in (("user", user(*expected_parts)), ("assistant", model(*expected_parts))):
        assert received({"role": role, "content": content}) == (message,)


def test_system_messages_in_the_conversation_join_the_instructions() -> None:
    messages: list[Any] = [
        HI_PARAM,
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": text("Be quick.")},
    ]
    history = converter.to_history(messages, system="Be brief.")
    assert history == History(system_message="Be brief.\n\nBe kind.\n\nBe quick.", conversation=(HI,))


def test_results_find_the_names_of_their_calls() -> None:
    assert received(
        answers(WEATHER_PARAM),
        asks({**SUNNY_PARAM, "content": text("Sunny, ", "72°F")}),
        asks({"type": "tool_result", "tool_use_id": "other"}, *text("thanks")),
        asks(SUNNY_PARAM),
    ) == (
        model(WEATHER),
        tool(SUNNY, Result(id="other", name="unknown", output="")),
        user(say(text="thanks")),
        tool(SUNNY),
    )


def test_the_packages_own_objects_may_stand_among_the_messages() -> None:
    param = {**PACKAGE_MESSAGE, "content": [THOUGHT_PARAM, *text("Look."), WEATHER_PARAM]}
    answer = PackageMessage.model_validate(param)
    history = converter.to_history([cast("Any", HI_PARAM), answer, cast("Any", asks(SUNNY_PARAM))])
    whole = model(THOUGHT, say(text="Look."), WEATHER)
    assert [message.content for message in history.conversation] == [HI.content, whole.content, (SUNNY,)]
    # As most programs write it: the answer's content in a message of their own.
    assert received({"role": "assistant", "content": answer.content}) == (whole,)
    assert received(asks(package_block.validate_python(text("a")[0]))) == (user(say(text="a")),)


def test_blocks_that_the_user_may_send_and_that_are_no_file_are_data() -> None:
    document = {"type": "document", "source": {"type": "content", "content": text("a")}, "title": "A"}
    upload = {"type": "container_upload", "file_id": "f"}
    message = user(
        own(ContentPartData(data=document), **document), own(ContentPartData(data=upload), **upload)
    )
    assert received(asks(document, upload)) == (message,)
    assert sent(message) == [asks(document, upload)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "critic", "content": "x"}, "the role 'critic'"),
    ({"content": "x"}, "the role None"),
    ({"role": "user", "content": 1}, "content of type int"),
    ({"role": "assistant", "content": {"type": "text"}}, "content of type dict"),
    ({"role": "user", "content": [{"text": "x"}]}, "a content block of type None"),
    ({"role": "assistant", "content": [1]}, "a content block of type None"),
    ({"role": "system", "content": [PNG_PARAM]}, "where only text may stand"),
    ({"role": "user", "content": [{**PNG_PARAM, "source": {"type": "base64", "data": "*"}}]}, "base64"),
    ({"role": "user", "content": [{**PNG_PARAM, "source": {"type": "url"}}]}, "ContentPartFile"),
    ({"role": "user", "content": [{**SUNNY_PARAM, "content": [{}]}]}, "a content block of type None"),
]


@pytest.mark.parametrize(("message", "complaint"), REFUSED)
def test_what_the_messages_api_does_not_define_is_refused(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="message 1: ") as caught:
        received(HI_PARAM, message)
    assert complaint in str(caught.value)


# --- whole responses, streams, results --------------------------------------------------------------------------

PACKAGE_MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [THOUGHT_PARAM, *text("Let me see."), WEATHER_PARAM],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
}
ANSWER = model(THOUGHT, say(text="Let me see."), WEATHER, finish_reason="tool_calls")


def test_a_whole_response_is_a_message() -> None:
    assert converter.to_message(PACKAGE_MESSAGE) == ANSWER
    assert converter.to_message(PackageMessage.model_validate(PACKAGE_MESSAGE)) == ANSWER
    assert converter.to_message({"role": "assistant", "content": "Hi"}) == model(say(text="Hi"))


@pytest.mark.parametrize("content", [None, [], [None, 1, "a"], 1, "", {}])
def test_a_response_without_an_answer_is_an_empty_message(content: object) -> None:
    assert converter.to_message({"content": content}) == model()


def test_a_stream_is_a_message() -> None:
    assert converter.to_message(wrap_chunk(PACKAGE_MESSAGE)) == ANSWER
    assert converter.to_message(iter(())) == model()


def test_an_answer_can_be_sent_back_with_the_results_of_its_tools() -> None:
    answer = converter.to_message(PACKAGE_MESSAGE)
    request = [
        *sent(HI, answer),
        *converter.tool_result_messages([SUNNY, Result(id="b", name="f", output=[1])]),
    ]
    assert request == [
        HI_PARAM,
        answers(THOUGHT_PARAM, *text("Let me see."), WEATHER_PARAM),
        asks(SUNNY_PARAM, {"type": "tool_result", "tool_use_id": "b", "content": "[1]"}),
    ]
    assert converter.tool_result_messages([]) == []


def test_a_wrapper_is_made_over_the_packages_event() -> None:
    event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    wrapper = converter.create_chunk_wrapper(package_event.validate_python(event))
    assert (wrapper.raw, wrapper.get_text()) == (event, "a")
    assert converter.create_chunk_wrapper({"type": "ping"}) == AnthropicEventWrapper({"type": "ping"})
