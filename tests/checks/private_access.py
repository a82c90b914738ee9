"""``python -m checks.private_access``: access to the private parts of libraries. Part of ``make check``.

A minor release of a library may change its private parts. The rules, over the syntax trees of the project:

- ``import``: a library's module or name that begins with an underscore.
- ``attribute``: reading, writing or deleting ``x._name`` (also by ``getattr``, ``setattr`` or ``delattr``) unless ``x`` is known to be
  an object of a class of the project that defines the name, or the type of ``x`` is unknown and this module defines the name.
- ``inherited``: a subclass uses or overrides a private attribute of a library's class.
- ``class``: an assignment to ``__class__``.
- ``replaced``: an assignment to an attribute of a library's module or class, to one of its object's that only the library itself
  assigns, or to one of an object two attributes away.
- ``reflection``: ``__self__`` and similar attributes, by which code reaches an object that it did not receive, and ``__module__``,
  by which it recognises one. (Two ``__module__``s may be compared.)
- ``scope``: a key of an ASGI scope that neither the specification nor Starlette's documentation names.

A line is exempt with the comment ``# private: docs/decisions/NNNN``, where that decision exists; there may be two in all. The
baseline in pyproject.toml holds the number of findings for each file that has any; more are an error.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from checks.sources import OWN, Class, Function, Module, Project, Scope, is_private, is_settable

ROOT = Path(__file__).parents[2]
FOLDERS = ("wrappers", "streaming", "server")
MAX_EXEMPT = 2

_Node = ast.expr | ast.stmt

_EXEMPTION = re.compile(r"#.*\bprivate: docs/decisions/(\d{4})\b")
_BY_NAME = {
    "getattr": 1,
    "setattr": 1,
    "delattr": 1,
    "hasattr": 1,
    "object.__setattr__": 1,
    "operator.attrgetter": 0,
}
"""Functions with the name of an attribute as an argument, and the position of that argument."""
_REFLECTION = frozenset(
    {"__self__", "__func__", "__module__", "__closure__", "__globals__", "__code__", "__slots__"}
)
_DOCUMENTED = frozenset({"_asdict", "_exit", "_field_defaults", "_fields", "_make", "_replace"})
"""Names that the standard library documents: methods of named tuples, and `os._exit`."""
_SCOPE_KEYS = frozenset(
    "type asgi http_version method scheme path raw_path query_string root_path headers client server extensions state "  # ASGI
    "app router endpoint path_params user auth session".split()  # Starlette
)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One access.

    Attributes:
        file: The file, relative to the project's root.
        line: The line in the file.
        rule: The name of the rule.
        what: The expression.
        exempt: The number of the decision that allows it, or empty.
    """

    file: str
    line: int
    rule: str
    what: str
    exempt: str = ""

    def __str__(self) -> str:
        allowed = f" (allowed by decision {self.exempt})" if self.exempt else ""
        return f"{self.file}:{self.line}: {self.rule}: {self.what}{allowed}"


class _Visitor(ast.NodeVisitor):
    """Applies the rules to one module."""

    def __init__(self, project: Project, module: Module) -> None:
        self.found: list[tuple[_Node, str, str]] = []
        self._project = project
        self._module = module
        self._scope: Scope = Scope(project, module, None, {})
        self._scope.read(module.tree.body)
        self._compared: set[_Node] = set()
        own = [each for each in project.classes.values() if each.name.startswith(f"{module.name}.")]
        self._defined_here = module.defined.union(*(each.defined for each in own))

    def _report(self, node: _Node, rule: str, what: str) -> None:
        self.found.append((node, rule, what))

    # --- position

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._scope
        prefix = outer.owner.name if outer.owner else self._module.name
        owner = self._project.classes.get(f"{prefix}.{node.name}") or self._nested(node)
        self._scope = Scope(self._project, self._module, owner, dict(outer.variables))
        for statement in node.body:
            for name in _defined_by(statement):
                base = self._project.foreign_owner(owner.name, name) if owner and is_private(name) else None
                if base is not None:
                    self._report(statement, "inherited", f"{node.name} overrides {base}.{name}")
        self.generic_visit(node)
        self._scope = outer

    def _nested(self, node: ast.ClassDef) -> "Class | None":
        names = [
            name
            for name in self._project.classes
            if name.startswith(self._module.name) and name.endswith(f".{node.name}")
        ]
        return self._project.classes[names[0]] if len(names) == 1 else None

    def _visit_function(self, node: Function) -> None:
        outer = self._scope
        self._scope = outer.inside(node)
        self.generic_visit(node)
        self._scope = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    # --- rules

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._imported(node, f"{node.module}.{alias.name}")

    def _imported(self, node: _Node, name: str) -> None:
        if name.partition(".")[0] != OWN and any(is_private(part) for part in name.split(".")):
            self._report(node, "import", name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._attribute(node, node.value, node.attr)
        if node.attr in _REFLECTION:
            self._reflection(node, node.value)
        self.generic_visit(node)

    def _reflection(self, node: _Node, value: ast.expr) -> None:
        kind = self._scope.type_of(value)
        if node not in self._compared and (kind is None or kind.is_foreign):
            self._report(node, "reflection", ast.unparse(node))

    def visit_Compare(self, node: ast.Compare) -> None:
        modules = [
            each for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr == "__module__"
        ]
        if len(modules) > 1:
            self._compared |= set(modules)
        self.generic_visit(node)

    def _attribute(self, node: _Node, value: ast.expr, name: str) -> None:
        if not is_private(name) or name in _DOCUMENTED:
            return
        kind = self._scope.type_of(value)
        text = f"{ast.unparse(value)}.{name}"
        if kind is None:
            if name not in self._defined_here:
                self._report(node, "attribute", text)
        elif kind.is_foreign:
            self._report(node, "attribute", f"{text} of {kind.name}")
        elif base := self._project.foreign_owner(kind.name, name):
            self._report(node, "inherited", f"{text} of {base}")
        elif kind.name in self._project.classes:
            family = self._project.family(kind.name)
            if not any(name in each.defined for each in family):
                self._report(node, "attribute", f"{text}, which {kind.name} does not define")

    def visit_Call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func)
        position = _BY_NAME.get(function)
        if position is not None and len(node.args) > position:
            name = node.args[position]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                owner = node.args[0] if position else None
                if owner is None and is_private(name.value):
                    self._report(node, "attribute", ast.unparse(node))
                elif owner is not None:
                    self._attribute(node, owner, name.value)
                if name.value in _REFLECTION:
                    self._reflection(node, node.args[0])
        if isinstance(node.func, ast.Attribute) and node.args and _is_scope(node.func.value):
            self._scope_key(node, node.args[0])
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if _is_scope(node.value):
            self._scope_key(node, node.slice)
        self.generic_visit(node)

    def _scope_key(self, node: _Node, key: ast.expr) -> None:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            if key.value not in _SCOPE_KEYS and not key.value.startswith(f"{OWN}."):
                self._report(node, "scope", ast.unparse(node))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assigned(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assigned(node.target, None)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._assigned(target, None)
        self.generic_visit(node)

    def _assigned(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._assigned(each, None)
            return
        if not isinstance(target, ast.Attribute):
            return
        if target.attr == "__class__":
            self._report(target, "class", f"{ast.unparse(target)} = …")
            return
        kind = self._scope.type_of(target.value)
        if kind is None or not kind.is_third_party or is_private(target.attr):
            return
        replaced = not is_settable(kind.name, target.attr) if kind.known and kind.instance else kind.hops > 1
        if replaced or not kind.instance:
            self._report(target, "replaced", f"{ast.unparse(target)} = … of {kind.name}")


def _is_scope(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "scope") or (
        isinstance(node, ast.Attribute) and node.attr == "scope"
    )


def _defined_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def findings(modules: Iterable[Module]) -> list[Finding]:
    """All findings in modules of the project, exempt ones included."""
    project = Project(modules)
    found: list[Finding] = []
    for module in project.modules:
        visitor = _Visitor(project, module)
        visitor.visit(module.tree)
        for node, rule, what in visitor.found:
            first, last = node.lineno, node.end_lineno if isinstance(node, ast.expr) else node.lineno
            exempt = next(
                (m[1] for line in module.lines[first - 1 : last] if (m := _EXEMPTION.search(line))), ""
            )
            found.append(Finding(module.path.as_posix(), first, rule, what, exempt))
    return sorted(set(found))


def own_modules(root: Path = ROOT) -> list[Module]:
    """The modules in the project's folders."""
    found: list[Module] = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module.parse(name, file.relative_to(root), file.read_text(encoding="utf-8")))
    return found


def problems(
    found: Iterable[Finding], baseline: Mapping[str, int], decisions: Container[str]
) -> Iterator[str]:
    """Return the errors: too many findings in a file, too many exempt ones, or an exemption without its decision.

    Args:
        found: All findings.
        baseline: The number of findings that a file may have, by file.
        decisions: The numbers of the existing decisions.
    """
    exempt = [each for each in found if each.exempt]
    counts = Counter(each.file for each in found if not each.exempt)
    for file, count in sorted(counts.items()):
        if count > baseline.get(file, 0):
            yield f"{file}: {count} uses of private parts of libraries, where the baseline is {baseline.get(file, 0)}"
    if len(exempt) > MAX_EXEMPT:
        yield f"{len(exempt)} exempt lines, where {MAX_EXEMPT} are allowed"
    for each in exempt:
        if each.exempt not in decisions:
            yield f"{each.file}:{each.line}: there is no decision {each.exempt} in docs/decisions"


def main() -> None:
    """Print the findings; return 1 if there are more than the baseline allows."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        baseline: dict[str, int] = tomllib.load(file)["tool"]["tailrace"]["private-access"]
    found = findings(own_modules())
    for each in found:
        print(each)
    counts = Counter(each.file for each in found if not each.exempt)
    for file, allowed in baseline.items():
        if counts[file] < allowed:
            print(f"pyproject.toml: lower the baseline of {file} from {allowed} to {counts[file]}")
    decisions = {path.name[:4] for path in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    errors = list(problems(found, baseline, decisions))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if errors:
        sys.exit(1)


if __name__ == "__main__":
    main()
