"""The Bedrock converter on any history at all: the round trip up to the documented losses, and AWS's own rules."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import botocore.session
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tailrace.wrappers.bedrock import BedrockConverter
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES

converter = BedrockConverter()
say = ContentPartText
CITED = {"title": "a.pdf", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}


def user(*content: ContentPart) -> Message:
    return Message(role=Role.USER, content=content)


def model(*content: ContentPart) -> Message:
    return Message(role=Role.MODEL, content=content)


def tool(*content: ContentPart) -> Message:
    return Message(role=Role.TOOL, content=content)


def with_metadata(part: Any, metadata: dict[str, Any]) -> ContentPart:
    return part.model_copy(update={"metadata": metadata})


def with_own(
    parts: st.SearchStrategy[Any], own: st.SearchStrategy[dict[str, Any]]
) -> st.SearchStrategy[ContentPart]:
    """Parts of which some are Bedrock's."""
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


def note(part: ContentPartFile) -> list[ContentPart]:
    if part.url is not None:
        return [say(text=f"[{part.filename or part.url}]({part.url})")]
    size = f"{len(part.data or b'')} bytes"
    name = f"file {part.filename}".rstrip()
    return [say(text=f"[{', '.join(fact for fact in (name, part.media_type, size) if fact)}]")]


def text(value: str, metadata: Mapping[str, Any] | None = None) -> list[ContentPart]:
    return [say(text=value, metadata=dict(metadata or {}))] if value.strip() else []


def kept(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"bedrock": metadata["bedrock"]} if metadata.get("bedrock") else {}


class Expected:
    """Applies the losses that the module documents, in its order, to a history."""

    def __init__(self, history: History) -> None:
        self.sides: list[tuple[str, list[ContentPart]]] = []
        self.names: dict[str, str] = {}
        self.documents: set[str] = set()
        self.add("user", text(history.context or ""))
        for message in history.conversation:
            if message.role is Role.MODEL:
                self.add_model(message)
            else:
                self.add("user", [kept for part in message.content for kept in self.of_user(part)])

    def add(self, side: str, parts: list[ContentPart]) -> None:
        if parts and self.sides and self.sides[-1][0] == side:
            self.sides[-1][1].extend(parts)
        elif parts:
            self.sides.append((side, parts))

    def add_model(self, message: Message) -> None:
        servers = {call.id: bool(own(call)) for call in message.tool_calls if call.kind == "server"}
        servers = {call.id: servers[call.id] for call in message.tool_calls if call.id in servers}
        last = {call.id: call for call in message.tool_calls}
        parts: list[ContentPart] = []
        behind: list[ContentPart] = []
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                if part.kind != "server" or "bedrock" in part.metadata:
                    parts.append(self.call(part))
            elif isinstance(part, ContentPartToolResult):
                by = last.get(part.id)
                if by is None or by.kind != "server":
                    behind.append(self.result(part))
                elif "bedrock" in by.metadata:
                    parts.append(self.result(part))
            elif isinstance(part, ContentPartReasoning):
                if "redactedContent" in own(part):
                    parts.append(
                        ContentPartReasoning(text="", metadata={"bedrock": {"redactedContent": "c2Vj"}})
                    )
                elif own(part) and part.signature:
                    parts.append(
                        part.model_copy(update={"metadata": {"bedrock": {"type": "reasoningContent"}}})
                    )
            elif isinstance(part, ContentPartFile):
                parts += note(part)
            elif isinstance(part, ContentPartData):
                parts += text(json.dumps(part.data, ensure_ascii=False, separators=(",", ":")))
            else:
                parts += text(part.text, kept(part.metadata))
        while parts and isinstance(parts[-1], ContentPartReasoning):
            parts.pop()
        self.add("model", parts)
        self.add("user", behind)

    def call(self, part: ContentPartToolCall) -> ContentPartToolCall:
        # A call is the provider's when it says so to Bedrock, whatever kind it has here.
        server = own(part).get("type") == "server_tool_use"
        return ContentPartToolCall(
            id=part.id,
            name=LETTERS_DIGITS_DASHES.mend(part.name),
            arguments=sent_arguments(part),
            kind="server" if server else "function",
            metadata=kept(part.metadata),
        )

    def result(self, part: ContentPartToolResult) -> ContentPartToolResult:
        output = part.output
        if not isinstance(output, dict) and not (isinstance(output, str) and output.strip()):
            output = json.dumps(output, ensure_ascii=False)
        return ContentPartToolResult(id=part.id, name="", output=output, is_error=part.is_error)

    def of_user(self, part: ContentPart) -> list[ContentPart]:
        if isinstance(part, ContentPartToolResult):
            return [self.result(part)]
        if isinstance(part, ContentPartText):
            return text(part.text)
        if isinstance(part, ContentPartData):
            return text(json.dumps(part.data, ensure_ascii=False, separators=(",", ":")))
        if isinstance(part, ContentPartFile):
            return self.file(part)
        return []

    def file(self, part: ContentPartFile) -> list[ContentPart]:
        kinds = {
            "image/png": "png", "application/pdf": "pdf", "text/csv": "csv", "text/x-python": "txt", "audio/mpeg": "mp3",
        }  # fmt: skip
        form = kinds.get(part.media_type)
        if not part.media_type and (part.url or "").endswith(".png"):
            form = "png"
        if form is None or part.data == b"" or (part.url or "s3").startswith("http"):
            return note(part)
        media_type = {"png": "image/png", "txt": "text/plain"}.get(form, part.media_type)
        filename = self.document(part.filename, form) if form in ("pdf", "csv", "txt") else ""
        return [part.model_copy(update={"media_type": media_type, "filename": filename, "metadata": {}})]

    def document(self, filename: str, form: str) -> str:
        clean = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", " ", filename.removesuffix(f".{form}"))
        name = " ".join(clean.split()) or "document"
        names = [name, *(f"{name} ({number})" for number in range(2, 99))]
        free = next(each for each in names if each.lower() not in self.documents)
        self.documents.add(free.lower())
        return f"{free}.{form}"

    def conversation(self) -> Iterator[Message]:
        if self.sides and self.sides[0][0] == "model":
            yield user(say(text=converter.opening))
        for position, (side, parts) in enumerate(self.sides):
            if side == "model":
                ours = [
                    part for part in parts if isinstance(part, ContentPartToolCall) and part.kind != "server"
                ]
                others = [part for part in parts if part not in ours]
                parts = [*others, *ours]
                if (
                    position == len(self.sides) - 1
                    and isinstance(parts[-1], ContentPartText)
                    and not own(parts[-1])
                ):
                    parts[-1] = say(text=parts[-1].text.rstrip())
                inside: dict[str, str] = {}
                for at, part in enumerate(parts):
                    if isinstance(part, ContentPartToolResult):
                        parts[at] = part.model_copy(update={"name": inside.get(part.id) or "unknown"})
                    elif isinstance(part, ContentPartToolCall):
                        self.names[part.id] = part.name
                        if part.kind == "server":
                            inside[part.id] = part.name
                yield model(*parts)
                continue
            if any(
                isinstance(part, ContentPartFile) and re.search(r"\.\w+$", part.filename) for part in parts
            ) and not any(isinstance(part, ContentPartText) for part in parts):
                parts.append(say(text=converter.documents))
            answers = [
                part.model_copy(update={"name": self.names.get(part.id) or "unknown"})
                for part in parts
                if isinstance(part, ContentPartToolResult)
            ]
            others = [part for part in parts if not isinstance(part, ContentPartToolResult)]
            if answers:
                yield tool(*answers)
            if others:
                yield user(*others)


@settings(deadline=None, max_examples=300)
@given(any_histories)
def test_a_history_comes_back_up_to_the_documented_losses(history: History) -> None:
    messages = converter.from_history(history)
    expected = tuple(Expected(history).conversation())
    assert converter.to_history(messages).conversation == expected
    assert converter.to_history(json.loads(json.dumps(messages))).conversation == expected


@settings(deadline=None)
@given(any_histories)
def test_what_came_back_goes_out_the_same(history: History) -> None:
    once = converter.from_history(converter.to_history(converter.from_history(history)))
    assert converter.from_history(converter.to_history(once)) == once


def validator() -> Callable[[dict[str, Any]], str]:
    """What the official client complains about in a request; empty for nothing."""
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
    """Those of the service's model, and those that the service checks beyond it."""
    messages = converter.from_history(history)
    # This version of the client does not know audio and the type of a call yet.
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
