"""The Anthropic converter: each row of its tables in both directions, the round trip, and each documented loss."""

import json
import re
from typing import Any, cast

import pytest
from anthropic.types.beta import BetaMessageParam
from pydantic import TypeAdapter

from support.anthropic_messages import (
    FOUND,
    FOUND_PARAM,
    HI,
    HI_PARAM,
    PNG,
    PNG_PARAM,
    REDACTED,
    SEARCH,
    SUNNY,
    SUNNY_PARAM,
    THOUGHT,
    THOUGHT_PARAM,
    WEATHER,
    WEATHER_PARAM,
    Call,
    File,
    Result,
    answers,
    asks,
    converter,
    own,
    received,
    say,
    sent,
)
from support.messages import model, text_entries, tool, user
from tailrace.wrappers import ContentPartData, ContentPartReasoning, History, Message
from tailrace.wrappers.conversion.result_repair import with_repaired_results
from tailrace.wrappers.conversion.tool_ids import with_matched_ids

package_messages: TypeAdapter[Any] = TypeAdapter(list[BetaMessageParam])


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*sent(*messages))


REDACTED_PARAM = {"type": "redacted_thinking", "data": "x"}

SEARCH_PARAM = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}}

EPHEMERAL = {"type": "ephemeral"}
COMPACTION = {"type": "compaction", "content": "So far.", "encrypted_content": "x"}
PAGES = {"type": "search_result", "source": "a", "title": "A", "content": text_entries("b")}

# Rows of the tables: a conversation in the common format and the messages of its request, converted both ways.
ROWS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "user text": ([HI], [HI_PARAM]),
    "user text in several parts": ([user(say(text="a"), say(text="b\n"))], [asks(*text_entries("a", "b\n"))]),
    "turns": (
        [HI, model(say(text="Hello."), say(text=" You?")), HI],
        [HI_PARAM, answers(*text_entries("Hello.", " You?")), HI_PARAM],
    ),
    "text that looks like reasoning": (
        [HI, model(say(text="<think>a</think>b"))],
        [HI_PARAM, answers(*text_entries("<think>a</think>b"))],
    ),
    "fields of Anthropic's own": (
        [user(own(say(text="hi"), cache_control=EPHEMERAL), own(PNG, cache_control=EPHEMERAL))],
        [asks({**text_entries("hi")[0], "cache_control": EPHEMERAL}, {**PNG_PARAM, "cache_control": EPHEMERAL})],
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
    "a block of this API only": (
        [user(own(ContentPartData(data=PAGES), **PAGES))],
        [asks(PAGES)],
    ),
    "a round of tools": (
        [HI, model(say(text="Let me see."), WEATHER, Call(id="b", name="now")), tool(SUNNY, Result(id="b", name="now", output=""))],
        [
            HI_PARAM,
            answers(*text_entries("Let me see."), WEATHER_PARAM, {"type": "tool_use", "id": "b", "name": "now", "input": {}}),
            asks(SUNNY_PARAM, {"type": "tool_result", "tool_use_id": "b", "content": ""}),
        ],
    ),
    "results and the user's text after them": (
        [HI, model(WEATHER), tool(own(SUNNY, cache_control=EPHEMERAL)), user(say(text="So?"))],
        [HI_PARAM, answers(WEATHER_PARAM), asks({**SUNNY_PARAM, "cache_control": EPHEMERAL}, *text_entries("So?"))],
    ),
    "a failed tool": (
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"is_error": True}))],
        [HI_PARAM, answers(WEATHER_PARAM), asks({**SUNNY_PARAM, "is_error": True})],
    ),
    "an output with an image": (
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": [*text_entries("Look:"), PNG_PARAM]}))],
        [HI_PARAM, answers(WEATHER_PARAM), asks({**SUNNY_PARAM, "content": [*text_entries("Look:"), PNG_PARAM]})],
    ),
    "Anthropic's own reasoning in its place": (
        [HI, model(REDACTED, THOUGHT, say(text="a"), own(THOUGHT, type="thinking", depth=1), WEATHER), tool(SUNNY)],
        [
            HI_PARAM,
            answers(REDACTED_PARAM, THOUGHT_PARAM, *text_entries("a"), {**THOUGHT_PARAM, "depth": 1}, WEATHER_PARAM),
            asks(SUNNY_PARAM),
        ],
    ),
    "redacted reasoning has encrypted content": (
        [HI, model(own(ContentPartReasoning(text="", signature="s"), type="thinking"), say(text="a"))],
        [HI_PARAM, answers({"type": "thinking", "thinking": "", "signature": "s"}, *text_entries("a"))],
    ),
    "tools run by Anthropic": (
        [HI, model(say(text="Look:"), SEARCH, FOUND, say(text="There."))],
        [HI_PARAM, answers(*text_entries("Look:"), SEARCH_PARAM, FOUND_PARAM, *text_entries("There."))],
    ),
    "a paused response": ([HI, model(SEARCH)], [HI_PARAM, answers(SEARCH_PARAM)]),
    "a program run by Anthropic that calls client tools": (
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
            answers(FOUND_PARAM, *text_entries("There.")),
            HI_PARAM,
        ],
    ),
    "a compaction": (
        [HI, model(own(ContentPartData(data=COMPACTION), **COMPACTION), say(text="a"))],
        [HI_PARAM, answers(COMPACTION, *text_entries("a"))],
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


# --- complete conversations -------------------------------------------------------------------------------------


def test_the_system_message_stands_beside_the_messages() -> None:
    history = History(system_message="Be brief.", conversation=(HI,))
    messages = converter.from_history(history)
    assert messages == [HI_PARAM]
    assert converter.system_prompt(history) == "Be brief."
    assert converter.to_history(messages, system=converter.system_prompt(history)) == history
    two_blocks = converter.to_history(messages, system=text_entries("Be brief.", "Be kind."))
    assert two_blocks.system_message == "Be brief.\n\nBe kind."
    assert converter.to_history(messages) == History(conversation=(HI,))


@pytest.mark.parametrize("system", [None, "", " \n"])
def test_empty_instructions_are_none(system: str | None) -> None:
    assert converter.system_prompt(History(system_message=system)) is None


def test_context_is_the_first_user_message() -> None:
    history = History(context="Background.", conversation=(HI,))
    assert converter.from_history(history) == [asks(*text_entries("Background.", "hi"))]


def test_the_first_message_is_the_users() -> None:
    assert sent(model(say(text="Welcome!")), HI) == [
        asks(*text_entries("(The assistant speaks first.)")), answers(*text_entries("Welcome!")), HI_PARAM,
    ]  # fmt: skip


def test_ids_that_match_the_pattern_are_sent_unchanged() -> None:
    assert converter.id_pattern is not None
    assert converter.id_pattern.fullmatch("toolu_01-A")
    assert not any(converter.id_pattern.fullmatch(each) for each in ("", "a.b", "a|b", "a\n", "é"))
    assert isinstance(converter.id_pattern, re.Pattern)
    assert sent(HI, model(Call(id="a.b", name="f")))[1]["content"][0]["id"] == "a.b"


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
    repaired = with_repaired_results(with_matched_ids(foreign, pattern=converter.id_pattern))
    messages = cast("list[dict[str, Any]]", converter.from_history(repaired))
    package_messages.validate_python(messages)
    assert messages[1:] == [
        answers(*text_entries("Welcome!")),
        HI_PARAM,
        answers(
            *text_entries("One moment."),
            {"type": "tool_use", "id": "call00001", "name": "f", "input": {"input": "do it"}},
        ),
        asks(
            {
                "type": "tool_result", "tool_use_id": "call00001", "is_error": True,
                "content": "There is no result: the conversation went on before this tool had answered.",
            },
            *text_entries("hi"),
        ),
        answers(*text_entries("I won't.")),
    ]  # fmt: skip


# Each documented loss: the message after a greeting, and the message after the round trip.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "messages of one role become one": (
        [user(say(text="a")), model(say(text="b")), model(say(text="c")), user(say(text="d")), user(say(text="e"))],
        [user(say(text="hi"), say(text="a")), model(say(text="b"), say(text="c")), user(say(text="d"), say(text="e"))],
    ),
    "blank text is omitted, and so are blank messages": (
        [model(say(text=" \n")), user(say(text="a"), say(text="")), user()],
        [user(say(text="hi"), say(text="a"))],
    ),
    "white space at the end is omitted": (
        [model(say(text="a "), say(text=" b \n"))],
        [HI, model(say(text="a "), say(text=" b"))],
    ),
    "text goes before calls of client tools": (
        [model(say(text="a"), WEATHER, say(text="b"), Call(id="b", name="f"), say(text="c")), tool(SUNNY)],
        [HI, model(say(text="a"), say(text="b"), say(text="c"), WEATHER, Call(id="b", name="f")), tool(SUNNY)],
    ),
    "reasoning without a signature, or of other providers, is omitted": (
        [model(
            own(ContentPartReasoning(text="hm"), type="thinking"), ContentPartReasoning(text="hm", signature="s"),
            own(ContentPartReasoning(text="hm"), type="redacted_thinking_of_old"), say(text="a"),
        )],
        [HI, model(say(text="a"))],
    ),
    "reasoning at the end is omitted": (
        [model(say(text="a"), THOUGHT, REDACTED), HI, model(THOUGHT), HI],
        [HI, model(say(text="a")), user(say(text="hi"), say(text="hi"))],
    ),
    "the user's reasoning is omitted": ([user(ContentPartReasoning(text="hm"), say(text="a"))], [user(say(text="hi"), say(text="a"))]),
    "tools run by other providers are omitted": (
        [model(say(text="a"), Call(id="x", name="f", kind="server"), Result(id="x", name="f", output=1)), tool(Result(id="x", name="f"))],
        [HI, model(say(text="a"))],
    ),
    "a call without its result is omitted when the user has continued": (
        [model(say(text="a"), SEARCH), HI],
        [HI, model(say(text="a")), HI],
    ),
    "a result without its call is omitted": ([model(FOUND, say(text="a"))], [HI, model(say(text="a"))]),
    "a result before its call is omitted, and so is the call": (
        [model(FOUND, SEARCH, say(text="a")), HI],
        [HI, model(say(text="a")), HI],
    ),
    "a client tool's result in a model message follows it": (
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
    "a model's file is named in text": (
        [model(File(data=b"abc", media_type="image/png", filename="cat.png"), File(url="https://a/b.png"))],
        [HI, model(say(text="[file cat.png, image/png, 3 bytes]"), say(text="[https://a/b.png](https://a/b.png)"))],
    ),
    "arguments that are not an object become one": (
        [model(Call(id="a", name="f", arguments_text="[1]"), Call(id="b", name="f", kind="custom", arguments_text=""))],
        [HI, model(Call(id="a", name="f", arguments={"input": "[1]"}), Call(id="b", name="f", arguments={"input": ""}))],
    ),
    "a call's kind and its generated-id flag are lost": (
        [model(Call(id="a", name="f", kind="custom", arguments={"n": 1}, synthetic_id=True))],
        [HI, model(Call(id="a", name="f", arguments={"n": 1}))],
    ),
    "an output that is not text becomes its JSON": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": {"t": [72, "°F"]}}), Result(id="b", name="f"))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": '{"t": [72, "°F"]}'}), Result(id="b", name="unknown", output="null"))],
    ),
    "an output of text blocks alone becomes its JSON": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": text_entries("a")}))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": '[{"type": "text", "text": "a"}]'}))],
    ),
    "an output with blocks of other providers becomes its JSON": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": [{"type": "image", "data": "a", "mimeType": "b"}]}))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": '[{"type": "image", "data": "a", "mimeType": "b"}]'}))],
    ),
    "an output's blocks lose blank text": (
        [model(WEATHER), tool(SUNNY.model_copy(update={"output": [*text_entries(""), PNG_PARAM]}))],
        [HI, model(WEATHER), tool(SUNNY.model_copy(update={"output": [PNG_PARAM]}))],
    ),
    "a refusal becomes text": ([model(say(text="No: "), refusal="I won't.")], [HI, model(say(text="No: "), say(text="I won't."))]),
    "metadata is not sent": (
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
        asks({**fields, **text_entries("a")[0]}),
        answers({**fields, **WEATHER_PARAM}),
        asks({**fields, **SUNNY_PARAM}),
    ]


def test_an_empty_block_is_omitted() -> None:
    assert sent(HI, model(own(ContentPartData(data=1), type="text"), say(text="a"))) == [
        HI_PARAM,
        answers(*text_entries("a")),
    ]
