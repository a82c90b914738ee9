"""Updates of a response that is received again, after another process has published a part of it."""

import random
from collections.abc import Sequence
from itertools import pairwise

from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.published_artifacts import (
    PublishedArtifact,
    PublishedArtifacts,
    emptying_updates,
)
from tailrace.streaming.task.updates import ArtifactUpdate, TextDelta, Update

TEXT = "Water flows down the river, to the 🌊.\n\n- Rhine\n- Aare"


def artifact(text: str, name: str = "text") -> Artifact:
    metadata = {EXTENSION_URI: {"channel": name}}
    return Artifact(artifact_id=name, name="Answer", parts=(Part(text=text),), metadata=metadata)


def streamed(text: str, chance: random.Random, name: str = "text") -> list[Update]:
    """The updates of a text that arrives in random fragments."""
    cuts = sorted({0, len(text), *(chance.randrange(len(text)) for _ in range(chance.randrange(9)))})
    first, *others = [text[start:end] for start, end in pairwise(cuts)]
    return [
        ArtifactUpdate(artifact(first, name), last=False),
        *(TextDelta(name, each) for each in others),
        TextDelta(name, "", last=True),
    ]


def folded(text: str, updates: Sequence[Update], name: str = "text") -> tuple[str, int]:
    """The text that a subscriber has after updates, and the number of updates that replaced it."""
    replaced = 0
    for update in updates:
        if isinstance(update, TextDelta) and update.artifact_id == name:
            text += update.text
        elif isinstance(update, ArtifactUpdate) and update.artifact.artifact_id == name:
            text, replaced = update.artifact.parts[0].text or "", replaced + 1
    return text, replaced


def test_a_published_text_continues_with_the_first_missing_character() -> None:
    chance = random.Random(1)
    for length in range(len(TEXT) + 1):
        published = PublishedArtifacts([PublishedArtifact(artifact(TEXT[:length]), is_open=True)])
        again: list[Update] = []
        for update in streamed(TEXT, chance):
            again += published.unpublished([update])
        assert folded(TEXT[:length], again) == (TEXT, 0), length
        assert sum(len(each.text) for each in again if isinstance(each, TextDelta)) == len(TEXT) - length
        assert [isinstance(each, TextDelta) and each.last for each in again] == [False] * (len(again) - 1) + [
            True
        ]


def test_a_text_that_differs_replaces_the_published_one() -> None:
    chance = random.Random(2)
    other = TEXT.replace("river", "canal") + " and more"
    for length in range(len(TEXT) + 1):
        published = PublishedArtifacts([PublishedArtifact(artifact(TEXT[:length]), is_open=True)])
        again = published.unpublished(streamed(other, chance))
        text, replaced = folded(TEXT[:length], again)
        assert text == other
        assert replaced == (length > TEXT.index("river"))


def test_a_text_that_ends_before_the_published_one_replaces_it() -> None:
    published = PublishedArtifacts([PublishedArtifact(artifact(TEXT), is_open=True)])
    again = published.unpublished(streamed(TEXT[:20], random.Random(3)))
    assert folded(TEXT, again) == (TEXT[:20], 1)


def test_complete_artifacts_are_not_sent_again_and_new_ones_are() -> None:
    """A complete tool call replaces its streamed arguments."""
    call = ArtifactUpdate(artifact("", "tool-call-1").model_copy(update={"parts": (Part(data={"a": 1}),)}))
    published = PublishedArtifacts(
        [
            PublishedArtifact(artifact("I thought", "reasoning"), is_open=False),
            PublishedArtifact(artifact('{"a"', "tool-call-1"), is_open=True),
        ]
    )
    chance = random.Random(4)
    arguments = streamed('{"a": 1}', chance, "tool-call-1")[:-1]
    text = streamed(TEXT, chance)
    again = published.unpublished(
        [*streamed("I thought", chance, "reasoning"), *arguments, *text, call],
    )
    assert folded("I thought", again, "reasoning") == ("I thought", 0)
    assert folded('{"a"', again[:-1], "tool-call-1") == ('{"a": 1}', 0)
    assert [each for each in again if each in text] == text
    assert again[-1] is call


def test_another_response_empties_what_it_does_not_replace() -> None:
    published = [
        PublishedArtifact(artifact("I think", "reasoning"), is_open=True),
        PublishedArtifact(artifact("Water", "text"), is_open=True),
        PublishedArtifact(artifact("river.png", "file-1"), is_open=False),
    ]
    (update,) = emptying_updates(published, streamed("Rivers", random.Random(5)))
    assert isinstance(update, ArtifactUpdate)
    assert (update.artifact.artifact_id, update.last) == ("reasoning", False)
    assert update.artifact.parts == (Part(text=""),)
