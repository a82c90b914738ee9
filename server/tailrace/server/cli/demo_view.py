"""The output of the demo: events with their numbers, the text as it arrives, and figures at the end."""

import re
from collections.abc import Sequence
from typing import Any, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text as Styled

from tailrace.server.cli.transcript import (
    RESPONSE_CHANNEL,
    Item,
    Pace,
    Remark,
    Status,
    Text,
    Transcript,
    for_terminal,
    in_words,
)
from tailrace.server.remote.client import StreamEvent
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import extension_metadata

_LABEL = 15
_NUMBER = 9
_STYLES = {TaskState.COMPLETED: "bold green", TaskState.FAILED: "bold red", TaskState.REJECTED: "bold red"}


class DemoView:
    """Prints the output of a demo."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pace = Pace()
        self._open: _ArtifactPrinter | None = None
        # Names of artifacts by id. Only the first event of an artifact has the name.
        self._names: dict[str, str] = {}

    def title(self, text: str) -> None:
        """Print the first line."""
        self._print(Styled(text, "bold"))
        self._print()

    def row(self, label: str, value: str, style: str = "") -> None:
        """Print a labelled value."""
        self._print(Styled(f"  {label:<{_LABEL}}", "dim"), Styled(for_terminal(value), style))

    def begin_events(self) -> None:
        """Print an empty line, and start the clock."""
        self._print()
        self._pace = Pace()

    def event(self, event: StreamEvent, items: Sequence[Item]) -> None:
        """Print an event and its new items."""
        update = event.response.artifact_update
        continuation = _continuation(event)
        if self._open is not None and (update is None or update.artifact.artifact_id != self._open.source):
            self._end_text("so far" if continuation else "complete")
        if continuation:
            self._event_row(event.id, "continued", continuation)
        for item in items:
            if isinstance(item, Text):
                self._text(event, item)
            elif isinstance(item, Remark):
                self._event_row(event.id, item.kind, item.text)
            else:
                self._status(event, item)
        if self._open is not None:
            self._open.last = event.id
            self._open.count += 1
            if update is not None and update.last_chunk:
                self._end_text()

    def summary(self, transcript: Transcript) -> None:
        """Print an excerpt of the response, its usage, and the finish reason."""
        self._end_text()
        self._print()
        response_text = transcript.response_text
        self.row(
            "final message", f"from the agent, {len(response_text):,} characters: {_excerpt(response_text)}"
        )
        self.row("usage", self._pace.describe(transcript))
        reason = transcript.metadata.get("finishReason")
        if reason:
            self.row("finish reason", str(reason))

    def fetched_again(self, seen: Transcript, fetched: Transcript) -> bool:
        """Compare the id, the status and the text of the streamed task with the result of GetTask. Return whether all are equal."""
        state = in_words(fetched.status.state) if fetched.status else "unknown"
        self.row("GetTask", f"{fetched.task_id}  {state}, {len(fetched.response_text):,} characters")
        same = {
            "id": seen.task_id == fetched.task_id,
            "state": seen.status == fetched.status,
            "text": seen.response_text == fetched.response_text,
        }
        words = ", ".join(f"same {name}: {'yes' if equal else 'no'}" for name, equal in same.items())
        good = all(same.values())
        self.row("", words, "green" if good else "bold red")
        return good

    def serving(self, url: str, commands: Sequence[str]) -> None:
        """Print the URL of the server, and commands to try."""
        self._print()
        self._print(Styled("serving at "), Styled(url, "bold"), Styled("  (Ctrl-C stops)"))
        self._print(Styled("the playground, a chat in the browser: "), Styled(f"{url}/", "bold"))
        self._print(Styled("in another terminal, try:", "dim"))
        for command in commands:
            self._print()
            self._print(Styled(f"  {command}"))

    # --- one event --------------------------------------------------------------------------------------------------

    def _text(self, event: StreamEvent, item: Text) -> None:
        if self._open is not None and (item.again or self._open.source != item.source):
            self._end_text()
        if self._open is None:
            update = event.response.artifact_update
            if update is not None and update.artifact.name:
                self._names[item.source] = update.artifact.name
            name = self._names.get(item.source, item.source)
            channel = "" if item.channel == RESPONSE_CHANNEL else f" ({item.channel})"
            self._event_row(event.id, "artifact", f'"{name}"{channel}')
            self._open = _ArtifactPrinter(self._console, item.source, event.id)
        self._pace.record_text()
        self._open.write(for_terminal(item.text))

    def _end_text(self, extent: str = "complete") -> None:
        growing, self._open = self._open, None
        if growing is None:
            return
        self._print()
        if growing.count > 1:
            numbers = f"{growing.first}-{growing.last}" if growing.first else ""
            summary = f"{extent}: {growing.count} events, {growing.length:,} characters"
            self._event_row(numbers, "artifact", summary)

    def _status(self, event: StreamEvent, item: Status) -> None:
        task = event.response.task
        text = Styled(f"{task.id}  " if task is not None else "")
        text.append(in_words(item.state), _STYLES.get(item.state, ""))
        if item.message:
            text.append(f": {for_terminal(item.message)}", "")
        self._event_row(event.id, "task" if task is not None else "status", text)

    def _event_row(self, number: str, kind: str, value: str | Styled) -> None:
        styled = value if isinstance(value, Styled) else Styled(for_terminal(value))
        self._print(Styled(f"  {number:>{_NUMBER}}  ", "cyan"), Styled(f"{kind:<10}", "dim"), styled)

    def _print(self, *parts: Styled) -> None:
        self._console.print(Styled.assemble(*parts), soft_wrap=True)


class _ArtifactPrinter:
    """Prints the text of one artifact as it arrives."""

    def __init__(self, console: Console, source: str, number: str) -> None:
        self.source = source
        self.first = self.last = number
        self.count = 0
        self.length = 0
        self._console = console
        self._indent = _NUMBER + 4
        self._width = min(console.width, 100) if console.is_terminal else None
        self._column = 0
        self._spaces = 0

    def write(self, text: str) -> None:
        """Print a delta of the text."""
        self.length += len(text)
        written: list[str] = []
        for word in re.findall(r"\n|[ \t]|[^ \t\n]+", text):
            if word == "\n":
                written.append("\n")
                self._column = self._spaces = 0
            elif word.isspace():
                self._spaces += 1
            else:
                self._write_word(word, written)
        self._console.print(Styled("".join(written)), end="", soft_wrap=True)

    def _write_word(self, word: str, written: list[str]) -> None:
        width = cell_len(word)
        # Words arrive in parts, so a line is broken only at a space.
        full = self._width is not None and self._column + self._spaces + width > self._width
        if full and self._spaces and self._column > self._indent:
            written.append("\n")
            self._column = self._spaces = 0
        if not self._column:
            written.append(" " * self._indent)
            self._column = self._indent
        written.append(" " * self._spaces + word)
        self._column += self._spaces + width
        self._spaces = 0


def _continuation(event: StreamEvent) -> str:
    """Describe the continuation that an event announces; empty for any other event."""
    update = event.response.status_update
    metadata = extension_metadata(update.metadata).get("continuation") if update is not None else None
    if not isinstance(metadata, dict):
        return ""
    fields = cast("dict[str, Any]", metadata)
    error = fields["after"].get("error", {}).get("type", "unknown error")
    return f"attempt {fields['attempt']} by {fields['route']}, after the error {error}"


def _excerpt(text: str, length: int = 60) -> str:
    """Shorten a text to one line by omitting its middle."""
    line = " ".join(text.split())
    if len(line) <= length:
        return f'"{line}"'
    return f'"{line[: length // 2].rstrip()} … {line[-length // 2 :].lstrip()}"'
