"""The configuration file of a server with several agents (``tailrace.toml``).

The file is TOML 1.0 with four kinds of tables: ``[server]`` for the settings of the server, ``[models.NAME]`` for the name, base
URL and key of a model, ``[agents.NAME]`` for an agent, and ``[callers.NAME]`` for the keys of a caller
(``docs/several-agents.md``). In every string, ``${NAME}`` stands for the environment variable ``NAME``.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, create_model
from pydantic_core import ErrorDetails

from tailrace.server.agent_factory import fallback_settings
from tailrace.server.runtime.approvals import parse_approvers
from tailrace.server.server_config import AgentConfig, ServerConfig, config_error
from tailrace.server.setting_values import split_fallback
from tailrace.server.settings import CardSettings, Settings
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.messages import clipped

AGENT_SETTINGS = (
    "model", "base_url", "api_key", "fallback", "upstream_background", "agent", "agent_token", "agent_origins",
    "instructions", "tools", "approvals", "approvers", "on_lost_result", "filters", "input_filters", "record",
    "agent_name", "coalesce",
)  # fmt: skip
"""The settings that only ``[agents.NAME]`` accepts. ``card`` is in ``[server]`` and in ``[agents.NAME]``."""

_UNSUPPORTED = {
    "caller_keys": "write [callers.NAME] with keys",
    "grpc_port": "a server for several agents has no gRPC: serve the agent with gRPC alone",
    "grpc_tls": "a server for several agents has no gRPC: serve the agent with gRPC alone",
    "model_aliases": "the names of models are those of the agents",
}

_MAX_PROBLEMS = 5
_MAX_KEY = 200  # characters of a key in an error
_VARIABLE = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")

_STRICT = ConfigDict(frozen=True, extra="forbid")


def _fields(names: Sequence[str]) -> dict[str, Any]:
    return {name: (Settings.model_fields[name].annotation, Settings.model_fields[name]) for name in names}


_SERVER_SETTINGS = [
    name for name in Settings.model_fields if name not in AGENT_SETTINGS and name not in _UNSUPPORTED
]
_ServerSettings: type[BaseModel] = create_model(
    "ServerSettings", __config__=_STRICT, **_fields(_SERVER_SETTINGS)
)
_AgentSettings: type[BaseModel] = create_model(
    "AgentSettings", __config__=_STRICT, **_fields([*AGENT_SETTINGS, "card"])
)


class ServerTable(_ServerSettings):
    """The settings of the server."""


class AgentTable(_AgentSettings):
    """An agent.

    Attributes:
        fallback: Models that respond when ``model`` fails, in the order in which they are tried. Each is the name of a
            ``[models.NAME]`` table, ``PROVIDER:MODEL`` or ``PROVIDER:MODEL@BASE_URL``.
        callers: The callers who may use the agent; all callers if not set. Each is the name of a ``[callers.NAME]`` table, or
            ``subject:NAME``, ``scope:NAME`` or ``role:NAME`` of bearer tokens.
    """

    fallback: tuple[str, ...] = ()
    callers: tuple[str, ...] | None = None


class ModelTable(BaseModel):
    """A model that agents use by the name of the table.

    Attributes:
        model: ``PROVIDER:MODEL``.
        base_url: Base URL of an API that is compatible with the provider's API; the URL of the provider if not set.
        api_key: API key for the provider; read from the provider's usual environment variable if not set.
    """

    model_config = _STRICT

    model: Annotated[str, Field(pattern=r"^[^:]+:.+")]
    base_url: str | None = None
    api_key: SecretStr | None = None


class CallerTable(BaseModel):
    """A caller.

    Attributes:
        keys: The API keys of the caller.
    """

    model_config = _STRICT

    keys: Annotated[tuple[SecretStr, ...], Field(min_length=1)]


_AgentName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
_CallerName = Annotated[str, Field(pattern=r"^[^:,\s]+$")]


class ConfigFile(BaseModel):
    """The tables of a configuration file.

    Attributes:
        server: The settings of the server.
        models: The models, by the names that agents use for them.
        agents: The agents by their names. A name has lower-case letters, digits and hyphens.
        callers: The callers by their names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="tailrace.toml")

    server: ServerTable = ServerTable()
    models: dict[str, ModelTable] = Field(default_factory=dict[str, ModelTable])
    agents: Annotated[dict[_AgentName, AgentTable], Field(min_length=1)]
    callers: dict[_CallerName, CallerTable] = Field(default_factory=dict[str, CallerTable])


def read_config(path: Path, overrides: Settings, running: Settings | None = None) -> ServerConfig:
    """Read a configuration file.

    Args:
        path: The file.
        overrides: Settings of the command line and of the environment, which override the file.
        running: The settings of the running server, if the file is read again. They replace those of ``[server]``, whose changes
            require a restart. None at the start.

    Raises:
        ConfigurationError: The file is not valid, or ``overrides`` has settings that belong in the file.
    """
    variables: dict[str, str] = {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        _refuse_agent_settings(overrides)
        file = _parse(_expanded(tables, (), variables))
        settings = _server_settings(file, overrides)
        shared = running or settings
        agents = tuple(_agent(name, table, file, shared) for name, table in file.agents.items())
    except OSError as error:
        raise config_error(path, error.strerror or "cannot be read", {}) from None
    except RecursionError:
        raise config_error(path, "values are nested too deeply", {}) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ConfigurationError) as error:
        raise config_error(path, str(error), variables) from None
    return ServerConfig(settings, agents, path, variables)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file, for editors."""
    schema = ConfigFile.model_json_schema()
    for name in ("agents", "callers"):  # the names of these tables must match a pattern
        schema["properties"][name]["additionalProperties"] = False
    return schema


def _refuse_agent_settings(overrides: Settings) -> None:
    """Reject settings that configure an agent, or that the file does not support."""
    for name in sorted(overrides.model_fields_set):
        if name in AGENT_SETTINGS:
            advice = f"it is a setting of each agent: set {name} in [agents.NAME], and remove it here"
            raise ConfigurationError(f"TAILRACE_{name.upper()} (or its option): {advice}")
        if name in _UNSUPPORTED:
            raise ConfigurationError(f"TAILRACE_{name.upper()} (or its option): {_UNSUPPORTED[name]}")


def _parse(tables: Mapping[str, Any]) -> ConfigFile:
    for name in _table(tables, "server"):
        if name in AGENT_SETTINGS:
            raise ConfigurationError(
                f"[server] {name}: it is a setting of each agent: set it in [agents.NAME]"
            )
        if name in _UNSUPPORTED:
            raise ConfigurationError(f"[server] {name}: {_UNSUPPORTED[name]}")
    try:
        return ConfigFile.model_validate(tables)
    except ValidationError as error:
        problems = error.errors()
        lines = [_problem(each) for each in problems[:_MAX_PROBLEMS]]
        more = len(problems) - len(lines)
        raise ConfigurationError("; ".join([*lines, *([f"and {more} more"] if more else [])])) from None


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    return cast("Mapping[str, Any]", table) if isinstance(table, Mapping) else {}


def _problem(error: ErrorDetails) -> str:
    """Return one line for an error: the table, the key, and what is wrong."""
    place = [str(each) for each in error["loc"] if each != "[key]"]
    if error["type"] == "extra_forbidden":
        of = _keys_at(place[:-1])
        [similar] = difflib.get_close_matches(place[-1], of, 1) or [""]
        hint = (
            f"; did you mean {similar}?"
            if similar
            else f"; the {'keys' if len(place) > 1 else 'tables'} are {', '.join(of)}"
        )
        return f"{_path_text(place)}: unknown{hint}"
    if error["type"] == "missing" and place == ["agents"]:
        return "no agent: add a table [agents.NAME]"
    if error["type"] == "string_pattern_mismatch" and place[0] == "agents" and len(place) == 2:
        return f"[agents.{place[1]}]: a name has lower-case letters, digits and hyphens only, at most 63"
    if error["type"] == "string_pattern_mismatch" and place[0] == "models":
        return f"{_path_text(place)}: write PROVIDER:MODEL"
    return f"{_path_text(place)}: {error['msg'].removeprefix('Value error, ')}"


def _keys_at(path: Sequence[str]) -> list[str]:
    """Return the valid keys of the table at a path."""
    model: type[BaseModel] = ConfigFile
    steps = iter(path)
    for step in steps:
        kind: Any = model.model_fields[step].annotation
        while get_args(kind):  # dict[str, Table], tuple[Table, ...]: the next step is a name or a position
            is_container = get_origin(kind) in (dict, tuple)
            kind = next(each for each in reversed(get_args(kind)) if each not in (Ellipsis, type(None)))
            if is_container:
                next(steps, None)
        model = kind
    return list(model.model_fields)


def _path_text(path: Sequence[str]) -> str:
    """Return a path as the table and the key: ``[agents.support] tools[0]``."""
    depth = 1 if path[0] == "server" else 2
    key = "".join(f"[{each}]" if each.isdigit() else f".{each}" for each in path[depth:])
    key = clipped(key, _MAX_KEY)
    return f"[{'.'.join(path[:depth])}] {key.removeprefix('.')}".rstrip()


def _expanded(value: Any, path: tuple[str, ...], variables: dict[str, str]) -> Any:
    """Replace ``${NAME}`` with the environment variable ``NAME`` in every string; ``$${NAME}`` becomes ``${NAME}``.

    Args:
        value: A value of the file.
        path: The table and the key of the value.
        variables: A mapping from value to name, to which each replaced variable is added.

    Raises:
        ConfigurationError: A variable is not set.
    """
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {name: _expanded(member, (*path, name), variables) for name, member in members}
    if isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
        return [_expanded(item, (*path, str(position)), variables) for position, item in items]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        escape, name = match.groups()
        if escape:
            return match[0][1:]
        found = os.environ.get(name)
        if found is None:
            raise ConfigurationError(
                f"{_path_text(path)}: the environment variable {name} is not set (write $${{{name}}} for this text)"
            )
        variables[found] = name
        return found

    return _VARIABLE.sub(replaced, value)


def _set_values(table: BaseModel, *names: str) -> dict[str, Any]:
    """Return the keys (only ``names``, if given) that are set in a table, with their values."""
    return {name: getattr(table, name) for name in table.model_fields_set if not names or name in names}


def _server_settings(file: ConfigFile, overrides: Settings) -> Settings:
    """Return the settings of ``[server]``, overridden by those of the command line and the environment."""
    values: dict[str, Any] = {}
    for name, value in _set_values(file.server).items():
        override = getattr(overrides, name)
        if name not in overrides.model_fields_set:
            values[name] = value
        elif isinstance(value, BaseModel) and isinstance(override, BaseModel):  # merge the groups
            values[name] = value.model_copy(update=_set_values(override))
    if file.callers:
        values["caller_keys"] = SecretStr(",".join(_caller_keys(file.callers)))
    return overrides.model_copy(update=values)


def _caller_keys(callers: Mapping[str, CallerTable]) -> list[str]:
    names: dict[str, str] = {}
    for name, caller in callers.items():
        for secret in caller.keys:
            key = secret.get_secret_value()
            if not key.strip() or "," in key:
                raise ConfigurationError(f"[callers.{name}] keys: a key is not empty and has no comma")
            if names.setdefault(key, name) != name:
                raise ConfigurationError(f"[callers.{name}] keys: [callers.{names[key]}] has the same key")
    return [f"{name}:{key}" for key, name in names.items()]


def _agent(name: str, table: AgentTable, file: ConfigFile, settings: Settings) -> AgentConfig:
    place = f"[agents.{name}]"
    values = _set_values(table, *(each for each in AGENT_SETTINGS if each != "fallback"))
    if "agent_name" not in values and not values.get("agent"):  # the name of a remote agent is in its card
        values["agent_name"] = name
    if "card" in table.model_fields_set:
        card = cast("CardSettings", getattr(table, "card"))  # noqa: B009 — the class is created from the settings
        if card.signing_keys or card.signing_jku or card.grpc_url:
            raise ConfigurationError(
                f"{place} card: signing_keys, signing_jku and grpc_url belong in [server.card]"
            )
        values["card"] = settings.card.model_copy(update=_set_values(card))
    if settings.public_url:
        values["public_url"] = f"{settings.public_url.rstrip('/')}/agents/{name}/"
    if not values.get("model") and not values.get("agent"):
        raise ConfigurationError(f"{place}: set model (or agent, for a remote agent)")
    if values.get("model") and values.get("agent"):
        raise ConfigurationError(f"{place}: set either model or agent")
    own = settings.model_copy(update=values)
    if own.model:
        own = _with_model(own, place, file.models)
    fallbacks = tuple(_fallback(own, each, place, file.models) for each in table.fallback)
    _check_callers(place, table.callers, file, settings)
    _check_approvers(place, own.approvers)
    return AgentConfig(name, own, fallbacks, table.callers)


def _with_model(settings: Settings, place: str, models: Mapping[str, ModelTable]) -> Settings:
    """Return the settings of an agent, with those of its ``[models.NAME]`` table, if any."""
    model = settings.model or ""
    if model in models:
        if settings.base_url or settings.api_key:
            raise ConfigurationError(f"{place}: base_url and api_key belong in [models.{model}]")
        return _with_provider(settings, models[model])
    if not all(model.partition(":")):
        names = f" ({', '.join(models)})" if models else ""
        raise ConfigurationError(
            f"{place} model: {model!r} is neither PROVIDER:MODEL nor the name of a table [models.NAME]{names}"
        )
    return settings


def _fallback(settings: Settings, value: str, place: str, models: Mapping[str, ModelTable]) -> Settings:
    if value in models:
        return _with_provider(settings, models[value])
    if not all(split_fallback(value)[0].partition(":")):
        raise ConfigurationError(
            f"{place} fallback: {value!r} is neither PROVIDER:MODEL, PROVIDER:MODEL@BASE_URL nor the name of a table "
            "[models.NAME]"
        )
    try:
        return fallback_settings(settings, value)
    except ConfigurationError as error:  # an unknown provider
        raise ConfigurationError(f"{place} fallback: {error}") from None


def _with_provider(settings: Settings, table: ModelTable) -> Settings:
    return settings.model_copy(
        update={"model": table.model, "base_url": table.base_url, "api_key": table.api_key}
    )


def _check_callers(place: str, callers: Sequence[str] | None, file: ConfigFile, settings: Settings) -> None:
    if callers is None:
        return
    has_tokens = bool(settings.caller_jwt.jwks_url)
    if not file.callers and not has_tokens:
        raise ConfigurationError(f"{place} callers: there is no authentication: add a table [callers.NAME]")
    for caller in callers:
        kind, _, name = caller.partition(":")
        if ":" not in caller:
            if caller not in file.callers:
                raise ConfigurationError(f"{place} callers: there is no table [callers.{caller}]")
        elif kind not in ("subject", "scope", "role") or not name:
            raise ConfigurationError(
                f"{place} callers: {caller!r} is neither the name of a table [callers.NAME] nor subject:NAME, scope:NAME or "
                "role:NAME"
            )
        elif not has_tokens:
            raise ConfigurationError(
                f"{place} callers: {caller!r} requires bearer tokens: set jwks_url in [server.caller_jwt]"
            )


def _check_approvers(place: str, value: str) -> None:
    try:
        parse_approvers(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place} approvers: {error}") from None
