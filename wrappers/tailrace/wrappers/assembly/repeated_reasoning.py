"""Removal of reasoning that a server sends twice."""


class RepeatedReasoning:
    """Removes reasoning that some servers repeat in a second field (see `ChunkDetails.is_second_field`).

    Args:
        plain: True if the usual field has had reasoning. The second field is then ignored.
    """

    __slots__ = ("_at", "_fragments", "_plain", "_text")

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain
        self._fragments: list[str] = []  # reasoning that has arrived only in the second field
        self._text: str | None = None  # the joined fragments, while the usual field may repeat them
        self._at = 0  # number of characters that the usual field has repeated

    def add_second_field(self, text: str) -> str:
        """Add reasoning of the second field. Return its new part."""
        if self._plain:
            return ""
        self._fragments.append(text)
        return text

    def add_usual_field(self, text: str) -> str:
        """Add reasoning of the usual field. Return its new part."""
        if not self._plain:
            self._plain = True
            self._text = "".join(self._fragments)
            self._fragments.clear()
        if self._text is None:
            return text
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return ""
        remaining = len(self._text) - self._at
        repeats = text.startswith(self._text[self._at :]) if remaining <= len(text) else False
        self._text = None
        return text[remaining:] if repeats else text
