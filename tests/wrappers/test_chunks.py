"""The interface of every provider's chunk."""

import pytest

from support.deltas import Delta, call, count, end, say, think
from tailrace.wrappers import ChunkDetails, ChunkWrapper, FinishMessage, FinishReason, ToolCallDelta, Usage


def test_an_empty_delta_gives_empty_values_and_no_exception() -> None:
    delta = Delta(None)
    assert delta.get_text() == ""
    assert delta.get_reasoning() == ""
    assert delta.get_tool_calls() == []
    assert delta.get_finish_message() is None
    assert delta.get_usage() is None
    assert (delta.choice, delta.details, delta.plain) == (0, None, False)


def test_a_delta_answers_the_five_questions() -> None:
    usage = Usage(1, 2, 3)
    assert say("a").get_text() == "a"
    assert think("b").get_reasoning() == "b"
    assert call("{", index=1, id="i", name="f").get_tool_calls() == [ToolCallDelta(1, "i", "f", "{")]
    assert end().get_finish_message() == FinishMessage(FinishReason.STOP, "stop")
    assert [delta.get_usage() for delta in count(usage)] == [usage]


def test_raw_is_the_object_of_the_provider() -> None:
    class Numbered(ChunkWrapper[int], gc=False):
        def get_text(self) -> str:
            return str(self.raw)

        def get_reasoning(self) -> str:
            return ""

        def get_tool_calls(self) -> list[ToolCallDelta]:
            return []

        def get_finish_message(self) -> FinishMessage | None:
            return None

        def get_usage(self) -> Usage | None:
            return None

    assert Numbered(7).raw == 7
    assert Numbered(7, choice=2).get_text() == "7"


def test_the_interface_itself_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ChunkWrapper(None)  # pyright: ignore[reportAbstractUsage]


def test_a_wrapper_that_leaves_a_question_open_cannot_be_made() -> None:
    class Silent(ChunkWrapper[None], gc=False):
        def get_text(self) -> str:
            return ""

    with pytest.raises(TypeError, match="get_usage"):
        Silent(None)  # pyright: ignore[reportAbstractUsage]


def test_finish_reasons_read_as_their_words() -> None:
    assert [str(reason) for reason in FinishReason] == [
        "stop",
        "length",
        "tool_calls",
        "content_filter",
        "recitation",
        "unspecified",
    ]


def test_values_compare_by_what_they_hold() -> None:
    assert Usage(1, 2, 3, {"cost": 1}) == Usage(1, 2, 3, {"cost": 1})
    assert Usage(1, 2, 3) != Usage(1, 2, 4)
    assert ToolCallDelta() == ToolCallDelta(index=None, id="", name="", arguments="", type="", extra=None)
    assert ChunkDetails() == ChunkDetails(role="", refusal="", metadata=None, extra=None, error=None)


@pytest.mark.parametrize("details", [ChunkDetails(restates=True), ChunkDetails(is_second_field=True)])
def test_the_deprecated_name_of_an_argument_is_accepted(details: ChunkDetails) -> None:
    assert (details.is_second_field, details.restates) == (True, True)
    assert details == ChunkDetails(is_second_field=True)
