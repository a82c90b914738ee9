"""Every decoder's result in every wire format, compared with committed SHA-256 hashes.

The inputs are the bodies of the fuzzer's corpus that are part of the project, and the recordings of real providers where
``TAILRACE_RECORDINGS`` or the folder beside the repository has them. Each hash covers one wire format for all bodies of one
API. ``python tests/test_golden_outputs.py`` (with ``tests`` and the project's root on the path) rewrites the hashes.
``python tests/test_golden_outputs.py FOLDER`` writes the outputs themselves, one file for each body, so that two states of
the code can be compared with ``diff -r``.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fuzz.corpus import RECORDINGS, Seed, project_seeds, recorded_seeds
from fuzz.oracles import request_of
from tailrace.server.protocols.ag_ui.encoder import AgUiEncoder
from tailrace.server.protocols.ai_sdk.encoder import UiMessageEncoder
from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.encoder import Encoder
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai.chat_completions_encoder import ChatCompletionEncoder
from tailrace.server.protocols.openai.responses_encoder import ResponsesEncoder
from tailrace.server.protocols.openai.stored_request import StoredRequest
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v0_3_proto_json import Version03ProtoJson
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.a2a.version_codec import Dialect
from tailrace.streaming.agent.caller_options import CallerOptions
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.wrappers import ContentPartText, Message, Role, UpstreamError
from tailrace.wrappers.providers import FORMATS

HASHES = Path(__file__).parent / "fixtures/golden_outputs.json"

# Values that differ in each run: UUIDs, times, and the Unix time ``created``.
_VARIABLE = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    rb"|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"
    rb'|(?<="created":)\d+|(?<="created": )\d+'
)
_REQUEST = ChatRequest((), Message(role=Role.USER, content=(ContentPartText(text="?"),)), CallerOptions())
_DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "a2a-0.1": Version01,
    "a2a-0.3": Version03,
    "a2a-0.3-http": Version03ProtoJson,
    "a2a-1.0": Version10,
}
_ENCODERS: Mapping[str, Callable[[], Encoder]] = {
    "openai-chat": lambda: ChatCompletionEncoder(EventTranslator(), _REQUEST),
    "openai-responses": lambda: ResponsesEncoder(StoredRequest.from_chat_request(_REQUEST, "response")),
    "ai-sdk": lambda: UiMessageEncoder(EventTranslator()),
    "ag-ui": lambda: AgUiEncoder(EventTranslator(), "thread", "run"),
}


def outputs(format: str, body: bytes) -> dict[str, bytes]:
    """Return the outputs for a body by the name of the wire format, with constants in place of variable values."""
    conversion = StreamConversion(FORMATS[format].create_decoder(), task_id="t", context_id="c")
    events = [
        event for start in range(0, len(body), 4096) for event in conversion.feed(body[start : start + 4096])
    ]
    events += conversion.close()
    found = {
        "chat.completion": _json(to_chat_completion(conversion.accumulator)),
        "message": _json(conversion.message()),
        "request": _json(_request(format, body)),
        **{name: _a2a_stream(create(), events) for name, create in _DIALECTS.items()},
        **{name: _encoded(create(), events) for name, create in _ENCODERS.items()},
    }
    return {name: _VARIABLE.sub(b"*", output) for name, output in found.items()}


def hashes(format: str, seeds: Iterable[Seed]) -> dict[str, str]:
    """Return one hash for each wire format, over the outputs for all bodies in order."""
    found: dict[str, Any] = {}
    for seed in seeds:
        for name, output in outputs(format, seed.body).items():
            found.setdefault(name, sha256()).update(b"%s %d\n%s" % (seed.name.encode(), len(output), output))
    return {name: hash.hexdigest()[:16] for name, hash in found.items()}


def _request(format: str, body: bytes) -> object:
    """Return a request that sends the decoded message back to its provider, or the reason why it cannot be sent."""
    decoder = FORMATS[format].create_decoder()
    converter = FORMATS[format].create_converter()
    try:
        return request_of(converter, decoder.feed(body) + decoder.close())
    except (UpstreamError, ValueError) as error:
        return str(error)


def _a2a_stream(dialect: Dialect, events: Sequence[Event]) -> bytes:
    stream = dialect.for_stream()
    lines = [stream.write_event(event, is_last=event is events[-1]) for event in events]
    return b"\n".join(line for line in lines if line is not None)


def _encoded(encoder: Encoder, events: Iterable[Event]) -> bytes:
    return b"".join(encoder.feed(event) for event in events)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=bytes.hex).encode("utf-8", "surrogatepass")


@cache
def _committed() -> dict[str, dict[str, dict[str, str]]]:
    return json.loads(HASHES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("format", FORMATS)
def test_outputs_for_the_project_s_bodies_are_unchanged(format: str) -> None:
    assert hashes(format, project_seeds(format)) == _committed()["project"][format]


@pytest.mark.skipif(not RECORDINGS.exists(), reason=f"the folder {RECORDINGS} of recordings does not exist")
@pytest.mark.parametrize("format", FORMATS)
def test_outputs_for_recordings_are_unchanged(format: str) -> None:
    assert hashes(format, recorded_seeds(format)) == _committed()["recordings"][format]


def main(folder: Path | None = None) -> None:
    """Rewrite the committed hashes, or write all outputs into a folder."""
    sources = {"project": project_seeds, "recordings": recorded_seeds}
    if folder is None:
        found = {
            name: {each: hashes(each, seeds(each)) for each in FORMATS} for name, seeds in sources.items()
        }
        HASHES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    for format in FORMATS:
        for name, seeds in sources.items():
            for number, seed in enumerate(seeds(format)):
                target = folder / name / format / f"{number}-{seed.name.replace('/', '_')}"
                target.parent.mkdir(parents=True, exist_ok=True)
                lines = [
                    b"== %s\n%s\n" % (each.encode(), out) for each, out in outputs(format, seed.body).items()
                ]
                target.write_bytes(b"".join(lines))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
