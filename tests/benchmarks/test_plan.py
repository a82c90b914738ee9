import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gateway.plan import Plan, find_plan, piece, pieces
from benchmarks.gateway.reader_requests import A2A, OPENAI, start

_NUMBERS = st.integers(0, 99_999)


@given(plan=st.builds(Plan, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS), dialect=st.sampled_from((A2A, OPENAI)))
def test_a_request_contains_its_plan(plan: Plan, dialect: str) -> None:
    assert find_plan(start(dialect, plan)) == plan


def test_the_last_message_of_a_conversation_counts() -> None:
    assert find_plan((Plan(3).prompt + " " + Plan(4).prompt).encode()) == Plan(4)


def test_a_request_without_a_plan_has_none() -> None:
    assert find_plan(b'{"messages": []}') is None


def test_a_burst_has_the_requested_number_of_deltas() -> None:
    plan = Plan(30)
    body = b"".join(data for part in plan.stream.parts for data in part.reads)
    assert body.count(b'"content":') == 1 + 30  # the role has an empty one
    assert plan.matches(plan.stream.text)
    assert not plan.matches(plan.stream.text[1:])


def _text(*indices: int) -> str:
    return "".join(piece(index, 10 * index) for index in indices)


def test_deltas_contain_their_time_of_sending() -> None:
    assert [(each.index, each.sent) for each in pieces(_text(0, 1, 2))] == [(0, 0), (1, 10), (2, 20)]


@pytest.mark.parametrize(
    "text",
    [_text(0, 1), _text(0, 1, 2, 3), _text(0, 1, 1, 2), _text(0, 2, 1), _text(0, 1, 2) + "x", ""],
    ids=["lost", "more", "doubled", "turned", "garbled", "empty"],
)
def test_a_paced_answer_is_whole_or_not(text: str) -> None:
    plan = Plan(3, rate=50)
    assert plan.matches(_text(0, 1, 2))
    assert not plan.matches(text)
