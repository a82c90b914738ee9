"""The Bedrock converter on generated histories: the round trip up to the documented losses, and AWS's validation."""

import re
from collections.abc import Callable
from typing import Any, cast

import botocore.session
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from tailrace.wrappers import (
    ContentPart,
    ContentPartFile,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.bedrock import BedrockConverter

converter = BedrockConverter()
CITED = {"title": "a.pdf", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}


def with_metadata(part: Any, metadata: dict[str, Any]) -> ContentPart:
    return part.model_copy(update={"metadata": metadata})


def with_own(
    parts: st.SearchStrategy[Any], own: st.SearchStrategy[dict[str, Any]]
) -> st.SearchStrategy[ContentPart]:
    """Parts, some of which only Bedrock uses."""
    return st.builds(with_metadata, parts, own.map(lambda fields: {"bedrock": fields}) | strategies.metadata)


types = st.sampled_from(
    ["image/png", "application/pdf", "text/csv", "text/x-python", "", "audio/mpeg", "x/y"]
)
files = st.builds(
    ContentPartFile, data=st.binary(max_size=4), media_type=types, filename=strategies.texts
) | st.builds(
    ContentPartFile, url=st.sampled_from(["s3://b/k", "s3://b/k.png", "https://e.com/a"]), media_type=types
)
ids = st.sampled_from(["a", "b"])
calls = st.builds(
    ContentPartToolCall,
    id=ids,
    name=strategies.texts,
    arguments=strategies.json_objects,
    arguments_text=st.none() | strategies.texts,
    kind=st.sampled_from(["function", "custom", "server"]),
)
results = st.builds(
    ContentPartToolResult,
    id=ids,
    name=strategies.texts,
    output=strategies.json_values,
    is_error=st.booleans(),
)
user_parts = st.one_of(
    strategies.text_parts, strategies.data_parts, files, results, strategies.reasoning_parts
)
model_parts = st.one_of(
    strategies.text_parts,
    with_own(strategies.text_parts, st.just({"citations": [CITED]})),
    with_own(
        strategies.reasoning_parts,
        st.just({"type": "reasoningContent"}) | st.just({"redactedContent": "c2Vj"}),
    ),
    strategies.data_parts,
    files,
    with_own(calls, st.just({"type": "server_tool_use"})),
    results,
)
any_model_parts = st.lists(
    st.lists(model_parts, min_size=1, max_size=1)
    | st.tuples(
        st.builds(ContentPartToolCall, id=ids, name=strategies.names, kind=st.just("server"), metadata=st.just({"bedrock": {"type": "server_tool_use"}})),
        results,
    ).map(list),
    max_size=4,
).map(lambda groups: tuple(part for group in groups for part in group))  # fmt: skip
any_histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(
        st.builds(Message, role=st.sampled_from([Role.USER, Role.TOOL]), content=st.lists(user_parts, max_size=4).map(tuple))
        | st.builds(Message, role=st.just(Role.MODEL), content=any_model_parts),
        max_size=5,
    ).map(tuple),
)  # fmt: skip


def own(part: ContentPart) -> Any:
    return part.metadata.get("bedrock", {})


@settings(deadline=None)
@given(any_histories)
def test_what_came_back_goes_out_the_same(history: History) -> None:
    once = converter.from_history(converter.to_history(converter.from_history(history)))
    assert converter.from_history(converter.to_history(once)) == once


def validator() -> Callable[[dict[str, Any]], str]:
    """The errors that the official client reports for a request."""
    service = cast("Any", botocore.session).get_session().get_service_model("bedrock-runtime")
    shape = service.operation_model("ConverseStream").input_shape

    def complaints(request: dict[str, Any]) -> str:
        return str(
            cast("Any", ParamValidator()).validate({"modelId": "m", **request}, shape).generate_report()
        )

    return complaints


complaints = validator()


@settings(deadline=None)
@given(any_histories)
def test_every_request_keeps_the_rules_of_converse(history: History) -> None:
    """The rules of the service model, and further ones that the service checks."""
    messages = converter.from_history(history)
    # This version of the client does not support audio and the type of a call yet.
    assert not [
        line
        for line in complaints(
            {"messages": messages, "system": converter.system_prompt(history)}
        ).splitlines()
        if "audio" not in line and '"type"' not in line
    ]
    sides = [message["role"] for message in messages]
    assert sides == ["user", "assistant"] * (len(sides) // 2) + ["user"] * (len(sides) % 2)
    names: list[str] = []
    for message in messages:
        blocks = message["content"]
        assert blocks
        assert all(block["text"].strip() for block in blocks if "text" in block)
        kinds = [next(iter(block)) for block in blocks]
        if message["role"] == "user":
            assert kinds == sorted(kinds, key=lambda kind: kind != "toolResult")
            assert "document" not in kinds or "text" in kinds
            names += [block["document"]["name"].lower() for block in blocks if "document" in block]
        else:
            assert not {"image", "document", "video"} & set(kinds)
            assert kinds[-1] != "reasoningContent"
    assert len(names) == len(set(names))
    assert all(
        re.fullmatch(r"[a-z0-9()\[\]-]+( [a-z0-9()\[\]-]+)*", name) and len(name) <= 200 for name in names
    )
