"""``tailrace providers``."""

import pytest
from typer.testing import CliRunner

from tailrace.server.cli.commands import create_cli
from tailrace.wrappers.providers import providers


def test_every_provider_is_a_row_that_says_where_its_key_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "secret-value")
    monkeypatch.delenv("XAI_API_KEY", raising=False)
    result = CliRunner().invoke(create_cli(), ["providers"])
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:2] == ["provider", "aliases"]
    names = {row.split()[0]: row for row in rows}
    assert set(names) == {provider.name for provider in providers()}
    assert "GROQ_API_KEY (set)" in names["groq"]
    assert names["xai"].rstrip().endswith("XAI_API_KEY")
    assert "claude" in names["anthropic"]
    assert "secret-value" not in result.stdout
