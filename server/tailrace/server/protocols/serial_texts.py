"""Joins artifacts, which grow in parallel and can be replaced, into one append-only text for each channel.

In each channel, the first incomplete artifact is sent as it grows. When that artifact is complete, the next one follows. Files
and data become Markdown.
"""

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.parallel_texts import DivergedError, GrowingText
from tailrace.server.protocols.task_events import ArtifactUpdateView, text_of

_BETWEEN = "\n\n"  # precedes an artifact that does not belong to a round, for example a file


class _Entry:
    __slots__ = ("is_complete", "is_round", "is_started", "position", "text")

    def __init__(self, position: int, *, is_round: bool) -> None:
        self.text = GrowingText()
        self.position = position
        self.is_round = is_round
        self.is_started = False
        self.is_complete = False


class SerialChannel:
    """Joins the artifacts of one channel in the order in which they started.

    Args:
        live: True to send text as it grows. If False, only `close` returns text, and text can be replaced until then.
        between_rounds: The separator between the texts of two rounds.
    """

    def __init__(self, name: ui_events.Channel, *, live: bool, between_rounds: str = "\n") -> None:
        self._name: ui_events.Channel = name
        self._live = live
        self._between_rounds = between_rounds
        self._entries: dict[str, _Entry] = {}
        self._order: list[_Entry] = []
        self._current = 0  # position of the artifact that is sent as it grows
        self.is_empty = True
        """True if no text has been sent."""

    def events(self, text: str) -> list[ui_events.UiEvent]:
        """Return events for text of this channel."""
        return [ui_events.TextAdded(self._name, self._name, text)] if text else []

    def feed(self, artifact_id: str, text: str, *, append: bool, last: bool, is_round: bool = True) -> str:
        """Extend or replace an artifact, and return the text to send.

        Args:
            artifact_id: The id of the artifact.
            text: The new text of the artifact, or the text to append.
            append: Whether the text is appended.
            last: Whether the artifact is complete.
            is_round: Whether the artifact belongs to a round.

        Raises:
            DivergedError: The text already sent cannot be continued.
        """
        entry = self._entries.get(artifact_id)
        if entry is None:
            entry = self._entries[artifact_id] = _Entry(len(self._order), is_round=is_round)
            self._order.append(entry)
        entry.text.feed(text, append=append)
        entry.is_complete = last
        if not self._live:
            return ""
        if entry.position < self._current:
            # A complete artifact has changed. Its new text can be sent only if no text of later artifacts was sent.
            if any(other.is_started for other in self._order[entry.position + 1 :]):
                if entry.text.pop_new():
                    raise DivergedError
                return ""
            self._current = entry.position
        return self._flush()

    def add_block(self, artifact_id: str, text: str) -> str:
        """Append a separate block, and return the text to send."""
        entry = self._order[-1] if self._order else None
        if entry is not None and not entry.is_complete:
            entry.text.feed(f"{_BETWEEN}{text}{_BETWEEN}")
            return self._flush() if self._live else ""
        return self.feed(artifact_id, text, append=False, last=True, is_round=False)

    def close(self) -> str:
        """Complete all artifacts, and return the remaining text.

        Raises:
            DivergedError: The text already sent cannot be continued.
        """
        for entry in self._order:
            entry.is_complete = True
        text = self._flush()
        for entry in self._order:
            entry.text.check_complete()
        return text

    def _flush(self) -> str:
        texts: list[str] = []
        while self._current < len(self._order):
            entry = self._order[self._current]
            text = entry.text.pop_new()
            if text:
                if not entry.is_started and not self.is_empty:
                    texts.append(self._between_rounds if entry.is_round else _BETWEEN)
                entry.is_started = True
                self.is_empty = False
                texts.append(text)
            if not entry.is_complete:
                break
            entry.text.check_complete()
            self._current += 1
        return texts[0] if len(texts) == 1 else "".join(texts)


class _BufferedText:
    __slots__ = ("first", "is_complete", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.first = ""
        self.is_complete = False

    def feed(self, update: ArtifactUpdateView, text: str) -> None:
        if not update.append:
            self.texts.clear()
            self.first = ""
        self.texts.append(text)
        self.first = self.first or text.lstrip()[:1]
        self.is_complete = update.last_chunk


class SerialTexts:
    """Reports one append-only text for each of the channels text, reasoning and refusal.

    Args:
        live: True to report text as it grows, False to report all text at the end.
        last_round: True if only the text of the last round is the response. Used if clients parse the response as JSON. The text
            of earlier rounds is then reported as reasoning. A text that begins with ``{`` is sent immediately. Other text is held
            back until the next round starts or the turn ends. If the turn ends with pending calls, held text is reported as
            reasoning.
    """

    omits_finished_calls = True

    def __init__(self, *, live: bool = True, last_round: bool = False) -> None:
        self.is_live = live
        self._last_round = last_round
        self._text = SerialChannel("text", live=live)
        self._reasoning = SerialChannel("reasoning", live=live, between_rounds="\n\n")
        self._refusal = SerialChannel("refusal", live=live)
        self._by_name = {"": self._text, "text": self._text}
        self._by_name |= {"reasoning": self._reasoning, "refusal": self._refusal}
        self._round = 0
        self._buffered_texts: dict[str, _BufferedText] = {}
        self._assigned: dict[str, SerialChannel] = {}  # by artifact id
        self._response_round = 0  # the first round whose text was sent as the response; 0 if there is none

    @property
    def is_empty(self) -> bool:
        """True if the channel ``text`` has no text."""
        return self._text.is_empty

    def feed(
        self, update: ArtifactUpdateView, channel: str, *, is_copy: bool = False
    ) -> list[ui_events.UiEvent]:
        """Report an update of an artifact. See `ParallelTexts.feed`."""
        text = text_of(update.artifact.parts, append=update.append)
        artifact_id = update.artifact.artifact_id
        known = self._by_name.get(channel)
        if known is None:
            return self._text.events(self._text.add_block(artifact_id, text)) if channel != "output" else []
        if self._last_round and channel == "text":
            known = self._assigned.get(artifact_id)
            if known is None:
                return self._hold(update, text)
        text = known.feed(
            artifact_id, text, append=update.append, last=update.last_chunk, is_round=bool(channel)
        )
        return known.events(text)

    def _hold(self, update: ArtifactUpdateView, text: str) -> list[ui_events.UiEvent]:
        artifact_id = update.artifact.artifact_id
        buffered = self._buffered_texts.get(artifact_id)
        if buffered is None:
            buffered = self._buffered_texts[artifact_id] = _BufferedText()
        buffered.feed(update, text)
        if not (self.is_live and buffered.first):
            return []
        if 0 < self._response_round < self._round:
            raise DivergedError
        return self._release(artifact_id, self._text) if buffered.first == "{" else []

    def _release(self, artifact_id: str, channel: SerialChannel) -> list[ui_events.UiEvent]:
        buffered = self._buffered_texts.pop(artifact_id)
        self._assigned[artifact_id] = channel
        is_response = channel is self._text
        if is_response:
            self._response_round = self._response_round or self._round
        last = buffered.is_complete or not is_response
        return channel.events(channel.feed(artifact_id, "".join(buffered.texts), append=False, last=last))

    def _release_all(self, channel: SerialChannel) -> list[ui_events.UiEvent]:
        return [
            event
            for artifact_id in list(self._buffered_texts)
            for event in self._release(artifact_id, channel)
        ]

    def start_round(self) -> list[ui_events.UiEvent]:
        """Report held text as reasoning, because its round was not the last."""
        self._round += 1
        return self._release_all(self._reasoning)

    def add_status(self, text: str) -> list[ui_events.UiEvent]:
        """Report the text of the last status."""
        text = self._text.feed("status", text, append=False, last=True, is_round=False)
        return self._text.events(text or self._text.close())

    def start_call(self) -> list[ui_events.UiEvent]:
        """Return no events, because a call does not interrupt a text."""
        return []

    def abort(self) -> list[ui_events.UiEvent]:
        """Return no events for a failed turn. The client keeps the text already sent, and held text is not sent."""
        return []

    def close(self, *, pending_calls: bool = False) -> list[ui_events.UiEvent]:
        """Report the remaining text of all channels. See `ParallelTexts.close`."""
        events = self._release_all(self._reasoning if pending_calls else self._text)
        for channel in (self._reasoning, self._text, self._refusal):
            events += channel.events(channel.close())
        return events
