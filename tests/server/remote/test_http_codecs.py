"""Requests and responses of each binding and version, including unexpected JSON responses."""

import json
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.remote.agent_card import read_card
from tailrace.server.remote.http_codecs import Binding
from tailrace.server.remote.response_validation import event_of, read_model
from tailrace.streaming.a2a.errors import A2AError, MethodNotFoundError, TaskNotFoundError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, StreamResponse, Task, TaskStatusUpdateEvent
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import UpstreamError

KINDS = [("JSONRPC", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3")]
SENT = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}


def binding(name: str, version: str, **more: Any) -> Binding:
    interface = {"url": "http://a.example/x", "protocolBinding": name, "protocolVersion": version, **more}
    card = {"supportedInterfaces": [interface]}
    return Binding(read_card(json.dumps(card).encode(), "http://a.example/card.json"))


def event(kind: Binding, value: object, operation: Operation = Operation.SUBSCRIBE_TO_TASK) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": value} if kind.is_json_rpc else value).encode()
    return event_of(read_model(StreamResponse, kind.read(operation, body)))


@pytest.mark.parametrize(("name", "version"), KINDS)
def test_a_message_is_sent_in_the_form_of_the_version(name: str, version: str):
    [(method, url, body)] = binding(name, version, tenant="a/b").write(Operation.SEND_MESSAGE, SENT)
    fields = json.loads(body)
    params = fields["params"] if name == "JSONRPC" else fields
    part = {"kind": "text", "text": "hi"} if (name, version) == ("JSONRPC", "0.3") else {"text": "hi"}
    assert method == "POST"
    assert params["message"]["content" if (name, version) == ("HTTP+JSON", "0.3") else "parts"] == [part]
    assert ("configuration" in params) is (version == "0.3")
    if name == "JSONRPC":
        assert fields["method"] == ("SendMessage" if version == "1.0" else "message/send")
        assert params.get("tenant") == ("a/b" if version == "1.0" else None)
        assert url == "http://a.example/x"
    else:
        assert url == f"http://a.example/x/{'a%2Fb' if version == '1.0' else 'v1'}/message:send"


LANGGRAPH = {"uri": "https://langchain.com/a2a/extensions/history-scope/v1", "required": False}
PARTS = [
    {"text": "hi"},
    {"data": [1]},
    {"raw": "AAE=", "mediaType": "image/png", "filename": "x.png"},
    {"url": "http://b.example/y", "metadata": {"a": 1}},
]


@pytest.mark.parametrize("extension", [LANGGRAPH, {"uri": EXTENSION_URI}])
def test_the_server_of_langgraph_gets_file_parts_of_0_3(extension: dict[str, Any]):
    capabilities = {"extensions": [extension]}
    interface = {"url": "http://a.example/x", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = json.dumps({"supportedInterfaces": [interface], "capabilities": capabilities}).encode()
    message = {**SENT["message"], "parts": PARTS}
    [request] = Binding(read_card(card, "http://a.example/card.json")).write(
        Operation.SEND_MESSAGE, {"message": message}
    )
    *others, raw, url = json.loads(request.body)["params"]["message"]["parts"]
    assert others == PARTS[:2]
    if extension is LANGGRAPH:
        assert raw == {
            "kind": "file",
            "file": {"bytes": "AAE=", "mimeType": "image/png", "name": "x.png"},
        }
        assert url == {"kind": "file", "file": {"uri": "http://b.example/y"}, "metadata": {"a": 1}}
    else:
        assert [raw, url] == PARTS[2:]


def rest_of_0_3(powered_by: str = "", *, extensions: Sequence[str] = ()) -> Binding:
    """The binding for an agent of 0.3 over HTTP+JSON whose card came with this ``X-Powered-By``."""
    interface = {"url": "http://a.example/x", "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3.0"}
    capabilities = {"extensions": [{"uri": uri} for uri in extensions]}
    card = json.dumps({"supportedInterfaces": [interface], "capabilities": capabilities}).encode()
    return Binding(read_card(card, "http://a.example/card.json", powered_by=powered_by))


FILE = b"\x89PNG\x00\xff"
ONCE, TWICE = "iVBORwD/", "aVZCT1J3RC8="


@pytest.mark.parametrize(
    ("binding", "written"),
    [
        pytest.param(rest_of_0_3(), TWICE, id="python-go-java"),
        pytest.param(rest_of_0_3("Express"), ONCE, id="javascript"),
        pytest.param(rest_of_0_3(extensions=[EXTENSION_URI]), ONCE, id="tailrace"),
    ],
)
def test_the_bytes_of_files_are_encoded_as_the_sdk_of_the_agent_reads_and_writes_them(
    binding: Binding, written: str
):
    sent = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": ONCE}, {"text": "hi"}]}}
    for _ in range(2):  # a message that is sent again has the same bytes
        [(_, _, body)] = binding.write(Operation.SEND_STREAMING_MESSAGE, sent)
        assert json.loads(body)["message"]["content"] == [
            {"file": {"fileWithBytes": written}},
            {"text": "hi"},
        ]
    file = {"file": {"fileWithBytes": written}}
    message = {"messageId": "a", "role": "ROLE_AGENT", "content": [file]}
    artifact = {"artifactId": "a", "parts": [file]}
    status = {"state": "TASK_STATE_COMPLETED", "message": message}
    ids = {"taskId": "t", "contextId": "c"}
    task = {"id": "t", "contextId": "c", "status": status, "history": [message], "artifacts": [artifact]}
    whole = binding.read(Operation.GET_TASK, json.dumps(task).encode())
    found = [
        *event(binding, {"message": message}).parts,
        *event(binding, {"statusUpdate": {**ids, "status": status}}).status.message.parts,
        *event(binding, {"artifactUpdate": {**ids, "artifact": artifact}}).artifact.parts,
        *(part for each in read_model(Task, whole).artifacts for part in each.parts),
        *(part for each in read_model(Task, whole).history for part in each.parts),
    ]
    assert [part.raw for part in found] == [FILE] * 5


@pytest.mark.parametrize("text", [b"plain", b"aGk", b"not base64!"])
def test_the_bytes_of_a_file_that_are_no_base64_text_are_read_as_they_are(text: bytes):
    message = {"messageId": "a", "content": [{"file": {"fileWithBytes": b64encode(text).decode()}}]}
    assert event(rest_of_0_3(), {"message": message}).parts[0].raw == text


def test_an_id_stays_within_its_segment_of_a_path():
    requests = binding("HTTP+JSON", "1.0").write(Operation.SUBSCRIBE_TO_TASK, {"id": "a/../b?c"})
    url = "http://a.example/x/tasks/a%2F..%2Fb%3Fc:subscribe"
    assert requests == [("POST", url, b""), ("GET", url, b"")]


def test_what_a_version_does_not_have_is_refused():
    for name in ("JSONRPC", "HTTP+JSON"):
        with pytest.raises(MethodNotFoundError):
            binding(name, "0.3").write(Operation.GET_CONVERSATION, {"contextId": "c"})


@pytest.mark.parametrize(("name", "version"), KINDS)
@pytest.mark.parametrize("state", ["canceled", "input-required", "nonsense"])
def test_a_state_has_one_name(name: str, version: str, state: str):
    if version == "1.0" or name == "HTTP+JSON":
        wire = f"TASK_STATE_{state.upper().replace('-', '_')}"
        wire = wire.replace("CANCELED", "CANCELLED") if version == "0.3" else wire
        value: Any = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": wire}}}
    else:
        value = {"taskId": "t", "contextId": "c", "kind": "status-update", "status": {"state": state}}
    found = event(binding(name, version), value)
    assert isinstance(found, TaskStatusUpdateEvent)
    assert (
        found.status.state
        is {
            "canceled": TaskState.CANCELED,
            "input-required": TaskState.INPUT_REQUIRED,
            "nonsense": TaskState.WORKING,
        }[state]
    )


def test_an_object_of_0_3_in_a_response_to_a_method_of_1_0_is_read():
    status = {
        "state": "TASK_STATE_WORKING",
        "message": {"messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "hi"}]},
    }
    update = {"kind": "status-update", "taskId": "t", "contextId": "c", "status": status}
    read = event(binding("JSONRPC", "1.0"), update)
    assert isinstance(read, TaskStatusUpdateEvent)
    assert read.status.message is not None
    assert [part.text for part in read.status.message.parts] == ["hi"]


def test_an_object_of_0_3_without_its_kind_is_recognized_by_its_members():
    old = binding("JSONRPC", "0.3")
    parts = [{"kind": "text", "text": "x"}]
    message = event(old, {"messageId": "m", "role": "agent", "parts": parts})
    assert isinstance(message, Message)
    assert message.parts[0].text == "x"
    task = event(
        old, {"id": "t", "contextId": "c", "status": {"state": "working"}, "history": [message.to_dict()]}
    )
    assert isinstance(task, Task)
    assert task.history == (message,)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("JSONRPC", {"error": {"code": -32001, "message": "Task not found: t"}}),
        ("HTTP+JSON", {"error": {"code": 404, "message": "t", "details": [{"reason": "TASK_NOT_FOUND"}]}}),
        ("HTTP+JSON", {"type": "TaskNotFoundError", "message": "t"}),
    ],
)
def test_an_error_is_that_of_the_protocol_in_each_form(name: str, body: object):
    with pytest.raises(TaskNotFoundError) as caught:
        binding(name, "0.3").read(Operation.GET_TASK, json.dumps(body).encode())
    assert caught.value.detail == "t"


NAMES = (
    "id kind type status state message messageId parts content text file data task statusUpdate artifactUpdate artifact "
    "artifacts history error code details taskId contextId artifactId role metadata reason result"
).split()
WORDS = ("task", "message", "status-update", "artifact-update", "working", "text", "file", "data", "agent")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)


@given(kind=st.sampled_from(KINDS), operation=st.sampled_from(list(Operation)), value=JSON)
def test_any_json_is_an_event_or_an_error_of_the_agent(
    kind: tuple[str, str], operation: Operation, value: object
):
    with suppress(A2AError, UpstreamError):
        assert event(binding(*kind), value, operation) is not None


@pytest.mark.parametrize(
    ("stated", "time"),
    [
        ("2026-11-24T03:15:09", datetime(2026, 11, 24, 3, 15, 9, tzinfo=UTC)),  # FastA2A
        ("2026-11-24T05:15:09+02:00", datetime(2026, 11, 24, 3, 15, 9, tzinfo=UTC)),
        ("yesterday", None),
        (None, None),
    ],
)
def test_a_time_without_a_zone_is_read_as_utc_and_another_one_left_out(
    stated: str | None, time: datetime | None
):
    status = {"state": "TASK_STATE_WORKING", "timestamp": stated}
    event = read_model(StreamResponse, {"task": {"id": "t", "contextId": "c", "status": status}}).task
    assert event is not None
    assert event.status.timestamp == time
