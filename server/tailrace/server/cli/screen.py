"""Where ``tailrace ask`` shows an answer: as it is, or with its Markdown drawn."""

import json
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text as Styled

from tailrace.server.cli.transcript import ANSWER, Item, Remark, Text, for_terminal, in_words


class Screen:
    """Where an answer is shown: its text on one stream, unchanged, and everything about it on another.

    Args:
        out: Takes the text of the answer. On a terminal, control characters are written out.
        notes: Takes everything else.
    """

    def __init__(self, out: TextIO, notes: Console) -> None:
        self._out = out
        self._notes = notes
        self._terminal = out.isatty()
        self._shared = self._terminal and notes.is_terminal  # the two streams meet on one screen
        self._answer_from = ""  # whose text was written to `out` last
        self._answer_open = False  # `out` stands in the middle of a line
        self._notes_open = False  # and so do the notes (or the screen that is shared)
        self._aside_from = ""  # whose text is being written to the notes

    def show(self, item: Item) -> None:
        """Print what is new."""
        if isinstance(item, Text):
            if item.channel == ANSWER:
                self.answer(item.text, item.source, again=item.again)
            else:
                self._aside(item)
        elif isinstance(item, Remark):
            self.note(f"{item.kind}: {item.text}", "cyan")
        else:
            self.note(f"{in_words(item.state)}{f': {item.message}' if item.message else ''}", "dim")

    def answer(self, text: str, source: str, *, again: bool = False) -> None:
        """Print more of the answer."""
        if again:
            self.note("the agent has replaced its answer; this is the new one:", "yellow")
        if self._answer_open and (again or source != self._answer_from):
            self._out.write("\n")
            self._notes_open = self._notes_open and not self._shared
        if self._aside_from:
            self._end_line()
        self._out.write(for_terminal(text) if self._terminal else text)
        self._out.flush()
        self._answer_from = source
        self._answer_open = not text.endswith("\n")
        if self._shared:
            self._notes_open = self._answer_open

    def json_line(self, value: object) -> None:
        """Print a JSON value in one line; its escapes are harmless for terminals and line readers."""
        self._out.write(json.dumps(value, ensure_ascii=True) + "\n")
        self._out.flush()

    def note(self, text: str, style: str) -> None:
        """Print something about the answer, on a line of its own."""
        self._end_line()
        self._notes.print(Styled(for_terminal(text), style), soft_wrap=True)

    def close(self) -> None:
        """End the line that the answer stands in."""
        if self._answer_open and (self._notes_open or not self._shared):
            self._out.write("\n")
            self._out.flush()
            self._notes_open = self._notes_open and not self._shared
        self._answer_open = False

    def _aside(self, item: Text) -> None:
        """Text that is not the answer, with a label before it: reasoning, a refusal."""
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
    """Draws the Markdown of an answer while it grows.

    A block that is complete is drawn for good; the last one is drawn anew with every piece that comes, so that what a
    piece costs does not grow with the answer.

    Args:
        out: As for `Screen`.
        notes: As for `Screen`.
    """

    def __init__(self, out: TextIO, notes: Console) -> None:
        super().__init__(out, notes)
        self._drawing = Console(file=out, highlight=False)
        self._block = ""  # the text that is not drawn for good
        self._live: Live | None = None
        self._source = ""

    def answer(self, text: str, source: str, *, again: bool = False) -> None:
        """Draw more of the answer."""
        if again or source != self._source:
            self._finish()
            self._source = source
        if again:
            self.note("the agent has replaced its answer; this is the new one:", "yellow")
        self._end_line()
        self._block += for_terminal(text)
        done, self._block = _parted(self._block)
        if done:
            self._draw_for_good(done)
        if self._drawing.is_terminal:
            if self._live is None:
                self._live = Live(console=self._drawing, auto_refresh=False, vertical_overflow="visible")
                self._live.start()
            self._live.update(Markdown(self._block), refresh=True)

    def note(self, text: str, style: str) -> None:
        """Print something about the answer, below what is drawn of it."""
        self._finish()
        super().note(text, style)

    def close(self) -> None:
        """Draw what is left for good."""
        self._finish()
        super().close()

    def _aside(self, item: Text) -> None:
        self._finish()
        super()._aside(item)

    def _finish(self) -> None:
        if self._block.strip():
            self._draw_for_good(self._block, last=True)
        self._block = ""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw_for_good(self, text: str, *, last: bool = False) -> None:
        if self._live is not None:
            self._live.update(Markdown(text), refresh=True)
            self._live.stop()  # what it showed stays
            self._live = None
        else:
            self._drawing.print(Markdown(text))
        if not last:
            self._drawing.print()


def _parted(text: str) -> tuple[str, str]:
    """The blocks of a Markdown text that nothing changes any more, and the rest: from the last empty line outside a fence.

    Lists and quotes go on behind an empty line: what begins with a space or a sign of theirs stays with what is before it.
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
