"""Reference extraction of a recorded body with the standard library alone.

It shares no code with the decoders, and assumes that bodies are complete and in order.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

Fields = dict[str, Any]


@dataclass
class Extract:
    """The content of the first response of a body.

    Attributes:
        text: The visible text.
        reasoning: The reasoning's text.
        calls: Name and joined argument text (JSON) of each tool call, in order.
        finishes: Every finish reason in the body, in the provider's terms, in order.
        has_usage: Whether the body has token counts that are not all zero.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    finishes: list[str] = field(default_factory=list[str])
    has_usage: bool = False


def extract(api: str, body: bytes) -> Extract:
    """Extract the content of a body of this API (as the recordings' index names it)."""
    found = Extract()
    _READERS[api](found, [each for each in objects(body) if isinstance(each, dict)])
    return found


def objects(body: bytes) -> Iterator[Any]:
    """Every JSON value in a body."""
    text = body.decode("utf-8-sig", "replace")
    stripped = text.lstrip()
    if stripped.startswith("["):
        try:
            yield from json.loads(text)
        except ValueError:
            yield from _elements(stripped[1:])
        return
    lines = re.split(r"\r\n|\n|\r", text)
    if stripped.startswith("{"):
        payloads = lines
    else:
        blocks = re.split(r"(?:\r\n){2,}|\n{2,}|\r{2,}", text)
        payloads = [
            "\n".join(
                line[5:].removeprefix(" ") for line in re.split(r"\r\n|\n|\r", block) if line[:5] == "data:"
            )
            for block in blocks
        ]
    for payload in payloads:
        try:
            yield json.loads(payload)
        except ValueError:
            continue


def _elements(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    while text := text.lstrip(" \r\n\t,"):
        try:
            value, end = decoder.raw_decode(text)
        except ValueError:
            return
        yield value
        text = text[end:]


def _inner(fields: Fields, name: str) -> Fields:
    return fields.get(name) or {}


def _counts(usage: object) -> bool:
    if isinstance(usage, dict):
        return any(_counts(value) for value in cast("Fields", usage).values())
    return isinstance(usage, int | float) and not isinstance(usage, bool) and usage > 0


# --- the formats ------------------------------------------------------------------------------------------------


def _openai_chat(found: Extract, chunks: list[Fields]) -> None:
    # Calls are omitted: scenarios cover them.
    details = ""
    for chunk in chunks:
        found.has_usage |= _counts(chunk.get("usage")) or _counts(_inner(chunk, "x_groq").get("usage"))
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = _inner(choice, "delta")
            for part in _openai_parts(delta.get("content")):
                inner = [*part.get("thinking", ()), *part.get("summary", ())]
                if part["type"] == "text":
                    found.text += part["text"]
                else:
                    found.reasoning += part.get("text", "") + "".join(each["text"] for each in inner)
            found.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for item in delta.get("reasoning_details") or ():
                details += item.get("text") or item.get("summary") or ""
            if choice.get("finish_reason"):
                found.finishes.append(choice["finish_reason"])
    # The text of the details is used only if no field has the same text.
    found.reasoning = found.reasoning or details


def _openai_parts(content: Any) -> list[Fields]:
    if isinstance(content, list):
        return cast("list[Fields]", content)
    return [{"type": "text", "text": content or ""}]


def _openai_completions(found: Extract, chunks: list[Fields]) -> None:
    for chunk in chunks:
        found.has_usage |= _counts(chunk.get("usage"))
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                found.text += choice.get("text") or ""
                found.finishes += [choice["finish_reason"]] if choice.get("finish_reason") else []


def _openai_responses(found: Extract, events: list[Fields]) -> None:
    texts: dict[tuple[Any, ...], str] = {}
    thoughts: dict[tuple[Any, ...], str] = {}
    calls: dict[int, list[str]] = {}
    for event in events:
        kind = event.get("type", "")
        place = (event.get("output_index"), event.get("content_index", event.get("summary_index")))
        if kind == "response.output_text.delta":
            texts[place] = texts.get(place, "") + event["delta"]
        elif kind == "response.output_text.done":
            texts.setdefault(place, event["text"])
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            thoughts[place] = thoughts.get(place, "") + event["delta"]
        elif kind == "response.output_item.done" and event["item"]["type"] in (
            "function_call",
            "custom_tool_call",
        ):
            item = event["item"]
            calls[event["output_index"]] = [item["name"], item.get("arguments", item.get("input", ""))]
        elif kind == "response.output_item.done" and event["item"]["type"] == "message":
            if not any(index == event["output_index"] for index, _ in texts):
                content = event["item"].get("content", ())
                texts[event["output_index"], 0] = "".join(part.get("text", "") for part in content)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            found.finishes.append(kind.removeprefix("response."))
            found.has_usage |= _counts(event["response"].get("usage"))
    found.text = "".join(texts.values())
    found.reasoning = "".join(thoughts.values())
    found.calls = [(name, arguments) for _, (name, arguments) in sorted(calls.items())]


def _anthropic(found: Extract, events: list[Fields]) -> None:
    blocks: dict[int, Fields] = {}
    order: list[Fields] = []
    message_id, is_open = "", False
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            message = event["message"]
            if is_open and message.get("id") != message_id:
                found.text, found.reasoning, order = "", "", []  # the provider restarted the response
            if not is_open or message.get("id") != message_id:
                blocks = {}
            message_id, is_open = message.get("id"), True
            found.has_usage |= _counts(message.get("usage"))
            found.finishes += [message["stop_reason"]] if message.get("stop_reason") else []
            order += [{**block, "json": ""} for block in message.get("content") or ()]
        elif kind == "content_block_start":
            block = {**event["content_block"], "json": ""}
            blocks[event["index"]] = block
            order.append(block)
            found.text += block.get("text") or "" if block["type"] == "text" else ""
            found.reasoning += block.get("thinking") or "" if block["type"] == "thinking" else ""
        elif kind == "content_block_delta":
            delta = event["delta"]
            found.text += delta.get("text", "")
            found.reasoning += delta.get("thinking", "")
            if "partial_json" in delta and event["index"] in blocks:
                blocks[event["index"]]["json"] += delta["partial_json"]
        elif kind == "message_delta":
            reason = event["delta"].get("stop_reason")
            found.finishes += [reason] if reason else []
            found.has_usage |= _counts(event.get("usage"))
        elif kind == "message_stop":
            is_open = False
        elif kind == "completion":
            found.text += event.get("completion") or ""
            found.finishes += [event["stop_reason"]] if event.get("stop_reason") else []
    found.calls += [
        (block["name"], block["json"] or json.dumps(_inner(block, "input")))
        for block in order
        if block["type"] in ("tool_use", "server_tool_use", "mcp_tool_use")
    ]


def _gemini(found: Extract, chunks: list[Fields]) -> None:
    in_pieces = False
    for chunk in chunks:
        found.has_usage |= _counts(chunk.get("usageMetadata"))
        if _inner(chunk, "promptFeedback").get("blockReason"):
            found.finishes.append(chunk["promptFeedback"]["blockReason"])
        for candidate in chunk.get("candidates") or ():
            if candidate.get("index", 0) != 0:
                continue
            for part in _inner(candidate, "content").get("parts") or ():
                if part.get("thought"):
                    found.reasoning += part.get("text") or ""
                else:
                    found.text += part.get("text") or ""
                call = part.get("functionCall")
                if call and call.get("name"):
                    found.calls.append((call["name"], json.dumps(_inner(call, "args"))))
                in_pieces |= bool(call and ("partialArgs" in call or "willContinue" in call))
            if candidate.get("finishReason"):
                found.finishes.append(str(candidate["finishReason"]))
    if in_pieces:
        found.calls.clear()  # this reader does not assemble arguments in fragments


def _interactions(found: Extract, events: list[Fields]) -> None:
    for event in events:
        delta = _inner(event, "delta")
        if delta.get("type") == "text":
            found.text += delta["text"]
        elif delta.get("type") == "thought_summary":
            found.reasoning += _inner(delta, "content").get("text", "")
        interaction = _inner(event, "interaction")
        found.has_usage |= _counts(interaction.get("usage"))
        if event.get("event_type") in ("interaction.complete", "interaction.completed"):
            found.finishes.append(interaction["status"])


def _ollama(found: Extract, lines: list[Fields]) -> None:
    for line in lines:
        message = _inner(line, "message")
        found.text += message.get("content") or line.get("response") or ""
        found.reasoning += message.get("thinking") or line.get("thinking") or ""
        for call in message.get("tool_calls") or ():
            found.calls.append(
                (call["function"]["name"], json.dumps(call["function"].get("arguments") or {}))
            )
        if line.get("done_reason"):
            found.finishes.append(line["done_reason"])
        found.has_usage |= _counts(line.get("eval_count"))


def _cohere(found: Extract, events: list[Fields]) -> None:
    calls: list[list[str]] = []
    for event in events:
        message = _inner(_inner(event, "delta"), "message")
        kind = event.get("type")
        content = _inner(message, "content")
        if kind in ("content-start", "content-delta"):
            found.text += content.get("text") or ""
            found.reasoning += content.get("thinking") or ""
        elif kind == "tool-plan-delta":
            found.reasoning += message["tool_plan"]
        elif kind == "tool-call-start":
            function = message["tool_calls"]["function"]
            calls.append([function["name"], function.get("arguments") or ""])
        elif kind == "tool-call-delta":
            calls[-1][1] += message["tool_calls"]["function"]["arguments"]
        elif kind == "message-end":
            found.finishes.append(event["delta"]["finish_reason"])
            found.has_usage |= _counts(event["delta"].get("usage"))
    found.calls = [(name, arguments) for name, arguments in calls]


def _bedrock_converse(found: Extract, frames: list[Fields]) -> None:
    calls: dict[int, list[str]] = {}
    for frame in frames:
        events = [(frame["event"], frame["payload"])] if "event" in frame else list(frame.items())
        for event, payload in events:
            _converse_event(found, event, payload, calls)
    found.calls = [(name, arguments) for name, arguments in calls.values()]


def _converse_event(found: Extract, event: str, payload: Fields, calls: dict[int, list[str]]) -> None:
    if event == "contentBlockDelta":
        delta = payload["delta"]
        found.text += delta.get("text", "")
        found.reasoning += _inner(delta, "reasoningContent").get("text", "")
        if "toolUse" in delta:
            calls[payload["contentBlockIndex"]][1] += delta["toolUse"]["input"]
    elif event == "contentBlockStart" and "toolUse" in payload.get("start", {}):
        calls[payload["contentBlockIndex"]] = [payload["start"]["toolUse"]["name"], ""]
    elif event == "messageStop":
        found.finishes.append(payload["stopReason"])
    elif event == "metadata":
        found.has_usage |= _counts(payload.get("usage"))


def _bedrock_invoke(found: Extract, frames: list[Fields]) -> None:
    payloads = [frame["payload"] for frame in frames]
    calls: dict[int, list[str]] = {}
    _anthropic(found, payloads)
    for payload in payloads:
        for event, value in payload.items():
            if isinstance(value, dict):
                _converse_event(found, event, cast("Fields", value), calls)
        found.text += payload.get("generation") or payload.get("outputText") or ""
        for key in ("completionReason", "stop_reason"):
            if payload.get(key) and payload.get("type") != "completion":
                found.finishes.append(payload[key])
        found.has_usage |= _counts(payload.get("amazon-bedrock-invocationMetrics"))
    found.calls += [(name, arguments) for name, arguments in calls.values()]


_READERS: dict[str, Callable[[Extract, list[Fields]], None]] = {
    "anthropic-messages": _anthropic,
    "bedrock-converse": _bedrock_converse,
    "bedrock-invoke": _bedrock_invoke,
    "cohere-v2": _cohere,
    "gemini-generate": _gemini,
    "gemini-generate-jsonarray": _gemini,
    "google-interactions": _interactions,
    "ollama-chat": _ollama,
    "ollama-generate": _ollama,
    "openai-chat": _openai_chat,
    "openai-completions": _openai_completions,
    "openai-responses": _openai_responses,
}
