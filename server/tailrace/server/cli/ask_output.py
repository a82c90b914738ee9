"""The output of ``tailrace ask``: the response, unchanged or as rendered Markdown."""

import json
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text as Styled

from tailrace.server.cli.terminal_markdown import TerminalMarkdown
from tailrace.server.cli.transcript import RESPONSE_CHANNEL, Item, Remark, Text, for_terminal, in_words


class Screen:
    """Prints the text of a response on one stream, and everything else on another stream.

    Args:
        out: The output for the text, which is unchanged, except that control characters are escaped on a terminal.
        notes: The output for everything else.
    """

    def __init__(self, out: TextIO, notes: Console) -> None:
        self._out = out
        self._notes = notes
        self._terminal = out.isatty()
        self._shared = self._terminal and notes.is_terminal  # both streams are written to one terminal
        self._response_source = ""  # the source of the last text in `out`
        self._is_response_open = False  # `out` is in the middle of a line
        self._notes_open = False  # `notes` (or the shared screen) is in the middle of a line
        self._aside_from = ""  # the source of the current text in `notes`

    def show(self, item: Item) -> None:
        """Print a new item."""
        if isinstance(item, Text):
            if item.channel == RESPONSE_CHANNEL:
                self.print_response(item.text, item.source, again=item.again)
            else:
                self._print_aside(item)
        elif isinstance(item, Remark):
            self.note(f"{item.kind}: {item.text}", "cyan")
        else:
            self.note(f"{in_words(item.state)}{f': {item.message}' if item.message else ''}", "dim")

    def print_response(self, text: str, source: str, *, again: bool = False) -> None:
        """Print a delta of the response."""
        if again:
            self.note("the agent has replaced its response; the new response is:", "yellow")
        if self._is_response_open and (again or source != self._response_source):
            self._out.write("\n")
            self._notes_open = self._notes_open and not self._shared
        if self._aside_from:
            self._end_line()
        self._out.write(for_terminal(text) if self._terminal else text)
        self._out.flush()
        self._response_source = source
        self._is_response_open = not text.endswith("\n")
        if self._shared:
            self._notes_open = self._is_response_open

    def json_line(self, value: object) -> None:
        """Print a JSON value as one line of ASCII."""
        self._out.write(json.dumps(value, ensure_ascii=True) + "\n")
        self._out.flush()

    def note(self, text: str, style: str) -> None:
        """Print a note about the response on a separate line."""
        self._end_line()
        self._notes.print(Styled(for_terminal(text), style), soft_wrap=True)

    def close(self) -> None:
        """End the current line of the response."""
        if self._is_response_open and (self._notes_open or not self._shared):
            self._out.write("\n")
            self._out.flush()
            self._notes_open = self._notes_open and not self._shared
        self._is_response_open = False

    def _print_aside(self, item: Text) -> None:
        """Print text of another channel, with a label."""
        if self._aside_from != item.source or item.again:
            self._end_line()
            self._notes.print(Styled(f"{item.channel}: ", "dim bold"), end="")
            self._aside_from = item.source
        self._notes.print(Styled(for_terminal(item.text), "dim"), end="", soft_wrap=True)
        self._notes_open = True

    def _end_line(self) -> None:
        if self._notes_open:
            self._notes.print()
        self._notes_open = False
        self._aside_from = ""


class MarkdownScreen(Screen):
    """Renders the Markdown of a response while the response grows.

    Each delta renders only the last block again.
    """

    def __init__(self, out: TextIO, notes: Console) -> None:
        super().__init__(out, notes)
        self._drawing = Console(file=out, highlight=False)
        self._block = ""  # the text that may be rendered again
        self._live: Live | None = None
        self._source = ""

    def print_response(self, text: str, source: str, *, again: bool = False) -> None:
        """Render a delta of the response."""
        if again or source != self._source:
            self._finish()
            self._source = source
        if again:
            self.note("the agent has replaced its response; the new response is:", "yellow")
        self._end_line()
        self._block += for_terminal(text)
        done, self._block = _split_blocks(self._block)
        if done:
            self._print_final(done)
        if self._drawing.is_terminal:
            if self._live is None:
                self._live = Live(console=self._drawing, auto_refresh=False, vertical_overflow="visible")
                self._live.start()
            # In an empty last line, an echo of input (^C) does not move the text.
            self._live.update(Group(TerminalMarkdown(self._block), ""), refresh=True)

    def note(self, text: str, style: str) -> None:
        """Print a note about the response, below the rendered text."""
        self._finish()
        super().note(text, style)

    def close(self) -> None:
        """Render the last block."""
        self._finish()
        super().close()

    def _print_aside(self, item: Text) -> None:
        self._finish()
        super()._print_aside(item)

    def _finish(self) -> None:
        if self._block.strip():
            self._print_final(self._block, last=True)
        self._block = ""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_final(self, text: str, *, last: bool = False) -> None:
        if self._live is not None:
            self._live.update(TerminalMarkdown(text), refresh=True)
            self._live.stop()  # its last output remains
            self._live = None
        else:
            self._drawing.print(TerminalMarkdown(text))
        if not last:
            self._drawing.print()


def _split_blocks(text: str) -> tuple[str, str]:
    """Split Markdown into final blocks and the rest, at the last blank line outside a code fence.

    Lists and quotes can continue after a blank line, so the text is not split before a line that may be part of them.
    """
    cut, at, fence = 0, 0, ""
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1]):
        at += len(line) + 1
        stripped = line.lstrip()
        mark = stripped[:3]
        if fence:
            if mark == fence:
                fence = ""
        elif mark in ("```", "~~~"):
            fence = mark
        elif not stripped:
            following = lines[number + 1]
            if following and following[0] not in " \t-*+>|0123456789":
                cut = at
    return text[:cut], text[cut:]
