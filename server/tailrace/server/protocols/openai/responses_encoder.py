"""Encoder of OpenAI's Responses API: the events of a stream, or the complete response.

The format is described at https://platform.openai.com/docs/api-reference/responses/object and …/responses-streaming. Reasoning
becomes an item with a summary, because clients display summaries. If the turn fails or is cancelled, the stream ends with
``response.failed``. If the turn fails, an event ``error`` precedes ``response.failed``, because some clients read only ``error``.

The encoding depends only on the record of the request and on the stored events of the task. A repeated stream of a response
therefore has the same numbers and bytes.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.conversation_lookup import response_id
from tailrace.server.protocols.encoder import Encoder, Fields, encode_json
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai.approval_items import REQUEST_PREFIX, approval_item
from tailrace.server.protocols.openai.stored_request import StoredRequest
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.serial_texts import SerialTexts
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import provider_usage
from tailrace.streaming.tools.approvals import ApprovalRequest
from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers.concurrency.worker_thread import MAX_INLINE_COST, json_cost
from tailrace.wrappers.openai_responses.tool_items import KEY
from tailrace.wrappers.usage_details import UsageDetails

# Reasons for incomplete responses in the Responses API, by finish reason in Chat Completions.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


_LARGE_OUTPUT = 40 * MAX_INLINE_COST  # bytes; an encoded event is up to 40 times as long as its text
# Events that only extend a text contain these bytes. Other events may end a text, and then repeat it.
_APPENDS = b'"append":true'

NO_EVENTS = math.inf
"""Value of ``after`` if only the complete response is needed."""


class _Part(NamedTuple):
    """A type of content part: the names and initial members of its items, parts and events."""

    item_prefix: str
    item: Fields
    parts: str
    part_index: str
    part_event: str
    fields: Fields
    text: str
    text_event: str


_MESSAGE: Fields = {"type": "message", "role": "assistant", "status": "in_progress"}
_IN_MESSAGE = ("msg", _MESSAGE, "content", "content_index", "response.content_part")
_IN_REASONING = ("rs", {"type": "reasoning"}, "summary", "summary_index", "response.reasoning_summary_part")
_TEXT: Fields = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
_SUMMARY: Fields = {"type": "summary_text", "text": ""}
_REFUSAL: Fields = {"type": "refusal", "refusal": ""}

_PARTS = {
    "text": _Part(*_IN_MESSAGE, _TEXT, "text", "response.output_text"),
    "refusal": _Part(*_IN_MESSAGE, _REFUSAL, "refusal", "response.refusal"),
    "reasoning": _Part(*_IN_REASONING, _SUMMARY, "text", "response.reasoning_summary_text"),
}


class _CallKind(NamedTuple):
    """A type of tool call."""

    item_prefix: str
    type: str
    text: str
    text_event: str


_FUNCTION = _CallKind("fc", "function_call", "arguments", "response.function_call_arguments")
_CUSTOM = _CallKind("ctc", "custom_tool_call", "input", "response.custom_tool_call_input")


class _Call(NamedTuple):
    kind: _CallKind
    item: Fields
    location: Fields
    deltas: list[str]


def responses_usage(usage: Mapping[str, Any]) -> Fields:
    """Convert the usage of a task (extension metadata) to the format of the Responses API."""
    details = UsageDetails.of(provider_usage(usage))
    return {
        "input_tokens": usage.get("inputTokens", 0),
        "input_tokens_details": {
            "cached_tokens": details.cached,
            "cache_write_tokens": details.cache_written,
        },
        "output_tokens": usage.get("outputTokens", 0),
        "output_tokens_details": {"reasoning_tokens": details.reasoning},
        "total_tokens": usage.get("totalTokens", 0),
    }


def _namespace(call: ContentPartToolCall) -> Fields:
    own = call.metadata.get(KEY)
    namespace = cast("Mapping[str, object]", own).get("namespace") if isinstance(own, Mapping) else None
    return {"namespace": namespace} if isinstance(namespace, str) else {}


class ResponsesEncoder(Encoder):
    """Encodes a turn as a response and as the events of its stream.

    Args:
        after: Encode only events with a higher ``sequence_number``: -1 for all events, `NO_EVENTS` for none.
        live: See `SerialTexts`. If False, text can be replaced without an error.

    Attributes:
        response: The current state of the response; empty before the first event.
        error: The error that ended the response, also after a cancellation; otherwise None.
    """

    def __init__(self, request: StoredRequest, *, after: float = -1, live: bool = True) -> None:
        texts = SerialTexts(live=live, last_round=request.has_format)
        super().__init__(EventTranslator(tools=request.tools, texts=texts))
        self._request = request
        self._echo_cost = 0 if after == NO_EVENTS else json_cost(request.echo)
        self._after = after
        self._sequence_number = 0
        self._item: Fields | None = None  # contains text or reasoning
        self._part: _Part | None = None  # the newest part of the open item
        self._part_location: Fields = {}  # members of an event that identify the part
        self._delta_fields: Fields = {}  # members of an event that identify the part's text
        self._deltas: list[str] = []
        self._output_cost = 0
        self._may_close = (
            False  # whether the open part may close, because the next text may belong to another part
        )
        self._calls: dict[str, _Call] = {}
        self._output: list[Fields] = []
        self.response: Fields = {}
        self.error: OpenAIError | None = None

    def feed(self, event: Event) -> bytes:
        """Encode an event of the task as frames."""
        return b"".join(map(self.encode, self.translator.feed(event)))

    def cost(self, events: Iterable[Event]) -> int:
        """Return the maximum cost of encoding events. Some encoded events repeat the request or the output so far."""
        new = cost = super().cost(events)
        if self._echo_cost and (
            self.response.get("status") != "in_progress" or any(event.state is not None for event in events)
        ):
            cost += self._echo_cost
        if self._output_cost > _LARGE_OUTPUT:
            self._may_close = self._may_close or not all(_APPENDS in event.body for event in events)
            cost += self._output_cost * self._may_close
        self._output_cost += new
        return cost

    def encode(self, event: ui_events.UiEvent) -> bytes:
        """Encode a chat event as events of the Responses API."""
        if isinstance(event, ui_events.TurnStarted):
            return self._start(event)
        if self.response["status"] == "queued":
            return self._begin() + self._encode(event)
        return self._encode(event)

    def _encode(self, event: ui_events.UiEvent) -> bytes:
        if isinstance(event, ui_events.TextAdded):
            part = _PARTS[event.channel]
            frames = self._open_part(part)
            self._may_close = False
            self._deltas.append(event.text)
            return frames + self._event(f"{part.text_event}.delta", **self._delta_fields, delta=event.text)
        if isinstance(event, ui_events.ArgumentsAdded):
            call = self._calls[event.id]
            call.deltas.append(event.text)
            return self._event(f"{call.kind.text_event}.delta", **call.location, delta=event.text)
        if isinstance(event, ui_events.CallStarted):
            return self._start_call(event)
        if isinstance(event, ui_events.CallEnded):
            self._calls[event.call.id].item.update(_namespace(event.call))
            return b""
        return self._end(event) if isinstance(event, ui_events.TurnEnded) else b""

    def fail(self, error: OpenAIError) -> bytes:
        """Return the last frame of a stream whose turn has not ended.

        The turn may continue, for example after a restart. The event ``error`` repeats the number of the previous event, so that
        a client can resume the stream after this number. For a background response, there is no frame.
        """
        if self._request.background:
            return b""
        return _frame("error", max(self._sequence_number - 1, self._after), _error_fields(error.fields()))

    def partial_response(self, *, is_running: bool) -> Fields:
        """Return the current state of the response, including open text and arguments.

        Args:
            is_running: True while the turn runs.
        """
        if is_running and self.response["status"] == "queued":
            self.response["status"] = "in_progress"
        if self._part is not None and self._item is not None:
            self._item[self._part.parts][-1][self._part.text] = "".join(self._deltas)
        for call in self._calls.values():
            call.item[call.kind.text] = "".join(call.deltas)
        return self.response

    def _start(self, started: ui_events.TurnStarted) -> bytes:
        request = self._request
        self._suffix = f"{started.task_id}_{started.first_turn}"
        self.response = {
            "id": response_id(started.task_id, started.first_turn),
            "object": "response",
            "created_at": request.created,
            "status": "queued" if request.background else "in_progress",
            "background": request.background,
            "error": None,
            "incomplete_details": None,
            "model": request.model,
            "output": self._output,
            "conversation": {"id": started.context_id},
            "store": request.is_stored,
            "usage": None,
            "truncation": "disabled",
            **request.echo,
            **({"warnings": request.warnings} if request.warnings else {}),
        }
        second = "response.queued" if request.background else "response.in_progress"
        created = self._event("response.created", response=self.response)
        return created + self._event(second, response=self.response)

    def _begin(self) -> bytes:
        self.response["status"] = "in_progress"
        return self._event("response.in_progress", response=self.response)

    # --- items --------------------------------------------------------------------------------------------------

    def _add_item(self, prefix: str, id_end: str, **fields: Any) -> tuple[Fields, Fields, bytes]:
        """Add an item to the output. Return the item, its identifying members in events, and the encoded event.

        If ``id_end`` is empty, the id of the item ends with its index.
        """
        index = len(self._output)
        item: Fields = {"id": f"{prefix}_{self._suffix}_{id_end or index}", **fields}
        self._output.append(item)
        frame = self._event("response.output_item.added", output_index=index, item=item)
        return item, {"item_id": item["id"], "output_index": index}, frame

    def _open_part(self, part: _Part) -> bytes:
        if self._part is part:
            return b""
        item, frames = self._item, b""
        if item is None or self._part is None or self._part.item is not part.item:
            frames = self._close_item()
            item, self._part_location, frame = self._add_item(
                part.item_prefix, "", **part.item, **{part.parts: []}
            )
            self._item = item
            frames += frame
        else:
            frames = self._close_part()
        item[part.parts].append(fields := dict(part.fields))
        self._part = part
        self._part_location[part.part_index] = len(item[part.parts]) - 1
        self._delta_fields = {**self._part_location, **({"logprobs": []} if "logprobs" in fields else {})}
        return frames + self._event(f"{part.part_event}.added", **self._part_location, part=fields)

    def _close_part(self) -> bytes:
        part, item = self._part, self._item
        if part is None or item is None:
            return b""
        self._part = None
        fields = item[part.parts][-1]
        fields[part.text] = text = "".join(self._deltas)
        self._deltas.clear()
        frames = self._event(f"{part.text_event}.done", **self._delta_fields, **{part.text: text})
        return frames + self._event(f"{part.part_event}.done", **self._part_location, part=fields)

    def _close_item(self, status: str = "completed") -> bytes:
        item = self._item
        if item is None:
            return b""
        frames = self._close_part()
        if "status" in item:
            item["status"] = status
        self._item = None
        return frames + self._event(
            "response.output_item.done", output_index=self._part_location["output_index"], item=item
        )

    def _start_call(self, call: ui_events.CallStarted) -> bytes:
        frames = self._close_item()
        kind = _CUSTOM if call.name in self._request.custom_tools else _FUNCTION
        fields = {"call_id": call.id, "name": call.name, kind.text: "", "status": "in_progress"}
        item, place, frame = self._add_item(kind.item_prefix, "", type=kind.type, **fields)
        self._calls[call.id] = _Call(kind, item, place, [])
        return frames + frame

    def _add_approval(self, request: ApprovalRequest) -> bytes:
        item, place, frame = self._add_item(REQUEST_PREFIX, request.digest, **approval_item(request))
        done = self._event("response.output_item.done", output_index=place["output_index"], item=item)
        return frame + done

    def _close_call(self, call: _Call) -> bytes:
        kind, item, place = call.kind, call.item, call.location
        item[kind.text] = text = "".join(call.deltas)
        item["status"] = "completed"
        return self._event(
            f"{kind.text_event}.done", **place, name=item["name"], **{kind.text: text}
        ) + self._event("response.output_item.done", output_index=place["output_index"], item=item)

    def _abandon_calls(self) -> None:
        for call in self._calls.values():
            call.item[call.kind.text] = "".join(call.deltas)
            call.item["status"] = "incomplete"

    def _end(self, ended: ui_events.TurnEnded) -> bytes:
        response = self.response
        if ended.usage is not None:
            response["usage"] = responses_usage(ended.usage)
        if ended.error is not None:
            return self._fail(ended.error, is_canceled=ended.state is TaskState.CANCELED)
        reason = _INCOMPLETE.get(ended.finish)
        frames = self._close_item("completed" if reason is None else "incomplete")
        if reason is not None:
            self._abandon_calls()
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": reason}
            return frames + self._event("response.incomplete", response=response)
        frames += b"".join(map(self._close_call, self._calls.values()))
        frames += b"".join(map(self._add_approval, ended.approvals))
        response["status"] = "completed"
        return frames + self._event("response.completed", response=response)

    def _fail(self, error: OpenAIError, *, is_canceled: bool = False) -> bytes:
        self.error = error
        frames = self._close_item("incomplete")
        self._abandon_calls()
        self.response["status"] = "cancelled" if is_canceled else "failed"
        fields = error.fields()
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        reason = fields["code"] or fields["type"]
        self.response["error"] = None
        if not is_canceled:
            self.response["error"] = fields = {**fields, "code": code, "reason": reason}
            frames += self._event("error", **_error_fields(fields))
        return frames + self._event("response.failed", response=self.response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._sequence_number
        self._sequence_number += 1
        if number <= self._after:
            return b""
        return _frame(kind, number, fields)


def _frame(kind: str, number: float, fields: Fields) -> bytes:
    data = encode_json({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _error_fields(fields: Fields) -> Fields:
    """Return the members of an event ``error``: at the top level as in OpenAI's documentation, and in ``error`` as in its API."""
    return {**{name: fields[name] for name in ("code", "message", "param")}, "error": fields}
