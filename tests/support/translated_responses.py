"""Responses that are translated to updates."""

from typing import Any

from hypothesis import strategies as st

from support.deltas import Delta, call, end, refuse, say, think
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import FinishReason, UpstreamError

CITY = '{"city": "Paris"}'


def translate(*reads: list[Delta], error: UpstreamError | None = None, **options: Any) -> list[Update]:
    """The updates of a response in these reads."""
    translator = ResponseTranslator(**options)
    updates = [update for chunks in reads for update in translator.feed(chunks)]
    return updates + translator.close(error)


def one_by_one(*deltas: Delta, **options: Any) -> list[Update]:
    return translate(*([delta] for delta in deltas), **options)


def outline(updates: list[Update]) -> list[tuple[Any, ...]]:
    """Updates as short tuples: kind, artifact, text, and whether it is the last of its artifact."""
    lines: list[tuple[Any, ...]] = []
    for update in updates:
        if isinstance(update, TextDelta):
            lines.append(("+", update.artifact_id, update.text, update.last))
        elif isinstance(update, ArtifactUpdate):
            assert not update.append
            (part,) = update.artifact.parts
            content = part.data if part.text is None else part.text
            lines.append(("=", update.artifact.artifact_id, content, update.last))
        else:
            lines.append((update.state.removeprefix("TASK_STATE_"),))
    return lines


def final(updates: list[Update]) -> StatusUpdate:
    *others, last = updates
    assert isinstance(last, StatusUpdate)
    assert not any(isinstance(update, StatusUpdate) for update in others)
    return last


def facts_of(updates: list[Update]) -> dict[str, Any]:
    return dict(extension_metadata(final(updates).metadata or {}))


reads = st.lists(
    st.lists(
        st.builds(say, st.text(max_size=3), st.integers(0, 1))
        | st.builds(think, st.text(max_size=3), st.integers(0, 1))
        | st.builds(refuse, st.text(max_size=3))
        | st.builds(
            call, st.sampled_from(["{", "}", ""]), index=st.none() | st.integers(0, 1), name=st.just("f")
        )
        | st.builds(end, st.sampled_from(FinishReason), st.integers(0, 1)),
        max_size=4,
    ),
    max_size=5,
)
