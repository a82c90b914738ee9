"""The Mistral converter on any history at all: the round trip up to the documented losses, and Mistral's rules."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

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
from tailrace.wrappers.mistral import MistralConverter
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES

converter = MistralConverter()
say = ContentPartText
THINKING = {"mistral": {"type": "thinking"}}
REFERENCE = {"type": "reference", "reference_ids": [1, 2]}


def read(messages: Sequence[Mapping[str, Any]]) -> History:
    return converter.to_history(cast("Any", messages))


def user(*content: ContentPart) -> Message:
    return Message(role=Role.USER, content=content)


def model(*content: ContentPart, **metadata: Any) -> Message:
    return Message(role=Role.MODEL, content=content, metadata=metadata)


def tool(*content: ContentPart) -> Message:
    return Message(role=Role.TOOL, content=content)


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


def own(part: ContentPart | Message) -> dict[str, Any]:
    return dict(part.metadata.get("mistral", {}))


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def note(part: ContentPartFile) -> ContentPartText:
    if part.url is not None:
        return say(text=f"[{part.filename or part.url}]({part.url})")
    facts = (f"file {part.filename}".rstrip(), part.media_type, f"{len(part.data or b'')} bytes")
    return say(text=f"[{', '.join(fact for fact in facts if fact)}]")


def expected_file(part: ContentPartFile) -> ContentPart:
    if part.url == "mistral-file:f":
        return ContentPartFile(url=part.url)
    image = part.media_type == "image/png" or (not part.media_type and (part.url or "").endswith(".png"))
    audio = part.media_type == "audio/mpeg"
    document = part.media_type in ("application/pdf", "text/markdown")
    if not (image or audio or document) or part.data == b"":
        return note(part)
    filename = part.filename if document else ""
    if part.url is None:
        media_type = "audio/*" if audio else part.media_type
        return ContentPartFile(data=part.data, media_type=media_type, filename=filename)
    by_ending = "image/png" if part.url.endswith(".png") else ""
    if image:
        return ContentPartFile(url=part.url, media_type=by_ending or "image/*")
    kind = "input_audio" if audio else "document_url"
    media_type = by_ending or ("audio/*" if audio else "")
    # What its ending does not say is kept beside it.
    back = {} if media_type == "audio/*" else {"mistral": {"type": kind}}
    return ContentPartFile(url=part.url, media_type=media_type, filename=filename, metadata=back)


class Expected:
    """Applies the losses that the module documents to a history."""

    def __init__(self, history: History) -> None:
        self.names: dict[str, str] = {}
        self.messages: list[Message] = []
        if history.context is not None:
            self.messages.append(user(say(text=history.context)))
        for message in history.conversation:
            if message.role is Role.MODEL:
                self.add_answer(message)
            else:
                self.add_results(message.tool_results)
                self.add_words(message)

    def add_results(self, given: Sequence[ContentPartToolResult]) -> None:
        made = [self.result(part) for part in given]
        if made and self.messages and self.messages[-1].role is Role.TOOL:
            self.messages[-1] = tool(*self.messages[-1].content, *made)
        elif made:
            self.messages.append(tool(*made))

    def add_words(self, message: Message) -> None:
        parts = [kept for part in message.content for kept in self.of_user(part)]
        if not parts and (message.role is Role.TOOL or message.tool_results):
            return
        if self.messages and self.messages[-1].role is Role.TOOL:
            self.messages.append(model(say(text=converter.bridge)))
        self.messages.append(user(*parts))

    def of_user(self, part: ContentPart) -> list[ContentPart]:
        if isinstance(part, ContentPartText):
            return [say(text=part.text)]
        if isinstance(part, ContentPartData):
            return [say(text=as_json(part.data))]
        return [expected_file(part)] if isinstance(part, ContentPartFile) else []

    def result(self, part: ContentPartToolResult) -> ContentPartToolResult:
        output: Any = part.output
        if part.is_error and not (isinstance(output, dict) and "error" in output):
            output = {"error": part.output}
        if not isinstance(output, str):
            output = json.dumps(output, ensure_ascii=False)
        name = "" if part.name in ("", "unknown") else LETTERS_DIGITS_DASHES.mend(part.name)
        return ContentPartToolResult(
            id=part.id, name=self.names.get(part.id) or name or "unknown", output=output
        )

    def add_answer(self, message: Message) -> None:
        by_provider = {call.id for call in message.tool_calls if call.kind == "server"}
        said = list(joined(kept for part in message.content for kept in self.of_model(part)))
        if "refusal" in message.metadata:
            said = list(joined([*said, say(text="no")]))
        made = [self.call(call) for call in message.tool_calls if call.kind != "server"]
        if said or made:
            self.names |= {call.id: call.name for call in made}
            metadata = {"mistral": own(message)} if own(message) else {}
            self.messages.append(model(*said, *made, **metadata))
        self.add_results([part for part in message.tool_results if part.id not in by_provider])

    def of_model(self, part: ContentPart) -> list[ContentPart]:
        if isinstance(part, ContentPartText):
            references = own(part).get("references")
            if references:
                return [say(text=part.text, metadata={"mistral": {"references": references}})]
            return [say(text=part.text)] if part.text else []
        if isinstance(part, ContentPartReasoning):
            return (
                [ContentPartReasoning(text=part.text, metadata=THINKING)] if own(part) and part.text else []
            )
        if isinstance(part, ContentPartData):
            return [say(text=as_json(part.data))]
        return [note(part)] if isinstance(part, ContentPartFile) else []

    def call(self, call: ContentPartToolCall) -> ContentPartToolCall:
        arguments = sent_arguments(call)
        if call.kind == "custom":
            arguments = call.arguments or {"input": call.arguments_text or ""}
        return ContentPartToolCall(
            id=call.id, name=LETTERS_DIGITS_DASHES.mend(call.name), arguments=arguments
        )


def joined(parts: Iterable[ContentPart]) -> Iterator[ContentPart]:
    """Neighbouring texts run together, and so does neighbouring thinking; a text ends behind its references."""
    done: list[ContentPart] = []
    for part in parts:
        last = done[-1] if done else None
        if isinstance(part, ContentPartReasoning) and isinstance(last, ContentPartReasoning):
            done[-1] = last.model_copy(update={"text": last.text + part.text})
        elif isinstance(part, ContentPartText) and isinstance(last, ContentPartText) and not own(last):
            done[-1] = say(text=last.text + part.text, metadata=part.metadata)
        elif isinstance(part, ContentPartText) and isinstance(last, ContentPartText) and not part.text:
            references = [*own(last)["references"], *own(part)["references"]]
            done[-1] = say(text=last.text, metadata={"mistral": {"references": references}})
        else:
            done.append(part)
    yield from done


@settings(deadline=None, max_examples=300)
@given(any_histories)
def test_a_history_comes_back_up_to_the_documented_losses(history: History) -> None:
    messages = cast("list[dict[str, Any]]", converter.from_history(history))
    expected = History(system_message=history.system_message, conversation=tuple(Expected(history).messages))
    assert read(messages) == expected
    assert read(json.loads(json.dumps(messages))) == expected


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
