import pytest

from benchmarks.micro.instructions import compare
from benchmarks.micro.workloads import WORKS


@pytest.mark.parametrize("name", WORKS)
def test_a_work_can_be_done_again(name: str) -> None:
    assert WORKS[name]()
    assert WORKS[name]()


def test_an_increase_is_reported() -> None:
    before = {"same": 1.0, "less": 1.0, "little": 1.0, "more": 1.0, "gone": 1.0}
    now = {"same": 1.0, "less": 0.5, "little": 1.02, "more": 1.05, "new": 1.0}
    found = compare(now, before)
    assert found == [
        "gone: is only in one of the two results",
        "new: is only in one of the two results",
        "more: +5.0%",
    ]
