"""Between the common history and the input items of Responses requests.

Whole conversations are sent, since nothing is stored at the provider's: what a model has to be reminded of, sealed
reasoning above all, goes back to it where it stood. The instructions are the first item, a message of role ``system``,
which every server takes; the request's parameter ``instructions`` may be used beside it.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.context`` goes out as a user message, and comes back as one.
- Calls without an id, or with one that is taken or that the API refuses (over 64 characters), get another; calls that
  nobody answered get a result that says so, and results without a call become text (see `tailrace.wrappers.tool_ids`).
- Reasoning is sent back only when it is this API's and has its id and its encrypted content; what a stream did not
  seal, and what nothing of the same message follows (the API refuses that), is left out. Its state is forgotten.
- The ids and states of messages and function calls are not sent: some servers refuse the ids that they gave, and none
  needs them.
- Calls of tools that the provider ran, what these answered, images that they made, and other items are sent as they
  were when they are this API's. Those of other providers are left out.
- Calls of the API's own tools that the caller ran (a computer, a shell, a patch, …) are sent as they were too. The
  result goes out, and comes back, in the form that the API has for that tool; where it cannot be given that form, call
  and result go out as those of a function.
- A data part of no item goes out as its JSON, in a text part.
- A file of the user's goes out as an image, as sound (WAV, MP3) or as a file. Images, sounds, links and uploaded files
  lose their name; a link keeps its type only where its address says it; a file without a name or type gets one. A
  file of the model's is named in a text part: a link as ``[name](url)``, else ``[file name, media type, size]``.
- A text of the model's that is empty is left out, and so is a message of which nothing remains. Messages of the model
  that stand together become one. A refusal goes behind everything else.
- A function call's arguments that are no object go out as ``{"input": text}``: servers that parse them would refuse the
  conversation.
- A tool's output that is not text goes out as its JSON, unless it is a list of the API's content parts; that of a
  failed tool as ``{"error": output}``. They come back as text. The name of a tool comes back from the call with the
  same id. In a message that mixes tool results with other parts, these become a message of their own.
- Metadata stays here, except a model's ``refusal`` and ``metadata["openai-responses"]`` of a message or part: further
  fields of the API's object, kept and sent as they are (``phase``, ``annotations``, ``namespace``, …).

The other way, system and developer messages are joined in one, and outputs that stand together become one message.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.folding import fold_message
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.loose_json import as_text
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartText,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.openai_responses.answers import answer_item
from tailrace.wrappers.openai_responses.chunks import ResponsesDecoder, wrap_chunk
from tailrace.wrappers.openai_responses.files import file_part
from tailrace.wrappers.openai_responses.input_items import input_items, output_item
from tailrace.wrappers.openai_responses.items import (
    FUNCTION_CALLS,
    KEY,
    call_id,
    call_name,
    is_call,
    is_output,
    json_object,
    output_result,
    run_by_caller,
)
from tailrace.wrappers.openai_responses.wrapper import ResponsesEventWrapper
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES, NameRule

if TYPE_CHECKING:
    from openai.types.responses import (
        Response,
        ResponseInputItemParam,
        ResponseOutputItem,
        ResponseStreamEvent,
    )

Fields = dict[str, Any]

_CALL_ID = re.compile(r".{1,64}", re.DOTALL)
_FUNCTION_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_IN_PARTS = ("annotations", "logprobs")  # what the metadata of the text says, as far as it is sent back


class ResponsesConverter(
    HistoryConverter["ResponseInputItemParam", "ResponseStreamEvent | Mapping[str, Any]"]
):
    """Converts conversations to the input items of Responses requests and back. Holds no state."""

    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES

    def from_history(self, history: History) -> "list[ResponseInputItemParam]":
        """The request's input: system message, context, then the conversation.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        return cast("list[ResponseInputItemParam]", input_items(history))

    def to_history(self, messages: "Sequence[ResponseInputItemParam | ResponseOutputItem]") -> History:
        """The common history of a request's input items (or of the package's output items among them).

        Raises:
            ValueError: A message has a role, or a content part a type, that the API does not define.
        """
        return _HistoryReader().read(messages)

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any] | ResponseStreamEvent] | Response | Mapping[str, Any]",
    ) -> Message:
        """The complete message of a stream, or of a whole response.

        Args:
            response: Wrappers, or the package's events, in order; a ``Response`` or its JSON object; an item of
                its output.
        """
        if isinstance(response, Mapping | BaseModel):
            fields = json_object(cast("object", response))
            if "type" in fields:
                fields = {"output": [fields]}
            return fold_message(ResponsesDecoder().wrap({**fields, "object": "response"}), think_tags=False)
        return fold_message(_wrappers(response))

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ResponseInputItemParam]":
        """One ``function_call_output`` for each result.

        What kind of tool answered is not known from its result: those of custom tools, and of the API's own, go out
        right when they stand in a history with their calls.
        """
        return cast("list[ResponseInputItemParam]", [output_item(result) for result in results])

    def create_chunk_wrapper(self, chunk: "ResponseStreamEvent | Mapping[str, Any]") -> ResponsesEventWrapper:
        """A wrapper over one event; of one that says several things, the first that is not empty.

        What is said of `wrap_chunk` holds here too.
        """
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else ResponsesEventWrapper(json_object(chunk))


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader:
    """Reads input items from first to last; remembers the calls that outputs will refer to."""

    def __init__(self) -> None:
        self._system: list[str] = []
        self._conversation: list[Message] = []
        self._said: list[Fields] = []  # the model's items that make one message
        self._results: list[ContentPartToolResult] = []
        self._calls: dict[str, Fields] = {}

    def read(self, items: Iterable[object]) -> History:
        for position, item in enumerate(items):
            try:
                self._read_item(json_object(item))
            except ValueError as error:
                raise ValueError(f"item {position}: {error}") from None
        self._end_said()
        self._end_results()
        return History(
            system_message="\n\n".join(self._system) if self._system else None,
            conversation=tuple(self._conversation),
        )

    def _read_item(self, fields: Fields) -> None:
        kind = as_text(fields.get("type")) or ("message" if "role" in fields else "")
        if not kind:
            raise ValueError("an item with neither a type nor a role")
        if is_output(kind) and self._is_answer(kind, fields):
            self._end_said()
            self._results.append(self._tool_result(kind, fields))
        elif kind == "message" and fields.get("role") != "assistant":
            self._read_message(fields)
        else:
            self._end_results()
            if kind == "message":
                fields["content"] = [_said_part(part) for part in _entries(fields.get("content"))]
            if kind in FUNCTION_CALLS or is_call(kind):
                self._calls[call_id(fields)] = fields
            self._said.append({**fields, "type": kind})

    def _is_answer(self, kind: str, fields: Fields) -> bool:
        """Whether an output is the caller's answer, not the provider's."""
        if kind in _FUNCTION_OUTPUTS or kind == "mcp_approval_response":
            return True
        result = output_result(fields)
        call = self._calls.get(result.id)
        # What answers no call that it names is the provider's own.
        return run_by_caller(call) if call is not None else result.id != fields.get("id")

    def _read_message(self, fields: Fields) -> None:
        self._end_said()
        self._end_results()
        role = fields.get("role")
        entries = _entries(fields.get("content"))
        if role in ("system", "developer"):
            self._system.append("\n\n".join(_text_of(part) for part in entries))
        elif role == "user":
            content = tuple(_content_part(part) for part in entries)
            metadata = _rest(fields, "type", "role", "content", "id", "status")
            self._conversation.append(Message(role=Role.USER, content=content, metadata=metadata))
        else:
            raise ValueError(f"the role {role!r} is not one of the Responses API")

    def _tool_result(self, kind: str, fields: Fields) -> ContentPartToolResult:
        if kind not in _FUNCTION_OUTPUTS:
            result = output_result(fields)
            call = self._calls.get(result.id)
            bare = result.model_copy(update={"metadata": {}, "is_error": False})
            # The item says nothing more than its output, where the output makes the same item again.
            return bare if call is not None and answer_item(call, bare) == fields else result
        output = fields.get("output")
        answered = as_text(fields.get("call_id"))
        call = self._calls.get(answered, {})
        known = as_text(call.get("name")) if call.get("type") in FUNCTION_CALLS else call_name(call)
        return ContentPartToolResult(
            id=answered,
            name=known or as_text(fields.get("name")) or "unknown",
            output=output,
            metadata=_rest(fields, "type", "call_id", "name", "output", "id", "status"),
        )

    def _end_said(self) -> None:
        if not self._said:
            return
        message = fold_message(
            ResponsesDecoder().wrap({"object": "response", "output": self._said}), think_tags=False
        )
        self._said = []
        metadata = dict(message.metadata)
        extra = metadata.pop("extra", {})
        rest = {name: value for name, value in extra.items() if name not in _IN_PARTS}
        if rest:
            metadata["extra"] = rest
        if message.content or metadata:
            self._conversation.append(message.model_copy(update={"metadata": metadata}))

    def _end_results(self) -> None:
        if self._results:
            self._conversation.append(Message(role=Role.TOOL, content=tuple(self._results)))
            self._results = []


def _wrappers(stream: "Iterable[ChunkWrapper[Any] | ResponseStreamEvent]") -> Iterable[ChunkWrapper[Any]]:
    decoder = ResponsesDecoder()
    for each in stream:
        if isinstance(each, ChunkWrapper):
            yield each
        else:
            yield from decoder.wrap(json_object(each))


def _entries(content: object) -> list[object]:
    """Content as a list of parts, whichever of its forms it has; the empty text and null are no parts."""
    if content is None or content == "":
        return []
    if isinstance(content, str | Mapping):
        return [cast("object", content)]
    if isinstance(content, Iterable):
        return list(cast("Iterable[object]", content))
    raise ValueError(f"content of type {type(content).__name__}")


def _content_part(part: object) -> ContentPart:
    """One entry of a user message's content. Text may stand there without an object around it."""
    if isinstance(part, str):
        return ContentPartText(text=part)
    fields = json_object(part)
    file = file_part(fields)
    if file is not None:
        return file
    return ContentPartText(text=_text_of(fields), metadata=_rest(fields, "type", "text"))


def _said_part(part: object) -> Fields:
    """One entry of an assistant message's content."""
    if isinstance(part, str):
        return {"type": "output_text", "text": part}
    fields = json_object(part)
    return {**fields, "type": "output_text"} if fields.get("type") in ("input_text", "text") else fields


def _text_of(part: object) -> str:
    """The text of an entry that may be nothing else."""
    if isinstance(part, str):
        return part
    fields = json_object(part)
    if fields.get("type") not in ("input_text", "output_text", "text"):
        raise ValueError(f"a content part of type {fields.get('type')!r} where only text may stand")
    return as_text(fields.get("text"))


def _rest(fields: Mapping[str, Any], *known: str) -> Fields:
    """What an object holds beyond the known fields, under the key that sends it back."""
    rest = {name: value for name, value in fields.items() if name not in known and value is not None}
    return {KEY: rest} if rest else {}
