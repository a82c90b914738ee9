"""The count of the product's lines."""

import pytest

from checks.product_lines import count


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ('"""A module."""\n\n# a comment\n', 0),
        ("x = 1  # a comment\n\n\ny = 2\n", 2),
        ('def f():\n    """Document."""\n    return """two\nlines"""\n', 3),
        ('class A:\n    a = 1\n    """An attribute."""\n', 2),
        ("call(\n    1,\n\n    # a comment\n    2,\n)\n", 4),
    ],
)
def test_lines_with_code_count(source: str, lines: int) -> None:
    assert count(source) == lines
