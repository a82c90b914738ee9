"""The Responses converter: each row of its tables in both directions, the round trip, and each documented loss."""

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseInputItemParam, ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from support import strategies
from support.arguments import as_sent
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
from tailrace.wrappers.conversion.result_repair import NO_RESULT
from tailrace.wrappers.openai_responses import ResponsesConverter, ResponsesDecoder

Fields = dict[str, Any]

converter = ResponsesConverter()

package_items: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)
package_output: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
package_events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def sent(*messages: Message) -> list[Fields]:
    """The items of the request for a conversation."""
    return cast("list[Fields]", converter.from_history(History(conversation=messages)))


def received(*items: Any) -> tuple[Message, ...]:
    return converter.to_history(cast("Sequence[ResponseInputItemParam]", items)).conversation


def own(**fields: Any) -> Fields:
    return {"openai-responses": fields}


def thought(text: str, **fields: Any) -> ContentPartReasoning:
    return ContentPartReasoning(text=text, metadata=own(**fields))


def assistant_item(*texts: str, **fields: Any) -> Fields:
    none: list[Any] = []
    content = [{"type": "output_text", "text": text, "annotations": none} for text in texts]
    return {"type": "message", "role": "assistant", "content": content, **fields}


def user_item(*content: Fields) -> Fields:
    return {"type": "message", "role": "user", "content": list(content)}


def input_text(text: str) -> Fields:
    return {"type": "input_text", "text": text}


say = ContentPartText
ASK = user(say(text="What's the weather?"))
ASK_ITEM = user_item(input_text("What's the weather?"))
CALL = ContentPartToolCall(id="call_1", name="get_weather", arguments={"location": "Oakland"})
CALL_ITEM = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"location": "Oakland"}',
}
RESULT = ContentPartToolResult(id="call_1", name="get_weather", output="Sunny, 72°F")
RESULT_ITEM = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny, 72°F"}
ROUND = [model(CALL), tool(RESULT)]
SEALED: Fields = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "seal"}
WEB_SEARCH: Fields = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "weather"},
}
SEARCHED = ContentPartToolCall(
    id="ws_1",
    name="web_search",
    kind="server",
    arguments={"action": WEB_SEARCH["action"]},
    metadata=own(item=WEB_SEARCH),
)
FILE_SEARCH = {
    "type": "file_search_call",
    "id": "fs_1",
    "status": "completed",
    "queries": ["a"],
    "results": [{"text": "b"}],
}
LOCAL_SHELL: Fields = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
RUN_LOCALLY = ContentPartToolCall(
    id="call_1",
    name="local_shell",
    arguments={"action": LOCAL_SHELL["action"]},
    metadata=own(item=LOCAL_SHELL),
)
SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_1",
    "action": {"commands": ["ls"]},
    "environment": {"type": "container_reference", "container_id": "c"},
}
SHELL_OUTPUT = {
    "type": "shell_call_output",
    "id": "sho_1",
    "call_id": "call_1",
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "seal"}

# Rows of the tables: a conversation in the common format and the items of its request, converted both ways.
ROWS: dict[str, tuple[list[Message], list[Fields]]] = {
    "user text": ([user(say(text="hi"))], [user_item(input_text("hi"))]),
    "user text in several parts": (
        [user(say(text="a"), say(text=""))],
        [user_item(input_text("a"), input_text(""))],
    ),
    "user without content": ([user()], [user_item()]),
    "user with fields of the API's own": (
        [user(say(text="a", metadata=own(prompt_cache_breakpoint={"mode": "explicit"})))],
        [user_item({**input_text("a"), "prompt_cache_breakpoint": {"mode": "explicit"}})],
    ),
    "an image by value": (
        [user(ContentPartFile(data=b"\x89PNG", media_type="image/png"))],
        [user_item({"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw=="})],
    ),
    "another file": (
        [user(ContentPartFile(data=b"%PDF", media_type="application/pdf", filename="a.pdf"))],
        [
            user_item(
                {
                    "type": "input_file",
                    "file_data": "data:application/pdf;base64,JVBERg==",
                    "filename": "a.pdf",
                }
            )
        ],
    ),
    "model text": ([model(say(text="hello"))], [assistant_item("hello")]),
    "model text in several parts": ([model(say(text="a"), say(text="b"))], [assistant_item("a", "b")]),
    "model text of several messages": (
        [
            model(
                say(text="a", metadata=own(phase="commentary")),
                say(text="b", metadata=own(phase="commentary")),
                say(text="c", metadata=own(phase="final_answer")),
            )
        ],
        [assistant_item("a", "b", phase="commentary"), assistant_item("c", phase="final_answer")],
    ),
    "model text with citations": (
        [model(say(text="a", metadata=own(annotations=[{"type": "url_citation", "url": "u"}])))],
        [
            {
                "type": "message",
                "role": "assistant",
                "content": [
                    {
                        "type": "output_text",
                        "text": "a",
                        "annotations": [{"type": "url_citation", "url": "u"}],
                    }
                ],
            }
        ],
    ),
    "a refusal": (
        [model(refusal="I can't help with that.")],
        [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "I can't help with that."}],
            }
        ],
    ),
    "sealed reasoning": (
        [model(thought("", id="rs_1", encrypted_content="seal"), say(text="hi"))],
        [SEALED, assistant_item("hi")],
    ),
    "encrypted reasoning with a summary and further fields": (
        [
            model(
                thought("a", type="summary_text"),
                thought("b", type="summary_text"),
                thought("c", type="reasoning_text", id="rs_1", encrypted_content="seal", format="v1"),
                say(text="hi"),
            )
        ],
        [
            {
                **SEALED,
                "format": "v1",
                "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
                "content": [{"type": "reasoning_text", "text": "c"}],
            },
            assistant_item("hi"),
        ],
    ),
    "several reasoning items": (
        [
            model(
                thought("", id="rs_1", encrypted_content="seal"),
                thought("a", type="summary_text", id="rs_2", encrypted_content="seal"),
                CALL,
            ),
            tool(RESULT),
        ],
        [
            SEALED,
            {**SEALED, "id": "rs_2", "summary": [{"type": "summary_text", "text": "a"}]},
            CALL_ITEM,
            RESULT_ITEM,
        ],
    ),
    "a call and its result": (ROUND, [CALL_ITEM, RESULT_ITEM]),
    "text between calls": (
        [
            model(say(text="a"), CALL, say(text="b"), ContentPartToolCall(id="call_2", name="now")),
            tool(RESULT, ContentPartToolResult(id="call_2", name="now", output="noon")),
        ],
        [
            assistant_item("a"),
            CALL_ITEM,
            assistant_item("b"),
            {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": "{}"},
            RESULT_ITEM,
            {"type": "function_call_output", "call_id": "call_2", "output": "noon"},
        ],
    ),
    "a call with fields of the API's own": (
        [model(CALL.model_copy(update={"metadata": own(namespace="weather")})), tool(RESULT)],
        [{**CALL_ITEM, "namespace": "weather"}, RESULT_ITEM],
    ),
    "a result with fields of the API's own": (
        [model(CALL), tool(RESULT.model_copy(update={"metadata": own(namespace="weather")}))],
        [CALL_ITEM, {**RESULT_ITEM, "namespace": "weather"}],
    ),
    "a result with an image": (
        [
            model(CALL),
            tool(
                RESULT.model_copy(
                    update={"output": [input_text("a"), {"type": "input_image", "file_id": "f"}]}
                )
            ),
        ],
        [CALL_ITEM, {**RESULT_ITEM, "output": [input_text("a"), {"type": "input_image", "file_id": "f"}]}],
    ),
    "a custom tool": (
        [
            model(ContentPartToolCall(id="call_1", name="run", kind="custom", arguments_text="print(1)")),
            tool(ContentPartToolResult(id="call_1", name="run", output="1")),
        ],
        [
            {"type": "custom_tool_call", "call_id": "call_1", "name": "run", "input": "print(1)"},
            {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"},
        ],
    ),
    "a tool run by the provider": (
        [model(SEARCHED, say(text="Sunny."))],
        [WEB_SEARCH, assistant_item("Sunny.")],
    ),
    "a tool run by the provider, with its result": (
        [
            model(
                ContentPartToolCall(
                    id="fs_1",
                    name="file_search",
                    kind="server",
                    arguments={"queries": ["a"]},
                    metadata=own(item=FILE_SEARCH),
                ),
                ContentPartToolResult(id="fs_1", name="file_search", output=[{"text": "b"}]),
            )
        ],
        [FILE_SEARCH],
    ),
    "a tool run by the provider, with its result as an item": (
        [
            model(
                ContentPartToolCall(
                    id="call_1",
                    name="shell",
                    kind="server",
                    arguments={"action": SHELL["action"], "environment": SHELL["environment"]},
                    metadata=own(item=SHELL),
                ),
                ContentPartToolResult(
                    id="call_1", name="shell", output=SHELL_OUTPUT["output"], metadata=own(item=SHELL_OUTPUT)
                ),
            )
        ],
        [SHELL, SHELL_OUTPUT],
    ),
    "a generated image": (
        [
            model(
                ContentPartToolCall(
                    id="ig_1",
                    name="image_generation",
                    kind="server",
                    metadata=own(item={"type": "image_generation_call", "id": "ig_1", "status": "completed"}),
                ),
                ContentPartFile(data=b"\x89PNG", media_type="image/png", metadata=own(id="ig_1")),
            )
        ],
        [{"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw=="}],
    ),
    "a tool of the API that the caller ran": (
        [
            model(RUN_LOCALLY),
            tool(ContentPartToolResult(id="call_1", name="local_shell", output="a.txt")),
        ],
        [LOCAL_SHELL, {"type": "local_shell_call_output", "id": "call_1", "output": "a.txt"}],
    ),
    "a tool of the API that the caller ran, with more than its output": (
        [
            model(RUN_LOCALLY),
            tool(
                ContentPartToolResult(
                    id="call_1",
                    name="local_shell",
                    output="a.txt",
                    metadata=own(
                        item={
                            "type": "local_shell_call_output",
                            "id": "call_1",
                            "output": "a.txt",
                            "status": "completed",
                        }
                    ),
                )
            ),
        ],
        [
            LOCAL_SHELL,
            {"type": "local_shell_call_output", "id": "call_1", "output": "a.txt", "status": "completed"},
        ],
    ),
    "an item of another type": (
        [model(ContentPartData(data={"type": "compaction"}, metadata=own(item=COMPACTION)), say(text="a"))],
        [COMPACTION, assistant_item("a")],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    messages, items = ROWS[name]
    assert sent(*messages) == items
    assert received(*items) == tuple(messages)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_sent_is_valid_by_the_packages_own_types(name: str) -> None:
    for item in ROWS[name][1]:
        # The package accepts an earlier message of the model only with its id.
        old = {"id": "msg_1", "status": "completed"} if item.get("role") == "assistant" else {}
        package_items.validate_python({**item, **old})


def test_a_complete_history_goes_out_in_order() -> None:
    history = History(
        system_message="You are a helper.",
        context="The user is in Oakland.",
        conversation=(ASK, *ROUND, model(say(text="Sunny."))),
    )
    assert converter.from_history(history) == [
        {"type": "message", "role": "system", "content": [input_text("You are a helper.")]},
        user_item(input_text("The user is in Oakland.")),
        ASK_ITEM,
        CALL_ITEM,
        RESULT_ITEM,
        assistant_item("Sunny."),
    ]


def test_an_empty_system_message_is_not_none() -> None:
    history = History(system_message="")
    assert converter.to_history(converter.from_history(history)) == history


# --- the round trip ---------------------------------------------------------------------------------------------


def expected(message: Message) -> list[Message]:
    """The message after the round trip, with every loss that the histories can have."""
    content = [part for part in message.content if not (isinstance(part, ContentPartText) and not part.text)]
    content = [as_sent(part) if isinstance(part, ContentPartToolCall) else part for part in content]
    if message.role is not Role.MODEL:
        content = list(message.content)
    while content and isinstance(content[-1], ContentPartReasoning) and "refusal" not in message.metadata:
        content.pop()
    metadata = {name: value for name, value in message.metadata.items() if name == "refusal"}
    if message.role is Role.MODEL and not content and not metadata:
        return []
    return [message.model_copy(update={"content": tuple(content), "metadata": metadata})]


ids = st.integers(0, 10**9)


def sealed_thought(text: str, number: int) -> ContentPartReasoning:
    kind = {"type": "summary_text"} if text else {}
    return thought(text, **kind, id=f"rs_{number}", encrypted_content="seal")


sealed = st.builds(sealed_thought, strategies.texts, ids)
phases = st.sampled_from([{}, own(phase="commentary"), own(phase="final_answer")])
model_texts = st.builds(ContentPartText, text=strategies.texts, metadata=phases)
user_files = st.builds(
    ContentPartFile,
    data=st.binary(max_size=6),
    media_type=st.sampled_from(["image/png", "audio/wav", "audio/mpeg", "image/svg+xml"]),
) | st.builds(
    ContentPartFile,
    data=st.binary(max_size=6),
    media_type=st.sampled_from(["application/pdf", "text/plain;charset=utf-8", "video/mp4"]),
    filename=strategies.names,
) | st.sampled_from(
    [
        ContentPartFile(url="https://example.com/a.webp", media_type="image/webp"),
        ContentPartFile(url="https://example.com/a", media_type="image/*"),
        ContentPartFile(url="https://example.com/a.pdf"),
        ContentPartFile(url="openai-file:file-1"),
        ContentPartFile(url="openai-file:file-1", media_type="image/*"),
    ]
)  # fmt: skip
user_messages = st.lists(st.builds(ContentPartText, text=strategies.texts) | user_files, max_size=4).map(
    lambda content: user(*content)
)


@st.composite
def rounds(draw: st.DrawFn, number: int) -> list[Message]:
    """One round of the conversation: the user's message, the model's text and calls, and the results."""
    content: list[ContentPart] = []
    results: list[ContentPart] = []
    for place in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["text", "reasoning", "call", "custom", "server", "item"]))
        if kind == "text":
            content.append(draw(model_texts))
        elif kind == "reasoning":
            content.append(draw(sealed))
        elif kind == "server":
            item = {**WEB_SEARCH, "id": f"ws_{number}_{place}"}
            content.append(SEARCHED.model_copy(update={"id": item["id"], "metadata": own(item=item)}))
        elif kind == "item":
            content.append(ContentPartData(data={"type": "compaction"}, metadata=own(item=COMPACTION)))
        else:
            call_id = f"call_{number}_{place}"
            call = draw(strategies.parsed_tool_calls).model_copy(update={"id": call_id})
            if kind == "custom":
                text = draw(strategies.texts)
                call = ContentPartToolCall(id=call_id, name=call.name, kind="custom", arguments_text=text)
            content.append(call)
            results.append(ContentPartToolResult(id=call_id, name=call.name, output=draw(strategies.texts)))
    metadata = {"refusal": "no"} if draw(st.booleans()) else {}
    spoken = [draw(user_messages), model(*content, **metadata, finish_reason="stop")]
    return [*spoken, tool(*results)] if results else spoken


@st.composite
def histories(draw: st.DrawFn) -> History:
    turns = [draw(rounds(number)) for number in range(draw(st.integers(0, 3)))]
    return History(
        system_message=draw(st.none() | strategies.texts),
        conversation=tuple(message for turn in turns for message in turn),
    )


@given(histories())
@settings(deadline=None)
def test_a_history_comes_back_as_it_went_out(history: History) -> None:
    items = converter.from_history(history)
    wanted = [each for message in history.conversation for each in expected(message)]
    assert converter.to_history(items) == history.model_copy(update={"conversation": tuple(wanted)})
    assert converter.to_history(json.loads(json.dumps(items))) == converter.to_history(items)


@given(strategies.histories)
@settings(deadline=None)
def test_every_call_that_is_sent_has_an_id_of_its_own_that_the_api_takes(history: History) -> None:
    try:
        items = cast("list[Fields]", converter.from_history(history))
    except ValueError:
        return
    calls = [item["call_id"] for item in items if item["type"] in ("function_call", "custom_tool_call")]
    outputs = [item["call_id"] for item in items if item["type"].endswith("_output")]
    assert len(set(calls)) == len(calls)
    assert all(1 <= len(each) <= 64 for each in calls)
    assert set(outputs) <= set(calls)


def back(*messages: Message) -> tuple[Message, ...]:
    return converter.to_history(converter.from_history(History(conversation=messages))).conversation


LONG_ID = "call_" + "x" * 60
FOREIGN_SEARCH = ContentPartToolCall(
    id="srvtoolu_1", name="web_search", kind="server", metadata={"anthropic": {"type": "server_tool_use"}}
)

# Each documented loss: the message before and after the round trip.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "an id that is too long gets another": (
        [model(CALL.model_copy(update={"id": LONG_ID})), tool(RESULT.model_copy(update={"id": LONG_ID}))],
        [
            model(CALL.model_copy(update={"id": "call00000"})),
            tool(RESULT.model_copy(update={"id": "call00000"})),
        ],
    ),
    "a call without a result gets one": (
        [model(CALL), ASK],
        [
            model(CALL),
            tool(RESULT.model_copy(update={"output": json.dumps({"error": NO_RESULT})})),
            ASK,
        ],
    ),
    "a result without a call becomes text": (
        [ASK, tool(RESULT)],
        [ASK, user(say(text="The tool get_weather answered: Sunny, 72°F"))],
    ),
    "reasoning of another provider is omitted": (
        [model(ContentPartReasoning(text="hm", signature="s", metadata={"anthropic": {}}), say(text="hi"))],
        [model(say(text="hi"))],
    ),
    "reasoning without encrypted content is omitted": (
        [model(thought("hm", type="reasoning_text", id="rs_1"), thought("so", type="summary_text"), say(text="hi"))],
        [model(say(text="hi"))],
    ),
    "the start of reasoning with another provider's end is omitted": (
        [
            model(
                thought("hm", type="summary_text"),
                ContentPartReasoning(text="foreign"),
                thought("", id="rs_1", encrypted_content="seal"),
                say(text="hi"),
            )
        ],
        [model(thought("", id="rs_1", encrypted_content="seal"), say(text="hi"))],
    ),
    "reasoning at the end is omitted": (
        [model(say(text="hi"), thought("", id="rs_1", encrypted_content="seal"))],
        [model(say(text="hi"))],
    ),
    "the status of reasoning is lost": (
        [model(thought("", id="rs_1", encrypted_content="seal", status="incomplete"), say(text="hi"))],
        [model(thought("", id="rs_1", encrypted_content="seal"), say(text="hi"))],
    ),
    "ids and statuses of messages and calls are lost": (
        [
            model(
                say(text="a", metadata=own(id="msg_1", status="incomplete")),
                CALL.model_copy(update={"metadata": own(id="fc_1", status="incomplete")}),
            ),
            tool(RESULT),
        ],
        [model(say(text="a"), CALL), tool(RESULT)],
    ),
    "a tool run by another provider is omitted": (
        [
            model(
                FOREIGN_SEARCH,
                ContentPartToolResult(id="srvtoolu_1", name="web_search", output="Sunny"),
                say(text="Sunny."),
            )
        ],
        [model(say(text="Sunny."))],
    ),
    "an output that the API rejects for its tool is sent as a function's": (
        [
            model(
                ContentPartToolCall(
                    id="call_1",
                    name="computer",
                    arguments={"action": {"type": "screenshot"}},
                    metadata=own(item={"type": "computer_call", "id": "cu_1", "call_id": "call_1"}),
                )
            ),
            tool(ContentPartToolResult(id="call_1", name="computer", output="there is no screen")),
        ],
        [
            model(ContentPartToolCall(id="call_1", name="computer", arguments={"action": {"type": "screenshot"}})),
            tool(ContentPartToolResult(id="call_1", name="computer", output="there is no screen")),
        ],
    ),
    "a failure of one of the API's own tools is sent unchanged": (
        [model(RUN_LOCALLY), tool(ContentPartToolResult(id="call_1", name="local_shell", output="no", is_error=True))],
        [
            model(RUN_LOCALLY),
            tool(ContentPartToolResult(id="call_1", name="local_shell", output='{"error": "no"}')),
        ],
    ),
    "a result of one of the API's own tools is sent in its form": (
        [
            model(
                ContentPartToolCall(
                    id="call_1",
                    name="shell",
                    arguments={"action": SHELL["action"]},
                    metadata=own(item={**SHELL, "environment": None}),
                )
            ),
            tool(ContentPartToolResult(id="call_1", name="shell", output="a")),
        ],
        [
            model(
                ContentPartToolCall(
                    id="call_1",
                    name="shell",
                    arguments={"action": SHELL["action"]},
                    metadata=own(item={**SHELL, "environment": None}),
                )
            ),
            tool(ContentPartToolResult(id="call_1", name="shell", output=SHELL_OUTPUT["output"])),
        ],
    ),
    "data becomes its JSON": ([user(ContentPartData(data={"a": [1, "é"]}))], [user(say(text='{"a":[1,"é"]}'))]),
    "a model's data becomes its JSON": ([model(ContentPartData(data=[1]))], [model(say(text="[1]"))]),
    "a model's file is named in text": (
        [model(ContentPartFile(data=b"abc", media_type="image/png", filename="cat.png"))],
        [model(say(text="[file cat.png, image/png, 3 bytes]"))],
    ),
    "a model's link is named in text": (
        [model(ContentPartFile(url="https://example.com/a.png", filename="a"))],
        [model(say(text="[a](https://example.com/a.png)"))],
    ),
    "an empty text of the model is omitted": ([model(say(text=""), CALL), tool(RESULT)], ROUND),
    "a message without remaining parts is omitted": ([ASK, model(say(text="")), ASK], [ASK, ASK]),
    "consecutive messages of the model become one": (
        [model(say(text="a")), model(say(text="b", metadata=own(phase="final_answer")))],
        [model(say(text="a"), say(text="b", metadata=own(phase="final_answer")))],
    ),
    "a refusal goes last": (
        [model(CALL, refusal="no"), tool(RESULT)],
        [model(CALL, refusal="no"), tool(RESULT)],
    ),
    "arguments that do not parse become an object": (
        [
            model(CALL.model_copy(update={"arguments": {}, "arguments_text": '{"a": ', "arguments_error": "cut"})),
            tool(RESULT),
        ],
        [model(CALL.model_copy(update={"arguments": {"input": '{"a": '}})), tool(RESULT)],
    ),
    "an output that is not text becomes its JSON": (
        [model(CALL), tool(RESULT.model_copy(update={"output": {"t": [72, "°F"]}}))],
        [model(CALL), tool(RESULT.model_copy(update={"output": '{"t": [72, "°F"]}'}))],
    ),
    "a failure becomes an object with an error": (
        [model(CALL), tool(RESULT.model_copy(update={"output": "no such city", "is_error": True}))],
        [model(CALL), tool(RESULT.model_copy(update={"output": '{"error": "no such city"}'}))],
    ),
    "parts beside results become a message after them": (
        [model(CALL), user(say(text="also"), RESULT, say(text="this"))],
        [model(CALL), tool(RESULT), user(say(text="also"), say(text="this"))],
    ),
    "a result inside the model's message becomes a message": (
        [model(CALL, RESULT, say(text="Sunny."))],
        [model(CALL), tool(RESULT), model(say(text="Sunny."))],
    ),
    "reasoning in messages of other roles is omitted": ([tool(ContentPartReasoning(text="x"))], []),
    "metadata is not sent": (
        [model(say(text="a", metadata={"k": 1}), finish_reason="stop", extra={"annotations": []})],
        [model(say(text="a"))],
    ),
    "a custom tool's parsed arguments become text": (
        [
            model(CALL.model_copy(update={"kind": "custom", "arguments": {"a": 1}})),
            tool(RESULT),
        ],
        [
            model(CALL.model_copy(update={"kind": "custom", "arguments": {}, "arguments_text": '{"a": 1}'})),
            tool(RESULT),
        ],
    ),
    "a custom tool without input gets an empty one": (
        [model(CALL.model_copy(update={"kind": "custom", "arguments": {}})), tool(RESULT)],
        [model(CALL.model_copy(update={"kind": "custom", "arguments": {}, "arguments_text": ""})), tool(RESULT)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_the_documented_one(name: str) -> None:
    messages, wanted = LOSSES[name]
    assert back(*messages) == tuple(wanted)


def test_the_context_comes_back_as_the_users_words() -> None:
    history = History(context="In Oakland.", conversation=(ASK,))
    assert converter.to_history(converter.from_history(history)) == History(
        conversation=(user(say(text="In Oakland.")), ASK)
    )


def test_foreign_metadata_is_ignored() -> None:
    odd = own(id=[1], item=3, type={}, encrypted_content=[])
    content = [
        ContentPartReasoning(text="a", metadata=odd),
        ContentPartFile(data=b"abc", metadata=odd),
        ContentPartData(data=1, metadata=odd),
        CALL.model_copy(update={"metadata": odd}),
        FOREIGN_SEARCH.model_copy(update={"metadata": {"openai-responses": 3}}),
    ]
    items = sent(model(*content, openai_responses=3), tool(RESULT.model_copy(update={"metadata": odd})))
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]


def test_an_image_whose_bytes_are_gone_is_sent_without_them() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    made = ContentPartToolCall(id="ig_1", name="image_generation", kind="server", metadata=own(item=item))
    assert sent(model(made)) == [{**item, "result": None}]


def test_an_image_behind_an_address_is_sent_as_one() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    made = ContentPartToolCall(id="ig_1", name="image_generation", kind="server", metadata=own(item=item))
    link = ContentPartFile(url="https://example.com/a.png", metadata=own(id="ig_1"))
    assert sent(model(made, link)) == [{**item, "result": "https://example.com/a.png"}]


def test_answers_to_the_apis_own_tools_follow_the_ids_of_their_calls() -> None:
    item = {"type": "local_shell_call_output", "id": "call_1", "output": "a", "status": "completed"}
    answer = ContentPartToolResult(id="call_1", name="local_shell", output="a", metadata=own(item=item))
    again = [model(RUN_LOCALLY), tool(answer)]
    items = sent(*again, *again)
    assert [each.get("call_id", each["id"]) for each in items] == [
        "call_1",
        "call_1",
        "call00001",
        "call00001",
    ]


def test_an_approval_follows_the_id_of_its_request() -> None:
    request = {
        "type": "mcp_approval_request",
        "id": LONG_ID,
        "name": "f",
        "server_label": "s",
        "arguments": "{}",
    }
    call = ContentPartToolCall(id=LONG_ID, name="mcp_approval_request", metadata=own(item=request))
    response = {"type": "mcp_approval_response", "approval_request_id": LONG_ID, "approve": True, "id": "x"}
    answer = ContentPartToolResult(
        id=LONG_ID, name="mcp_approval_request", output=True, metadata=own(item=response)
    )
    assert [
        each["id"] if "approve" not in each else each["approval_request_id"]
        for each in sent(model(call), tool(answer))
    ] == [
        "call00000",
        "call00000",
    ]


# --- requests of other programs ---------------------------------------------------------------------------------


def test_system_and_developer_messages_are_joined() -> None:
    items: list[Fields] = [
        {"role": "system", "content": "Be kind."},
        {"type": "message", "role": "developer", "content": [input_text("Be"), input_text("brief.")]},
        {"role": "user", "content": "hi"},
    ]
    history = converter.to_history(cast("list[ResponseInputItemParam]", items))
    assert history == History(system_message="Be kind.\n\nBe\n\nbrief.", conversation=(user(say(text="hi")),))


def test_messages_of_the_model_may_be_written_down_in_short() -> None:
    assert received({"role": "assistant", "content": "a"}) == (model(say(text="a")),)
    assert received({"role": "assistant", "content": [input_text("a")]}) == (model(say(text="a")),)
    assert received({"role": "assistant", "content": ["a"]}) == (model(say(text="a")),)
    assert received({"role": "user", "content": ["a"]}) == (user(say(text="a")),)


def test_content_may_be_one_entry_or_none() -> None:
    assert received({"role": "user", "content": input_text("a")}) == (user(say(text="a")),)
    assert received({"role": "user", "content": None}) == (user(),)
    assert received({"role": "assistant", "content": ""}) == ()


def test_an_approval_answers_its_request() -> None:
    request: Fields = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "name": "f",
        "server_label": "s",
        "arguments": "{}",
    }
    response = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    _, answer = received(request, response)
    assert answer == tool(ContentPartToolResult(id="mcpr_1", name="mcp_approval_request", output=True))
    assert sent(*received(request, response)) == [request, response]


def test_an_item_that_only_refers_to_another_is_kept() -> None:
    reference = {"type": "item_reference", "id": "msg_1"}
    assert received(reference) == (
        model(ContentPartData(data={"type": "item_reference"}, metadata=own(item=reference))),
    )


def test_unknown_content_of_the_model_is_kept() -> None:
    odd = {"type": "output_smell", "smell": "rose"}
    assert received({"type": "message", "role": "assistant", "content": [odd]}) == (
        model(extra={"content_parts": [odd]}),
    )


def test_outputs_of_unknown_calls_are_results_of_unknown_tools() -> None:
    assert received(RESULT_ITEM) == (tool(RESULT.model_copy(update={"name": "unknown"})),)
    assert received({**RESULT_ITEM, "name": "f"}) == (tool(RESULT.model_copy(update={"name": "f"})),)
    [message] = received(SHELL_OUTPUT)
    assert (message.role, message.tool_results[0].name) == (Role.TOOL, "shell")


def test_an_answer_of_the_providers_own_that_names_no_call_stays_with_the_model() -> None:
    search: Fields = {"type": "tool_search_call", "id": "tsc_1", "execution": "server", "arguments": {}}
    found: Fields = {
        "type": "tool_search_output",
        "id": "tso_1",
        "call_id": None,
        "execution": "server",
        "tools": [],
    }
    [message] = received(search, found)
    assert [part.type for part in message.content] == ["tool_call", "tool_result"]
    assert sent(message) == [search, found]


def test_a_function_that_has_the_call_id_of_a_search_is_named_by_its_call() -> None:
    answer = {"type": "function_call_output", "call_id": "call_1", "output": "a"}
    [_, message] = received(LOCAL_SHELL, answer)
    assert message.tool_results[0].name == "local_shell"


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([ASK_ITEM, {"role": "critic", "content": "bad"}], "item 1: the role 'critic' is not defined by the Responses API"),
        ([{"content": "hi"}], "item 0: an item with neither a type nor a role"),
        ([user_item({"type": "smell"})], "item 0: a content part of type 'smell' where only text is allowed"),
        ([{"role": "system", "content": [{"type": "input_image"}]}], "of type 'input_image' where only text"),
        ([{"role": "user", "content": 3}], "item 0: content of type int"),
    ],
)  # fmt: skip
def test_what_the_api_does_not_define_is_refused(items: list[Fields], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        received(*items)


# --- the openai package's objects, and messages of streams ------------------------------------------------------

OUTPUT: list[Fields] = [
    {**SEALED, "status": "completed"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
    },
    {**CALL_ITEM, "id": "fc_1", "status": "completed"},
]
RESPONSE: Fields = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "model": "m",
    "status": "completed",
    "output": OUTPUT,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
MESSAGE = model(
    thought("", id="rs_1", encrypted_content="seal"),
    say(text="Let me see.", metadata=own(id="msg_1")),
    CALL.model_copy(update={"metadata": own(id="fc_1")}),
    finish_reason="tool_calls",
)


def test_the_packages_output_may_stand_among_the_items() -> None:
    items: list[Any] = [ASK_ITEM, *[package_output.validate_python(item) for item in OUTPUT], RESULT_ITEM]
    history = converter.to_history(items)
    assert history.conversation == (ASK, MESSAGE.model_copy(update={"metadata": {}}), tool(RESULT))
    assert converter.from_history(history) == [
        ASK_ITEM,
        SEALED,
        assistant_item("Let me see."),
        CALL_ITEM,
        RESULT_ITEM,
    ]


def test_a_message_is_made_of_a_whole_response() -> None:
    assert converter.to_message(Response.model_validate(RESPONSE)) == MESSAGE
    assert converter.to_message(RESPONSE) == MESSAGE
    assert converter.to_message(OUTPUT[1]) == model(say(text="Let me see.", metadata=own(id="msg_1")))


def test_a_message_is_made_of_a_stream() -> None:
    events: list[Fields] = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(OUTPUT)
    ]
    events.append({"type": "response.completed", "response": RESPONSE})
    decoder = ResponsesDecoder()
    assert converter.to_message([chunk for each in events for chunk in decoder.wrap(dict(each))]) == MESSAGE
    package = [package_events.validate_python({"sequence_number": 0, **each}) for each in events]
    assert converter.to_message(package) == MESSAGE


def test_one_event_is_one_wrapper() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
    assert converter.create_chunk_wrapper(delta).get_text() == "Hi"
    assert converter.create_chunk_wrapper({"type": "keepalive"}).raw == {"type": "keepalive"}


def test_results_alone_are_those_of_functions() -> None:
    results = [RESULT, RESULT.model_copy(update={"id": "call_2", "output": {"a": 1}})]
    assert converter.tool_result_messages(results) == [
        RESULT_ITEM,
        {"type": "function_call_output", "call_id": "call_2", "output": '{"a": 1}'},
    ]
    assert converter.tool_result_messages(
        [ContentPartToolResult(id="call_1", name="shell", metadata=own(item=SHELL_OUTPUT))]
    ) == [SHELL_OUTPUT]
