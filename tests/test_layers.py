"""Imports between layers have one direction, and the two lower layers load no web framework."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WEB = {"fastapi", "sqlalchemy", "sse_starlette", "starlette", "uvicorn"}

# Imports every module of the named layers and prints the top-level names of all loaded modules, except for modules that
# use the official SDK of the Model Context Protocol, an extra, which imports a web framework.
IMPORT_ALL = """
import importlib, pkgutil, sys
for layer in sys.argv[1:]:
    package = importlib.import_module(layer)
    for info in pkgutil.walk_packages(package.__path__, layer + "."):
        if not info.name.startswith("tailrace.streaming.tools.mcp_"):
            importlib.import_module(info.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
print(*sorted({".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("tailrace.")}))
"""


def loaded_by(*layers: str) -> tuple[set[str], set[str]]:
    """The packages and layers that importing complete layers loads."""
    command = [sys.executable, "-c", IMPORT_ALL, *layers]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    packages, ours = done.stdout.splitlines()
    return set(packages.split()), set(ours.split())


def test_the_import_contracts_are_kept() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-cache",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("layer", "allowed"),
    [
        ("tailrace.wrappers", {"tailrace.wrappers"}),
        ("tailrace.streaming", {"tailrace.wrappers", "tailrace.streaming"}),
    ],
)
def test_importing_a_lower_layer_loads_no_higher_one_and_no_web_framework(
    layer: str, allowed: set[str]
) -> None:
    packages, ours = loaded_by(layer)
    assert ours <= allowed
    assert layer in ours
    assert packages & WEB == set()
