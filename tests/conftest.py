"""What holds for every test."""

import gc
from collections.abc import Generator

import pytest
from hypothesis import is_hypothesis_test, settings

from support.chance import EVERY_TIME_OTHERS

# Shared machines pause for longer than any sensible deadline.
settings.register_profile(
    "tailrace",
    deadline=None,
    derandomize=not EVERY_TIME_OTHERS,
    max_examples=300 if EVERY_TIME_OTHERS else 60,
)
settings.load_profile("tailrace")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are loaded, and never again among them.

    They stay, and are hundreds of megabytes, which many a test would go through that looks whether it left anything open.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure no coverage in tests that make their cases up: theirs are the lines of the examples, many times over.

    They are half of the time of all tests of codecs, and the tracer doubles it. What only a made-up case reaches is
    for an example to show.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "function", None)):
            item.add_marker(pytest.mark.no_cover)
