"""The official A2A SDK: one event per text delta, encoded to JSON as in its server."""

import json

from a2a.types import Artifact, StreamResponse, TaskArtifactUpdateEvent
from a2a.types import Part as A2APart
from google.protobuf.json_format import MessageToDict

from benchmarks.behaviours import Stage
from benchmarks.inputs import Part, Stream
from benchmarks.measure import main


class EncodeRun:
    """Input: text deltas. Output: encoded events."""

    def __init__(self, stream: Stream) -> None:
        self._texts = {part: _texts(part) for part in stream.parts}
        self._bodies: list[bytes] = []

    def take(self, part: Part) -> None:
        """Create an event and encode it."""
        keep = self._bodies.append
        for text in self._texts[part]:
            event = TaskArtifactUpdateEvent(
                task_id="0f9be7b4-6a3c-4d0c-8f0b-0a3b5a2f1c77",
                context_id="7c0d4a0e-1f4e-4c39-9a53-5a1e4b0a8d21",
                artifact=Artifact(artifact_id="text", parts=[A2APart(text=text)]),
                append=True,
            )
            fields = MessageToDict(StreamResponse(artifact_update=event), preserving_proto_field_name=False)
            keep(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())

    def result(self) -> str:
        """Return the text of all events."""
        updates = [json.loads(body)["artifactUpdate"] for body in self._bodies]
        return "".join(update["artifact"]["parts"][0]["text"] for update in updates)


def _texts(part: Part) -> list[str]:
    payloads = [json.loads(data.removeprefix(b"data: ")) for data in part.reads if b"[DONE]" not in data]
    return [choice["delta"].get("content") or "" for payload in payloads for choice in payload["choices"]]


if __name__ == "__main__":
    main("a2a-sdk", {Stage.ENCODE: EncodeRun}, least_chunks=4000)
