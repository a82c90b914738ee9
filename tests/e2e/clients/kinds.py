"""The official clients, by language and version, and their requirements."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CARD_PATH = "/.well-known/agent-card.json"


@dataclass(frozen=True)
class Kind:
    """A client and its protocol.

    Attributes:
        name: Its name.
        command: The program.
        version: The version of A2A.
        binding: The binding.
    """

    name: str
    command: Sequence[str]
    version: str
    binding: str

    def __str__(self) -> str:
        return f"{self.name}-{self.binding}"

    @property
    def lists_webhooks(self) -> bool:
        """The Python client of 0.3 can only set and get webhooks."""
        return self.name != "python-0.3"


def _python_1_3(binding: str) -> Kind:
    """The command in the project's own environment."""
    return Kind("python-1.3", (sys.executable, "-m", "e2e.clients.sdk_1_3"), "1.0", binding)


def _python_0_3(binding: str) -> Kind:
    """The command in a separate environment."""
    python = str(HERE / "sdk_0_3/.venv/bin/python")
    return Kind("python-0.3", (python, "-m", "e2e.clients.sdk_0_3.client"), "0.3", binding)


def _javascript_1_3(binding: str) -> Kind:
    return Kind("javascript-1.3", ("node", str(HERE / "javascript/sdk_1_3.mjs")), "1.0", binding)


def _javascript_0_3(binding: str) -> Kind:
    return Kind("javascript-0.3", ("node", str(HERE / "javascript/sdk_0_3.mjs")), "0.3", binding)


NEWEST = _python_1_3("JSONRPC")

_BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
_NODE = pytest.mark.node

KINDS_OF_1_0 = (
    *(pytest.param(_python_1_3(binding), id=f"python-1.3-{binding}") for binding in _BINDINGS),
    *(
        pytest.param(_javascript_1_3(binding), id=f"javascript-1.3-{binding}", marks=_NODE)
        for binding in _BINDINGS
    ),
)

KINDS_OF_0_3 = (
    *(pytest.param(_python_0_3(binding), id=f"python-0.3-{binding}") for binding in _BINDINGS),
    *(
        pytest.param(_javascript_0_3(binding), id=f"javascript-0.3-{binding}", marks=_NODE)
        for binding in _BINDINGS
    ),
)

EVERY_KIND = (*KINDS_OF_1_0, *KINDS_OF_0_3)
