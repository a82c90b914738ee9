"""The lines of code of the product: without blank lines, comments and docstrings.

``python tests/checks/product_lines.py`` prints them by layer.
"""

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = ("wrappers", "streaming", "server")

_NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


def count(source: str) -> int:
    """Return the number of lines of a module that have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _documentation(source))


def _documentation(source: str) -> set[int]:
    """Return the lines of texts that are statements: docstrings, and those of attributes."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def main() -> None:
    """Print the number of lines of each layer, and of all."""
    counts = {
        layer: sum(count(path.read_text(encoding="utf-8")) for path in (ROOT / layer).rglob("*.py"))
        for layer in LAYERS
    }
    for name, lines in (*counts.items(), ("together", sum(counts.values()))):
        print(f"{name:10}{lines:7,}")


if __name__ == "__main__":
    main()
