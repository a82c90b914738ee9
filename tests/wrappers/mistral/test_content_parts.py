"""Mistral's content parts: files by URL, by value and by id, and parts without a common form."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.strategies import json_values
from tailrace.wrappers import ContentPartData, ContentPartFile, ContentPartText
from tailrace.wrappers.mistral.content_parts import file_param, read_part

PDF_URL = "data:application/pdf;base64,JVBERg=="

# A content part in both formats, converted both ways.
FILES: dict[str, tuple[dict[str, Any], ContentPartFile]] = {
    "an image by value": (
        {"type": "image_url", "image_url": "data:image/png;base64,UA=="},
        ContentPartFile(data=b"P", media_type="image/png"),
    ),
    "an image by URL": (
        {"type": "image_url", "image_url": "https://e.com/a.JPG?x#y"},
        ContentPartFile(url="https://e.com/a.JPG?x#y", media_type="image/jpeg"),
    ),
    "an image of unknown type": (
        {"type": "image_url", "image_url": "https://e.com/a"},
        ContentPartFile(url="https://e.com/a", media_type="image/*"),
    ),
    "an image with a detail": (
        {"type": "image_url", "image_url": {"url": "https://e.com/a.png", "detail": "low"}},
        ContentPartFile(
            url="https://e.com/a.png", media_type="image/png", metadata={"mistral": {"image_url": {"detail": "low"}}}
        ),
    ),
    "an image in an object": (
        {"type": "image_url", "image_url": {"url": "https://e.com/a.png"}},
        ContentPartFile(url="https://e.com/a.png", media_type="image/png", metadata={"mistral": {"image_url": {}}}),
    ),
    "a document by URL": (
        {"type": "document_url", "document_url": "https://e.com/a.pdf", "document_name": "Report"},
        ContentPartFile(url="https://e.com/a.pdf", media_type="application/pdf", filename="Report"),
    ),
    "a document of unknown type": (
        {"type": "document_url", "document_url": "https://e.com/a"},
        ContentPartFile(url="https://e.com/a", metadata={"mistral": {"type": "document_url"}}),
    ),
    "a document by value": (
        {"type": "document_url", "document_url": PDF_URL},
        ContentPartFile(data=b"%PDF", media_type="application/pdf"),
    ),
    "a document of an odd type": (
        {"type": "document_url", "document_url": "data:image/png;base64,UA=="},
        ContentPartFile(data=b"P", media_type="image/png", metadata={"mistral": {"type": "document_url"}}),
    ),
    "a sound by value": (
        {"type": "input_audio", "input_audio": "UA=="},
        ContentPartFile(data=b"P", media_type="audio/*"),
    ),
    "a sound by URL": (
        {"type": "input_audio", "input_audio": "https://e.com/a.mp3"},
        ContentPartFile(url="https://e.com/a.mp3", media_type="audio/*"),
    ),
    "a file uploaded before": (
        {"type": "file", "file_id": "f-1"},
        ContentPartFile(url="mistral-file:f-1"),
    ),
    "a file with a further field": (
        {"type": "file", "file_id": "f-1", "hint": 1},
        ContentPartFile(url="mistral-file:f-1", metadata={"mistral": {"hint": 1}}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_goes_back_as_it_came(name: str) -> None:
    part, file = FILES[name]
    assert read_part(part) == file
    assert file_param(file) == part


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (ContentPartFile(data=b"P", filename="cat.png"), {"type": "image_url", "image_url": "data:application/octet-stream;base64,UA=="}),
        (ContentPartFile(data=b"P", media_type="audio/mpeg"), {"type": "input_audio", "input_audio": "UA=="}),
        (ContentPartFile(url="https://e.com/a.md"), {"type": "document_url", "document_url": "https://e.com/a.md"}),
        (
            ContentPartFile(data=b"P", media_type="text/csv; charset=utf-8", filename="a.csv"),
            {"type": "document_url", "document_url": "data:text/csv; charset=utf-8;base64,UA==", "document_name": "a.csv"},
        ),
        (ContentPartFile(data=b"P", media_type="application/zip"), None),
        (ContentPartFile(data=b"P", media_type="video/mp4"), None),
        (ContentPartFile(url="https://e.com/a"), None),
        (ContentPartFile(url="openai-file:f"), None),
    ],
)  # fmt: skip
def test_a_file_goes_out_as_what_it_is(file: ContentPartFile, expected: dict[str, Any] | None) -> None:
    assert file_param(file) == expected


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "data:image/png;base64,*"},
        {"type": "image_url", "image_url": ""},
        {"type": "image_url", "image_url": "data:image/png;base64,"},
        {"type": "image_url"},
        {"type": "image_url", "image_url": 1},
        {"type": "input_audio", "input_audio": {"data": "UA==", "format": "wav"}},
        {"type": "input_audio", "input_audio": "*"},
        {"type": "file", "file_id": None},
        {"type": "text", "text": 1},
        {"type": "tool_reference", "tool": "web_search", "title": "x"},
    ],
)
def test_a_part_without_a_common_form_is_kept_whole(part: dict[str, Any]) -> None:
    assert read_part(part) == ContentPartData(data=part, metadata={"mistral": {"type": part["type"]}})


def test_a_data_url_need_not_be_base64() -> None:
    file = read_part({"type": "document_url", "document_url": "data:text/plain,a%20b"})
    assert isinstance(file, ContentPartFile)
    assert (file.data, file.media_type) == (b"a b", "text/plain")
    assert file_param(file) == {"type": "document_url", "document_url": "data:text/plain;base64,YSBi"}


def test_text_keeps_its_further_fields() -> None:
    assert read_part({"type": "text", "text": "a", "hint": 1}) == ContentPartText(
        text="a", metadata={"mistral": {"hint": 1}}
    )


kinds = st.sampled_from(["text", "image_url", "document_url", "input_audio", "file", "x"])
names = st.sampled_from(
    ["text", "image_url", "document_url", "input_audio", "file_id", "document_name", "url"]
)


@given(
    kinds, st.dictionaries(names, json_values | st.dictionaries(names, json_values, max_size=2), max_size=3)
)
def test_no_part_of_any_shape_makes_it_raise(kind: str, fields: dict[str, Any]) -> None:
    part = read_part({"type": kind, **fields})
    assert part.model_dump_json()
    if isinstance(part, ContentPartFile):
        assert file_param(part) is not None
