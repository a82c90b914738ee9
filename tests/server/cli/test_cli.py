"""The command line without a command: help, version, and the time that they take."""

import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from tailrace.server import Settings
from tailrace.server.cli.commands import create_cli
from tailrace.server.cli.demo import PORT
from tailrace.server.cli.replay_server import PROMPT

COMMANDS = ("demo", "serve", "record", "convert", "ask", "doctor", "providers")
SETTINGS_WITH_DEFAULTS = {"host", "on_crash", "on_lost_result", "port", "store", "workers"}

PROGRAM = """
import sys
from tailrace.server.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def help_of(*command: str) -> str:
    return " ".join(CliRunner().invoke(create_cli(), [*command, "--help"]).output.split())


def test_it_shows_its_version():
    result = CliRunner().invoke(create_cli(), ["--version"])
    assert (result.exit_code, result.output) == (0, f"tailrace {version('tailrace')}\n")


def test_without_a_command_it_lists_them():
    result = CliRunner().invoke(create_cli(), [])
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_neither_the_server_nor_its_libraries(option: str):
    command = [sys.executable, "-c", PROGRAM, option]
    modules = set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())
    assert "typer" in modules
    assert not modules & {
        "tailrace.wrappers",
        "tailrace.server.app",
        "pydantic",
        "fastapi",
        "uvicorn",
        "rich",
    }


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_help_shows_the_defaults_of_the_settings(command: str):
    shown = dict(re.findall(r"\[TAILRACE_(\w+); default: ([^\]]+)\]", help_of(command)))
    expected = {name: str(Settings.model_fields[name].default) for name in SETTINGS_WITH_DEFAULTS}
    assert {name.lower(): value for name, value in shown.items() if name.lower() in expected} == {
        name: value for name, value in expected.items() if f"TAILRACE_{name.upper()}" in help_of(command)
    }
    for name in shown.keys() - {name.upper() for name in expected}:
        assert not Settings.model_fields[name.lower()].default  # described in words


def test_help_of_the_demo_shows_its_defaults():
    assert f"[default: {PROMPT}]" in help_of("demo")
    assert f"[default: {PORT}, or a free one" in help_of("demo")
