"""The text of an answer that is to be JSON: that of the agent's last round, and nothing of what it said before.

Clients parse such an answer as it is. What a model says beside calls ("Let me look.") would spoil it: that is shown as
reasoning. Which round is the last is known at the end alone, and of a stream nothing can be taken back; so a text waits
until it is known, or until it begins like the JSON that was asked for.
"""

from tailrace.server.facade.lanes import DivergedError, Lane
from tailrace.server.facade.pieces import Piece, ReasoningPiece, TextPiece


class _Held:
    """A text that waits."""

    __slots__ = ("last", "pieces", "shape")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.shape = ""  # its first character that is not white space
        self.last = False

    def take(self, text: str, *, append: bool, last: bool) -> None:
        if not append:
            self.pieces.clear()
            self.shape = ""
        self.pieces.append(text)
        self.shape = self.shape or text.lstrip()[:1]
        self.last = last

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class LastRound:
    """Parts the texts of rounds into what is the answer, and what was said on the way to it.

    Args:
        text: Takes the answer.
        reasoning: Takes the rest.
        live: False: nothing is the answer before `settle`.
    """

    def __init__(self, text: Lane, reasoning: Lane, *, live: bool) -> None:
        self._text = text
        self._reasoning = reasoning
        self._live = live
        self._place = (1, 1)  # the turn and the round that are under way
        self._held: dict[str, _Held] = {}
        self._aside: set[str] = set()
        self._shown: dict[str, tuple[int, int]] = {}

    def come_to(self, turn: int, number: int) -> list[Piece]:
        """Something of a round is there: what was said before it is not the answer."""
        place = (turn, number)
        if place <= self._place:
            return []
        self._place = place
        return self._put_aside()

    def take(self, artifact_id: str, text: str, *, append: bool, last: bool) -> list[Piece]:
        """Take what happened to the text of a round.

        Raises:
            DivergedError: The text of an earlier round was taken for the answer, and was sent.
        """
        if artifact_id in self._aside:
            return _thought(self._reasoning.take(artifact_id, text, append=append, last=last))
        if artifact_id in self._shown:
            return _said(self._text.take(artifact_id, text, append=append, last=last))
        held = self._held.setdefault(artifact_id, _Held())
        held.take(text, append=append, last=last)
        if not (self._live and held.shape):
            return []
        if any(place < self._place for place in self._shown.values()):
            raise DivergedError
        return self._show(artifact_id) if held.shape == "{" else []

    def settle(self, *, is_answer: bool) -> list[Piece]:
        """Nothing follows.

        Args:
            is_answer: What was said last answers; False where the turn ends with calls instead.
        """
        if not is_answer:
            return self._put_aside()
        return [piece for artifact_id in list(self._held) for piece in self._show(artifact_id)]

    def _show(self, artifact_id: str) -> list[Piece]:
        held = self._held.pop(artifact_id)
        self._shown[artifact_id] = self._place
        return _said(self._text.take(artifact_id, held.text, append=False, last=held.last))

    def _put_aside(self) -> list[Piece]:
        pieces: list[Piece] = []
        for artifact_id, held in self._held.items():
            self._aside.add(artifact_id)
            pieces += _thought(self._reasoning.take(artifact_id, held.text, append=False, last=True))
        self._held.clear()
        return pieces


def _said(text: str) -> list[Piece]:
    return [TextPiece(text)] if text else []


def _thought(text: str) -> list[Piece]:
    return [ReasoningPiece(text)] if text else []
