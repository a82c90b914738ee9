"""Artifacts of a response of which another process published only a part before it stopped.

If the provider stores the response, it sends the response again from the beginning. `PublishedArtifacts` then removes the content
that subscribers have already received. If a new response is requested instead, `emptying_updates` empties the published artifacts
that the new response does not replace.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, TextDelta, Update


class PublishedArtifact(msgspec.Struct, frozen=True):
    """A published artifact of a response.

    Attributes:
        is_open: True if more content of the artifact is expected.
        is_new: True if the interrupted turn created or extended the artifact.
    """

    artifact: Artifact
    is_open: bool
    is_new: bool = True


class PublishedArtifacts:
    """Removes published content from the updates of a response that is received again. Sans-IO.

    If the new content of an open artifact differs from its published content, it replaces the published content.

    Args:
        artifacts: The published artifacts of the response.
    """

    def __init__(self, artifacts: Iterable[PublishedArtifact]) -> None:
        self._complete: set[str] = set()
        self._texts: dict[str, _PublishedText] = {}
        for each in artifacts:
            artifact = each.artifact
            if not each.is_open:
                self._complete.add(artifact.artifact_id)
            elif (text := _text_of(artifact)) is not None:
                self._texts[artifact.artifact_id] = _PublishedText(artifact, text)

    def unpublished(self, updates: Iterable[Update]) -> Sequence[Update]:
        """Return the updates without the content that has already been published."""
        rest: list[Update] = []
        for update in updates:
            if isinstance(update, TextDelta):
                artifact_id, text = update.artifact_id, update.text
            elif isinstance(update, ArtifactUpdate):
                artifact_id, text = update.artifact.artifact_id, _text_of(update.artifact)
            else:
                rest.append(update)
                continue
            if artifact_id in self._complete:
                continue
            published = self._texts.get(artifact_id)
            if published is None:
                rest.append(update)
            elif text is None:
                del self._texts[artifact_id]
                rest.append(update)
            else:
                remaining = published.feed(text, last=update.last)
                if published.is_complete:
                    del self._texts[artifact_id]
                rest += remaining
        return rest


class _PublishedText:
    """The published text of one artifact, and how many of its characters have been received again."""

    __slots__ = ("_artifact", "_length", "_text", "is_complete")

    def __init__(self, artifact: Artifact, text: str) -> None:
        self._artifact = artifact
        self._text = text
        self._length = 0
        self.is_complete = False  # True after the complete text has been received again or replaced

    def feed(self, text: str, *, last: bool) -> Sequence[Update]:
        length = min(len(text), len(self._text) - self._length)
        is_same = self._text.startswith(text[:length], self._length)
        if not is_same or (last and self._length + len(text) < len(self._text)):
            self.is_complete = True
            part = Part(text=self._text[: self._length] + text)
            return (ArtifactUpdate(self._artifact.model_copy(update={"parts": (part,)}), last=last),)
        self._length += length
        self.is_complete = last or self._length == len(self._text)
        if text[length:] or last:
            return (TextDelta(self._artifact.artifact_id, text[length:], last),)
        return ()


def emptying_updates(artifacts: Iterable[PublishedArtifact], updates: Iterable[Update]) -> Sequence[Update]:
    """Return updates that empty the open artifacts of ``artifacts``, except those that ``updates`` of a new response replace."""
    replaced = {update.artifact.artifact_id for update in updates if isinstance(update, ArtifactUpdate)}
    return [
        ArtifactUpdate(each.artifact.model_copy(update={"parts": (Part(text=""),)}), last=False)
        for each in artifacts
        if each.is_open and each.artifact.artifact_id not in replaced
    ]


def _text_of(artifact: Artifact) -> str | None:
    return artifact.parts[0].text if len(artifact.parts) == 1 else None
