"""The public names of each package; the distribution is one namespace of three roots."""

import importlib
import pkgutil
from pathlib import Path

import pytest

ROOTS = [Path(__file__).parents[2] / layer / "tailrace" for layer in ("wrappers", "streaming", "server")]


def packages() -> list[str]:
    """Every package of the three layers, by name."""
    found: list[str] = []
    for root in ROOTS:
        found += [f"tailrace.{info.name}" for info in pkgutil.iter_modules([str(root)]) if info.ispkg]
    for name in list(found):
        path = importlib.import_module(name).__path__
        found += [info.name for info in pkgutil.walk_packages(path, f"{name}.") if info.ispkg]
    return found


def public_packages() -> list[str]:
    """Packages that define ``__all__``."""
    return [name for name in packages() if hasattr(importlib.import_module(name), "__all__")]


def test_the_layers_are_found() -> None:
    assert {"tailrace.wrappers", "tailrace.wrappers.openai", "tailrace.streaming.a2a"} <= set(
        public_packages()
    )
    assert {"tailrace.streaming", "tailrace.server"} <= set(packages())


@pytest.mark.parametrize("name", public_packages())
def test_public_names_are_sorted_unique_and_there(name: str) -> None:
    package = importlib.import_module(name)
    names: tuple[str, ...] = tuple(package.__all__)
    assert len(set(names)) == len(names)
    assert list(names) == sorted(names, key=_kind_and_name)
    assert [each for each in names if not hasattr(package, each)] == []


def _kind_and_name(name: str) -> tuple[int, str]:
    """Sort key of the linter: constants, classes, other names."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", public_packages())
def test_what_a_package_imports_for_its_users_is_in_all(name: str) -> None:
    package = importlib.import_module(name)
    classes = {
        each
        for each, value in vars(package).items()
        if isinstance(value, type) and value.__module__.startswith("tailrace.") and not each.startswith("_")
    }
    assert classes <= set(package.__all__)


@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_the_namespace_belongs_to_no_layer(root: Path) -> None:
    assert root.is_dir()
    assert not (root / "__init__.py").exists()


@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_every_layer_is_marked_as_typed(root: Path) -> None:
    assert (root / root.parent.name / "py.typed").exists()


def test_former_names_are_the_same_classes() -> None:
    streaming = importlib.import_module("tailrace.streaming")
    assert streaming.Said is streaming.MessageAdded
    assert streaming.Behind is streaming.EventsEvicted
    with pytest.raises(AttributeError, match="has no attribute 'Unknown'"):
        _ = streaming.Unknown
