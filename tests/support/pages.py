"""The fenced blocks of a Markdown page."""

import re
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]*)\")?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        language: The language after the opening fence.
        text: The content.
        line: The number of its first line.
        output: The text block that directly follows it, if there is one.
        title: The file name in the block's title, if it has one.
    """

    language: str
    text: str
    line: int
    output: str | None
    title: str | None


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in BLOCK.finditer(text):
        following = BLOCK.match(text, match.end() + 1)
        output = following[3] if following is not None and following[1] == "text" else None
        found.append(Block(match[1], match[3], text.count("\n", 0, match.start()) + 2, output, match[2]))
    return [block for block in found if block.language in languages]
