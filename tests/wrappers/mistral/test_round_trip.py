"""The Mistral converter on generated histories: the round trip up to the documented losses, and Mistral's rules."""

import itertools
import re
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.mistral import MistralConverter

converter = MistralConverter()
THINKING = {"mistral": {"type": "thinking"}}
REFERENCE = {"type": "reference", "reference_ids": [1, 2]}


types = st.sampled_from(["image/png", "application/pdf", "text/markdown", "video/mp4", "", "audio/mpeg"])
files = st.builds(
    ContentPartFile, data=st.binary(max_size=4), media_type=types, filename=strategies.texts
) | st.builds(
    ContentPartFile,
    url=st.sampled_from(["mistral-file:f", "https://e.com/a.png", "https://e.com/a"]),
    media_type=types,
)
own_references = st.just({"mistral": {"references": [REFERENCE]}})
ids = st.sampled_from(["a", "b"])


def as_kind(call: ContentPartToolCall, kind: str, made: bool) -> ContentPartToolCall:
    return call.model_copy(update={"id": "a", "kind": kind, "synthetic_id": made})


calls = st.builds(
    as_kind, strategies.parsed_tool_calls, st.sampled_from(["function", "custom", "server"]), st.booleans()
)
results = st.builds(
    ContentPartToolResult,
    id=ids,
    name=strategies.texts,
    output=strategies.json_values,
    is_error=st.booleans(),
)
texts_of_the_model = st.builds(
    ContentPartText, text=strategies.texts, metadata=strategies.metadata | own_references
)
thoughts = st.builds(
    ContentPartReasoning, text=strategies.texts, metadata=strategies.metadata | st.just(THINKING)
)
any_histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(
        st.builds(
            Message,
            role=st.sampled_from([Role.USER, Role.TOOL]),
            content=st.lists(st.one_of(strategies.text_parts, strategies.data_parts, files, results, thoughts), max_size=4).map(tuple),
        )
        | st.builds(
            Message,
            role=st.just(Role.MODEL),
            content=st.lists(
                st.one_of(texts_of_the_model, thoughts, strategies.data_parts, files, calls, results), max_size=5
            ).map(tuple),
            metadata=st.just({"finish_reason": "stop"}) | st.just({"refusal": "no"}) | st.just({"mistral": {"prefix": True}}),
        ),
        max_size=5,
    ).map(tuple),
)  # fmt: skip


@settings(deadline=None)
@given(any_histories)
def test_what_came_back_goes_out_the_same(history: History) -> None:
    once = converter.from_history(converter.to_history(converter.from_history(history)))
    assert converter.from_history(converter.to_history(once)) == once


@settings(deadline=None)
@given(any_histories)
def test_every_request_keeps_mistrals_order(history: History) -> None:
    messages = cast("list[dict[str, Any]]", converter.from_history(history))
    for before, after in itertools.pairwise(messages):
        assert (before["role"], after["role"]) != ("tool", "user")
    for message in messages:
        assert "refusal" not in message
        if message["role"] == "assistant":
            assert message["content"] or message.get("tool_calls")
        for call in message.get("tool_calls", ()):
            assert call["type"] == "function"
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"])
