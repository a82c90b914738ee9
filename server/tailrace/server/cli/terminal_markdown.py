"""Markdown for terminals, rendered like in the chat in the browser.

In contrast to rich's own rendering, HTML is text, line breaks are preserved, and formulas keep their delimiters.
"""

import re
from collections.abc import Iterable

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.markdown import Markdown

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])

# `\(` is an escape in Markdown, but also a delimiter of formulas. A private character replaces the backslash during parsing.
_MATH = re.compile(r"\\(?=[()\[\]])")
_BACKSLASH = "\ue05c"


class TerminalMarkdown(Markdown):
    """A Markdown text for rich's consoles.

    Args:
        text: The text, without control characters.
    """

    def __init__(self, text: str) -> None:
        super().__init__("")
        self.parsed = _PARSER.parse(_MATH.sub(_BACKSLASH, text))
        _restore(self.parsed)


def _restore(tokens: Iterable[Token]) -> None:
    for token in tokens:
        token.content = token.content.replace(_BACKSLASH, "\\")
        if token.type == "softbreak":
            token.type = "hardbreak"
        _restore(token.children or ())
