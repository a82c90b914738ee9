"""Files as content entries, in both directions."""

from typing import Any

import pytest

from tailrace.wrappers import ContentPartFile
from tailrace.wrappers.openai_responses.files import file_param, file_part

Fields = dict[str, Any]


def own(**fields: Any) -> Fields:
    return {"openai-responses": fields}


PNG_URL = "data:image/png;base64,iVBORw=="

# A file and its content entry, converted both ways.
ROWS: dict[str, tuple[ContentPartFile, Fields]] = {
    "image by value": (
        ContentPartFile(data=b"\x89PNG", media_type="image/png"),
        {"type": "input_image", "detail": "auto", "image_url": PNG_URL},
    ),
    "image by value, with detail": (
        ContentPartFile(data=b"\x89PNG", media_type="image/png", metadata=own(detail="low")),
        {"type": "input_image", "detail": "low", "image_url": PNG_URL},
    ),
    "image by URL": (
        ContentPartFile(url="https://example.com/a.JPG?x=1#y", media_type="image/jpeg"),
        {"type": "input_image", "detail": "auto", "image_url": "https://example.com/a.JPG?x=1#y"},
    ),
    "image by URL, of unknown type": (
        ContentPartFile(url="https://example.com/a", media_type="image/*"),
        {"type": "input_image", "detail": "auto", "image_url": "https://example.com/a"},
    ),
    "image uploaded before": (
        ContentPartFile(url="openai-file:file-1", media_type="image/*"),
        {"type": "input_image", "detail": "auto", "file_id": "file-1"},
    ),
    "file by value": (
        ContentPartFile(data=b"%PDF", media_type="application/pdf", filename="a.pdf"),
        {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"},
    ),
    "file by URL": (
        ContentPartFile(url="https://example.com/a.pdf"),
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
    ),
    "file uploaded before": (
        ContentPartFile(url="openai-file:file-1", metadata=own(detail="high")),
        {"type": "input_file", "file_id": "file-1", "detail": "high"},
    ),
    "sound": (
        ContentPartFile(data=b"RIFF", media_type="audio/wav"),
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    part, param = ROWS[name]
    assert file_param(part) == param
    assert file_part(param) == part


# A file without an entry: the content of the request, and the part after the round trip.
LOSSES: dict[str, tuple[ContentPartFile, Fields, ContentPartFile]] = {
    "an image loses its name": (
        ContentPartFile(data=b"\x89PNG", media_type="image/png", filename="a.png"),
        ROWS["image by value"][1],
        ROWS["image by value"][0],
    ),
    "an image by URL gets the type of the URL's extension": (
        ContentPartFile(url="https://example.com/a.png"),
        {"type": "input_image", "detail": "auto", "image_url": "https://example.com/a.png"},
        ContentPartFile(url="https://example.com/a.png", media_type="image/png"),
    ),
    "an image type that the URL does not contain is lost": (
        ContentPartFile(url="https://example.com/a", media_type="image/tiff"),
        ROWS["image by URL, of unknown type"][1],
        ROWS["image by URL, of unknown type"][0],
    ),
    "a link loses its name and type": (
        ContentPartFile(url="https://example.com/a.pdf", media_type="application/pdf", filename="b.pdf"),
        ROWS["file by URL"][1],
        ROWS["file by URL"][0],
    ),
    "a data URL of an image becomes an image by value": (
        ContentPartFile(url=PNG_URL),
        ROWS["image by value"][1],
        ROWS["image by value"][0],
    ),
    "a data URL of a file becomes a file by value": (
        ContentPartFile(url="data:application/pdf;base64,JVBERg==", filename="a.pdf"),
        ROWS["file by value"][1],
        ROWS["file by value"][0],
    ),
    "a file without a type or a name gets one": (
        ContentPartFile(data=b"x"),
        {"type": "input_file", "file_data": "data:application/octet-stream;base64,eA==", "filename": "file"},
        ContentPartFile(data=b"x", media_type="application/octet-stream", filename="file"),
    ),
    "a file without a name gets the extension of its type": (
        ContentPartFile(data=b"x", media_type="application/pdf"),
        {"type": "input_file", "file_data": "data:application/pdf;base64,eA==", "filename": "file.pdf"},
        ContentPartFile(data=b"x", media_type="application/pdf", filename="file.pdf"),
    ),
    "audio types have one name each": (
        ContentPartFile(data=b"RIFF", media_type="audio/x-wav; rate=8000"),
        ROWS["sound"][1],
        ROWS["sound"][0],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_the_documented_one(name: str) -> None:
    part, param, back = LOSSES[name]
    assert file_param(part) == param
    assert file_part(param) == back


def test_base64_alone_is_a_file_without_a_type() -> None:
    assert file_part({"type": "input_file", "file_data": "eA==", "filename": "a"}) == ContentPartFile(
        data=b"x", filename="a"
    )


def test_an_address_may_hold_its_text_as_it_is() -> None:
    assert file_part({"type": "input_file", "file_data": "data:text/plain,a%20b"}) == ContentPartFile(
        data=b"a b", media_type="text/plain"
    )


def test_sound_of_an_unknown_form_is_sound() -> None:
    param = {"type": "input_audio", "input_audio": {"data": "eA==", "format": "flac"}}
    assert file_part(param) == ContentPartFile(data=b"x", media_type="audio/flac")


@pytest.mark.parametrize(
    "param", [{"type": "input_image"}, {"type": "input_file", "file_data": "data:a;base64,!"}]
)
def test_a_file_that_is_none_is_refused(param: Fields) -> None:
    with pytest.raises(ValueError, match="validation error"):
        file_part(param)


def test_any_other_entry_is_no_file() -> None:
    assert file_part({"type": "input_text", "text": "a"}) is None
