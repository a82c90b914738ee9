"""The project's modules as syntax trees: imports, definitions, and types of expressions."""

import ast
import builtins
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

OWN = "tailrace"

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore. ``__x__`` and the ``_x_`` of enumerations are documented names."""
    return name.startswith("_") and name.strip("_") != "" and not name.endswith("_") and name[1] != "_"


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an expression.

    Attributes:
        name: The dotted name of a module, class or function; with further attributes and calls if only those are known.
        instance: Whether it is an instance of the class, not the class, module or function itself.
        hops: The number of attributes between an object of a known class and this one.
        known: Whether ``name`` is that of a class (of an instance), or of anything else that can be imported.
    """

    name: str
    instance: bool = False
    hops: int = 0
    known: bool = True

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.name.partition(".")[0]

    @property
    def is_foreign(self) -> bool:
        """Return whether it comes from a library or the standard library, built-in names excepted."""
        return self.package not in (OWN, "builtins")

    @property
    def is_third_party(self) -> bool:
        """Return whether it comes from a library."""
        return self.is_foreign and self.package not in sys.stdlib_module_names

    def then(self, step: str, hops: int) -> "Type | None":
        """The attribute of an object of a library; the contents of the standard library's containers are unknown."""
        if not self.is_third_party:
            return None
        return Type(self.name + step, instance=True, hops=self.hops + hops, known=False)


@dataclass(slots=True)
class Class:
    """A class of the project.

    Attributes:
        name: Its dotted name.
        bases: The dotted names of its bases, if they can be resolved.
        defined: Its attributes: those of the class body, and those that a method assigns to its first argument.
        types: The known types of the attributes.
    """

    name: str
    bases: list[str] = field(default_factory=list[str])
    defined: set[str] = field(default_factory=set[str])
    types: dict[str, Type] = field(default_factory=dict[str, Type])


@dataclass(slots=True, eq=False)
class Module:
    """A module of the project.

    Attributes:
        name: Its dotted name.
        path: Its file.
        tree: Its syntax.
        lines: Its text.
        names: The imported names and the module's own classes and functions, with their dotted names.
        defined: The names that the module assigns, and those of its classes and functions.
    """

    name: str
    path: Path
    tree: ast.Module
    lines: list[str]
    names: dict[str, str] = field(default_factory=dict[str, str])
    defined: set[str] = field(default_factory=set[str])

    @classmethod
    def parse(cls, name: str, path: Path, text: str) -> "Module":
        """Parse a module and collect its names."""
        module = cls(name, path, ast.parse(text), text.splitlines())
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    module.names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    module.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                module.names[node.name] = f"{name}.{node.name}"
        module.defined = set(module.names)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                module.defined.add(node.id)
        return module

    def dotted(self, node: ast.expr) -> str | None:
        """Return the dotted name of an expression made of names and attributes; None for any other."""
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            return f"builtins.{node.id}" if hasattr(builtins, node.id) else None
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else None
        return None


class Project:
    """All modules of the project and their classes."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = list(modules)
        self.classes: dict[str, Class] = {}
        self._results: dict[str, tuple[Module, ast.expr]] = {}
        self._families: dict[str, list[Class]] = {}
        self._ancestors: dict[str, list[str]] = {}
        for module in self.modules:
            for prefix, node in _definitions(module.tree, module.name):
                if isinstance(node, ast.ClassDef):
                    self.classes[prefix] = Class(
                        prefix, [name for base in node.bases if (name := _base(module, base))]
                    )
                elif node.returns is not None:
                    self._results[prefix] = (module, node.returns)
        for module in self.modules:
            for prefix, node in _definitions(module.tree, module.name):
                if isinstance(node, ast.ClassDef):
                    self._fill(module, node, self.classes[prefix])

    def _fill(self, module: Module, node: ast.ClassDef, found: Class) -> None:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.defined.add(statement.name)
                if not isinstance(statement, ast.ClassDef):
                    self._fill_from_method(module, statement, found)
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found.defined.add(statement.target.id)
                self._note(found, statement.target.id, self.annotated(module, statement.annotation))
            elif isinstance(statement, ast.Assign):
                found.defined |= {name.id for name in statement.targets if isinstance(name, ast.Name)}
                found.defined |= set(_slots(statement))

    def _fill_from_method(
        self, module: Module, method: ast.FunctionDef | ast.AsyncFunctionDef, found: Class
    ) -> None:
        arguments = [*method.args.posonlyargs, *method.args.args]
        if not arguments:
            return
        first = arguments[0].arg
        scope = Scope(self, module, found, {})
        scope.enter(method)
        for node in ast.walk(method):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
                continue
            if isinstance(node.value, ast.Name) and node.value.id == first:
                found.defined.add(node.attr)
        for node in ast.walk(method):
            if isinstance(node, ast.AnnAssign) and _is_attribute_of(node.target, first):
                self._note(found, node.target.attr, self.annotated(module, node.annotation))
            elif isinstance(node, ast.Assign) and _is_attribute_of(node.targets[0], first):
                self._note(found, node.targets[0].attr, scope.type_of(node.value))

    @staticmethod
    def _note(found: Class, name: str, kind: Type | None) -> None:
        if kind is not None:
            found.types.setdefault(name, kind)

    def annotated(self, module: Module, annotation: ast.expr | None) -> Type | None:
        """An instance of the class that an annotation names; of ``X | None`` it is X."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(annotation, ast.BinOp):
            sides = (annotation.left, annotation.right)
            kinds = [self.annotated(module, side) for side in sides if not _is_none(side)]
            return kinds[0] if len(set(kinds)) == 1 else None
        if isinstance(annotation, ast.Subscript):
            annotation = annotation.value
        name = module.dotted(annotation) if annotation is not None else None
        if name is None or name.startswith(("typing.", "collections.abc.")):
            return None
        if name in self.classes or not Type(name).is_foreign:
            return Type(name, instance=True)
        return Type(name, instance=True) if _is_class(name) else None

    def result(self, function: str) -> Type | None:
        """The type that a function of the project returns."""
        if function not in self._results:
            return None
        return self.annotated(*self._results[function])

    def family(self, name: str) -> list[Class]:
        """A class of the project with its ancestors and descendants in the project."""
        if name not in self._families:
            related = {name, *self.ancestors(name)}
            related |= {each for each in self.classes if name in self.ancestors(each)}
            self._families[name] = [self.classes[each] for each in related if each in self.classes]
        return self._families[name]

    def ancestors(self, name: str) -> list[str]:
        """The names of all bases of a class of the project, including classes of libraries."""
        if name not in self._ancestors:
            found: list[str] = []
            pending = list(self.classes[name].bases) if name in self.classes else []
            for base in pending:
                if base not in found:
                    found.append(base)
                    pending += self.classes[base].bases if base in self.classes else []
            self._ancestors[name] = found
        return self._ancestors[name]

    def foreign_owner(self, name: str, attribute: str) -> str | None:
        """The library class among the bases of a class that defines an attribute."""
        for base in self.ancestors(name):
            if Type(base).is_foreign and attribute in attributes(base):
                return base
        return None

    def attribute(self, name: str, attribute: str) -> Type | None:
        """The known type of an attribute of a class of the project."""
        for each in self.family(name):
            if attribute in each.types:
                return each.types[attribute]
        return None


@dataclass(slots=True)
class Scope:
    """The variables of a function and its enclosing functions.

    Attributes:
        project: The project.
        module: The module.
        owner: The class of a method; None for a function.
        variables: The known type of each variable; None where it is unknown or ambiguous.
    """

    project: Project
    module: Module
    owner: Class | None
    variables: dict[str, Type | None]

    def inside(self, function: Function) -> "Scope":
        """Return the scope of a function within this one."""
        scope = Scope(self.project, self.module, self.owner, dict(self.variables))
        scope.enter(function)
        return scope

    def enter(self, function: Function) -> None:
        """Add the variables that a function's arguments and statements define."""
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for argument in arguments:
            self.variables[argument.arg] = self.project.annotated(self.module, argument.annotation)
        if self.owner is not None and arguments and arguments[0].arg in ("self", "cls"):
            self.variables[arguments[0].arg] = Type(self.owner.name, instance=True)
        if not isinstance(function, ast.Lambda):
            self.read(function.body)

    def read(self, body: Iterable[ast.stmt]) -> None:
        """Add the variables that statements define. An ``isinstance`` check applies to the complete function."""
        for node in _own_nodes(body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.variables[node.target.id] = self.project.annotated(self.module, node.annotation)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._add(node.targets[0].id, self.type_of(node.value))
            elif isinstance(node, ast.NamedExpr):
                self._add(node.target.id, self.type_of(node.value))
            elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
                self._add(node.optional_vars.id, self.type_of(node.context_expr))
            elif (
                isinstance(node, ast.Call)
                and _is_call_of(node, "isinstance", 2)
                and isinstance(node.args[0], ast.Name)
            ):
                self._add(node.args[0].id, self.project.annotated(self.module, node.args[1]))

    def _add(self, name: str, kind: Type | None) -> None:
        if kind is not None:
            self.variables[name] = kind

    def type_of(self, node: ast.expr) -> Type | None:
        """The type of an expression, if the syntax determines it."""
        match node:
            case ast.Await(value=value):
                return self.type_of(value)
            case ast.Name(id=name):
                if name in self.variables:
                    return self.variables[name]
                dotted = self.module.dotted(node)
                return Type(dotted) if dotted else None
            case ast.Attribute(value=value, attr=attribute):
                return self._attribute(self.type_of(value), attribute)
            case ast.Call():
                return self._called(node)
            case _:
                return None

    def _attribute(self, owner: Type | None, attribute: str) -> Type | None:
        if owner is None:
            return None
        if owner.instance and owner.name in self.project.classes:
            return self.project.attribute(owner.name, attribute)
        if owner.instance:
            return owner.then(f".{attribute}", 1)
        return Type(f"{owner.name}.{attribute}")

    def _called(self, node: ast.Call) -> Type | None:
        function = self.type_of(node.func)
        if function is None:
            return None
        if function.name in ("typing.cast",) and node.args:
            return self.project.annotated(self.module, node.args[0])
        if function.name == "builtins.super" and self.owner is not None:
            return Type(self.owner.name, instance=True)
        if function.name in self.project.classes or (
            function.is_foreign and not function.instance and _is_class(function.name)
        ):
            return Type(function.name, instance=True)
        if not function.is_foreign:
            return self.project.result(function.name)
        return function.then("()", 0)


def _own_nodes(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of statements in order, without those inside functions and classes."""
    for node in body:
        pending: list[ast.AST] = [node]
        while pending:
            current = pending.pop(0)
            if isinstance(current, Function | ast.ClassDef):
                continue
            yield current
            pending[:0] = ast.iter_child_nodes(current)


def _definitions(
    tree: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All classes and functions with their dotted names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}.{node.name}", node
            yield from _definitions(node, f"{prefix}.{node.name}")
        else:
            yield from _definitions(node, prefix)


def _base(module: Module, node: ast.expr) -> str | None:
    return module.dotted(node.value if isinstance(node, ast.Subscript) else node)


def _slots(statement: ast.Assign) -> Iterator[str]:
    if any(isinstance(target, ast.Name) and target.id == "__slots__" for target in statement.targets):
        for node in ast.walk(statement.value):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _is_attribute_of(node: ast.AST, name: str) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_call_of(node: ast.Call, name: str, arguments: int) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name and len(node.args) == arguments


@cache
def load(name: str) -> Any:
    """The object that a library defines under a dotted name, or None."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found
    return None


def _is_class(name: str) -> bool:
    return inspect.isclass(load(name))


@cache
def attributes(name: str) -> frozenset[str]:
    """The attributes that a library's class and its bases define, including those assigned to ``self``."""
    found = load(name)
    if not inspect.isclass(found):
        return frozenset()
    names = set(dir(found))
    for base in found.__mro__:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue  # the class is written in C
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and _is_attribute_of(node, "self")
            ):
                names.add(node.attr)
    return frozenset(names)


@cache
def is_settable(name: str, attribute: str) -> bool:
    """Return whether a library's class permits its users to assign an attribute.

    A property, a slot or an annotation permits it; an assignment in its own methods does not. An attribute that the class
    lacks is the user's addition.
    """
    found = load(name)
    if not inspect.isclass(found) or attribute not in attributes(name):
        return True
    if any(attribute in vars(base).get("__annotations__", {}) for base in found.__mro__):
        return True
    return hasattr(inspect.getattr_static(found, attribute, None), "__set__")
