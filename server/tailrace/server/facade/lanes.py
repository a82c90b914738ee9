"""Texts that can be replaced, for a reader that can only be given more: what to send, and when nothing right can be sent.

A2A's artifacts grow side by side, and may be replaced. A stream of OpenAI's is one text, of which nothing can be taken
back.
"""

from tailrace.server.facade.errors import OpenAIError


class DivergedError(OpenAIError):
    """What was sent already is no beginning of what the answer has become."""

    def __init__(self) -> None:
        super().__init__(
            500,
            "the answer was begun anew and differs from what was sent: ask again, or follow the task through A2A",
            code="answer_replaced",
        )


class GrowingText:
    """A text that grows, or is replaced; `take` gives what has yet to be sent of it."""

    __slots__ = ("_at", "_fresh", "_owed", "_sent")

    def __init__(self) -> None:
        self._fresh: list[str] = []
        self._sent: list[str] = []
        self._owed = ""  # what was sent before the text was replaced, and has to come again
        self._at = 0  # how much of it has

    def add(self, text: str) -> None:
        """More at its end."""
        self._fresh.append(text)

    def replace(self, text: str) -> None:
        """Another text in its place."""
        self._owed, self._at = "".join(self._sent), 0
        self._fresh = [text]

    def take(self) -> str:
        """What can be sent now.

        Raises:
            DivergedError: The text does not begin with what was sent.
        """
        fresh = self._fresh
        if not fresh:
            return ""
        text = fresh[0] if len(fresh) == 1 else "".join(fresh)
        fresh.clear()
        if self._at < len(self._owed):
            repeated = self._owed[self._at : self._at + len(text)]
            if not text.startswith(repeated):
                raise DivergedError
            self._at += len(repeated)
            text = text[len(repeated) :]
        if text:
            self._sent.append(text)
        return text

    @property
    def sent(self) -> str:
        """What was sent."""
        return "".join(self._sent)

    def check_repeated(self) -> None:
        """The text is complete.

        Raises:
            DivergedError: It is shorter than what was sent.
        """
        if self._at < len(self._owed):
            raise DivergedError


class _Entry:
    """One artifact of a lane."""

    __slots__ = ("begun", "done", "is_round", "place", "text")

    def __init__(self, place: int, *, is_round: bool) -> None:
        self.text = GrowingText()
        self.place = place  # in the order
        self.is_round = is_round
        self.begun = False
        self.done = False


class Lane:
    """Artifacts of one kind as one text: one after the other, in the order in which they began.

    The first that is not complete is sent as it grows; those that grow beside it wait.

    Args:
        live: False: nothing is sent before `close`, and so everything can still be replaced.
        between_rounds: What parts the texts of two rounds of an agent's turn.
        between: What parts other artifacts.
    """

    def __init__(self, *, live: bool, between_rounds: str = "\n", between: str = "\n\n") -> None:
        self._live = live
        self._between_rounds = between_rounds
        self._between = between
        self._entries: dict[str, _Entry] = {}
        self._order: list[_Entry] = []
        self._current = 0  # in the order
        self.empty = True
        """Whether nothing was sent yet."""

    def take(self, artifact_id: str, text: str, *, append: bool, last: bool, is_round: bool = True) -> str:
        """Take what happened to an artifact; give what is to be sent.

        Args:
            artifact_id: Which.
            text: What it holds now, or what was added.
            append: It was added.
            last: Nothing follows for this artifact.
            is_round: It is the text of a round of an agent's turn.

        Raises:
            DivergedError: What was sent cannot be gone on with.
        """
        entry = self._entries.get(artifact_id)
        if entry is None:
            entry = self._entries[artifact_id] = _Entry(len(self._order), is_round=is_round)
            self._order.append(entry)
            entry.text.add(text)
        elif append:
            entry.text.add(text)
        else:
            entry.text.replace(text)
        entry.done = last
        if not self._live:
            return ""
        if entry.place < self._current:
            # It was complete, and is not: gone back to as long as nothing that came behind it was sent.
            if any(other.begun for other in self._order[entry.place + 1 :]):
                if entry.text.take():
                    raise DivergedError
                return ""
            self._current = entry.place
        return self._flush()

    def block(self, artifact_id: str, text: str) -> str:
        """Take something that stands by itself (a picture), where the text has come to."""
        entry = self._order[-1] if self._order else None
        if entry is not None and not entry.done:
            entry.text.add(f"{self._between}{text}{self._between}")
            return self._flush() if self._live else ""
        return self.take(artifact_id, text, append=False, last=True, is_round=False)

    def close(self) -> str:
        """Everything is complete: what is left to be sent.

        Raises:
            DivergedError: What was sent cannot be gone on with.
        """
        for entry in self._order:
            entry.done = True
        text = self._flush()
        for entry in self._order:
            entry.text.check_repeated()
        return text

    def _flush(self) -> str:
        texts: list[str] = []
        while self._current < len(self._order):
            entry = self._order[self._current]
            text = entry.text.take()
            if text:
                if not entry.begun and not self.empty:
                    texts.append(self._between_rounds if entry.is_round else self._between)
                entry.begun = True
                self.empty = False
                texts.append(text)
            if not entry.done:
                break
            entry.text.check_repeated()
            self._current += 1
        return texts[0] if len(texts) == 1 else "".join(texts)
