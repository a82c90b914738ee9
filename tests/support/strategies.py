"""Hypothesis strategies for the common message format: every part, every role, any JSON value."""

import json
from typing import Any

from hypothesis import strategies as st

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
from tailrace.wrappers.assembly.tool_calls import parse_arguments

texts = st.text(max_size=12)
names = st.text(min_size=1, max_size=8)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(texts, json_values, max_size=3)

# Most real parts have no metadata.
metadata = st.just(dict[str, Any]()) | json_objects

text_parts = st.builds(ContentPartText, text=texts, metadata=metadata)
reasoning_parts = st.builds(ContentPartReasoning, text=texts, signature=st.none() | texts, metadata=metadata)
file_parts = st.builds(
    ContentPartFile, data=st.binary(max_size=8), media_type=texts, filename=texts, metadata=metadata
) | st.builds(ContentPartFile, url=names, media_type=texts, filename=texts, metadata=metadata)
data_parts = st.builds(ContentPartData, data=json_values, metadata=metadata)
tool_calls = st.builds(
    ContentPartToolCall,
    id=texts,
    name=texts,
    arguments=json_objects,
    arguments_text=st.none() | texts,
    arguments_error=st.none() | texts,
    kind=st.sampled_from(["function", "custom", "other"]),
    synthetic_id=st.booleans(),
    metadata=metadata,
)
tool_results = st.builds(
    ContentPartToolResult, id=texts, name=texts, output=json_values, is_error=st.booleans(), metadata=metadata
)
parts: st.SearchStrategy[ContentPart] = (
    text_parts | reasoning_parts | file_parts | data_parts | tool_calls | tool_results
)


def messages(*roles: Role) -> st.SearchStrategy[Message]:
    """Any message with one of the roles."""
    return st.builds(
        Message,
        role=st.sampled_from(roles),
        content=st.lists(parts, max_size=5).map(tuple),
        metadata=metadata,
    )


histories = st.builds(
    History,
    system_message=st.none() | texts,
    context=st.none() | texts,
    conversation=st.lists(messages(Role.USER, Role.MODEL, Role.TOOL), max_size=4).map(tuple),
)


def _parsed_tool_call(call_id: str, name: str, arguments: str) -> ContentPartToolCall:
    return ContentPartToolCall(id=call_id, name=name, **parse_arguments(arguments))


ids = st.text(min_size=1, max_size=6)

parsed_tool_calls = st.builds(
    _parsed_tool_call,
    call_id=ids,
    name=names,
    arguments=st.sampled_from(["", "null", "{", "[1]", '"a"', '{"a": 1', '{"a": 1}{"a": 1}', "{'a': 1}"])
    | json_objects.map(json.dumps)
    | texts,
)
"""Tool calls as decoders return them: arguments parsed, or as text if they are not valid JSON."""


def only_the_model_calls(history: History) -> History:
    """The history without calls in messages that are not the model's."""
    conversation = [
        message
        if message.role is Role.MODEL
        else message.model_copy(
            update={"content": tuple(part for part in message.content if part.type != "tool_call")}
        )
        for message in history.conversation
    ]
    return history.model_copy(update={"conversation": tuple(conversation)})
