"""Descriptions of MCP servers for `McpToolset`: a program, or a URL."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.wrappers import ConfigurationError


@dataclass(frozen=True)
class StdioServer:
    """An MCP server that is a program, with messages on its standard input and output.

    Attributes:
        env: Additional environment variables. The program inherits only those that every program needs (``PATH``, ``HOME``, …),
            and therefore no keys of providers.
        cwd: The working folder; None for the current folder.
    """

    command: str
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | Path | None = None

    def __str__(self) -> str:
        return " ".join((self.command, *self.arguments))


@dataclass(frozen=True)
class HttpServer:
    """An MCP server at a URL (Streamable HTTP transport).

    Raises:
        ConfigurationError: The URL is not an HTTP URL.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"an MCP server's address begins with http:// or https://: {self.url!r}")

    def __str__(self) -> str:
        """Return the URL without the user and the query, which may be secret."""
        scheme, _, rest = self.url.partition("://")
        authority, slash, path = rest.partition("#")[0].partition("?")[0].partition("/")
        return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
