"""Settings: grouped values, and former settings, which are errors that name their replacements."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from tailrace.server import Bounds, CardSettings, Settings, create_app
from tailrace.server.cli.commands import create_cli
from tailrace.server.former_settings import MOVED, REPLACED, moved_to
from tailrace.server.settings import DEFAULT_ENDPOINTS
from tailrace.wrappers import ConfigurationError


@pytest.mark.parametrize("name", REPLACED)
def test_a_former_setting_is_an_error_that_names_its_replacement(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variable = f"TAILRACE_{name.upper()}"
    message = re.escape(f"{variable} is no longer a setting: {REPLACED[name]}")
    with pytest.raises(ConfigurationError, match=message):
        Settings.model_validate({name: 1})
    (tmp_path / "production.env").write_text(f"{variable}=1\n")
    with pytest.raises(ConfigurationError, match=message):
        Settings(_env_file=tmp_path / "production.env")  # pyright: ignore[reportCallIssue]
    monkeypatch.setenv(variable.lower(), "1")
    with pytest.raises(ConfigurationError, match=message):
        create_app()


def test_all_former_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_AG_UI", "1")
    with pytest.raises(ConfigurationError, match=r"TAILRACE_AG_UI is .*; TAILRACE_MAX_ROUNDS is "):
        Settings.model_validate({"max_rounds": 2})


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_command_ends_with_the_replacement_of_a_former_setting(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_PLAYGROUND", "false")
    result = CliRunner().invoke(create_cli(), [command, "--model", "ollama:none", "--store", "sqlite://"])
    assert isinstance(result.exception, ConfigurationError)
    assert "TAILRACE_PLAYGROUND is no longer a setting" in str(result.exception)
    assert "TAILRACE_ENDPOINTS" in str(result.exception)


def test_no_former_setting_is_a_setting_and_no_replacement_names_one() -> None:
    assert not (REPLACED.keys() | MOVED.keys()) & Settings.model_fields.keys()
    assert not REPLACED.keys() & MOVED.keys()
    for replacement in (*REPLACED.values(), *map(moved_to, MOVED)):
        for name in re.findall(r"TAILRACE_(\w+)", replacement):
            assert name.lower() in Settings.model_fields


@pytest.mark.parametrize("name", Bounds.model_fields)
def test_each_bound_is_read_from_its_json_object(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_BOUNDS", json.dumps({name: 7}))
    assert getattr(Settings().bounds, name) == 7
    assert Settings().bounds.model_fields_set == {name}


def test_values_of_a_group_that_cannot_be_used_are_errors_that_name_them() -> None:
    for group in ("bounds", "card"):
        with pytest.raises(ValidationError, match=rf"(?s){group}\.no_such_member.*not permitted"):
            Settings.model_validate({group: {"no_such_member": 1}})
    with pytest.raises(ValidationError, match=r"bounds\.ping_interval"):
        Settings.model_validate({"bounds": {"ping_interval": 0}})


def test_members_of_the_card_are_read_from_its_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_CARD", '{"version": "2.1", "signing_keys": {"k1": "card.pem"}}')
    assert Settings().card == CardSettings(version="2.1", signing_keys={"k1": "card.pem"})


def test_endpoints_are_separated_by_commas_or_a_json_list(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().endpoints == DEFAULT_ENDPOINTS
    for text in ("openai, metrics", '["openai", "metrics"]'):
        monkeypatch.setenv("TAILRACE_ENDPOINTS", text)
        assert Settings().endpoints == ("openai", "metrics")
    monkeypatch.setenv("TAILRACE_ENDPOINTS", "")
    assert Settings().endpoints == ()
    monkeypatch.setenv("TAILRACE_ENDPOINTS", "openai,telnet")
    with pytest.raises(ValidationError, match="telnet"):
        Settings()


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("false", False), ("private", "private")]
)
def test_push_notifications_are_on_off_or_private(
    text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_PUSH_NOTIFICATIONS", text)
    assert Settings().push_notifications == value


def member(settings: Settings, name: str) -> object:
    """The member that a former setting is now."""
    section, found = MOVED[name]
    return getattr(getattr(settings, section), found)


@pytest.mark.parametrize("name", MOVED)
def test_a_former_setting_sets_the_member_that_it_is_now_with_a_warning(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    variable = f"TAILRACE_{name.upper()}"
    text = {"card_version": "1.0", "grpc_url": "grpc.example:443"}.get(name, "7")
    value = text if MOVED[name][0] in ("card", "caller_jwt") else 7
    warning = f"{variable} is a member of another setting now: {moved_to(name)}"
    assert member(Settings.model_validate({name: text}), name) == value
    assert warning in caplog.messages
    caplog.clear()
    (tmp_path / "production.env").write_text(f"{variable}={text}\n")
    of_file = Settings(_env_file=tmp_path / "production.env")  # pyright: ignore[reportCallIssue]
    assert member(of_file, name) == value
    assert warning in caplog.messages
    caplog.clear()
    monkeypatch.setenv(variable.lower(), text)
    assert member(Settings(), name) == value
    assert warning in caplog.messages


def test_former_names_and_members_are_merged_and_the_member_has_precedence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    former = {"max_lag": 5, "node_ttl": 3}
    given = Settings.model_validate({**former, "bounds": Bounds(max_lag=6, max_tasks=7)})
    assert given.bounds == Bounds(max_lag=6, max_tasks=7, node_ttl=3)
    assert Settings.model_validate({**former, "bounds": {"max_lag": 6}}).bounds == Bounds(
        max_lag=6, node_ttl=3
    )
    monkeypatch.setenv("TAILRACE_BOUNDS", '{"max_lag": 8, "max_tasks": 9}')
    monkeypatch.setenv("TAILRACE_MAX_LAG", "10")
    monkeypatch.setenv("TAILRACE_PUSH_TIMEOUT", "11")
    assert Settings().bounds == Bounds(max_lag=8, max_tasks=9, push_timeout=11)
    # An argument has precedence over the environment, by either name.
    assert Settings.model_validate({"max_lag": 5}).bounds == Bounds(max_lag=5, max_tasks=9, push_timeout=11)


def test_a_value_by_a_former_name_that_cannot_be_used_is_an_error_that_names_the_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TAILRACE_MAX_LAG", "none")
    with pytest.raises(ValidationError, match=r"bounds\.max_lag"):
        Settings()


def test_a_bound_that_was_never_a_setting_is_not_set_by_its_own_name() -> None:
    assert "max_history_tokens" not in MOVED
    with pytest.raises(
        ConfigurationError,
        match=r"TAILRACE_MAX_HISTORY_TOKENS is not a setting of its own: set TAILRACE_BOUNDS=",
    ):
        Settings.model_validate({"max_history_tokens": 1})
