"""The page of all rows is current, and each name on it exists."""

from pathlib import Path
from pydoc import locate

import pytest

from support.origin_rows import DOCUMENTS, origins_page, rows_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", DOCUMENTS)
def test_every_document_has_rows(module: str) -> None:
    rows = [row for row, _ in rows_of(module)]
    assert len(rows) > 10
    assert len({row.sentence for row in rows}) == len(rows)


def test_every_module_of_rows_is_a_documents() -> None:
    modules = {path.stem for path in Path(__file__).parent.glob("test_*.py")} - {"test_page"}
    assert modules == set(DOCUMENTS)


@pytest.mark.parametrize("module", DOCUMENTS)
def test_every_name_exists(module: str) -> None:
    for row, _ in rows_of(module):
        is_there = locate(row.name) if row.name.startswith("tailrace.") else (ROOT / row.name).exists()
        assert is_there, row


def test_the_page_equals_the_results_of_the_tests() -> None:
    page = (ROOT / "docs/origins.md").read_text(encoding="utf-8")
    assert page == origins_page(), "run python tests/test_docs.py to rewrite the page"
