"""``tailrace providers``."""

import re

import pytest
from typer.testing import CliRunner

from tailrace.server.cli.commands import create_cli
from tailrace.wrappers.providers import providers


def test_every_provider_is_a_row_that_says_where_its_key_and_address_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret-value@127.0.0.1:1/v1")
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    monkeypatch.setenv("GROQ_API_KEY", "secret-value")
    monkeypatch.delenv("XAI_API_KEY", raising=False)
    result = CliRunner().invoke(create_cli(), ["providers"])
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:2] == ["provider", "aliases"]
    names = {row.split()[0]: row for row in rows}
    assert set(names) == {provider.name for provider in providers()}
    assert "GROQ_API_KEY (set)" in names["groq"]
    assert names["xai"].split()[-2:] == ["XAI_API_KEY", "https://api.x.ai/v1"]
    assert names["openai"].rstrip().endswith(" OPENAI_BASE_URL (set)")
    assert names["azure"].split()[-2:] == ["AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT"]
    assert re.search(r" ANTHROPIC_API_KEY +its own *$", names["anthropic"])
    assert "claude" in names["anthropic"]
    assert "secret-value" not in result.stdout
