"""The configuration of a server: its settings, and its agents if it has a configuration file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError

# Minimum characters of values that are removed from errors. A shorter value may be part of any word.
_SHORTEST_SECRET = 6


@dataclass(frozen=True)
class AgentConfig:
    """An agent of a configuration file.

    Attributes:
        name: The name of the agent, which is part of its URL.
        settings: The settings of the server, with those of the agent.
        fallbacks: The settings of the fallback models, in the order in which they are tried.
        callers: The callers who may use the agent, as in `AgentTable`; None for all callers.
    """

    name: str
    settings: Settings
    fallbacks: tuple[Settings, ...] = ()
    callers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a server and of its agents, from a configuration file.

    Attributes:
        settings: The settings of ``[server]``, overridden by the command line and the environment.
        agents: The agents, in the order of the file.
        path: The path of the file; None if there is no file.
        variables: The environment variables that the file refers to, as a mapping from value to name.
    """

    settings: Settings
    agents: tuple[AgentConfig, ...]
    path: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def error(self, problem: str) -> ConfigurationError:
        """Return an error about the file. Values of environment variables, which may be secrets, are removed."""
        return config_error(self.path, problem, self.variables)


LoadConfig = Callable[[Settings], ServerConfig]
"""Reads the configuration file. Its argument is the settings of the running server."""


def config_error(path: Path | None, problem: str, variables: Mapping[str, str]) -> ConfigurationError:
    """Return an error about a configuration file. Values of environment variables, which may be secrets, are removed.

    Args:
        path: The path of the file; None if there is no file.
        problem: What is wrong.
        variables: The environment variables that the file refers to, as a mapping from value to name.
    """
    for value, name in sorted(variables.items(), key=lambda item: -len(item[0])):
        if len(value) >= _SHORTEST_SECRET:
            for form in (value, repr(value)[1:-1]):
                problem = problem.replace(form, f"${{{name}}}")
        for part in value.split(":"):  # errors quote the parts of PROVIDER:MODEL and MODULE:NAME
            if len(part) >= _SHORTEST_SECRET:
                problem = problem.replace(repr(part), f"'${{{name}}}'")
    return ConfigurationError(f"{path}: {problem}" if path else problem)
