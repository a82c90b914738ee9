"""The Responses converter: each row of its tables in both directions, the round trip, and each documented loss."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from support import strategies
from support.arguments import as_sent
from support.messages import model, tool, user
from support.responses_items import (
    ASK,
    ASK_ITEM,
    CALL,
    CALL_ITEM,
    LOCAL_SHELL,
    RESULT,
    RESULT_ITEM,
    ROUND,
    RUN_LOCALLY,
    SEALED,
    SHELL,
    SHELL_OUTPUT,
    Fields,
    assistant_item,
    converter,
    ids,
    input_text,
    own,
    received,
    say,
    sent,
    thought,
    user_item,
)
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

package_items: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)

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
