"""``pytest benchmarks/micro``: time of each part, with pytest-benchmark (dependency group ``bench``)."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.micro.workloads import CHUNKS, WORKS, standard


@pytest.mark.parametrize("name", WORKS)
def test_part(name: str, benchmark: Callable[..., Any]) -> None:
    benchmark.extra_info["chunks"] = CHUNKS  # pyright: ignore[reportFunctionMemberAccess]
    assert benchmark(WORKS[name])


def test_standard_library(benchmark: Callable[..., Any]) -> None:
    """Parse the same chunks with the standard library, for comparison."""
    assert len(benchmark(standard)) == CHUNKS
