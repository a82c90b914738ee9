"""Converts artifacts to append-only texts. Agents may replace artifacts, but clients can only append to a text.

`ParallelTexts` reports each artifact as a separate text. For protocols without parallel texts,
`tailrace.server.protocols.serial_texts` joins the artifacts.
"""

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.task_events import ArtifactUpdateView, ArtifactView, PartView, text_of


class DivergedError(OpenAIError):
    """The agent replaced a text or a tool call that was already sent in part, and the new one begins differently."""

    def __init__(self) -> None:
        super().__init__(
            500,
            "the response was restarted and differs from the text already sent: "
            "send the request again, or subscribe to the task through A2A",
            code="answer_replaced",
        )


class GrowingText:
    """A text that can be extended or replaced. A new text must begin with the text already sent. Only the rest is sent."""

    __slots__ = ("_pending", "_repeated", "_replaced", "_sent")

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._sent: list[str] = []
        self._replaced = ""  # the text sent before a replacement
        self._repeated = 0  # number of its characters that the new text has repeated

    def feed(self, text: str, *, append: bool = True) -> None:
        """Extend or replace the text."""
        if not append:
            self._replaced, self._repeated = "".join(self._sent), 0
            self._pending.clear()
        self._pending.append(text)

    def pop_new(self) -> str:
        """Return the text to send now.

        Raises:
            DivergedError: The text does not begin with the text already sent.
        """
        pending = self._pending
        if not pending:
            return ""
        text = pending[0] if len(pending) == 1 else "".join(pending)
        pending.clear()
        if self._repeated < len(self._replaced):
            repeated = self._replaced[self._repeated : self._repeated + len(text)]
            if not text.startswith(repeated):
                raise DivergedError
            self._repeated += len(repeated)
            text = text[len(repeated) :]
        if text:
            self._sent.append(text)
        return text

    @property
    def pending(self) -> str:
        """The text that has not been sent."""
        return "".join(self._pending)

    @property
    def sent(self) -> str:
        """The text that has been sent."""
        return "".join(self._sent)

    def check_complete(self) -> None:
        """Check a complete text.

        Raises:
            DivergedError: The text is shorter than the text already sent.
        """
        if self._repeated < len(self._replaced):
            raise DivergedError


class _Text:
    __slots__ = ("_artifact_id", "_sections", "channel", "id", "is_open", "text")

    def __init__(self, artifact_id: str, channel: ui_events.Channel) -> None:
        self._artifact_id = artifact_id
        self._sections = 0
        self.id = ""
        self.channel: ui_events.Channel = channel
        self.text = GrowingText()
        self.is_open = False

    @property
    def is_started(self) -> bool:
        return self._sections > 0

    def pop_events(self) -> list[ui_events.UiEvent]:
        text = self.text.pop_new()
        if not text:
            return []
        if self.is_open:
            return [ui_events.TextAdded(self.id, self.channel, text)]
        self.is_open = True
        self._sections += 1
        self.id = self._artifact_id if self._sections == 1 else f"{self._artifact_id}-{self._sections}"
        return [
            ui_events.TextStarted(self.id, self.channel),
            ui_events.TextAdded(self.id, self.channel, text),
        ]

    def pause(self) -> list[ui_events.UiEvent]:
        if not self.is_open:
            return []
        self.is_open = False
        return [ui_events.TextEnded(self.id, self.channel)]

    def end(self) -> list[ui_events.UiEvent]:
        self.text.check_complete()
        return self.pause()


class ParallelTexts:
    """Reports each artifact as a separate text. Refusals are reported in the channel ``text``.

    Attributes:
        is_live: Whether texts are reported as they grow, not at the end.
        omits_finished_calls: True if only calls that wait for the client are reported. If `is_live`, calls of tools that the
            client declared are reported as they grow. Other calls are reported at the end of the response.
    """

    is_live = True
    omits_finished_calls = False

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}
        self._reasoning: list[_Text] = []  # texts with an open section
        self._counts: dict[str, int] = {}  # reported files and data parts, by artifact id

    @property
    def is_empty(self) -> bool:
        """True if the channel ``text`` has no text."""
        return not any(text.is_started and text.channel == "text" for text in self._texts.values())

    def feed(
        self, update: ArtifactUpdateView, channel: str, *, is_copy: bool = False
    ) -> list[ui_events.UiEvent]:
        """Report an update of an artifact.

        Args:
            update: The update.
            channel: The channel of the artifact; empty for an agent without the extension.
            is_copy: Whether the update comes from a snapshot, and repeats the complete artifact.

        Raises:
            DivergedError: A text does not begin with the text already sent.
        """
        artifact = update.artifact
        parts = artifact.parts
        if len(parts) == 1 and parts[0].text is not None:  # the common case
            return self._feed_text(update, parts[0].text, channel)
        texts = [part for part in parts if part.text is not None]
        events = self._feed_text(update, text_of(texts, append=update.append), channel) if texts else []
        others = [part for part in parts if part.text is None]
        count = self._counts.get(artifact.artifact_id, 0) if is_copy or update.append else 0
        self._counts[artifact.artifact_id] = count + len(others) if update.append else len(others)
        return events + [_added(artifact, part, channel) for part in others[count if is_copy else 0 :]]

    def _feed_text(self, update: ArtifactUpdateView, text: str, channel: str) -> list[ui_events.UiEvent]:
        artifact_id = update.artifact.artifact_id
        known = self._texts.get(artifact_id)
        if known is None:
            kind: ui_events.Channel = "reasoning" if channel == "reasoning" else "text"
            known = self._texts[artifact_id] = _Text(artifact_id, kind)
        known.text.feed(text, append=update.append)
        events = known.pop_events()
        if events and known.channel == "text" and self._reasoning:
            events = [*self.start_call(), *events]
        elif events and known.channel == "reasoning" and known not in self._reasoning:
            self._reasoning.append(known)
        return events + known.end() if update.last_chunk else events

    def start_call(self) -> list[ui_events.UiEvent]:
        """End the open sections of reasoning. Later reasoning is reported as a new section."""
        events = [event for text in self._reasoning for event in text.pause()]
        self._reasoning.clear()
        return events

    def start_round(self) -> list[ui_events.UiEvent]:
        """End the texts of the previous round."""
        return self.close()

    def add_status(self, text: str) -> list[ui_events.UiEvent]:
        """Report the text of the last status."""
        return [
            ui_events.TextStarted("status", "text"),
            ui_events.TextAdded("status", "text", text),
            ui_events.TextEnded("status", "text"),
        ]

    def close(self, *, pending_calls: bool = False) -> list[ui_events.UiEvent]:
        """End all texts.

        Args:
            pending_calls: Whether the turn ends with calls of the client's tools.

        Raises:
            DivergedError: A text is shorter than the text already sent.
        """
        return [event for text in self._texts.values() for event in text.end()]

    def abort(self) -> list[ui_events.UiEvent]:
        """End all texts of a failed turn."""
        return [event for text in self._texts.values() for event in text.pause()]


def _added(artifact: ArtifactView, part: PartView, channel: str) -> ui_events.UiEvent:
    if not part.is_file:
        return ui_events.DataAdded(artifact.artifact_id, artifact.name, part.data, channel == "output")
    media_type = part.media_type or "application/octet-stream"
    url = part.url if part.url is not None else f"data:{media_type};base64,{part.raw}"
    return ui_events.FileAdded(artifact.artifact_id, url, media_type, part.filename)
