"""Fixtures for the tests of providers."""

import os
from pathlib import Path

import pytest

from tailrace.wrappers import providers

_PREFIXES = ("ANTHROPIC_", "AWS_", "OLLAMA_", "OPENAI_")


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without keys, addresses and profiles of providers."""
    names = {name for provider in providers.providers() for name in provider.key_variables}
    names |= {name for name in os.environ if name.startswith(_PREFIXES)}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    # The location of profiles that the packages read.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
