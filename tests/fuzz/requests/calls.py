"""A call of the server as data: built, mutated, written to a file, and sent by `fuzz.requests.target`."""

import base64
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

# Placeholders for values that only a running server has. Those of tasks have the length of their replacement: a protobuf
# message contains the length of each text.
COMPLETED = "00000000-0000-4000-8000-00000000000c"
WAITING = "00000000-0000-4000-8000-00000000000d"
PAGE_TOKEN = "%PAGE-TOKEN%"
RESPONSE = "%RESPONSE%"
COMPLETION = "%COMPLETION%"

CONTEXT = "fuzz-context-000000"
"""Placeholder of a conversation: that of the completed task, or a new one for a large call."""

CONFIG = "fuzz-config"
"""The push notification config of the completed task."""

HOOK = "http://127.0.0.1:9/hook"
"""The address of notifications, at which no server listens."""

CALLERS = {"alice": "alice-key-0123456789", "bob": "bob-key-0123456789"}
"""The API keys of the server's callers."""


@dataclass
class Call:
    """One call over HTTP or gRPC.

    Attributes:
        method: The HTTP method, or the full name of the gRPC method.
        path: The path, percent-encoded, with placeholders; empty for gRPC.
        headers: The headers in order; for gRPC the metadata.
        headers: In order; for gRPC the metadata.
        streams: Whether the gRPC method streams its responses.
        streams: The gRPC method streams its responses.
    """

    method: str
    path: str = ""
    query: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    body: bytes = b""
    streams: bool = False

    @property
    def is_grpc(self) -> bool:
        """Return whether it is a call over gRPC."""
        return self.method.startswith("/")

    def set_header(self, name: str, value: str) -> None:
        """Replace all headers of that name."""
        self.headers = [pair for pair in self.headers if pair[0].lower() != name.lower()] + [(name, value)]

    def with_values(self, values: dict[str, str]) -> "Call":
        """The call with the placeholders replaced by values of a running server."""
        pairs = {name.encode(): value.encode() for name, value in values.items()}
        body, path = self.body, self.path
        for name, value in pairs.items():
            body = body.replace(name, value)
            path = path.replace(name.decode(), value.decode())
        query = [(name, _replaced(value, values)) for name, value in self.query]
        return Call(self.method, path, query, self.headers, body, self.streams)

    def to_json(self) -> str:
        """The call without its body as text for `from_json`."""
        fields = {
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "headers": self.headers,
            "streams": self.streams,
        }
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str, body: bytes) -> "Call":
        """The call that a text and a body describe."""
        fields: dict[str, Any] = json.loads(text)
        pairs = {
            name: [(str(key), str(value)) for key, value in fields[name]] for name in ("query", "headers")
        }
        return cls(
            fields["method"], fields["path"], pairs["query"], pairs["headers"], body, fields["streams"]
        )


def _replaced(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def mutated_token(rng: Random) -> str:
    """A page token that the server did not issue, in the form of its tokens."""
    moment = rng.choice(
        (
            "2026-01-01T00:00:00+00:00",
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-14:00",
            "2026-01-01",
            "\ud800",
            5,
            None,
            [],
            "9" * 5000,
        )
    )
    task = rng.choice((COMPLETED, "", "\udc00", "\0", "x" * 100_000, 7, None, {"a": 1}))
    fields: Any = rng.choice(
        ([moment, task, "0" * 16], [moment], {"a": moment}, moment, [moment, task, task, 1])
    )
    text = json.dumps(fields)
    if rng.random() < 0.2:
        text = "[" * rng.choice((100, 3000, 100_000))
    if rng.random() < 0.1:
        text = text.replace("0", "9" * 5000)
    token = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return token if rng.random() < 0.9 else token[: rng.randrange(len(token) + 1)]
