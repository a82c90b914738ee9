"""The conformance scenarios of ``tests/wrappers/scenarios``: loading, running and evaluating them."""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.wrappers.openai import ChatCompletionsDecoder

FOLDER = Path(__file__).parents[1] / "wrappers/scenarios"


@dataclass(frozen=True)
class Scenario:
    """The body of one HTTP response, and its correct interpretation."""

    name: str
    body: bytes
    expect: dict[str, Any]

    def __str__(self) -> str:
        return self.name


def load_scenarios() -> list[Scenario]:
    """All scenarios, by name."""
    return [_load(path) for path in sorted(FOLDER.glob("*.json"))]


def _load(path: Path) -> Scenario:
    facts = json.loads(path.read_text(encoding="utf-8"))
    body = path.with_suffix(".sse").read_bytes()
    return Scenario(facts["name"], body, facts["expect"])


def payloads(body: bytes) -> list[dict[str, Any]]:
    """The JSON objects in a body's data lines, parsed with the standard library alone."""
    found: list[dict[str, Any]] = []
    for block in re.split(rb"(?:\r\n){2,}|\n{2,}|\r{2,}", body.removeprefix(b"\xef\xbb\xbf")):
        lines = re.split(rb"\r\n|\n|\r", block)
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        try:
            value = json.loads(data)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(cast("dict[str, Any]", value))
    return found


def in_reads(body: bytes, size: int) -> list[bytes]:
    """The body as reads of ``size`` bytes."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def cut_at(body: bytes, positions: Iterable[int]) -> list[bytes]:
    """The body cut at these positions."""
    cuts = [0, *sorted(position for position in positions if position < len(body)), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(cuts)]


def accumulate(reads: Iterable[bytes], *, think_tags: bool = True) -> Accumulator:
    """Decode and accumulate a complete body that arrives in these reads."""
    decoder = ChatCompletionsDecoder()
    accumulator = Accumulator(think_tags=think_tags)
    for data in reads:
        for chunk in decoder.feed(data):
            accumulator.add(chunk)
    for chunk in decoder.close():
        accumulator.add(chunk)
    accumulator.close()
    return accumulator


def completion(reads: Iterable[bytes], *, think_tags: bool = True) -> dict[str, Any]:
    """The ``chat.completion`` of a body, as a program that parses its JSON receives it."""
    found = to_chat_completion(accumulate(reads, think_tags=think_tags))
    return json.loads(json.dumps(found, ensure_ascii=False, allow_nan=False).encode())


def mismatches(expect: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The differences between a ``chat.completion`` and a scenario's expectations.

    The README of the folder describes the keys.
    """
    choices: list[dict[str, Any]] = found["choices"]
    message: dict[str, Any] = choices[0]["message"]
    usage: dict[str, Any] = found.get("usage") or {}
    logprobs: dict[str, Any] | float = choices[0]["logprobs"] or {}
    members: dict[str, Any] = {
        "text": message["content"] or "",
        "texts": [choice["message"]["content"] or "" for choice in choices],
        "reasoning": message.get("reasoning_content"),
        "refusal": message.get("refusal"),
        "role": message["role"],
        "finish": choices[0]["finish_reason"],
        "finishes": [choice["finish_reason"] for choice in choices],
        "usage": {name: usage.get(f"{name}_tokens") for name in ("prompt", "completion", "total")},
        "id": found["id"],
        "model": found["model"],
        "service_tier": found.get("service_tier"),
        "logprobs": len(logprobs.get("content") or ()) if isinstance(logprobs, dict) else None,
    }
    wrong = [
        f"{name}: {value!r} instead of {expect[name]!r}"
        for name, value in members.items()
        if name in expect and not _agrees(value, expect[name])
    ]
    wrong += [
        f"audio {name}: {message['audio'].get(name)!r} instead of {value!r}"
        for name, value in expect.get("audio", {}).items()
        if message["audio"].get(name) != value
    ]
    finish = choices[0]["finish_reason"]
    if "tools" in expect:
        wrong += _tool_mismatches(expect["tools"], message.get("tool_calls") or [])
    whole = json.dumps(found, ensure_ascii=False)
    wrong += [f"{text!r} is missing" for text in expect.get("contains", ()) if text not in whole]
    if expect.get("incomplete") and not (
        finish is None and {"type", "message"} <= set(found.get("error") or ())
    ):
        wrong.append(f"not marked as incomplete: {finish!r}, {found.get('error')!r}")
    if "error" in expect and not re.search(expect["error"], json.dumps(found.get("error") or "")):
        wrong.append(f"error: {found.get('error')!r} instead of {expect['error']!r}")
    if "error" in found and not {"error", "incomplete", "typed_error_ok"} & set(expect):
        wrong.append(f"an error where none is expected: {found['error']!r}")
    return wrong


def _tool_mismatches(expect: Sequence[dict[str, Any]], calls: Sequence[dict[str, Any]]) -> list[str]:
    if len(calls) != len(expect):
        return [f"{len(calls)} tool calls instead of {len(expect)}"]
    wrong: list[str] = []
    ids = [call["id"] for call in calls]
    for call, wanted in zip(calls, expect, strict=True):
        tool = call.get("function") or call["custom"]
        arguments = tool["arguments"] if "arguments" in tool else tool["input"]
        if wanted["id"] in ("*", "**"):
            if not call["id"] or ids.count(call["id"]) > 1:
                wrong.append(f"id {call['id']!r} is empty or not unique")
        elif call["id"] != wanted["id"]:
            wrong.append(f"id {call['id']!r} instead of {wanted['id']!r}")
        if tool["name"] != wanted["name"] or _parsed(arguments) != _parsed(wanted["args"]):
            wrong.append(f"call {tool!r} instead of {wanted!r}")
    return wrong


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _agrees(value: object, wanted: object) -> bool:
    """Return whether a value equals the wanted value, or one of several wanted values."""
    return value == wanted or (isinstance(wanted, list) and not isinstance(value, list) and value in wanted)
