"""The catalogue of errors is complete and matches the code."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from tailrace.server.cli.commands import create_cli
from tailrace.server.observability.error_labels import CALLER, SERVER
from tailrace.server.runtime.limits import LimitError
from tailrace.streaming.a2a import A2AError
from tailrace.wrappers import TailraceError, UpstreamFault

PAGE = Path(__file__).parents[1] / "docs/errors.md"
BASES = {TailraceError, A2AError, LimitError}
"""Base classes, which are not raised themselves."""


def tables(title: str) -> list[list[list[str]]]:
    """The rows of each table whose first column has this title, one for each name, without code markup."""
    page = PAGE.read_text(encoding="utf-8")
    found = re.findall(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [
        [
            [name, *(cell.strip().strip("`") for cell in cells)]
            for line in table.splitlines()
            for first, *cells in [line.split("|")[1:-1]]
            for name in re.findall(r"`([^`]+)`", first)
        ]
        for table in found
    ]


@pytest.fixture(scope="module")
def errors() -> dict[str, type[TailraceError]]:
    """Every error class by name; imports all modules."""
    for layer in ("wrappers", "streaming", "server"):
        package = importlib.import_module(f"tailrace.{layer}")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations." not in info.name and not info.name.endswith("__main__"):
                importlib.import_module(info.name)
    found: set[type[TailraceError]] = set()
    waiting: list[type[TailraceError]] = [TailraceError]
    while waiting:
        waiting += (error := waiting.pop()).__subclasses__()
        if error.__module__.startswith("tailrace."):
            found.add(error)
    return {error.__name__: error for error in found - BASES}


def test_every_error_is_in_one_of_the_tables(errors: dict[str, type[TailraceError]]) -> None:
    sent, raised = tables("error")
    of_protocol = {name for name, error in errors.items() if issubclass(error, A2AError)}
    assert sorted(row[0] for row in sent) == sorted(of_protocol)
    assert sorted(row[0] for row in raised) == sorted(errors.keys() - of_protocol)


def test_errors_sent_to_clients_match_the_page(errors: dict[str, type[TailraceError]]) -> None:
    for name, fault, advice, code, http, grpc, reason in tables("error")[0]:
        error = errors[name]
        assert issubclass(error, A2AError)
        assert (str(error.code), str(error.http_status), error.status, error.reason) == (
            code,
            http,
            grpc,
            reason,
        )
        assert fault == (CALLER if error.http_status < 500 else SERVER)
        assert advice


def test_errors_are_imported_from_the_documented_modules(errors: dict[str, type[TailraceError]]) -> None:
    for name, module, *_ in tables("error")[1]:
        assert getattr(importlib.import_module(module), name) is errors[name]


def test_every_fault_of_a_provider_is_explained() -> None:
    [faults] = tables("fault")
    assert [row[0] for row in faults] == [fault.value for fault in UpstreamFault]


def test_every_command_has_its_exit_statuses() -> None:
    commands = {
        f"tailrace {each.callback.__name__}" for each in create_cli().registered_commands if each.callback
    }
    [statuses] = tables("command")
    assert {row[0] for row in statuses} == commands - {"tailrace providers"}
