"""Items of the Responses API, and their conversion."""

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam

from support.messages import model, tool, user
from tailrace.wrappers import (
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
)
from tailrace.wrappers.openai_responses import ResponsesConverter

Fields = dict[str, Any]

converter = ResponsesConverter()


def sent(*messages: Message) -> list[Fields]:
    """The items of the request for a conversation."""
    return cast("list[Fields]", converter.from_history(History(conversation=messages)))


def own(**fields: Any) -> Fields:
    return {"openai-responses": fields}


def thought(text: str, **fields: Any) -> ContentPartReasoning:
    return ContentPartReasoning(text=text, metadata=own(**fields))


say = ContentPartText
ASK = user(say(text="What's the weather?"))

CALL = ContentPartToolCall(id="call_1", name="get_weather", arguments={"location": "Oakland"})

RESULT = ContentPartToolResult(id="call_1", name="get_weather", output="Sunny, 72°F")

ROUND = [model(CALL), tool(RESULT)]

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

ids = st.integers(0, 10**9)


def received(*items: Any) -> tuple[Message, ...]:
    return converter.to_history(cast("Sequence[ResponseInputItemParam]", items)).conversation


def assistant_item(*texts: str, **fields: Any) -> Fields:
    none: list[Any] = []
    content = [{"type": "output_text", "text": text, "annotations": none} for text in texts]
    return {"type": "message", "role": "assistant", "content": content, **fields}


def user_item(*content: Fields) -> Fields:
    return {"type": "message", "role": "user", "content": list(content)}


def input_text(text: str) -> Fields:
    return {"type": "input_text", "text": text}


ASK_ITEM = user_item(input_text("What's the weather?"))

CALL_ITEM = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"location": "Oakland"}',
}

RESULT_ITEM = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny, 72°F"}

SEALED: Fields = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "seal"}
