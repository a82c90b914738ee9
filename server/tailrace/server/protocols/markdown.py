"""Converts files and data of a response to Markdown, for chats that support only text, and back.

The content of a file without a URL becomes a ``data:`` URL. If a client sends this URL back, it is converted to a file again, so
that models do not receive base64 as text.
"""

import json
import re
from collections.abc import Iterable

from tailrace.wrappers import ContentPart, ContentPartData, ContentPartFile, ContentPartText, Message
from tailrace.wrappers.conversion.text_joining import belong_to_one_text, join_texts

# The end of a link or image. Matching the whole link would take quadratic time, so the code searches backwards for the beginning.
_DATA_URL = re.compile(r"\]\(data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/]+={0,2})\)\n*")
_NAME = re.compile(r"[^\]\n]*")


def file_markdown(file: ContentPartFile) -> str:
    """Convert a file to Markdown."""
    address = file.url
    if address is None:
        data = file.model_dump(mode="json")["data"]
        address = f"data:{file.media_type or 'application/octet-stream'};base64,{data}"
    name = re.sub(r"[\[\]\n]", " ", file.filename)
    if file.media_type.startswith("image/"):
        return f"![{name or 'image'}]({address})"
    return f"[{name or 'file'}]({address})"


def data_markdown(data: object) -> str:
    """Convert data to a block of JSON."""
    return f"```json\n{json.dumps(data, ensure_ascii=False, indent=2)}\n```"


def markdown_of(parts: Iterable[ContentPart], *, with_data: bool = True) -> str:
    """Convert the parts of a response to Markdown, without reasoning, calls and results.

    Args:
        parts: The parts. Separate texts are joined with blank lines.
        with_data: True to include data.
    """
    blocks: list[str] = []
    before: ContentPart | None = None  # the text part at the end of the last block
    for part in parts:
        if isinstance(part, ContentPartText):
            if before is not None and belong_to_one_text(before, part):
                blocks[-1] += part.text
            elif part.text:
                blocks.append(part.text)
            before = part if part.text else before
        elif isinstance(part, ContentPartFile):
            blocks.append(file_markdown(part))
            before = None
        elif isinstance(part, ContentPartData) and with_data:
            blocks.append(data_markdown(part.data))
            before = None
    return join_texts(blocks)


def extract_data_urls(message: Message) -> Message:
    """Convert ``data:`` URLs in the text of a response to files. If there are none, return the same object."""
    if not any(isinstance(part, ContentPartText) and ";base64," in part.text for part in message.content):
        return message
    content: list[ContentPart] = []
    for part in message.content:
        content += _split_data_urls(part) if isinstance(part, ContentPartText) else (part,)
    return message.model_copy(update={"content": tuple(content)})


def _split_data_urls(part: ContentPartText) -> list[ContentPart]:
    text = part.text
    content: list[ContentPart] = []
    # The ends of the last file and of the last ``data:`` URL.
    at = after = 0
    for found in _DATA_URL.finditer(text):
        bracket = text.rfind("[", after, found.start())
        after = found.end()
        if bracket < 0 or not _NAME.fullmatch(text, bracket + 1, found.start()):
            continue
        name, (media_type, data) = text[bracket + 1 : found.start()], found.groups()
        try:
            file = ContentPartFile.model_validate(
                {
                    "data": data,
                    "media_type": media_type,
                    "filename": "" if name in ("image", "file") else name,
                }
            )
        except ValueError:
            continue  # not base64
        before = text[at:bracket].removesuffix("!").rstrip("\n")
        if before:
            content.append(ContentPartText(text=before, metadata=part.metadata))
        content.append(file)
        at = after
    if at < len(text):
        content.append(ContentPartText(text=text[at:], metadata=part.metadata))
    return content
