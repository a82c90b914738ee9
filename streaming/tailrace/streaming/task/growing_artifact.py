"""An artifact of a task, to which events append content."""

from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.wrappers.messages import join_surrogates


class GrowingArtifact:
    """A growing artifact: its parts, and the text that was appended to the last part.

    Args:
        artifact: The initial artifact.
        prefix: The JSON before the text in an event that appends text.
        open: True if more content is expected.

    Attributes:
        prefix: See above.
        open: True while more content is expected.
        changed: True if the artifact was created, replaced or extended after the attribute was reset.
        added: The text that was appended to the last part, as UTF-8 (which saves memory).
        ends_in_text: True if the last part is text.
    """

    __slots__ = ("_head", "added", "changed", "ends_in_text", "open", "prefix")

    def __init__(self, artifact: Artifact, prefix: bytes = b"", *, open: bool) -> None:
        self.prefix = prefix
        self.open = open
        self.changed = False
        self.added = bytearray()
        self._set_head(artifact)

    def add_text(self, text: str) -> None:
        """Append text to the last part."""
        # As in the events, halves of a surrogate pair in two deltas are not joined.
        self.added += (text if text.isascii() else join_surrogates(text)).encode()
        self.changed = self.changed or bool(text)

    def add_parts(self, parts: tuple[Part, ...]) -> None:
        """Append one or more parts."""
        head = self.complete()
        self.changed = True
        self._set_head(head.model_copy(update={"parts": (*head.parts, *parts)}))

    def _set_head(self, head: Artifact) -> None:
        self._head = head
        self.ends_in_text = head.parts[-1].text is not None

    def complete(self) -> Artifact:
        """Return the artifact, with the appended text in its last part."""
        if not self.added:
            return self._head
        last = self._head.parts[-1]
        joined = last.model_copy(update={"text": (last.text or "") + self.added.decode()})
        self.added = bytearray()
        self._head = self._head.model_copy(update={"parts": (*self._head.parts[:-1], joined)})
        return self._head
