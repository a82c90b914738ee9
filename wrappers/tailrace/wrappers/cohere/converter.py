"""Conversion between the common history and messages of Cohere's Chat API, version 2.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as the names of images.

- ``History.context`` is sent as a user message.
- Empty texts are omitted, because the API rejects them.
- Calls and results are matched and repaired (see `tailrace.wrappers.conversion.result_repair`): the API requires a result for
  each call, and a call for each result.
- Reasoning is sent only if Cohere produced it. Its signature is not preserved.
- The order in a message of the model is: the plan of its tool calls, thinking and text in their original order, tool calls.
  Without tool calls, the plan is omitted.
- Data is sent as a text with JSON. In a message of the model, data that is a content item of Cohere's API is sent unchanged.
- A user's image (not SVG) is sent with its bytes or its URL. Any other file, and each file of a model, becomes a text: ``[name](url)``
  for a URL, otherwise ``[file name, media type, size]``. A refusal is sent as text.
- Every call of a client tool is sent as a function call. Arguments that are not a JSON object, and the text for a custom tool,
  are sent as ``{"input": text}``.
- Tool output that is a non-empty object, or a list of several such objects, is sent as documents. Non-empty text is sent
  unchanged. Any other value is sent as JSON text. The output of a failed tool is sent as ``{"error": output}``.
- If a message has tool results and other parts, the results become separate messages.
- Calls of server tools and their results are omitted.
- Metadata is not sent, except ``metadata["cohere"]`` of a message, part, call or result: the fields of Cohere's object that the
  common format does not have. `to_history` adds a citation to the metadata of the cited part.

`CohereConverter.to_history` joins system messages, and merges adjacent tool messages.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.assembly.tool_calls import arguments_json
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.cohere.decoder import CohereDecoder, CohereWrapper, wrap_chunk
from tailrace.wrappers.conversion.files import (
    bare_media_type,
    data_url,
    ending_type,
    file_description,
    read_data_url,
)
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.message_objects import (
    Fields,
    check_calls,
    content_entries,
    content_texts,
    own_fields,
    own_metadata,
    result_output,
    text_entry,
)
from tailrace.wrappers.conversion.result_repair import with_repaired_results
from tailrace.wrappers.conversion.text_joining import join_texts
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.conversion.tool_names import NameRule
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings, as_object, as_text
from tailrace.wrappers.messages import (
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

_REASONING = ("THINKING_CONTENT", "PLAN")  # types of citations that refer to reasoning


class CohereConverter(HistoryConverter[Fields, Mapping[str, Any]]):
    """Stateless converter between conversations and Chat v2 messages."""

    name_rule: ClassVar[NameRule | None] = NameRule(re.compile(r"[^a-zA-Z0-9_]"), letter_first=True)

    def from_history(self, history: History) -> list[Fields]:
        """Return the messages of the request: the system message, the context, and then the conversation.

        Raises:
            ValueError: A message with a role other than MODEL contains a tool call.
        """
        check_calls(history)
        messages: list[Fields] = []
        if history.system_message:
            messages.append({"role": "system", "content": history.system_message})
        if history.context:
            messages.append({"role": "user", "content": [text_entry(history.context)]})
        functions: set[str] = set()
        for message in with_repaired_results(with_matched_ids(history)).conversation:
            functions |= {call.id for call in message.tool_calls if call.kind != "server"}
            results = [_tool_message(result) for result in message.tool_results if result.id in functions]
            if message.role is Role.MODEL:
                messages += [*_assistant_message(message), *results]
            else:
                # The API requires tool results directly after the calls.
                messages += [*results, *_user_message(message)]
        return messages

    def to_history(self, messages: Sequence[Fields | Any]) -> History:
        """Convert the messages of a request (JSON objects or objects of the ``cohere`` package) to the common history.

        Raises:
            ValueError: The role of a message, the type of a content part, or the data of an image is invalid.
        """
        return _HistoryReader().read(messages)

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """Convert the chunk wrappers of a stream, or a complete response, to a message.

        Args:
            response: The chunk wrappers of a stream, a complete response, or the message in a response (as a JSON object or an
                object of the ``cohere`` package).
        """
        fields = as_object(response)
        if fields is None:
            return assemble_message(response)
        if "role" in fields:
            return _read_assistant(fields)
        return assemble_message(CohereDecoder().wrap(fields))

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """Return one ``tool`` message for each result."""
        return [_tool_message(result) for result in results]

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> CohereWrapper:
        """Return the first chunk wrapper of one event, which is a JSON object or an object of the ``cohere`` package."""
        return next(iter(wrap_chunk(chunk)), None) or CohereWrapper(as_object(chunk) or {})


# --- from the common format -------------------------------------------------------------------------------------


def _assistant_message(message: Message) -> list[Fields]:
    """Return the assistant message; none if the message has no content that can be sent."""
    calls = [_tool_call(call) for call in message.tool_calls if call.kind != "server"]
    plan = ""
    content: list[Fields] = []
    citations: list[Mapping[str, Any]] = []
    for part in message.content:
        own = own_fields(part.metadata, "cohere")
        part_citations = as_mappings(own.pop("citations", None) or [])
        if isinstance(part, ContentPartReasoning) and own.get("type") == "tool_plan" and calls:
            plan += part.text
        elif items := _assistant_items(part, own):
            content += items
        else:
            continue
        citations += part_citations
    content += _text_items(as_text(message.metadata.get("refusal")), {})
    if not (content or calls):
        return []
    optional = {"tool_plan": plan, "content": content, "tool_calls": calls, "citations": citations}
    fields = {"role": "assistant", **{name: value for name, value in optional.items() if value}}
    return [{**own_fields(message.metadata, "cohere"), **fields}]


def _assistant_items(part: ContentPart, own: Fields) -> list[Fields]:
    """Return the content item for a part of the model; none if the part is not sent."""
    if isinstance(part, ContentPartText):
        return _text_items(part.text, own)
    if isinstance(part, ContentPartReasoning) and own.get("type") == "thinking" and part.text:
        return [{**own, "type": "thinking", "thinking": part.text}]
    if isinstance(part, ContentPartData):
        return [_data_item(part, own)]
    if isinstance(part, ContentPartFile):
        return [text_entry(file_description(part))]
    return []


def _user_message(message: Message) -> list[Fields]:
    """Return the user message with all parts except tool results; none if it has no content that can be sent."""
    content: list[Fields] = []
    for part in message.content:
        own = own_fields(part.metadata, "cohere")
        if isinstance(part, ContentPartText):
            content += _text_items(part.text, own)
        elif isinstance(part, ContentPartData):
            content.append(text_entry(_json(part.data)))
        elif isinstance(part, ContentPartFile):
            content.append(_image_item(part, own) or text_entry(file_description(part)))
    return [{**own_fields(message.metadata, "cohere"), "role": "user", "content": content}] if content else []


def _text_items(text: str, own: Fields) -> list[Fields]:
    return [{**own, **text_entry(text)}] if text else []


def _data_item(part: ContentPartData, own: Fields) -> Fields:
    """Return the content item of Cohere's API that a part contains; for other data, a text item with JSON."""
    block = as_mapping(part.data)
    if block is not None and own.get("type") and own["type"] == block.get("type"):
        return dict(block)
    return text_entry(_json(part.data))


def _image_item(part: ContentPartFile, own: Fields) -> Fields | None:
    """Return the content item for an image; None for SVG images, and for files that are not images."""
    media_type = bare_media_type(part.media_type)
    if media_type == "image/svg+xml":
        return None
    if part.data is not None:
        url = data_url(media_type, part.data)
    else:
        url = part.url or ""
        media_type = media_type or ending_type(url)
    if not media_type.startswith("image/"):
        return None
    image = {**(as_mapping(own.get("image_url")) or {}), "url": url}
    return {**own, "type": "image_url", "image_url": image}


def _tool_call(call: ContentPartToolCall) -> Fields:
    own = own_fields(call.metadata, "cohere")
    function = {
        **(as_mapping(own.get("function")) or {}),
        "name": call.name,
        "arguments": arguments_json(call),
    }
    return {**own, "id": call.id, "type": "function", "function": function}


def _tool_message(result: ContentPartToolResult) -> Fields:
    own = own_fields(result.metadata, "cohere")
    # Content that `to_history` could not convert without loss is sent unchanged: citations refer to its documents.
    content = own.get("content") or _tool_content(result)
    return {**own, "role": "tool", "tool_call_id": result.id, "content": content}


def _tool_content(result: ContentPartToolResult) -> str | list[Fields]:
    output = result_output(result)
    documents: list[object] = []
    if isinstance(output, dict):
        documents = [cast("object", output)]
    elif isinstance(output, list) and len(cast("list[object]", output)) > 1:
        # `to_history` would convert a list with one object to the object.
        documents = cast("list[object]", output)
    if documents and all(as_mapping(each) for each in documents):
        return [{"type": "document", "document": {"data": each}} for each in documents]
    return output if isinstance(output, str) and output else _json(cast("object", output))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    def read_message(self, message: object) -> None:
        fields = as_object(message) or {}
        role = as_text(fields.get("role")).lower()
        if role == "tool":
            self.add_result(self._tool_result(fields))
        elif role == "system":
            self.add_system("\n\n".join(content_texts(fields.get("content"))))
        elif role == "user":
            parts = tuple(_user_part(item) for item in content_entries(fields.get("content")))
            metadata = own_metadata("cohere", fields, "role", "content")
            self.add(Message(role=Role.USER, content=parts, metadata=metadata))
        elif role == "assistant":
            self.add(_read_assistant(fields))
        else:
            raise ValueError(f"the role {fields.get('role')!r} is not defined by Chat v2")

    def _tool_result(self, fields: Fields) -> ContentPartToolResult:
        call_id = as_text(fields.get("tool_call_id"))
        content = fields.get("content")
        metadata = own_metadata("cohere", fields, "role", "content", "tool_call_id")
        result = ContentPartToolResult(
            id=call_id, name=self.names.get(call_id) or "unknown", output=_output(content), metadata=metadata
        )
        if _tool_content(result) == content:
            return result
        own = {**own_fields(metadata, "cohere"), "content": content}
        return result.model_copy(update={"metadata": {"cohere": own}})


def _read_assistant(fields: Fields) -> Message:
    plan = as_text(fields.get("tool_plan"))
    parts: list[ContentPart] = []
    if plan:
        parts.append(ContentPartReasoning(text=plan, metadata={"cohere": {"type": "tool_plan"}}))
    content = [_assistant_part(item) for item in content_entries(fields.get("content"))]
    for citation in as_mappings(fields.get("citations")):
        if not _add_citation(content, citation):
            _add_citation(parts, citation)
    # Invalid calls cause no error if they are assembled like the calls of a stream.
    calls = assemble_message(wrap_chunk({"message": {"tool_calls": fields.get("tool_calls")}})).tool_calls
    metadata = own_metadata("cohere", fields, "role", "tool_plan", "content", "citations", "tool_calls")
    return Message(role=Role.MODEL, content=(*parts, *content, *calls), metadata=metadata)


def _assistant_part(item: object) -> ContentPart:
    if isinstance(item, str):
        return ContentPartText(text=item)
    fields = as_mapping(item) or {}
    if fields.get("type") == "text":
        return ContentPartText(
            text=as_text(fields.get("text")), metadata=own_metadata("cohere", fields, "type", "text")
        )
    if fields.get("type") == "thinking":
        text = as_text(fields.get("thinking"))
        return ContentPartReasoning(text=text, metadata=own_metadata("cohere", fields, "thinking"))
    if not isinstance(fields.get("type"), str):
        raise ValueError("a content part without a type")
    return ContentPartData(data=dict(fields), metadata={"cohere": {"type": fields["type"]}})


def _add_citation(parts: list[ContentPart], citation: Mapping[str, Any]) -> bool:
    """Add a citation to the part that its index refers to; otherwise to the last part of the cited type (text or reasoning).

    Return False if there is no part of the cited type.
    """
    kind = ContentPartReasoning if citation.get("type") in _REASONING else ContentPartText
    positions = [position for position, part in enumerate(parts) if isinstance(part, kind)]
    if not positions:
        return False
    index = as_index(citation.get("content_index"))
    position = index if index is not None and index in positions else positions[-1]
    own = own_fields(parts[position].metadata, "cohere")
    metadata = {"cohere": {**own, "citations": [*own.get("citations", []), citation]}}
    parts[position] = parts[position].model_copy(update={"metadata": metadata})
    return True


def _user_part(item: object) -> ContentPart:
    if isinstance(item, str):
        return ContentPartText(text=item)
    fields = as_mapping(item) or {}
    kind = fields.get("type")
    if kind == "text":
        return ContentPartText(
            text=as_text(fields.get("text")), metadata=own_metadata("cohere", fields, "type", "text")
        )
    if kind != "image_url":
        raise ValueError(f"a content part of type {kind!r} is not defined by Chat v2")
    inner = fields.get("image_url")
    image = {"url": inner} if isinstance(inner, str) else as_mapping(inner) or {}
    other_fields = {name: value for name, value in image.items() if name != "url"}
    metadata = own_metadata("cohere", {**fields, "image_url": other_fields or None}, "type")
    url = as_text(image.get("url"))
    if not url.startswith("data:"):
        return ContentPartFile(url=url, media_type=ending_type(url) or "image/*", metadata=metadata)
    media_type, data = read_data_url(url)
    return ContentPartFile(data=data, media_type=media_type, metadata=metadata)


def _output(content: object) -> Any:
    """Return the output of a tool: text, the data of one document, or a list with the data of several documents."""
    values: list[Any] = []
    for item in content_entries(content):
        fields = as_mapping(item) or {}
        document = as_mapping(fields.get("document"))
        values.append(document.get("data") if document is not None else content_texts([item])[0])
    if len(values) == 1:
        return values[0]
    return join_texts(values) if all(isinstance(value, str) for value in values) else values
