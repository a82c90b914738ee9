"""The servers of the Model Context Protocol (MCP): a program, or a URL."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.wrappers import ConfigurationError


@dataclass(frozen=True)
class StdioServer:
    """A server that is a program, over its standard input and output.

    Attributes:
        command: The program.
        arguments: Its arguments.
        env: Additional environment variables. Of this process' environment it receives only those that every program
            needs (``PATH``, ``HOME``, …), not the keys of providers.
        cwd: Its working folder; ours when None.
    """

    command: str
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | Path | None = None

    def __str__(self) -> str:
        return " ".join((self.command, *self.arguments))


@dataclass(frozen=True)
class HttpServer:
    """A server at a URL (the transport Streamable HTTP).

    Attributes:
        url: The URL.
        headers: Headers of every request.

    Raises:
        ConfigurationError: The URL is not an HTTP URL.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"an MCP server's address begins with http:// or https://: {self.url!r}")

    def __str__(self) -> str:
        """Return the URL without parts that may be secret: user and query."""
        scheme, _, rest = self.url.partition("://")
        authority, slash, path = rest.partition("#")[0].partition("?")[0].partition("/")
        return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
