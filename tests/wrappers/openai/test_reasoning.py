"""Reasoning in requests: its place, its field name, and where it is omitted."""

import csv
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from support import strategies
from support.chat import decode, sse
from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.openai import ChoiceDeltaWrapper
from tailrace.wrappers.openai.converter import OpenAIConverter
from tailrace.wrappers.openai.reasoning import SEALED_FIELDS
from tailrace.wrappers.providers import find_provider

FOLDER = Path(
    os.environ.get("TAILRACE_RECORDINGS") or Path(__file__).parents[3] / "../shared/providers/recordings"
)
INDEX = FOLDER / "INDEX.tsv"
FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")

converter = OpenAIConverter()


def user(text: str) -> Message:
    return Message(role=Role.USER, content=(ContentPartText(text=text),))


def model(*content: ContentPart, **extra: Any) -> Message:
    return Message(role=Role.MODEL, content=content, metadata={"extra": extra} if extra else {})


def thought(text: str, field: str = "reasoning_content") -> ContentPartReasoning:
    return ContentPartReasoning(text=text, metadata={"openai": {"field": field}})


def tool(*ids: str) -> Message:
    results = tuple(ContentPartToolResult(id=each, name="f", output="1") for each in ids)
    return Message(role=Role.TOOL, content=results)


def sent(*messages: Message, reasoning_field: str | None = None) -> list[dict[str, Any]]:
    asking = OpenAIConverter(reasoning_field=reasoning_field)
    return cast("list[dict[str, Any]]", asking.from_history(History(conversation=messages)))


def answers(*messages: Message, reasoning_field: str | None = None) -> list[dict[str, Any]]:
    """The undocumented fields of each model message in a request."""
    documented = ("role", "content", "tool_calls", "refusal")
    return [
        {name: value for name, value in message.items() if name not in documented}
        for message in sent(*messages, reasoning_field=reasoning_field)
        if message["role"] == "assistant"
    ]


def streamed(*deltas: dict[str, Any]) -> Message:
    chunks = ({"id": "x", "choices": [{"index": 0, "delta": delta}]} for delta in deltas)
    return converter.to_message(decode(sse(*chunks)))


CALL = ContentPartToolCall(id="a", name="f")
SAY = ContentPartText(text="hi")


# --- fields in responses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS)
def test_a_stream_names_the_field_of_the_reasoning(field: str) -> None:
    for role in ({}, {"role": "assistant"}, {"unheard_of": 1}):
        message = streamed({**role, field: "hm"}, {field: ", so"}, {"content": "hi"})
        assert message.content == (thought("hm, so", field), SAY)


def test_the_field_that_counts_is_the_one_that_is_read() -> None:
    details = [{"type": "reasoning.text", "text": "hm", "index": 0}]
    message = streamed({"reasoning": "hm", "reasoning_details": details}, {"content": "hi"})
    assert message.content[0] == thought("hm", "reasoning")
    message = streamed({"reasoning_content": "hm", "reasoning": "hm"}, {"content": "hi"})
    assert message.content[0] == thought("hm", "reasoning_content")


def test_reasoning_that_was_parted_from_the_text_came_in_no_field() -> None:
    for deltas in (
        [{"content": "<think>hm</think>"}, {"content": "hi"}],
        [{"content": [{"type": "thinking", "thinking": "hm"}]}, {"content": "hi"}],
    ):
        message = streamed(*deltas)
        assert message.content == (ContentPartReasoning(text="hm"), SAY)
        assert answers(user("?"), message.model_copy(update={"content": (*message.content, CALL)})) == [{}]


def test_the_packages_objects_and_complete_messages_name_it_too() -> None:
    deltas = [ChoiceDelta.model_validate({"reasoning": "hm"}), ChoiceDelta(content="hi")]
    assert converter.to_message(map(ChoiceDeltaWrapper, deltas)).content == (thought("hm", "reasoning"), SAY)
    whole = {"role": "assistant", "content": "hi", "reasoning": "hm"}
    assert converter.to_message(whole).content == (thought("hm", "reasoning"), SAY)


def test_every_block_names_it() -> None:
    message = streamed({"reasoning": "one"}, {"content": "hi"}, {"reasoning": "two"})
    assert message.content == (thought("one", "reasoning"), SAY, thought("two", "reasoning"))


# --- fields in requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS)
def test_in_a_turn_with_tools_every_answer_keeps_its_reasoning(field: str) -> None:
    turn = [
        user("?"),
        model(thought("which tool?", field), CALL),
        tool("a"),
        model(thought("so that is it", field), SAY),
    ]
    expected = [{field: "which tool?"}, {field: "so that is it"}]
    assert answers(*turn[:2]) == expected[:1]
    assert answers(*turn) == expected
    assert answers(*turn, user("And?")) == expected


def test_after_a_turn_without_tools_it_stays_here() -> None:
    first = [user("?"), model(thought("hm"), SAY)]
    second = [user("And?"), model(thought("which?"), CALL), tool("a"), model(thought("so"), SAY)]
    third = [user("Well?"), model(thought("easy"), SAY), user("Thanks.")]
    assert answers(*first, *second, *third) == [
        {},
        {"reasoning_content": "which?"},
        {"reasoning_content": "so"},
        {},
    ]


def test_tools_that_the_provider_ran_make_no_such_turn() -> None:
    search = ContentPartToolCall(id="s", name="search", kind="server")
    assert answers(user("?"), model(thought("hm"), search, SAY)) == [{}]


def test_results_of_any_role_do_not_end_a_turn() -> None:
    brought = tool("a").model_copy(update={"role": Role.USER})
    assert answers(user("?"), model(thought("1"), CALL), brought, model(thought("2"), SAY)) == [
        {"reasoning_content": "1"},
        {"reasoning_content": "2"},
    ]


def test_an_answer_without_any_is_not_left_without_the_field_that_is_missed() -> None:
    turn = [user("?"), model(thought("1"), CALL), tool("a"), model(CALL), tool("a"), model(SAY)]
    assert answers(*turn) == [{"reasoning_content": each} for each in ("1", "", "")]
    other = [user("?"), model(thought("1", "reasoning"), CALL), tool("a"), model(SAY)]
    assert answers(*other) == [{"reasoning": "1"}, {}]


def test_reasoning_of_other_formats_stays_here() -> None:
    foreign = ContentPartReasoning(text="hm", signature="s", metadata={"anthropic": {"type": "thinking"}})
    assert answers(user("?"), model(foreign, CALL), tool("a"), model(thought("so", "reasoning"), SAY)) == [
        {},
        {"reasoning": "so"},
    ]


# --- encrypted reasoning ----------------------------------------------------------------------------------------


details = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(("reasoning.text", "reasoning.encrypted"))},
        optional={
            "text": strategies.texts,
            "data": strategies.texts,
            "signature": st.none() | strategies.texts,
            "format": st.just("anthropic-claude-v1"),
        },
    ),
    min_size=1,
    max_size=4,
).map(lambda entries: [{**entry, "index": index} for index, entry in enumerate(entries)])


@given(details, st.booleans())
def test_details_go_back_as_they_came_and_in_order(entries: list[dict[str, Any]], calls: bool) -> None:
    message = converter.to_message({"role": "assistant", "content": "hi", "reasoning_details": entries})
    if calls:
        message = message.model_copy(update={"content": (*message.content, CALL)})
    assert answers(user("?"), message, user("And?")) == [{"reasoning_details": entries}]


@given(details, st.data())
def test_details_that_were_streamed_in_pieces_go_back_whole(
    entries: list[dict[str, Any]], data: st.DataObject
) -> None:
    pieces: list[dict[str, Any]] = []
    for entry in entries:
        text = entry.get("text", "")
        cut = data.draw(st.integers(0, len(text)))
        if 0 < cut < len(text):
            head = {name: entry[name] for name in ("type", "index")}
            pieces += [{**head, "text": text[:cut]}, {**entry, "text": text[cut:]}]
        else:
            pieces.append(entry)
    message = streamed(*({"reasoning_details": [piece]} for piece in pieces), {"content": "hi"})
    assert answers(user("?"), message) == [{"reasoning_details": entries}]


def test_text_and_details_go_back_side_by_side() -> None:
    entry = {"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0}
    message = streamed({"reasoning": "hm", "reasoning_details": [entry]}, {"content": "hi"})
    with_call = message.model_copy(update={"content": (*message.content, CALL)})
    assert answers(user("?"), message) == [{"reasoning_details": [entry]}]
    assert answers(user("?"), with_call) == [{"reasoning": "hm", "reasoning_details": [entry]}]


@pytest.mark.parametrize("field", ["reasoning_encrypted", "reasoning_opaque"])
def test_opaque_fields_go_back(field: str) -> None:
    assert field in SEALED_FIELDS
    message = streamed({"reasoning_content": "hm"}, {field: "gAAA"}, {"content": "hi"})
    assert answers(user("?"), message) == [{field: "gAAA"}]


def test_blocks_of_thinking_are_put_together_up_to_their_signature() -> None:
    def piece(thinking: str, signature: str | None = None) -> dict[str, Any]:
        return {"type": "thinking", "thinking": thinking, "signature": signature}

    redacted = {"type": "redacted_thinking", "data": "x"}
    pieces = [piece("a"), piece("b"), piece("", "s1"), redacted, piece("c", "s2"), piece("d", "s3")]
    message = streamed(*({"thinking_blocks": [each]} for each in pieces), {"content": "hi"})
    whole = [piece("ab", "s1"), redacted, piece("c", "s2"), piece("d", "s3")]
    assert answers(user("?"), message) == [{"thinking_blocks": whole}]
    assert answers(user("?"), model(SAY, thinking_blocks=whole)) == [{"thinking_blocks": whole}]


# --- servers that reject unknown fields -------------------------------------------------------------------------


def test_a_server_that_takes_none_gets_none() -> None:
    entry = {"type": "reasoning.text", "text": "hm", "index": 0}
    turn = [user("?"), model(thought("hm"), CALL, reasoning_details=[entry]), tool("a")]
    assert answers(*turn, reasoning_field="") == [{}]


def test_a_server_that_takes_one_field_gets_that_one() -> None:
    entry = {"type": "reasoning.text", "text": "hm", "index": 0}
    foreign = ContentPartReasoning(text="sealed", signature="s")
    turn = [
        user("?"),
        model(thought("hm", "reasoning"), CALL, reasoning_details=[entry]),
        tool("a"),
        model(foreign, SAY),
    ]
    assert answers(*turn, reasoning_field="reasoning_content") == [
        {"reasoning_content": "hm"},
        {"reasoning_content": ""},
    ]
    assert answers(*turn, reasoning_field="reasoning") == [{"reasoning": "hm"}, {}]
    assert answers(user("?"), model(thought("hm"), SAY), reasoning_field="reasoning_content") == [{}]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("openai", ""),
        ("deepseek", "reasoning_content"),
        ("kimi", "reasoning_content"),
        ("groq", "reasoning"),
        ("cerebras", "reasoning"),
        ("openrouter", None),
        ("vllm", None),
    ],
)
async def test_the_registry_knows_who_refuses_what(
    name: str, field: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    turn = [user("?"), model(thought("hm", "thinking"), CALL)]
    expected = {"thinking": "hm"} if field is None else {field: "hm"} if field else {}
    at_home = find_provider(name).create_model("m", api_key="k")
    other_host = find_provider(name).create_model("m", api_key="k", base_url="http://127.0.0.1:1/v1")
    for provider_model, fields in ((at_home, expected), (other_host, {"thinking": "hm"})):
        (_, message) = provider_model.converter.from_history(History(conversation=tuple(turn)))
        assert {key: value for key, value in message.items() if key in FIELDS} == fields
        await provider_model.aclose()


def test_other_fields_are_never_lost_on_the_way() -> None:
    entry = {"type": "reasoning.text", "text": "hm", "index": 0}
    turn = [
        user("?"),
        model(thought("which?", "reasoning"), SAY, CALL, reasoning_details=[entry]),
        tool("a"),
        model(thought("so", "reasoning"), SAY),
    ]
    messages = sent(*turn)
    back = converter.to_history(cast("Any", messages)).conversation
    assert back == tuple(turn)
    assert sent(*back) == messages


# --- real servers -----------------------------------------------------------------------------------------------


def recorded() -> Iterator[Any]:
    if not INDEX.exists():
        return
    with INDEX.open(newline="") as index:
        for row in csv.DictReader(index, delimiter="\t"):
            if row["api"] == "openai-chat" and row["has_reasoning"] == "yes":
                yield pytest.param(row["file"], id=row["file"][-60:])


def reasoning_of(body: bytes) -> dict[str, str]:
    """The text of each reasoning field in a body, extracted without the project's decoders."""
    texts: dict[str, str] = {}
    for line in body.splitlines():
        if not line.startswith(b"data:"):
            continue
        try:
            chunk: Any = json.loads(line[5:])
            choices: list[Any] = chunk.get("choices") or []
        except (AttributeError, ValueError):
            continue
        for choice in choices:
            delta: dict[str, Any] = choice.get("delta") or {}
            for field in FIELDS:
                if choice.get("index", 0) == 0 and isinstance(delta.get(field), str):
                    texts[field] = texts.get(field, "") + delta[field]
    return {field: text for field, text in texts.items() if text}


@pytest.mark.skipif(
    not INDEX.exists(), reason=f"the recordings of other people's servers are not here ({FOLDER})"
)
def test_there_are_recordings() -> None:
    assert len(list(recorded())) > 50


@pytest.mark.parametrize("file", list(recorded()))
def test_what_a_server_thought_goes_back_to_it_word_for_word(file: str) -> None:
    body = (FOLDER / file).read_bytes()
    message = converter.to_message(decode(body))
    received = reasoning_of(body)
    calls = message.tool_calls or (CALL,)
    if not message.tool_calls:
        message = message.model_copy(update={"content": (*message.content, CALL)})
    (fields,) = answers(user("?"), message, tool(*(call.id for call in calls)))
    texts = {field: fields[field] for field in FIELDS if field in fields}
    # Of two fields with the same text, one is sent back.
    assert texts.items() <= received.items()
    assert bool(texts) == bool(received)
    extra: dict[str, Any] = message.metadata.get("extra") or {}
    assert fields.get("reasoning_details") == extra.get("reasoning_details")
    streamed_details = b'"reasoning_details":[{' in body.replace(b" ", b"")
    assert ("reasoning_details" in fields) == streamed_details


# --- reasoning details ------------------------------------------------------------------------------------------


def detail(text: str, kind: str = "reasoning.text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "summary" if kind == "reasoning.summary" else "text": text, "index": 0, **more}


def detailed(*items: dict[str, Any]) -> dict[str, Any]:
    return {"reasoning_details": list(items)}


@pytest.mark.parametrize("kind", ["reasoning.text", "reasoning.summary"])
@pytest.mark.parametrize("filler", [{}, {"reasoning": None, "reasoning_content": ""}, {"unheard_of": 1}])
def test_reasoning_that_comes_in_details_alone_is_reasoning(kind: str, filler: dict[str, Any]) -> None:
    sealed = {"type": "reasoning.encrypted", "data": "x", "index": 1}
    deltas = [detailed(detail("h", kind)), detailed(detail("m", kind), sealed), {"content": "hi"}]
    chunks = [{"id": "x", "choices": [{"index": 0, "delta": {**delta, **filler}}]} for delta in deltas]
    assert [chunk.get_reasoning() for chunk in decode(sse(*chunks))] == ["h", "m", ""]
    message = streamed(*({**delta, **filler} for delta in deltas))
    assert message.content == (ContentPartReasoning(text="hm"), SAY)
    sent_back = answers(user("?"), message.model_copy(update={"content": (*message.content, CALL)}))
    assert sent_back[0] == {"reasoning_details": [detail("hm", kind), sealed]}


@pytest.mark.parametrize(
    "deltas",
    [
        [{"reasoning": "h", **detailed(detail("h"))}, {"reasoning": "m", **detailed(detail("m"))}],
        [{"reasoning": "h"}, {"reasoning": "m"}, detailed(detail("hm"))],
        [{"reasoning": "h"}, detailed(detail("h")), {"reasoning": "m"}, detailed(detail("m"))],
        [detailed(detail("hm")), {"reasoning": "hm"}],
        [detailed(detail("h")), {"reasoning": "h"}, detailed(detail("m")), {"reasoning": "m"}],
        [detailed(detail("h")), detailed(detail("m")), {"reasoning": "hm"}],
        [detailed(detail("hm")), {"reasoning": "h"}, {"reasoning": "m"}],
        [detailed(detail("h")), {"reasoning": "hm"}],
        [detailed(detail("h")), {"reasoning": "m", **detailed(detail("m"))}],
        [{"thinking": "h"}, {"thinking": "m"}, detailed(detail("hm"))],
        [{"reasoning_content": "hm"}, detailed(detail("hm"))],
    ],
)
def test_reasoning_that_a_plain_field_repeats_is_added_once(deltas: list[dict[str, Any]]) -> None:
    message = streamed(*deltas, {"content": "hi"})
    assert message.reasoning == "hm"
    assert message.metadata["extra"]["reasoning_details"][0]["text"] in ("hm", "h")


@given(st.lists(st.integers(1, 5), max_size=3), st.lists(st.integers(1, 5), max_size=3), st.booleans())
def test_it_counts_once_however_both_are_cut(ours: list[int], theirs: list[int], before: bool) -> None:
    text = "ab cab"

    def cut(at: list[int]) -> list[str]:
        ends = [0, *sorted(set(at)), len(text)]
        return [text[start:end] for start, end in pairwise(ends)]

    in_details, in_field = (
        [detailed(detail(piece)) for piece in cut(ours)],
        [{"reasoning": piece} for piece in cut(theirs)],
    )
    message = streamed(*([*in_details, *in_field] if before else [*in_field, *in_details]))
    assert message.reasoning == text


def test_a_complete_message_and_the_packages_objects_name_it_too() -> None:
    whole = {"role": "assistant", "content": "hi", **detailed(detail("hm"))}
    assert converter.to_message(whole).content == (ContentPartReasoning(text="hm"), SAY)
    package = [
        ChoiceDelta.model_validate(detailed(detail("hm"))),
        ChoiceDelta.model_validate({"reasoning": "hm"}),
    ]
    assert converter.to_message(map(ChoiceDeltaWrapper, package)).reasoning == "hm"
