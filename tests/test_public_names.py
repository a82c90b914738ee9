"""The names of released versions: each still imports, each option and setting works or names its replacement.

``fixtures/public_names/VERSION.json`` holds the names of a release: those in the ``__all__`` of the modules that ``docs/upgrading.md`` covers
and of the folders of formats, those that the documents and examples import or describe, the options of each command, and
the settings. The file is written at the release and does not change.
"""

import inspect
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main
from pydantic import ValidationError
from typer.testing import CliRunner

from tailrace.server import Settings, create_app
from tailrace.server.cli.commands import create_cli
from tailrace.wrappers import ConfigurationError

RELEASES = sorted((Path(__file__).parent / "fixtures/public_names").glob("*.json"))

_WORD = re.compile(r"--[a-z][a-z-]*|TAILRACE_[A-Z_]+|create_app\((\w+)=")


def released(kind: str) -> list[Any]:
    """The entries of a kind in every release, each once: ``(owner, name)``."""
    found: set[tuple[str, str]] = set()
    for file in RELEASES:
        owners: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))[kind]
        found |= {(owner, name) for owner, names in owners.items() for name in names}
    return [pytest.param(owner, name, id=f"{owner} {name}".strip()) for owner, name in sorted(found)]


def has_name(module: str, name: str) -> bool:
    """Return whether a name can be imported."""
    try:
        return hasattr(import_module(module), name)
    except ModuleNotFoundError:
        return False


def parameters(name: str) -> list[typer.core.TyperOption | typer.core.TyperArgument]:
    """The options and arguments of a command; of the command line itself for an empty name."""
    group = typer.main.get_command(create_cli())
    assert isinstance(group, typer.core.TyperGroup)
    parameters = (group.commands[name] if name else group).params
    kinds = (typer.core.TyperOption, typer.core.TyperArgument)
    return [each for each in parameters if isinstance(each, kinds)]


def options(name: str) -> dict[str, str]:
    """The options of a command with their help, hidden ones included."""
    found = (each for each in parameters(name) if isinstance(each, typer.core.TyperOption))
    return {option: each.help or "" for each in found for option in (*each.opts, *each.secondary_opts)}


def hidden_options(name: str) -> set[str]:
    """The options of a command that its help does not show."""
    found = (each for each in parameters(name) if isinstance(each, typer.core.TyperOption) and each.hidden)
    return {option for each in found for option in (*each.opts, *each.secondary_opts)}


def settings() -> set[str]:
    """The environment variables of all settings."""
    return {f"TAILRACE_{name.upper()}" for name in Settings.model_fields}


def names_replacement(message: str, of: str, command_name: str = "serve") -> bool:
    """Return whether a message names an existing replacement of an option or a setting."""
    valid = settings() | (options(command_name).keys() - hidden_options(command_name))
    valid |= inspect.signature(create_app).parameters.keys()
    return any((found[1] or found[0]) in valid and found[0] != of for found in _WORD.finditer(message))


def refusal_of_option(name: str, option: str) -> str:
    """The error of the command line for an option; empty if the option is only unknown, even with a suggestion."""
    arguments = [name, option, "1"] if name else [option]
    result = CliRunner().invoke(create_cli(), arguments, env={"COLUMNS": "300", "NO_COLOR": "1"})
    return result.output if result.exit_code and "No such option" not in result.output else ""


def option_works(name: str, option: str) -> bool:
    """Return whether a command has an option, or its error or help names the replacement."""
    if option not in options(name):
        return names_replacement(refusal_of_option(name, option), option, name)
    return option not in hidden_options(name) or names_replacement(options(name)[option], option, name)


def setting_works(variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether there is a setting, or setting the variable logs, or is an error that has, its replacement."""
    if variable in settings():
        return True
    monkeypatch.setenv(variable, "1")
    try:
        Settings()
        messages = caplog.messages
    except (ConfigurationError, ValidationError) as error:
        messages = [*caplog.messages, str(error)]
    return any(variable in each and names_replacement(each, variable) for each in messages)


@pytest.mark.parametrize(("module", "name"), released("names"))
def test_a_public_name_imports(module: str, name: str) -> None:
    assert has_name(module, name)


@pytest.mark.parametrize(("name", "option"), released("options"))
def test_an_option_works_or_names_its_replacement(name: str, option: str) -> None:
    assert option_works(name, option)


@pytest.mark.parametrize(("name", "argument"), released("arguments"))
def test_a_command_has_its_arguments(name: str, argument: str) -> None:
    assert argument in {each.name for each in parameters(name) if isinstance(each, typer.core.TyperArgument)}


@pytest.mark.parametrize(("_", "variable"), released("settings"))
def test_a_setting_works_or_names_its_replacement(
    _: str, variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert setting_works(variable, monkeypatch, caplog)


def test_what_is_gone_without_a_replacement_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert RELEASES
    assert not has_name("tailrace.wrappers", "NoSuchName")
    assert not has_name("tailrace.no_such_module", "Role")
    assert not option_works("serve", "--no-such-option")
    assert not option_works("serve", "--grpc-ports")  # the command line suggests --grpc-port for it
    assert not option_works("", "--no-such-option")
    assert not setting_works("TAILRACE_NO_SUCH_SETTING", monkeypatch, caplog)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("--gone: use --model", True),
        ("--gone: set TAILRACE_MODEL", True),
        ("--gone: pass create_app(handler=…)", True),
        ("No such option: --gone", False),
        ("--gone: use --also-gone", False),
        ("--gone: set TAILRACE_ALSO_GONE", False),
        ("--gone: pass create_app(no_such_argument=…)", False),
    ],
)
def test_a_replacement_has_to_exist(message: str, named: bool) -> None:
    assert names_replacement(message, "--gone") is named
