"""Requests and responses for A2A tasks, for applications that delegate work to sub-agents. Sans-IO.

`A2ATaskBridge` builds JSON-RPC requests as dicts, and parses responses of every version of A2A. The application sends the
requests. Two methods convert between the names of statuses in A2A and in Cortex, another project.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from uuid import uuid4

from tailrace.streaming.a2a.stream_extension import is_response_text

Fields = dict[str, Any]
BridgeDialect = Literal["0.1", "0.3", "1.0"]

_METHODS: Mapping[str, tuple[str, str, str]] = {
    "0.1": ("tasks/send", "tasks/get", "tasks/cancel"),
    "0.3": ("message/send", "tasks/get", "tasks/cancel"),
    "1.0": ("SendMessage", "GetTask", "CancelTask"),
}
_TO_CORTEX = {
    "submitted": "pending",
    "working": "running",
    "completed": "completed",
    "failed": "failed",
    "canceled": "cancelled",
}
_TO_A2A = {cortex: a2a for a2a, cortex in _TO_CORTEX.items()}


@dataclass
class A2AArtifact:
    """An artifact of a task.

    Attributes:
        parts: The content, in the format of the response's A2A version.
        metadata: The metadata of the artifact, with tailrace's data under the URI of its extension.
    """

    parts: list[Fields] = field(default_factory=list[Fields])
    name: str = ""
    description: str = ""
    metadata: Fields = field(default_factory=dict[str, Any])


@dataclass
class A2AMessage:
    """A message of a task.

    Attributes:
        role: ``"user"`` or ``"agent"``.
        parts: The content, in the format of the response's A2A version.
    """

    role: str
    parts: list[Fields] = field(default_factory=list[Fields])


@dataclass
class A2ATaskResult:
    """The task in a response.

    Attributes:
        task_id: The id of the task; empty if the response has no id.
        status: The name of the state in versions before A2A 1.0: ``"submitted"``, ``"working"``, ``"completed"``, ``"failed"``,
            ``"canceled"``, ….
        messages: The messages in the response, oldest first, and then the message of the status.
        error: The reason for a failure; None if there is none.
    """

    task_id: str
    status: str
    artifacts: list[A2AArtifact] = field(default_factory=list[A2AArtifact])
    messages: list[A2AMessage] = field(default_factory=list[A2AMessage])
    error: str | None = None


class A2ATaskBridge:
    """Builds the requests for a task, and parses the responses.

    Args:
        dialect: The A2A version of the requests: ``"0.1"`` (``tasks/send``; the client creates the task id), ``"0.3"`` or
            ``"1.0"`` (the server creates the task id).
    """

    def __init__(self, dialect: BridgeDialect = "0.1") -> None:
        self._dialect = dialect
        self._send, self._get, self._cancel = _METHODS[dialect]

    def build_send_request(self, goal: str, context: str = "", task_id: str | None = None) -> Fields:
        """Build the JSON-RPC request that sends a goal.

        Args:
            goal: The first text part.
            context: A second text part; omitted if empty.
            task_id: The id of the task to continue; None for a new task.
        """
        texts = [goal, context] if context else [goal]
        if self._dialect == "0.1":
            task_id = task_id or str(uuid4())
            parts = [{"type": "text", "text": text} for text in texts]
            return _request(self._send, {"id": task_id, "message": {"role": "user", "parts": parts}}, task_id)
        message: Fields = {"messageId": str(uuid4())}
        if task_id:
            message["taskId"] = task_id
        if self._dialect == "0.3":
            message |= {"kind": "message", "role": "user"}
            message["parts"] = [{"kind": "text", "text": text} for text in texts]
        else:
            message |= {"role": "ROLE_USER", "parts": [{"text": text} for text in texts]}
        return _request(self._send, {"message": message})

    def build_get_request(self, task_id: str) -> Fields:
        """Build the JSON-RPC request that gets a task."""
        return _request(self._get, {"id": task_id})

    def build_cancel_request(self, task_id: str) -> Fields:
        """Build the JSON-RPC request that cancels a task."""
        return _request(self._cancel, {"id": task_id})

    def parse_response(self, response: Fields) -> A2ATaskResult:
        """Parse a JSON-RPC response. The content never causes an exception.

        An error becomes a task with the status ``"failed"``. A message instead of a task becomes a completed task.
        """
        error: object = response.get("error")
        if error:
            report = _fields(cast("object", error)).get("message") if isinstance(error, Mapping) else error
            return A2ATaskResult(_text(response.get("id")), "failed", error=str(report or "unknown error"))
        result = _fields(response.get("result"))
        result = _fields(result.get("task")) or _fields(result.get("message")) or result
        if "parts" in result:
            return A2ATaskResult(_text(result.get("taskId")), "completed", messages=[_message(result)])
        status = _fields(result.get("status"))
        state = _state(status.get("state"))
        messages = [_message(each) for each in _list(result.get("messages") or result.get("history"))]
        report = _fields(status.get("message"))
        if report:
            messages.append(_message(report))
        return A2ATaskResult(
            task_id=_text(result.get("id")),
            status=state,
            artifacts=[_artifact(each) for each in _list(result.get("artifacts"))],
            messages=messages,
            error="\n".join(_texts(_list(report.get("parts")))) or None if state == "failed" else None,
        )

    def a2a_status_to_cortex(self, status: str) -> str:
        """Convert the status of an A2A task to the status of a Cortex sub-agent (``pending``, ``running``, …).

        An unknown status is returned unchanged.
        """
        return _TO_CORTEX.get(status, status)

    def cortex_status_to_a2a(self, status: str) -> str:
        """Convert the status of a Cortex sub-agent to the status of an A2A task. An unknown status is returned unchanged."""
        return _TO_A2A.get(status, status)

    def get_result_text(self, result: A2ATaskResult) -> str:
        """Return the text of the agent's artifacts, followed by the text of the agent's messages.

        Each text part begins on a new line. Reasoning, tool calls, tool results, choices other than the first, and messages that
        repeat an artifact are excluded.
        """
        answers = [
            _texts(artifact.parts) for artifact in result.artifacts if is_response_text(artifact.metadata)
        ]
        known = {"".join(texts) for texts in answers}
        for message in result.messages:
            texts = _texts(message.parts)
            if message.role == "user" or "".join(texts) in known or known.issuperset(texts):
                continue
            known.add("".join(texts))
            answers.append(texts)
        return "\n".join(text for texts in answers for text in texts)


def _request(method: str, params: Fields, request_id: str = "") -> Fields:
    return {"jsonrpc": "2.0", "id": request_id or str(uuid4()), "method": method, "params": params}


def _state(value: object) -> str:
    """Convert the name of a state in any A2A version to the name in versions before 1.0."""
    name = value if isinstance(value, str) else ""
    if not name.startswith("TASK_STATE_"):
        return name or "unknown"
    name = name.removeprefix("TASK_STATE_").lower().replace("_", "-")
    return {"cancelled": "canceled", "unspecified": "unknown"}.get(name, name)


def _message(fields: Fields) -> A2AMessage:
    role = _text(fields.get("role")).removeprefix("ROLE_").lower()
    return A2AMessage(role or "agent", _list(fields.get("parts")))


def _artifact(fields: Fields) -> A2AArtifact:
    return A2AArtifact(
        _list(fields.get("parts")),
        _text(fields.get("name")),
        _text(fields.get("description")),
        _fields(fields.get("metadata")),
    )


def _texts(parts: Iterable[Fields]) -> list[str]:
    return [
        part["text"]
        for part in parts
        if _text(part.get("text")) and is_response_text(_fields(part.get("metadata")))
    ]


def _fields(value: object) -> Fields:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Fields]:
    if not isinstance(value, list):
        return []
    return [fields for each in cast("list[object]", value) if (fields := _fields(each))]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
