"""Conversion of files and data to text, and back."""

from typing import Any

import pytest

from tailrace.server.protocols.markdown import data_markdown, extract_data_urls, file_markdown, markdown_of
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    Message,
    Role,
)

PNG: dict[str, Any] = {"data": b"\x89PNG", "media_type": "image/png"}

FILES: list[tuple[dict[str, Any], str]] = [
    (PNG, "![image](data:image/png;base64,iVBORw==)"),
    ({**PNG, "filename": "a[1].png"}, "![a 1 .png](data:image/png;base64,iVBORw==)"),
    ({"url": "https://x.example/a.png", "media_type": "image/png"}, "![image](https://x.example/a.png)"),
    ({"url": "https://x.example/a.pdf", "filename": "a.pdf"}, "[a.pdf](https://x.example/a.pdf)"),
    ({"data": b"abc"}, "[file](data:application/octet-stream;base64,YWJj)"),
]


@pytest.mark.parametrize(("fields", "expected"), FILES)
def test_a_file_is_an_image_or_a_link(fields: dict[str, Any], expected: str) -> None:
    assert file_markdown(ContentPartFile(**fields)) == expected


def test_data_is_a_block_of_json() -> None:
    assert data_markdown({"ä": None}) == '```json\n{\n  "ä": null\n}\n```'


def test_an_answer_in_order() -> None:
    picture = ContentPartFile(**PNG)
    parts: list[ContentPart] = [
        ContentPartReasoning(text="hm"),
        ContentPartText(text="a"),
        ContentPartText(text="b"),
        picture,
        ContentPartText(text="c"),
        ContentPartData(data=1),
    ]
    shown = "a\n\nb\n\n![image](data:image/png;base64,iVBORw==)\n\nc"
    assert markdown_of(parts) == f"{shown}\n\n```json\n1\n```"
    assert markdown_of(parts, with_data=False) == shown


def test_an_answer_has_its_files_again() -> None:
    content = (
        ContentPartText(text="Look:"),
        ContentPartFile(**PNG, filename="a.png"),
        ContentPartFile(**PNG),
        ContentPartText(text="Nice?"),
    )
    message = Message(role=Role.MODEL, content=(ContentPartText(text=markdown_of(content)),))
    assert extract_data_urls(message).content == content


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "![a](https://x.example/a.png)",
        "a data:image/png;base64,iVBORw== b",
        "![a](data:image/png;base64,i)",
    ],
)
def test_what_is_no_file_of_ours_stays_text(text: str) -> None:
    message = Message(role=Role.MODEL, content=(ContentPartText(text=text),))
    assert extract_data_urls(message) == message


HOSTILE = {
    "lines": "\n" * 4_000_000,
    "brackets": "[" * 4_000_000,
    "ends without a beginning": "](data:a/b;base64,AAAA)" * 200_000,
    "beginnings without an end": "[](data:a/b" * 400_000,
    "a long media type": "[](data:" + "a" * 4_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_text_is_searched_in_linear_time(text: str) -> None:
    """Quadratic time for four megabytes would be hours."""
    message = Message(role=Role.MODEL, content=(ContentPartText(text=f"{text};base64,"),))
    assert extract_data_urls(message) == message


def test_the_name_of_a_file_begins_at_the_nearest_bracket() -> None:
    message = Message(role=Role.MODEL, content=(ContentPartText(text="[a [b](data:text/plain;base64,QQ==)"),))
    text, file = extract_data_urls(message).content
    assert text == ContentPartText(text="[a ")
    assert isinstance(file, ContentPartFile)
    assert file.filename == "b"
