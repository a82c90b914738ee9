"""User files as blocks of the Messages API, or as text where the API has no block for them."""

from typing import Any

import pytest

from tailrace.wrappers import ContentPartFile
from tailrace.wrappers.anthropic.files import file_block, file_note, file_part

File = ContentPartFile


def image(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image", "source": source}


def document(source: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **fields}


def inline(media_type: str, data: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": data}


def plain(data: str) -> dict[str, Any]:
    return {"type": "text", "media_type": "text/plain", "data": data}


def link(url: str) -> dict[str, Any]:
    return {"type": "url", "url": url}


SENT: list[tuple[ContentPartFile, dict[str, Any]]] = [
    (File(data=b"a", media_type="image/webp"), image(inline("image/webp", "YQ=="))),
    (File(data=b"a", media_type="IMAGE/JPG; q=1"), image(inline("image/jpeg", "YQ=="))),
    (File(data=b"", media_type="application/pdf"), document(inline("application/pdf", ""))),
    (File(data=b"# a", media_type="text/markdown", filename="a.md"), document(plain("# a"), title="a.md")),
    (File(url="https://a/b.PNG#c"), image(link("https://a/b.PNG#c"))),
    (File(url="http://a/b", media_type="image/tiff"), image(link("http://a/b"))),
    (File(url="https://a/b.pdf?c=1"), document(link("https://a/b.pdf?c=1"))),
    (File(url="data:image/png;base64,YQ"), image(inline("image/png", "YQ=="))),
    (File(url="data:text/plain,a%20b", filename="c"), document(plain("a b"), title="c")),
    (File(url="data:;base64,YQ==", media_type="image/gif"), image(inline("image/gif", "YQ=="))),
    (File(url="anthropic-file:f", media_type="image/png"), image({"type": "file", "file_id": "f"})),
    (File(url="anthropic-file:f", media_type="text/csv"), document({"type": "file", "file_id": "f"})),
]


@pytest.mark.parametrize(("part", "block"), SENT)
def test_a_file_is_sent_as_the_block_that_can_hold_it(part: ContentPartFile, block: dict[str, Any]) -> None:
    assert file_block(part) == block


NAMED: list[tuple[ContentPartFile, str]] = [
    (File(data=b"abc", media_type="image/tiff"), "[file, image/tiff, 3 bytes]"),
    (File(data=b"abc", filename="a.bin"), "[file a.bin, 3 bytes]"),
    (File(data=b"\xff", media_type="text/plain"), "[file, text/plain, 1 bytes]"),
    (File(data=b" \n", media_type="text/plain"), "[file, text/plain, 2 bytes]"),
    (File(url="https://a/b.mp4", media_type="video/mp4", filename="b"), "[b](https://a/b.mp4)"),
    (File(url="https://a/b"), "[https://a/b](https://a/b)"),
    (File(url="openai-file:x", media_type="image/png"), "[openai-file:x](openai-file:x)"),
    (File(url="data:audio/wav;base64,YWI=", filename="a.wav"), "[file a.wav, 2 bytes]"),
    (File(url="data:audio/wav;base64,*"), "[file, 0 bytes]"),
]


@pytest.mark.parametrize(("part", "note"), NAMED)
def test_a_file_that_has_no_block_is_named_in_text(part: ContentPartFile, note: str) -> None:
    assert file_block(part) == {"type": "text", "text": note}
    assert file_note(part) == note


def test_fields_of_anthropics_own_stand_beside_the_source() -> None:
    part = File(
        data=b"a",
        media_type="text/plain",
        metadata={"anthropic": {"citations": {"enabled": True}, "type": "x"}},
    )
    assert file_block(part) == document(plain("a"), citations={"enabled": True})


READ: list[tuple[dict[str, Any], ContentPartFile]] = [
    (image(inline("image/png", "YQ==")), File(data=b"a", media_type="image/png")),
    (image(link("https://a/b.gif")), File(url="https://a/b.gif", media_type="image/gif")),
    (image({"type": "file", "file_id": "f"}), File(url="anthropic-file:f", media_type="image/*")),
    (document(inline("application/pdf", "YQ"), title="a"), File(data=b"a", media_type="application/pdf", filename="a")),
    (document(plain("é"), title=None), File(data="é".encode(), media_type="text/plain")),
    (document(link("https://a/b")), File(url="https://a/b", media_type="application/pdf")),
    (
        document({"type": "file", "file_id": "f"}, context="c", citations=None),
        File(url="anthropic-file:f", metadata={"anthropic": {"context": "c"}}),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("block", "part"), READ)
def test_a_block_is_the_file_that_it_holds(block: dict[str, Any], part: ContentPartFile) -> None:
    assert file_part(block) == part


@pytest.mark.parametrize("source", [None, {}, {"type": "content", "content": "a"}])
def test_a_source_that_is_no_file_is_none(source: Any) -> None:
    assert file_part(document(source)) is None


@pytest.mark.parametrize("source", [inline("image/png", "*"), link("")])
def test_a_source_that_cannot_be_read_is_refused(source: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ContentPartFile"):
        file_part(image(source))
