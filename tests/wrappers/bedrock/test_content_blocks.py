"""Content blocks: files of each format, tool results of each kind, and blocks without a common form."""

from typing import Any

import pytest

from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.bedrock import BedrockConverter
from tailrace.wrappers.bedrock.content_blocks import (
    FORMATS,
    arguments_text,
    blob,
    own_metadata,
    read_part,
    read_tool_result,
    wire_json,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"\0", b"\0"), ("AA==", b"\0"), ("", b""), ("A", None), ("é", None), (None, None), (1, None)],
)
def test_bytes_are_base64_on_the_wire_and_bytes_in_boto3s_objects(
    value: object, expected: bytes | None
) -> None:
    assert blob(value) == expected


def test_boto3s_objects_are_json_as_on_the_wire() -> None:
    assert wire_json({"a": [b"\0", {"b": (bytearray(b"\0"),)}], "c": 1}) == {
        "a": ["AA==", {"b": ["AA=="]}],
        "c": 1,
    }


def test_what_is_sent_back_leaves_out_what_is_known_padding_or_null() -> None:
    assert own_metadata({"known": 1, "p": "abc", "null": None, "rest": b"\0"}, "known") == {
        "bedrock": {"rest": "AA=="}
    }
    assert own_metadata({"known": 1, "p": "abc"}, "known") == {}


EVERY_FORMAT = [(kind, name) for kind, formats in FORMATS.items() for name in formats]


@pytest.mark.parametrize(("kind", "name"), EVERY_FORMAT)
def test_a_file_of_every_format_goes_back_as_it_came(kind: str, name: str) -> None:
    value: dict[str, Any] = {"format": name, "source": {"bytes": "UA=="}}
    if kind == "document":
        value["name"] = "notes"
    part = read_part({kind: value})
    filename = f"notes.{name}" if kind == "document" else ""
    assert part == ContentPartFile(data=b"P", media_type=FORMATS[kind][name], filename=filename)
    message = Message(role=Role.USER, content=(ContentPartText(text="?"), part))
    (sent,) = BedrockConverter().from_history(History(conversation=(message,)))
    assert sent["content"] == [{"text": "?"}, {kind: value}]


NO_FILES: list[dict[str, Any]] = [
    {"image": {"format": "tiff", "source": {"bytes": "UA=="}}},
    {"image": {"format": "png", "source": {}}},
    {"image": {"format": "png", "source": {"bytes": "*"}}},
    {"image": {"format": "png"}},
    {"image": {"source": {"bytes": "UA=="}}},
    {"document": {"format": "txt", "name": "n", "source": {"text": "x"}}},
    {"document": {"format": "pdf", "name": "n", "source": {"s3Location": {}}}},
    {"cachePoint": {"type": "default"}},
    {"text": 1},
    {"image": None},
]


@pytest.mark.parametrize("block", NO_FILES)
def test_a_block_without_a_common_form_is_kept_whole(block: dict[str, Any]) -> None:
    ((kind, value),) = block.items()
    assert read_part(block) == ContentPartData(data=value, metadata={"bedrock": {"type": kind}})


@pytest.mark.parametrize("block", [{}, {"p": "abc"}])
def test_an_empty_block_is_data_too(block: dict[str, Any]) -> None:
    assert isinstance(read_part(block), ContentPartData)


RESULTS: list[tuple[dict[str, Any], ContentPartToolResult]] = [
    ({"content": [{"text": "a"}, {"text": "b"}]}, ContentPartToolResult(id="", name="f", output="a\n\nb")),
    ({"content": []}, ContentPartToolResult(id="", name="f", output="")),
    ({}, ContentPartToolResult(id="", name="f", output="")),
    ({"content": None}, ContentPartToolResult(id="", name="f", output="")),
    ({"toolUseId": "t", "content": [{"json": [1]}]}, ContentPartToolResult(id="t", name="f", output=[1])),
    ({"content": [{"text": "a"}], "status": "error"}, ContentPartToolResult(id="", name="f", output="a", is_error=True)),
    (
        {"content": [{"text": "a"}, {"json": 1}], "type": "x"},
        ContentPartToolResult(
            id="", name="f", output=[{"text": "a"}, {"json": 1}],
            metadata={"bedrock": {"type": "x", "content": [{"text": "a"}, {"json": 1}]}},
        ),
    ),
    (
        {"content": [{"image": {"source": {"bytes": b"\0"}}}]},
        ContentPartToolResult(
            id="", name="f", output=[{"image": {"source": {"bytes": "AA=="}}}],
            metadata={"bedrock": {"content": [{"image": {"source": {"bytes": "AA=="}}}]}},
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), RESULTS)
def test_a_result_of_every_kind_is_read(fields: dict[str, Any], expected: ContentPartToolResult) -> None:
    assert read_tool_result(fields, "f") == expected


def test_a_result_of_an_unknown_tool_is_marked() -> None:
    assert read_tool_result({}, "").name == "unknown"


@pytest.mark.parametrize(
    ("value", "expected"), [('{"a', '{"a'), ({"a": b"\0"}, '{"a": "AA=="}'), (None, ""), ({}, "{}"), (1, "1")]
)
def test_input_of_every_kind_is_text(value: object, expected: str) -> None:
    assert arguments_text(value) == expected
