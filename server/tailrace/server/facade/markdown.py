"""Files and data of an answer as text, which is all that a chat has place for, and back.

An image is an image of Markdown, by its address or as a ``data:`` URL; another file is a link; data is a block of JSON.
An answer that comes back as part of the conversation is given its files again: a model is not to read a picture as a
hundred thousand letters.
"""

import json
import re
from collections.abc import Iterable

from tailrace.wrappers import ContentPart, ContentPartData, ContentPartFile, ContentPartText, Message

_FILE = re.compile(r"\n*!?\[([^\]\n]*)\]\(data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/]+={0,2})\)\n*")


def file_markdown(file: ContentPartFile) -> str:
    """A file as Markdown."""
    address = file.url
    if address is None:
        data = file.model_dump(mode="json")["data"]
        address = f"data:{file.media_type or 'application/octet-stream'};base64,{data}"
    name = re.sub(r"[\[\]\n]", " ", file.filename)
    if file.media_type.startswith("image/"):
        return f"![{name or 'image'}]({address})"
    return f"[{name or 'file'}]({address})"


def data_markdown(data: object) -> str:
    """Data as a block of JSON."""
    return f"```json\n{json.dumps(data, ensure_ascii=False, indent=2)}\n```"


def markdown_of(parts: Iterable[ContentPart], *, with_data: bool = True) -> str:
    """What parts of an answer say in a chat, in order.

    Args:
        parts: The parts; reasoning, calls and results say nothing here.
        with_data: Data is shown.
    """
    texts: list[str] = []
    for part in parts:
        if isinstance(part, ContentPartText):
            texts.append(part.text)
        elif isinstance(part, ContentPartFile):
            texts.append(f"\n\n{file_markdown(part)}\n\n" if texts else file_markdown(part))
        elif isinstance(part, ContentPartData) and with_data:
            texts.append(f"\n\n{data_markdown(part.data)}\n\n" if texts else data_markdown(part.data))
    return "".join(texts)


def with_files(message: Message) -> Message:
    """An answer with the files that stand in its text as ``data:`` URLs; itself where there are none."""
    if not any(isinstance(part, ContentPartText) and ";base64," in part.text for part in message.content):
        return message
    content: list[ContentPart] = []
    for part in message.content:
        content += _parted(part) if isinstance(part, ContentPartText) else (part,)
    return message.model_copy(update={"content": tuple(content)})


def _parted(part: ContentPartText) -> list[ContentPart]:
    content: list[ContentPart] = []
    at = 0
    for found in _FILE.finditer(part.text):
        name, media_type, data = found.groups()
        try:
            file = ContentPartFile.model_validate(
                {
                    "data": data,
                    "media_type": media_type,
                    "filename": "" if name in ("image", "file") else name,
                }
            )
        except ValueError:
            continue  # no base64 after all
        if found.start() > at:
            content.append(ContentPartText(text=part.text[at : found.start()], metadata=part.metadata))
        content.append(file)
        at = found.end()
    if at < len(part.text):
        content.append(ContentPartText(text=part.text[at:], metadata=part.metadata))
    return content
