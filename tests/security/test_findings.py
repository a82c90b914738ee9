"""The table of findings in docs/security.md refers to existing tests."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"

_ROW = re.compile(r"^\| (\d+) \|.*$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def _tests_in(path: Path) -> set[str]:
    functions = ast.walk(ast.parse(path.read_text()))
    return {
        each.name
        for each in functions
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
    }


def test_every_finding_has_a_row_with_tests() -> None:
    rows = {match[1]: match[0] for match in _ROW.finditer(PAGE.read_text())}
    assert list(rows) == [str(number) for number in range(1, len(rows) + 1)]
    assert [number for number, row in rows.items() if not _TEST.search(row)] == []


def test_every_test_that_the_page_names_exists() -> None:
    named = _TEST.findall(PAGE.read_text())
    assert named
    missing = [
        f"{path}::{name}" if name else path
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in _tests_in(ROOT / path))
    ]
    assert missing == []


def test_every_security_test_module_is_named_on_the_page() -> None:
    named = {path for path, _ in _TEST.findall(PAGE.read_text())}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert modules - {"tests/security/test_findings.py"} <= named
