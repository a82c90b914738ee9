"""``tailrace providers``."""

import json

import pytest
from typer.testing import CliRunner

from tailrace.server.cli.commands import create_cli
from tailrace.wrappers.providers import providers


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret-value@127.0.0.1:1/v1")
    monkeypatch.setenv("GROQ_API_KEY", "secret-value")
    for name in ("AZURE_OPENAI_ENDPOINT", "XAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_every_provider_has_a_row_with_its_key_and_address_in_80_columns() -> None:
    result = CliRunner().invoke(create_cli(), ["providers"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines if line.startswith("  ") and line[2] != " "}
    assert rows.keys() == {provider.name for provider in providers()}
    assert "GROQ_API_KEY (set)" in rows["groq"]
    assert rows["xai"].split()[-2:] == ["XAI_API_KEY", "https://api.x.ai/v1"]
    assert rows["openai"].endswith(" OPENAI_BASE_URL (set)")
    assert rows["azure"].split()[-2:] == ["AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT"]
    assert "also claude, anthropic-messages" in result.stdout
    assert {provider.wire_format.title for provider in providers()} <= set(lines)
    assert "secret-value" not in result.stdout


def test_all_fields_are_json_lines_on_request() -> None:
    result = CliRunner().invoke(create_cli(), ["providers", "--json"])
    rows = {row["provider"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert rows.keys() == {provider.name for provider in providers()}
    assert rows["anthropic"]["aliases"] == ["claude", "anthropic-messages"]
    assert rows["anthropic"]["key"] == "ANTHROPIC_API_KEY"
    assert {"text", "tools", "images"} <= set(rows["openai"]["sends"])
    assert "secret-value" not in result.stdout
