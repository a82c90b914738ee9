import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gateway.connection import Recording
from benchmarks.gateway.plan import Plan, piece
from benchmarks.gateway.reader_requests import A2A, OPENAI
from benchmarks.gateway.responses import Answer, events, read_answer

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunked(*chunks: bytes) -> bytes:
    return _HEAD + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def _recorded(raw: bytes, *cuts: int) -> Recording:
    """Return a response that arrived in these reads, at 1, 2, 3 …"""
    ends = [0, *sorted(cuts), len(raw)]
    reads = [raw[begin:end] for begin, end in pairwise(ends)]
    return Recording(0, list(range(1, len(reads) + 1)), reads)


def _event(number: int, result: dict[str, Any]) -> bytes:
    return b"id: %d\r\ndata: %s\r\n\r\n" % (number, json.dumps({"jsonrpc": "2.0", "result": result}).encode())


def _artifact(text: str, *, append: bool = True) -> dict[str, Any]:
    artifact = {"artifactId": "text", "parts": [{"text": text}]}
    return {"artifactUpdate": {"taskId": "t", "artifact": artifact, "append": append}}


def _status(state: str) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t", "status": {"state": state}}}


_A2A = (
    _event(1, {"task": {"id": "t", "status": {"state": "TASK_STATE_SUBMITTED"}}}),
    _event(2, _status("TASK_STATE_WORKING")),
    b": a comment\r\n\r\n",
    _event(3, _artifact(piece(0, 100), append=False)),
    _event(4, _artifact(piece(1, 200) + piece(2, 250))),
    _event(5, _status("TASK_STATE_COMPLETED")),
)
_PLAN = Plan(3, rate=50)
_RAW = _chunked(*_A2A)


@given(cuts=st.sets(st.integers(1, len(_RAW) - 1), max_size=8))
def test_an_answer_is_the_same_however_it_is_cut(cuts: set[int]) -> None:
    answer = read_answer(_recorded(_RAW, *cuts), A2A)
    assert answer.is_whole(_PLAN)
    assert (answer.task, answer.events, answer.failure) == ("t", 2, "")


@given(sizes=st.lists(st.integers(1, 400), max_size=6))
def test_an_answer_is_the_same_whatever_the_transfer_chunks(sizes: list[int]) -> None:
    body, chunks = b"".join(_A2A), list[bytes]()
    for size in sizes:
        chunks, body = [*chunks, body[:size]], body[size:]
    raw = _chunked(*(chunk for chunk in (*chunks, body) if chunk))
    assert read_answer(_recorded(raw), A2A).is_whole(_PLAN)


def test_an_event_has_come_with_the_read_that_holds_its_end() -> None:
    cut = _RAW.index(b"id: 4") + 20
    found = [(event.number, event.time) for event in events(_recorded(_RAW, cut))]
    assert found == [(b"1", 1), (b"2", 1), (b"3", 1), (b"4", 2), (b"5", 2)]
    answer = read_answer(_recorded(_RAW, cut), A2A)
    assert answer.began == 1
    assert answer.latencies() == [1 - 100, 2 - 200, 2 - 250]
    assert answer.latencies(200, 250) == [2 - 200]


def test_a_replaced_artifact_counts_once() -> None:
    whole = {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}
    snapshot = {**whole, "artifacts": [{"artifactId": "text", "parts": [{"text": piece(0, 1)}]}]}
    raw = _chunked(
        _event(3, {"task": snapshot}),
        _event(4, _artifact(piece(0, 1) + piece(1, 1), append=False)),
        _event(5, _artifact(piece(2, 1))),
        _event(6, _status("TASK_STATE_COMPLETED")),
    )
    assert read_answer(_recorded(raw), A2A).is_whole(_PLAN)


def test_what_broke_off_or_failed_is_not_whole() -> None:
    broken = _recorded(_chunked(*_A2A[:-1]))
    broken.broken = True
    assert read_answer(broken, A2A).failure == "the connection broke off"
    failed = read_answer(_recorded(_chunked(*_A2A[:-1], _event(5, _status("TASK_STATE_FAILED")))), A2A)
    assert failed.failure.startswith("TASK_STATE_FAILED")
    assert not failed.is_whole(_PLAN)
    refused = read_answer(_recorded(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"), A2A)
    assert refused.failure == "status 503"
    error = b'{"jsonrpc": "2.0", "error": {"code": -32601}}'
    assert read_answer(_recorded(_chunked(b"data: %s\n\n" % error)), A2A).failure == "{'code': -32601}"


def test_chat_completions() -> None:
    plan = Plan(5)
    stream = plan.stream
    reads = [data for part in stream.parts for data in part.reads]
    answer: Answer = read_answer(_recorded(_chunked(*reads)), OPENAI)
    assert answer.is_whole(plan)
    assert answer.events == 5
    assert not read_answer(_recorded(_chunked(*reads[:-1])), OPENAI).is_whole(plan)
