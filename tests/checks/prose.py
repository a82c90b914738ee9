"""``python -m checks.prose``: the wording of docstrings, comments, documents and identifiers. Part of ``make check``.

Counts words that professional technical English seldom needs, by group of files (``--list`` shows where they are):

- ``person``: `whoever`, `somebody`, `nobody` and similar words; name the subscriber, caller or operator instead;
- ``speech``: `tell`, `say`, `hear`; servers return, log and reject;
- ``clause``: `what is sent`, `that which comes`; use the noun (snapshot, response, …);
- ``question``: docstrings that begin with What, That, Whether, Where, Who or How; begin with a verb or a noun.

The first three are per 1,000 words, the last is in per cent of docstrings. Identifiers must not contain a word of the
left column of the glossary (`IDIOMS`). The bounds are in pyproject.toml, ``[tool.tailrace.prose]``.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

GROUPS = {
    "product": ("wrappers/**/*.py", "streaming/**/*.py", "server/**/*.py"),
    "tests": ("tests/**/*.py", "benchmarks/**/*.py", "examples/**/*.py"),
    "documents": ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md"),
}
_GENERATED = ("node_modules", ".venv", "/build/", "/fixtures/")

PATTERNS = {
    "person": r"(?:who|what|which)ever|(?:some|any|no|every)body(?:'s)?|(?:some|any|no|every) ?one(?:'s)?(?= (?:who|else|has|is))",
    "speech": r"tell|tells|telling|told|say|says|saying|said|hear|hears|hearing|heard",
    "clause": r"what (?:is|was|are|were|has|have|had|comes?|came|goes|went|stands?|does)|that which|those that|who it is",
}
_WORDS = {name: re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE) for name, pattern in PATTERNS.items()}
_QUESTION = re.compile(r"(?:What|That|Whether|Where|Who|How)\b")
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|\]\([^)]*\)|<!--.*?-->|^    .*$", re.DOTALL | re.MULTILINE)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")

IDIOMS = frozenset(
    """
    asked said told unsaid untold whoever somebody nobody everybody anybody happening happenings lanes farewell elsewhere
    mend mended opened offered taker takers flood floods tell tells telling hear hears heard
    """.split()
)
_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


@dataclass
class Prose:
    """The prose of a group of files.

    Attributes:
        words: The number of words.
        docstrings: The number of docstrings.
        places: ``FILE:LINE: text``, by kind.
    """

    words: int = 0
    docstrings: int = 0
    places: dict[str, list[str]] = field(
        default_factory=lambda: {name: [] for name in (*PATTERNS, "question", "identifier")}
    )

    def rates(self) -> dict[str, float]:
        """The bounded figures."""
        found = {name: 1000 * len(self.places[name]) / max(1, self.words) for name in PATTERNS}
        found["question"] = 100 * len(self.places["question"]) / max(1, self.docstrings)
        found["identifier"] = len(self.places["identifier"])
        return found

    def add_text(self, text: str, file: str, line: int) -> None:
        """Count the words of a text that begins at a line."""
        plain = _CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
        self.words += len(_WORD.findall(plain))
        for name, pattern in _WORDS.items():
            for match in pattern.finditer(plain):
                at = line + plain.count("\n", 0, match.start())
                self.places[name].append(f"{file}:{at}: {match[0]}")

    def add_source(self, source: str, file: str) -> None:
        """Count docstrings, comments and identifiers of a Python module."""
        tree = ast.parse(source)
        for node in ast.walk(tree):
            for name in _names(node):
                if any(part.lower() in IDIOMS for part in _PARTS.findall(name)):
                    self.places["identifier"].append(f"{file}:{getattr(node, 'lineno', 1)}: {name}")
            for text, line in _docstrings(node):
                self.docstrings += 1
                self.add_text(text, file, line)
                if _QUESTION.match(text.strip()):
                    self.places["question"].append(f"{file}:{line}: {text.strip().splitlines()[0]}")
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                self.add_text(token.string.lstrip("# "), file, token.start[0])


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a node defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _docstrings(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Strings that are statements: docstrings of modules, classes, functions and attributes."""
    for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text, statement.lineno
            case _:
                pass


def read(group: str, root: Path = ROOT) -> Prose:
    """Count the prose of a group of `GROUPS`."""
    prose = Prose()
    for pattern in GROUPS[group]:
        for path in sorted(root.glob(pattern)):
            file = path.relative_to(root).as_posix()
            if any(part in f"/{file}" for part in _GENERATED) or file.startswith("build/"):
                continue
            text = path.read_text()
            if path.suffix == ".py":
                prose.add_source(text, file)
            else:
                prose.add_text(text, file, 1)
    return prose


def main() -> int:
    """Compare each group with its bounds; 1 if one is exceeded."""
    bounds = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tailrace"]["prose"]
    failed = False
    for group in GROUPS:
        prose = read(group)
        for name, rate in prose.rates().items():
            bound = bounds[group].get(name)
            if bound is None:
                continue
            exceeded = rate > bound
            failed = failed or exceeded
            print(f"{group:10} {name:10} {rate:7.2f}  bound {bound:g}{'  EXCEEDED' if exceeded else ''}")
            if "--list" in sys.argv or exceeded:
                print(*prose.places[name][: None if "--list" in sys.argv else 10], sep="\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
