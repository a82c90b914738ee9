from importlib.metadata import version

from typer.testing import CliRunner

from tailrace.server.cli.commands import create_cli


def test_it_says_its_version():
    result = CliRunner().invoke(create_cli(), ["--version"])
    assert (result.exit_code, result.output) == (0, f"tailrace {version('tailrace')}\n")


def test_without_a_command_it_lists_them():
    result = CliRunner().invoke(create_cli(), [])
    assert all(name in result.output for name in ("serve", "ask", "convert", "demo", "doctor", "providers"))
