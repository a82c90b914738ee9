"""Files in all formats: media types, data URLs, and files as text."""

from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wrappers import ContentPartFile
from tailrace.wrappers.conversion.files import (
    bare_media_type,
    data_url,
    ending_type,
    file_description,
    read_data_url,
    sound_type,
)

media_types = st.from_regex(r"[a-z]{1,5}/[a-z+.]{1,9}(;charset=[a-z0-9-]{1,6})?", fullmatch=True)


@given(media_types, st.binary(max_size=40))
def test_a_data_url_comes_back(media_type: str, data: bytes) -> None:
    assert read_data_url(data_url(media_type, data)) == (media_type, data)


@given(st.binary(max_size=40))
def test_a_data_url_may_be_percent_encoded(data: bytes) -> None:
    assert read_data_url(f"data:text/plain,{quote_from_bytes(data)}") == ("text/plain", data)


def test_base64_alone_counts_only_where_it_is_meant_to() -> None:
    assert read_data_url("YWJj", bare=True) == ("", b"abc")
    assert read_data_url("YWJj") == ("YWJj", b"")
    assert read_data_url("data:a/b;base64,YWJj", bare=True) == ("a/b", b"abc")


@pytest.mark.parametrize("text", ["data:image/png;base64,a", "data:image/png;base64,€"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ContentPartFile"):
        read_data_url(text)


@pytest.mark.parametrize(
    ("address", "media_type"),
    [
        ("https://example.com/a.JPG?x=1#y", "image/jpeg"),
        ("a.png", "image/png"),
        ("https://example.com/a?b=c.png", ""),
        ("https://example.com/a.pdf", ""),
    ],
)
def test_a_file_extension_has_a_type(address: str, media_type: str) -> None:
    assert ending_type(address) == media_type


def test_further_endings() -> None:
    assert ending_type("A.PDF", {".pdf": "application/pdf"}) == "application/pdf"


def test_types_are_compared_without_parameters() -> None:
    assert bare_media_type(" Text/Plain ; charset=utf-8") == "text/plain"
    assert bare_media_type("") == ""


def test_formats_of_sound_that_are_not_known_are_types_all_the_same() -> None:
    assert [sound_type(name) for name in ("wav", "mp3", "flac")] == ["audio/wav", "audio/mpeg", "audio/flac"]


@pytest.mark.parametrize(
    ("part", "note"),
    [
        (
            ContentPartFile(data=b"abc", media_type="application/zip", filename="a.zip"),
            "[file a.zip, application/zip, 3 bytes]",
        ),
        (ContentPartFile(data=b"abc"), "[file, 3 bytes]"),
        (ContentPartFile(data=b""), "[file, 0 bytes]"),
        (ContentPartFile(url="https://example.com/a"), "[https://example.com/a](https://example.com/a)"),
        (ContentPartFile(url="https://example.com/a", filename="a"), "[a](https://example.com/a)"),
    ],
)
def test_a_file_in_words(part: ContentPartFile, note: str) -> None:
    assert file_description(part) == note


@pytest.mark.parametrize("text", ["%41%42", "a%4", "%%41", "é%C3%A9", "%zz%"])
@pytest.mark.parametrize("before", [65_533, 65_534, 65_535, 65_536])
def test_a_long_data_url_is_decoded_in_slices(
    text: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def watched(part: str) -> bytes:
        sizes.append(len(part))
        return unquote_to_bytes(part)

    monkeypatch.setattr("tailrace.wrappers.conversion.files.unquote_to_bytes", watched)
    body = "x" * before + text * 50_000
    assert read_data_url(f"data:text/plain,{body}") == ("text/plain", unquote_to_bytes(body))
    assert max(sizes) <= 65_536
