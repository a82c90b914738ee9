"""Between the common history and the messages of Cohere's Chat API, version 2.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.context`` goes out as a user message, and comes back as one.
- Empty texts are left out, and so are messages that are empty then: the API refuses them.
- Calls and results are matched first, as the API demands, see `tailrace.wrappers.tool_ids`: ids that are missing or
  an earlier call's are changed, a call without a result gets one that says so, a result without a call becomes
  text.
- Reasoning is sent back where it is Cohere's own (``metadata["cohere"]["type"]``), and else left out; its signature
  is.
- In a model's message the plan of its tool calls goes first, then thinking and text in their order, then tool
  calls. Without a tool call there is no plan.
- Data goes out as its JSON, in a text. An image goes out as such, without its name: by value with the plain form of
  its type, by address without one, so that it comes back with what the address tells. Any other file is named in a
  text: ``[name](url)``, ``[file name, media type, size]``; so is any file of a model's. A refusal goes out as text.
- Every call is a function's, whatever its kind; that its id was made here is forgotten. Its arguments have to be an
  object: those that are none, and a custom tool's text, go out as ``{"input": text}``.
- A tool's output goes out as a document where it is an object that is not empty, as documents where it is a list of
  several, and else as text: its JSON, where it is not a text with something in it. That of a failed tool is
  ``{"error": output}``. A tool's name comes back from the call with the same id.
- In a message that mixes tool results with other parts, these become a message of their own.
- Tools that a provider ran by itself are left out: calls of kind ``"server"``, and their results.
- Metadata stays here, except ``metadata["cohere"]`` of a message, part, call or result: further fields of Cohere's
  object, kept and sent as they are. Citations come back in the part that they name, or else in the last of their
  kind.

The other way, system messages are joined in one, and tool messages that stand together become one.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.cohere.chunks import CohereDecoder, CohereWrapper, wrap_chunk
from tailrace.wrappers.files import data_url, ending_type, essence, file_note, read_data_url
from tailrace.wrappers.folding import fold_message
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.loose_json import as_index, as_mapping, as_mappings, as_text
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
from tailrace.wrappers.tool_calls import arguments_object
from tailrace.wrappers.tool_ids import with_answers, with_matched_ids
from tailrace.wrappers.tool_names import NameRule

Fields = dict[str, Any]

_REASONING = ("THINKING_CONTENT", "PLAN")  # types of citations that do not stand in the text


class CohereConverter(HistoryConverter[Fields, Mapping[str, Any]]):
    """Converts conversations to the messages of Chat v2 and back. Holds no state."""

    name_rule: ClassVar[NameRule | None] = NameRule(re.compile(r"[^a-zA-Z0-9_]"), letter_first=True)

    def from_history(self, history: History) -> list[Fields]:
        """The request's messages: system, then context, then the conversation.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        messages: list[Fields] = []
        if history.system_message:
            messages.append({"role": "system", "content": history.system_message})
        if history.context:
            messages.append({"role": "user", "content": [_text_item(history.context)]})
        functions: set[str] = set()
        for message in with_answers(with_matched_ids(history)).conversation:
            functions |= {call.id for call in message.tool_calls if call.kind != "server"}
            results = [_tool_message(result) for result in message.tool_results if result.id in functions]
            if message.role is Role.MODEL:
                messages += [*_assistant_message(message), *results]
            else:
                # The API wants results directly after the calls, so what else was said follows them.
                messages += [*results, *_user_message(message)]
        return messages

    def to_history(self, messages: Sequence[Fields | Any]) -> History:
        """The common history of a request's messages (or of the cohere package's objects).

        Raises:
            ValueError: A message has a role, or a content part a type, that Chat v2 does not define.
        """
        return _HistoryReader().read(messages)

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

        Args:
            response: Wrappers; a response, or its message, as JSON object or as the cohere package's object.
        """
        fields = _fields(response)
        if fields is None:
            return fold_message(response)
        if "role" in fields:
            return _read_assistant(fields)
        return fold_message(CohereDecoder().wrap(fields))

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """One ``tool`` message for each result."""
        return [_tool_message(result) for result in results]

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> CohereWrapper:
        """A wrapper over one event of a stream, as JSON object or as the cohere package's object."""
        return next(iter(wrap_chunk(chunk)), None) or CohereWrapper(_fields(chunk) or {})


# --- from the common format -------------------------------------------------------------------------------------


def _assistant_message(message: Message) -> list[Fields]:
    """The model's message; none where nothing is left of it."""
    calls = [_tool_call(call) for call in message.tool_calls if call.kind != "server"]
    plan = ""
    content: list[Fields] = []
    citations: list[Mapping[str, Any]] = []
    for part in message.content:
        own = _own_fields(part.metadata)
        quoted = as_mappings(own.pop("citations", None) or [])
        if isinstance(part, ContentPartReasoning) and own.get("type") == "tool_plan" and calls:
            plan += part.text
        elif items := _assistant_items(part, own):
            content += items
        else:
            continue
        citations += quoted
    content += _text_items(as_text(message.metadata.get("refusal")), {})
    if not (content or calls):
        return []
    optional = {"tool_plan": plan, "content": content, "tool_calls": calls, "citations": citations}
    fields = {"role": "assistant", **{name: value for name, value in optional.items() if value}}
    return [{**_own_fields(message.metadata), **fields}]


def _assistant_items(part: ContentPart, own: Fields) -> list[Fields]:
    """What a part of the model's message is in its content: one item or none."""
    if isinstance(part, ContentPartText):
        return _text_items(part.text, own)
    if isinstance(part, ContentPartReasoning) and own.get("type") == "thinking" and part.text:
        return [{**own, "type": "thinking", "thinking": part.text}]
    if isinstance(part, ContentPartData):
        return [_data_item(part, own)]
    if isinstance(part, ContentPartFile):
        return [_text_item(file_note(part))]
    return []


def _user_message(message: Message) -> list[Fields]:
    """The user message for what a message holds besides tool results; none when that is nothing."""
    content: list[Fields] = []
    for part in message.content:
        own = _own_fields(part.metadata)
        if isinstance(part, ContentPartToolCall):
            raise ValueError(
                f"the tool call {part.id!r} stands in a message of role {message.role}, not the model's"
            )
        if isinstance(part, ContentPartText):
            content += _text_items(part.text, own)
        elif isinstance(part, ContentPartData):
            content.append(_text_item(_json(part.data)))
        elif isinstance(part, ContentPartFile):
            content.append(_image_item(part, own) or _text_item(file_note(part)))
    return [{**_own_fields(message.metadata), "role": "user", "content": content}] if content else []


def _text_item(text: str) -> Fields:
    return {"type": "text", "text": text}


def _text_items(text: str, own: Fields) -> list[Fields]:
    return [{**own, **_text_item(text)}] if text else []


def _data_item(part: ContentPartData, own: Fields) -> Fields:
    """A block that Cohere made and nobody else knows, as it was; any other data as its JSON."""
    block = as_mapping(part.data)
    if block is not None and own.get("type") and own["type"] == block.get("type"):
        return dict(block)
    return _text_item(_json(part.data))


def _image_item(part: ContentPartFile, own: Fields) -> Fields | None:
    """The item of an image; None for another file."""
    media_type = essence(part.media_type)
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
    own = _own_fields(call.metadata)
    function = {
        **(as_mapping(own.get("function")) or {}),
        "name": call.name,
        "arguments": json.dumps(arguments_object(call), ensure_ascii=False),
    }
    return {**own, "id": call.id, "type": "function", "function": function}


def _tool_message(result: ContentPartToolResult) -> Fields:
    own = _own_fields(result.metadata)
    # Content that was received in another form than ours is sent as it was: citations name its documents.
    content = own.get("content") or _tool_content(result)
    return {**own, "role": "tool", "tool_call_id": result.id, "content": content}


def _tool_content(result: ContentPartToolResult) -> str | list[Fields]:
    output = result.output
    if result.is_error and "error" not in (as_mapping(output) or {}):
        output = {"error": output}
    documents: list[object] = []
    if isinstance(output, dict):
        documents = [cast("object", output)]
    elif isinstance(output, list) and len(cast("list[object]", output)) > 1:
        documents = cast("list[object]", output)  # one in a list would come back without it
    if documents and all(as_mapping(each) for each in documents):
        return [{"type": "document", "document": {"data": each}} for each in documents]
    return output if isinstance(output, str) and output else _json(cast("object", output))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _own_fields(metadata: Mapping[str, Any]) -> Fields:
    return dict(as_mapping(metadata.get("cohere")) or {})


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader:
    """Reads a request's messages from first to last; remembers the calls that results will refer to."""

    def __init__(self) -> None:
        self._system: list[str] = []
        self._conversation: list[Message] = []
        self._results: list[ContentPartToolResult] = []
        self._names: dict[str, str] = {}

    def read(self, messages: Iterable[Any]) -> History:
        for position, message in enumerate(messages):
            try:
                self._read_message(_fields(message) or {})
            except ValueError as error:
                raise ValueError(f"message {position}: {error}") from None
        self._end_results()
        return History(
            system_message="\n\n".join(self._system) if self._system else None,
            conversation=tuple(self._conversation),
        )

    def _read_message(self, fields: Fields) -> None:
        role = as_text(fields.get("role")).lower()
        if role == "tool":
            self._results.append(self._tool_result(fields))
            return
        self._end_results()
        if role == "system":
            self._system.append("\n\n".join(_texts(fields.get("content"))))
        elif role == "user":
            parts = tuple(_user_part(item) for item in _items(fields.get("content")))
            metadata = _metadata(fields, "role", "content")
            self._conversation.append(Message(role=Role.USER, content=parts, metadata=metadata))
        elif role == "assistant":
            message = _read_assistant(fields)
            self._names |= {call.id: call.name for call in message.tool_calls}
            self._conversation.append(message)
        else:
            raise ValueError(f"the role {fields.get('role')!r} is not one of Chat v2")

    def _tool_result(self, fields: Fields) -> ContentPartToolResult:
        call_id = as_text(fields.get("tool_call_id"))
        content = fields.get("content")
        metadata = _metadata(fields, "role", "content", "tool_call_id")
        result = ContentPartToolResult(
            id=call_id, name=self._names.get(call_id) or "unknown", output=_output(content), metadata=metadata
        )
        if _tool_content(result) == content:
            return result
        own = {**_own_fields(metadata), "content": content}
        return result.model_copy(update={"metadata": {"cohere": own}})

    def _end_results(self) -> None:
        if self._results:
            self._conversation.append(Message(role=Role.TOOL, content=tuple(self._results)))
            self._results = []


def _read_assistant(fields: Fields) -> Message:
    plan = as_text(fields.get("tool_plan"))
    parts: list[ContentPart] = []
    if plan:
        parts.append(ContentPartReasoning(text=plan, metadata={"cohere": {"type": "tool_plan"}}))
    content = [_assistant_part(item) for item in _items(fields.get("content"))]
    for citation in as_mappings(fields.get("citations")):
        if not _add_citation(content, citation):
            _add_citation(parts, citation)
    # The calls as a stream's, which mends what may be wrong with them.
    calls = fold_message(wrap_chunk({"message": {"tool_calls": fields.get("tool_calls")}})).tool_calls
    metadata = _metadata(fields, "role", "tool_plan", "content", "citations", "tool_calls")
    return Message(role=Role.MODEL, content=(*parts, *content, *calls), metadata=metadata)


def _assistant_part(item: object) -> ContentPart:
    """One entry of an assistant message's content. Text may stand there without an object around it."""
    if isinstance(item, str):
        return ContentPartText(text=item)
    fields = as_mapping(item) or {}
    if fields.get("type") == "text":
        return ContentPartText(text=as_text(fields.get("text")), metadata=_metadata(fields, "type", "text"))
    if fields.get("type") == "thinking":
        text = as_text(fields.get("thinking"))
        return ContentPartReasoning(text=text, metadata=_metadata(fields, "thinking"))
    if not isinstance(fields.get("type"), str):
        raise ValueError("a content part without a type")
    return ContentPartData(data=dict(fields), metadata={"cohere": {"type": fields["type"]}})


def _add_citation(parts: list[ContentPart], citation: Mapping[str, Any]) -> bool:
    """Put a citation into the part that it names, or else the last of its kind; whether there is one."""
    kind = ContentPartReasoning if citation.get("type") in _REASONING else ContentPartText
    fitting = [position for position, part in enumerate(parts) if isinstance(part, kind)]
    if not fitting:
        return False
    named = as_index(citation.get("content_index"))
    position = named if named is not None and named in fitting else fitting[-1]
    own = _own_fields(parts[position].metadata)
    metadata = {"cohere": {**own, "citations": [*own.get("citations", []), citation]}}
    parts[position] = parts[position].model_copy(update={"metadata": metadata})
    return True


def _user_part(item: object) -> ContentPart:
    """One entry of a user message's content. Text may stand there without an object around it."""
    if isinstance(item, str):
        return ContentPartText(text=item)
    fields = as_mapping(item) or {}
    kind = fields.get("type")
    if kind == "text":
        return ContentPartText(text=as_text(fields.get("text")), metadata=_metadata(fields, "type", "text"))
    if kind != "image_url":
        raise ValueError(f"a content part of type {kind!r} is not one of Chat v2")
    inner = fields.get("image_url")
    image = {"url": inner} if isinstance(inner, str) else as_mapping(inner) or {}
    rest = {name: value for name, value in image.items() if name != "url"}
    metadata = _metadata({**fields, "image_url": rest or None}, "type")
    url = as_text(image.get("url"))
    if not url.startswith("data:"):
        return ContentPartFile(url=url, media_type=ending_type(url) or "image/*", metadata=metadata)
    media_type, data = read_data_url(url)
    return ContentPartFile(data=data, media_type=media_type, metadata=metadata)


def _output(content: object) -> Any:
    """What a tool answered: a document's data, those of several, or text."""
    values: list[Any] = []
    for item in _items(content):
        fields = as_mapping(item) or {}
        document = as_mapping(fields.get("document"))
        values.append(document.get("data") if document is not None else _texts([item])[0])
    if len(values) == 1:
        return values[0]
    return "".join(values) if all(isinstance(value, str) for value in values) else values


def _texts(content: object) -> list[str]:
    """The texts of content that may hold nothing but text."""
    texts: list[str] = []
    for item in _items(content):
        fields = _text_item(item) if isinstance(item, str) else as_mapping(item) or {}
        if fields.get("type") != "text":
            raise ValueError(f"a content part of type {fields.get('type')!r} where only text may stand")
        texts.append(as_text(fields.get("text")))
    return texts


def _items(content: object) -> list[object]:
    """Content as a list of parts, whichever of its forms it has; the empty text and null are no parts."""
    if content is None or content == "":
        return []
    if isinstance(content, list):
        return cast("list[object]", content)
    if isinstance(content, str | Mapping):
        return [cast("object", content)]
    raise ValueError(f"content of type {type(content).__name__}")


def _metadata(fields: Mapping[str, Any], *known: str) -> Fields:
    """What an object holds beyond the known fields, under the key that sends it back."""
    rest = {name: value for name, value in fields.items() if name not in known and value is not None}
    return {"cohere": rest} if rest else {}


def _fields(value: Any) -> Fields | None:
    """A message or a response as a JSON object; None for anything else."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    return None
