"""Parsed responses."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.gateway.connection import Recording
from benchmarks.gateway.plan import Plan, pieces

_BLANK = re.compile(rb"\r?\n\r?\n")
_LINE = re.compile(rb"\r?\n")
_decode = msgspec.json.decode


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event.

    Attributes:
        time: When its last byte arrived, in ns.
        data: Its payload.
        number: Its ``id``; empty if it has none.
    """

    time: int
    data: bytes
    number: bytes


@dataclass(slots=True)
class Answer:
    """The contents of one response.

    Attributes:
        text: The text of the response.
        began: When the first text arrived, in ns; 0 without text.
        events: The number of events with text.
        arrivals: The arrival time and text of each event with text.
        task: The id of the task, if there is one.
        over: True if the response ended correctly.
        failure: The error message of a failed or refused request.
    """

    text: str = ""
    began: int = 0
    events: int = 0
    arrivals: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    task: str = ""
    over: bool = False
    failure: str = ""

    def is_whole(self, plan: Plan) -> bool:
        """Return True if nothing was lost, duplicated or reordered."""
        return self.over and not self.failure and plan.matches(self.text)

    def latencies(self, begin: int = 0, end: int = 2**63) -> list[int]:
        """Return the latency in ns of each delta sent between two times."""
        return [
            time - piece.sent
            for time, text in self.arrivals
            for piece in pieces(text)
            if begin <= piece.sent < end
        ]


def read_answer(recording: Recording, dialect: str) -> Answer:
    """Parse a response in one of the dialects (``openai``, ``a2a``)."""
    answer = Answer()
    status = b"".join(recording.reads[:4])[9:12]
    if status != b"200":
        answer.failure = f"status {status.decode(errors='replace')}"
        return answer
    take = _take_chat if dialect == "openai" else _take_a2a
    texts: list[str] = []
    for event in events(recording):
        take(event, answer, texts)
    answer.text = "".join(texts)
    if recording.broken and not answer.over:
        answer.failure = answer.failure or "the connection broke off"
    return answer


def _add(event: Event, text: str, answer: Answer, texts: list[str]) -> None:
    if text:
        answer.began = answer.began or event.time
        answer.events += 1
        answer.arrivals.append((event.time, text))
        texts.append(text)


def _take_chat(event: Event, answer: Answer, texts: list[str]) -> None:
    if event.data == b"[DONE]":
        answer.over = True
        return
    chunk: dict[str, Any] = _decode(event.data)
    if "error" in chunk:
        answer.failure = str(chunk["error"])
    for choice in chunk.get("choices", ()):
        _add(event, choice["delta"].get("content") or "", answer, texts)


def _take_a2a(event: Event, answer: Answer, texts: list[str]) -> None:
    message: dict[str, Any] = _decode(event.data)
    result: dict[str, Any] = message.get("result") or {}
    if "error" in message:
        answer.failure = str(message["error"])
    if task := result.get("task"):
        answer.task = task["id"]
        for artifact in task.get("artifacts", ()):
            _take_artifact(event, artifact, answer, texts, append=False)
        _take_status(task["status"], answer)
    if update := result.get("artifactUpdate"):
        _take_artifact(event, update["artifact"], answer, texts, append=update.get("append", False))
    if update := result.get("statusUpdate"):
        answer.task = answer.task or update["taskId"]
        _take_status(update["status"], answer)


def _take_artifact(
    event: Event, artifact: dict[str, Any], answer: Answer, texts: list[str], *, append: bool
) -> None:
    if not append:
        texts.clear()  # this event replaces the only artifact
    _add(event, "".join(part.get("text") or "" for part in artifact["parts"]), answer, texts)


def _take_status(status: dict[str, Any], answer: Answer) -> None:
    state = status["state"]
    if state == "TASK_STATE_COMPLETED":
        answer.over = True
    elif state in ("TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"):
        answer.failure = f"{state}: {status.get('message')}"


def events(recording: Recording) -> Iterator[Event]:
    """Yield the events of a response, each with the time of the read that completed it."""
    raw = b"".join(recording.reads)
    read_ends: list[int] = []
    end = 0
    for data in recording.reads:
        end += len(data)
        read_ends.append(end)
    payload, ends, raw_ends = _dechunk(raw)
    position = 0
    for blank in _BLANK.finditer(payload):
        block = payload[position : blank.start()]
        position = blank.end()
        data, number = b"", b""
        for line in _LINE.split(block):
            if line.startswith(b"data:"):
                data += line[5:].lstrip()
            elif line.startswith(b"id:"):
                number = line[3:].strip()
        if data:
            segment = bisect_left(ends, position)
            raw_position = raw_ends[segment] - (ends[segment] - position)
            yield Event(recording.times[bisect_left(read_ends, raw_position)], data, number)


def _dechunk(raw: bytes) -> tuple[bytes, list[int], list[int]]:
    """Return the body, and the ends of its transfer chunks in the body and in the raw bytes."""
    head, _, _ = raw.partition(b"\r\n\r\n")
    position = len(head) + 4
    if b"transfer-encoding: chunked" not in head.lower():
        body = raw[position:]
        return body, [len(body)], [len(raw)]
    chunks: list[bytes] = []
    ends: list[int] = []
    raw_ends: list[int] = []
    total = 0
    while (at := raw.find(b"\r\n", position)) >= 0:
        size = int(raw[position:at].partition(b";")[0], 16)
        begin = at + 2
        chunk = raw[begin : begin + size]
        if not chunk:
            break
        chunks.append(chunk)
        total += len(chunk)
        ends.append(total)
        raw_ends.append(begin + len(chunk))
        position = begin + size + 2
    return b"".join(chunks), ends, raw_ends
