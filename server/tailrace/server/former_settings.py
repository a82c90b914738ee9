"""Settings of former versions, and their replacements."""

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tailrace.wrappers import ConfigurationError

logger = logging.getLogger("tailrace.server")

_TAILRACE_NAME = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(TAILRACE_[A-Z0-9_]{1,60})[ \t]*=", re.MULTILINE | re.IGNORECASE
)
_MAX_ENV_FILE = 64 * 1024  # characters of the file that are searched
_SHOWN_NAMES = 5

_AGENT = "pass create_app(handler=AgentHandler(Agent(model, {}=…)))"

_FORMER_BOUNDS = """
    body_timeout connect_timeout header_timeout max_caller_streams max_caller_tasks max_connections
    max_event_bytes max_history_messages max_lag max_part_bytes max_request_values max_streams max_tasks
    max_turn_seconds max_upstream_calls max_upstream_waiting node_ttl ping_interval push_attempts
    push_timeout read_timeout send_timeout upstream_retries
"""

MOVED: dict[str, tuple[str, str]] = {
    "agent_description": ("card", "description"),
    "agent_version": ("card", "version"),
    "caller_jwks_url": ("caller_jwt", "jwks_url"),
    "caller_jwt_audience": ("caller_jwt", "audience"),
    "caller_jwt_issuer": ("caller_jwt", "issuer"),
    "card_signing_jku": ("card", "signing_jku"),
    "card_version": ("card", "protocol_version"),
    "event_retention": ("retention", "events"),
    "grpc_url": ("card", "grpc_url"),
    "history_tokens": ("bounds", "max_history_tokens"),
    "stream_retention": ("retention", "streams"),
    "task_retention": ("retention", "tasks"),
    **{name: ("bounds", name) for name in _FORMER_BOUNDS.split()},
}
"""Former settings that are now members of another setting. They still work, with a warning."""

REPLACED: dict[str, str] = {
    "card_signing_keys": 'set TAILRACE_CARD=\'{"signing_keys": {"KID": "FILE"}}\'',
    "input_modes": "set TAILRACE_CARD='{\"input_modes\": …}'",
    "output_modes": "set TAILRACE_CARD='{\"output_modes\": …}'",
    "openai_facade": "list openai in TAILRACE_ENDPOINTS, or leave it out",
    "ai_sdk": "list ai-sdk in TAILRACE_ENDPOINTS, or leave it out",
    "ag_ui": "list ag-ui in TAILRACE_ENDPOINTS, or leave it out",
    "playground": "list playground in TAILRACE_ENDPOINTS, or leave it out",
    "metrics": "list metrics in TAILRACE_ENDPOINTS, or leave it out",
    "openapi": "list openapi in TAILRACE_ENDPOINTS, or leave it out",
    "openai_user_is_key": "pass create_app(openai_user_is_key=True)",
    "grpc_tls_cert": "set TAILRACE_GRPC_TLS=CERTIFICATE,KEY",
    "grpc_tls_key": "set TAILRACE_GRPC_TLS=CERTIFICATE,KEY",
    "max_rounds": _AGENT.format("max_rounds"),
    "tool_timeout": _AGENT.format("tool_timeout"),
    "think_tags": _AGENT.format("think_tags"),
    "on_orphan": "set TAILRACE_ON_CRASH=continue, restart or fail",
    "push_allow_private": "set TAILRACE_PUSH_NOTIFICATIONS=private",
}
"""Former settings that are rejected, each with advice on its replacement."""


def moved_to(name: str) -> str:
    """Return advice on how to set a setting of `MOVED`."""
    section, member = MOVED[name]
    return f"set TAILRACE_{section.upper()}='{{\"{member}\": …}}'"


def reject_replaced(names: Iterable[str], bounds: Iterable[str]) -> None:
    """Reject settings of `REPLACED`, and members of ``bounds`` that are set outside of ``bounds``.

    Args:
        names: The names of the present settings, without ``TAILRACE_``.
        bounds: The names of all members of the setting ``bounds``.

    Raises:
        ConfigurationError: At least one of these names was present.
    """
    present = set(names)
    found = [
        f"{_variable(name)} is no longer a setting: {REPLACED[name]}"
        for name in sorted(present & REPLACED.keys())
    ]
    members = present & (set(bounds) - MOVED.keys())
    found += [
        f"{_variable(name)} is not a setting of its own: set TAILRACE_BOUNDS='{{\"{name}\": …}}'"
        for name in sorted(members)
    ]
    if found:
        raise ConfigurationError("; ".join(found))


def _variable(name: str) -> str:
    return f"TAILRACE_{name.upper()}"


def sections_of(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Convert `MOVED` settings to members of their new settings, with warnings."""
    sections: dict[str, dict[str, Any]] = {}
    for name in sorted(MOVED.keys() & values.keys()):
        logger.warning("%s is a member of another setting now: %s", _variable(name), moved_to(name))
        section, member = MOVED[name]
        sections.setdefault(section, {})[member] = values[name]
    return sections


def unread_env_file(path: Path = Path(".env")) -> str:
    """Return a warning if a file, which is not read, sets ``TAILRACE_…`` variables; otherwise an empty string."""
    try:
        if not path.is_file():
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            names = _TAILRACE_NAME.findall(file.read(_MAX_ENV_FILE))
    except OSError:
        return ""
    if not names:
        return ""
    listed = ", ".join(dict.fromkeys(names[:_SHOWN_NAMES])) + (", …" if len(names) > _SHOWN_NAMES else "")
    return (
        f"./{path} sets {listed} and is not read: use --env-file {path} to read it, or export the variables"
    )
